"""What is particular to ConstantPad and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

import ortops
from ortops import OpError, ops, testing
from ortops._declare import ALL, element_type, find

PAD = find("ConstantPad")
assert PAD is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
every_mode = pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])


def sample(x, **attributes):
    x = np.asarray(x)
    return testing.Sample(PAD, "", {"T": str(x.dtype)}, (x,), attributes, ("y",))


def run(provider, x, **attributes):
    return testing.run(sample(x, **attributes), provider)[0]


@every_provider
def test_o08_negative_pads_crop(provider: str) -> None:
    """https://github.com/microsoft/onnxruntime/issues/2433"""
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    got = run(provider, x, pads=(0, 0, -1, 2, 0, 0, 1, -3), value=9.0)
    np.testing.assert_array_equal(got, [[[[9, 9, 4], [9, 9, 8], [9, 9, 12], [9, 9, 9]]]])


@every_provider
def test_o09_some_axes_alone(provider: str) -> None:
    """https://github.com/apache/tvm/pull/20152"""
    x = np.array([[1, 2], [3, 4]], np.float32)
    got = run(provider, x, pads=(1, 2), axes=(-1,))
    np.testing.assert_array_equal(got, [[0, 1, 2, 0, 0], [0, 3, 4, 0, 0]])


def torch_pad(torch, x, pads, mode, value):
    """Of an image [N, C, H, W] or a row [N, C, W], by pads of the last axes in ONNX's order."""
    count = len(pads) // 2
    order = [p for axis in reversed(range(count)) for p in (pads[axis], pads[axis + count])]
    return (
        torch.nn.functional.pad(x, order, mode, value)
        if mode == "constant"
        else torch.nn.functional.pad(x, order, mode)
    )


@every_provider
@every_mode
@pytest.mark.parametrize("shape", [(2, 3, 9, 40), (1, 2, 33)])
def test_forward_and_backward_are_pytorchs(provider: str, mode: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    spatial = len(shape) - 2
    axes = tuple(range(2, len(shape)))
    for _ in range(12):
        limit = [min(shape[2 + i], 12) - (mode == "reflect") for i in range(spatial)]
        pads = [int(rng.integers(-4, limit[i % spatial] - 3)) for i in range(2 * spatial)]
        x = rng.standard_normal(shape).astype(np.float32)
        tensor = torch.from_numpy(x).requires_grad_()
        want = torch_pad(torch, tensor, pads, mode, 1.5)
        call = sample(x, pads=tuple(pads), axes=axes, mode=mode, value=1.5)
        np.testing.assert_array_equal(testing.run(call, provider)[0], want.detach().numpy())
        d_y = rng.standard_normal(want.shape).astype(np.float32)
        want.backward(torch.from_numpy(d_y))
        got = testing.run_gradient(call, [d_y], provider)[0]
        np.testing.assert_allclose(got, tensor.grad.numpy(), rtol=1e-5, atol=1e-5)
        if mode == "constant":
            np.testing.assert_array_equal(got, tensor.grad.numpy())


def test_the_gradient_of_padding_is_zero_in_what_was_cropped() -> None:
    x = np.zeros((3, 5), np.float32)
    d_y = np.ones((2, 4), np.float32)
    got = testing.run_gradient(sample(x, pads=(-1, 1, 0, -2)), [d_y])[0]
    np.testing.assert_array_equal(got, [[0, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0]])


#: Values as float32 has them, and what they become.
VALUES = [(-1.75, -1, 0), (3.99, 3, 3), (300.0, 300, 300), (-1e30, -(2**70), 0), (float("inf"), 2**70, 2**70)]


@every_provider
@pytest.mark.parametrize("dtype", ALL)
def test_the_value_becomes_an_element(provider: str, dtype: str) -> None:
    kind = element_type(dtype)
    for value, signed, unsigned in VALUES:
        got = run(provider, np.ones(1, kind), pads=(0, 1), value=value)[1]
        if dtype == "bool":
            assert got == (value != 0)
        elif "float" in dtype:
            with np.errstate(over="ignore"):
                assert got == np.float32(value).astype(kind).astype(np.float32)
        else:
            info = np.iinfo(kind)
            assert got == min(max(unsigned if info.min == 0 else signed, info.min), info.max), (value, got)


def test_float32s_value_is_rounded_to_the_type() -> None:
    assert run(testing.CPU, np.ones(1, np.float16), pads=(1, 0), value=0.1)[0] == np.float16(0.1)
    assert run(testing.CPU, np.ones(1, np.float64), pads=(1, 0), value=0.1)[0] == np.float64(np.float32(0.1))


def test_a_nan_is_copied_bit_by_bit() -> None:
    bits = np.array([0x7FC00001, 0xFFFFFFFF, 0x7F800001], np.uint32)
    np.testing.assert_array_equal(run(testing.CPU, bits.view(np.float32), pads=(2, 2)).view(np.uint32)[2:5], bits)


BAD = [
    ((5,), {"pads": (-3, -3)}, "attribute pads: expected to crop at most the 5 elements of axis 0, got -3 and -3"),
    ((5,), {"pads": (-6, 5)}, "attribute pads: expected to crop at most the 5 elements"),
    ((5,), {"pads": (5, 0), "mode": "reflect"}, "attribute pads: expected at most 4 elements"),
    ((5,), {"pads": (-2, 3), "mode": "reflect"}, "attribute pads: expected at most 2 elements"),
    ((5,), {"pads": (6, 0), "mode": "circular"}, "attribute pads: expected at most 5 elements"),
    ((0,), {"pads": (1, 0), "mode": "replicate"}, "attribute pads: expected at most 0 elements"),
    (
        (2, 3),
        {"pads": (1, 1)},
        "attribute pads: expected 4 values, the beginnings of 2 axes and then their ends, got 2",
    ),
    ((2, 3), {"pads": (1, 1, 1, 1), "axes": (1, -1)}, "attribute axes: expected distinct axes from -2 to 1, got -1"),
    ((2, 3), {"pads": (1, 1), "axes": (2,)}, "attribute axes: expected distinct axes from -2 to 1, got 2"),
    ((2,), {"pads": (-(2**63), -(2**63))}, "attribute pads: expected values between"),
    ((2,), {"pads": (2**62, 2**62)}, "attribute pads: expected values between"),
]


@pytest.mark.parametrize(("shape", "attributes", "text"), BAD)
def test_a_bad_call_is_told(shape: tuple[int, ...], attributes: dict, text: str) -> None:
    x = np.zeros(shape, np.float32)
    with pytest.raises(OpError, match=f"ConstantPad: {text}"):
        ops.constant_pad(x, **attributes)
    graph = ortops.Graph()
    with pytest.raises(OpError, match=f"ConstantPad: {text}"):
        ops.constant_pad(graph.input("x", "float32", shape), **attributes)


@pytest.mark.parametrize(("shape", "attributes", "text"), BAD)
def test_a_bad_node_is_told(shape: tuple[int, ...], attributes: dict, text: str) -> None:
    """The C++ twin of the check, which sees models that were built elsewhere."""
    model = testing.model_of(
        PAD, ("float32",), (len(shape),), tuple(attributes.items()), ("y",), ("float32",), (len(shape),)
    )
    with pytest.raises(Exception, match=text):
        testing._session(model, testing.CPU).run(None, {"input0": np.zeros(shape, np.float32)})


@every_provider
@every_mode
def test_what_is_empty(provider: str, mode: str) -> None:
    assert run(provider, np.zeros((0, 3), np.float32), pads=(0, 1, 0, 0), mode=mode).shape == (0, 4)
    assert run(provider, np.zeros((4, 3), np.float32), pads=(-2, 0, -2, 0), mode=mode).shape == (0, 3)
    if mode == "constant":
        np.testing.assert_array_equal(run(provider, np.zeros((0,), np.float32), pads=(1, 2), value=3.0), [3, 3, 3])


def test_a_scalar_has_no_axes_to_pad() -> None:
    graph = ortops.Graph()
    graph.output(ops.constant_pad(graph.input("x", "float32", ()), pads=()), "y")
    np.testing.assert_array_equal(
        ortops.InferenceSession(graph, lower="none").run(None, {"x": np.array(3, np.float32)})[0], 3
    )


@every_provider
def test_random_shapes_up_to_rank_7(provider: str) -> None:
    """Also where rows are shorter than a vector, and where all axes but one are whole."""
    rng = np.random.default_rng(1)
    for turn in range(40):
        rank = int(rng.integers(1, 8))
        shape = tuple(int(n) for n in rng.integers(1, 6 if rank > 3 else 40, rank))
        mode = ("constant", "reflect", "replicate", "circular")[turn % 4]
        pads = np.zeros((2, rank), int)
        for axis in rng.permutation(rank)[: rng.integers(1, rank + 1)]:
            most = {"constant": 9, "reflect": shape[axis] - 1, "replicate": 9, "circular": shape[axis]}[mode]
            pads[:, axis] = rng.integers(-(shape[axis] // 2), 1), rng.integers(0, most + 1)
            if mode in ("reflect", "circular"):
                pads[0, axis] = rng.integers(0, most + 1)
        dtype = ("float16", "uint8", "float32", "int64")[int(rng.integers(4))]
        call = sample(
            rng.integers(0, 100, shape).astype(dtype), pads=tuple(pads.ravel().tolist()), mode=mode, value=7.0
        )
        try:
            call.reference()
        except OpError:
            continue
        testing.compare(call, testing.run(call, provider))


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2**31 + 5,), (3, 2**30 + 1)])
def test_more_than_2_to_the_31_elements(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(np.prod(shape), device="cuda").to(torch.uint8).reshape(shape)
    pads = (0,) * (len(shape) - 1) + (3,) + (0,) * (len(shape) - 1) + (2,)
    graph = ortops.Graph()
    graph.output(ops.constant_pad(graph.input("x", "uint8", shape), pads=pads, value=7.0), "y")
    session = ortops.InferenceSession(graph, providers=[testing.CUDA])
    y = torch.empty((*shape[:-1], shape[-1] + 5), dtype=torch.uint8, device="cuda")
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, np.uint8, list(x.shape), x.data_ptr())
    binding.bind_output("y", "cuda", 0, np.uint8, list(y.shape), y.data_ptr())
    torch.cuda.synchronize()
    session.run_with_iobinding(binding)
    assert torch.equal(y[..., 3:-2], x)
    assert (y[..., :3] == 7).all() and (y[..., -2:] == 7).all()
