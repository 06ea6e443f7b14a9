"""Normalisation of rows."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ortops._declare import FLOATS, Range, op


@op(
    "x: T[... *D], scale: T[*D], bias: T?[*D], residual: T?[... *D] -> y: T[... *D], sum: T?[... *D], mean: float32?[...], rstd: float32?[...]",
    name="LayerNorm",
    T=FLOATS,
)
def layer_norm(x, scale, bias=None, residual=None, *, epsilon: Annotated[float, Range(min=0)] = 1e-5):
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
    rows = total.shape[: total.ndim - scale.ndim]
    return y if bias is None else y + bias, total, mean.reshape(rows), rstd.reshape(rows)


@op(
    "x: T[... *D], scale: T[*D], residual: T?[... *D] -> y: T[... *D], sum: T?[... *D], rstd: float32?[...]",
    name="RMSNorm",
    T=FLOATS,
)
def rms_norm(x, scale, residual=None, *, epsilon: Annotated[float, Range(min=0)] = 1e-5):
    """Divides each row by its root mean square, then scales it. (Zhang & Sennrich, 2019)

    Rows, `residual`, `sum` and `rstd` are as in LayerNorm.
    """
    total = x if residual is None else x + residual
    axes = tuple(range(-scale.ndim, 0))
    rstd = 1 / np.sqrt(np.square(total).mean(axis=axes, keepdims=True) + epsilon)
    return total * rstd * scale, total, rstd.reshape(total.shape[: total.ndim - scale.ndim])
