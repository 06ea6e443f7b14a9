"""The operators as ONNX's own tools see them: schemas with shape inference, and the references for onnx.reference.

Importing this module registers the schemas in onnx.defs, so that onnx.checker finds misspelt attributes and wrong inputs,
shape inference passes our nodes, and onnxscript and the PyTorch exporter can make them. All of it follows from the declarations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
from onnx.defs import OpSchema

from ortops._declare import ELEMENT_TYPES, Attribute, Formal, Op, element_type, ops
from ortops._infer import as_declared, infer_op

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

__all__ = ["DOMAIN", "VERSION", "evaluator", "names", "reference_ops", "register", "schema"]

DOMAIN = "ortops"
VERSION = 1

_TYPE_NAMES = {number: name for name, number in ELEMENT_TYPES.items()}
_KINDS = {"int": "INT", "bool": "INT", "float": "FLOAT", "str": "STRING", "ints": "INTS", "floats": "FLOATS"}


def names(op: Op, op_type: str | None = None) -> tuple[str, ...]:
    """Every name of an operator (of one of its op types) in a file: its own, and those of its variants (`_declare.VARIANTS`)."""
    bases = op.op_types if op_type is None else (op_type,)
    return tuple(f"{base}_{number}" if number > 1 else base for base in bases for number in range(1, op.variants + 1))


def schema(op: Op, name: str | None = None) -> OpSchema:
    """The operator's schema, under that name."""
    name = name or op.op_types[0]
    base = name if name in op.op_types else name.rpartition("_")[0]
    fixed = {op.result: op.types[op.result][op.op_types.index(base)]} if op.result else {}

    def formal(of: Formal) -> OpSchema.FormalParameter:
        option = OpSchema.FormalParameterOption
        kind = option.Variadic if of.variadic else option.Optional if of.optional else option.Single
        type_ = fixed.get(of.type, of.type)
        type_ = _onnx_type(type_) if type_ in ELEMENT_TYPES else type_
        return OpSchema.FormalParameter(
            of.name, type_, f"{of.type}{of.shape}", param_option=kind, is_homogeneous=of.type != "any", min_arity=1
        )

    used = {of.type for of in (*op.inputs, *op.outputs)} - fixed.keys()
    constraints = [(variable, _allowed(op, variable), "") for variable in op.types if variable in used]
    if "any" in used:
        constraints.append(("any", [_onnx_type(type_) for type_ in ELEMENT_TYPES], ""))
    result = OpSchema(
        name,
        DOMAIN,
        VERSION,
        op.doc,
        inputs=[formal(of) for of in op.inputs],
        outputs=[formal(of) for of in op.outputs],
        type_constraints=constraints,
        attributes=[_attribute(attribute) for attribute in op.attributes],
    )
    if hasattr(result, "set_type_and_shape_inference_function"):  # onnx 1.19 and newer
        result.set_type_and_shape_inference_function(lambda context: _infer(op, context))
    return result


def register() -> None:
    """Registers the schemas of all operators that are not registered yet."""
    for op in ops():
        for name in names(op):
            if not onnx.defs.has(name, DOMAIN):
                onnx.defs.register_schema(schema(op, name))


def _onnx_type(name: str) -> str:
    words = {"float32": "float", "float64": "double"}
    return f"tensor({words.get(name, name)})"


def _allowed(op: Op, variable: str) -> list[str]:
    """The types of a variable; one of them may be the name of a variable before it."""
    result: list[str] = []
    for choice in op.types[variable]:
        result += _allowed(op, choice) if choice in op.types else [_onnx_type(choice)]
    return list(dict.fromkeys(result))


def _attribute(attribute: Attribute) -> OpSchema.Attribute:
    kind = getattr(OpSchema.AttrType, _KINDS[attribute.kind])
    text = attribute.expected
    if attribute.required or attribute.default is None:
        return OpSchema.Attribute(attribute.name, kind, text, required=attribute.required)
    default = int(attribute.default) if attribute.kind == "bool" else attribute.default
    type_ = onnx.AttributeProto.AttributeType.Value(_KINDS[attribute.kind])
    return OpSchema.Attribute(
        attribute.name, onnx.helper.make_attribute(attribute.name, default, attr_type=type_), text
    )


def _infer(op: Op, context: Any) -> None:
    """Type and shape inference of a node; raises OpError where types, attributes or shapes are wrong."""
    count = context.get_num_inputs()
    types: list[str | None] = []
    shapes: list[tuple[int | str | None, ...] | None] = []
    for index in range(count):
        tensor = context.get_input_type(index).tensor_type if context.has_input(index) else None
        types.append(_TYPE_NAMES.get(tensor.elem_type) if tensor is not None else None)
        shapes.append(_axes(tensor.shape) if tensor is not None and tensor.HasField("shape") else None)
    given = {attribute.name: context.get_attribute(attribute.name) for attribute in op.attributes}
    present = {
        name: onnx.helper.get_attribute_value(proto)
        for name, proto in given.items()
        if proto is not None and proto.name
    }
    texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in present.items()}
    where = context.get_display_name() if hasattr(context, "get_display_name") else op.name
    attributes = as_declared(op, op.check_attributes(texts, where))
    held: dict[str, Any] = {}
    for index, of in enumerate(op.inputs):
        if of.host and index < count and context.has_input(index):
            data = context.get_input_data(index)
            held[of.name] = None if data is None else onnx.numpy_helper.to_array(data).ravel().tolist()
    for index, (type_, shape) in enumerate(infer_op(op, types, shapes, attributes, where, held)):
        if index < context.get_num_outputs() and context.has_output(index) and type_ is not None:
            sizes = None if shape is None else list(shape)
            context.set_output_type(index, onnx.helper.make_tensor_type_proto(ELEMENT_TYPES[type_], sizes))


def _axes(shape: onnx.TensorShapeProto) -> tuple[int | str | None, ...]:
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in shape.dim)


# --- onnx.reference -------------------------------------------------------------------------------------------------


def reference_ops() -> list[type]:
    """A class for onnx.reference of every operator, by every name: the declaration's own numpy code."""
    from onnx.reference.op_run import OpRun

    def run(op: Op) -> Any:
        def _run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
            given = {a.name: attributes[a.name] for a in op.attributes if attributes.get(a.name) is not None}
            values, given = op.arguments(inputs, given)
            given = as_declared(op, given)
            types = op.output_types(
                op.bind_types([None if value is None else str(value.dtype) for value in values], given)
            )
            results = op.reference(*values, **given)
            rounded = [
                result.astype(element_type(type_ or "float64")) for result, type_ in zip(results, types, strict=True)
            ]
            return tuple(rounded[: len(self.onnx_node.output)])

        return _run

    return [type(name, (OpRun,), {"op_domain": DOMAIN, "_run": run(op)}) for op in ops() for name in names(op)]


def evaluator(model: Any) -> ReferenceEvaluator:
    """onnx.reference's evaluator of a model (a ModelProto or a path), in which our nodes compute their references."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model, new_ops=reference_ops())


register()
