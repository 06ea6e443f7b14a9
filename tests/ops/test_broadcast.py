"""What is particular to BroadcastTo and SumToSize."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import ortops
from ortops import ops, testing
from ortops._declare import OpError, element_type, find

BROADCAST, SUM = find("BroadcastTo"), find("SumToSize")
assert BROADCAST is not None
assert SUM is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
rng = np.random.default_rng(0)


def broadcast(x: np.ndarray, *shape: int, provider: str = testing.CPU) -> np.ndarray:
    inputs = (x, np.array(shape, np.int64))
    return testing.run(testing.Sample(BROADCAST, "", {"T": str(x.dtype)}, inputs, {}, ("y",)), provider)[0]


def sum_to(x: np.ndarray, *shape: int, provider: str = testing.CPU) -> np.ndarray:
    inputs = (x, np.zeros(shape, x.dtype))
    return testing.run(testing.Sample(SUM, "", {"T": str(x.dtype)}, inputs, {}, ("y",)), provider)[0]


def random_shapes() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape, and one that it broadcasts to."""
    full = tuple(int(size) for size in rng.integers(1, 9, int(rng.integers(0, 7))))
    source = tuple(1 if rng.random() < 0.5 else size for size in full)
    return source[int(rng.integers(0, len(full) + 1)) :], full


@every_provider
def test_random_shapes_forward_and_backward(provider: str) -> None:
    torch = pytest.importorskip("torch")  # what it is compared with
    for _ in range(40):
        source, full = random_shapes()
        x, d_y = rng.standard_normal(source, dtype=np.float32), rng.standard_normal(full, dtype=np.float32)
        tensor = torch.from_numpy(x).requires_grad_()
        want = tensor.expand(full)
        want.backward(torch.from_numpy(d_y))
        # PyTorch adds float32 up in another order than the kernels do: some 1e-7 a term, and terms cancel, hence 1e-5 of each.
        np.testing.assert_array_equal(broadcast(x, *full, provider=provider), want.detach().numpy())
        np.testing.assert_allclose(sum_to(d_y, *source, provider=provider), tensor.grad.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(
            ops.sum_to_size(d_y, x), torch.from_numpy(d_y).sum_to_size(source), rtol=1e-5, atol=1e-5
        )
        sample = testing.Sample(BROADCAST, "", {"T": "float32"}, (x, np.array(full, np.int64)), {}, ("y",))
        got = testing.run_gradient(sample, [d_y], provider)[0]
        np.testing.assert_allclose(got, tensor.grad.numpy(), rtol=1e-5, atol=1e-5)


@every_provider
def test_o31_a_size_of_1_against_one_of_0(provider: str) -> None:
    """https://github.com/microsoft/onnxruntime/pull/2337: it gave 1, an error, or a division by zero."""
    empty = np.zeros((1, 0), np.float32)
    assert broadcast(empty, 3, 1, provider=provider).shape == (3, 0)
    assert broadcast(np.ones((3, 1), np.float32), 3, 0, provider=provider).shape == (3, 0)
    np.testing.assert_array_equal(sum_to(np.zeros((0, 2), np.float32), 1, 2, provider=provider), [[0, 0]])


@every_provider
def test_more_axes_than_8(provider: str) -> None:
    """(o31, https://github.com/microsoft/onnxruntime/issues/21254)"""
    x = rng.standard_normal((2, 1) * 6).astype(np.float32)
    np.testing.assert_array_equal(broadcast(x, *(2,) * 12, provider=provider), np.broadcast_to(x, (2,) * 12))


@every_provider
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_added_up_in_32(provider: str, dtype: str) -> None:
    """Neither overflow nor a sum that stops growing on the way. (o33)"""
    z = np.repeat([30000.0, -30000.0], 6).astype(element_type(dtype))
    ones = np.ones((4096, 5)).astype(element_type(dtype))
    for axis in (0, 1):
        shape = (1, 12) if axis else (12, 1)
        assert sum_to(z.reshape(shape), 1, 1, provider=provider).item() == 0
    np.testing.assert_array_equal(sum_to(ones, 5, provider=provider), np.full(5, 4096))
    np.testing.assert_array_equal(sum_to(ones.T.copy(), 5, 1, provider=provider), np.full((5, 1), 4096))


@every_provider
def test_a_sum_has_the_same_bits_each_time(provider: str) -> None:
    for shape, like in (((3001, 70), (70,)), ((70, 3001), (70, 1)), ((500_000,), (1,)), ((9, 33, 9, 65), (33, 1, 65))):
        x = rng.standard_normal(shape, dtype=np.float32)
        first = sum_to(x, *like, provider=provider)
        for _ in range(3):
            np.testing.assert_array_equal(sum_to(x, *like, provider=provider), first)


@every_provider
def test_a_nan_or_infinity_stays_in_its_sum(provider: str) -> None:
    x = np.ones((70, 40), np.float32)
    x[3, 5], x[4, 6] = np.nan, np.inf
    columns, rows = sum_to(x, 40, provider=provider), sum_to(x, 70, 1, provider=provider)
    assert np.argwhere(np.isnan(columns)).ravel().tolist() == [5]
    assert np.argwhere(np.isinf(columns)).ravel().tolist() == [6]
    assert np.argwhere(np.isnan(rows)).tolist() == [[3, 0]]


@pytest.mark.parametrize(("x", "shape"), [((3,), (4,)), ((2, 3), (3, 3)), ((3,), (0,)), ((2, 1), (3, 1))])
def test_shapes_that_do_not_broadcast_are_told(x: tuple[int, ...], shape: tuple[int, ...]) -> None:
    text = rf"shape: expected sizes that x of shape \[{', '.join(map(str, x))}\] broadcasts with, got"
    with pytest.raises(ValueError, match=text):
        ops.broadcast_to(np.zeros(x), np.array(shape))
    with pytest.raises(OpError, match=f"BroadcastTo: {text}"):
        ops.broadcast_to(ortops.Graph().input("x", "float32", x), np.array(shape))
    model = testing.model_of(BROADCAST, ("float32", "int64"), (len(x), 1), (), ("y",), ("float32",), (max(len(x), 1),))
    with pytest.raises(Exception, match=text):
        testing._session(model, testing.CPU).run(None, {"input0": np.zeros(x, np.float32), "input1": np.array(shape)})


def test_a_negative_size_is_told() -> None:
    text = r"shape: expected sizes from 0 on \(1 keeps the size of x\), got \[2, -1\]"
    with pytest.raises(ValueError, match=text):
        ops.broadcast_to(np.zeros((2, 3)), np.array([2, -1]))
    model = testing.model_of(BROADCAST, ("float32", "int64"), (2, 1), (), ("y",), ("float32",), (2,))
    with pytest.raises(Exception, match=text):
        feeds = {"input0": np.zeros((2, 3), np.float32), "input1": np.array([2, -1])}
        testing._session(model, testing.CPU).run(None, feeds)


@pytest.mark.parametrize(("x", "like"), [((3,), (4,)), ((3,), (1, 3)), ((2, 3), (2,)), ((1, 3), (0, 3))])
def test_a_shape_that_does_not_broadcast_to_x_is_told(x: tuple[int, ...], like: tuple[int, ...]) -> None:
    text = rf"like: expected a shape that broadcasts to that of x, \[{', '.join(map(str, x))}\], got"
    with pytest.raises(ValueError, match=text):
        ops.sum_to_size(np.zeros(x), np.zeros(like))
    graph = ortops.Graph()
    with pytest.raises(OpError, match=f"SumToSize: {text}"):
        ops.sum_to_size(graph.input("x", "float32", x), graph.input("like", "float32", like))
    model = testing.model_of(SUM, ("float32",) * 2, (len(x), len(like)), (), ("y",), ("float32",), (len(like),))
    with pytest.raises(Exception, match=text):
        feeds = {"input0": np.zeros(x, np.float32), "input1": np.zeros(like, np.float32)}
        testing._session(model, testing.CPU).run(None, feeds)


def test_a_shape_that_no_memory_holds_is_told() -> None:
    graph = ortops.Graph()
    graph.output(ops.broadcast_to(graph.input("x", "float32", []), graph.input("shape", "int64", [2])), "y")
    session = ortops.InferenceSession(graph, providers=[testing.CPU], lower="none")
    feeds = {"x": np.array(1, np.float32), "shape": np.array([2**40, 2**40])}
    with pytest.raises(
        Exception, match=r"BroadcastTo \(node .*\): y: expected less than 2\^60 elements, .* \[1099511627776,"
    ):
        session.run(None, feeds)
    feeds["shape"] = np.array([0, 2**62])
    assert session.run_with_ort_values(
        None, {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in feeds.items()}
    )[0].shape() == [0, 2**62]


@pytest.mark.slow
@pytest.mark.gpu
def test_more_than_2_to_the_31_elements() -> None:
    torch = pytest.importorskip("torch")  # whose memory on the GPU the tensors lie in
    rows, width = 2**16 + 3, 2**15 + 8
    for source in ((1, width), (rows, 1)):
        graph = ortops.Graph()
        x = graph.input("x", "float16", source)
        y = ops.broadcast_to(x, np.array([rows, width]))
        graph.output(y, "y")
        graph.output(ops.sum_to_size(y, x), "total")
        session = ortops.InferenceSession(graph, providers=[testing.CUDA])
        values = torch.randint(-3, 4, source, device="cuda").half() / 64  # sums that float16 holds
        y_memory = torch.empty((rows, width), dtype=torch.float16, device="cuda")
        binding = session.io_binding()
        binding.bind_input("x", "cuda", 0, np.float16, source, values.data_ptr())
        binding.bind_output("y", "cuda", 0, np.float16, (rows, width), y_memory.data_ptr())
        binding.bind_output("total")
        torch.cuda.synchronize()
        session.run_with_iobinding(binding)
        torch.cuda.synchronize()
        assert bool((y_memory == values).all())
        total = binding.copy_outputs_to_cpu()[1].astype(np.float64)
        count = rows if source[0] == 1 else width
        want = (values.double().cpu().numpy() * count).astype(np.float16).astype(np.float64)
        np.testing.assert_allclose(total, want, rtol=1e-3)  # an epsilon of float16, whose rounding is in both
