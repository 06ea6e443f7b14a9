"""Sums, means and maxima of the rows of a table that bags of indices name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ortops._declare import ELEMENT_TYPES, INDICES, WIDE_FLOATS, Case, OpError, Testing, find, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value

Inputs = Mapping[str, np.ndarray | None]
Mode = Literal["sum", "mean", "max"]

# --- references -----------------------------------------------------------------------------------------------------


def rows_of(name: str, indices: np.ndarray, rows: int) -> np.ndarray:
    """The row that each index names, all in a line."""
    outside = (indices < -rows) | (indices >= rows)
    if outside.any():
        index = indices[outside].flat[0]
        raise OpError(f"{name}: indices: index {index} is outside of the valid range [{-rows}, {rows - 1}]")
    flat = indices.reshape(-1).astype(np.int64)
    return np.where(flat < 0, flat + rows, flat)


def bags_of(
    name: str, indices: np.ndarray, offsets: np.ndarray | None, include_last_offset: bool
) -> tuple[np.ndarray, int]:
    """The number of the bag that each index is in (-1: none), and how many bags there are."""
    if indices.ndim == 2:
        if offsets is not None:
            raise OpError(f"{name}: offsets: expected none, as indices of rank 2 have a bag a row")
        return np.arange(len(indices)).repeat(indices.shape[1]), len(indices)
    if indices.ndim != 1:
        raise OpError(f"{name}: indices: expected rank 1 (with offsets) or 2, got rank {indices.ndim}")
    if offsets is None:
        raise OpError(f"{name}: offsets: missing; indices of rank 1 need them, to say where each bag begins")
    if len(offsets) < include_last_offset:
        raise OpError(
            f"{name}: offsets: expected at least one, as include_last_offset has the last one end the last bag, got none"
        )
    before = 0
    for position, offset in enumerate(offsets.tolist()):
        low, high = (before, indices.size) if position else (0, 0)
        if not low <= offset <= high:
            expected = f"a value from {low} to {high}" if position else "0"
            raise OpError(f"{name}: offsets: expected {expected} at position {position}, got {offset}")
        before = offset
    bags = len(offsets) - include_last_offset
    number = np.searchsorted(offsets, np.arange(indices.size), side="right") - 1
    return np.where(number < bags, number, -1), bags


def kept_of(name: str, rows: np.ndarray, bags: np.ndarray, padding_idx: int | None, count: int) -> np.ndarray:
    """Which indices are in a bag and are not padding."""
    if padding_idx is None:
        return bags >= 0
    check_padding(name, padding_idx, count)
    return (bags >= 0) & (rows != padding_idx % count)


def check_padding(name: str, padding_idx: int, rows: int) -> None:
    if not -rows <= padding_idx < rows:
        raise OpError(
            f"{name}: attribute padding_idx: expected an index of the table, from {-rows} to {rows - 1}, got {padding_idx}"
        )


def check_weights(name: str, mode: str, weights: Any) -> None:
    if weights is not None and mode != "sum":
        raise OpError(f'{name}: weights: expected none, as only the mode "sum" weighs its rows, got mode "{mode}"')


def check_bags(name: str, d_y: np.ndarray, bags: int) -> None:
    if len(d_y) != bags:
        raise OpError(f"{name}: d_y: expected a row for each of the {bags} bags, got {len(d_y)}")


def pad_rows(values: np.ndarray) -> np.ndarray:
    """With a row of zeros at the end, which is also that of bag -1."""
    return np.concatenate([values, np.zeros_like(values, shape=(1, *values.shape[1:]))])


# --- tests ----------------------------------------------------------------------------------------------------------


def draw_indices(rng: np.random.Generator, shape: tuple[int, ...], sizes: Mapping[str, Any]) -> np.ndarray:
    return rng.integers(-sizes["V"], sizes["V"], shape)


def draw_offsets(rng: np.random.Generator, shape: tuple[int, ...], sizes: Mapping[str, Any]) -> np.ndarray:
    drawn = np.sort(rng.integers(0, int(np.prod(sizes["S"])) + 1, shape))
    return np.where(np.arange(shape[0]) == 0, 0, drawn)


def accepts(inputs: Inputs, attributes: Mapping[str, Any]) -> bool:
    """Which of the standard samples are calls: a matrix of indices or offsets, weights for the sum alone, all bags given."""
    indices, offsets, d_y = (inputs.get(name) for name in ("indices", "offsets", "d_y"))
    assert indices is not None
    if (indices.ndim == 2) == (offsets is not None) or indices.ndim not in (1, 2):
        return False
    if inputs.get("weights") is not None and attributes["mode"] != "sum":
        return False
    bags = len(indices) if offsets is None else len(offsets) - attributes["include_last_offset"]
    return d_y is None or len(d_y) == bags


def bag_sizes(sizes: dict[str, Any]) -> dict[str, Any]:
    """A row of d_y for each bag; and not so few rows that a sum is of the same terms over and over, and of their rounding."""
    return sizes | {"V": max(33, sizes["V"])} | ({"O": sizes["B"]} if "B" in sizes else {})


def ragged(
    lengths: tuple[int, ...],
    rows: int,
    width: int,
    *,
    weighted: bool = False,
    only: tuple[str, ...] | None = None,
    more: int = 0,
    **attributes: Any,
) -> Case:
    """Bags of those lengths; `more` indices behind the last bag, where an offset ends it; the inputs `only`, of all."""

    def inputs(rng: np.random.Generator) -> dict[str, Any]:
        ends = np.cumsum((0, *lengths))
        count = int(ends[-1]) + more
        given = {
            "d_y": rng.standard_normal((len(lengths), width)),
            "indices": rng.integers(-rows, rows, count),
            "table": rng.standard_normal((rows, width)),
            "offsets": ends if attributes.get("include_last_offset") else ends[:-1],
            "weights": rng.standard_normal(count) if weighted else None,
        }
        return {name: value for name, value in given.items() if only is None or name in only}

    return Case(inputs, attributes, f"bags of {lengths}, {rows} rows of {width}")


def matrix(shape: tuple[int, int], rows: int, width: int, only: tuple[str, ...], **attributes: Any) -> Case:
    def inputs(rng: np.random.Generator) -> dict[str, Any]:
        given = {
            "d_y": rng.standard_normal((shape[0], width)),
            "indices": rng.integers(-rows, rows, shape),
            "table": rng.standard_normal((rows, width)),
        }
        return {name: value for name, value in given.items() if name in only}

    return Case(inputs, attributes, f"{shape} indices, {rows} rows of {width}")


LENGTHS = (3, 0, 1, 20, 0)


def cases(*only: str, modes: tuple[Mode | None, ...] = ("sum", "mean", "max")) -> tuple[Case, ...]:
    """What all the operators here are afraid of: widths, padding, bags that are empty or long, indices in no bag."""
    plain: tuple[dict[str, Any], ...] = tuple({} if mode is None else {"mode": mode} for mode in modes)
    last: dict[str, Any] = {"padding_idx": -3, "include_last_offset": True}
    return (
        *(ragged(LENGTHS, 11, width, only=only, **plain[i % len(plain)]) for i, width in enumerate((1, 6, 100, 4104))),
        *(ragged(LENGTHS, 5, 16, only=only, more=4, **last, **mode) for mode in plain),
        *(ragged((0, 700, 2), 60, 16, only=only, **mode) for mode in plain),
        *(matrix((3, 9), 4, 40, only, padding_idx=2, **mode) for mode in plain),
        matrix((300, 3), 40, 8, only, **plain[0]),
        matrix((3, 0), 4, 8, only, padding_idx=1, **plain[-1]),
    )


#: Enough indices of one row that their sum is split, twice.
HOT = (ragged((16000, 24000), 3, 8, mode="sum", weighted=True), ragged((400, 100), 900, 40, mode="mean"))


def terms_of(name: str) -> Callable[..., np.ndarray | float]:
    """What an operator gives for the magnitudes of its inputs."""

    def terms(*inputs: Any, **attributes: Any) -> np.ndarray | float:
        op_ = find(name)
        if op_ is None or attributes.get("mode") == "max":
            return 0.0
        floats = [formal.name in op_.differentiable for formal in op_.inputs]
        given = [
            x if x is None else np.abs(x) if f else x.astype(np.int64) for x, f in zip(inputs, floats, strict=False)
        ]
        return op_.reference(*given, **attributes)[0]

    return terms


# --- the operators --------------------------------------------------------------------------------------------------


@op(
    "indices: I[*S], table: T[V D], offsets: I?[O], weights: T?[*S] -> y: T[*bags(*S, O) D]",
    name="EmbeddingBag",
    I=INDICES,
    T=WIDE_FLOATS,
    testing=Testing(
        cases=(
            *cases("indices", "table", "offsets"),
            ragged(LENGTHS, 11, 40, only=("indices", "table", "offsets", "weights"), mode="sum", weighted=True),
            ragged((2,) * 70_000, 5, 3, only=("indices", "table", "offsets"), mode="mean"),
        ),
        samples={"indices": draw_indices, "offsets": draw_offsets},
        sizes=bag_sizes,
        accepts=accepts,
        fixed=("offsets",),
        terms=terms_of("EmbeddingBag"),
    ),
)
def embedding_bag(
    indices: np.ndarray,
    table: np.ndarray,
    offsets: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
    mode: Mode = "mean",
    padding_idx: int | None = None,
    include_last_offset: bool = False,
) -> np.ndarray:
    """Looks up the rows of each bag of indices, and gives their sum, mean or maximum.

    As torch.nn.functional.embedding_bag: a matrix of indices has a bag a row; in a line of them, bag i begins at offsets[i] and
    ends where the next one begins, the last one with the indices, or, with `include_last_offset`, at the last offset. `weights`
    are factors of the rows, in the mode "sum" alone. Indices that name the row `padding_idx` are left out, and not counted. An
    empty bag gives zeros.

    Sums are formed in float32 (float64 for float64). A maximum is NaN where one of the values is. A negative index counts from
    the end. An index outside of [-V, V-1], and offsets that do not begin at 0, decrease or pass the number of indices, are errors
    on the CPU; on CUDA such an index makes its bag NaN, such an offset is moved to the nearest valid one, and both are errors in
    a session with the option `ortops.check_indices`.
    """
    rows = rows_of("EmbeddingBag", indices, len(table))
    bag, bags = bags_of("EmbeddingBag", indices, offsets, include_last_offset)
    kept = kept_of("EmbeddingBag", rows, bag, padding_idx, len(table))
    check_weights("EmbeddingBag", mode, weights)
    values = table[rows] if weights is None else table[rows] * weights.reshape(-1, 1)
    count = np.bincount(bag[kept], minlength=bags)[:, None]
    if mode == "max":
        y = np.full((bags, table.shape[1]), -np.inf)
        np.maximum.at(y, bag[kept], values[kept])
        return np.where(count > 0, y, 0)
    y = np.zeros((bags, table.shape[1]))
    np.add.at(y, bag[kept], values[kept])
    return y / np.maximum(count, 1) if mode == "mean" else y


@op(
    "d_y: T[B D], indices: I[*S], table: T[V D], offsets: I?[O], weights: T?[*S] -> d_table: T[V D]",
    name="EmbeddingBagGradient",
    I=INDICES,
    T=WIDE_FLOATS,
    testing=Testing(
        cases=(*cases("d_y", "indices", "table", "offsets"), *HOT),
        samples={"indices": draw_indices, "offsets": draw_offsets},
        sizes=bag_sizes,
        accepts=accepts,
        fixed=("offsets",),
        terms=terms_of("EmbeddingBagGradient"),
    ),
)
def embedding_bag_gradient(
    d_y: np.ndarray,
    indices: np.ndarray,
    table: np.ndarray,
    offsets: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
    mode: Mode = "mean",
    padding_idx: int | None = None,
    include_last_offset: bool = False,
) -> np.ndarray:
    """The gradient of EmbeddingBag's table: the sum, for each row, of what reaches the bags it is in; the same bits every time.

    A maximum's gradient goes to the first of the bag's rows that has it (the first NaN where there is one). The table's values are
    read in that mode alone. Inputs that are errors for EmbeddingBag are errors here; on CUDA such an index is passed over.
    """
    name = "EmbeddingBagGradient"
    rows = rows_of(name, indices, len(table))
    bag, bags = bags_of(name, indices, offsets, include_last_offset)
    kept = kept_of(name, rows, bag, padding_idx, len(table))
    check_weights(name, mode, weights)
    check_bags(name, d_y, bags)
    d = pad_rows(d_y)[bag]
    if weights is not None:
        d = d * weights.reshape(-1, 1)
    if mode == "mean":
        d = d / np.maximum(pad_rows(np.bincount(bag[kept], minlength=bags)), 1)[bag, None]
    if mode == "max":
        winner = np.full((bags, table.shape[1]), -1)
        for position in np.flatnonzero(kept)[::-1]:  # the first one is the last to write
            now, best = table[rows[position]], winner[bag[position]]
            value = table[rows[best], np.arange(len(best))] if len(rows) else now
            wins = (best < 0) | np.isnan(now) | (now >= value)
            winner[bag[position]] = np.where(wins, position, best)
        d = np.where(pad_rows(winner)[bag] == np.arange(len(bag))[:, None], d, 0)
    d_table = np.zeros(table.shape)
    np.add.at(d_table, rows[kept], d[kept])
    return d_table


@op(
    "d_y: T[B D], indices: I[*S], table: T[V D], offsets: I?[O] -> d_weights: T[*S]",
    name="EmbeddingBagWeightsGradient",
    I=INDICES,
    T=WIDE_FLOATS,
    testing=Testing(
        cases=cases("d_y", "indices", "table", "offsets", modes=(None,)),
        samples={"indices": draw_indices, "offsets": draw_offsets},
        sizes=bag_sizes,
        accepts=accepts,
        fixed=("offsets",),
        terms=terms_of("EmbeddingBagWeightsGradient"),
    ),
)
def embedding_bag_weights_gradient(
    d_y: np.ndarray,
    indices: np.ndarray,
    table: np.ndarray,
    offsets: np.ndarray | None = None,
    *,
    padding_idx: int | None = None,
    include_last_offset: bool = False,
) -> np.ndarray:
    """The gradient of EmbeddingBag's weights: for each index the product of its row and what reaches its bag.

    0 for padding, and for indices that are in no bag. Inputs that are errors for EmbeddingBag are errors here; on CUDA such an
    index gives NaN.
    """
    name = "EmbeddingBagWeightsGradient"
    rows = rows_of(name, indices, len(table))
    bag, bags = bags_of(name, indices, offsets, include_last_offset)
    kept = kept_of(name, rows, bag, padding_idx, len(table))
    check_bags(name, d_y, bags)
    return np.where(kept, (pad_rows(d_y)[bag] * table[rows]).sum(axis=-1), 0).reshape(indices.shape)


@embedding_bag.gradient
def _(
    indices: Value,
    table: Value,
    offsets: Value | None,
    weights: Value | None,
    d_y: Value,
    *,
    mode: Mode,
    padding_idx: int | None,
    include_last_offset: bool,
) -> dict[str, Value]:
    bags: dict[str, Any] = {"padding_idx": padding_idx, "include_last_offset": include_last_offset}
    result = {"table": embedding_bag_gradient(d_y, indices, table, offsets, weights, mode=mode, **bags)}
    if weights is not None:
        result["weights"] = embedding_bag_weights_gradient(d_y, indices, table, offsets, **bags)
    return result


# --- decompositions -------------------------------------------------------------------------------------------------
# Without a loop: each index is given the number of its bag, and its row is scattered there.

ZERO, ONE = np.array(0, np.int64), np.array(1, np.int64)


def wide(value: Value, table: Value) -> Value:
    return onnx.Cast(value, to=ELEMENT_TYPES["float64" if table.dtype == "float64" else "float32"])


def full(value: float, table: Value, *sizes: Value | np.ndarray) -> Value:
    """A tensor of that number, of these sizes (each of shape [1])."""
    like = np.float64 if table.dtype == "float64" else np.float32
    return onnx.Expand(np.asarray(value, like), onnx.Concat(*sizes, axis=0))


def size_of(value: Value, axis: int) -> Value:
    return onnx.Shape(value, start=axis, end=axis + 1)


def slots_of(name: str, indices: Value, offsets: Value | None) -> tuple[Value, Value]:
    """For the indices in a line the number of their bag, counted from 1 (0: before the first), and how many numbers there are."""
    if indices.rank == 2:
        if offsets is not None:
            raise OpError(f"{name}: offsets: expected none, as indices of rank 2 have a bag a row")
        positions = onnx.Range(ZERO, onnx.Size(indices), ONE)
        return positions / onnx.Max(size_of(indices, 1), ONE) + 1, size_of(indices, 0) + 1
    if offsets is None:
        raise OpError(f"{name}: offsets: missing; indices of rank 1 need them, to say where each bag begins")
    begins = onnx.Expand(ZERO, onnx.Shape(indices) + 1)
    ones = onnx.Expand(ONE, onnx.Shape(offsets))
    begins = onnx.ScatterElements(begins, onnx.Cast(offsets, to=ELEMENT_TYPES["int64"]), ones, axis=0, reduction="add")
    return onnx.Slice(onnx.CumSum(begins, ZERO), [0], [-1], [0]), onnx.Shape(offsets) + 1


def lined_up(
    name: str,
    indices: Value,
    table: Value,
    offsets: Value | None,
    padding_idx: int | None,
) -> tuple[Value, Value, Value, Value]:
    """Of the indices in a line: the row, the number of the bag, whether it is no padding; and how many numbers there are."""
    slots, count = slots_of(name, indices, offsets)
    rows = onnx.Cast(onnx.Reshape(indices, [-1]), to=ELEMENT_TYPES["int64"])
    rows = onnx.Where(onnx.Less(rows, ZERO), rows + size_of(table, 0), rows)
    if padding_idx is None:
        kept = onnx.Expand(np.array(True), onnx.Shape(rows))
    else:
        kept = onnx.Not(onnx.Equal(rows, padding_row(table, padding_idx)))
    return rows, slots, kept, count


def padding_row(table: Value, padding_idx: int) -> Value | np.ndarray:
    row = np.array([padding_idx], np.int64)
    return size_of(table, 0) + row if padding_idx < 0 else row


def scatter(base: Value, slots: Value, values: Value, reduction: str) -> Value:
    """Reduces rows into the rows of `base` that the slots say."""
    where = onnx.Expand(onnx.Unsqueeze(slots, [1]), onnx.Shape(values))
    return onnx.ScatterElements(base, where, values, axis=0, reduction=reduction)


def column(value: Value) -> Value:
    return onnx.Unsqueeze(value, [-1])


def counts_of(slots: Value, kept: Value, table: Value, count: Value) -> Value:
    return onnx.ScatterElements(full(0, table, count), slots, wide(kept, table), axis=0, reduction="add")


def maxima(rows: Value, slots: Value, kept: Value, table: Value, count: Value) -> tuple[Value, Value, Value]:
    """The rows, the maximum of each slot (-inf of none), and whether it has NaN, which ONNX Runtime's maximum passes over."""
    values = wide(onnx.Gather(table, rows), table)
    width = size_of(table, 1)
    best = scatter(full(-np.inf, table, count, width), slots, onnx.Where(column(kept), values, -np.inf), "max")
    wrong = wide(onnx.And(onnx.IsNaN(values), column(kept)), table)
    return values, best, onnx.Greater(scatter(full(0, table, count, width), slots, wrong, "add"), 0.0)


@embedding_bag.decomposition
def _(
    indices: Value,
    table: Value,
    offsets: Value | None,
    weights: Value | None,
    *,
    mode: Mode,
    padding_idx: int | None,
    include_last_offset: bool,
) -> Value:
    check_weights("EmbeddingBag", mode, weights)
    if mode != "max" and indices.rank == 2 and offsets is None:  # nothing to scatter
        values = wide(onnx.Gather(table, indices), table)
        if weights is not None:
            values = values * column(wide(weights, table))
        count: Any = wide(size_of(indices, 1), table)
        if padding_idx is not None:
            row = padding_row(table, padding_idx)
            index = onnx.Cast(indices, to=ELEMENT_TYPES["int64"])
            kept = onnx.Not(onnx.Or(onnx.Equal(index, row), onnx.Equal(index + size_of(table, 0), row)))
            values = onnx.Where(column(kept), values, 0.0)
            count = onnx.ReduceSum(wide(column(kept), table), [1], keepdims=0)
        y = onnx.ReduceSum(values, [1], keepdims=0)
        return onnx.CastLike(y / onnx.Max(count, 1.0) if mode == "mean" else y, table)
    rows, slots, kept, slot_count = lined_up("EmbeddingBag", indices, table, offsets, padding_idx)
    count = column(counts_of(slots, kept, table, slot_count))
    if mode == "max":
        _, y, wrong = maxima(rows, slots, kept, table, slot_count)
        y = onnx.Where(onnx.Greater(count, 0.0), onnx.Where(wrong, np.nan, y), 0.0)
    else:
        values = wide(onnx.Gather(table, rows), table)
        if weights is not None:
            values = values * column(wide(onnx.Reshape(weights, [-1]), table))
        values = onnx.Where(column(kept), values, 0.0)
        y = scatter(full(0, table, slot_count, size_of(table, 1)), slots, values, "add")
        if mode == "mean":
            y = y / onnx.Max(count, 1.0)
    last = -1 if include_last_offset and offsets is not None else np.iinfo(np.int64).max
    return onnx.CastLike(onnx.Slice(y, [1], [last], [0]), table)


def arriving(d_y: Value, table: Value, slots: Value) -> Value:
    """What reaches each index: nothing before the first bag and behind the last."""
    none = full(0, table, np.array([1], np.int64), size_of(table, 1))
    return onnx.Gather(onnx.Concat(none, wide(d_y, table), none, axis=0), slots)


def in_bags(kept: Value, slots: Value, d_y: Value, offsets: Value | None) -> Value:
    """Which of the kept indices are in a bag: what is before the first and behind the last gives zeros, NaN or not."""
    if offsets is None:
        return kept
    return onnx.And(kept, onnx.And(onnx.Greater(slots, ZERO), onnx.LessOrEqual(slots, size_of(d_y, 0))))


@embedding_bag_gradient.decomposition
def _(
    d_y: Value,
    indices: Value,
    table: Value,
    offsets: Value | None,
    weights: Value | None,
    *,
    mode: Mode,
    padding_idx: int | None,
    include_last_offset: bool,
) -> Value:
    check_weights("EmbeddingBagGradient", mode, weights)
    rows, slots, kept, count = lined_up("EmbeddingBagGradient", indices, table, offsets, padding_idx)
    d = arriving(d_y, table, slots)
    if weights is not None:
        d = d * column(wide(onnx.Reshape(weights, [-1]), table))
    if mode == "mean":
        d = d / column(onnx.Gather(onnx.Max(counts_of(slots, kept, table, count), 1.0), slots))
    if mode == "max":
        values, best, wrong = maxima(rows, slots, kept, table, count)
        has = onnx.And(onnx.Equal(values, onnx.Gather(best, slots)), onnx.Not(onnx.Gather(wrong, slots)))
        has = onnx.Or(has, onnx.And(onnx.Gather(wrong, slots), onnx.IsNaN(values)))
        length = onnx.Shape(rows)
        position = column(onnx.Range(ZERO, onnx.Squeeze(length, [0]), ONE))
        candidate = onnx.Where(onnx.And(has, column(kept)), position, length)
        none = onnx.Expand(length, onnx.Concat(count, size_of(table, 1), axis=0))
        first = onnx.Gather(scatter(none, slots, candidate, "min"), slots)
        d = onnx.Where(onnx.Equal(first, position), d, 0.0)
    d = onnx.Where(column(in_bags(kept, slots, d_y, offsets)), d, 0.0)
    return onnx.CastLike(scatter(full(0, table, onnx.Shape(table)), rows, d, "add"), table)


@embedding_bag_weights_gradient.decomposition
def _(
    d_y: Value,
    indices: Value,
    table: Value,
    offsets: Value | None,
    *,
    padding_idx: int | None,
    include_last_offset: bool,
) -> Value:
    rows, slots, kept, _ = lined_up("EmbeddingBagWeightsGradient", indices, table, offsets, padding_idx)
    products = arriving(d_y, table, slots) * wide(onnx.Gather(table, rows), table)
    # ONNX Runtime reduces the last axis of an empty tensor to the wrong shape.
    kept = in_bags(kept, slots, d_y, offsets)
    d = onnx.Where(column(kept), onnx.ReduceSum(column(products), [1], keepdims=0), 0.0)
    return onnx.CastLike(onnx.Reshape(d, onnx.Shape(indices), allowzero=1), table)
