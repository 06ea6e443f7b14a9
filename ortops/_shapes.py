"""The shape functions of shape lines. Each has a twin in cuda/core/shapes.h, and tests/test_frame.py compares the two.

A function takes sizes and runs of axes by position (a size in a run may be unknown), and attributes by name. A function of
sizes is only called when all are known.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

#: The size of an axis: a number, a symbol, or unknown.
Axis = int | str | None


def call(function: str, values: Sequence[Any], attributes: Mapping[str, Any]) -> int | tuple[Axis, ...] | None:
    """Calls a shape function, handing it the attributes that it names."""
    target = FUNCTIONS[function]
    wanted = [p.name for p in inspect.signature(target).parameters.values() if p.kind is p.KEYWORD_ONLY]
    result: int | tuple[Axis, ...] | None = target(*values, **{name: attributes[name] for name in wanted})
    return result


def conv(
    size: int, kernel: int, axis: int, *, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> int:
    """A convolution's output along a spatial axis."""
    span = dilations[axis] * (kernel - 1) + 1
    return max(0, (size + pads[axis] + pads[axis + len(pads) // 2] - span) // strides[axis] + 1)


def pool(
    size: int,
    axis: int,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    ceil_mode: bool,
) -> int:
    """A pooling's output along a spatial axis. With ceil_mode a last window that would begin in the padding behind is left out."""
    span = dilations[axis] * (kernel_shape[axis] - 1) + 1
    padded = size + pads[axis] + pads[axis + len(pads) // 2] - span
    if not ceil_mode:
        return max(0, padded // strides[axis] + 1)
    windows = (padded + strides[axis] - 1) // strides[axis] + 1
    return max(0, windows - ((windows - 1) * strides[axis] >= size + pads[axis]))


@lru_cache
def exact_scale(scale: float) -> float:
    """The number that was rounded to a node's 32 bits: the fraction of the smallest denominator that rounds to it, if that is up to
    4096; or the 32 bits themselves. So a scale of 1.1 or 4/3 is in a node what it is in PyTorch."""
    single = np.float32(scale)
    for denominator in range(1, 4097):
        fraction = round(float(single) * denominator) / denominator
        if np.float32(fraction) == single:
            return fraction
    return float(single)


def upsampled_plane(
    height: Axis, width: Axis, *, size: Sequence[int], scale: Sequence[float], mode: str, align_corners: bool
) -> tuple[Axis, Axis]:
    """Height and width of a plane that is resized to a size or by a scale, as PyTorch has it: rounded down."""
    if mode == "nearest" and align_corners:
        raise ValueError("attribute align_corners: expected False with mode nearest, got True")
    if (len(size), len(scale)) not in ((2, 0), (0, 2)):
        raise ValueError(
            "attributes size and scale: expected two numbers (height, width) in one of them and none in the other, "
            f"got {len(size)} and {len(scale)}"
        )
    for pixels in size:
        if not 0 < pixels < 2**31:
            raise ValueError(f"attribute size: expected sizes from 1 to 2147483647, got {pixels}")
    for factor in scale:
        if not 0 < np.float32(factor) < np.inf:
            raise ValueError(f"attribute scale: expected finite numbers above 0, got {factor:g}")
    result: list[Axis] = []
    for axis, extent in enumerate((height, width)):
        if extent == 0:
            raise ValueError("x: expected planes of at least one pixel, got one of none")
        if size:
            result.append(size[axis])
        elif not isinstance(extent, int):
            result.append(None)
        else:
            pixels = np.floor(extent * exact_scale(scale[axis]))
            if not 0 < pixels < 2**31:
                raise ValueError(
                    f"attribute scale: expected at least 1 and less than 2^31 pixels, got {extent} scaled to {pixels:g}"
                )
            result.append(int(pixels))
    return result[0], result[1]


def upsampled(
    extent: int, axis: int, *, size: Sequence[int], scale: Sequence[float], mode: str, align_corners: bool
) -> Axis:
    """One axis of `upsampled_plane`."""
    return upsampled_plane(extent, extent, size=size, scale=scale, mode=mode, align_corners=align_corners)[axis]


def reduce(shape: tuple[Axis, ...], *, axes: Sequence[int], keepdims: bool) -> tuple[Axis, ...]:
    """A shape less the reduced axes, or with 1 in their place. No axes means all."""
    rank = len(shape)
    reduced: set[int] = set()
    for axis in axes:
        if not -rank <= axis < rank or axis % rank in reduced:
            raise ValueError(f"attribute axes: expected distinct axes from {-rank} to {rank - 1}, got {axis}")
        reduced.add(axis % rank)
    kept = [bool(axes) and axis not in reduced for axis in range(rank)]
    return tuple(size if keep else 1 for size, keep in zip(shape, kept, strict=True) if keep or keepdims)


def top_k(shape: tuple[Axis, ...], count: Sequence[Axis], *, k: int | None, axis: int) -> tuple[Axis, ...]:
    """A shape with the selected axis shortened to k, which is the attribute or the one number of `count`; whole without either."""
    rank = len(shape)
    if not -rank <= axis < rank:
        expected = f"expected an axis from {-rank} to {rank - 1}" if rank else "expected an input of at least one axis"
        raise ValueError(f"attribute axis: {expected}, got {axis if rank else 'a scalar'}")
    if k is not None and count:
        raise ValueError("attribute k: expected either the attribute k or the input k_input, got both")
    size = shape[axis]
    taken: Axis = k if k is not None else count[0] if count else size
    if isinstance(taken, int) and (taken < 0 or (isinstance(size, int) and taken > size)):
        name = "attribute k" if k is not None else "k_input"
        raise ValueError(f"{name}: expected a number from 0 to the size {size} of axis {axis}, got k = {taken}")
    return tuple(taken if at == axis % rank else same for at, same in enumerate(shape))


def bags(indices: tuple[Axis, ...], offsets: Axis, *, include_last_offset: bool) -> tuple[Axis, ...]:
    """How many bags there are: the rows of a matrix of indices, or one for each offset."""
    if len(indices) == 2:
        if offsets is not None:
            raise ValueError("offsets: expected none, as indices of rank 2 have a bag a row")
        return indices[:1]
    if len(indices) != 1:
        raise ValueError(f"indices: expected rank 1 (with offsets) or 2, got rank {len(indices)}")
    if not isinstance(offsets, int):
        return (None if include_last_offset else offsets,)
    if offsets < include_last_offset:
        raise ValueError(
            "offsets: expected at least one, as include_last_offset has the last one end the last bag, got none"
        )
    return (offsets - include_last_offset,)


def broadcast(inputs: Sequence[tuple[Axis, ...] | None]) -> tuple[Axis, ...] | None:
    """The shape that all the shapes broadcast to (numpy's rule)."""
    if any(shape is None for shape in inputs):
        return None
    known = [shape for shape in inputs if shape is not None]
    result: list[Axis] = []
    for back in range(max(map(len, known), default=0), 0, -1):
        sizes = {shape[-back] for shape in known if len(shape) >= back} - {1}
        numbers = {size for size in sizes if isinstance(size, int)}
        if len(numbers) > 1:
            raise ValueError(f"expected shapes that broadcast together, got sizes {sorted(numbers)} in axis {-back}")
        # Where a number other than 1 is known, what is unknown beside it can only be that, or 1.
        if numbers:
            result.append(numbers.pop())
        else:
            result.append(1 if not sizes else sizes.pop() if len(sizes) == 1 else None)
    return tuple(result)


def expand(shape: tuple[Axis, ...], target: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The shape that a shape and a target, which is what an input named `shape` holds, broadcast to."""
    for size in target:
        if isinstance(size, int) and size < 0:
            raise ValueError(f"shape: expected sizes from 0 on (1 keeps the size of x), got {_text(target)}")
    try:
        result = broadcast([shape, target])
    except ValueError:
        raise ValueError(
            f"shape: expected sizes that x of shape {_text(shape)} broadcasts with, got {_text(target)}"
        ) from None
    assert result is not None
    return result


def grouped(channels: int, *, groups: int) -> int:
    """As many channels, if they make groups of one size."""
    if channels % groups:
        raise ValueError(f"attribute groups: expected a divisor of the {channels} channels of x, got {groups}")
    return channels


def permute(shape: tuple[Axis, ...], *, perm: Sequence[int]) -> tuple[Axis, ...]:
    """A shape with its axes in another order. No perm reverses them."""
    rank = len(shape)
    if not perm:
        return shape[::-1]
    if sorted(axis + rank if axis < 0 else axis for axis in perm) != list(range(rank)):
        raise ValueError(f"attribute perm: expected each axis of x, which has {rank}, once, got {_text(perm)}")
    return tuple(shape[axis] for axis in perm)


def sum_to(like: tuple[Axis, ...], shape: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The first shape, if it broadcasts to the second."""
    pairs = zip(reversed(like), reversed(shape), strict=False)
    fits = all(a in (1, b) or not isinstance(a, int) or not isinstance(b, int) for a, b in pairs)
    if len(like) > len(shape) or not fits:
        raise ValueError(f"like: expected a shape that broadcasts to that of x, {_text(shape)}, got {_text(like)}")
    return like


def take(x: tuple[Axis, ...], indices: tuple[Axis, ...], *, axis: int) -> tuple[Axis, ...]:
    """A shape with the axes of the indices in the place of one axis."""
    at = _axis_of(x, axis)
    return (*x[:at], *indices, *x[at + 1 :])


def take_gradient(
    d_y: tuple[Axis, ...], indices: tuple[Axis, ...], x: tuple[Axis, ...], *, axis: int
) -> tuple[Axis, ...]:
    """The shape that was taken from, where it fits."""
    y = take(x, indices, axis=axis)
    pairs = zip(d_y, y, strict=False)
    if len(d_y) != len(y) or any(a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int)):
        raise ValueError(f"d_y: expected the shape {_text(y)} of what was taken, got {_text(d_y)}")
    return x


def along(x: tuple[Axis, ...], part: tuple[Axis, ...], *, axis: int) -> tuple[Axis, ...]:
    """The shape of what is read along an axis of x, or written: no larger than x but along that axis."""
    at = _axis_of(x, axis)
    others = [pair for i, pair in enumerate(zip(part, x, strict=False)) if i != at]
    if len(part) != len(x) or any(a > b for a, b in others if isinstance(a, int) and isinstance(b, int)):
        raise ValueError(f"expected a shape of the rank of {_text(x)}, no larger but in axis {at}, got {_text(part)}")
    return part


def scatter(x: tuple[Axis, ...], part: tuple[Axis, ...], *, axis: int) -> tuple[Axis, ...]:
    """The shape that is written into along an axis, where the part fits."""
    along(x, part, axis=axis)
    return x


def _axis_of(shape: tuple[Axis, ...], axis: int) -> int:
    if not -len(shape) <= axis < len(shape):
        expected = f"from {-len(shape)} to {len(shape) - 1}" if shape else "an input of at least one axis"
        raise ValueError(f"attribute axis: expected {expected}, got {axis if shape else 'one of none'}")
    return axis % len(shape)


def chosen_axes(rank: int, axes: Sequence[int]) -> list[int]:
    """The attribute `axes`, counted from the front; none given means all."""
    chosen = [axis + rank if axis < 0 else axis for axis in axes] if axes else list(range(rank))
    for index, axis in enumerate(chosen):
        if not 0 <= axis < rank or axis in chosen[:index]:
            raise ValueError(f"attribute axes: expected distinct axes from {-rank} to {rank - 1}, got {axes[index]}")
    return chosen


#: No tensor is longer. Sums of a few numbers below it fit in 64 bits.
LONGEST = 2**48


def padding(rank: int, pads: Sequence[int], axes: Sequence[int]) -> list[tuple[int, int]]:
    """What the attributes `pads` and `axes` put before and behind each axis."""
    chosen = chosen_axes(rank, axes)
    if len(pads) != 2 * len(chosen):
        raise ValueError(
            f"attribute pads: expected {2 * len(chosen)} values, the beginnings of {len(chosen)} axes and then their ends, "
            f"got {len(pads)}"
        )
    result = [(0, 0)] * rank
    for axis, begin, end in zip(chosen, pads, pads[len(chosen) :], strict=False):
        if not (abs(begin) < LONGEST and abs(end) < LONGEST):
            raise ValueError(f"attribute pads: expected values between -2^48 and 2^48, got {begin} and {end}")
        result[axis] = begin, end
    return result


def check_padding(size: int, begin: int, end: int, axis: int, mode: str) -> None:
    """Raises ValueError where an axis of that size cannot be cropped and padded so."""
    kept = size + min(begin, 0) + min(end, 0)
    if kept < 0:
        raise ValueError(
            f"attribute pads: expected to crop at most the {size} elements of axis {axis}, got {begin} and {end}"
        )
    most = {"reflect": max(kept - 1, 0), "circular": kept, "replicate": LONGEST if kept else 0}.get(mode, LONGEST)
    if max(begin, end) > most:
        raise ValueError(
            f"attribute pads: expected at most {most} elements by mode {mode} on each side of axis {axis}, of which {kept} "
            f"elements are kept, got {max(begin, end)}"
        )


def padded(shape: tuple[Axis, ...], *, pads: Sequence[int], axes: Sequence[int], mode: str) -> tuple[Axis, ...]:
    """A shape with `pads` added: first those before each of the axes, then those behind; negative ones crop."""
    result: list[Axis] = []
    for axis, (size, (begin, end)) in enumerate(zip(shape, padding(len(shape), pads, axes), strict=True)):
        if isinstance(size, int):
            check_padding(size, begin, end, axis, mode)
            result.append(size + begin + end)
        else:
            result.append(size if begin == end == 0 else None)
    return tuple(result)


def unpadded(shape: tuple[Axis, ...], *, pads: Sequence[int], axes: Sequence[int], mode: str) -> tuple[Axis, ...]:
    """The shape that becomes this one when it is padded."""
    result: list[Axis] = []
    for axis, (size, (begin, end)) in enumerate(zip(shape, padding(len(shape), pads, axes), strict=True)):
        if isinstance(size, int):
            if size < begin + end:
                raise ValueError(
                    f"attribute pads: expected no more than the {size} elements of axis {axis}, got {begin} and {end}"
                )
            check_padding(size - begin - end, begin, end, axis, mode)
            result.append(size - begin - end)
        else:
            result.append(size if begin == end == 0 else None)
    return tuple(result)


def slices(
    rank: int, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]
) -> list[slice]:
    """The slice of each axis that the attributes name."""
    if axes:
        chosen = chosen_axes(rank, axes)
    elif len(starts) > rank:
        raise ValueError(f"attribute starts: expected at most {rank} values, one for each axis, got {len(starts)}")
    else:
        chosen = list(range(len(starts)))
    for name, values in (("starts", starts), ("ends", ends), ("steps", steps)):
        if len(values) != len(chosen) and (values or name != "steps"):
            raise ValueError(
                f"attribute {name}: expected {len(chosen)} values, one for each axis that is sliced, got {len(values)}"
            )
    if 0 in steps:
        raise ValueError("attribute steps: expected steps other than 0")
    result = [slice(None)] * rank
    for axis, start, end, step in zip(chosen, starts, ends, steps or [1] * len(chosen), strict=True):
        result[axis] = slice(start, end, step)
    return result


def sliced(
    shape: tuple[Axis, ...],
    *,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> tuple[Axis, ...]:
    """The shape of x[start:end:step, ...], by numpy's rules."""
    return tuple(
        len(range(*part.indices(size))) if isinstance(size, int) else size if part == slice(None) else None
        for size, part in zip(shape, slices(len(shape), starts, ends, axes, steps), strict=True)
    )


def unsliced(
    part: tuple[Axis, ...],
    shape: tuple[Axis, ...],
    *,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> tuple[Axis, ...]:
    """The shape, of which the first one is to be that slice."""
    expected = sliced(shape, starts=starts, ends=ends, axes=axes, steps=steps)
    check_part(part, expected, "of the slice")
    return shape


def check_part(part: tuple[Axis, ...], expected: Sequence[Axis], what: str) -> None:
    """Raises ValueError where d_y has not that shape."""
    fits = len(part) == len(expected) and all(
        a == b for a, b in zip(part, expected, strict=True) if isinstance(a, int) and isinstance(b, int)
    )
    if not fits:
        raise ValueError(f"d_y: expected the shape {what}, {_text(expected)}, got {_text(part)}")


def concatenated(inputs: Sequence[tuple[Axis, ...] | None], *, axis: int) -> tuple[Axis, ...] | None:
    """The shape of the inputs one behind the other along an axis."""
    if not inputs:
        raise ValueError("xs: expected at least one input")
    known = [shape for shape in inputs if shape is not None]
    if not known:
        return None
    rank, axis = len(known[0]), _axis_of(known[0], axis)
    result: list[Axis] = list(known[0])
    for shape in known[1:]:
        fits = len(shape) == rank
        for i in range(rank if fits else 0):
            if i != axis and not isinstance(result[i], int) and isinstance(shape[i], int):
                result[i] = shape[i]
            fits = fits and (i == axis or shape[i] == result[i] or not isinstance(shape[i], int))
        if not fits:
            raise ValueError(
                f"xs: expected shapes that differ in axis {axis} alone, got {_text(known[0])} and {_text(shape)}"
            )
    sizes = [None if shape is None else shape[axis] for shape in inputs]
    numbers = [size for size in sizes if isinstance(size, int)]
    result[axis] = sum(numbers) if len(numbers) == len(sizes) else sizes[0] if len(sizes) == 1 else None
    return tuple(result)


def part_of_concatenated(
    whole: tuple[Axis, ...], inputs: Sequence[tuple[Axis, ...] | None], *, axis: int, index: int
) -> tuple[Axis, ...] | None:
    """The shape of one of the inputs, that all together have the first shape."""
    if not 0 <= index < len(inputs):
        raise ValueError(f"attribute index: expected the number of an input, from 0 to {len(inputs) - 1}, got {index}")
    expected = concatenated(inputs, axis=axis)
    if expected is not None:
        check_part(whole, expected, "of all inputs together")
    return inputs[index]


def _text(shape: Sequence[Axis]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


FUNCTIONS = {
    name: value
    for name, value in globals().items()
    if inspect.isfunction(value) and value is not call and not name.startswith("_")
}
