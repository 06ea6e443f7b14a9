"""Normalisation of groups of channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from ortops import ops
from ortops._declare import ELEMENT_TYPES, FLOATS, Case, Range, Testing, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value

FLOAT32 = ELEMENT_TYPES["float32"]
Activation = Literal["none", "silu"]
Layout = Literal["NCHW", "NHWC"]


def images(
    batch: int, channels: int, *spatial: int, groups: int, mean: float = 0, gradient: bool = False, **attributes: Any
) -> Case:
    shape = (batch, *spatial, channels) if attributes.get("layout") == "NHWC" else (batch, channels, *spatial)

    def inputs(rng: np.random.Generator) -> dict[str, Any]:
        given = {"x": mean + rng.standard_normal(shape), "scale": rng.standard_normal(channels)}
        given["bias"] = rng.standard_normal(channels)
        if gradient:
            given["d_y"] = rng.standard_normal(shape)
            given["mean"], given["rstd"] = mean + rng.standard_normal((batch, groups)) / 4, spread(rng, (batch, groups))
        return given

    return Case(
        inputs, {"groups": groups, **attributes}, f"{list(shape)} in {groups} groups, mean {mean}, {attributes}"
    )


def spread(rng: np.random.Generator, shape: tuple[int, ...], sizes: Any = None) -> np.ndarray:
    return rng.uniform(0.5, 2, shape)


def cases(gradient: bool) -> tuple[Case, ...]:
    """Vectors and single elements, channels that end inside of a vector, planes for a warp and for blocks, single groups and
    single channels."""
    more = {"gradient": gradient}
    return (
        images(2, 12, groups=3, **more),
        images(2, 40, 5, 8, groups=4, activation="silu", **more),
        images(2, 40, 5, 8, groups=4, activation="silu", layout="NHWC", **more),
        images(1, 30, 7, 3, groups=3, layout="NHWC", **more),
        images(3, 16, 4, groups=16, layout="NHWC", **more),
        images(1, 2, 150, 160, groups=1, activation="silu", **more),
        images(1, 2, 151, 161, groups=2, **more),
        images(1, 8, 90, 50, groups=2, layout="NHWC", activation="silu", **more),
        images(70, 8, 2, groups=1, layout="NHWC", **more),
        images(1, 520, 3, groups=2, layout="NHWC", **more),
        images(2, 6, 5, 5, groups=2, mean=2000, **more),
        images(0, 4, 3, groups=2, **more),
    )


def of_three_groups(sizes: dict[str, Any]) -> dict[str, Any]:
    return sizes | {"C": 3 * max(1, sizes["C"] // 3)}


@op(
    {
        "NCHW": "x: T[N C *D], scale: T?[C], bias: T?[C] -> y: T[N grouped(C) *D], "
        "mean: float32?[N groups], rstd: float32?[N groups]",
        "NHWC": "x: T[N *D C], scale: T?[C], bias: T?[C] -> y: T[N *D grouped(C)], "
        "mean: float32?[N groups], rstd: float32?[N groups]",
    },
    name="GroupNorm",
    layout="layout",
    T=FLOATS,
    testing=Testing(
        cases=cases(False),
        attributes={"groups": 3},
        sizes=of_three_groups,
        # The sum of a group is rounded; of a few elements that are nearly equal that is much against their distance.
        bar={"float32": 64},
        terms=lambda x, *_, **__: float(np.std(x)) if x.size else 0.0,  # of a mean near 0
    ),
)
def group_norm(
    x: np.ndarray,
    scale: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    *,
    groups: Annotated[int, Range(min=1)],
    epsilon: Annotated[float, Range(min=0)] = 1e-5,
    activation: Activation = "none",
    layout: Layout = "NCHW",
) -> tuple[np.ndarray, ...]:
    """Subtracts the mean of each group of channels, divides by its standard deviation, scales and shifts each channel, then applies
    SiLU where asked. (Wu & He, 2018)

    x is [N, C, *D] or, in the layout NHWC, [N, *D, C], of any number of axes *D; C is a multiple of `groups`. The statistics
    are taken in float32, of the distances from the mean: a mean far from 0 costs nothing. `mean` and `rstd` (1 / standard
    deviation) are kept for the gradient; of a group without elements they are NaN.
    """
    rows, axes = grouped(x, groups, layout)
    mean = rows.mean(axis=axes, keepdims=True)
    rstd = 1 / np.sqrt(np.square(rows - mean).mean(axis=axes, keepdims=True) + epsilon)
    y = ((rows - mean) * rstd).reshape(x.shape)
    if scale is not None:
        y = y * per_channel(scale, x, layout)
    if bias is not None:
        y = y + per_channel(bias, x, layout)
    y = y * sigmoid(y) if activation == "silu" else y
    return y, mean.reshape(len(x), groups), rstd.reshape(len(x), groups)


@group_norm.decomposition
def _(
    x: Value,
    scale: Value | None,
    bias: Value | None,
    *,
    groups: int,
    epsilon: float,
    activation: Activation,
    layout: Layout,
) -> tuple[Value, Value, Value]:
    wide = onnx.Cast(x, to=FLOAT32)
    rows, axes = onnx_grouped(wide, groups, layout)
    mean = onnx_mean(rows, axes)
    centered = rows - mean
    rstd = 1.0 / onnx.Sqrt(onnx_mean(centered * centered, axes) + epsilon)
    y = onnx.Reshape(centered * rstd, onnx.Shape(x), allowzero=1)
    y = onnx_affine(y, scale, bias, layout)
    y = y * onnx.Sigmoid(y) if activation == "silu" else y
    shape = onnx.Concat(onnx.Shape(x, start=0, end=1), [groups], axis=0)
    statistics = (onnx.Cast(onnx.Reshape(v, shape, allowzero=1), to=FLOAT32) for v in (mean, rstd))
    return (onnx.CastLike(y, x), *statistics)


@group_norm.gradient
def _(
    x: Value,
    scale: Value | None,
    bias: Value | None,
    mean: Value,
    rstd: Value,
    d_y: Value,
    *,
    groups: int,
    activation: Activation,
    layout: Layout,
) -> dict[str, Value | None]:
    outputs = ["d_x", *(["d_scale"] if scale is not None else []), *(["d_bias"] if bias is not None else [])]
    results = ops.group_norm_gradient(
        d_y, x, mean, rstd, scale, bias, groups=groups, activation=activation, layout=layout, outputs=outputs
    )
    named = dict(zip(outputs, results if isinstance(results, tuple) else (results,), strict=True))
    return {"x": named["d_x"], "scale": named.get("d_scale"), "bias": named.get("d_bias")}


def usual(d_y: np.ndarray, *_: Any, **__: Any) -> float:
    """The size of a usual term: a gradient sums those of a group or a channel, which cancel."""
    return float(np.sqrt(np.mean(np.square(d_y))) if d_y.size else 0.0)


@op(
    {
        "NCHW": "d_y: T[N C *D], x: T[N C *D], mean: float32[N groups], rstd: float32[N groups], scale: T?[C], "
        "bias: T?[C] -> d_x: T[N grouped(C) *D], d_scale: T?[C], d_bias: T?[C]",
        "NHWC": "d_y: T[N *D C], x: T[N *D C], mean: float32[N groups], rstd: float32[N groups], scale: T?[C], "
        "bias: T?[C] -> d_x: T[N *D grouped(C)], d_scale: T?[C], d_bias: T?[C]",
    },
    name="GroupNormGradient",
    layout="layout",
    T=FLOATS,
    testing=Testing(
        cases=cases(True),
        attributes={"groups": 3},
        sizes=of_three_groups,
        samples={"rstd": spread},
        terms=usual,
        # What is taken off d in d_x is a product with n = (x - mean) * rstd, which in these samples is up to 10; the slope of
        # SiLU is as exact as its sigmoid, whose error of an epsilon z multiplies.
        bar={"float32": 32},
    ),
)
def group_norm_gradient(
    d_y: np.ndarray,
    x: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    scale: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    *,
    groups: Annotated[int, Range(min=1)],
    activation: Activation = "none",
    layout: Layout = "NCHW",
) -> tuple[np.ndarray, ...]:
    """The gradient of GroupNorm, of the mean and rstd that it gave.

    d_scale and d_bias are sums in float32, in an order that depends on the shape alone; of an empty x they are zeros.
    """
    rows, axes = grouped(x, groups, layout)
    outer = tuple(1 if i in {axis % rows.ndim for axis in axes} else size for i, size in enumerate(rows.shape))
    rstd_rows = rstd.reshape(outer)
    n = ((rows - mean.reshape(outer)) * rstd_rows).reshape(x.shape)
    weight = np.ones(()) if scale is None else per_channel(scale, x, layout)
    if activation == "silu":
        z = n * weight + (0 if bias is None else per_channel(bias, x, layout))
        d_y = d_y * sigmoid(z) * (1 + z * sigmoid(-z))
    d, normal = grouped(d_y * weight, groups, layout)[0], grouped(n, groups, layout)[0]
    along = (d * normal).mean(axis=axes, keepdims=True)
    d_x = (d - d.mean(axis=axes, keepdims=True) - normal * along) * rstd_rows
    others = tuple(axis for axis in range(x.ndim) if axis != channel_axis(x.ndim, layout))
    return d_x.reshape(x.shape), (d_y * n).sum(axis=others), d_y.sum(axis=others)


@group_norm_gradient.decomposition
def _(
    d_y: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    scale: Value | None,
    bias: Value | None,
    *,
    groups: int,
    activation: Activation,
    layout: Layout,
) -> tuple[Value, Value, Value]:
    rank = x.rank or 0
    rows, axes = onnx_grouped(onnx.Cast(x, to=FLOAT32), groups, layout)
    mean, rstd = (onnx.Unsqueeze(onnx.Cast(v, to=FLOAT32), axes) for v in (mean, rstd))
    normal = (rows - mean) * rstd
    n = onnx.Reshape(normal, onnx.Shape(x), allowzero=1)
    d = onnx.Cast(d_y, to=FLOAT32)
    if activation == "silu":
        z = onnx_affine(n, scale, bias, layout)
        d = d * onnx.Sigmoid(z) * (1.0 + z * onnx.Sigmoid(-z))
    weighted, _ = onnx_grouped(onnx_affine(d, scale, None, layout), groups, layout)
    d_x = (weighted - onnx_mean(weighted, axes) - normal * onnx_mean(weighted * normal, axes)) * rstd
    others = [axis for axis in range(rank) if axis != channel_axis(rank, layout)]
    sums = (onnx.CastLike(onnx.ReduceSum(v, others, keepdims=0), x) for v in (d * n, d))
    return (onnx.CastLike(onnx.Reshape(d_x, onnx.Shape(x), allowzero=1), x), *sums)


# --- both


def channel_axis(rank: int, layout: Layout) -> int:
    return 1 if layout == "NCHW" else rank - 1


def grouped(x: np.ndarray, groups: int, layout: Layout) -> tuple[np.ndarray, tuple[int, ...]]:
    """x with the axis of channels cut into groups, and the axes that a group has."""
    axis = channel_axis(x.ndim, layout)
    rows = x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    return rows, tuple(i for i in range(1, rows.ndim) if i != axis)


def per_channel(weight: np.ndarray, x: np.ndarray, layout: Layout) -> np.ndarray:
    """The weight in a shape that broadcasts to x."""
    return weight.reshape(-1, *[1] * (x.ndim - 1 - channel_axis(x.ndim, layout)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def onnx_grouped(x: Value, groups: int, layout: Layout) -> tuple[Value, np.ndarray]:
    rank = x.rank or 0
    axis = channel_axis(rank, layout)
    channels = onnx.Shape(x, start=axis, end=axis + 1)
    sizes = [onnx.Shape(x, start=0, end=axis), [groups], onnx.Div(channels, [groups]), onnx.Shape(x, start=axis + 1)]
    rows = onnx.Reshape(x, onnx.Concat(*sizes, axis=0), allowzero=1)
    return rows, np.array([i for i in range(1, rank + 1) if i != axis])


def onnx_mean(rows: Value, axes: np.ndarray) -> Value:
    """(Not ReduceMean: ONNX Runtime refuses to take it of nothing.)"""
    count = onnx.ReduceProd(onnx.Gather(onnx.Shape(rows), axes, axis=0), keepdims=0)
    return onnx.ReduceSum(rows, axes, keepdims=1) / onnx.CastLike(count, rows)


def onnx_affine(x: Value, scale: Value | None, bias: Value | None, layout: Layout) -> Value:
    rank = x.rank or 0
    behind = np.arange(1, rank - channel_axis(rank, layout))

    def spread_out(weight: Value) -> Value:
        wide = onnx.CastLike(weight, x)
        return onnx.Unsqueeze(wide, behind) if len(behind) else wide

    y = x if scale is None else x * spread_out(scale)
    return y if bias is None else y + spread_out(bias)
