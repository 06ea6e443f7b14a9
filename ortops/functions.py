"""Operators of ours as standard nodes: function bodies that make a model portable, and `lower`, which puts them in place.

A model-local function of an operator's name runs where our library is absent; where it is present its kernel runs. A file
holds one body a name (ONNX Runtime up to 1.26 ignores overloads), but calls of one operator with other attributes or other
optional inputs need other bodies. So the calls of an operator are grouped by what their bodies depend on. The largest group
keeps the name, the others are called Linear_2, Linear_3, .. up to `_declare.VARIANTS` names, all of which the library
knows. Calls of a group beyond that are written as their standard nodes.

What a body depends on is found by building it: the attributes, which inputs there are and the number of outputs, always; the
types and ranks of the inputs only if the decomposition asks for them. Sizes are unknown to it, so that none is baked in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx_ir.passes.common import InlinePass, ShapeInferencePass

from ortops import schemas
from ortops._declare import Op, OpError, find
from ortops._infer import attribute_values, data_type, type_name
from ortops.graph import Graph, Value, numbered

__all__ = ["attach_functions", "lower"]

#: The oldest opset whose operators the decompositions are written in, and that which function bodies have at least.
OLDEST_OPSET = 18
BODY_OPSET = 20

Model = TypeVar("Model", onnx.ModelProto, ir.Model)


@dataclass(frozen=True)
class Call:
    """What the body of one call of an operator may depend on."""

    op: Op
    attributes: tuple[tuple[str, Any], ...]
    present: tuple[bool, ...]
    outputs: int
    types: tuple[str | None, ...] = ()
    ranks: tuple[int | None, ...] = ()

    @staticmethod
    def of(op: Op, node: ir.Node) -> Call:
        inputs = list(node.inputs)
        while inputs and inputs[-1] is None:
            inputs.pop()
        return Call(
            op,
            tuple(attribute_values(op, node, _where(node)).items()),
            tuple(value is not None for value in inputs),
            max(index for index, value in enumerate(node.outputs, 1) if value.name),
            tuple(None if value is None else type_name(value.dtype) for value in inputs),
            tuple(None if value is None or value.shape is None else value.shape.rank() for value in inputs),
        )

    @property
    def op_type(self) -> str:
        """What such a node is called."""
        return self.op.op_type(self.op.bind_types(self.types, dict(self.attributes)) if self.op.result else {})


class Body(Graph):
    """A decomposition as a graph: constants are nodes, and what the decomposition looks at is noted."""

    def __init__(self, call: Call, opset: int) -> None:
        super().__init__(call.op.name, opset=opset)
        self.call = call
        self.asked: set[str] = set()
        arguments: list[Value | None] = []
        for index, (present, type_, rank) in enumerate(zip(call.present, call.types, call.ranks, strict=True)):
            formal = call.op.formal_of(index)
            name = f"{formal.name}{index}" if formal.variadic else formal.name
            value = ir.Value(
                name=self._claim(name),
                type=None if type_ is None else ir.TensorType(data_type(type_)),
                shape=None if rank is None else ir.Shape([None] * rank),
            )
            self._graph.inputs.append(value)
            arguments.append(Value(self, value) if present else None)
        self._close(self._decomposed(call.op, arguments, dict(call.attributes)))

    @property
    def key(self) -> Call:
        """The call less what the body does not depend on: two calls of the same key have the same body."""
        types = self.call.types if "types" in self.asked else ()
        return replace(self.call, types=types, ranks=self.call.ranks if "ranks" in self.asked else ())

    def _decomposed(self, op: Op, arguments: Sequence[Any], attributes: dict[str, Any]) -> tuple[Any, ...]:
        assert op.body is not None
        arguments = [*arguments, *[None] * (len(op.inputs) - len(arguments) - op.inputs[-1].variadic)]
        results = op.body(*arguments, **attributes)
        return results if isinstance(results, tuple) else (results,)

    def _close(self, results: tuple[Any, ...]) -> None:
        """Makes the results the outputs, each by its own name and a value of its own; removes nodes that none of them needs."""
        op = self.call.op
        if len(results) != len(op.outputs) or any(not isinstance(result, Value) for result in results):
            raise OpError(
                f"{op.name}: the decomposition is to give the outputs {', '.join(f.name for f in op.outputs)}, gave {results!r}"
            )
        for formal, result in zip(op.outputs[: self.call.outputs], results, strict=False):
            self.output(result, formal.name if formal.name not in self._fixed_names() else f"{formal.name}_out")
        _remove_unused(self._graph)

    def _fixed_names(self) -> set[str]:
        return {value.name or "" for value in (*self._graph.inputs, *self._graph.outputs)}

    def _asked(self, what: str, value: ir.Value | None = None) -> None:
        self.asked.add(what)
        if value is not None and (value.dtype if what == "types" else value.shape) is None:
            raise OpError(
                f"{self.name}: its decomposition depends on the {what[:-1]} of {value.name}, which is not known"
            )

    def _constant(self, tensor: ir.TensorProtocol, name: str) -> Value:
        node = ir.Node(
            "", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1, name=self._node_name("constant")
        )
        value = node.outputs[0]
        value.name, value.type, value.shape, value.const_value = (
            name,
            ir.TensorType(tensor.dtype),
            ir.Shape(tensor.shape.numpy()),
            tensor,
        )
        self._graph.append(node)
        return Value(self, value)

    def _call(self, op: Op, inputs: Any, keywords: Any, outputs: Sequence[str] | None) -> Any:
        """An operator of ours within a decomposition is decomposed itself."""
        if op.body is None:
            raise OpError(f"{self.name}: its decomposition uses {op.name}, which has none")
        chosen = op.chosen_outputs(outputs)
        arguments, attributes = op.arguments(inputs, keywords)
        values = [None if value is None else Value(self, value) for value in self._op_values(op, arguments)]
        results = self._decomposed(op, values, attributes)
        wanted = tuple(result for formal, result in zip(op.outputs, results, strict=True) if formal.name in chosen)
        return wanted[0] if len(wanted) == 1 else wanted

    # --- the two uses of a body

    def function(self, name: str) -> ir.Function:
        """The body as a model-local function of that name, which says nothing of types and shapes."""
        graph = self._graph.clone()
        for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
            value.type = value.shape = value.const_value = None
        # A node that leaves a default out and one that writes it have the same body: attributes have their values as defaults.
        attributes = [_attr(name, value) for name, value in self.call.attributes if value is not None]
        return ir.Function(schemas.DOMAIN, name, graph=graph, attributes=attributes)

    def replace(self, node: ir.Node, taken: Names) -> None:
        """Puts the body's nodes in the place of the node; the body is used up. Names begin with the node's, and are ones that are
        not taken yet."""
        graph = node.graph
        assert graph is not None
        for inner, outer in zip(self._graph.inputs, node.inputs, strict=False):
            if outer is not None:
                inner.replace_all_uses_with(outer)
        wanted = [(old, new) for old, new in zip(node.outputs, self._graph.outputs, strict=False) if old.name]
        self._graph.outputs.clear()
        self._graph.outputs.extend(new for _, new in wanted)
        _remove_unused(self._graph)
        self._graph.outputs.clear()
        nodes = list(self._graph)
        self._graph.remove(nodes)
        for new in nodes:
            new.name = _claimed(f"{node.name}/{new.name}", taken.nodes)
            for value in new.outputs:
                value.name = _claimed(f"{node.name}/{value.name}", taken.values) if value.name else value.name
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], nodes, [old for old, _ in wanted], [new for _, new in wanted]
        )


@dataclass(frozen=True)
class Names:
    """What a model's nodes and values are called, subgraphs included."""

    nodes: set[str]
    values: set[str]

    @staticmethod
    def of(model: ir.Model) -> Names:
        nodes = list(_graph_nodes(model))
        graphs = {node.graph for node in nodes if isinstance(node.graph, ir.Graph)} | {model.graph}
        values = [value for node in nodes for value in node.outputs]
        values += [value for graph in graphs for value in (*graph.inputs, *graph.initializers.values())]
        return Names({node.name or "" for node in nodes}, {value.name or "" for value in values})


def _claimed(name: str, taken: set[str]) -> str:
    name = numbered(name, taken)
    taken.add(name)
    return name


class Bodies:
    """The bodies of a model's calls, each built once."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self._bodies: dict[Call, Body] = {}

    def of(self, op: Op, node: ir.Node) -> Body:
        call = Call.of(op, node)
        for known in (call, replace(call, types=()), replace(call, ranks=()), replace(call, types=(), ranks=())):
            if known in self._bodies:
                return self._bodies[known]
        body = _body(call, node, self.opset)
        return self._bodies.setdefault(body.key, body)


def _body(call: Call, node: ir.Node, opset: int) -> Body:
    try:
        return Body(call, opset)
    except OpError as error:
        raise OpError(f"{_where(node)} cannot be written in standard nodes: {error}") from error


def attach_functions(model: Model) -> Model:
    """Gives every operator of ours in the model its decomposition as a model-local function; see the head of this module.

    For models that came by our operators in another way than `Graph`, say from the PyTorch exporter. An operator without a
    decomposition goes without; optional outputs that nobody reads are taken off the nodes. An ir.Model is changed in place; of a
    ModelProto a new one is returned.

    Raises:
        OpError: A call is none that the operator takes, or a type or rank that its decomposition needs is not known.
    """
    if isinstance(model, onnx.ModelProto):
        return ir.to_proto(attach_functions(ir.from_proto(model)))
    nodes = _prepare(model)
    bodies = Bodies(max(model.graph.opset_imports.get("", BODY_OPSET), BODY_OPSET))
    taken = Names.of(model)
    groups: dict[tuple[Op, str], dict[Call, list[ir.Node]]] = {}
    for op, node in nodes:
        _drop_unused_outputs(op, node)
        if op.body is None:
            continue
        node.op_type, node.overload = Call.of(op, node).op_type, ""
        groups.setdefault((op, node.op_type), {}).setdefault(bodies.of(op, node).key, []).append(node)
    for (op, op_type), calls in groups.items():
        ranked = sorted(calls.values(), key=len, reverse=True)
        names = schemas.names(op, op_type)
        for name, members in zip(names, ranked, strict=False):
            function = bodies.of(op, members[0]).function(name)
            model.functions[function.identifier()] = function
            for node in members:
                node.op_type = name
        for node in (node for members in ranked[len(names) :] for node in members):
            _body(Call.of(op, node), node, _opset(model, node)).replace(node, taken)
    if nodes:
        model.graph.opset_imports[schemas.DOMAIN] = schemas.VERSION
    _forget_unused(model)
    return model


def lower(model: onnx.ModelProto | ir.Model | str | os.PathLike[str], ops: Iterable[str | Op] | None = None) -> Any:
    """Replaces operators of ours by their decompositions, so that the model has standard nodes only.

    Names of inputs, outputs and nodes, metadata and other nodes stay. Sizes that a model fixes are not baked in.

    Args:
        model: A ModelProto, an ir.Model or a path; it is not changed.
        ops: The operators to replace, or their names; all of them by default.

    Returns:
        A model of the same kind; of a path, a ModelProto (external data stays where it is).

    Raises:
        OpError: An operator has no decomposition, the model's opset is older than what the decomposition is written in, or a type
            or rank that it needs is not known.
    """
    if isinstance(model, ir.Model):
        return lower_in_place(model.clone(), _chooser(ops))
    if isinstance(model, onnx.ModelProto):
        return ir.to_proto(lower_in_place(ir.from_proto(model), _chooser(ops)))
    try:
        loaded = ir.load(model)
    except (DecodeError, UnicodeDecodeError) as error:
        raise OpError(f"lower: {os.fspath(model)}: expected an ONNX model, which it is not ({error})") from None
    return ir.to_proto(lower_in_place(loaded, _chooser(ops)))


def lower_in_place(model: ir.Model, choose: Callable[[Op, ir.Node], bool]) -> ir.Model:
    """Lowers the calls that are chosen; the types of their inputs are known when `choose` is asked."""
    nodes = [(op, node) for op, node in _prepare(model) if choose(op, node)]
    missing = sorted({f"{op.name} ({node.name})" for op, node in nodes if op.body is None})
    if missing:
        raise OpError(f"cannot be lowered, for want of a decomposition: {', '.join(missing)}")
    taken = Names.of(model)
    for op, node in nodes:
        _body(Call.of(op, node), node, _opset(model, node)).replace(node, taken)
    _forget_unused(model)
    return model


def _chooser(ops: Iterable[str | Op] | None) -> Callable[[Op, ir.Node], bool]:
    if ops is None:
        return lambda op, node: True
    chosen = set()
    for item in [ops] if isinstance(ops, str | Op) else ops:
        op = item if isinstance(item, Op) else find(item)
        if op is None:
            raise OpError(f"lower: there is no operator {item}")
        chosen.add(op)
    return lambda op, node: op in chosen


def _prepare(model: ir.Model) -> list[tuple[Op, ir.Node]]:
    """The nodes of our operators, named, and with the types of their inputs as far as inference knows them.

    Functions that hold such nodes are inlined first: within a function types are not known. Our own functions are left alone.
    """

    def ours(node: ir.Node) -> Op | None:
        return find(node.op_type) if node.domain == schemas.DOMAIN else None

    def holds_ours(function: ir.Function) -> bool:
        mine = function.domain == schemas.DOMAIN and find(function.name) is not None
        return not mine and any(ours(node) for node in function.all_nodes())

    if any(holds_ours(function) for function in model.functions.values()):
        InlinePass(holds_ours)(model)
    nodes = [(op, node) for node in _graph_nodes(model) if (op := ours(node)) is not None]
    taken = {node.name for node in _graph_nodes(model)}
    for index, (op, node) in enumerate(nodes):
        if not node.name:
            node.name = next(
                name
                for number in range(index, len(taken) + index + 1)
                if (name := f"{op.__name__}_{number}") not in taken
            )
            taken.add(node.name)
    if any(
        value is not None and (value.dtype is None or value.shape is None) for _, node in nodes for value in node.inputs
    ):
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    return nodes


def _graph_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes of the graph and of its subgraphs."""
    yield from list(model.graph.all_nodes())


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from _graph_nodes(model)
    for function in model.functions.values():
        yield from function.all_nodes()


def _opset(model: ir.Model, node: ir.Node) -> int:
    opset = model.graph.opset_imports.get("", 1)
    if opset < OLDEST_OPSET:
        raise OpError(
            f"{_where(node)} cannot be written in standard nodes of opset {opset}; expected {OLDEST_OPSET} or newer "
            "(onnx.version_converter converts models)"
        )
    return opset


def _forget_unused(model: ir.Model) -> None:
    """Removes functions of our operators that no node calls, and the import of the domain where nothing of it is left."""
    used = {node.op_identifier() for node in _all_nodes(model)}
    for identifier in [
        i for i in model.functions if i[0] == schemas.DOMAIN and i not in used and find(i[1]) is not None
    ]:
        del model.functions[identifier]
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        if all(node.domain != schemas.DOMAIN for node in scope.all_nodes()):
            scope.opset_imports.pop(schemas.DOMAIN, None)


def _remove_unused(graph: ir.Graph) -> None:
    for node in reversed(list(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)


def _drop_unused_outputs(op: Op, node: ir.Node) -> None:
    """An optional output that nobody reads need not be computed."""
    for formal, value in zip(op.outputs, node.outputs, strict=False):
        if formal.optional and not value.uses() and not value.is_graph_output():
            value.name = ""
    node.resize_outputs(max(index for index, value in enumerate(node.outputs, 1) if value.name))


def _attr(name: str, value: Any) -> ir.Attr:
    if isinstance(value, bool):
        value = int(value)
    return ir.convenience.convert_attribute(name, value, ir.AttributeType.INTS if value == () else None)


def _where(node: ir.Node) -> str:
    return f"{node.op_type} (node {node.name})"
