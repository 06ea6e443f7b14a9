"""Repeating a tensor along axes, and adding up what was repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ortops import _shapes
from ortops._declare import ALL, ELEMENT_TYPES, WIDE_FLOATS, Case, Testing, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value


def random_target(rng: np.random.Generator, shape: tuple[int, ...], bound: Mapping[str, Any]) -> np.ndarray:
    """A shape of as many axes that x can be broadcast with."""
    target = rng.integers(1, 4, shape)
    for back in range(1, min(shape[0], len(bound["X"])) + 1):
        if bound["X"][-back] != 1:
            target[-back] = rng.choice([1, bound["X"][-back]])
    return target


def random_source(rng: np.random.Generator, shape: tuple[int, ...], bound: Mapping[str, Any]) -> np.ndarray:
    """A tensor of a shape that broadcasts to that of x."""
    sizes = [1 if rng.random() < 0.5 else size for size in bound["X"]]
    return np.zeros(sizes[int(rng.integers(0, len(sizes) + 1)) :])


def expansion(x: tuple[int, ...], *shape: int) -> Case:
    return Case(
        lambda rng: {"x": rng.integers(0, 2, x), "shape": np.array(shape, np.int64)}, name=f"{list(x)} to {list(shape)}"
    )


EXPANSIONS = (
    expansion((300,), 7, 300),
    expansion((7, 1), 7, 300),
    expansion((64, 1), 64, 3),
    expansion((3, 1, 16), 3, 5, 16),
    expansion((3, 1, 5, 1), 3, 4, 5, 7),
    expansion((2, 1, 3, 1, 2), 1, 3, 1, 2, 1),
    expansion((1, 3), 3, 1),
    expansion((), 1000),
    expansion((1, 1, 1), 40, 50, 33),
    expansion((2, 3), 1),
    expansion((1, 0), 3, 1),
    expansion((3, 1), 3, 0),
    expansion((1,) * 8 + (3,), *(2,) * 8, 1),
)


@op(
    "x: T[*X], shape: host int64[R] -> y: T[*expand(*X, *shape)]",
    name="BroadcastTo",
    by_size=["T"],
    T=ALL,
    testing=Testing(
        cases=EXPANSIONS,
        samples={"shape": random_target},
        sizes=lambda sizes: sizes | {"R": sizes["R"] % 5},
    ),
)
def broadcast_to(x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Repeats x along its axes of size 1, and along new ones in front, to the shape that it and the given one broadcast to.

    As ONNX's Expand, a size of 1 in `shape` keeps the size that x has there, and `shape` may have fewer axes than x. An axis
    of size 1 may be broadcast to size 0. A negative size is an error. At most 16 axes.
    """
    target: Any = _shapes.expand(x.shape, tuple(np.asarray(shape).tolist()))
    return np.broadcast_to(x, target)


@broadcast_to.decomposition
def _(x: Value, shape: Value) -> Value:
    return onnx.Expand(x, shape)


@broadcast_to.gradient
def _(x: Value, d_y: Value) -> Value:
    return sum_to_size(d_y, x)


def sums(x: tuple[int, ...], *like: int) -> Case:
    return Case(lambda rng: {"x": rng.standard_normal(x), "like": np.zeros(like)}, name=f"{list(x)} to {list(like)}")


SUMS = (
    *(sums((5, width), 5, 1) for width in (1, 3, 8, 33, 300, 1024, 4099)),
    *(sums((count, 64), 64) for count in (1, 2, 7, 300, 4099)),
    *(sums((1000, width), width) for width in (1, 3, 5, 7, 33, 129, 512)),
    sums((100_003,), 1),
    sums((50_001, 3), 3),
    sums((3, 50_001), 3, 1),
    sums((16, 7, 5, 12), 1, 7, 1, 1),
    sums((16, 7, 5, 12), 16, 1, 5, 1),
    sums((16, 7, 5, 12), 7, 1, 12),
    sums((4, 16, 49), 16, 1),
    sums((3, 5, 4, 6, 2), 3, 1, 4, 1, 2),
    sums((300, 2, 300), 1, 2, 1),
    sums((2, 3)),
    sums((2, 3), 2, 3),
    sums((), *()),
    sums((0, 4), 1, 4),
    sums((4, 0), 4, 1),
    sums((4, 0), 4, 0),
)


@op(
    "x: T[*X], like: T[*L] -> y: T[*sum_to(*L, *X)]",
    name="SumToSize",
    T=WIDE_FLOATS,
    testing=Testing(
        cases=SUMS,
        samples={"like": random_source},
        # What a sum of random terms of both signs is like, so that one that happens to be 0 is not held to 0.
        terms=lambda x, like: np.sqrt(summed(x * x, like.shape)),
    ),
)
def sum_to_size(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Adds x up along the axes in which `like`, which broadcasts to x, has size 1 or is missing: the gradient of BroadcastTo.

    Of `like` only the shape is looked at. 16-bit types are added up in float32, and rounded once; the same input gives the same
    bits. Where nothing is added up (an axis of size 0 becomes 1) the sum is 0. (PyTorch's Tensor.sum_to_size)
    """
    return summed(x, like.shape)


def summed(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    _shapes.sum_to(shape, x.shape)
    padded = (1,) * (x.ndim - len(shape)) + shape
    added = [axis for axis, (a, b) in enumerate(zip(padded, x.shape, strict=True)) if a != b]
    kept = [axis for axis in range(x.ndim) if axis not in added]
    # numpy adds by halves along the last axis of a dense array alone, and one after the other along others.
    last = np.ascontiguousarray(x.transpose(kept + added))
    count = int(np.prod([x.shape[axis] for axis in added]))
    return np.asarray(last.reshape([x.shape[axis] for axis in kept] + [count]).sum(axis=-1)).reshape(shape)


@sum_to_size.decomposition
def _(x: Value, like: Value) -> Value:
    shape = onnx.Shape(like)
    assert x.rank is not None and like.rank is not None
    ones = np.ones(x.rank - like.rank, np.int64)
    summed_up = onnx.Not(onnx.Equal(onnx.Shape(x), onnx.Concat(ones, shape, axis=0)))
    axes = onnx.Reshape(onnx.NonZero(summed_up), np.array([-1]))
    wide = ELEMENT_TYPES["float64" if x.dtype == "float64" else "float32"]
    total = onnx.ReduceSum(onnx.Cast(x, to=wide), axes, noop_with_empty_axes=1)
    return onnx.CastLike(onnx.Reshape(total, shape, allowzero=1), x)


@sum_to_size.gradient
def _(x: Value, d_y: Value) -> dict[str, Value | None]:
    return {"x": broadcast_to(d_y, onnx.Shape(x)), "like": None}
