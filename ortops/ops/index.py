"""Reading by index: rows of a table, slices along an axis, one element for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ortops import _shapes
from ortops._declare import ALL, ELEMENT_TYPES, INDICES, WIDE_FLOATS, Case, OpError, Testing, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value


def check_indices(name: str, indices: np.ndarray, size: int) -> None:
    outside = (indices < -size) | (indices >= size)
    if outside.any():
        index = indices[outside].flat[0]
        raise OpError(f"{name}: indices: index {index} is outside of the valid range [{-size}, {size - 1}]")


def table(rows: int, width: int, indices: tuple[int, ...], *residual: int) -> Case:
    return Case(
        lambda rng: {
            "indices": rng.integers(-rows, rows, indices),
            "table": rng.standard_normal((rows, width)),
            "residual": rng.standard_normal(residual) if residual else None,
        },
        name=f"{list(indices)} of {rows} rows of {width}, residual {list(residual)}",
    )


CASES = (
    *(table(11, width, (5, 3)) for width in (1, 2, 7, 8, 300, 384, 4096)),
    *(table(11, width, (5, 3), 5, 3, width) for width in (1, 7, 384)),
    table(11, 384, (5, 3), 3, 384),
    table(11, 384, (5, 3), 5, 1, 384),
    table(11, 384, (5, 3), 5, 3, 1),
    table(11, 384, (5, 3), 384),
    table(11, 384, (5, 3), 1),
    table(11, 384, (2, 3, 4), 2, 1, 4, 384),
    table(1, 16, ()),
    table(3, 16, (0, 4)),
    table(3, 16, (100_000,)),
    # (A row that is looked up and gets no gradient would not be one that differences show.)
    Case(lambda rng: {"indices": np.array([-3, 2, -1, 0]), "table": np.eye(3)}, {"padding_idx": 1}, "both ends"),
)


@op(
    "indices: I[*S], table: T[V D], residual: T?<*S D> -> y: T[*S D]",
    name="Embedding",
    I=INDICES,
    T=WIDE_FLOATS,
    testing=Testing(
        cases=CASES,
        samples={"indices": lambda rng, shape, sizes: rng.integers(-sizes["V"], max(sizes["V"], 1), shape)},
    ),
)
def embedding(
    indices: np.ndarray, table: np.ndarray, residual: np.ndarray | None = None, *, padding_idx: int | None = None
) -> np.ndarray:
    """Looks up a row of the table for each index, and adds the residual if there is one (say, the position embeddings).

    A negative index counts from the end. One outside of [-V, V-1] is an error on the CPU; on CUDA that row becomes NaN, or an
    error too in a session with the option `ortops.check_indices`. As in PyTorch, `padding_idx` does not change what comes out:
    it names the row that gets no gradient.
    """
    check_indices("Embedding", indices, len(table))
    y = table[indices]
    return y if residual is None else y + residual


@embedding.decomposition
def _(indices: Value, table: Value, residual: Value | None, *, padding_idx: int | None) -> Value:
    rows = onnx.Gather(table, indices, axis=0)
    if residual is None:
        return rows
    wide = ELEMENT_TYPES["float64" if table.dtype == "float64" else "float32"]
    return onnx.CastLike(onnx.Cast(rows, to=wide) + onnx.Cast(residual, to=wide), table)


@embedding.gradient
def _(
    indices: Value, table: Value, residual: Value | None, d_y: Value, *, padding_idx: int | None
) -> dict[str, Value | None]:
    from ortops import ops

    return {
        "table": ops.take_gradient(d_y, indices, table, padding_idx=padding_idx),
        "residual": None if residual is None else ops.sum_to_size(d_y, residual),
    }


# --- Take -----------------------------------------------------------------------------------------------------------


def reading(x: tuple[int, ...], indices: tuple[int, ...], axis: int) -> Case:
    return Case(
        lambda rng: {
            "x": rng.integers(0, 100, x),
            "indices": rng.integers(-x[axis], max(x[axis], 1), indices),
        },
        {"axis": axis},
        f"{list(indices)} of axis {axis} of {list(x)}",
    )


def some_indices(rng: np.random.Generator, shape: tuple[int, ...], sizes: Mapping[str, Any]) -> np.ndarray:
    """Indices into the first axis of X; none where it is empty."""
    size = sizes["X"][0]
    return rng.integers(-size, max(size, 1), shape if size else (0, *shape[1:]))


@op(
    "x: T[*X], indices: I[*J] -> y: T[*take(*X, *J)]",
    name="Take",
    by_size=["T"],
    I=INDICES,
    T=ALL,
    testing=Testing(
        cases=(
            reading((5,), (), 0),
            reading((4, 6), (), -1),
            reading((3, 4, 5), (2, 3), 1),
            reading((3, 4, 5), (7,), -1),
            reading((2, 9, 16), (11,), 1),
            reading((2, 9, 24), (3,), 1),
            reading((0, 4), (3,), 1),
            reading((2, 3, 0, 4), (2, 2), -3),
            reading((300, 70), (1000,), 1),
        ),
        samples={"indices": some_indices},
    ),
)
def take(x: np.ndarray, indices: np.ndarray, *, axis: int = 0) -> np.ndarray:
    """Reads the slices of x that the indices name along an axis (numpy's take, ONNX's Gather).

    x of shape [*A, V, *B], V being the axis, and indices of any shape [*J] give [*A, *J, *B]. A negative index counts from the
    end. One outside of [-V, V-1] is an error on the CPU; on CUDA its elements get all bits set (NaN; -1 in integers; one-byte
    types get 0), or it is an error too in a session with the option `ortops.check_indices`.
    """
    check_indices("Take", indices, x.shape[axis])
    return np.take(x, indices, axis)


@take.decomposition
def _(x: Value, indices: Value, *, axis: int) -> Value:
    return onnx.Gather(x, indices, axis=axis)


@take.gradient
def _(x: Value, indices: Value, d_y: Value, *, axis: int) -> Value:
    from ortops import ops

    return ops.take_gradient(d_y, indices, x, axis=axis)


# --- TakeAlongAxis --------------------------------------------------------------------------------------------------


def indices_along(rng: np.random.Generator, shape: tuple[int, ...], sizes: Mapping[str, Any]) -> np.ndarray:
    """Indices into the first axis of X, as large as it in the others."""
    size, *rest = sizes["X"]
    return rng.integers(-size, max(size, 1), (sum(shape) + 1 if size else 0, *rest))


@op(
    "x: T[*X], indices: I[*J] -> y: T[*along(*X, *J)]",
    name="TakeAlongAxis",
    by_size=["T"],
    I=INDICES,
    T=ALL,
    testing=Testing(
        cases=(
            reading((4, 6), (4, 9), 1),
            reading((4, 6), (2, 3), 0),
            reading((3, 5, 7), (2, 9, 6), -2),
            reading((2, 3, 4, 5), (1, 3, 4, 2), 3),
            reading((0, 4), (0, 3), 1),
            reading((300, 70), (300, 100), 1),
        ),
        samples={"indices": indices_along},
    ),
)
def take_along_axis(x: np.ndarray, indices: np.ndarray, *, axis: int = 0) -> np.ndarray:
    """Reads for each index the element that it names along an axis (PyTorch's gather, ONNX's GatherElements).

    y[.., i, ..] = x[.., indices[.., i, ..], ..]. The indices have the rank of x and are no larger but along the axis; y has their
    shape. A negative index counts from the end; what one out of range gives is said at Take.
    """
    _shapes.along(x.shape, indices.shape, axis=axis)
    check_indices("TakeAlongAxis", indices, x.shape[axis])
    inside = tuple(slice(None if i == axis % x.ndim else size) for i, size in enumerate(indices.shape))
    return np.take_along_axis(x[inside], indices, axis)


@take_along_axis.decomposition
def _(x: Value, indices: Value, *, axis: int) -> Value:
    return onnx.GatherElements(x, indices, axis=axis)


@take_along_axis.gradient
def _(x: Value, indices: Value, d_y: Value, *, axis: int) -> Value:
    from ortops import ops

    return ops.take_along_axis_gradient(d_y, indices, x, axis=axis)
