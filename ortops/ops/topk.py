"""Selecting the largest or the smallest elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ortops._declare import ELEMENT_TYPES, WIDE_FLOATS, Case, Range, Testing, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value


def select(size: int, k: int, *shape: int, **attributes: Any) -> Case:
    """k of `size` in the last axis. As floats all are different, so that there is a gradient; what equal ones give is tested apart."""

    def inputs(rng: np.random.Generator) -> Mapping[str, Any]:
        return {"x": rng.permuted(np.broadcast_to(np.arange(size) * (60 / size), (*shape, size)), axis=-1)}

    return Case(inputs, {"k": k, **attributes}, f"{k} of {[*shape, size]}")


CASES = (
    *(select(size, k, 3, sorted=k != 5) for size in (33, 1000, 1024, 2049) for k in (1, 5, 33)),
    select(70_001, 3),
    select(70_001, 1500, largest=False),
    select(5_003, 3_000, 2, sorted=False, largest=False),
    Case(lambda rng: {"x": rng.permuted(np.arange(2 * 300 * 5)).reshape(2, 300, 5)}, {"k": 20, "axis": 1}, "axis 1"),
    Case(
        lambda rng: {"x": rng.permuted(np.arange(2100)).reshape(300, 7), "k_input": [11]}, {"axis": -2}, "k as an input"
    ),
    Case(lambda rng: {"x": np.zeros((0, 4))}, {"k": 2}, "no rows"),
    Case(lambda rng: {"x": np.zeros((2, 0))}, {"k": 0}, "an axis of no elements"),
)


@op(
    "x: T[*X], k_input: host int64?[1] -> values: T[*top_k(*X, *k_input)], indices: int64[*top_k(*X, *k_input)]",
    name="SelectTopK",
    T=(*WIDE_FLOATS, "int32", "int64", "int8", "uint8"),
    testing=Testing(
        cases=CASES,
        samples={"k_input": lambda rng, shape, bound: np.array([bound["X"][-1] // 2])},
    ),
)
def select_top_k(
    x: np.ndarray,
    k_input: np.ndarray | None = None,
    *,
    k: Annotated[int, Range(min=0)] | None = None,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Selects the k largest (or smallest) elements along an axis, and gives them with their indices.

    k is an attribute (k=5) or an input (int64 of shape [1]), not both; without either the whole axis is taken, a stable sort. A k
    below 0 or beyond the size of the axis is an error, and so is an input without axes. `sorted`: the best first; else in the order
    of indices.

    The result is always the same: of equal values the one with the lower index is taken first (0 and -0 are equal), NaN counts as
    larger than infinity, so that it comes last where the smallest are wanted, and a row's result does not depend on the rows beside
    it. (ONNX TopK; torch.topk, which leaves the indices of equal values open)
    """
    axis %= x.ndim
    taken = x.shape[axis] if k is None and k_input is None else int(k_input[0]) if k is None else k  # type: ignore[index]
    # A stable sort, that has NaN last. To have the largest first, and of equal ones the lower index, both ends are turned around.
    if largest:
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    indices = np.take(order, np.arange(taken), axis=axis)
    if not sorted:
        indices = np.sort(indices, axis=axis)
    return np.take_along_axis(x, indices, axis), indices


@select_top_k.decomposition
def _(x: Value, k_input: Value | None, *, k: int | None, axis: int, largest: bool, sorted: bool) -> tuple[Value, Value]:
    assert x.rank is not None
    axis %= x.rank
    size = onnx.Shape(x, start=axis, end=axis + 1)
    count = k_input if k_input is not None else size if k is None else x.graph.constant([k], dtype="int64")
    # Stock TopK has kernels for few types. All that are left out fit into these.
    wide = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32"}.get(str(x.dtype))
    compared = onnx.Cast(x, to=ELEMENT_TYPES[wide]) if wide else x
    if "int" in str(x.dtype):
        _, indices = onnx.TopK(compared, count, axis=axis, largest=int(largest))
    else:
        # Stock TopK does not order NaN. So they are put in front (or behind, for the smallest) and made infinite: of equal values the
        # first is taken first.
        is_nan = onnx.IsNaN(compared)
        _, order = onnx.TopK(onnx.Cast(is_nan, to=ELEMENT_TYPES["int32"]), size, axis=axis, largest=int(largest))
        infinity = onnx.CastLike(x.graph.constant(np.float32(np.inf)), compared)
        turned = onnx.GatherElements(onnx.Where(is_nan, infinity, compared), order, axis=axis)
        _, places = onnx.TopK(turned, count, axis=axis, largest=int(largest))
        indices = onnx.GatherElements(order, places, axis=axis)
    if not sorted:
        indices, _ = onnx.TopK(indices, count, axis=axis, largest=0)
    return onnx.GatherElements(x, indices, axis=axis), indices


@select_top_k.gradient
def _(x: Value, indices: Value, d_values: Value, *, axis: int) -> Value:
    from ortops import ops

    return ops.take_along_axis_gradient(d_values, indices, x, axis=axis)
