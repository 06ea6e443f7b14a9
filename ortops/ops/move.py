"""Moves of whole boxes: padding, slicing, concatenating."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ortops import _shapes
from ortops._declare import ALL, WIDE_FLOATS, Case, Testing, element_type, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value

#: The end of a slice that goes to the end of the axis, whatever its size.
END = 2**63 - 1

Beyond = Literal["reflect", "replicate", "circular"]
NUMPY_MODES: dict[str, Any] = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def numbers(*shape: int) -> Any:
    """Small integers, which every type can hold but bool, of which there are no cases."""
    return lambda rng: {"x": rng.integers(0, 100, shape)}


# --- ConstantPad ----------------------------------------------------------------------------------------------------


def fill(value: float, dtype: np.dtype[Any]) -> np.ndarray:
    """`value` as an element: for integers toward zero, and the type's least or greatest where it is beyond."""
    if dtype.kind == "b":
        return np.asarray(value != 0)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.asarray(
            int(max(min(value, info.max), info.min)) if np.isfinite(value) else (info.min, info.max)[value > 0], dtype
        )
    return np.asarray(np.float32(value)).astype(dtype)


def box(
    shape: tuple[int, ...], pads: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[list[slice], list[tuple[int, int]]]:
    """What is left of each axis after cropping, and what is put around it."""
    padding = _shapes.padding(len(shape), pads, axes)
    kept = [slice(max(-b, 0), size - max(-e, 0)) for size, (b, e) in zip(shape, padding, strict=True)]
    return kept, [(max(b, 0), max(e, 0)) for b, e in padding]


PAD_CASES = (
    Case(numbers(2, 3, 10, 31), {"pads": (3, 3, 3, 3), "axes": (2, 3), "value": 2.0}, "an image"),
    Case(numbers(2, 3, 10, 31), {"pads": (0, 0, -1, 2, 0, 0, 1, -3), "value": 9.0}, "crop and pad"),
    Case(numbers(3, 5, 7), {"pads": (1, 0, 2, 0), "axes": (-3, 1)}, "whole rows"),
    Case(numbers(4, 3), {"pads": (-2, 0, -2, 70)}, "all is cropped"),
    Case(numbers(2, 2, 2, 2, 3), {"pads": (1,) * 10, "value": 1.0}, "rank 5"),
    Case(numbers(9, 40), {"pads": (4, -3, -2, 30), "mode": "reflect"}, "reflect"),
    Case(numbers(9, 40), {"pads": (40, 0, -2, 33), "mode": "replicate"}, "replicate"),
    Case(numbers(9, 40), {"pads": (9, -3, 9, 37), "mode": "circular"}, "circular"),
    Case(numbers(3, 4, 1, 2), {"pads": (2, 3, 1, 2), "axes": (1, 2), "mode": "replicate"}, "planes"),
)


@op(
    "x: T[*X] -> y: T[*padded(*X)]",
    name="ConstantPad",
    by_size=["T"],
    T=ALL,
    testing=Testing(cases=PAD_CASES, attributes={"pads": (1, 2), "axes": (-1,)}),
)
def constant_pad(
    x: np.ndarray,
    *,
    pads: tuple[int, ...],
    axes: tuple[int, ...] = (),
    mode: Literal["constant", "reflect", "replicate", "circular"] = "constant",
    value: float = 0.0,
) -> np.ndarray:
    """Pads or crops the axes of x: with a value, or with elements of x.

    `pads` is in ONNX's order: what goes before each of `axes` (none given: all axes), then what goes behind each. Negative pads
    crop, before anything is added. Modes: "constant" adds `value`; "reflect" mirrors at the first and last element, fewer than
    the axis has; "replicate" repeats them; "circular" goes on at the other end, at most once around. Cropping more than there
    is, or a pad too long for its mode, is an error; a result without elements is none. `value` is a float32 that is converted to
    the type of x: rounded for floats; for integers toward zero, and the type's least or greatest if it is beyond those (so an
    integer above 2^24 is exact only where float32 can hold it); for bool, whether it is not 0.
    """
    kept, around = box(x.shape, pads, axes)
    x = x[tuple(kept)]
    if mode == "constant":
        return np.pad(x, around, constant_values=fill(value, x.dtype)) if x.ndim else x
    return np.pad(x, around, mode=NUMPY_MODES[mode]) if any(map(any, around)) else x


@constant_pad.decomposition
def _(x: Value, *, pads: tuple[int, ...], axes: tuple[int, ...], mode: str, value: float) -> Value:
    if not any(pads):
        return onnx.Identity(x)
    count = len(pads) // 2
    chosen = np.asarray(axes or range(count))
    begins, ends = np.asarray(pads).reshape(2, count)
    if (np.asarray(pads) < 0).any():
        x = onnx.Slice(x, np.maximum(-begins, 0), np.where(ends < 0, ends, END), chosen)
    begins, ends = np.maximum(begins, 0), np.maximum(ends, 0)
    if mode == "circular":  # Pad has it from opset 19 on
        for axis, begin, end in zip(chosen, begins, ends, strict=True):
            if begin or end:
                front = [onnx.Slice(x, np.array([-begin]), np.array([END]), np.array([axis]))] if begin else []
                back = [onnx.Slice(x, np.array([0]), np.array([end]), np.array([axis]))] if end else []
                x = onnx.Concat(*front, x, *back, axis=int(axis))
        return x
    if not (begins.any() or ends.any()):
        return x
    dtype = element_type(x.dtype or "float32")
    around = np.concatenate([begins, ends])
    if mode != "constant":
        return as_padded(x, lambda x: onnx.Pad(x, around, None, chosen, mode=NUMPY_MODES[mode]))
    return as_padded(x, lambda x: onnx.Pad(x, around, fill(value, dtype).astype(element_type(x.dtype)), chosen))


def as_padded(x: Value, pad: Any) -> Value:
    """ONNX Runtime pads no integers of 16 bits."""
    if x.dtype not in ("int16", "uint16"):
        result: Value = pad(x)
    else:
        result = onnx.CastLike(pad(onnx.Cast(x, to=6)), x)
    return result


@constant_pad.gradient
def _(d_y: Value, *, pads: tuple[int, ...], axes: tuple[int, ...], mode: str) -> Value:
    if mode == "constant":
        return constant_pad(d_y, pads=tuple(-pad for pad in pads), axes=axes)
    return pad_gradient(d_y, pads=pads, axes=axes, mode=mode)


# --- PadGradient ----------------------------------------------------------------------------------------------------


def d_numbers(*shape: int) -> Any:
    return lambda rng: {"d_y": rng.standard_normal(shape)}


def sum_copies(d_y: np.ndarray, *, pads: tuple[int, ...], axes: tuple[int, ...] = (), mode: str) -> np.ndarray:
    for axis, (begin, end) in enumerate(_shapes.padding(d_y.ndim, pads, axes)):
        size = d_y.shape[axis] - begin - end
        (kept,), (around,) = box((size,), (begin, end), ())
        source = np.arange(size)[kept]
        if any(around):
            source = np.pad(source, around, mode=NUMPY_MODES[mode])
        d_x = np.zeros((size, *np.delete(d_y.shape, axis)), d_y.dtype)
        np.add.at(d_x, source, np.moveaxis(d_y, axis, 0))
        d_y = np.moveaxis(d_x, 0, axis)
    return d_y


PAD_GRADIENT_CASES = tuple(
    Case(d_numbers(*shape), {"pads": pads, "mode": mode}, f"{mode} {pads}")
    for mode in ("reflect", "replicate", "circular")
    for shape, pads in (
        ((7, 47), (2, 3, 1, 4)),
        ((3, 13, 90), (0, 6, 33, 0, -3, 23)),
        ((3, 5, 3, 8), (1, -2, 1, 0, 0, 1, 0, 3)),
    )
)


@op(
    "d_y: T[*Y] -> d_x: T[*unpadded(*Y)]",
    name="PadGradient",
    T=WIDE_FLOATS,
    testing=Testing(
        cases=PAD_GRADIENT_CASES,
        attributes={"pads": (1, 2), "axes": (-1,), "mode": "reflect"},
        sizes=lambda sizes: sizes | {"Y": (*sizes["Y"][:-1], sizes["Y"][-1] + 6)},
        terms=lambda d_y, **attributes: sum_copies(np.abs(d_y), **attributes),
    ),
)
def pad_gradient(d_y: np.ndarray, *, pads: tuple[int, ...], axes: tuple[int, ...] = (), mode: Beyond) -> np.ndarray:
    """The gradient of ConstantPad in the modes other than "constant": each element's own and those of its copies, summed.

    What was cropped gets zeros. The sum is in float32 (float64 for that type), in a fixed order.
    """
    return sum_copies(d_y, pads=pads, axes=axes, mode=mode)


@pad_gradient.decomposition
def _(d_y: Value, *, pads: tuple[int, ...], axes: tuple[int, ...], mode: str) -> Value:
    count, rank = len(pads) // 2, d_y.rank
    assert rank is not None
    chosen = [axis % rank for axis in axes] if axes else list(range(count))
    d_x = onnx.Cast(d_y, to=1) if d_y.dtype in ("float16", "bfloat16") else d_y
    for axis, begin, end in zip(chosen, pads[:count], pads[count:], strict=False):
        before, behind = max(begin, 0), max(end, 0)
        if before or behind:  # onto the element that each one is a copy of
            length = onnx.Shape(d_x, start=axis, end=axis + 1)
            size = length - before - behind
            at = onnx.Range(0, onnx.Squeeze(length), 1) - before
            if mode == "reflect":
                at = size - 1 - onnx.Abs(size - 1 - onnx.Abs(at))
            elif mode == "replicate":
                at = onnx.Max(onnx.Min(at, size - 1), np.array([0]))
            else:
                at = onnx.Mod(at, onnx.Max(size, np.array([1])))
            shape = onnx.Shape(d_x)
            at = onnx.Expand(onnx.Reshape(at, np.array([-1] + [1] * (rank - 1 - axis))), shape)
            smaller = onnx.Concat(
                onnx.Slice(shape, [0], [axis], [0]), size, onnx.Slice(shape, [axis + 1], [END], [0]), axis=0
            )
            zeros = onnx.Expand(onnx.CastLike(np.float32(0), d_x), smaller)
            d_x = onnx.ScatterElements(zeros, at, d_x, axis=axis, reduction="add")
    crops = np.maximum(-np.asarray(pads), 0)
    if crops.any():
        d_x = onnx.Pad(d_x, crops, None, np.asarray(chosen))
    return onnx.CastLike(d_x, d_y)


# --- StridedSlice ---------------------------------------------------------------------------------------------------


def _slices(rank: int, starts: Any, ends: Any, axes: Any, steps: Any) -> tuple[slice, ...]:
    return tuple(_shapes.slices(rank, starts, ends, axes, steps))


SLICES: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((4, 6, 50), {"starts": (1, -30), "ends": (3, 45), "axes": (0, 2)}),
    ((4, 6, 70), {"starts": (0,), "ends": (END,), "axes": (2,), "steps": (2,)}),
    ((4, 6, 70), {"starts": (1, END), "ends": (6, -(2**63)), "axes": (1, -1), "steps": (2, -1)}),
    ((3, 50, 40), {"starts": (-1, 5), "ends": (-99, 47), "steps": (-2, 3)}),
    ((5, 3), {"starts": (3,), "ends": (2,)}),
    ((2, 3, 4, 5, 6), {"starts": (0, 1, 1, 0, 2), "ends": (2, 3, 3, 5, 5)}),
    ((2**12,), {"starts": (1001,), "ends": (2**12,), "steps": (2**62,)}),
)
SLICE_CASES = tuple(Case(numbers(*shape), given, f"{given}") for shape, given in SLICES)


@op(
    "x: T[*X] -> y: T[*sliced(*X)]",
    name="StridedSlice",
    by_size=["T"],
    T=ALL,
    testing=Testing(cases=SLICE_CASES, attributes={"starts": (1,), "ends": (END,), "axes": (-1,)}),
)
def strided_slice(
    x: np.ndarray,
    *,
    starts: tuple[int, ...],
    ends: tuple[int, ...],
    axes: tuple[int, ...] = (),
    steps: tuple[int, ...] = (),
) -> np.ndarray:
    """Takes every step-th element of each axis, from start until before end, by the rules of numpy's x[start:end:step].

    Without `axes` the first axes are meant, without `steps` each is 1. A negative start or end counts from the end of its axis, and
    what lies outside is moved to the nearest end, so that 2^63-1 means the end and, for a negative step, -2^63 the place before
    the first element. A slice that holds nothing has no elements. A step of 0 is an error.
    """
    return x[_slices(x.ndim, starts, ends, axes, steps)]


@strided_slice.decomposition
def _(x: Value, *, starts: Any, ends: Any, axes: Any, steps: Any) -> Value:
    if not starts:
        return onnx.Identity(x)
    chosen = axes or range(len(starts))
    return onnx.Slice(
        x, *(np.asarray(values, np.int64) for values in (starts, ends, chosen, steps or (1,) * len(starts)))
    )


@strided_slice.gradient
def _(x: Value, d_y: Value, *, starts: Any, ends: Any, axes: Any, steps: Any) -> Value:
    return strided_slice_gradient(d_y, x, starts=starts, ends=ends, axes=axes, steps=steps)


@op(
    "d_y: T[*Y], x: T[*X] -> d_x: T[*unsliced(*Y, *X)]",
    name="StridedSliceGradient",
    by_size=["T"],
    T=WIDE_FLOATS,
    testing=Testing(
        attributes={"starts": (1,), "ends": (END,), "axes": (-1,)},
        sizes=lambda sizes: sizes | {"X": (*sizes["Y"][:-1], sizes["Y"][-1] + 1)},
        cases=tuple(
            Case(
                lambda rng, shape=shape, given=given: {
                    "d_y": strided_slice(rng.standard_normal(shape), **given),
                    "x": np.zeros(shape),
                },
                given,
                f"{given}",
            )
            for shape, given in SLICES
        ),
    ),
)
def strided_slice_gradient(
    d_y: np.ndarray,
    x: np.ndarray,
    *,
    starts: tuple[int, ...],
    ends: tuple[int, ...],
    axes: tuple[int, ...] = (),
    steps: tuple[int, ...] = (),
) -> np.ndarray:
    """The gradient of StridedSlice: d_y put back into place, and zeros elsewhere.

    Of x only the shape is read.
    """
    d_x = np.zeros_like(x)
    d_x[_slices(x.ndim, starts, ends, axes, steps)] = d_y
    return d_x


@strided_slice_gradient.decomposition
def _(d_y: Value, x: Value, *, starts: Any, ends: Any, axes: Any, steps: Any) -> Value:
    rank = x.rank
    assert rank is not None
    d_x, shape = d_y, onnx.Shape(x)
    for axis, start, end, step in zip(
        axes or range(len(starts)), starts, ends, steps or (1,) * len(starts), strict=True
    ):
        axis %= rank
        size = onnx.Gather(shape, np.array(axis), axis=0)
        at = onnx.Slice(onnx.Range(0, size, 1), [start], [end], [0], [step])
        before = onnx.Shape(d_x)
        at = onnx.Expand(onnx.Reshape(at, np.array([-1] + [1] * (rank - 1 - axis))), before)
        full = onnx.Concat(
            onnx.Slice(before, [0], [axis], [0]),
            onnx.Slice(shape, [axis], [axis + 1], [0]),
            onnx.Slice(before, [axis + 1], [END], [0]),
            axis=0,
        )
        zeros = onnx.Expand(onnx.CastLike(np.float32(0), d_y), full)
        d_x = onnx.ScatterElements(zeros, at, d_x, axis=axis)
    return onnx.Identity(d_x)


# --- Concatenate ----------------------------------------------------------------------------------------------------


def joined(axis: int, *shapes: tuple[int, ...]) -> Case:
    return Case(
        lambda rng: {"xs": [rng.integers(0, 100, shape) for shape in shapes]}, {"axis": axis}, f"{axis}: {shapes}"
    )


CONCATENATE_CASES = (
    joined(1, (2, 3, 8, 10), (2, 5, 8, 10)),
    joined(-1, (6, 1), (6, 1)),
    joined(2, (3, 5, 37), (3, 5, 0), (3, 5, 64), (3, 5, 1)),
    joined(0, (5, 3), (0, 3), (2, 3)),
    joined(1, (300, 7), (300, 2), (300, 130)),
    joined(0, (0, 3), (0, 3)),
)


@op(
    "*xs: T[*X] -> y: T[*concatenated(*X)]",
    name="Concatenate",
    by_size=["T"],
    T=ALL,
    testing=Testing(cases=CONCATENATE_CASES, attributes={"axis": -1}),
)
def concatenate(*xs: np.ndarray, axis: int) -> np.ndarray:
    """Puts tensors behind each other along an axis.

    Any number of them from one on, of one rank and of sizes that differ in that axis alone. A negative axis counts from the end.
    """
    return np.concatenate(xs, axis)


@concatenate.decomposition
def _(*xs: Value, axis: int) -> Value:
    return onnx.Concat(*xs, axis=axis)


@concatenate.gradient
def _(xs: list[Value], d_y: Value, *, axis: int) -> dict[str, list[Value]]:
    sizes = [None if x.shape is None else x.shape[axis] for x in xs]
    if all(isinstance(size, int) for size in sizes):  # then the inputs need not be kept for their shapes
        ends = np.cumsum([0, *sizes]).tolist()
        return {"xs": [strided_slice(d_y, starts=(a,), ends=(b,), axes=(axis,)) for a, b in pairwise(ends)]}
    return {"xs": [concatenate_gradient(d_y, *xs, axis=axis, index=index) for index in range(len(xs))]}


@op(
    "d_y: T[*Y], *xs: T[*X] -> d_x: T[*part_of_concatenated(*Y, *X)]",
    name="ConcatenateGradient",
    by_size=["T"],
    T=WIDE_FLOATS,
    testing=Testing(
        attributes={"axis": -1, "index": 0},
        sizes=lambda sizes: sizes | {"X": sizes["Y"]},
        cases=tuple(
            Case(
                lambda rng, index=index: {
                    "d_y": rng.standard_normal((4, 12, 5)),
                    "xs": [np.zeros((4, size, 5)) for size in (3, 7, 0, 2)],
                },
                {"axis": 1, "index": index},
                f"{index}",
            )
            for index in range(4)
        ),
    ),
)
def concatenate_gradient(d_y: np.ndarray, *xs: np.ndarray, axis: int, index: int) -> np.ndarray:
    """The gradient of one input of Concatenate: its part of d_y.

    Of the inputs only the shapes are read; `index` says which one it is.
    """
    begin = sum(x.shape[axis] for x in xs[:index])
    return np.moveaxis(np.moveaxis(d_y, axis, 0)[begin : begin + xs[index].shape[axis]], 0, axis)


@concatenate_gradient.decomposition
def _(d_y: Value, *xs: Value, axis: int, index: int) -> Value:
    sizes = [onnx.Gather(onnx.Shape(x), np.array([axis]), axis=0) for x in xs[: index + 1]]
    end = sizes[0]
    for size in sizes[1:]:
        end = end + size
    return onnx.Slice(d_y, end - sizes[-1], end, np.array([axis]))
