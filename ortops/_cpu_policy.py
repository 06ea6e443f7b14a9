"""Where stock ONNX Runtime is faster on the CPU: calls that a CPU session writes in standard nodes instead.

ONNX Runtime packs constant weights beforehand for its own nodes, but not for the kernels that ours reach through InvokeOp.
Every line here is a measurement; see benchmarks/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["prefers_stock"]

#: By operator: why, with the figures.
FASTER_IN_STOCK: dict[str, str] = {}


def prefers_stock(op_name: str, types: Sequence[str | None], attributes: Mapping[str, Any]) -> str | None:
    """The reason why this call is better written in standard nodes in a session on the CPU; None if our kernel is to run."""
    return FASTER_IN_STOCK.get(op_name)
