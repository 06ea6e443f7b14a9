"""What is particular to GroupNorm and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

from ortops import OpError, ops, testing
from ortops._declare import element_type, find

GROUP_NORM, GRADIENT = find("GroupNorm"), find("GroupNormGradient")
assert GROUP_NORM is not None and GRADIENT is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
every_layout = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])


def sample_of(x, scale=None, bias=None, dtype="float32", outputs=("y",), layout="NCHW", **attributes):
    """x is given as NCHW."""
    x = np.moveaxis(np.asarray(x), 1, -1) if layout == "NHWC" else np.asarray(x)
    inputs = tuple(None if a is None else np.asarray(a).astype(element_type(dtype)) for a in (x, scale, bias))
    return testing.Sample(GROUP_NORM, "", {"T": dtype}, inputs, {"layout": layout, **attributes}, outputs)


def channels_second(y, layout):
    return np.moveaxis(y, -1, 1) if layout == "NHWC" else y


@every_provider
@every_layout
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("shape", [(2, 24), (3, 40, 6, 4), (1, 32, 67, 71), (2, 16, 3, 4, 5)])
def test_it_and_its_gradient_are_pytorchs(provider, layout, dtype, activation, shape) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(sum(shape))
    x, scale, bias = rng.standard_normal(shape) + 1, *rng.standard_normal((2, shape[1]))
    d_y = rng.standard_normal(shape)
    step = {"float32": 4e-6, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    attributes = {"groups": 8, "epsilon": 1e-3, "activation": activation}
    sample = sample_of(x, scale, bias, dtype, layout=layout, **attributes)
    rounded = [a.astype(element_type(dtype)).astype(np.float64) for a in (x, scale, bias, d_y)]
    inputs = [torch.tensor(a, requires_grad=True) for a in rounded[:3]]
    y = torch.nn.functional.group_norm(inputs[0], 8, inputs[1], inputs[2], 1e-3)
    y = torch.nn.functional.silu(y) if activation == "silu" else y
    y.backward(torch.tensor(rounded[3]))
    (got,) = testing.run(sample, provider)
    want = y.detach().numpy()
    np.testing.assert_allclose(channels_second(got, layout), want, rtol=step, atol=step * np.abs(want).max())
    d_y = (np.moveaxis(d_y, 1, -1) if layout == "NHWC" else d_y).astype(element_type(dtype))
    results = testing.run_gradient(sample, [d_y], provider)
    for i, value in enumerate(inputs):
        want, d = value.grad.numpy(), results[i].astype(np.float64)
        d = channels_second(d, layout) if i == 0 else d
        np.testing.assert_allclose(d, want, rtol=step, atol=step * np.abs(want).max(), err_msg=f"input {i}")


@every_provider
@every_layout
def test_o11_a_large_mean(provider: str, layout: str) -> None:
    x = np.array([[70001, 70002, 70004, 70003], [90006, 90000, 90003, 90001]])
    want = [[-1.3416355, -0.4472118, 1.3416355, 0.4472118], [1.5275238, -1.0910884, 0.21821769, -0.6546531]]
    for shape in ((1, 2, 4), (1, 4, 2), (2, 4)):
        groups = 1 if shape == (2, 4) else 2
        (got,) = testing.run(sample_of(x.reshape(shape), layout=layout, groups=groups), provider)
        np.testing.assert_allclose(channels_second(got, layout).reshape(2, 4), want, rtol=1e-5, atol=1e-5)


@every_provider
@every_layout
@pytest.mark.parametrize("size", [3, 300, 70_001])
def test_o11_constant_groups_give_exactly_the_bias(provider: str, layout: str, size: int) -> None:
    bias = np.array([-1, 0.5, 2, 0.25])
    sample = sample_of(np.full((2, 4, size), 987), np.ones(4), bias, layout=layout, groups=2, outputs=("y", "mean"))
    y, mean = testing.run(sample, provider)
    np.testing.assert_array_equal(channels_second(y, layout), np.broadcast_to(bias[:, None], (2, 4, size)))
    np.testing.assert_array_equal(mean, 987)


@every_provider
@every_layout
def test_o12_squares_beyond_float16(provider: str, layout: str) -> None:
    x = np.tile([[2e4, -2e4], [1e-4, -1e-4]], 32)[None].repeat(2, 1)
    sample = sample_of(x, dtype="float16", layout=layout, groups=2, epsilon=1e-6)
    (got,) = testing.run(sample, provider)
    want = np.tile([[1, -1], [0.09955, -0.09955]], 32)[None].repeat(2, 1)
    np.testing.assert_allclose(channels_second(got, layout), want, rtol=2e-3, atol=2e-3)


@every_provider
@every_layout
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0)])
def test_o13_nothing(provider: str, layout: str, shape: tuple[int, ...]) -> None:
    sample = sample_of(np.zeros(shape), np.ones(4), np.ones(4), layout=layout, groups=2, outputs=("y", "mean", "rstd"))
    y, mean, rstd = testing.run(sample, provider)
    assert channels_second(y, layout).shape == shape and np.isnan(mean).all() and np.isnan(rstd).all()
    assert mean.shape == rstd.shape == (shape[0], 2)
    results = testing.run_gradient(sample, [y], provider)
    assert results[0].shape == y.shape
    np.testing.assert_array_equal([results[1], results[2]], np.zeros((2, 4)))


@every_provider
@every_layout
def test_a_nan_stays_in_its_group(provider: str, layout: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, 5))
    x[1, 2, 3] = np.nan
    (got,) = testing.run(sample_of(x, layout=layout, groups=2), provider)
    wrong = np.isnan(channels_second(got, layout))
    assert wrong[1, 2:].all() and wrong.sum() == 10


def test_bad_input_is_told() -> None:
    with pytest.raises(OpError, match="attribute groups: expected a divisor of the 10 channels of x, got 4"):
        ops.group_norm(np.ones((2, 10, 3)), groups=4)
    with pytest.raises(OpError, match="GroupNorm: attribute groups: expected an int at least 1, got 0"):
        ops.group_norm(np.ones((2, 10, 3)), groups=0)
    with pytest.raises(OpError, match=r"GroupNorm: scale: expected shape \[C\] with C = 10, got \[3\]"):
        ops.group_norm(np.ones((2, 10, 3)), np.ones(3), groups=5)
    with pytest.raises(OpError, match=r"GroupNormGradient: mean: expected shape .*, got \[2, 4\]"):
        x = np.ones((2, 10, 3))
        ops.group_norm_gradient(x, x, np.ones((2, 4)), np.ones((2, 5)), groups=5)
