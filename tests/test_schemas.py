"""Our operators as onnx.checker, shape inference, onnx.reference, onnxscript and the PyTorch exporter see them."""

import subprocess
import sys

import numpy as np
import onnx
import pytest

import ortops
from ortops import OpError, ops, schemas
from ortops._declare import ops as all_ops


def linear_model() -> onnx.ModelProto:
    g = ortops.Graph()
    g.output(
        ops.linear(g.input("x", "float32", ["batch", 8]), np.ones((8, 3), np.float32), activation="relu"),
        "y",
        [None, 3],
    )
    return g.build(functions=False)


def test_every_name_is_registered_and_none_is_onnxs():
    registered = onnx.defs.get_all_schemas_with_history()
    theirs = {schema.name for schema in registered if schema.domain != schemas.DOMAIN}
    ours = {schema.name for schema in registered if schema.domain == schemas.DOMAIN}
    assert ours >= {name for op in all_ops() for name in schemas.names(op)}
    assert not ours & theirs


def test_registering_again_does_nothing():
    schemas.register()


def test_onnx_reference_can_be_imported_after():
    code = "import ortops.schemas, onnx.reference, onnxscript"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_a_schema_says_what_the_declaration_says(op):
    schema = onnx.defs.get_schema(op.op_types[0], 1, schemas.DOMAIN)
    assert schema.doc == op.doc
    assert [formal.name for formal in schema.inputs] == [formal.name for formal in op.inputs]
    assert [formal.name for formal in schema.outputs] == [formal.name for formal in op.outputs]
    assert set(schema.attributes) == {attribute.name for attribute in op.attributes}
    for attribute in op.attributes:
        described = schema.attributes[attribute.name]
        assert described.required == attribute.required
        if not attribute.required and attribute.default is not None:
            value = onnx.helper.get_attribute_value(described.default_value)
            value = value.decode() if isinstance(value, bytes) else tuple(value) if isinstance(value, list) else value
            assert value == (pytest.approx(attribute.default) if attribute.kind == "float" else attribute.default)


def test_a_right_model_passes():
    onnx.checker.check_model(linear_model(), full_check=True)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (
            lambda node: node.attribute.add(name="alpha", type=1, f=1.0),
            onnx.checker.ValidationError,
            "Unrecognized attribute: alpha",
        ),
        (lambda node: node.input.extend(["x"] * 4), onnx.checker.ValidationError, "input size 6 not in range"),
        (lambda node: node.input.pop(), onnx.checker.ValidationError, "input size 1 not in range"),
        (
            lambda node: setattr(node.attribute[0], "s", b"swish"),
            OpError,
            "attribute activation: expected one of none, relu",
        ),
        (
            lambda node: node.attribute.add(name="weight_layout", type=3, s=b"oi"),
            OpError,
            "expected one of in_out, out_in, got 'oi'",
        ),
        (
            lambda node: node.attribute.add(name="weight_layout", type=3, s=b"out_in"),
            OpError,
            r"weight: expected shape \[N K\] with K = 8",
        ),
        (lambda node: node.input.append("constant"), OpError, r"bias: expected shape \[N\] with N = 3, got \[8, 3\]"),
        (lambda node: node.input.append("index"), OpError, "bias: expected type float32.*, got int64"),
    ],
)
def test_a_wrong_node_is_found(spoil, error, message):
    model = linear_model()
    model.graph.input.append(onnx.helper.make_tensor_value_info("index", onnx.TensorProto.INT64, [3]))
    spoil(model.graph.node[0])
    with pytest.raises(error, match=message):
        onnx.checker.check_model(model, full_check=True)


def test_inference_of_names_of_variants_and_of_unknown_shapes():
    model = linear_model()
    model.graph.node[0].op_type = "Linear_2"
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    assert [dim.dim_param or dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim] == [
        "batch",
        3,
    ]
    model.graph.input[0].type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    assert not inferred.graph.output[0].type.tensor_type.HasField("shape")


def test_the_reference_evaluator_runs_our_nodes():
    g = ortops.Graph()
    x = g.input("x", "float16", ["batch", 8])
    y, rstd = ops.layer_norm(x, np.full(8, 2, np.float16), outputs=["y", "rstd"], epsilon=1e-3)
    g.output(y, "y")
    g.output(rstd, "rstd")
    value = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float16)
    got, got_rstd = schemas.evaluator(g.build(functions=False)).run(None, {"x": value})
    want, want_rstd = ops.layer_norm(value, np.full(8, 2, np.float16), outputs=["y", "rstd"], epsilon=1e-3)
    assert got.dtype == np.float16 and got_rstd.dtype == np.float32
    np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(got_rstd, want_rstd, rtol=1e-6)


def test_onnxscript_can_call_our_operators():
    onnxscript = pytest.importorskip("onnxscript")
    op = onnxscript.values.Opset(schemas.DOMAIN, 1)
    opset20 = onnxscript.opset20

    @onnxscript.script()
    def doubled(x, w):
        return opset20.Add(op.Linear(x, w, activation="relu"), op.Linear(x, w, activation="relu"))

    model = doubled.to_model_proto(
        input_types=[onnxscript.FLOAT["batch", 8], onnxscript.FLOAT[8, 3]], output_types=[onnxscript.FLOAT["batch", 3]]
    )
    assert [node.op_type for node in model.graph.node] == ["Linear", "Linear", "Add"]
    onnx.checker.check_model(model, full_check=True)


def test_the_pytorch_exporter_reaches_our_operators():
    torch = pytest.importorskip("torch")
    onnxscript = pytest.importorskip("onnxscript")
    op = onnxscript.values.Opset(schemas.DOMAIN, 1)

    def rms_norm(x, shape, weight=None, eps=None):
        return op.RMSNorm(x, weight, epsilon=eps)[0]

    program = torch.onnx.export(
        torch.nn.RMSNorm(8, eps=1e-6),
        (torch.ones(2, 8),),
        dynamo=True,
        verbose=False,
        custom_translation_table={torch.ops.aten.rms_norm.default: rms_norm},
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    model = ortops.attach_functions(program.model_proto)
    (node,) = model.graph.node
    assert (node.domain, node.op_type, len(node.output)) == ("ortops", "RMSNorm", 1)
    onnx.checker.check_model(model, full_check=True)
    value = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    (got,) = schemas.evaluator(model).run(None, {"x": value})
    np.testing.assert_allclose(
        got, torch.nn.functional.rms_norm(torch.tensor(value), (8,), eps=1e-6), rtol=1e-5, atol=1e-6
    )
