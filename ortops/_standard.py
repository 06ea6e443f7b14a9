"""Standard ONNX operators for decompositions: `onnx.Softmax(x, axis=-1)` appends the node to the graph that x belongs to."""

from __future__ import annotations

from typing import Any

__all__ = ["onnx"]


class _Standard:
    """Makes a function of every operator name; it finds the graph by the values it is given."""

    def __getattr__(self, op_type: str) -> Any:
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def append(*inputs: Any, **attributes: Any) -> Any:
            for value in inputs:
                if hasattr(value, "__onnx_call__"):
                    return value.__onnx_call__(op_type, inputs, attributes)
            raise TypeError(f"onnx.{op_type}: none of the inputs is a graph value; use graph.onnx.{op_type}")

        append.__name__ = append.__qualname__ = op_type
        return append


onnx = _Standard()
