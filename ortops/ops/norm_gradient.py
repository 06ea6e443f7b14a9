"""The gradients of norm.py's operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ortops._declare import ELEMENT_TYPES, FLOATS, Case, Testing, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value

FLOAT32 = ELEMENT_TYPES["float32"]


def rows(width: int, count: int, mean: bool, options: bool = True) -> Case:
    """Rows of that width, with every option, or with none."""

    def inputs(rng: np.random.Generator) -> dict[str, Any]:
        shape = (count, width)
        given = {name: rng.standard_normal(shape) for name in ("d_y", "x", "residual", "d_sum")}
        if not options:
            del given["residual"], given["d_sum"]
        statistics = {"mean": rng.standard_normal(count)} if mean else {}
        return given | statistics | {"scale": rng.standard_normal(width), "rstd": rng.uniform(0.5, 2, count)}

    return Case(inputs, name=f"{count} rows of {width}, {'every option' if options else 'no options'}")


def cases(mean: bool) -> tuple[Case, ...]:
    """Some lanes of a warp a row, a warp, several; rows that are read twice; vectors and single elements; more rows than there
    are groups of threads on a chip, and none."""
    return (
        *(rows(width, 5, mean) for width in (1, 7, 64, 300, 384)),
        *(rows(width, 3, mean, options=False) for width in (8, 128, 257, 768, 1032, 4096)),
        *(rows(width, 2, mean) for width in (8191, 8200, 16392)),
        rows(65537, 2, mean, options=False),
        rows(24, 20_000, mean),
        rows(1032, 600, mean, options=False),
        rows(40, 0, mean),
    )


def spread(rng: np.random.Generator, shape: tuple[int, ...], sizes: Any) -> np.ndarray:
    return rng.uniform(0.5, 2, shape)


def usual(d_y: np.ndarray, x: np.ndarray, scale: np.ndarray, *statistics: np.ndarray, **_: Any) -> float:
    """The size of a usual term: a gradient sums those of a row or a column, which cancel."""
    return float(np.sqrt(np.mean(np.square(d_y))) if d_y.size else 0.0)


def testing(mean: bool) -> Testing:
    # What is taken off d in d_x is a product with n = (x - mean) * rstd, which in these samples is up to 10.
    return Testing(cases=cases(mean), samples={"rstd": spread}, terms=usual, bar={"float32": 16})


@op(
    "d_y: T[... *D], x: T[... *D], scale: T[*D], mean: float32[...], rstd: float32[...], residual: T?[... *D], "
    "d_sum: T?[... *D] -> d_x: T[... *D], d_scale: T?[*D], d_bias: T?[*D]",
    name="LayerNormGradient",
    T=FLOATS,
    testing=testing(mean=True),
)
def layer_norm_gradient(
    d_y: np.ndarray,
    x: np.ndarray,
    scale: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    residual: np.ndarray | None = None,
    d_sum: np.ndarray | None = None,
) -> tuple[np.ndarray, ...]:
    """The gradient of LayerNorm, of the mean and rstd that it gave.

    x and residual are as they were there; or x is the output `sum`, without a residual. What arrives at `sum` is added to d_x,
    which is the gradient of the residual as well. d_scale and d_bias are sums over all rows, taken in float32 in an order that
    depends on the shape alone; of no rows they are zeros.
    """
    total = x if residual is None else x + residual
    axes, outer = split(total, scale)
    inner = tuple(range(-scale.ndim, 0))
    mean, rstd = (s.reshape(outer) for s in (mean, rstd))
    normal = (total - mean) * rstd
    d = d_y * scale
    along = (d * normal).mean(axis=inner, keepdims=True)
    d_x = (d - d.mean(axis=inner, keepdims=True) - normal * along) * rstd
    return d_x if d_sum is None else d_x + d_sum, (d_y * normal).sum(axis=axes), d_y.sum(axis=axes)


@layer_norm_gradient.decomposition
def _(
    d_y: Value, x: Value, scale: Value, mean: Value, rstd: Value, residual: Value | None, d_sum: Value | None
) -> tuple[Value, Value, Value]:
    centered = widened(x, residual) - per_element(mean, scale)
    return passed_back(d_y, centered, scale, rstd, d_sum, mean=True)


@op(
    "d_y: T[... *D], x: T[... *D], scale: T[*D], rstd: float32[...], residual: T?[... *D], d_sum: T?[... *D]"
    " -> d_x: T[... *D], d_scale: T?[*D]",
    name="RMSNormGradient",
    T=FLOATS,
    testing=testing(mean=False),
)
def rms_norm_gradient(
    d_y: np.ndarray,
    x: np.ndarray,
    scale: np.ndarray,
    rstd: np.ndarray,
    residual: np.ndarray | None = None,
    d_sum: np.ndarray | None = None,
) -> tuple[np.ndarray, ...]:
    """The gradient of RMSNorm, of the rstd that it gave.

    Inputs and outputs are as in LayerNormGradient.
    """
    total = x if residual is None else x + residual
    axes, outer = split(total, scale)
    rstd = rstd.reshape(outer)
    normal = total * rstd
    d = d_y * scale
    d_x = (d - normal * (d * normal).mean(axis=tuple(range(-scale.ndim, 0)), keepdims=True)) * rstd
    return d_x if d_sum is None else d_x + d_sum, (d_y * normal).sum(axis=axes)


@rms_norm_gradient.decomposition
def _(
    d_y: Value, x: Value, scale: Value, rstd: Value, residual: Value | None, d_sum: Value | None
) -> tuple[Value, Value]:
    d_x, d_scale, _ = passed_back(d_y, widened(x, residual), scale, rstd, d_sum, mean=False)
    return d_x, d_scale


def split(x: np.ndarray, scale: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes before a row, and the shape of a number a row that broadcasts to x."""
    outer = x.ndim - scale.ndim
    return tuple(range(outer)), x.shape[:outer] + (1,) * scale.ndim


def widened(x: Value, residual: Value | None) -> Value:
    wide = onnx.Cast(x, to=FLOAT32)
    return wide if residual is None else wide + onnx.Cast(residual, to=FLOAT32)


def per_element(statistic: Value, scale: Value) -> Value:
    """With the axes of a row put on, of size 1."""
    return onnx.Unsqueeze(statistic, np.arange(-(scale.rank or 0), 0)) if scale.rank else statistic


def passed_back(
    d_y: Value, centered: Value, scale: Value, rstd: Value, d_sum: Value | None, *, mean: bool
) -> tuple[Value, Value, Value]:
    """d_x, d_scale and d_bias."""
    inner = np.arange(-(scale.rank or 0), 0)
    axes = np.arange((d_y.rank or 0) - (scale.rank or 0))
    rstd = per_element(rstd, scale)
    normal, wide = centered * rstd, onnx.Cast(d_y, to=FLOAT32)
    d = wide * onnx.Cast(scale, to=FLOAT32)
    d_x = d - normal * onnx.ReduceMean(d * normal, inner, keepdims=1, noop_with_empty_axes=1)
    if mean:
        d_x = d_x - onnx.ReduceMean(d, inner, keepdims=1, noop_with_empty_axes=1)
    d_x = d_x * rstd
    if d_sum is not None:
        d_x = d_x + onnx.Cast(d_sum, to=FLOAT32)
    sums = (onnx.ReduceSum(v, axes, keepdims=0, noop_with_empty_axes=1) for v in (wide * normal, wide))
    return (onnx.CastLike(d_x, d_y), *(onnx.CastLike(v, scale) for v in sums))
