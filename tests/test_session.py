"""Sessions: the library found and checked, providers that work, models in every form, lowering on the CPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest

import ortops
from ortops import LibraryError, OpError, _library, ops, session
from ortops._declare import element_type
from ortops.session import CPU, CUDA

X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((8, 300)).astype(np.float32)


def graph() -> ortops.Graph:
    g = ortops.Graph("test")
    x = g.input("x", "float32", ["batch", 8])
    g.output(g.onnx.Neg(ops.identity(x)) @ WEIGHT, "y")
    return g


def check(opened: onnxruntime.InferenceSession) -> None:
    np.testing.assert_allclose(opened.run(["y"], {"x": X})[0], -X @ WEIGHT, rtol=1e-5, atol=1e-5)


def shared_object(folder, source: str) -> str:
    """A small library, compiled from C."""
    (folder / "lib.c").write_text(source)
    path = folder / "lib.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, folder / "lib.c"], check=True)
    return str(path)


@pytest.fixture
def odd_folder(tmp_path):
    folder = tmp_path / "ops éü 測試"
    folder.mkdir()
    return folder


# --- the library


def test_the_library_says_what_it_is():
    info = ortops.build_info()
    assert info["version"] == ortops.__version__
    assert info["declarations"] == _library.declarations_hash()
    assert isinstance(info["cuda"], bool)


def test_public_case_o38_a_path_with_spaces_and_other_letters(odd_folder):
    """Registered from there, with two sets of options, both run, dropped in either order, and the process ends well."""
    shutil.copy(ortops.library_path(), odd_folder / "libortops.so")
    graph().save(odd_folder / "model.onnx")
    code = """
import sys, numpy as np, onnxruntime, ortops
folder, order = sys.argv[1], sys.argv[2]
sessions = []
for _ in range(2):
    options = onnxruntime.SessionOptions()
    ortops.register(options)
    sessions.append(onnxruntime.InferenceSession(folder + "/model.onnx", options, providers=["CPUExecutionProvider"]))
for session in sessions:
    session.run(None, {"x": np.ones((2, 8), np.float32)})
del session, options
del sessions[int(order)]
sessions[0].run(None, {"x": np.ones((2, 8), np.float32)})
"""
    for order in "01":
        environment = {**os.environ, "ORTOPS_LIBRARY": str(odd_folder / "libortops.so")}
        subprocess.run([sys.executable, "-c", code, odd_folder, order], check=True, env=environment)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: str(folder / "none.so"), "no such file"),
        (lambda folder: str(folder), "not a file"),
        (
            lambda folder: [(folder / "t.so").write_text("hello"), str(folder / "t.so")][1],
            "not a shared library .*b'hell'",
        ),
        (lambda folder: [(folder / "e.so").write_bytes(b"\x7fELF"), str(folder / "e.so")][1], "broke off"),
        (
            lambda folder: shared_object(folder, "int x;"),
            "not a library of ortops: it has no function RegisterCustomOps",
        ),
        (lambda folder: shared_object(folder, "void RegisterCustomOps(void) {}"), "no function OrtopsBuildInfo"),
        (
            lambda folder: shared_object(
                folder,
                'void RegisterCustomOps(void) {}\nconst char* OrtopsBuildInfo(void) { return "{\\"declarations\\": \\"old\\"}"; }',
            ),
            r"stale: built from other declarations \(old\).*make library",
        ),
    ],
)
def test_public_case_o38_what_is_no_library_of_ours(odd_folder, monkeypatch, make, reason):
    path = make(odd_folder)
    with pytest.raises(LibraryError, match=f"éü 測試.*{reason}") as caught:
        ortops.register(onnxruntime.SessionOptions(), library=path)
    assert path in str(caught.value)
    monkeypatch.setenv("ORTOPS_LIBRARY", path)
    with pytest.raises(LibraryError, match=reason):
        ortops.InferenceSession(graph())


def test_no_library_at_all(monkeypatch, tmp_path):
    monkeypatch.delenv("ORTOPS_LIBRARY", raising=False)
    monkeypatch.setattr(_library, "NAME", "libnone.so")
    with pytest.raises(LibraryError, match=r"libnone.so was not found; looked for .*ORTOPS_LIBRARY"):
        ortops.library_path()


def test_registering_twice_does_no_harm():
    options = onnxruntime.SessionOptions()
    ortops.register(options)
    ortops.register(options)
    check(ortops.InferenceSession(graph(), options))
    check(ortops.InferenceSession(graph(), options))


def test_check_indices_is_set_before_the_library_is_registered():
    seen = []

    class Options:
        def add_session_config_entry(self, key, value):
            seen.append((key, value))

        def get_session_config_entry(self, key):
            raise RuntimeError(key)

        def register_custom_ops_library(self, path):
            seen.append(path)

    ortops.register(Options(), check_indices=True)
    assert seen[:2] == [("ortops.check_indices", "1"), ortops.library_path()]


# --- models


@pytest.mark.parametrize("form", ["path", "str", "bytes", "proto", "ir", "graph", "external"])
@pytest.mark.parametrize("lower", ["auto", "all", "none"])
def test_models_in_every_form(form, lower, tmp_path):
    g = graph()
    path = tmp_path / "model.onnx"
    g.save(path, external_data=form == "external")
    forms = {
        "path": lambda: path,
        "external": lambda: path,
        "str": lambda: str(path),
        "bytes": path.read_bytes,
        "proto": g.build,
        "ir": g.ir,
        "graph": lambda: g,
    }
    opened = ortops.InferenceSession(forms[form](), providers=[CPU], lower=lower)
    assert isinstance(opened, onnxruntime.InferenceSession)
    assert [item.op for item in opened.ortops_lowered] == (["IdentityCopy"] if lower == "all" else [])
    check(opened)


def test_a_model_that_does_not_fit_in_a_protobuf(monkeypatch):
    monkeypatch.setattr(session, "PROTOBUF_BYTES", 1000)
    check(ortops.InferenceSession(graph()))


def test_with_and_without_the_library_the_same_numbers(tmp_path):
    path = tmp_path / "model.onnx"
    graph().save(path)
    check(ortops.InferenceSession(path, lower="none"))
    check(onnxruntime.InferenceSession(path, providers=[CPU]))


def test_standard_and_lowered_models_need_no_library(monkeypatch):
    monkeypatch.setenv("ORTOPS_LIBRARY", "/nowhere/libortops.so")
    check(ortops.InferenceSession(ortops.lower(graph().build())))
    check(ortops.InferenceSession(graph(), lower="all"))


def test_what_is_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.onnx: no such file"):
        ortops.InferenceSession(tmp_path / "none.onnx")
    for content in (b"", b"hello", b"\x89PNG\r\n\x1a\n" * 9):
        (tmp_path / "wrong.onnx").write_bytes(content)
        with pytest.raises(ValueError, match=r"wrong.onnx: not an ONNX model"):
            ortops.InferenceSession(tmp_path / "wrong.onnx")
        with pytest.raises(ValueError, match="not an ONNX model"):
            ortops.InferenceSession(content)
    with pytest.raises(TypeError, match=r"expected a path, .* got int"):
        ortops.InferenceSession(3)
    with pytest.raises(ValueError, match="lower: expected auto, all or none"):
        ortops.InferenceSession(graph(), lower="some")


def test_the_tokenizers_library_is_registered_where_it_is_used(monkeypatch):
    pytest.importorskip("onnxruntime_extensions")
    g = ortops.Graph()
    text = g.input("text", "string", ["n"])
    g.output(g.op("StringUpper", text, domain="ai.onnx.contrib", types=["string"], shapes=[["n"]]), "upper")
    options = onnxruntime.SessionOptions()
    for _ in range(2):
        opened = ortops.InferenceSession(g, options)
        assert list(opened.run(None, {"text": np.array(["ab", "c"], object)})[0]) == ["AB", "C"]
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    with pytest.raises(LibraryError, match="install the package onnxruntime-extensions"):
        ortops.InferenceSession(g)


# --- lowering on the CPU


def test_what_stock_runs_faster_is_lowered_and_said(monkeypatch, tmp_path):
    monkeypatch.setattr(session, "prefers_stock", lambda op, inputs, *_: f"{op} {inputs} 1.4 times")
    opened = ortops.InferenceSession(graph(), providers=[CPU])
    assert opened.ortops_lowered == (
        session.Lowered("identity", "IdentityCopy", "IdentityCopy {'x': 'float32'} 1.4 times"),
    )
    check(opened)
    assert ortops.InferenceSession(graph(), providers=[CPU], lower="none").ortops_lowered == ()
    graph().save(tmp_path / "model.onnx", external_data=True)
    before = sorted(path.name for path in tmp_path.iterdir())
    opened = ortops.InferenceSession(tmp_path / "model.onnx", providers=[CPU])
    assert len(opened.ortops_lowered) == 1
    check(opened)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_what_cannot_be_lowered_is_left(monkeypatch):
    monkeypatch.setattr(session, "prefers_stock", lambda *_: "faster")
    g = ortops.Graph(opset=17)
    g.output(ops.identity(g.input("x", "float32", [2])), "y")
    opened = ortops.InferenceSession(g, providers=[CPU])
    assert opened.ortops_lowered == ()
    with pytest.raises(ortops.OpError, match="opset 17"):
        ortops.InferenceSession(g, providers=[CPU], lower="all")


def linear_and_norm(dtype: str) -> ortops.Graph:
    g = ortops.Graph()
    element = element_type(dtype)
    y = ops.linear(g.input("x", dtype, ["n", 4]), np.eye(4, dtype=element))
    g.output(ops.layer_norm(y, np.ones(4, element), None, y), "y")
    return g


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_linear_runs_by_stock_where_its_weights_are_packed(dtype):
    opened = ortops.InferenceSession(linear_and_norm(dtype), providers=[CPU])
    assert [(item.op, "packs constant weights" in item.reason) for item in opened.ortops_lowered] == [("Linear", True)]


def test_bfloat16_is_never_lowered_on_the_cpu():
    opened = ortops.InferenceSession(linear_and_norm("bfloat16"), providers=[CPU])
    assert opened.ortops_lowered == ()
    with pytest.raises(
        ortops.OpError, match=r"Linear \(node linear\) is of bfloat16, .* no standard operators on the CPU"
    ):
        ortops.InferenceSession(linear_and_norm("bfloat16"), providers=[CPU], lower="all")


# --- providers


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(session, "working_cuda", lambda: "there is no NVIDIA driver (libcuda.so.1)")
    monkeypatch.setattr(_library, "check", lambda path=None: {"cuda": True})


def test_without_a_gpu_sessions_are_on_the_cpu_and_nothing_is_printed(no_gpu, capfd):
    assert ortops.InferenceSession(graph()).get_providers() == [CPU]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("providers", [[CUDA], [CUDA, CPU], [(CUDA, {"device_id": "0"}), CPU]])
def test_cuda_that_does_not_work_is_an_error_if_asked_for(no_gpu, providers):
    with pytest.raises(LibraryError, match="CUDAExecutionProvider does not work here: there is no NVIDIA driver"):
        ortops.InferenceSession(graph(), providers=providers)


def test_cuda_graph_without_cuda_is_an_error(no_gpu):
    with pytest.raises(LibraryError, match="cuda_graph: there is no NVIDIA driver"):
        ortops.InferenceSession(graph(), cuda_graph=True)
    with pytest.raises(ValueError, match="cuda_graph: expected CUDAExecutionProvider among the providers"):
        ortops.InferenceSession(graph(), providers=[CPU], cuda_graph=True)


def test_a_library_for_the_cpu_alone_says_so(monkeypatch):
    monkeypatch.setattr(_library, "check", lambda path=None: {"cuda": False})
    with pytest.raises(LibraryError, match=r"libortops.so is a CPU-only build .*ORTOPS_CUDA=on"):
        ortops.InferenceSession(graph(), providers=[CUDA])
    assert ortops.InferenceSession(graph()).get_providers() == [CPU]


def test_provider_options(no_gpu, monkeypatch):
    monkeypatch.setattr(session, "working_cuda", lambda: None)
    assert session._providers(None, None, cuda_graph=True, ours=True) == [(CUDA, {"enable_cuda_graph": "1"}), (CPU, {})]
    assert session._providers([CUDA, CPU], [{"device_id": "1"}, {}], False, True) == [
        (CUDA, {"device_id": "1"}),
        (CPU, {}),
    ]
    assert session._providers([(CUDA, {"a": "1"})], None, True, True) == [(CUDA, {"a": "1", "enable_cuda_graph": "1"})]
    with pytest.raises(ValueError, match="provider_options: expected 2 of them"):
        session._providers([CUDA, CPU], [{}], False, True)


def test_what_a_model_uses():
    proto = graph().build()
    assert session._used(proto) == session._ir_used(onnx_ir.from_proto(proto)) == ({"", "ortops"}, {"IdentityCopy"})
    assert session._used(onnx.ModelProto()) == (frozenset(), frozenset())


@pytest.mark.parametrize("size", [10, 5000, 200_000])
def test_a_library_that_breaks_off(tmp_path, size):
    (tmp_path / "part.so").write_bytes(Path(ortops.library_path()).read_bytes()[:size])
    with pytest.raises(LibraryError, match="broke off"):
        ortops.register(onnxruntime.SessionOptions(), library=str(tmp_path / "part.so"))


def test_a_call_that_standard_nodes_would_take_wrongly_is_not_lowered():
    """A bias of one element broadcasts in an Add; our operator refuses it, whichever way a session runs it."""
    node = onnx.helper.make_node("Linear", ["x", "w", "b"], ["y"], name="linear", domain="ortops")
    info = onnx.helper.make_tensor_value_info
    inputs = [info("x", 1, ["n", 3]), info("w", 1, [3, 4]), info("b", 1, ["k"])]
    graph = onnx.helper.make_graph([node], "wrong", inputs, [info("y", 1, ["n", 4])])
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("ortops", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    opened = ortops.InferenceSession(model, providers=[CPU])
    assert not opened.ortops_lowered
    feeds = {"x": np.ones((2, 3), np.float32), "w": np.ones((3, 4), np.float32)}
    with pytest.raises(Exception, match=r"Linear \(node linear\): b(ias)?: expected shape \[N\] with N = 4, got \[1\]"):
        opened.run(None, feeds | {"b": np.ones(1, np.float32)})
    assert opened.run(None, feeds | {"b": np.ones(4, np.float32)})[0].shape == (2, 4)


def test_a_session_registers_what_its_model_uses_and_given_options_everything():
    def model(op, *inputs):
        graph = ortops.Graph("small")
        graph.output(op(*(graph.input(name, "float32", shape) for name, shape in inputs)), "y")
        return graph

    linear = model(ops.linear, ("x", [2, 3]), ("weight", [3, 4]))
    norm = model(ops.rms_norm, ("x", [2, 3]), ("scale", [3]))
    feeds = {"x": np.ones((2, 3), np.float32)}
    for options in (None, onnxruntime.SessionOptions()):
        for graph, more in (
            (linear, {"weight": np.ones((3, 4), np.float32)}),
            (norm, {"scale": np.ones(3, np.float32)}),
        ):
            session = ortops.InferenceSession(graph, options, ["CPUExecutionProvider"], lower="none")
            (y,) = session.run(None, feeds | more)
            np.testing.assert_allclose(y, 3 if graph is linear else 1, rtol=1e-5)
    few = onnxruntime.SessionOptions()
    ortops.register(few, operators=["Linear"])
    with pytest.raises(Exception, match="RMSNorm"):
        onnxruntime.InferenceSession(norm.build(functions=False).SerializeToString(), few)


def test_a_graph_of_unknown_ranks_runs_by_our_kernels():
    """There is no function body then, and nothing in standard nodes."""
    g = ortops.Graph("unknown")
    x = g.input("x", "float32")
    g.output(ops.select_top_k(x, k=1)[0], "values")
    g.output(ops.sum_to_size(x, np.zeros((1, 1), np.float32)), "sum")
    for lower in ("none", "auto"):
        values, total = ortops.InferenceSession(g, providers=[CPU], lower=lower).run(None, {"x": X})
        np.testing.assert_array_equal(values, X.max(axis=1, keepdims=True))
        np.testing.assert_allclose(total, [[X.sum()]], rtol=1e-5)
    with pytest.raises(OpError, match=r"cannot be written in standard nodes: .* the rank of x, which is not known"):
        ortops.InferenceSession(g, providers=[CPU], lower="all")


def test_bare_attention_is_lowered_where_its_heads_are_known():
    def lowered(query_heads, key_heads, **options):
        g = ortops.Graph("attention")
        q = g.input("q", "float32", ["batch", query_heads, "queries", 8])
        k, v = (g.input(name, "float32", ["batch", key_heads, "keys", 8]) for name in "kv")
        g.output(ops.scaled_dot_product_attention(q, k, v, **options), "y")
        opened = ortops.InferenceSession(g, providers=[CPU])
        return [entry.op for entry in opened.ortops_lowered]

    assert lowered(4, 4) == ["ScaledDotProductAttention"]
    for heads, options in (((4, 2), {}), (("h", "h"), {}), ((4, 4), {"causal": "top_left"})):
        assert lowered(*heads, **options) == []
