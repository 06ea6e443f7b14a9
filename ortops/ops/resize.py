"""Resizing planes of pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ortops._declare import ELEMENT_TYPES, WIDE_FLOATS, Case, Testing, op
from ortops._shapes import Axis, exact_scale, upsampled_plane
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value

Array = np.ndarray
Mode = Literal["nearest", "bilinear"]
Layout = Literal["NCHW", "NHWC"]


def spatial(layout: str) -> tuple[int, int]:
    """The axes of height and width."""
    return (2, 3) if layout == "NCHW" else (1, 2)


def taps(
    extent: int,
    axis: int,
    *,
    mode: str,
    size: Sequence[int] = (),
    scale: Sequence[float] = (),
    align_corners: bool = False,
) -> tuple[Array, Array, Array]:
    """For each pixel of the result, along one axis: the source pixel, the one behind it (or itself, at the end), and the share
    of that one."""
    pixels = upsampled_plane(extent, extent, mode=mode, size=size, scale=scale, align_corners=align_corners)[axis]
    assert isinstance(pixels, int)
    pixel = np.arange(pixels)
    if mode == "nearest" and size:
        at = pixel * extent // pixels
    elif mode == "nearest":
        ratio = np.float32(1 / exact_scale(scale[axis]))
        at = np.minimum(np.floor(pixel.astype(np.float32) * ratio).astype(np.int64), extent - 1)
    if mode == "nearest":
        return at, at, np.zeros(pixels)
    if align_corners:
        position = pixel * ((extent - 1) / max(pixels - 1, 1))
    else:
        step = 1 / exact_scale(scale[axis]) if scale else extent / pixels
        position = np.maximum((pixel + 0.5) * step - 0.5, 0)
    at = np.minimum(position.astype(np.int64), extent - 1)
    return at, np.minimum(at + 1, extent - 1), np.where(at < extent - 1, position - at, 0.0)


def resized(x: Array, *, layout: str = "NCHW", mode: str = "nearest", **given: Any) -> Array:
    """The reference of Upsample2D."""
    for axis, which in enumerate(spatial(layout)):
        at, behind, weight = taps(x.shape[which], axis, mode=mode, **given)
        near = np.take(x, at, which)
        if mode == "bilinear":
            share = weight.reshape(-1, *(1,) * (3 - which))
            near = (1 - share) * near + share * np.take(x, behind, which)
        x = near
    return x


def passed_back(d_y: Array, x: Array, *, layout: str = "NCHW", mode: str = "nearest", **given: Any) -> Array:
    """The reference of Upsample2DGradient."""
    for axis, which in enumerate(spatial(layout)):
        at, behind, weight = taps(x.shape[which], axis, mode=mode, **given)
        rows = np.moveaxis(d_y, which, 0)
        share = weight.reshape(-1, 1, 1, 1)
        sums = np.zeros((x.shape[which], *rows.shape[1:]))
        np.add.at(sums, at, (1 - share) * rows)
        if mode == "bilinear":
            np.add.at(sums, behind, share * rows)
        d_y = np.moveaxis(sums, 0, which)
    return d_y


def upsampling(*shape: int, name: str = "", **attributes: Any) -> Case:
    return Case(
        lambda rng: {"x": rng.standard_normal(shape)}, attributes, f"{name} {list(shape)} {list(attributes.values())}"
    )


SIZES: tuple[tuple[dict[str, Any], tuple[tuple[int, ...], ...]], ...] = (
    # twice, with rows that begin where vectors do, and others; a pixel
    ({"scale": (2, 2)}, ((2, 1, 20, 16), (1, 2, 5, 7), (1, 1, 1, 1))),
    # up and down, by vectors (48 is twice 24) and, where d_x begins elsewhere, without
    ({"size": (7, 48)}, ((2, 2, 4, 24), (1, 1, 1, 300))),
    ({"scale": (0.4, 1.1)}, ((1, 2, 9, 40),)),
    ({"size": (1, 1)}, ((1, 2, 6, 7),)),
)
#: (the shape of x, attributes)
CALLS = (
    tuple((x, size | {"mode": mode}) for size, shapes in SIZES for mode in ("nearest", "bilinear") for x in shapes)
    + tuple((shapes[0], size | {"mode": "bilinear", "align_corners": True}) for size, shapes in SIZES)
    + tuple(
        ((n, h, w, channels), size | {"mode": mode, "layout": "NHWC"})
        for size, ((n, _, h, w), *_) in SIZES[:2]
        for mode, channels in (("nearest", 16), ("bilinear", 3), ("bilinear", 16))
    )
)
STANDARD = {"mode": "bilinear", "scale": (2.0, 1.5)}


@op(
    {
        "NCHW": "x: T[N C H W] -> y: T[N C *upsampled_plane(H, W)]",
        "NHWC": "x: T[N H W C] -> y: T[N *upsampled_plane(H, W) C]",
    },
    name="Upsample2D",
    layout="layout",
    T=WIDE_FLOATS,
    testing=Testing(
        cases=tuple(upsampling(*shape, **given) for shape, given in CALLS),
        attributes=STANDARD,
        terms=lambda x, **given: resized(np.abs(x), **given),
    ),
)
def upsample2d(
    x: Array,
    *,
    mode: Mode = "nearest",
    size: tuple[int, ...] = (),
    scale: tuple[float, ...] = (),
    align_corners: bool = False,
    layout: Layout = "NCHW",
) -> Array:
    """Resizes planes to `size` or by `scale` (height, width), up or down, as PyTorch's `interpolate` does: nearest or bilinear.

    Just one of the two is given. A scale gives a result of floor(scale * extent) pixels, and, unless corners are aligned, is
    itself the distance between them, as in PyTorch without `recompute_scale_factor`. A node holds it in float32: what is meant is the
    fraction of the smallest denominator that rounds to that (1.1 is 11/10).

    - nearest: pixel j is source pixel floor(j * in / out), in integers; with a scale floor(j * (1 / scale)), in float32, as in PyTorch.
      (PyTorch rounds to float32 with a size, too, and is a pixel off where j * in / out is a whole number, for some sizes.)
    - bilinear: pixel j lies at (j + 0.5) * in / out - 0.5, with a scale at (j + 0.5) / scale - 0.5, but not in front of the first
      pixel nor behind the last. With `align_corners` it lies at j * (in - 1) / (out - 1), and at 0 where the result has one pixel.

    There is no antialiasing. Planes of no pixels are an error, in x as in y; no planes are none.

    In ONNX's words: nearest is Resize with `asymmetric` and `floor`, bilinear with `half_pixel` (not `pytorch_half_pixel`, which takes
    the first pixel where the result has one, as PyTorch no longer does) or `align_corners`.
    """
    return resized(x, mode=mode, size=size, scale=scale, align_corners=align_corners, layout=layout)


@op(
    {
        "NCHW": "d_y: T[N C upsampled(H, 0) upsampled(W, 1)], x: T[N C H W] -> d_x: T[N C H W]",
        "NHWC": "d_y: T[N upsampled(H, 0) upsampled(W, 1) C], x: T[N H W C] -> d_x: T[N H W C]",
    },
    name="Upsample2DGradient",
    layout="layout",
    T=WIDE_FLOATS,
    testing=Testing(
        cases=tuple(
            Case(
                lambda rng, shape=shape, given=given: {
                    "d_y": rng.standard_normal(resized(np.zeros(shape), **given).shape),
                    "x": np.zeros(shape),
                },
                given,
                f"{list(shape)} {list(given.values())}",
            )
            for shape, given in CALLS
        ),
        attributes=STANDARD,
        terms=lambda d_y, x, **given: passed_back(np.abs(d_y), x, **given),
    ),
)
def upsample2d_gradient(
    d_y: Array,
    x: Array,
    *,
    mode: Mode = "nearest",
    size: tuple[int, ...] = (),
    scale: tuple[float, ...] = (),
    align_corners: bool = False,
    layout: Layout = "NCHW",
) -> Array:
    """The gradient of Upsample2D: each source pixel gets what the pixels that were made of it pass back, by their shares.

    Of x nothing but the shape is used. The sum is in float32 (float64 for float64) and in an order that does not change.
    """
    return passed_back(d_y, x, mode=mode, size=size, scale=scale, align_corners=align_corners, layout=layout)


@upsample2d.gradient
def _(
    x: Value,
    d_y: Value,
    *,
    mode: Mode,
    size: tuple[int, ...],
    scale: tuple[float, ...],
    align_corners: bool,
    layout: Layout,
) -> Value:
    d_x: Value = upsample2d_gradient(
        d_y, x, mode=mode, size=size, scale=scale, align_corners=align_corners, layout=layout
    )
    return d_x


# --- in standard ONNX -----------------------------------------------------------------------------------------------


def onnx_taps(
    x: Value, axis: int, *, mode: str, size: Sequence[int], scale: Sequence[float], align_corners: bool, layout: str
) -> tuple[Value, Value, Value]:
    """`taps`, of a size that is known when the graph runs."""
    which = spatial(layout)[axis]
    double, integer = ELEMENT_TYPES["float64"], ELEMENT_TYPES["int64"]
    extent = onnx.Squeeze(onnx.Shape(x, start=which, end=which + 1))
    last = extent - np.int64(1)
    factor = exact_scale(scale[axis]) if scale else 0.0
    if size:
        pixels = x.graph.constant(np.int64(size[axis]))
    else:
        pixels = onnx.Cast(onnx.Floor(onnx.Cast(extent, to=double) * np.float64(factor)), to=integer)
    pixel = onnx.Range(np.int64(0), pixels, np.int64(1))
    if mode == "nearest":
        if size:
            at = pixel * extent / pixels
        else:
            ratio = np.float32(1 / factor)
            at = onnx.Cast(onnx.Floor(onnx.Cast(pixel, to=ELEMENT_TYPES["float32"]) * ratio), to=integer)
            at = onnx.Min(at, last)
        return at, at, at
    place = onnx.Cast(pixel, to=double)
    if align_corners:
        steps = onnx.Max(pixels - np.int64(1), np.int64(1))
        position = place * (onnx.Cast(last, to=double) / onnx.Cast(steps, to=double))
    else:
        step = np.float64(1 / factor) if scale else onnx.Cast(extent, to=double) / np.float64(size[axis])
        position = onnx.Max((place + np.float64(0.5)) * step - np.float64(0.5), np.float64(0))
    at = onnx.Min(onnx.Cast(onnx.Floor(position), to=integer), last)
    behind = onnx.Min(at + np.int64(1), last)
    weight = onnx.Min(position - onnx.Cast(at, to=double), np.float64(1))
    return at, behind, weight


def wide_type(value: Value) -> int:
    """What a body computes in: float64 where the tensors are, else float32."""
    return ELEMENT_TYPES["float64" if value.dtype == "float64" else "float32"]


def is_resize(mode: str, scale: Sequence[float]) -> bool:
    """Whether ONNX's Resize, in the float32 that runtimes compute it in, finds the very same pixels: by powers of two."""
    return bool(scale) and all(abs(np.frexp(np.float32(factor))[0]) == 0.5 for factor in scale)


@upsample2d.decomposition
def _(
    x: Value, *, mode: Mode, size: tuple[int, ...], scale: tuple[float, ...], align_corners: bool, layout: Layout
) -> Value:
    wide = wide_type(x)
    if is_resize(mode, scale) and not align_corners and layout == "NCHW" and wide == ELEMENT_TYPES["float32"]:
        given = (
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            if mode == "nearest"
            else {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
        )
        factors = np.array([1, 1, *scale], np.float32)
        return onnx.CastLike(onnx.Resize(onnx.Cast(x, to=wide), None, factors, **given), x)
    y = x if mode == "nearest" else onnx.Cast(x, to=wide)
    for axis, which in enumerate(spatial(layout)):
        at, behind, weight = onnx_taps(
            x, axis, mode=mode, size=size, scale=scale, align_corners=align_corners, layout=layout
        )
        near = onnx.Gather(y, at, axis=which)
        if mode == "bilinear":
            share = onnx.Cast(onnx.Unsqueeze(weight, np.arange(1, 4 - which)), to=wide)
            rest = onnx.Cast(onnx.Unsqueeze(np.float64(1) - weight, np.arange(1, 4 - which)), to=wide)
            near = rest * near + share * onnx.Gather(y, behind, axis=which)
        y = near
    return y if mode == "nearest" else onnx.CastLike(y, x)


def added(sums: Value, at: Value, d: Value, which: int, weight: Value | None = None) -> Value:
    """The sums with those rows of d (times their weights) added to the rows `at`, along an axis."""
    others = np.arange(1, 4 - which)
    rows = d if weight is None else d * onnx.CastLike(onnx.Unsqueeze(weight, others), d)
    index = onnx.Expand(onnx.Unsqueeze(at, others), onnx.Shape(d))
    result: Value = onnx.ScatterElements(sums, index, rows, axis=which, reduction="add")
    return result


@upsample2d_gradient.decomposition
def _(
    d_y: Value,
    x: Value,
    *,
    mode: Mode,
    size: tuple[int, ...],
    scale: tuple[float, ...],
    align_corners: bool,
    layout: Layout,
) -> Value:
    wide = wide_type(d_y)
    d = onnx.Cast(d_y, to=wide)
    for axis, which in enumerate(spatial(layout)):
        at, behind, weight = onnx_taps(
            x, axis, mode=mode, size=size, scale=scale, align_corners=align_corners, layout=layout
        )
        sizes = onnx.Concat(
            onnx.Shape(d, start=0, end=which),
            onnx.Shape(x, start=which, end=which + 1),
            onnx.Shape(d, start=which + 1),
            axis=0,
        )
        zeros = onnx.Expand(onnx.CastLike(np.float32(0), d), sizes)
        if mode == "nearest":
            d = added(zeros, at, d, which)
        else:
            d = added(added(zeros, at, d, which, np.float64(1) - weight), behind, d, which, weight)
    return onnx.CastLike(d, d_y)


# --- from ONNX's Resize ---------------------------------------------------------------------------------------------


def meant(scale: float) -> Fraction:
    """The fraction that a node's 32-bit scale was rounded from; itself where that is not known (see `exact_scale`)."""
    fraction = Fraction(exact_scale(scale)).limit_denominator(4096)
    return fraction if np.float32(fraction) == np.float32(scale) else Fraction(float(np.float32(scale)))


def onnx_nearest(extent: int, pixels: int, factor: Fraction, coordinates: str, rounding: str) -> list[int] | None:
    """The source pixels that ONNX's nearest Resize takes along an axis, in exact fractions; None for a mode that is not known."""
    half = Fraction(1, 2)
    offset = Fraction(extent, 2) * (1 - pixels / (factor * extent))
    positions: dict[str, Callable[[int], Fraction]] = {
        "asymmetric": lambda x: x / factor,
        "half_pixel": lambda x: (x + half) / factor - half,
        "half_pixel_symmetric": lambda x: offset + (x + half) / factor - half,
        "pytorch_half_pixel": lambda x: (x + half) / factor - half if pixels > 1 else Fraction(0),
        "align_corners": lambda x: Fraction(x * (extent - 1), pixels - 1) if pixels > 1 else Fraction(0),
    }
    roundings: dict[str, Callable[[Fraction], int]] = {
        "floor": math.floor,
        "ceil": math.ceil,
        "round_prefer_floor": lambda p: math.ceil(p - half),
        "round_prefer_ceil": lambda p: math.floor(p + half),
    }
    if coordinates not in positions or rounding not in roundings:
        return None
    at = (roundings[rounding](positions[coordinates](x)) for x in range(pixels))
    return [min(max(pixel, 0), extent - 1) for pixel in at]


def from_resize(
    attributes: Mapping[str, Any],
    shape: Sequence[Axis],
    *,
    sizes: Sequence[int] | None = None,
    scales: Sequence[float] | None = None,
) -> dict[str, Any] | None:
    """The attributes of the Upsample2D that is the same as an ONNX Resize (of opset 11 or later); None where there is none, or where
    it cannot be told as long as sizes are not known.

    `attributes` are those of the node, `shape` that of x; `sizes` or `scales` what its input of that name holds.
    """
    coordinates = attributes.get("coordinate_transformation_mode", "half_pixel")
    rounding = attributes.get("nearest_mode", "round_prefer_floor")
    mode = {"nearest": "nearest", "linear": "bilinear"}.get(attributes.get("mode", "nearest"))
    others = attributes.get("antialias", 0) or attributes.get("exclude_outside", 0)
    kept = attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    axes = [axis % 4 for axis in attributes.get("axes", range(4))]
    given = sizes if sizes is not None else scales
    if mode is None or others or not kept or len(shape) != 4 or given is None or len(given) != len(axes):
        return None

    # Of each axis: its pixels before and behind, where known, and by what they grow.
    extents = [extent if isinstance(extent, int) else None for extent in shape]
    pixels, factors = list(extents), [Fraction(1) for _ in shape]
    known = [True] * 4  # whether the factor is
    for axis, value in zip(axes, given, strict=True):
        extent = extents[axis]
        if sizes is not None:
            pixels[axis], known[axis] = int(value), bool(extent)
            factors[axis] = Fraction(int(value), extent) if extent else factors[axis]
        else:
            factors[axis] = meant(value)
            if extent is not None:
                pixels[axis] = math.floor(extent * factors[axis])
                if pixels[axis] != int(np.float32(extent) * np.float32(value)):  # as runtimes have it
                    return None
    still = [known[axis] and factors[axis] == 1 for axis in range(4)]
    layout = "NCHW" if still[0] and still[1] else "NHWC" if still[0] and still[3] else None
    if layout is None:
        return None
    plane = spatial(layout)
    whole = all(extents[a] is not None and (extents[a] or 0) * factors[a] == pixels[a] for a in plane)
    if sizes is not None or whole:
        result: dict[str, Any] = {"size": tuple(pixels[a] for a in plane)}
    else:
        result = {"scale": tuple(float(factors[a]) for a in plane)}
    result |= {"mode": mode} if mode != "nearest" else {}
    result |= {"layout": layout} if layout != "NCHW" else {}
    if any(pixels[a] == 0 or extents[a] == 0 for a in plane):
        return None

    if mode == "bilinear":
        if coordinates == "align_corners":
            integral = all(factors[a].denominator == 1 for a in plane)
            return result | {"align_corners": True} if "size" in result or integral else None
        # PyTorch took the first pixel for a result of one when ONNX named a mode after it; it takes the middle now.
        several = all((pixels[a] or factors[a]) > 1 for a in plane)
        return result if coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and several) else None

    if coordinates == "asymmetric" and rounding == "floor" and "size" in result:
        return result  # the same words
    for axis, a in enumerate(plane):
        extent = extents[a]
        if extent is None and (sizes is not None or not is_resize(mode, [float(factors[a])])):
            return None
        # What is scaled by a power of two is alike everywhere: two sizes stand for all.
        for n in (16, 17) if extent is None else (extent,):
            out = math.floor(n * factors[a]) if extent is None else pixels[a]
            ours = {"mode": mode, **{k: v for k, v in result.items() if k in ("size", "scale")}}
            if out and onnx_nearest(n, out, factors[a], coordinates, rounding) != taps(n, axis, **ours)[0].tolist():
                return None
    return result
