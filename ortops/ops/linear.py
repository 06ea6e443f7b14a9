"""Matrix products with what surrounds them."""

from __future__ import annotations

from math import erf as scalar_erf
from math import pi, sqrt
from typing import Literal

import numpy as np

from ortops._declare import FLOATS, op

erf = np.vectorize(scalar_erf, otypes=[np.float64])

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": lambda x: sigmoid(x),
    "tanh": np.tanh,
}


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


@op(
    {
        "in_out": "x: T[... K], weight: T[K N], bias: T?[N], residual: T?[... N] -> y: T[... N]",
        "out_in": "x: T[... K], weight: T[N K], bias: T?[N], residual: T?[... N] -> y: T[... N]",
    },
    name="Linear",
    layout="weight_layout",
    T=FLOATS,
)
def linear(
    x,
    weight,
    bias=None,
    residual=None,
    *,
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"] = "none",
    weight_layout: Literal["in_out", "out_in"] = "in_out",
):
    """activation(x weight + bias) + residual: a matrix product and what comes after it, in one operator.

    The weight is [in, out] as ONNX's MatMul has it, or [out, in] as PyTorch's Linear. `gelu` is the exact one with the error
    function, `gelu_tanh` its approximation (Hendrycks & Gimpel, 2016). Products are accumulated in float32.
    """
    y = x @ (weight if weight_layout == "in_out" else weight.T)
    y = ACTIVATIONS[activation](y if bias is None else y + bias)
    return y if residual is None else y + residual
