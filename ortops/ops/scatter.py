"""Writing by index, and with it the gradients of reading: duplicates are combined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ortops import _shapes
from ortops._declare import ELEMENT_TYPES, INDICES, WIDE_FLOATS, Case, Testing, op
from ortops._standard import onnx
from ortops.ops.index import check_indices

if TYPE_CHECKING:
    from ortops.graph import Value


def combine(y: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int, into: np.ufunc) -> np.ndarray:
    """y with each update combined, in order, into the element that its index names along the axis."""
    at: list[np.ndarray] = list(np.indices(updates.shape, sparse=True))
    at[axis] = np.broadcast_to(indices.astype(np.int64), updates.shape)  # (the tests' terms are of float64 throughout)
    into.at(y, tuple(at), updates)
    return y


def wide(value: Value) -> Value:
    """In the type that sums are computed in."""
    return value if value.dtype in ("float32", "float64") else onnx.Cast(value, to=ELEMENT_TYPES["float32"])


def zeros_like(value: Value) -> Value:
    """Zeros of that shape, in the type that sums are computed in."""
    zeros = onnx.ConstantOfShape(onnx.Shape(value))
    return zeros if value.dtype != "float64" else onnx.Cast(zeros, to=ELEMENT_TYPES["float64"])


# --- ScatterAdd -----------------------------------------------------------------------------------------------------

REDUCTIONS: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def writing(x: tuple[int, ...], indices: tuple[int, ...], updates: tuple[int, ...], **attributes: Any) -> Case:
    size = x[attributes.get("axis", 0)]
    return Case(
        lambda rng: {
            "x": rng.standard_normal(x),
            "indices": rng.integers(-size, max(size, 1), indices),
            "updates": rng.standard_normal(updates),
        },
        attributes,
        f"{list(indices)} for {list(updates)} into {list(x)}",
    )


def _updates(rng: np.random.Generator, shape: tuple[int, ...], sizes: Mapping[str, Any]) -> np.ndarray:
    size, *rest = sizes["X"]
    return rng.standard_normal((sum(sizes["U"]) + 1 if size else 0, *rest))


def _indices(rng: np.random.Generator, shape: tuple[int, ...], sizes: Mapping[str, Any]) -> np.ndarray:
    """One for each update, or one for each row of them."""
    size, *rest = sizes["X"]
    rest = [1] * len(rest) if rng.random() < 0.5 else rest
    return rng.integers(-size, max(size, 1), (sum(sizes["U"]) + 1 if size else 0, *rest))


def _terms(
    x: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int = 0, reduction: str = "add", **_: Any
) -> np.ndarray | float:
    return combine(np.abs(x), indices, np.abs(updates), axis, np.add) if reduction == "add" else 0.0


@op(
    "x: T[*X], indices: I<*U>, updates: T[*U] -> y: T[*scatter(*X, *U)]",
    name="ScatterAdd",
    I=INDICES,
    T=WIDE_FLOATS,
    testing=Testing(
        cases=(
            writing((2,), (5,), (5,)),
            writing((4, 6), (4, 9), (4, 9), axis=1),
            writing((3, 5, 7), (2, 9, 6), (2, 9, 6), axis=-2),
            writing((3, 5, 7), (3, 9, 1), (3, 9, 7), axis=1, reduction="max"),
            writing((3, 5, 7), (9, 1), (3, 9, 7), axis=1),
            writing((3, 5, 7), (9, 1), (3, 9, 7), axis=1, reduction="mul", deterministic=True),
            writing((3, 5, 7), (1,), (3, 1, 5), axis=1),
            writing((3, 5, 7), (2, 1, 4), (2, 6, 4), axis=1, deterministic=True),
            writing((11, 384), (70, 1), (70, 384)),
            writing((11, 32), (2000, 1), (2000, 32), reduction="min"),
            writing((3, 8), (5000, 1), (5000, 8)),
            writing((3, 8), (0, 1), (0, 8)),
            writing((1500, 2), (1200, 2), (1200, 2), deterministic=True),
            writing((0, 8), (0, 1), (0, 8), deterministic=True),
            writing((20_000,), (600,), (600,)),
            writing((2, 700, 70), (2, 90, 70), (2, 90, 70), axis=1, reduction="max"),
        ),
        samples={"updates": _updates, "indices": _indices},
        terms=_terms,
    ),
)
def scatter_add(
    x: np.ndarray,
    indices: np.ndarray,
    updates: np.ndarray,
    *,
    axis: int = 0,
    reduction: Literal["add", "mul", "min", "max"] = "add",
    deterministic: bool = False,
) -> np.ndarray:
    """Combines each update into the element of x that its index names along an axis, duplicates too (ONNX's ScatterElements).

    As PyTorch's scatter_reduce with include_self. The updates have the rank of x and are no larger but along the axis. The indices
    broadcast to their shape: one for each update, or [N, 1] for rows [N, D] (PyTorch's index_add). A negative index counts from the
    end; one outside of the axis is an error on the CPU, on CUDA its update is left out (an error too in a session with the option
    `ortops.check_indices`). NaN wins in every reduction. Everything is computed in float32 (float64 in float64) and rounded once.
    The order in which duplicates are added may vary on CUDA; with `deterministic` it does not.
    """
    _shapes.scatter(x.shape, updates.shape, axis=axis)
    check_indices("ScatterAdd", indices, x.shape[axis])
    return combine(np.array(x), indices, updates, axis, REDUCTIONS[reduction])


@scatter_add.decomposition
def _(x: Value, indices: Value, updates: Value, *, axis: int, reduction: str, deterministic: bool) -> Value:
    each = onnx.Expand(indices, onnx.Shape(updates))
    x_, updates_ = wide(x), wide(updates)
    y = onnx.ScatterElements(x_, each, updates_, axis=axis, reduction=reduction)
    if reduction in ("min", "max"):  # in which ONNX Runtime passes over NaN
        is_nan = onnx.Cast(onnx.IsNaN(x_), to=ELEMENT_TYPES["float32"])
        nans = onnx.Cast(onnx.IsNaN(updates_), to=ELEMENT_TYPES["float32"])
        wrong = onnx.Greater(onnx.ScatterElements(is_nan, each, nans, axis=axis, reduction="add"), np.float32(0))
        y = onnx.Where(wrong, onnx.CastLike(np.float32(np.nan), y), y)
    return y if x.dtype in ("float32", "float64") else onnx.CastLike(y, x)


@scatter_add.gradient
def _(
    x: Value, indices: Value, updates: Value, y: Value, d_y: Value, *, axis: int, reduction: str, deterministic: bool
) -> dict[str, Value]:
    """As PyTorch's: elements that share an extreme share its gradient; a product's gradient is that of the other factors."""

    def gathered(value: Value) -> Value:
        return scatter_add_gradient(value, indices, updates_, axis=axis)

    def scattered(into: Value, values: Value, how: str = "add") -> Value:
        return scatter_add(into, indices, values, axis=axis, reduction=how, deterministic=deterministic)

    updates_ = updates
    if reduction == "add":
        return {"x": d_y, "updates": gathered(d_y)}
    narrow = x
    x, updates_, y, d_y = wide(x), wide(updates), wide(y), wide(d_y)
    if reduction == "mul":
        one = onnx.CastLike(1.0, x)
        is_zero = onnx.Equal(updates_, onnx.CastLike(0.0, x))
        zeros = gathered(scattered(zeros_like(x), onnx.CastLike(is_zero, x)))
        is_only = onnx.And(is_zero, onnx.Equal(zeros, one))
        x_or_one = onnx.Where(onnx.Equal(x, onnx.CastLike(0.0, x)), one, x)
        others = scattered(x, onnx.Where(is_only, one, updates_), "mul")
        d_x = d_y * scattered(x_or_one, updates_, "mul") / x_or_one
        d_updates = onnx.Where(is_only, gathered(d_y * others), gathered(d_y * y) / onnx.Where(is_zero, one, updates_))
    else:
        is_x = onnx.CastLike(onnx.Equal(x, y), x)
        is_update = onnx.CastLike(onnx.Equal(updates_, gathered(y)), x)
        share = d_y / scattered(is_x, is_update)
        d_x, d_updates = is_x * share, is_update * gathered(share)
    if narrow.dtype in ("float32", "float64"):
        return {"x": d_x, "updates": d_updates}
    return {"x": onnx.CastLike(d_x, narrow), "updates": onnx.CastLike(d_updates, narrow)}


def _d_y(rng: np.random.Generator, shape: tuple[int, ...], sizes: Mapping[str, Any]) -> np.ndarray:
    return rng.standard_normal(sizes["X"])


@op(
    "d_y: T[*X], indices: I<*U>, updates: T[*U] -> d_updates: T[*along(*X, *U)]",
    name="ScatterAddGradient",
    by_size=["T"],
    I=INDICES,
    T=WIDE_FLOATS,
    testing=Testing(
        cases=(
            Case(
                lambda rng: {
                    "d_y": rng.standard_normal((11, 384)),
                    "indices": rng.integers(-11, 11, (70, 1)),
                    "updates": np.zeros((70, 384)),
                },
                name="rows",
            ),
            Case(
                lambda rng: {
                    "d_y": rng.standard_normal((3, 5, 7)),
                    "indices": rng.integers(-5, 5, (9, 1)),
                    "updates": np.zeros((2, 9, 6)),
                },
                {"axis": -2},
                "a part",
            ),
        ),
        samples={"updates": _updates, "indices": _indices},
    ),
)
def scatter_add_gradient(d_y: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int = 0) -> np.ndarray:
    """Gives each update of a ScatterAdd the gradient of the element that it was added to.

    TakeAlongAxis with indices that broadcast to the shape of the updates, which are not read otherwise.
    """
    _shapes.along(d_y.shape, updates.shape, axis=axis)
    check_indices("ScatterAddGradient", indices, d_y.shape[axis])
    inside = tuple(slice(None if i == axis % d_y.ndim else size) for i, size in enumerate(updates.shape))
    return np.take_along_axis(d_y[inside], np.broadcast_to(indices, updates.shape), axis)


@scatter_add_gradient.decomposition
def _(d_y: Value, indices: Value, updates: Value, *, axis: int) -> Value:
    return onnx.GatherElements(d_y, onnx.Expand(indices, onnx.Shape(updates)), axis=axis)


# --- the gradients of reading ---------------------------------------------------------------------------------------


# The shapes that the samples draw do not go together: these do. (An empty table is read by no index.)


def _table(sizes: Mapping[str, Any]) -> tuple[int, ...]:
    return sizes["X"] or (4,)


def _along_shape(sizes: Mapping[str, Any]) -> tuple[int, ...]:
    first, *rest = _table(sizes)
    return (sum(sizes["J"]) + 1 if first else 0, *rest)


def _taken_indices(sizes: Mapping[str, Any]) -> tuple[int, ...]:
    return sizes["J"] if _table(sizes)[0] else (0, *sizes["J"][1:])


def _some(rng: np.random.Generator, sizes: Mapping[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    size = _table(sizes)[0]
    return rng.integers(-size, max(size, 1), shape)


def _along(x: tuple[int, ...], indices: tuple[int, ...], **attributes: Any) -> Case:
    size = x[attributes["axis"]]
    return Case(
        lambda rng: {
            "d_y": rng.standard_normal(indices),
            "indices": rng.integers(-size, max(size, 1), indices),
            "x": np.zeros(x),
        },
        attributes,
        f"{list(indices)} into {list(x)}",
    )


@op(
    "d_y: T[*J], indices: I[*J], x: T[*X] -> d_x: T[*scatter(*X, *J)]",
    name="TakeAlongAxisGradient",
    I=INDICES,
    T=WIDE_FLOATS,
    testing=Testing(
        cases=(
            _along((4, 6), (4, 9), axis=1),
            _along((4, 6), (4, 9), axis=1, deterministic=True),
            _along((3, 5, 7), (2, 9, 6), axis=-2),
            _along((64, 500), (64, 10), axis=-1),
            _along((2, 30_000), (2, 128), axis=-1),
            _along((2, 700, 70), (2, 9, 70), axis=1),
            _along((0, 4), (0, 3), axis=1),
            _along((3, 4), (3, 0), axis=1),
        ),
        samples={
            "d_y": lambda rng, shape, sizes: rng.standard_normal(_along_shape(sizes)),
            "indices": lambda rng, shape, sizes: _some(rng, sizes, _along_shape(sizes)),
            "x": lambda rng, shape, sizes: np.zeros(_table(sizes)),
        },
        terms=lambda d_y, indices, x, axis=0, **_: combine(np.zeros(x.shape), indices, np.abs(d_y), axis, np.add),
    ),
)
def take_along_axis_gradient(
    d_y: np.ndarray, indices: np.ndarray, x: np.ndarray, *, axis: int = 0, deterministic: bool = False
) -> np.ndarray:
    """Gives each element of x the sum of the gradients of the elements that TakeAlongAxis read from it, else zero.

    Of x only the shape is used. Sums are accumulated in float32 and rounded once; indices are as for ScatterAdd, and so is the
    order in which duplicates are added.
    """
    _shapes.scatter(x.shape, d_y.shape, axis=axis)
    check_indices("TakeAlongAxisGradient", indices, x.shape[axis])
    return combine(np.zeros(x.shape), indices, d_y, axis, np.add)


@take_along_axis_gradient.decomposition
def _(d_y: Value, indices: Value, x: Value, *, axis: int, deterministic: bool) -> Value:
    d_x = onnx.ScatterElements(zeros_like(x), indices, wide(d_y), axis=axis, reduction="add")
    return d_x if x.dtype in ("float32", "float64") else onnx.CastLike(d_x, x)


def sum_taken(
    d_y: np.ndarray, indices: np.ndarray, x: np.ndarray, axis: int = 0, padding_idx: int | None = None
) -> np.ndarray:
    """The sums of the slices of d_y by the slice of x that they were taken from."""
    axis %= x.ndim
    size = x.shape[axis]
    d_slices = np.moveaxis(d_y.reshape(*x.shape[:axis], indices.size, *x.shape[axis + 1 :]), axis, 0)
    flat = np.where(indices < 0, indices + size, indices).astype(np.int64).ravel()
    if padding_idx is not None:
        kept = flat != (padding_idx + size if padding_idx < 0 else padding_idx)
        flat, d_slices = flat[kept], d_slices[kept]
    d_x = np.zeros((size, *x.shape[:axis], *x.shape[axis + 1 :]))
    np.add.at(d_x, flat, d_slices)
    return np.moveaxis(d_x, 0, axis)


def _taken(x: tuple[int, ...], indices: tuple[int, ...], **attributes: Any) -> Case:
    axis = attributes.get("axis", 0)
    size = x[axis]
    return Case(
        lambda rng: {
            "d_y": rng.standard_normal(_shapes.take(x, indices, axis=axis)),
            "indices": rng.integers(-size, max(size, 1), indices),
            "x": np.zeros(x),
        },
        attributes,
        f"{list(indices)} of axis {axis} of {list(x)}",
    )


@op(
    "d_y: T[*Y], indices: I[*J], x: T[*X] -> d_x: T[*take_gradient(*Y, *J, *X)]",
    name="TakeGradient",
    I=INDICES,
    T=WIDE_FLOATS,
    testing=Testing(
        cases=(
            _taken((11, 384), (5, 3)),
            _taken((11, 384), (5, 3), padding_idx=3),
            _taken((4, 384), (5, 30), padding_idx=-1),
            _taken((11, 7), (3000,)),
            _taken((2, 32), (9000,)),
            _taken((3000, 9), (1100,), padding_idx=0),
            _taken((5,), ()),
            _taken((4, 6), (), axis=-1),
            _taken((3, 4, 5), (2, 3), axis=1),
            _taken((3, 4, 5), (7,), axis=-1, padding_idx=1),
            _taken((3, 50, 2), (1300,), axis=1),
            _taken((0, 4), (3,), axis=1),
            _taken((3, 4), (0,), axis=1),
        ),
        samples={
            "d_y": lambda rng, shape, sizes: rng.standard_normal((*_taken_indices(sizes), *_table(sizes)[1:])),
            "indices": lambda rng, shape, sizes: _some(rng, sizes, _taken_indices(sizes)),
            "x": lambda rng, shape, sizes: np.zeros(_table(sizes)),
        },
        terms=lambda d_y, indices, x, **given: sum_taken(np.abs(d_y), indices, x, **given),
    ),
)
def take_gradient(
    d_y: np.ndarray, indices: np.ndarray, x: np.ndarray, *, axis: int = 0, padding_idx: int | None = None
) -> np.ndarray:
    """Gives each slice of x the sum of the gradients of the slices that Take, or Embedding, read from it, else zero.

    Of x only the shape is used. d_y is [*A, *J, *B], as Take gives it. Indices equal to `padding_idx` (negative: from the end) add
    nothing. An index out of range is an error on the CPU and adds nothing on CUDA. Sums are accumulated in float32, rounded once,
    and the same bits in every run.
    """
    _shapes.take_gradient(d_y.shape, indices.shape, x.shape, axis=axis)
    check_indices("TakeGradient", indices, x.shape[axis])
    return sum_taken(d_y, indices, x, axis, padding_idx)


@take_gradient.decomposition
def _(d_y: Value, indices: Value, x: Value, *, axis: int, padding_idx: int | None) -> Value:
    rank = x.rank
    assert rank is not None
    axis %= rank
    count = onnx.Reshape(onnx.Size(indices), np.array([1]))
    shape = onnx.Shape(x)
    before, size, after = (
        onnx.Slice(shape, np.array([start]), np.array([end]), np.array([0]))
        for start, end in ((0, axis), (axis, axis + 1), (axis + 1, rank))
    )
    slices = wide(onnx.Reshape(d_y, onnx.Concat(before, count, after, axis=0), allowzero=1))
    ones = [np.ones(n, np.int64) for n in (axis, rank - axis - 1)]
    each = onnx.Reshape(indices, onnx.Concat(ones[0], count, ones[1], axis=0), allowzero=1)
    if padding_idx is not None:
        size = onnx.CastLike(size, indices)
        none = onnx.CastLike(padding_idx, indices)
        is_padding = onnx.Equal(
            onnx.Where(onnx.Less(each, onnx.CastLike(0, each)), each + size, each),
            none + size if padding_idx < 0 else none,
        )
        slices = onnx.Where(is_padding, onnx.CastLike(0.0, slices), slices)
    each = onnx.Expand(each, onnx.Shape(slices))
    d_x = onnx.ScatterElements(zeros_like(x), each, slices, axis=axis, reduction="add")
    return d_x if x.dtype in ("float32", "float64") else onnx.CastLike(d_x, x)
