"""Building ONNX graphs in which standard operators and ours mix.

    g = ortops.Graph("classifier")
    x = g.input("x", "float32", ["batch", 128])
    h = ops.linear(x, weight, bias, activation="gelu")     # ours: numpy arrays become initializers
    y = g.onnx.Softmax(h, axis=-1)                         # ONNX's own; also as onnx.Softmax of ortops._standard
    g.output(y, "y")
    g.save("classifier.onnx")

Names, types, shapes and attributes are checked as each node is appended, so that an error points at the caller's line.
Nodes with subgraphs (If, Loop, Scan) cannot be built yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (numpy then knows bfloat16 and its kin by name)
import numpy as np
import onnx
import onnx_ir
from onnx import ModelProto
from onnx.defs import OpSchema
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ortops import __version__, schemas
from ortops._declare import ELEMENT_TYPES, Op, OpError
from ortops._infer import axes, data_type, infer_op, infer_standard, ir_shape, operator_schema, type_name
from ortops._shapes import Axis

__all__ = ["Graph", "Value"]

#: ONNX Runtime 1.18 to 1.31 run this opset and this IR version.
OPSET = 20
IR_VERSION = 10

#: Unnamed constants up to this many bytes are shared by all who use equal ones.
SHARED_BYTES = 1024
#: From here on initializers go to a file of their own: protobuf ends at 2 GiB, with all else that the model holds.
EXTERNAL_BYTES = 1_500_000_000


class Value:
    """A value of a graph: the result of a node, an input, or a constant.

    Operators (+ - * / @ ** and unary -) append standard nodes; numpy arrays and numbers beside a value become constants.
    """

    __slots__ = ("_graph", "_ir")
    __array_ufunc__ = None  # numpy leaves `array + value` to the value

    def __init__(self, graph: Graph, value: onnx_ir.Value) -> None:
        self._graph = graph
        self._ir = value

    @property
    def graph(self) -> Graph:
        return self._graph

    @property
    def name(self) -> str:
        return self._ir.name or ""

    @property
    def dtype(self) -> str | None:
        """The element type by its numpy name ("float32", "bfloat16", "string", ..); None if it is not known."""
        self._graph._asked("types", self._ir)
        return type_name(self._ir.dtype)

    @property
    def shape(self) -> tuple[Axis, ...] | None:
        """The sizes: a number, a symbol (str) or None each; None if not even the rank is known."""
        self._graph._asked("ranks", self._ir)
        return axes(self._ir.shape)

    @property
    def rank(self) -> int | None:
        shape = self.shape
        return None if shape is None else len(shape)

    def __repr__(self) -> str:
        shape = axes(self._ir.shape)
        sizes = ".." if shape is None else ", ".join("?" if axis is None else str(axis) for axis in shape)
        return f"<{self.name}: {type_name(self._ir.dtype) or '?'}[{sizes}]>"

    def __ortops_call__(
        self, op: Op, inputs: Sequence[Any], attributes: Mapping[str, Any], outputs: Sequence[str] | None
    ) -> Any:
        return self._graph._call(op, inputs, attributes, outputs)

    def __onnx_call__(self, op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        return self._graph._standard(op_type, inputs, attributes)

    def __add__(self, other: Any) -> Value:
        return self._binary("Add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self._binary("Add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self._binary("Sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self._binary("Sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self._binary("Mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self._binary("Mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self._binary("Div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self._binary("Div", other, self)

    def __matmul__(self, other: Any) -> Value:
        return self._binary("MatMul", self, other)

    def __rmatmul__(self, other: Any) -> Value:
        return self._binary("MatMul", other, self)

    def __pow__(self, other: Any) -> Value:
        return self._binary("Pow", self, other)

    def __rpow__(self, other: Any) -> Value:
        return self._binary("Pow", other, self)

    def __neg__(self) -> Value:
        result: Value = self._graph._standard("Neg", (self,), {})
        return result

    def _binary(self, op_type: str, left: Any, right: Any) -> Value:
        result: Value = self._graph._standard(op_type, (left, right), {})
        return result


class Graph:
    """A graph under construction.

    Args:
        name: The graph's name in the file.
        opset: The version of ONNX's own operators. ONNX Runtime 1.18 takes 21 at most, 1.31 takes 26.
        ir_version: The version of the file format. ONNX Runtime 1.18 takes 10 at most, 1.31 takes 13.
    """

    def __init__(self, name: str = "graph", *, opset: int = OPSET, ir_version: int = IR_VERSION) -> None:
        if not 1 <= opset <= onnx.defs.onnx_opset_version():
            raise OpError(f"opset: expected 1 to {onnx.defs.onnx_opset_version()}, got {opset}")
        self.opset = opset
        self.ir_version = ir_version
        self._graph = onnx_ir.Graph([], [], nodes=[], opset_imports={"": opset}, name=name)
        self._scope = ""
        self._value_names: dict[str, onnx_ir.Value | None] = {}
        self._node_names: set[str] = set()
        self._shared: dict[tuple[Any, ...], Value] = {}
        self._fixed: set[str] = set()

    @property
    def name(self) -> str:
        return self._graph.name or ""

    # --- values

    def input(self, name: str, dtype: Any, shape: Sequence[Axis] | None = None) -> Value:
        """Adds an input. `shape` has a number, a symbol such as "batch", or None for each axis; None for a shape that is not known."""
        for size in shape or ():
            if not (size is None or isinstance(size, str) or (isinstance(size, int | np.integer) and size >= 0)):
                raise OpError(
                    f"graph {self.name}: input {name}: expected sizes that are numbers from 0 on, names or None, got {size!r}"
                )
        value = onnx_ir.Value(name=self._claim(name), type=onnx_ir.TensorType(data_type(dtype)), shape=ir_shape(shape))
        self._graph.inputs.append(value)
        return Value(self, value)

    def constant(self, array: Any, name: str | None = None, dtype: Any = None) -> Value:
        """Adds a constant: a numpy array (ml_dtypes' types too), numbers, strings, or an onnx_ir tensor, whose data is not copied.

        Without a name, small constants that are equal are one.
        """
        tensor = _tensor(array, dtype)
        if name is not None:
            return self._constant(tensor, self._claim(name))
        if tensor.nbytes > SHARED_BYTES:
            return self._constant(tensor, self._unused(self._scope + "constant"))
        key = (tensor.dtype, tuple(tensor.shape), _content(tensor))
        if key not in self._shared:
            self._shared[key] = self._constant(tensor, self._unused("constant"))
        return self._shared[key]

    def output(self, value: Value, name: str | None = None, shape: Sequence[Axis] | None = None) -> Value:
        """Makes the value an output, by that name; `shape`, if given, names or fixes its sizes. Returns the value as it is now called."""
        self._check_own(value)
        if name is None:
            name = value.name
        known = value._ir.is_graph_input() or value._ir.is_initializer() or value._ir.is_graph_output()
        if known:
            value = self.onnx.Identity(value)
        if shape is not None:
            value._ir.shape = ir_shape(self._agreed(name, axes(value._ir.shape), shape))
        if value.name != name:
            value._ir.name = self._claim(name, value._ir)
        self._fixed.add(name)
        self._graph.outputs.append(value._ir)
        return value

    @staticmethod
    def _agreed(name: str, inferred: tuple[Axis, ...] | None, given: Sequence[Axis]) -> Sequence[Axis]:
        if inferred is None:
            return given
        clash = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(inferred, given, strict=False))
        if clash or len(inferred) != len(given):
            raise OpError(f"output {name}: expected the shape {list(inferred)}, got {list(given)}")
        return [a if b is None or isinstance(a, int) else b for a, b in zip(inferred, given, strict=True)]

    @contextmanager
    def name_scope(self, name: str) -> Iterator[None]:
        """Nodes and values that are made inside are called `name/..`; scopes nest."""
        before = self._scope
        self._scope = f"{before}{name}/"
        try:
            yield
        finally:
            self._scope = before

    # --- nodes

    @property
    def onnx(self) -> _Onnx:
        """ONNX's own operators: `g.onnx.Softmax(x, axis=-1)`, `g.onnx.Split(x, outputs=3, axis=1, num_outputs=3)`."""
        return _Onnx(self)

    def op(
        self,
        op_type: str,
        *inputs: Any,
        domain: str,
        outputs: int = 1,
        types: Sequence[Any] | None = None,
        shapes: Sequence[Sequence[Axis] | None] | None = None,
        version: int = 1,
        **attributes: Any,
    ) -> Any:
        """Appends a node of any other domain, whose schema is not known here.

        Args:
            op_type: The operator.
            inputs: Values, arrays, or None where an optional input is absent.
            domain: Such as "com.microsoft" or "ai.onnx.contrib".
            outputs: How many there are.
            types: The type of each output, if known.
            shapes: The shape of each output, if known.
            version: The domain's opset.
            attributes: By name; None ones are left out.

        Returns:
            One value, or a tuple of them.
        """
        values = [None if item is None else self._value(item) for item in inputs]
        given = onnx_ir.convenience.convert_attributes(
            {name: value for name, value in attributes.items() if value is not None}
        )
        node = self._append(domain, op_type, op_type, values, given, [f"output{i}" for i in range(outputs)])
        for attribute in given:  # what a subgraph uses is imported where the model's imports are
            if attribute.type == onnx_ir.AttributeType.GRAPH:
                for name, imported in attribute.as_graph().opset_imports.items():
                    self._graph.opset_imports.setdefault(name, imported)
        for index, value in enumerate(node.outputs):
            value.type = onnx_ir.TensorType(data_type(types[index])) if types else None
            value.shape = ir_shape(shapes[index]) if shapes else None
        self._graph.opset_imports.setdefault(domain, version)
        return self._results(node.outputs)

    def _call(self, op: Op, inputs: Sequence[Any], keywords: Mapping[str, Any], outputs: Sequence[str] | None) -> Any:
        """Appends a node of an operator of ours (see Op.__call__)."""
        chosen = op.chosen_outputs(outputs)
        given_inputs, attributes = op.arguments(inputs, keywords)
        values = self._op_values(op, given_inputs)
        types = [None if value is None else type_name(value.dtype) for value in values]
        shapes = [None if value is None else axes(value.shape) for value in values]
        held = {
            formal.name: value.const_value.numpy().ravel().tolist() if value.const_value is not None else None
            for formal, value in zip(op.inputs, values, strict=False)
            if formal.host and value is not None
        }
        inferred = infer_op(op, types, shapes, attributes, values=held)
        last = max(index for index, formal in enumerate(op.outputs) if formal.name in chosen)
        names = [formal.name if formal.name in chosen else "" for formal in op.outputs[: last + 1]]
        op_type = op.op_type(op.bind_types(types, attributes))
        node = self._append(schemas.DOMAIN, op_type, op.__name__, values, _attributes(op, attributes), names)
        for value, (type_, shape) in zip(node.outputs, inferred, strict=False):
            value.type = None if type_ is None else onnx_ir.TensorType(data_type(type_))
            value.shape = ir_shape(shape)
        self._graph.opset_imports[schemas.DOMAIN] = schemas.VERSION
        return self._results(value for value, name in zip(node.outputs, names, strict=True) if name)

    def _op_values(self, op: Op, inputs: Sequence[Any]) -> list[onnx_ir.Value | None]:
        """The inputs as values. A number gets the type that the others give to its type variable."""
        known = [item._ir.dtype if isinstance(item, Value) else None for item in inputs]
        known = [
            onnx_ir.DataType.from_numpy(item.dtype) if isinstance(item, np.ndarray) else k
            for k, item in zip(known, inputs, strict=True)
        ]
        bound: dict[str, Any] = {name: name for name in ELEMENT_TYPES}
        for index, type_ in enumerate(known):
            if type_ is not None:
                bound.setdefault(op.formal_of(index).type, type_)
        return [
            None if item is None else self._value(item, bound.get(op.formal_of(index).type))
            for index, item in enumerate(inputs)
        ]

    def _standard(self, op_type: str, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Appends a node of a standard operator; `outputs` among the keywords says how many outputs it is to have."""
        schema = operator_schema(op_type, self.opset)
        attributes = dict(keywords)
        outputs = attributes.pop("outputs", max(1, schema.min_output))
        if not isinstance(outputs, int) or not 1 <= outputs <= schema.max_output:
            raise OpError(f"onnx.{op_type}: outputs: expected a number up to {schema.max_output}, got {outputs!r}")
        if not schema.min_input <= len(inputs) <= schema.max_input:
            counts = (
                f"{schema.min_input}"
                if schema.min_input == schema.max_input
                else f"{schema.min_input} to {schema.max_input}"
            )
            raise OpError(f"onnx.{op_type}: expected {counts} inputs, got {len(inputs)}")
        values = self._standard_values(schema, inputs)
        node = self._append(
            "",
            op_type,
            op_type,
            values,
            _standard_attributes(schema, attributes),
            [_output_name(schema, index) for index in range(outputs)],
        )
        try:
            infer_standard(node, schema, self.opset)
        except OpError:
            self._discard(node)
            raise
        return self._results(node.outputs)

    def _standard_values(self, schema: OpSchema, inputs: Sequence[Any]) -> list[onnx_ir.Value | None]:
        kinds = [schema.inputs[min(index, len(schema.inputs) - 1)].type_str for index in range(len(inputs))]
        bound = {kind: item._ir.dtype for kind, item in zip(kinds, inputs, strict=True) if isinstance(item, Value)}
        for kind, item in zip(kinds, inputs, strict=True):
            if isinstance(item, np.ndarray):
                bound.setdefault(kind, onnx_ir.DataType.from_numpy(item.dtype))
        return [
            None if item is None else self._value(item, bound.get(kind))
            for kind, item in zip(kinds, inputs, strict=True)
        ]

    # --- the model

    def ir(self, *, functions: bool = True) -> onnx_ir.Model:
        """The model in onnx_ir's form; tensors are shared with this graph, all else is a copy.

        `functions` gives each operator of ours its decomposition as a model-local function, so that the model also runs where the
        library is absent. An operator that has no decomposition goes without. Nodes and constants that nothing reads are left out.
        """
        if not self._graph.outputs:
            raise OpError(f"graph {self.name}: it has no outputs; g.output(value, name) makes a value one")
        model = onnx_ir.Model(
            self._graph.clone(), ir_version=self.ir_version, producer_name="ortops", producer_version=__version__
        )
        # ONNX Runtime runs what nobody reads: a forward node, say, of which only the gradient was wanted.
        RemoveUnusedNodesPass()(model)
        if functions:
            from ortops.functions import attach_functions

            attach_functions(model)
        return model

    def build(self, *, functions: bool = True) -> ModelProto:
        """The model as a protobuf, which holds 2 GiB at most: `save` knows no such bound. See `ir` for `functions`."""
        if self._initializer_bytes() >= 2**31:
            raise OpError(
                f"{self.name}: {self._initializer_bytes() / 2**30:.1f} GiB of constants do not fit in one protobuf; use save()"
            )
        proto: ModelProto = onnx_ir.to_proto(self.ir(functions=functions))
        return proto

    def save(self, path: str | os.PathLike[str], *, external_data: bool | None = None, functions: bool = True) -> None:
        """Writes the model; with `external_data` (by default from 1.5 GB on) large constants go to `<path>.data`, uncopied."""
        if external_data is None:
            external_data = self._initializer_bytes() >= EXTERNAL_BYTES
        location = Path(path).name + ".data" if external_data else None
        onnx_ir.save(self.ir(functions=functions), path, external_data=location)

    def _initializer_bytes(self) -> int:
        return sum(
            value.const_value.nbytes for value in self._graph.initializers.values() if value.const_value is not None
        )

    # --- parts that a decomposition's body does in its own way (functions.py)

    def _asked(self, what: str, value: onnx_ir.Value | None = None) -> None:
        """Called where the caller looks at a value's type ("types") or shape ("ranks")."""

    def _constant(self, tensor: onnx_ir.TensorProtocol, name: str) -> Value:
        value = onnx_ir.Value(
            name=name,
            type=onnx_ir.TensorType(tensor.dtype),
            shape=onnx_ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        self._graph.initializers.add(value)
        return Value(self, value)

    # --- helpers

    def _check_own(self, value: Any) -> None:
        if not isinstance(value, Value):
            raise OpError(f"graph {self.name}: expected a Value, got {type(value).__name__}")
        if value._graph is not self:
            raise OpError(f"graph {self.name}: the value {value.name} belongs to another graph, {value._graph.name}")

    def _value(self, item: Any, dtype: Any = None) -> onnx_ir.Value:
        """The value itself, or the constant that an array, a number or a list of numbers becomes (numbers: of the type `dtype`)."""
        if isinstance(item, Value):
            self._check_own(item)
            return item._ir
        if isinstance(item, np.ndarray | np.generic | onnx_ir.TensorProtocol):
            return self.constant(item)._ir
        if dtype is not None:
            self._asked("types")
        return self.constant(item, dtype=dtype)._ir

    def _append(
        self,
        domain: str,
        op_type: str,
        label: str,
        inputs: Sequence[onnx_ir.Value | None],
        attributes: Sequence[onnx_ir.Attr],
        outputs: Sequence[str],
    ) -> onnx_ir.Node:
        """Appends a node named after `label`. Its outputs are named after the node; "" in `outputs` is an output that is not wanted."""
        inputs = list(inputs)
        while inputs and inputs[-1] is None:  # ONNX Runtime crashes on some nodes that name an absent last input
            inputs.pop()
        name = self._node_name(self._scope + label)
        wanted = [output for output in outputs if output]
        values = [onnx_ir.Value(name="") if not output else onnx_ir.Value() for output in outputs]
        for output, value in zip(outputs, values, strict=True):
            if output:
                value.name = self._unused(name if len(wanted) == 1 else f"{name}.{output}", value)
        node = onnx_ir.Node(domain, op_type, inputs, attributes, outputs=values, name=name)
        self._graph.append(node)
        return node

    def _discard(self, node: onnx_ir.Node) -> None:
        self._graph.remove(node, safe=True)
        self._node_names.discard(node.name or "")
        for value in node.outputs:
            self._value_names.pop(value.name or "", None)

    def _results(self, values: Iterable[onnx_ir.Value]) -> Any:
        results = tuple(Value(self, value) for value in values)
        return results[0] if len(results) == 1 else results

    def _node_name(self, name: str) -> str:
        name = numbered(name, self._node_names)
        self._node_names.add(name)
        return name

    def _unused(self, name: str, value: onnx_ir.Value | None = None) -> str:
        """The name, with a number if it is taken; it may have to yield later to one that the caller chooses."""
        name = numbered(name, self._value_names)
        self._value_names[name] = value
        return name

    def _claim(self, name: str, value: onnx_ir.Value | None = None) -> str:
        """A name that the caller chose: a node's result that has it gets another, anything else is an error."""
        if not isinstance(name, str) or not name:
            raise OpError(f"graph {self.name}: expected a name, got {name!r}")
        if name in self._value_names:
            holder = self._value_names[name]
            if holder is None or name in self._fixed:
                raise OpError(f"graph {self.name}: the name {name} is taken")
            holder.name = self._unused(name, holder)
        self._value_names[name] = value
        return name


class _Onnx:
    """ONNX's own operators as methods."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __getattr__(self, op_type: str) -> Any:
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def append(*inputs: Any, **attributes: Any) -> Any:
            return self._graph._standard(op_type, inputs, attributes)

        append.__name__ = append.__qualname__ = op_type
        return append


def numbered(name: str, taken: Mapping[str, Any] | set[str]) -> str:
    """The name, with a number behind it if it is taken."""
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def _tensor(array: Any, dtype: Any) -> onnx_ir.TensorProtocol:
    if isinstance(array, onnx_ir.TensorProtocol):
        return array
    if not isinstance(array, np.ndarray | np.generic):
        numbers = np.asarray(array)
        if dtype is not None and numbers.dtype.kind in "biuf":
            wanted = data_type(dtype).numpy()
            with np.errstate(over="ignore"):
                converted = numbers.astype(wanted)
            if numbers.dtype.kind == "f" and wanted.kind in "biu" and not np.array_equal(converted, numbers):
                raise OpError(f"the constant {array!r}: expected one of type {wanted.name}")
            numbers = converted
        elif numbers.dtype == np.float64:
            numbers = numbers.astype(np.float32)
        array = numbers
    elif dtype is not None:
        array = np.asarray(array).astype(data_type(dtype).numpy())
    array = np.asarray(array)
    if array.dtype.kind in "OUS":
        strings = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel().tolist()]
        return onnx_ir.StringTensor(strings, shape=onnx_ir.Shape(array.shape))
    tensor: onnx_ir.TensorProtocol = onnx_ir.tensor(array)
    return tensor


def _content(tensor: onnx_ir.TensorProtocol) -> Any:
    return tuple(tensor.numpy().ravel().tolist()) if tensor.dtype == onnx_ir.DataType.STRING else tensor.tobytes()


def _attributes(op: Op, given: Mapping[str, Any]) -> list[onnx_ir.Attr]:
    """What has to be written: None and defaults are left out."""
    kinds = {
        "int": onnx_ir.AttributeType.INT,
        "bool": onnx_ir.AttributeType.INT,
        "float": onnx_ir.AttributeType.FLOAT,
        "str": onnx_ir.AttributeType.STRING,
        "ints": onnx_ir.AttributeType.INTS,
        "floats": onnx_ir.AttributeType.FLOATS,
    }
    result = []
    for attribute in op.attributes:
        value = given[attribute.name]
        if value is not None and (attribute.required or value != attribute.default):
            result.append(
                onnx_ir.Attr(attribute.name, kinds[attribute.kind], int(value) if attribute.kind == "bool" else value)
            )
    return result


def _standard_attributes(schema: OpSchema, given: Mapping[str, Any]) -> list[onnx_ir.Attr]:
    known = schema.attributes
    for name in given:
        if name not in known:
            raise OpError(f"onnx.{schema.name}: unknown attribute {name}; it has {', '.join(known) or 'none'}")
    for name, attribute in known.items():
        if attribute.required and given.get(name) is None:
            raise OpError(f"onnx.{schema.name}: attribute {name} is missing")
    result = []
    for name, value in given.items():
        if value is None:
            continue
        kind = onnx_ir.AttributeType[str(known[name].type).rpartition(".")[2]]
        if kind in (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS):
            raise OpError(f"onnx.{schema.name}: attribute {name}: graphs inside nodes cannot be built yet")
        try:
            if kind == onnx_ir.AttributeType.TENSOR:
                value = _tensor(value, None)
            elif kind == onnx_ir.AttributeType.INT and (isinstance(value, float) or int(value) != value):
                raise TypeError
            result.append(onnx_ir.convenience.convert_attribute(name, value, kind))
        except (TypeError, ValueError):
            raise OpError(f"onnx.{schema.name}: attribute {name}: expected {kind.name}, got {value!r}") from None
    return result


def _output_name(schema: OpSchema, index: int) -> str:
    formal = schema.outputs[min(index, len(schema.outputs) - 1)]
    variadic = formal.option == OpSchema.FormalParameterOption.Variadic
    return f"{formal.name}{index}" if variadic else formal.name
