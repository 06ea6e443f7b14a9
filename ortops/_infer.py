"""Types and shapes of one node's outputs, and the words for them: numpy's names of types, tuples of sizes for shapes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortops._declare import Op, OpError, element_type
from ortops._shapes import Axis

__all__ = [
    "attribute_values",
    "axes",
    "data_type",
    "infer_op",
    "infer_standard",
    "ir_shape",
    "operator_schema",
    "type_name",
]

#: Constants up to this many elements are shown to ONNX's inference: shapes, axes, repeats, scales.
SMALL = 64


def type_name(dtype: ir.DataType | None) -> str | None:
    """The type as numpy or ml_dtypes calls it; "string" for strings, None where it is not known."""
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return None
    return "string" if dtype == ir.DataType.STRING else dtype.numpy().name


def data_type(dtype: Any) -> ir.DataType:
    """The ONNX type of that name ("float32", "bfloat16", "string", ..) or numpy type; raises OpError if there is none."""
    if isinstance(dtype, ir.DataType):
        return dtype
    if dtype in ("string", str):
        return ir.DataType.STRING
    try:
        return ir.DataType.from_numpy(element_type(dtype) if isinstance(dtype, str) else np.dtype(dtype))
    except (TypeError, AttributeError):
        raise OpError(
            f"expected the name of a type, such as float32, bfloat16, int64 or string, got {dtype!r}"
        ) from None


def axes(shape: ir.Shape | None) -> tuple[Axis, ...] | None:
    """The sizes: numbers, symbols, or None for those that are not known."""
    return None if shape is None else tuple(dim if isinstance(dim, int) else dim.value for dim in shape)


def ir_shape(shape: Sequence[Axis] | None) -> ir.Shape | None:
    return None if shape is None else ir.Shape(shape)


def attribute_values(op: Op, node: ir.Node, where: str) -> dict[str, Any]:
    """A node's attributes as the operator's function takes them: checked, defaults filled in."""
    given: dict[str, Any] = {}
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            raise OpError(f"{where}: attribute {name} refers to an attribute of a function; expected a value")
        given[name] = attribute.value
    return as_declared(op, op.check_attributes(given, where))


def as_declared(op: Op, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes read from a file: a float that is the default but for its rounding to 32 bits becomes the default."""
    result = dict(attributes)
    for attribute in op.attributes:
        value, default = result[attribute.name], attribute.default
        if isinstance(default, float) and isinstance(value, float) and np.float32(value) == np.float32(default):
            result[attribute.name] = default
    return result


def infer_op(
    op: Op,
    types: Sequence[str | None],
    shapes: Sequence[Sequence[Axis] | None],
    attributes: Mapping[str, Any],
    where: str | None = None,
    values: Mapping[str, Sequence[int] | None] | None = None,
) -> list[tuple[str | None, tuple[Axis, ...] | None]]:
    """Type and shape of every output of an operator of ours; raises OpError where the inputs do not fit. `values` are what its
    host inputs hold, None where that is not known."""
    bound = op.bind_types(types, attributes, where)
    bindings = op.bind_shapes(shapes, attributes, where, values)
    return list(zip(op.output_types(bound), op.output_shapes(bindings, attributes), strict=True))


def operator_schema(op_type: str, opset: int) -> onnx.defs.OpSchema:
    """The standard operator in that opset; raises OpError, with what may have been meant, if there is none."""
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        pass
    since = [
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and schema.name == op_type
    ]
    if since:
        raise OpError(f"onnx.{op_type}: expected opset {min(since)} or newer, got opset {opset}")
    names = [schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain]
    near = difflib.get_close_matches(op_type, names, n=3)
    raise OpError(f"onnx.{op_type}: ONNX has no such operator" + (f"; near: {', '.join(near)}" if near else ""))


def infer_standard(node: ir.Node, schema: onnx.defs.OpSchema, opset: int) -> None:
    """Sets the output types and shapes of a standard operator's node by ONNX's own inference.

    The node's values must have names. Raises OpError with ONNX's reason where the inputs do not fit; leaves the outputs as they
    are if an input's type is not known.
    """
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for value in node.inputs:
        if value is None:
            continue
        if value.type is None:
            return
        name, constant = value.name or "", value.const_value
        types[name] = ir.serde.serialize_type(value.type)
        if value.shape is not None:
            ir.serde.serialize_shape_into(types[name], value.shape)
        if constant is not None and constant.size <= SMALL and constant.dtype != ir.DataType.STRING:
            sizes, raw = constant.shape.numpy(), constant.tobytes()
            data[name] = onnx.helper.make_tensor(name, int(constant.dtype), sizes, raw, raw=True)
    imports = [onnx.helper.make_opsetid("", opset)]
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, ir.to_proto(node), types, data, opset_imports=imports
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        got = ", ".join("absent" if v is None else f"{type_name(v.dtype)}{_text(axes(v.shape))}" for v in node.inputs)
        raise OpError(f"onnx.{node.op_type} (node {node.name}): {str(error).splitlines()[0]}; got {got}") from None
    for value in node.outputs:
        if value.name in inferred:
            value.type = ir.serde.deserialize_type_proto_for_type(inferred[value.name])
            value.shape = ir.serde.deserialize_type_proto_for_shape(inferred[value.name])


def _text(shape: tuple[Axis, ...] | None) -> str:
    return "[..]" if shape is None else "[" + ", ".join("?" if axis is None else str(axis) for axis in shape) + "]"
