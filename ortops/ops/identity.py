"""The smallest possible operator: the one to copy when you add another (see CONTRIBUTING.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ortops._declare import ALL, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value


@op("x: T[...] -> y: T[...]", name="IdentityCopy", by_size=["T"], T=ALL)
def identity(x: np.ndarray) -> np.ndarray:
    """Copies x."""
    return x


@identity.decomposition
def _(x: Value) -> Value:
    return onnx.Identity(x)


@identity.gradient
def _(d_y: Value) -> Value:
    return d_y
