"""What is particular to Permute."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import helper

import ortops
from ortops import ops, testing
from ortops._declare import OpError, element_type, find

PERMUTE = find("Permute")
assert PERMUTE is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
rng = np.random.default_rng(0)


def run(x: np.ndarray, perm: tuple[int, ...], provider: str = testing.CPU) -> np.ndarray:
    attributes = {"perm": perm} if perm else {}
    sample = testing.Sample(PERMUTE, "", {"T": str(x.dtype)}, (x,), attributes, ("y",))
    return testing.run(sample, provider)[0]


def counted(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Neighbours differ, along every axis."""
    return (np.arange(np.prod(shape)) % 1021).astype(element_type(dtype)).reshape(shape)


@every_provider
def test_there_and_back(provider: str) -> None:
    for turn in range(60):
        rank = int(rng.integers(0, 9))
        shape = tuple(int(n) for n in rng.integers(1, (5000, 80, 40, 12, 8, 5, 4, 3, 3)[rank] + 1, rank))
        perm = tuple(int(axis) for axis in rng.permutation(rank))
        x = counted(shape, ("float32", "float16", "uint8", "int64")[turn % 4])
        y = run(x, perm, provider)
        np.testing.assert_array_equal(y, x.transpose(perm), err_msg=f"{shape} by {perm}")
        np.testing.assert_array_equal(run(y, tuple(np.argsort(perm).tolist()), provider), x)


@every_provider
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
def test_o34_every_order_of_three_axes(provider: str, dtype: str) -> None:
    """https://github.com/microsoft/onnxruntime/issues/16039: wrong beyond a size, blocks of size 0 at others."""
    for shape in ((181, 211, 3), (1, 1, 5), (3, 1, 2), (2, 70000, 2), (65536, 2, 2)):
        x = counted(shape, dtype)
        for perm in itertools.permutations(range(3)):
            np.testing.assert_array_equal(run(x, perm, provider), x.transpose(perm), err_msg=f"{shape} by {perm}")


@every_provider
def test_o34_an_image(provider: str) -> None:
    x = counted((1081, 1921, 3), "float16")
    np.testing.assert_array_equal(run(x, (2, 0, 1), provider), x.transpose(2, 0, 1))


@every_provider
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
def test_every_way_that_a_kernel_takes(provider: str, dtype: str) -> None:
    """Planes aligned on both sides, on one, on none; short axes of either side; blocks that end early along two axes."""
    for shape, perm in (
        ((2, 128, 384), (0, 2, 1)),
        ((2, 128, 381), (0, 2, 1)),
        ((2, 127, 384), (0, 2, 1)),
        ((2, 127, 381), (0, 2, 1)),
        ((3, 65, 70, 2), (0, 3, 1, 2)),
        ((3, 2, 65, 70), (0, 2, 3, 1)),
        ((2, 4, 4, 65, 70), (0, 3, 1, 4, 2)),
        ((9, 7, 130, 5, 65), (2, 1, 4, 0, 3)),
        ((65, 70, 3), (1, 0, 2)),
        ((65, 70, 24), (1, 0, 2)),
        ((129, 66, 8), (1, 0, 2)),
    ):
        x = counted(shape, dtype)
        np.testing.assert_array_equal(run(x, perm, provider), x.transpose(perm), err_msg=f"{shape} by {perm}")


def test_the_reference_and_its_gradient_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    tensor = torch.from_numpy(x).requires_grad_()
    y = tensor.permute(-1, 1, 0, 2)
    np.testing.assert_array_equal(ops.permute(x, perm=(-1, 1, 0, 2)), y.detach().numpy())
    d_y = rng.standard_normal(y.shape).astype(np.float32)
    y.backward(torch.from_numpy(d_y))
    sample = testing.Sample(PERMUTE, "", {"T": "float32"}, (x,), {"perm": (-1, 1, 0, 2)}, ("y",))
    np.testing.assert_array_equal(testing.run_gradient(sample, [d_y])[0], tensor.grad.numpy())


@pytest.mark.parametrize("perm", [(0,), (0, 0), (0, 2), (0, -3), (0, 1, 2)])
def test_axes_that_are_none_are_told(perm: tuple[int, ...]) -> None:
    text = r"perm: expected each axis of x, which has 2, once, got \["
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match=text):
        ops.permute(x, perm=perm)
    with pytest.raises(OpError, match=f"Permute: attribute {text}"):
        ops.permute(ortops.Graph().input("x", "float32", [2, None]), perm=perm)
    model = testing.model_of(PERMUTE, ("float32",), (2,), (("perm", perm),), ("y",), ("float32",), (2,))
    with pytest.raises(Exception, match=text):
        session = testing._session(model, testing.CPU)
        session.run(None, {"input0": x})


@pytest.mark.slow
@pytest.mark.gpu
def test_more_than_2_to_the_31_elements() -> None:
    torch = pytest.importorskip("torch")
    for shape, perm in (((2**16 + 8, 2**15 + 4), (1, 0)), ((3, 2**15, 2**15 + 8), (0, 2, 1)), ((2**30, 3), (1, 0))):
        graph = ortops.Graph()
        graph.output(ops.permute(graph.input("x", "uint8", shape), perm=perm), "y")
        session = ortops.InferenceSession(graph, providers=[testing.CUDA])
        x = torch.randint(0, 255, shape, dtype=torch.uint8, device="cuda")
        y = torch.empty([shape[axis] for axis in perm], dtype=torch.uint8, device="cuda")
        binding = session.io_binding()
        binding.bind_input("x", "cuda", 0, np.uint8, shape, x.data_ptr())
        binding.bind_output("y", "cuda", 0, np.uint8, list(y.shape), y.data_ptr())
        torch.cuda.synchronize()
        session.run_with_iobinding(binding)
        torch.cuda.synchronize()
        assert bool((y == x.permute(perm)).all())
        del x, y


@pytest.mark.parametrize(
    ("perm", "got"), [(1, "an int"), (1.0, "a float"), ([0.0, 1.0], "a list of floats"), ("10", "a string")]
)
def test_a_model_whose_perm_is_no_list_of_ints_is_told(perm: object, got: str) -> None:
    """ONNX Runtime itself takes such an attribute for an empty list, which here would reverse the axes."""
    infos = [helper.make_tensor_value_info(name, 1, [None, None]) for name in "xy"]
    node = helper.make_node("Permute", ["x"], ["y"], name="turn", domain="ortops", perm=perm)
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ortops", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with pytest.raises(Exception, match=rf"Permute \(node turn\): attribute perm: expected a list of ints, got {got}"):
        ortops.InferenceSession(model, providers=[testing.CPU], lower="none")
