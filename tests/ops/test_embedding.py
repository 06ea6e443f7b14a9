"""What is particular to Embedding."""

from __future__ import annotations

import numpy as np
import pytest

import ortops
from ortops import OpError, ops, testing
from ortops._declare import ELEMENT_TYPES, element_type, find

EMBEDDING = find("Embedding")
assert EMBEDDING is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
every_index_type = pytest.mark.parametrize("itype", ["int64", "int32"])

W = np.arange(10, dtype=np.float32).reshape(5, 2)


def run(provider, indices, table, residual=None, itype="int64", dtype="float32"):
    arrays = [None if a is None else np.asarray(a).astype(element_type(dtype)) for a in (table, residual)]
    inputs = (np.asarray(indices, itype), *arrays)
    return testing.run(testing.Sample(EMBEDDING, "", {"I": itype, "T": dtype}, inputs, {}, ("y",)), provider)[0]


def look_up(provider, indices, table, residual=None, itype="int64", dtype="float32", session=None):
    """As `run`, also where the reference is an error."""
    session = session or session_of(provider, np.ndim(indices), table, residual, itype, dtype)
    return session.run(None, {"indices": np.asarray(indices, itype)})[0]


def session_of(provider, rank, table, residual=None, itype="int64", dtype="float32", **options):
    arrays = [None if a is None else np.asarray(a).astype(element_type(dtype)) for a in (table, residual)]
    graph = ortops.Graph()
    y = ops.embedding(graph.input("indices", itype, [None] * rank), *arrays)
    graph.output(graph.onnx.Cast(y, to=ELEMENT_TYPES["float32"]), "y")
    return ortops.InferenceSession(graph, providers=[provider], lower="none", **options)


def test_the_reference_is_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    indices, table = rng.integers(0, 11, (3, 4)), rng.standard_normal((11, 7))
    want = torch.nn.functional.embedding(torch.from_numpy(indices), torch.from_numpy(table), padding_idx=2)
    np.testing.assert_array_equal(ops.embedding(indices, table, padding_idx=2), want.numpy())


@every_provider
@every_index_type
def test_o18_negative_indices(provider: str, itype: str) -> None:
    np.testing.assert_array_equal(run(provider, [-1, 0, 4, -5], W, itype=itype), W[[4, 0, 4, 0]])


@every_index_type
@pytest.mark.parametrize("index", [5, -6, 2**31 - 1, -(2**31)])
def test_o18_an_index_outside_of_the_table_is_an_error(itype: str, index: int) -> None:
    text = rf"indices: index {index} is outside of the valid range \[-5, 4\]"
    with pytest.raises(OpError, match=f"Embedding: {text}"):
        ops.embedding(np.array([0, index], itype), W)
    session = session_of(testing.CPU, 1, W, itype=itype)
    with pytest.raises(Exception, match=text):
        look_up(testing.CPU, [0, index], W, itype=itype, session=session)
    np.testing.assert_array_equal(look_up(testing.CPU, [1], W, itype=itype, session=session), W[[1]])  # still usable


def test_one_bad_index_among_many_is_found() -> None:
    indices = np.zeros(100_000, np.int64)
    indices[77_777] = -2000
    with pytest.raises(Exception, match=r"index -2000 is outside of the valid range \[-1000, 999\]"):
        look_up(testing.CPU, indices, np.zeros((1000, 3)))


def test_nothing_can_be_looked_up_in_an_empty_table() -> None:
    with pytest.raises(Exception, match="index 0 is outside of the valid range"):
        look_up(testing.CPU, [0], np.zeros((0, 4)))
    assert look_up(testing.CPU, [], np.zeros((0, 4))).shape == (0, 4)


@pytest.mark.gpu
@every_index_type
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("width", [3, 64])
def test_o18_on_cuda_the_row_is_nan_and_no_other(itype: str, dtype: str, width: int) -> None:
    table = np.arange(5 * width).reshape(5, width) % 64
    indices = [5, 1, -6, 2, 2**31 - 1, -(2**31), -1]
    for residual in (None, np.ones((7, width))):
        got = look_up(testing.CUDA, indices, table, residual, itype, dtype)
        assert np.isnan(got[[0, 2, 4, 5]]).all()
        np.testing.assert_array_equal(got[[1, 3, 6]], table[[1, 2, 4]] + (residual is not None))
    assert np.isnan(look_up(testing.CUDA, [0, -1], np.zeros((0, width)), None, itype, dtype)).all()


@pytest.mark.gpu
@every_index_type
def test_o18_on_cuda_it_is_an_error_where_the_session_asks(itype: str) -> None:
    session = session_of(testing.CUDA, 1, W, itype=itype, check_indices=True)
    with pytest.raises(Exception, match=r"indices: index (5|-6) is outside of the valid range \[-5, 4\]"):
        look_up(testing.CUDA, [0, 5, -6, 1], W, itype=itype, session=session)
    np.testing.assert_array_equal(look_up(testing.CUDA, [-1], W, itype=itype, session=session), W[[4]])


@every_provider
@pytest.mark.parametrize("shape", [(384,), (3, 384), (1, 384), (5, 1, 384), (5, 3, 1), (1,), (5, 3, 384), (5, 1, 1)])
def test_the_residual_broadcasts(provider: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    indices, table, residual = rng.integers(-9, 9, (5, 3)), rng.standard_normal((9, 384)), rng.standard_normal(shape)
    got = run(provider, indices, table, residual)
    np.testing.assert_allclose(got, table[indices] + residual, rtol=1e-6, atol=1e-6)


def test_a_residual_that_does_not_broadcast_is_told() -> None:
    with pytest.raises(OpError, match=r"Embedding: residual: expected a shape that broadcasts to .*, got \[2, 2\]"):
        ops.embedding(np.zeros(3, np.int64), W, np.zeros((2, 2), np.float32))


@pytest.mark.slow
@pytest.mark.gpu
def test_a_table_of_more_than_2_to_the_31_elements() -> None:
    torch = pytest.importorskip("torch")
    rows, width = 2**31 // 1024 + 8, 1024
    table = torch.zeros((rows, width), dtype=torch.float16, device="cuda")
    table[-1] = 7
    graph = ortops.Graph()
    y = ops.embedding(graph.input("indices", "int64", [None]), graph.input("table", "float16", [None, width]))
    graph.output(y, "y")
    session = ortops.InferenceSession(graph, providers=[testing.CUDA])
    binding = session.io_binding()
    binding.bind_cpu_input("indices", np.array([-1, 0, rows - 1]))
    binding.bind_input("table", "cuda", 0, np.float16, [rows, width], table.data_ptr())
    binding.bind_output("y")
    torch.cuda.synchronize()
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0][:, 0], [7, 0, 7])
