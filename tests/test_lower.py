"""Decompositions as function bodies and in place: one model, with and without the library, in standard nodes, same numbers."""

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest

import ortops
from ortops import OpError, _declare, ops, schemas
from ortops._declare import FLOATS, VARIANTS, op
from ortops._standard import onnx as standard


@op("x: T[... N], shift: T?[N] -> y: T[... N], total: T?[...]", name="TestScale", T=FLOATS, register=False)
def scale(x, shift=None, *, factor: float = 1.0, squeeze: bool = False):
    """x factor + shift, and its sum over the last axis."""
    y = x * factor if shift is None else x * factor + shift
    return y, y.sum(axis=-1)


@scale.decomposition
def _(x, shift=None, *, factor, squeeze):
    y = x * factor
    if shift is not None:
        y = y + shift
    return y, standard.ReduceSum(y, [-1], keepdims=0)


@op("x: T[...] -> y: T[...]", name="TestRanked", T=FLOATS, register=False)
def ranked(x):
    """Reverses the axes, twice."""
    return x


@ranked.decomposition
def _(x):
    order = list(range(x.rank))[::-1]
    return standard.Transpose(standard.Transpose(x, perm=order), perm=order)


@op("x: T[...] -> y: T[...]", name="TestBare", T=FLOATS, register=False)
def bare(x):
    """An operator that has no decomposition."""
    return x


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    ops_of_this_file = (scale, ranked, bare)
    for declaration in ops_of_this_file:
        monkeypatch.setitem(_declare._registry, declaration.name, declaration)
    schemas.register()
    yield
    for declaration in ops_of_this_file:
        for name in schemas.names(declaration):
            onnx.defs.deregister_schema(name, schemas.VERSION, schemas.DOMAIN)


def graph(dtype: str = "float32") -> ortops.Graph:
    """Three kinds of calls of one operator, one of them twice."""
    g = ortops.Graph("test")
    x = g.input("x", dtype, ["batch", 4])
    shift = np.arange(4, dtype=dtype)
    y = scale(x, factor=3.0)
    y = scale(y, shift, factor=2.0)
    y, total = scale(y, shift, factor=0.5, outputs=["y", "total"])
    y = scale(y, factor=3.0)
    g.output(ranked(y), "y")
    g.output(total, "total")
    return g


X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": X}
    )


def expected() -> list[np.ndarray]:
    return schemas.evaluator(graph().build(functions=False)).run(None, {"x": X})


def same(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_model_carries_its_bodies_and_runs_without_the_library():
    model = graph().build()
    assert [node.op_type for node in model.graph.node] == [
        "TestScale",
        "TestScale_2",
        "TestScale_3",
        "TestScale",
        "TestRanked",
    ]
    assert sorted(function.name for function in model.functions) == [
        "TestRanked",
        "TestScale",
        "TestScale_2",
        "TestScale_3",
    ]
    same(run(model), expected())


def test_bodies_do_not_depend_on_what_the_decomposition_does_not_ask_for():
    g = ortops.Graph()
    for dtype in FLOATS:
        for shape in ([4], ["a", 4], None):
            # TestBody would multiply by a number of the input's type, so the types matter; the rank does not.
            x = g.input(f"{dtype}{shape}", dtype, shape)
            g.output(scale(x, factor=2.0), f"y{dtype}{shape}")
            g.output(ops.identity(x), f"z{dtype}{shape}")
    model = g.build()
    assert sorted(function.name for function in model.functions) == [
        "IdentityCopy",
        "TestScale",
        "TestScale_2",
        "TestScale_3",
    ]
    assert all(not function.value_info for function in model.functions)


def test_bodies_depend_on_the_rank_where_the_decomposition_asks_for_it():
    g = ortops.Graph()
    for rank in (1, 2, 3):
        g.output(ranked(g.input(f"x{rank}", "float32", [None] * rank)), f"y{rank}")
    model = g.build()
    assert sorted(function.name for function in model.functions) == ["TestRanked", "TestRanked_2", "TestRanked_3"]
    onnx.checker.check_model(model, full_check=True)


def test_the_largest_group_keeps_the_name_and_too_many_become_standard_nodes():
    g = ortops.Graph()
    x = y = g.input("x", "float32", ["batch", 4])
    for index in range(VARIANTS + 2):
        y = scale(y, factor=1 + index / 16)
    for _ in range(2):
        y = scale(y, factor=1 + 5 / 16)
    g.output(y, "y")
    assert x.shape == y.shape
    model = g.build()
    names = [node.op_type for node in model.graph.node if node.domain]
    assert names.count("TestScale") == 3
    assert set(names) == set(schemas.names(scale)) == {function.name for function in model.functions}
    assert [node.op_type for node in model.graph.node if not node.domain].count("Mul") == 2
    same(run(model), schemas.evaluator(g.build(functions=False)).run(None, {"x": X}))


def test_building_without_functions():
    model = graph().build(functions=False)
    assert not model.functions
    assert {node.op_type for node in model.graph.node} == {"TestScale", "TestRanked"}


@pytest.mark.parametrize("functions", [True, False])
def test_lowering_gives_standard_nodes_and_the_same_numbers(functions):
    model = graph().build(functions=functions)
    before = model.SerializeToString(deterministic=True)
    lowered = ortops.lower(model)
    assert model.SerializeToString(deterministic=True) == before
    assert {node.domain for node in lowered.graph.node} == {""}
    assert not lowered.functions
    assert [item.domain for item in lowered.opset_import] == [""]
    assert lowered.graph.input == model.graph.input and lowered.graph.output == model.graph.output
    assert lowered.producer_name == "ortops"
    names = [node.name for node in lowered.graph.node]
    assert len(set(names)) == len(names) and all(name.startswith(("scale", "ranked")) for name in names)
    same(run(lowered), expected())


def test_what_is_not_used_is_not_written():
    lowered = ortops.lower(graph().build())
    assert [node.op_type for node in lowered.graph.node].count("ReduceSum") == 1


def test_lowering_some():
    model = ortops.lower(graph().build(), ["TestScale"])
    assert [node.op_type for node in model.graph.node if node.domain] == ["TestRanked"]
    assert [function.name for function in model.functions] == ["TestRanked"]
    same(run(model), expected())
    assert ortops.lower(graph().build(), [ranked]).graph.node[-1].op_type == "Transpose"
    with pytest.raises(OpError, match="there is no operator Nonesuch"):
        ortops.lower(model, ["Nonesuch"])


def test_lowering_gives_what_it_is_given(tmp_path):
    g = graph()
    ir_model = g.ir()
    assert isinstance(ortops.lower(ir_model), onnx_ir.Model)
    assert any(node.domain == "ortops" for node in ir_model.graph)
    g.save(tmp_path / "model.onnx", external_data=True)
    lowered = ortops.lower(tmp_path / "model.onnx")
    assert isinstance(lowered, onnx.ModelProto)
    assert not any(node.domain for node in lowered.graph.node)


def test_types_that_the_file_does_not_say_are_inferred():
    model = graph().build(functions=False)
    del model.graph.value_info[:]
    same(run(ortops.lower(model)), expected())
    attached = ortops.attach_functions(model)
    assert len(attached.functions) == 4 and not model.functions
    same(run(attached), expected())


def test_attaching_again_changes_nothing():
    model = graph().build()
    again = ortops.attach_functions(model)
    assert [node.op_type for node in again.graph.node] == [node.op_type for node in model.graph.node]
    assert {f.name: f for f in again.functions} == {f.name: f for f in model.functions}


def test_unnamed_nodes_and_outputs_that_nobody_reads():
    model = graph().build(functions=False)
    for node in model.graph.node:
        node.name = ""
    model.graph.node[0].output.append("unread")
    attached = ortops.attach_functions(model)
    assert [len(node.output) for node in attached.graph.node] == [1, 1, 2, 1, 1]
    same(run(attached), expected())
    same(run(ortops.lower(model)), expected())


def in_subgraph(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model's nodes in both branches of an If."""
    info = onnx.helper.make_tensor_value_info
    branch = onnx.helper.make_graph(
        model.graph.node, "branch", [], [info(o.name, 1, None) for o in model.graph.output], model.graph.initializer
    )
    node = onnx.helper.make_node("If", ["flag"], ["a", "b"], then_branch=branch, else_branch=branch)
    flag = onnx.helper.make_tensor("flag", onnx.TensorProto.BOOL, [], [1])
    graph = onnx.helper.make_graph([node], "outer", model.graph.input, [info("a", 1, None), info("b", 1, None)], [flag])
    return onnx.helper.make_model(graph, ir_version=10, opset_imports=model.opset_import)


def in_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model's nodes in a model-local function of another domain."""
    constants = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in model.graph.initializer
    ]
    outputs = [output.name for output in model.graph.output]
    nodes = [*constants, *model.graph.node]
    function = onnx.helper.make_function("user", "Block", ["x"], outputs, nodes, model.opset_import)
    call = onnx.helper.make_node("Block", ["x"], outputs, domain="user", name="block")
    graph = onnx.helper.make_graph([call], "outer", model.graph.input, model.graph.output)
    imports = [*model.opset_import, onnx.helper.make_opsetid("user", 1)]
    return onnx.helper.make_model(graph, ir_version=10, opset_imports=imports, functions=[function])


@pytest.mark.parametrize("wrap", [in_subgraph, in_function])
def test_nodes_in_subgraphs_and_in_functions(wrap):
    model = wrap(graph().build(functions=False))
    lowered = ortops.lower(model)
    assert "ortops" not in {item.domain for item in lowered.opset_import}
    same(run(lowered), expected())
    attached = ortops.attach_functions(model)
    assert {f.name for f in attached.functions} >= {"TestRanked", "TestScale", "TestScale_2", "TestScale_3"}
    same(run(attached), expected())


def test_an_operator_without_a_decomposition():
    g = ortops.Graph()
    g.output(bare(ops.identity(g.input("x", "float32", [2]))), "y")
    model = g.build()
    assert [function.name for function in model.functions] == ["IdentityCopy"]
    with pytest.raises(OpError, match=r"want of a decomposition: TestBare \(bare\)"):
        ortops.lower(model)
    assert [node.op_type for node in ortops.lower(model, ["IdentityCopy"]).graph.node] == ["Identity", "TestBare"]


def test_a_model_of_an_old_opset():
    g = ortops.Graph(opset=17)
    g.output(ops.identity(g.input("x", "float32", [2])), "y")
    with pytest.raises(OpError, match=r"IdentityCopy \(node identity\).* of opset 17; expected 18 or newer"):
        ortops.lower(g.build())
    assert onnxruntime.InferenceSession(g.build().SerializeToString()).run(None, {"x": X[0, :2]})[0].shape == (2,)


def test_a_rank_that_is_not_known():
    g = ortops.Graph()
    g.output(ranked(g.op("Mystery", g.input("x", "float32", [2]), domain="com.example", types=["float32"])), "y")
    with pytest.raises(OpError, match=r"TestRanked \(node ranked\) cannot be written in standard nodes.*rank"):
        g.build()


@pytest.mark.parametrize("declaration", [o for o in _declare.ops() if o.body is not None], ids=lambda o: o.name)
def test_every_decomposition_has_the_arguments_of_its_operator(declaration):
    assert callable(declaration.body)


def test_names_that_are_taken_are_left_alone():
    """A value and a node that are called what a lowered node would be."""
    g = ortops.Graph("taken")
    x = g.input("x", "float32", ["n", 3])
    y = ops.linear(x, np.ones((3, 4), np.float32), np.ones(4, np.float32), activation="gelu")
    g.output(g.onnx.Neg(y), "y")
    model = g.build(functions=False)
    node = next(node for node in model.graph.node if node.op_type == "Linear")
    lowered = ortops.lower(model)
    clash = next(other for other in lowered.graph.node if other.name.startswith(node.name))
    neg = next(other for other in model.graph.node if other.op_type == "Neg")
    neg.name = clash.name
    relu = onnx.helper.make_node("Relu", ["y"], [clash.output[0]], name="relu")
    model.graph.node.append(relu)
    model.graph.output.append(onnx.helper.make_tensor_value_info(clash.output[0], 1, ["n", 4]))
    again = ortops.lower(model)
    onnx.checker.check_model(again, full_check=True)
    assert len({other.name for other in again.graph.node}) == len(again.graph.node)


def test_a_file_that_is_no_model_is_named(tmp_path):
    path = tmp_path / "notes.onnx"
    path.write_bytes(b"\xff\xfenot a model")
    with pytest.raises(OpError, match=r"notes\.onnx: expected an ONNX model"):
        ortops.lower(path)
