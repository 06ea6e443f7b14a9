"""The gradients of ONNX's own operators that stand between ours: arithmetic, matrix products, reshaping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ortops.graph import Value

__all__ = ["RULES"]

#: Of the inputs, the outputs, the gradients of the outputs and the attributes: the gradients of the inputs.
Rule = Callable[
    [Sequence[Value | None], Sequence[Value], Sequence[Value | None], Mapping[str, Any]], Sequence[Value | None]
]

RULES: dict[str, Rule] = {
    "Identity": lambda inputs, outputs, d_outputs, attributes: [d_outputs[0]],
}
