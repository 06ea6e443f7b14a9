"""Reverse-mode differentiation of a graph under construction: the backward nodes are appended to the same graph.

    loss = ...
    d_weight, d_bias = ortops.gradients([loss], [weight, bias])

An operator of ours brings its own gradient (`@f.gradient`); the rules for ONNX's operators are in training/standard.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ortops import schemas
from ortops._declare import Op, OpError, _more_exact, find
from ortops._infer import attribute_values, data_type, infer_op, ir_shape, type_name
from ortops._infer import axes as axes_of
from ortops.graph import Graph, Value
from ortops.training.standard import RULES, Call

__all__ = ["gradients"]


def gradients(
    outputs: Value | Sequence[Value], inputs: Value | Sequence[Value], d_outputs: Sequence[Value | None] | None = None
) -> list[Value | None]:
    """Appends the nodes that compute the gradients of `outputs` with respect to `inputs`.

    Args:
        outputs: What is differentiated. Several are summed, each weighted by its entry of `d_outputs`.
        inputs: Values of the graph, of a floating type: inputs, constants, or results of nodes.
        d_outputs: The gradient that arrives at each output, of its shape and type; ones by default.

    Returns:
        For each input its gradient, of its shape and type; None if no output depends on it.

    Raises:
        OpError: A node on the way has no gradient. The text names it.
    """
    outputs, inputs = _listed(outputs), _listed(inputs)
    if not outputs:
        raise OpError("gradients: expected at least one output")
    graph = outputs[0].graph
    for kind, values in (("outputs", outputs), ("inputs", inputs)):
        for value in values:
            graph._check_own(value)
            if not _may_flow(value._ir):
                raise OpError(f"gradients: {kind}: expected values of a floating type, got {value!r}")
    given = [None] * len(outputs) if d_outputs is None else list(d_outputs)
    if len(given) != len(outputs):
        raise OpError(f"gradients: d_outputs: expected {len(outputs)} of them, as there are outputs, got {len(given)}")
    for output, d_output in zip(outputs, given, strict=True):
        if d_output is not None:
            graph._check_own(d_output)
            _check_like(output, d_output)
    nodes = list(graph._graph)
    depends = {value._ir for value in inputs}
    for node in nodes:
        if any(value in depends for value in node.inputs):
            depends.update(value for value in node.outputs if _may_flow(value))
    arrived: dict[ir.Value, list[Value]] = {}
    for output, d_output in zip(outputs, given, strict=True):
        arrived.setdefault(output._ir, []).append(_ones(output) if d_output is None else d_output)
    for node in reversed(nodes):
        if not any(value in arrived and value in depends for value in node.outputs):
            continue
        if not any(value in depends for value in node.inputs):
            continue
        with graph.name_scope(f"gradient/{node.name}"):
            d_values = [_total(arrived, value) for value in node.outputs]
            for source, d_value in zip(node.inputs, _of_node(graph, node, d_values), strict=False):
                if d_value is not None and source is not None and source in depends:
                    _give_shape(d_value._ir, source)
                    arrived.setdefault(source, []).append(d_value)
    results = [_total(arrived, value._ir) for value in inputs]
    kept = {value._ir for value in results if value is not None}
    for node in reversed(list(graph._graph)[len(nodes) :]):  # gradients that nobody asked for
        if not any(value.uses() or value in kept for value in node.outputs):
            graph._discard(node)
    return results


def _listed(values: Value | Sequence[Value]) -> list[Value]:
    return [values] if isinstance(values, Value) else list(values)


def _may_flow(value: ir.Value) -> bool:
    """Whether a gradient may pass through the value: it is of a floating type, or of one that is not known."""
    return value.dtype is None or value.dtype.is_floating_point()


def _check_like(output: Value, d_output: Value) -> None:
    shape, d_shape = output.shape, d_output.shape
    clash = (shape is not None and d_shape is not None) and (
        len(shape) != len(d_shape)
        or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(shape, d_shape, strict=True))
    )
    if clash or (output.dtype and d_output.dtype and output.dtype != d_output.dtype):
        raise OpError(f"gradients: d_outputs: expected the type and shape of {output!r}, got {d_output!r}")


def _ones(value: Value) -> Value:
    graph = value.graph
    one = graph.constant(1.0, dtype=value.dtype)
    if value.shape == ():
        return one
    ones: Value = graph.onnx.Expand(one, graph.onnx.Shape(value))
    _give_shape(ones._ir, value._ir)
    return ones


def _give_shape(d_value: ir.Value, value: ir.Value) -> None:
    """Writes down that a gradient has the shape of its value, where inference did not find it out."""
    shape, d_shape = axes_of(value.shape), axes_of(d_value.shape)
    if shape is not None and d_value.producer() is not None:
        known = shape if d_shape is None else tuple(map(_more_exact, d_shape, shape))
        d_value.shape = ir_shape(known)


def _total(arrived: dict[ir.Value, list[Value]], value: ir.Value) -> Value | None:
    terms = arrived.get(value)
    if not terms:
        return None
    while len(terms) > 1:
        terms[:2] = [terms[0] + terms[1]]
    return terms[0]


def _of_node(graph: Graph, node: ir.Node, d_outputs: list[Value | None]) -> Sequence[Value | None]:
    """The gradients of the node's inputs, in their order."""
    where = f"{node.op_type} (node {node.name})"
    if node.domain == schemas.DOMAIN and (op := find(node.op_type)) is not None:
        if op.backward is None:
            raise OpError(f"{where}: it has no gradient")
        return _of_ours(graph, op, node, d_outputs, where)
    rule = None if node.domain else RULES.get(node.op_type)
    if rule is None:
        name = f"{node.domain}.{node.op_type}" if node.domain else f"onnx.{node.op_type}"
        raise OpError(
            f"{where}: no gradient is known for {name}; known are {', '.join(sorted(RULES))} and most operators of ortops"
        )
    result = rule(
        Call(
            where,
            [None if value is None else Value(graph, value) for value in node.inputs],
            [Value(graph, value) for value in node.outputs],
            d_outputs,
            {name: attribute.value for name, attribute in node.attributes.items()},
        )
    )
    return [result] if isinstance(result, Value) else result


def _of_ours(graph: Graph, op: Op, node: ir.Node, d_outputs: list[Value | None], where: str) -> Sequence[Value | None]:
    assert op.backward is not None
    attributes = attribute_values(op, node, where)
    parameters = inspect.signature(op.backward).parameters.values()
    wanted = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    needed = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY and p.default is p.empty]
    _give_outputs(graph, op, node, needed, attributes)
    known: dict[str, Any] = {}
    for index, formal in enumerate(op.inputs):
        values = [None if value is None else Value(graph, value) for value in node.inputs[index:]]
        known[formal.name] = values if formal.variadic else values[0] if values else None
    for index, formal in enumerate(op.outputs):
        present = index < len(node.outputs) and node.outputs[index].name
        known[formal.name] = Value(graph, node.outputs[index]) if present else None
        known[f"d_{formal.name}"] = d_outputs[index] if index < len(d_outputs) else None
    result = op.backward(
        *[known[name] for name in wanted],
        **{p.name: attributes[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY},
    )
    if not isinstance(result, Mapping):
        (only,) = op.differentiable
        result = {only: result}
    ordered: list[Value | None] = []
    for formal in op.inputs:
        gradient = result.get(formal.name)
        ordered += (gradient or []) if formal.variadic else [gradient]
    return ordered


def _give_outputs(graph: Graph, op: Op, node: ir.Node, wanted: Sequence[str], attributes: Mapping[str, Any]) -> None:
    """Has the node give the optional outputs that its gradient reads."""
    missing = [
        index
        for index, formal in enumerate(op.outputs)
        if formal.name in wanted and (index >= len(node.outputs) or not node.outputs[index].name)
    ]
    if not missing:
        return
    if max(missing) >= len(node.outputs):
        before = len(node.outputs)
        node.resize_outputs(max(missing) + 1)
        for value in node.outputs[before:]:
            value.name = ""
    types = [None if value is None else type_name(value.dtype) for value in node.inputs]
    shapes = [None if value is None else axes_of(value.shape) for value in node.inputs]
    held = {f.name: None for f, value in zip(op.inputs, node.inputs, strict=False) if f.host and value is not None}
    inferred = infer_op(op, types, shapes, attributes, values=held)
    for index in missing:
        value = node.outputs[index]
        type_, shape = inferred[index]
        value.name = graph._unused(f"{node.name}.{op.outputs[index].name}", value)
        value.type = None if type_ is None else ir.TensorType(data_type(type_))
        value.shape = ir_shape(shape)
