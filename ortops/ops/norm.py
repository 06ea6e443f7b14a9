"""Normalisation of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np

from ortops import ops
from ortops._declare import ELEMENT_TYPES, FLOATS, Case, Range, Testing, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value

FLOAT32 = ELEMENT_TYPES["float32"]


def rows(width: int, count: int = 3, **more: float) -> Case:
    """Rows of that width, with every option."""
    shape = (count, width)
    return Case(
        lambda rng: {
            "x": rng.standard_normal(shape),
            "scale": rng.standard_normal(width),
            "residual": rng.standard_normal(shape),
        },
        more,
        f"{count} rows of {width}",
    )


# One warp a row, one block a row, a row that is read again; vectors and single elements; the last row of a block missing.
WIDTHS = (
    *(rows(width, 5) for width in (1, 3, 7, 256, 300, 384, 1000)),
    *(rows(width) for width in (1032, 4096, 8191, 8200)),
    *(rows(width, 2) for width in (16392, 65537, 1 << 18)),
)
SHAPES = (
    Case(lambda rng: {"x": rng.standard_normal((2, 3, 4, 6)), "scale": rng.standard_normal((4, 6))}, name="two axes"),
    Case(lambda rng: {"x": rng.standard_normal(40), "scale": rng.standard_normal(40)}, name="a row without a batch"),
    Case(lambda rng: {"x": np.zeros((0, 4)), "scale": np.ones(4)}, name="no rows"),
)
VALUES = (
    Case(lambda rng: {"x": np.full((2, 300), 987), "scale": np.ones(300)}, name="a constant row"),
    Case(lambda rng: {"x": np.zeros((2, 64)), "scale": np.ones(64)}, name="rows of zeros"),
    *(
        Case(
            lambda rng, width=width: {"x": np.tile([[2e4, -2e4], [1e-4, -1e-4]], width // 2), "scale": np.ones(width)},
            {"epsilon": 1e-6},
            f"squares beyond float16, width {width}",
        )
        for width in (8, 4096)
    ),
)


@op(
    "x: T[... *D], scale: T[*D], bias: T?[*D], residual: T?[... *D]"
    " -> y: T[... *D], sum: T?[... *D], mean: float32?[...], rstd: float32?[...]",
    name="LayerNorm",
    T=FLOATS,
    testing=Testing(
        cases=(
            *WIDTHS,
            *SHAPES,
            *VALUES,
            Case(
                lambda rng: {
                    "x": 2000 + rng.integers(0, 8, (5, 300)),
                    "scale": rng.standard_normal(300),
                    "bias": rng.standard_normal(300),
                },
                name="a mean far from 0",
            ),
        ),
        # x + residual is rounded to float32, by up to half an epsilon of it; in a row of a few elements that are nearly
        # equal that is much against their distance, by which it is then divided.
        bar={"float32": 256},
    ),
)
def layer_norm(
    x: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    *,
    epsilon: Annotated[float, Range(min=0)] = 1e-5,
) -> tuple[np.ndarray, ...]:
    """Subtracts the mean of each row, divides by its standard deviation, then scales and shifts it. (Ba et al., 2016)

    A row is the axes that `scale` has. With `residual`, it is x + residual that is normalised, and the output `sum` is that
    sum, rounded to the type of x, so that add and norm are one pass over memory. The statistics are taken in float32 of the
    unrounded sum; `mean` and `rstd` (1 / standard deviation) are kept for the gradient.
    """
    total = x if residual is None else x + residual
    axes = tuple(range(-scale.ndim, 0))
    mean = total.mean(axis=axes, keepdims=True)
    rstd = 1 / np.sqrt(np.square(total - mean).mean(axis=axes, keepdims=True) + epsilon)
    y = (total - mean) * rstd * scale
    outer = total.shape[: total.ndim - scale.ndim]
    return y if bias is None else y + bias, total, mean.reshape(outer), rstd.reshape(outer)


@layer_norm.decomposition
def _(
    x: Value, scale: Value, bias: Value | None, residual: Value | None, *, epsilon: float
) -> tuple[Value, Value, Value, Value]:
    # As exporters write it: the sum is rounded to its type before it is normalised, which the kernel does without.
    axes = np.arange(-(scale.rank or 0), 0)
    total = x if residual is None else x + residual
    wide = onnx.Cast(total, to=FLOAT32)
    mean = mean_over(wide, axes)
    rstd = 1.0 / onnx.Sqrt(mean_over(onnx.Pow(wide - mean, 2.0), axes) + epsilon)
    if len(axes) == 0:
        y = onnx.CastLike((wide - mean) * rstd, x) * scale
        y = y if bias is None else y + bias
    else:
        y = onnx.LayerNormalization(total, scale, bias, axis=-len(axes), epsilon=epsilon)
    return y, total, per_row(mean, x, axes), per_row(rstd, x, axes)


@layer_norm.gradient
def _(
    x: Value,
    scale: Value,
    bias: Value | None,
    residual: Value | None,
    mean: Value,
    rstd: Value,
    d_y: Value | None,
    d_sum: Value | None,
    sum: Value | None = None,
) -> dict[str, Value | None]:
    if d_y is None:
        return {"x": d_sum, "residual": d_sum}
    if sum is not None:
        x, residual = sum, None
    wanted = ("d_x", "d_scale") if bias is None else ("d_x", "d_scale", "d_bias")
    d_x, d_scale, *d_bias = ops.layer_norm_gradient(d_y, x, scale, mean, rstd, residual, d_sum, outputs=wanted)
    return {"x": d_x, "residual": d_x, "scale": d_scale, "bias": d_bias[0] if d_bias else None}


@op(
    "x: T[... *D], scale: T[*D], residual: T?[... *D] -> y: T[... *D], sum: T?[... *D], rstd: float32?[...]",
    name="RMSNorm",
    T=FLOATS,
    testing=Testing(cases=(*WIDTHS, *SHAPES, *VALUES)),
)
def rms_norm(
    x: np.ndarray,
    scale: np.ndarray,
    residual: np.ndarray | None = None,
    *,
    epsilon: Annotated[float, Range(min=0)] = 1e-5,
) -> tuple[np.ndarray, ...]:
    """Divides each row by its root mean square, then scales it. (Zhang & Sennrich, 2019)

    Rows, `residual`, `sum` and `rstd` are as in LayerNorm.
    """
    total = x if residual is None else x + residual
    axes = tuple(range(-scale.ndim, 0))
    rstd = 1 / np.sqrt(np.square(total).mean(axis=axes, keepdims=True) + epsilon)
    return total * rstd * scale, total, rstd.reshape(total.shape[: total.ndim - scale.ndim])


@rms_norm.decomposition
def _(x: Value, scale: Value, residual: Value | None, *, epsilon: float) -> tuple[Value, Value, Value]:
    axes = np.arange(-(scale.rank or 0), 0)
    total = x if residual is None else x + residual
    wide = onnx.Cast(total, to=FLOAT32)
    rms = onnx.Sqrt(mean_over(onnx.Pow(wide, 2.0), axes) + epsilon)
    return onnx.CastLike(wide / rms * onnx.Cast(scale, to=FLOAT32), x), total, per_row(1.0 / rms, x, axes)


@rms_norm.gradient
def _(
    x: Value,
    scale: Value,
    residual: Value | None,
    rstd: Value,
    d_y: Value | None,
    d_sum: Value | None,
    sum: Value | None = None,
) -> dict[str, Value | None]:
    if d_y is None:
        return {"x": d_sum, "residual": d_sum}
    if sum is not None:
        x, residual = sum, None
    d_x, d_scale = ops.rms_norm_gradient(d_y, x, scale, rstd, residual, d_sum, outputs=("d_x", "d_scale"))
    return {"x": d_x, "residual": d_x, "scale": d_scale}


def mean_over(x: Value, axes: np.ndarray) -> Value:
    return onnx.ReduceMean(x, axes, keepdims=1, noop_with_empty_axes=1)


def per_row(statistic: Value, x: Value, axes: np.ndarray) -> Value:
    """Takes off the axes of a row. (Not with Squeeze: reducing a tensor of no rows, ONNX Runtime leaves them as they are.)"""
    return onnx.Reshape(statistic, onnx.Shape(x, end=-len(axes)), allowzero=1) if len(axes) else statistic
