"""Sessions on a GPU: placement, streams, threads, CUDA graphs, indices."""

from __future__ import annotations

import threading

import numpy as np
import onnxruntime
import pytest
from ortops.export.transformer import BertConfig, random_bert

import ortops
from ortops import ops
from ortops.session import CUDA

pytestmark = pytest.mark.gpu

CONFIG = BertConfig(vocabulary=200, width=64, layers=2, heads=4, inner=128, positions=64)


def encoder_inputs(batch: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = np.arange(length)[None] < rng.integers(1, length + 1, (batch, 1))
    return {"input_ids": rng.integers(0, 200, (batch, length)), "attention_mask": mask.astype(np.int64)}


def test_the_default_provider_is_cuda_and_every_node_of_ours_is_on_it() -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = ortops.InferenceSession(random_bert(CONFIG, dtype="float16"), options)
    assert session.get_providers()[0] == CUDA
    placed = [
        (part.ep_name, node) for part in session.get_provider_graph_assignment_info() for node in part.get_nodes()
    ]
    ours = {name for name, node in placed if node.domain == "ortops"}
    assert ours == {CUDA}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_encoder_gives_what_it_gives_on_the_cpu(dtype: str) -> None:
    graph = random_bert(CONFIG, dtype=dtype)
    on_cpu = ortops.InferenceSession(graph, providers=["CPUExecutionProvider"])
    on_cuda = ortops.InferenceSession(graph)
    for batch, length in ((3, 7), (1, 64), (5, 33), (0, 4)):
        inputs = encoder_inputs(batch, length)
        expected, got = on_cpu.run(None, inputs)[0], on_cuda.run(None, inputs)[0]
        np.testing.assert_allclose(got, expected, atol={"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype])


def chain() -> ortops.Graph:
    """Public case o36: products of ONNX Runtime's own around operators of ours."""
    g = ortops.Graph("chain")
    rng = np.random.default_rng(0)
    x = g.input("x", "float32", [512, 512])
    ones = np.ones(512, np.float32)
    for _ in range(4):
        x = x @ g.constant((rng.standard_normal((512, 512)) / 23).astype(np.float32))
        x = ops.linear(ops.layer_norm(x, ones), np.eye(512, dtype=np.float32), activation="gelu", residual=x)
    g.output(x, "y")
    return g


def test_kernels_run_on_the_sessions_stream() -> None:
    """Public case o36: 200 runs, two sessions in two threads, and a stream of the caller's: always the same bits."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(1).standard_normal((512, 512)).astype(np.float32)
    stream = torch.cuda.Stream()
    own = {"user_compute_stream": str(stream.cuda_stream)}
    sessions = [ortops.InferenceSession(chain()) for _ in range(2)]
    sessions.append(ortops.InferenceSession(chain(), providers=[(CUDA, own)]))
    expected = sessions[0].run(None, {"x": x})[0]
    wrong: list[int] = []

    def work(session: ortops.InferenceSession) -> None:
        wrong.extend(i for i in range(200) if not np.array_equal(session.run(None, {"x": x})[0], expected))

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_session_in_eight_threads() -> None:
    session = ortops.InferenceSession(random_bert(CONFIG, dtype="float16"))
    calls = [encoder_inputs(1 + i % 4, 5 + 3 * i, i) for i in range(8)]
    expected = [session.run(None, inputs)[0] for inputs in calls]
    wrong: list[int] = []

    def work(i: int) -> None:
        wrong.extend(i for _ in range(30) if not np.allclose(session.run(None, calls[i])[0], expected[i], atol=1e-4))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_whole_model_as_a_cuda_graph_in_four_threads() -> None:
    """Public case o37: captured by each thread at its first run, replayed with changed inputs."""
    torch = pytest.importorskip("torch")
    options = onnxruntime.SessionOptions()
    for name, size in (("batch", 3), ("length", 16)):
        options.add_free_dimension_override_by_name(name, size)
    graph = random_bert(CONFIG, dtype="float16")
    session = ortops.InferenceSession(graph, options, cuda_graph=True)
    plain = ortops.InferenceSession(graph)
    calls = [encoder_inputs(3, 16, seed) for seed in range(12)]
    expected = [plain.run(None, inputs)[0] for inputs in calls]
    errors: list[object] = []

    def work(thread: int) -> None:
        try:
            binding = session.io_binding()
            tensors = {name: torch.from_numpy(array).cuda() for name, array in calls[0].items()}
            y = torch.empty(3, CONFIG.width, device="cuda")
            for name, tensor in tensors.items():
                binding.bind_input(name, "cuda", 0, np.int64, tuple(tensor.shape), tensor.data_ptr())
            binding.bind_output("embedding", "cuda", 0, np.float32, tuple(y.shape), y.data_ptr())
            for i in range(thread, 12, 4):
                with allocations:
                    for name, tensor in tensors.items():
                        tensor.copy_(torch.from_numpy(calls[i][name]))
                    y.fill_(float("nan"))
                    torch.cuda.synchronize()
                    session.run_with_iobinding(binding)
                    got = y.cpu().numpy()
                if not np.allclose(got, expected[i], atol=1e-4):
                    errors.append(i)
        except Exception as error:
            errors.append(error)

    allocations = threading.Lock()  # PyTorch's own work must not fall into a capture
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_indices_outside_of_the_table() -> None:
    """NaN rows; with `check_indices` an error, after which the session goes on. Public case o18."""
    g = ortops.Graph("lookup")
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    g.output(ops.embedding(g.input("i", "int64", ["n"]), table), "y")
    good, bad = np.array([-1, 0, 4]), np.array([0, 5, -6])
    quiet = ortops.InferenceSession(g)
    np.testing.assert_array_equal(quiet.run(None, {"i": good})[0], table[good])
    rows = quiet.run(None, {"i": bad})[0]
    np.testing.assert_array_equal(rows[0], table[0])
    assert np.isnan(rows[1:]).all()
    strict = ortops.InferenceSession(g, check_indices=True)
    with pytest.raises(Exception, match=r"Embedding.*indices: index (5|-6) is outside of the valid range \[-5, 4\]"):
        strict.run(None, {"i": bad})
    np.testing.assert_array_equal(strict.run(None, {"i": good})[0], table[good])
