"""The graph builder: what it writes, and that it refuses what is wrong at the line that says it."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest

import ortops
from ortops import OpError, ops
from ortops._standard import onnx as standard


@pytest.fixture
def g() -> ortops.Graph:
    return ortops.Graph("test")


def run(model: onnx.ModelProto, **inputs: np.ndarray) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, inputs)


def test_import_is_quick_and_light():
    code = (
        "import sys, time; start = time.perf_counter(); import ortops; took = time.perf_counter() - start; "
        "heavy = {'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'torch'} & set(sys.modules); assert not heavy, heavy; print(took)"
    )
    times = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    ]
    assert min(times) < 0.15


def test_names_of_the_package_are_lazy_and_complete():
    for name in ortops.__all__:
        assert getattr(ortops, name) is not None
    assert set(ortops.__all__) <= set(dir(ortops))
    with pytest.raises(AttributeError, match="no attribute 'nonesuch'"):
        _ = ortops.nonesuch


def test_ours_and_standard_nodes_mix(g):
    x = g.input("x", "float32", ["batch", 8])
    h = ops.linear(x, np.eye(8, 4, dtype=np.float32), activation="relu")
    assert (h.dtype, h.shape, h.rank) == ("float32", ("batch", 4), 2)
    y = g.output(standard.Softmax(h, axis=-1) * 2, "y")
    assert y.name == "y"
    model = g.build(functions=False)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Linear", "Softmax", "Mul"]
    assert {item.domain: item.version for item in model.opset_import} == {"": 20, "ortops": 1}
    assert (model.ir_version, model.producer_name, model.producer_version) == (10, "ortops", ortops.__version__)


def test_a_graph_without_our_operators_does_not_import_our_domain(g):
    g.output(-g.input("x", "float32", [2]), "y")
    assert [item.domain for item in g.build().opset_import] == [""]


def test_optional_inputs_and_outputs(g):
    x = g.input("x", "float16", ["batch", 8])
    scale = np.ones(8, np.float16)
    y, total, rstd = ops.layer_norm(x, scale, residual=x, outputs=["y", "sum", "rstd"])
    assert (y.dtype, total.shape, rstd.dtype, rstd.shape) == ("float16", ("batch", 8), "float32", ("batch",))
    for value in (y, total, rstd, ops.layer_norm(x, scale, None, None)):
        g.output(value)
    first, second = (node for node in g.ir(functions=False).graph)
    assert [value.name if value else "" for value in first.inputs] == ["x", "constant", "", "x"]
    assert [value.name for value in first.outputs] == ["layer_norm.y", "layer_norm.sum", "", "layer_norm.rstd"]
    assert (len(second.inputs), len(second.outputs)) == (2, 1)


def test_absent_last_inputs_are_not_written(g):
    x = g.input("x", "float32", [2, 4])
    y = g.onnx.LayerNormalization(x, np.ones(4, np.float32), None)
    g.output(g.op("Mystery", g.onnx.Clip(y, None, None), None, domain="com.example"), "y")
    assert [len(node.input) for node in g.build().graph.node] == [2, 1, 1]


def test_attributes_that_are_defaults_are_left_out(g):
    x = g.input("x", "float32", [2, 3, 4])
    mask = g.input("mask", "bool", [2, 3])
    g.output(ops.sequence_pool(x, mask))
    g.output(ops.sequence_pool(x, mask, mode="max", normalize=True))
    first, second = (node.attributes for node in g.ir(functions=False).graph)
    assert not first
    assert {name: attribute.value for name, attribute in second.items()} == {"mode": "max", "normalize": 1}


def test_arithmetic_takes_numbers_and_arrays_on_either_side(g):
    x = g.input("x", "float32", [3])
    array = np.array([1, 2, 4], np.float32)
    results = {
        "a": 1 - x, "b": array - x, "c": x / 2, "d": 2 / x, "e": x**2, "f": 2**x,
        "h": array @ x, "i": x @ array, "j": -x, "k": array * x + 1,
    }  # fmt: skip
    for name, value in results.items():
        g.output(value, name)
    v = np.array([3, 5, 7], np.float32)
    expected = [1 - v, array - v, v / 2, 2 / v, v**2, 2**v, array @ v, v @ array, -v, array * v + 1]
    for got, want in zip(run(g.build(), x=v), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_numbers_take_the_type_of_the_other_inputs(g):
    half = g.input("half", "bfloat16", [3])
    assert (half * 2).dtype == (1 + half).dtype == "bfloat16"
    index = g.input("index", "int64", [3])
    assert (index + 1).dtype == "int64"
    with pytest.raises(OpError, match="type int64"):
        _ = index * 0.5


def test_constants(g):
    a, b = g.constant([1, 2]), g.constant(np.array([1, 2]))
    assert a.name == b.name and a.dtype == "int64"
    assert g.constant(1.5).dtype == "float32"
    assert g.constant(np.ones(3, ml_dtypes.bfloat16), "bf").dtype == "bfloat16"
    assert g.constant(["a", "b"]).dtype == "string"
    assert g.constant(onnx_ir.tensor(np.zeros(2, np.int8)), "t").shape == (2,)
    large = np.zeros(1000, np.float32)
    assert g.constant(large).name != g.constant(large).name


def test_a_constant_that_nothing_uses_is_not_written(g):
    g.constant(np.ones(3), "unused")
    g.output(g.input("x", "float32", [1]) + 1, "y")
    assert [tensor.name for tensor in g.build().graph.initializer] == ["constant"]


def test_name_scopes_and_unique_names(g):
    x = g.input("x", "float32", [4])
    with g.name_scope("layer0"):
        y = ops.identity(x)
        with g.name_scope("inner"):
            z = ops.identity(y)
        w = ops.identity(z)
    assert [v.name for v in (y, z, w)] == ["layer0/identity", "layer0/inner/identity", "layer0/identity_2"]
    # A caller's name takes precedence over one that was made up; two of the caller's must differ.
    g.output(w, "layer0/identity")
    assert y.name == "layer0/identity_3"
    with pytest.raises(OpError, match="the name layer0/identity is taken"):
        g.output(z, "layer0/identity")
    with pytest.raises(OpError, match="the name x is taken"):
        g.input("x", "float32")
    names = [node.name for node in g.build().graph.node]
    assert len(set(names)) == len(names)


def test_inputs_and_constants_can_be_outputs(g):
    x = g.input("x", "float32", [2])
    g.output(x, "same")
    y = g.output(x + 1, "y")
    g.output(y, "again")
    g.output(g.constant([1, 2]), "c")
    assert [list(r) for r in run(g.build(), x=np.zeros(2, np.float32))] == [[0, 0], [1, 1], [1, 1], [1, 2]]


def test_shapes_of_outputs_are_checked_and_refined(g):
    x = g.input("x", "float32", [None, 4])
    assert g.output(x + 1, "y", ["batch", 4]).shape == ("batch", 4)
    with pytest.raises(OpError, match=r"output z: expected the shape \[None, 4\], got \[2, 5\]"):
        g.output(x + 2, "z", [2, 5])


def test_standard_inference_knows_constants_and_ranks(g):
    x = g.input("x", "float32", ["batch", 6, 4])
    assert g.onnx.Reshape(x, [0, 2, 3, 4]).shape == ("batch", 2, 3, 4)
    assert g.onnx.Reshape(x, g.input("shape", "int64", [2])).shape == (None, None)
    assert g.onnx.Cast(x, to=10).dtype == "float16"
    a, b, c = g.onnx.Split(x, outputs=3, axis=1, num_outputs=3)
    assert a.shape == b.shape == c.shape == ("batch", 2, 4)
    values, indices = g.onnx.TopK(x, [2], axis=1)
    assert (values.shape, indices.dtype) == (("batch", 2, 4), "int64")
    assert g.onnx.Clip(x, None, 6.0).shape == x.shape


def test_other_domains(g):
    text = g.input("text", "string", ["n"])
    ids, mask = g.op(
        "SomeTokenizer",
        text,
        domain="ai.onnx.contrib",
        outputs=2,
        types=["int64", "int64"],
        shapes=[["n"], None],
        cased=1,
    )
    assert (ids.dtype, ids.shape, mask.shape) == ("int64", ("n",), None)
    unknown = g.op("Mystery", ids, domain="com.example", version=3)
    assert unknown.dtype is None and unknown.rank is None
    assert g.onnx.Neg(unknown).dtype is None
    g.output(mask, "mask")
    assert {item.domain: item.version for item in g.build().opset_import} == {
        "": 20,
        "ai.onnx.contrib": 1,
        "com.example": 3,
    }


def test_graph_without_outputs_is_an_error(g, tmp_path):
    ops.identity(g.input("x", "float32", [2]))
    for write in (g.build, lambda: g.save(tmp_path / "model.onnx")):
        with pytest.raises(OpError, match="graph test: it has no outputs"):
            write()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, x: ops.linear(x, np.ones((3, 3), np.float32)), r"Linear: weight: expected shape \[K N\] with K = 8, got \[3, 3\]"),
        (lambda g, x: ops.linear(x, np.ones((8, 3))), "Linear: weight: expected type float32.*, got float64"),
        (lambda g, x: ops.linear(x, x, activation="swish"), "attribute activation: expected one of none, relu, .*, got 'swish'"),
        (lambda g, x: ops.linear(x, np.ones((8, 3), np.float32), alpha=1.0), "unknown attribute alpha"),
        (lambda g, x: ops.permute(x, (1, 0)), r"expected at most 1 inputs \(x\), got 2; attributes go by name"),
        (lambda g, x: ops.concatenate([x, x], axis=0), "Concatenate: xs: expected a value or an array, got a list of"),
        (lambda g, x: ops.linear(x), "input weight is missing"),
        (lambda g, x: ops.layer_norm(x, x, epsilon=-1.0), "attribute epsilon: expected a float at least 0, got -1.0"),
        (lambda g, x: ops.layer_norm(x, np.ones(8, np.float32), outputs=["sum"]), "outputs"),
        (lambda g, x: ortops.Graph("other").input("z", "float32", [1]) + x, "graph other: the value x belongs to another graph, test"),
        (lambda g, x: g.onnx.Sotfmax(x), "no such operator; near: Softmax"),
        (lambda g, x: g.onnx.RMSNormalization(x, x), "expected opset 23 or newer, got opset 20"),
        (lambda g, x: g.onnx.Softmax(x, axes=1), "unknown attribute axes; it has axis"),
        (lambda g, x: g.onnx.Softmax(x, axis="last"), "attribute axis: expected INT, got 'last'"),
        (lambda g, x: g.onnx.Softmax(x, x), "expected 1 inputs, got 2"),
        (lambda g, x: g.onnx.Concat(x, x), "attribute axis is missing"),
        (lambda g, x: g.onnx.Softmax(x, outputs=2), "outputs: expected a number up to 1"),
        (lambda g, x: x @ np.ones((3, 3), np.float32), r"MatMul .*Incompatible dimensions.*float32\[batch, 8\], float32\[3, 3\]"),
        (lambda g, x: x + np.ones(8), "float64"),
        (lambda g, x: g.onnx.If(x, then_branch=1, else_branch=2), "cannot be built yet"),
        (lambda g, x: g.input("y", "float31"), "expected the name of a type"),
        (lambda g, x: g.output(3, "y"), "expected a Value, got int"),
        (lambda g, x: ortops.Graph(opset=99), "opset: expected"),
    ],
)  # fmt: skip
def test_errors_come_at_once_and_leave_the_graph_usable(g, call, message):
    x = g.input("x", "float32", ["batch", 8])
    with pytest.raises(OpError, match=message):
        call(g, x)
    g.output(ops.identity(x), "out")
    onnx.checker.check_model(g.build(functions=False), full_check=True)


def test_large_constants_go_to_a_file_of_their_own(g, tmp_path):
    weight = np.arange(4000, dtype=np.float32).reshape(4, 1000)
    g.output(g.input("x", "float32", ["batch", 4]) @ weight, "y")
    path = tmp_path / "model.onnx"
    g.save(path)
    assert path.stat().st_size > weight.nbytes
    g.save(path, external_data=True)
    assert path.stat().st_size < 1000
    assert (tmp_path / "model.onnx.data").stat().st_size >= weight.nbytes
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ weight)


def test_from_a_size_on_constants_go_there_by_themselves(g, tmp_path, monkeypatch):
    monkeypatch.setattr("ortops.graph.EXTERNAL_BYTES", 1000)
    g.output(g.input("x", "float32", [1000]) + np.ones(1000, np.float32), "y")
    g.save(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx.data").exists()


def test_building_twice_gives_the_same(g):
    g.output(ops.identity(g.input("x", "float32", [1])), "y")
    assert g.build() == g.build()


@pytest.mark.parametrize("size", [-1, 1.5, b"n"])
def test_a_size_is_a_number_or_a_name(g, size):
    with pytest.raises(OpError, match="input x: expected sizes"):
        g.input("x", "float32", [2, size])


def test_what_nobody_reads_is_left_out(g):
    x = g.input("x", "float32", [3])
    g.output(g.onnx.Neg(x), "y")
    g.onnx.Add(g.onnx.Exp(x), np.ones(3, np.float32))
    model = g.build()
    assert [node.op_type for node in model.graph.node] == ["Neg"] and not model.graph.initializer
    assert [value.name for value in model.graph.input] == ["x"]
