"""Where stock ONNX Runtime is faster on the CPU: calls that a CPU session writes in standard nodes instead.

ONNX Runtime packs constant weights beforehand for its own nodes, but not for the kernels that ours reach through InvokeOp; and
some calls are one fused node of its own. Every rule here is a measurement by benchmarks/cpu.py. Sizes are known only when a
session runs, so a rule holds for all of them. What is not here runs by our kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortops._shapes import Axis

__all__ = ["prefers_stock"]


@dataclass(frozen=True)
class Call:
    """The types of the inputs that are there (None where unknown), attributes with defaults filled in, outputs that are read, the
    inputs' shapes (None: of unknown rank)."""

    inputs: Mapping[str, str | None]
    attributes: Mapping[str, Any]
    outputs: Collection[str]
    shapes: Mapping[str, Sequence[Axis] | None]


@dataclass(frozen=True)
class Rule:
    """Calls of an operator for which stock was measured to be faster, and the figures."""

    applies: Callable[[Call], bool]
    reason: str


def _is_bare_norm(call: Call) -> bool:
    return "residual" not in call.inputs and not {"mean", "rstd"} & set(call.outputs)


def _is_bare_attention(call: Call) -> bool:
    """Its standard nodes do not check that the numbers of heads go together: here they are known to."""
    if "mask" in call.inputs or call.attributes["causal"] != "none" or call.attributes["layout"] != "BHSD":
        return False
    heads = {(call.shapes[name] or (None, None))[1] for name in ("query", "key", "value")}
    return len(heads) == 1 and isinstance(heads.pop(), int) and set(call.inputs.values()) == {"float32"}


#: The figures are times of ours / stock on a processor with AVX-512, 1 thread, onnxruntime 1.31.1. What was measured, too, and
#: is left to our kernels: LayerNorm with a residual (0.8 to 1.1; float16 0.5 to 1.3), RMSNorm (0.6 to 1.0), attention with a
#: mask, causal, in the layout BSHD or of float16 (0.2 to 1.1 from 16 positions on), Embedding with a residual (0.6 to 0.9),
#: SequencePool (0.03 to 0.3).
RULES: dict[str, Rule] = {
    "Linear": Rule(
        lambda call: True,
        "onnxruntime packs constant weights beforehand; our kernel took 1.0 to 2.1 times as long (float16: 0.7 to 2.8), "
        "the most with few rows",
    ),
    "LayerNorm": Rule(
        _is_bare_norm,
        "without a residual it is one node of onnxruntime's; our kernel took 1.0 to 1.4 times as long (float16: 1.1 to 1.7)",
    ),
    "ScaledDotProductAttention": Rule(
        _is_bare_attention,
        "without a mask its products are onnxruntime's; our kernel took 1.0 to 1.7 times as long, the most with 16 positions",
    ),
    "Embedding": Rule(
        lambda call: "residual" not in call.inputs,
        "without a residual it is one node of onnxruntime's; our kernel took 1.0 to 1.2 times as long, the most with few rows",
    ),
}


def prefers_stock(
    op_name: str,
    inputs: Mapping[str, str | None],
    attributes: Mapping[str, Any],
    outputs: Collection[str],
    shapes: Mapping[str, Sequence[Axis] | None],
) -> str | None:
    """The reason why this call is better written in standard nodes in a session on the CPU; None if our kernel is to run."""
    rule = RULES.get(op_name)
    # The standard operators have no kernels for bfloat16 on the CPU: stock is not slower then, it does not run.
    if rule is None or {"bfloat16", None} & set(inputs.values()):
        return None
    return rule.reason if rule.applies(Call(inputs, attributes, outputs, shapes)) else None
