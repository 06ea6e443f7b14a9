"""From a sequence of vectors to one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ortops._declare import ELEMENT_TYPES, FLOATS, Case, Testing, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value

#: What a mask keeps, of indices [1, S] and one random number a sequence [B, 1].
MASKS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "all": lambda index, drawn: index >= 0 * drawn,
    "none": lambda index, drawn: index < 0 * drawn,
    "a beginning": lambda index, drawn: index < drawn * (index.size + 1),
    "an end": lambda index, drawn: index >= drawn * index.size,
    "a few": lambda index, drawn: index % (2 + np.floor(5 * drawn)) == 1,
}


def masked(kept: str, size: tuple[int, int, int], integers: bool, **attributes: Any) -> Case:
    def inputs(rng: np.random.Generator) -> dict[str, np.ndarray]:
        mask = MASKS[kept](np.arange(size[1])[None], rng.random((size[0], 1)))
        return {"x": rng.standard_normal(size), "mask": mask * 3 if integers else mask}

    return Case(inputs, attributes, f"mask of {'integers' if integers else 'booleans'} that keeps {kept}, {size}")


def special(value: float, kept: bool, mode: str) -> Case:
    x = np.arange(24.0).reshape(2, 4, 3)
    x[1, 2, 1] = value
    mask = np.array([[1, 1, 0, 1], [0, 0, int(kept), 1]])
    return Case(lambda rng: {"x": x, "mask": mask}, {"mode": mode}, f"{value} that is {'' if kept else 'not '}kept")


SIZES = ((3, 5, 8), (2, 1, 7), (4, 128, 384), (2, 700, 1), (2, 33, 4104), (1, 9, 5000), (2, 0, 8))
CASES = (
    *(
        masked(kept, size, integers, mode=mode, normalize=normalize)
        for turn, (size, integers) in enumerate((size, integers) for size in SIZES for integers in (False, True))
        for step, mode in enumerate(("mean", "max", "first"))
        for kept, normalize in ((list(MASKS)[(turn + step) % 5], False), (list(MASKS)[(turn + step + 2) % 5], True))
    ),
    *(
        special(value, kept, m)
        for value in (np.nan, -np.inf)
        for kept in (True, False)
        for m in ("mean", "max", "first")
    ),
)


def terms(x: np.ndarray, mask: np.ndarray, *, mode: str = "mean", normalize: bool = False) -> np.ndarray | float:
    if mode != "mean":
        return 0.0
    y = sequence_pool.function(np.abs(x), mask)
    if normalize:
        y = y / np.maximum(np.linalg.norm(sequence_pool.function(x, mask), axis=-1, keepdims=True), 1e-12)
    return np.asarray(y)


@op(
    "x: T[B S D], mask: M[B S] -> y: T[B D]",
    name="SequencePool",
    T=FLOATS,
    M=("bool", "int64", "int32"),
    testing=Testing(cases=CASES, terms=terms, samples={"mask": lambda rng, shape, sizes: rng.integers(0, 2, shape)}),
)
def sequence_pool(
    x: np.ndarray, mask: np.ndarray, *, mode: Literal["mean", "max", "first"] = "mean", normalize: bool = False
) -> np.ndarray:
    """Reduces each sequence to one vector: the mean, the maximum or the first of the vectors that its mask keeps (is not 0).

    `normalize` then divides the vector by its Euclidean length (at least 1e-12, as torch.nn.functional.normalize has it). A
    sequence of which nothing is kept gives zeros. (Reimers & Gurevych, 2019, for the mean)
    """
    keep = (mask != 0)[:, :, None]
    some = keep.any(axis=1)
    if mode == "mean":
        y = np.where(keep, x, 0).sum(axis=1) / np.maximum(keep.sum(axis=1), 1)
    elif mode == "max":
        y = np.where(some, np.where(keep, x, -np.inf).max(axis=1, initial=-np.inf), 0)
    else:
        first = keep.argmax(axis=1)[:, :, None] if x.shape[1] else np.zeros((len(x), 0, 1), int)
        y = np.where(some, np.take_along_axis(x, first, axis=1).sum(axis=1), 0)
    if normalize:
        y = y / np.maximum(np.sqrt(np.square(y).sum(axis=-1, keepdims=True)), 1e-12)
    return y


@sequence_pool.decomposition
def _(x: Value, mask: Value, *, mode: str, normalize: bool) -> Value:
    float32 = ELEMENT_TYPES["float32"]
    keep = onnx.Cast(onnx.Unsqueeze(mask, [-1]), to=ELEMENT_TYPES["bool"])
    wide = onnx.Cast(x, to=float32)
    if mode == "first":  # it alone has one kept vector up to itself
        number = onnx.CumSum(onnx.Cast(keep, to=float32), 1)
        keep = onnx.And(keep, onnx.Equal(number, 1.0))
    count = onnx.ReduceSum(onnx.Cast(keep, to=float32), [1], keepdims=0)
    if mode == "max":
        y = onnx.ReduceMax(onnx.Where(keep, wide, -np.inf), [1], keepdims=0)
        y = onnx.Where(onnx.Greater(count, 0.0), y, 0.0)
        # ONNX Runtime's ReduceMax passes over a NaN.
        wrong = onnx.Cast(onnx.And(keep, onnx.IsNaN(wide)), to=float32)
        y = onnx.Where(onnx.Greater(onnx.ReduceSum(wrong, [1], keepdims=0), 0.0), np.nan, y)
    else:
        y = onnx.ReduceSum(onnx.Where(keep, wide, 0.0), [1], keepdims=0) / onnx.Max(count, 1.0)
    if normalize:
        y = y / onnx.Max(onnx.ReduceL2(y, [-1], keepdims=1), 1e-12)
    return onnx.CastLike(y, x)


@sequence_pool.gradient
def _(x: Value, mask: Value, y: Value, d_y: Value, *, mode: str, normalize: bool) -> Value:
    float32 = ELEMENT_TYPES["float32"]
    d = onnx.Cast(d_y, to=float32)
    keep = onnx.Cast(onnx.Unsqueeze(mask, [-1]), to=ELEMENT_TYPES["bool"])
    if normalize:
        y = onnx.Cast(sequence_pool(x, mask, mode=mode), to=float32)
        length = onnx.ReduceL2(y, [-1], keepdims=1)
        along = y * (onnx.ReduceSum(d * y, [-1], keepdims=1) / (length * length))
        d = (d - onnx.Where(onnx.Greater(length, 1e-12), along, 0.0)) / onnx.Max(length, 1e-12)
        y = onnx.CastLike(y, x)
    if mode == "max":  # of several that are the largest the first has it all, as in PyTorch's max
        keep = onnx.And(keep, onnx.Equal(x, onnx.Unsqueeze(y, [1])))
    share = onnx.Cast(keep, to=float32)
    if mode == "mean":
        share = share / onnx.Max(onnx.ReduceSum(share, [1], keepdims=1), 1.0)
    else:
        share = share * onnx.Cast(onnx.Equal(onnx.CumSum(share, 1), 1.0), to=float32)
    return onnx.CastLike(share * onnx.Unsqueeze(d, [1]), x)
