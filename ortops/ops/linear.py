"""Matrix products with what surrounds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import erfc as scalar_erfc
from math import pi, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ortops import ops
from ortops._declare import ELEMENT_TYPES, FLOATS, Case, Testing, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value

erfc = np.vectorize(scalar_erfc, otypes=[np.float64])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


# In forms that do not cancel for negative x.
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * erfc(x / -sqrt(2)),
    "gelu_tanh": lambda x: x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x**3)),
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
}


def _terms(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None,
    residual: np.ndarray | None,
    weight_layout: str = "in_out",
    **_: Any,
) -> np.ndarray:
    """The root of the sum of squares of all terms."""
    squares = x**2 @ (weight if weight_layout == "in_out" else weight.T) ** 2
    return np.asarray(np.sqrt(sum(term**2 for term in (bias, residual) if term is not None) + squares))


def _given(**inputs: np.ndarray) -> Callable[[np.random.Generator], dict[str, np.ndarray]]:
    return lambda rng: inputs


def _cases() -> Iterator[Case]:
    """Activations alone, from the middle to where they are flat, as a column and as a row; products of nothing (K = 0)."""
    for activation in ACTIVATIONS:
        column, row = np.linspace(-4, 4, 129), np.linspace(-30, 30, 129)
        attributes = {"activation": activation}
        yield Case(_given(x=column[:, None], weight=np.ones((1, 1))), attributes, f"{activation}, one column")
        yield Case(_given(x=np.ones((1, 1)), weight=row[None, :]), attributes, f"{activation}, one row")
    rest = {"bias": np.linspace(-2, 2, 5), "residual": np.linspace(-1, 1, 30).reshape(2, 3, 5)}
    for activation, names in (
        ("none", ()),
        ("none", ("residual",)),
        ("relu", ("bias",)),
        ("gelu", ("bias", "residual")),
    ):
        for weight_layout, shape in (("in_out", (0, 5)), ("out_in", (5, 0))):
            inputs = _given(x=np.zeros((2, 3, 0)), weight=np.zeros(shape), **{name: rest[name] for name in names})
            attributes = {"activation": activation, "weight_layout": weight_layout}
            yield Case(inputs, attributes, f"K = 0, {activation}, {weight_layout}")


@op(
    {
        "in_out": "x: T[... K], weight: T[K N], bias: T?[N], residual: T?[... N] -> y: T[... N]",
        "out_in": "x: T[... K], weight: T[N K], bias: T?[N], residual: T?[... N] -> y: T[... N]",
    },
    name="Linear",
    layout="weight_layout",
    T=FLOATS,
    testing=Testing(
        cases=tuple(_cases()),
        samples={"weight": lambda rng, shape, sizes: rng.standard_normal(shape) / sqrt(max(sizes["K"], 1))},
        terms=_terms,
        # On CUDA what an activation reads may have been rounded already: 0.57 epsilon and the last rounding's half.
        # In float32 the order of a sum is ONNX Runtime's or cuBLASLt's: 129 terms were seen 9.4 epsilon off.
        bar={"float16": 1.1, "bfloat16": 1.1, "float32": 16},
    ),
)
def linear(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    *,
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"] = "none",
    weight_layout: Literal["in_out", "out_in"] = "in_out",
) -> np.ndarray:
    """activation(x weight + bias) + residual: a matrix product and what comes after it, in one operator.

    The weight is [in, out] as ONNX's MatMul has it, or [out, in] as PyTorch's Linear. `gelu` is the exact one with the error
    function, `gelu_tanh` its approximation (Hendrycks & Gimpel, 2016). Products are accumulated in float32.
    """
    y = x @ (weight if weight_layout == "in_out" else weight.T)
    y = ACTIVATIONS[activation](y if bias is None else y + bias)
    return y if residual is None else y + residual


@linear.decomposition
def _(
    x: Value, weight: Value, bias: Value | None, residual: Value | None, *, activation: str, weight_layout: str
) -> Value:
    # ONNX Runtime folds the transposition of a constant weight, and fuses Add with the product (Gemm) or with GELU (BiasGelu).
    y = x @ (weight if weight_layout == "in_out" else onnx.Transpose(weight, perm=[1, 0]))
    if bias is not None:
        y = y + bias
    match activation:
        case "relu":
            y = onnx.Relu(y)
        case "gelu" if y.graph.opset < 20:
            y = 0.5 * y * (1.0 + onnx.Erf(y / sqrt(2)))
        case "gelu":
            y = onnx.Gelu(y)
        case "gelu_tanh" if y.graph.opset < 20:
            y = 0.5 * y * (1.0 + onnx.Tanh(sqrt(2 / pi) * (y + 0.044715 * y * y * y)))
        case "gelu_tanh":
            y = onnx.Gelu(y, approximate="tanh")
        case "silu":
            y = y * onnx.Sigmoid(y)
        case "sigmoid":
            y = onnx.Sigmoid(y)
        case "tanh":
            y = onnx.Tanh(y)
    return y if residual is None else y + residual


#: Activations whose derivative is known from what they gave.
BY_RESULT = ("relu", "sigmoid", "tanh")


@linear.gradient
def _(
    x: Value,
    weight: Value,
    bias: Value | None,
    residual: Value | None,
    y: Value,
    d_y: Value,
    *,
    activation: str,
    weight_layout: str,
) -> dict[str, Value | None]:
    by_result = activation in BY_RESULT
    if activation != "none" and (residual is not None or not by_result):
        y = linear(x, weight, bias, activation=activation if by_result else "none", weight_layout=weight_layout)
    d_z = d_y if activation == "none" else _derivative(activation, y, d_y)
    d_rows, rows = (onnx.Flatten(value, axis=-1) for value in (d_z, x))  # [rows, N] and [rows, K]
    in_out = weight_layout == "in_out"
    # By Linear too: ONNX Runtime's Gemm does float32 in TF32 on CUDA, and no bfloat16 on the CPU.
    left, right = (rows, d_rows) if in_out else (d_rows, rows)
    return {
        "x": linear(d_z, weight, weight_layout="out_in" if in_out else "in_out"),
        "weight": linear(ops.permute(left, perm=(1, 0)), right),
        "bias": None if bias is None else ops.sum_to_size(d_z, bias),
        "residual": None if residual is None else d_y,
    }


def _derivative(activation: str, value: Value, d_y: Value) -> Value:
    """The gradient before an activation, of the gradient behind it; `value` is what it gave (BY_RESULT) or what it was given.
    Worked out in float32."""
    narrow = d_y.dtype != "float32"
    z, d = (onnx.Cast(v, to=ELEMENT_TYPES["float32"]) if narrow else v for v in (value, d_y))
    match activation:
        case "relu":
            d = onnx.Where(onnx.LessOrEqual(z, 0.0), 0.0, d)
        case "sigmoid":
            d = d * z * (1.0 - z)
        case "tanh":
            d = d * (1.0 - z * z)
        case "silu":
            s = onnx.Sigmoid(z)
            d = d * s * (1.0 + z * (1.0 - s))
        case "gelu":
            d = d * (0.5 * (1.0 + onnx.Erf(z / sqrt(2))) + z * onnx.Exp(-0.5 * z * z) / sqrt(2 * pi))
        case "gelu_tanh":  # which is z sigmoid(2 sqrt(2 / pi) (z + 0.044715 z^3))
            s = onnx.Sigmoid(2 * sqrt(2 / pi) * (z + 0.044715 * z * z * z))
            d = d * s * (1.0 + (1.0 - s) * 2 * sqrt(2 / pi) * (z + 3 * 0.044715 * z * z * z))
    result: Value = onnx.CastLike(d, d_y) if narrow else d
    return result
