"""Broadcasts that need not be: a tensor is not repeated in memory for the sake of a node that repeats it by itself.

Three rules, for the standard Expand and for ours:

- An input of a standard operator that broadcasts by definition is taken from before the Expand, if the other inputs
  are sure to give the result its shape.
- So is an input of ours that the shape line lets broadcast (`T<...>`): that does not give results their shape.
- A reduction over axes that were broadcast is one over what was there before, or none: a mean, maximum or minimum of
  equal values is that value, a sum their number times it. Axes that were broadcast and are not reduced are broadcast
  after the reduction.

A rule is used only where it is sure to give the same: by shapes that are known, symbols included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from ortops import schemas
from ortops._declare import find
from ortops._infer import axes
from ortops._shapes import Axis
from ortops.functions import OLDEST_OPSET, Names, _claimed, _forget_unused
from ortops.ops.broadcast import broadcast_to

__all__ = ["remove_broadcasts"]

Model = TypeVar("Model", onnx.ModelProto, ir.Model)

#: Reductions that give x where all values are x, and the one that gives their number times x.
SAME = ("ReduceMean", "ReduceMax", "ReduceMin")
COUNTED = "ReduceSum"

BROADCASTS = re.compile(r"multidirectional \(i\.e\.,? numpy-style\) broadcasting", re.IGNORECASE)


def remove_broadcasts(model: Model) -> Model:
    """Removes Expand and BroadcastTo nodes that feed operators which broadcast by themselves, or reductions; see the head of
    this module.

    Types and shapes are inferred first where they are missing. An ir.Model is changed in place; of a ModelProto a new one is
    returned.
    """
    if isinstance(model, onnx.ModelProto):
        return ir.to_proto(remove_broadcasts(ir.from_proto(model)))
    if any(value.shape is None for node in model.graph.all_nodes() for value in node.outputs if value.name):
        schemas.register()
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    opset = model.graph.opset_imports.get("", 1)
    names = Names.of(model)
    for node in list(model.graph.all_nodes()):
        if node.domain in ("", "ai.onnx") and node.op_type in (*SAME, COUNTED):
            _reduce_before(node, names, opset)
        else:
            _skip_broadcasts(node, opset)
    _forget_unused(model)
    return model


def _broadcast_of(value: ir.Value | None) -> ir.Node | None:
    """The node that made the value by broadcasting."""
    node = None if value is None else value.producer()
    if node is None:
        return None
    standard = node.domain in ("", "ai.onnx") and node.op_type == "Expand"
    ours = node.domain == schemas.DOMAIN and find(node.op_type) is broadcast_to
    return node if standard or ours else None


def _remove_if_unused(values: Iterable[ir.Value | None]) -> None:
    """Removes the nodes and initializers of values that nobody needs any more, and what they alone needed."""
    for value in values:
        if value is None or value.uses() or value.is_graph_output() or value.is_graph_input():
            continue
        node = value.producer()
        if node is None:
            if value.is_initializer() and value.graph is not None:
                del value.graph.initializers[value.name or ""]
        elif node.graph is not None and not any(out.uses() or out.is_graph_output() for out in node.outputs):
            inputs = list(node.inputs)
            node.graph.remove(node, safe=True)
            _remove_if_unused(inputs)


def _source(node: ir.Node) -> ir.Value:
    source = node.inputs[0]
    assert source is not None
    return source


# --- operators that broadcast by themselves


def _skip_broadcasts(node: ir.Node, opset: int) -> None:
    op = find(node.op_type) if node.domain == schemas.DOMAIN else None
    standard = node.domain in ("", "ai.onnx") and _broadcasts(node.op_type, opset)
    for index, value in enumerate(node.inputs):
        made_by = _broadcast_of(value)
        if made_by is None:
            continue
        others = [other for i, other in enumerate(node.inputs) if i != index and other is not None]
        if (op is not None and op.formal_of(index).broadcast) or (standard and _is_given(made_by, others)):
            node.replace_input_with(index, _source(made_by))
            _remove_if_unused(made_by.outputs)


def _broadcasts(op_type: str, opset: int) -> bool:
    """Whether ONNX's definition says so."""
    if not onnx.defs.has(op_type):
        return False
    try:
        return bool(BROADCASTS.search(onnx.defs.get_schema(op_type, opset, "").doc or ""))
    except onnx.defs.SchemaError:
        return False


def _is_given(made_by: ir.Node, others: Sequence[ir.Value]) -> bool:
    """Whether the other values have the size, at each axis that was broadcast."""
    source, result = axes(_source(made_by).shape), axes(made_by.outputs[0].shape)
    if source is None or result is None:
        return False
    shapes = [axes(other.shape) for other in others]
    return all(
        _equal(_from_back(source, back), size) or any(_equal(_from_back(shape, back), size) for shape in shapes)
        for back, size in enumerate(reversed(result), 1)
    )


def _from_back(shape: Sequence[Axis] | None, back: int) -> Axis:
    return None if shape is None or back > len(shape) else shape[-back]


def _equal(a: Axis, b: Axis) -> bool:
    return a is not None and a == b


# --- reductions


def _reduce_before(node: ir.Node, names: Names, opset: int) -> None:
    made_by = _broadcast_of(node.inputs[0])
    graph = node.graph
    if made_by is None or graph is None or opset < OLDEST_OPSET:
        return
    source, target = _source(made_by), made_by.inputs[1]
    before, full = axes(source.shape), axes(made_by.outputs[0].shape)
    reduced = None if full is None else _reduced(node, len(full))
    if before is None or full is None or not reduced or source.dtype is None:
        return
    missing = len(full) - len(before)
    padded: list[Axis] = [*[None] * missing, *before]
    repeated = [axis for axis in reduced if axis < missing or (padded[axis] == 1 and full[axis] != 1)]
    rest = [axis for axis in reduced if axis not in repeated]
    if not repeated or not all(_equal(padded[axis], full[axis]) for axis in rest):
        return  # whether it was broadcast is not known
    count = 1
    for axis in repeated:
        size = full[axis]
        if not isinstance(size, int) or size == 0:  # of no values there is no mean
            return
        count *= size
    numpy_type = source.dtype.numpy()
    if node.op_type == COUNTED and float(np.asarray(count).astype(numpy_type)) != count:
        return  # a number that 16 bits do not hold, say
    kept = [axis for axis in range(len(full)) if axis not in reduced]
    repeats_kept = any(axis < missing or not _equal(padded[axis], full[axis]) for axis in kept)
    keep = bool(node.attributes.get_int("keepdims", 1))
    if repeats_kept and not _is_known(target):
        return

    inside = _Inside(node, names)
    y = source
    inner = [axis - missing for axis in reduced if axis >= missing]  # one of size 1 is reduced, too: it must go
    if inner:
        y = inside.reduce(y, inner, keep)
    if count != 1 and node.op_type == COUNTED:
        y = inside.append("Mul", [y, inside.constant(np.asarray(count).astype(numpy_type))])
    if repeats_kept:
        sizes = _sizes(target, len(full))
        shape = [1 if axis in reduced else sizes[axis] for axis in range(len(full)) if keep or axis not in reduced]
        y = inside.append("Expand", [y, inside.constant(np.asarray(shape, np.int64))])
    elif keep and missing:
        y = inside.append("Unsqueeze", [y, inside.constant(np.arange(missing))])
    if not inside.nodes:  # no axis is left, and no number of them counts
        y = inside.append("Identity", [y])
    y.type, y.shape = node.outputs[0].type, node.outputs[0].shape
    inputs = list(node.inputs)
    ir.convenience.replace_nodes_and_values(graph, node, [node], inside.nodes, [node.outputs[0]], [y])
    _remove_if_unused(inputs)


def _reduced(node: ir.Node, rank: int) -> list[int] | None:
    """The axes that the node reduces, in order; None where they are not known."""
    given: Sequence[int] | None = None
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        constant = ir.convenience.get_const_tensor(node.inputs[1])
        if constant is None:
            return None
        given = [int(axis) for axis in constant.numpy().ravel()]
    if not given:
        return [] if node.attributes.get_int("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({axis % rank for axis in given})


def _is_known(target: ir.Value | None) -> bool:
    return target is not None and ir.convenience.get_const_tensor(target) is not None


def _sizes(target: ir.Value | None, rank: int) -> list[int]:
    """The constant that was broadcast to, with 1 where it says nothing of an axis."""
    assert target is not None
    constant = ir.convenience.get_const_tensor(target)
    assert constant is not None
    sizes = [int(size) for size in constant.numpy().ravel()]
    return [1] * (rank - len(sizes)) + sizes


class _Inside:
    """New nodes that take the place of one, named after it."""

    def __init__(self, node: ir.Node, names: Names) -> None:
        self.node = node
        self.names = names
        self.nodes: list[ir.Node] = []

    def append(self, op_type: str, inputs: Sequence[ir.Value], *attributes: ir.Attr) -> ir.Value:
        name = _claimed(f"{self.node.name}/{op_type}", self.names.nodes)
        made = ir.Node("", op_type, inputs, attributes, num_outputs=1, name=name)
        made.outputs[0].name = _claimed(f"{self.node.name}/{op_type}", self.names.values)
        self.nodes.append(made)
        return made.outputs[0]

    def constant(self, array: np.ndarray) -> ir.Value:
        tensor = ir.tensor(array)
        value = self.append("Constant", [], ir.AttrTensor("value", tensor))
        value.type, value.shape, value.const_value = ir.TensorType(tensor.dtype), ir.Shape(array.shape), tensor
        return value

    def reduce(self, value: ir.Value, reduced: Sequence[int], keep: bool) -> ir.Value:
        """As the node does, over other axes."""
        axes_value = self.constant(np.asarray(reduced, np.int64))
        return self.append(self.node.op_type, [value, axes_value], ir.AttrInt64("keepdims", int(keep)))
