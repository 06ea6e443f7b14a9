"""What is particular to LayerNorm."""

from __future__ import annotations

import numpy as np
import pytest

from ortops import OpError, ops, testing
from ortops._declare import element_type, find

LAYER_NORM = find("LayerNorm")
assert LAYER_NORM is not None
EVERYTHING = ("y", "sum", "mean", "rstd")
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])


def run(provider, x, scale, bias=None, residual=None, dtype="float32", outputs=("y",), **attributes):
    inputs = tuple(None if a is None else np.asarray(a).astype(element_type(dtype)) for a in (x, scale, bias, residual))
    return testing.run(testing.Sample(LAYER_NORM, "", {"T": dtype}, inputs, attributes, outputs), provider)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_reference_is_pytorchs(axes: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(axes)
    x = rng.standard_normal((2, 3, 4, 5))
    scale, bias = rng.standard_normal((2, *x.shape[-axes:]))
    want = torch.nn.functional.layer_norm(
        torch.from_numpy(x), scale.shape, torch.from_numpy(scale), torch.from_numpy(bias), 1e-3
    )
    np.testing.assert_allclose(ops.layer_norm(x, scale, bias, epsilon=1e-3), want.numpy(), rtol=1e-12, atol=1e-14)


@every_provider
def test_o11_a_large_mean(provider: str) -> None:
    x = [[70001, 70002, 70004, 70003], [90006, 90000, 90003, 90001]]
    want = [[-1.3416355, -0.4472118, 1.3416355, 0.4472118], [1.5275238, -1.0910884, 0.21821769, -0.6546531]]
    (got,) = run(provider, x, np.ones(4), np.zeros(4))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@every_provider
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("width", [1, 300, 4096, 70_001])
def test_o11_a_constant_row_gives_exactly_the_bias(provider: str, dtype: str, width: int) -> None:
    bias = np.linspace(-1, 1, width)
    for shift in (bias, None):
        y, mean, rstd = run(
            provider, np.full((3, width), 987), np.ones(width), shift, dtype=dtype, outputs=("y", "mean", "rstd")
        )
        np.testing.assert_array_equal(y[0], np.zeros(width) if shift is None else bias.astype(dtype))
        np.testing.assert_array_equal(mean, 987)
        np.testing.assert_allclose(rstd, 1e-5**-0.5, rtol=1e-6)


@every_provider
def test_o13_no_rows(provider: str) -> None:
    results = run(provider, np.zeros((0, 4)), np.ones(4), np.zeros(4), outputs=EVERYTHING)
    assert [result.shape for result in results] == [(0, 4), (0, 4), (0,), (0,)]


@every_provider
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rows_of_nothing(provider: str) -> None:
    y, mean, rstd = run(provider, np.zeros((3, 2, 0)), np.ones((2, 0)), outputs=("y", "mean", "rstd"))
    assert y.shape == (3, 2, 0)
    assert np.isnan(mean).all() and np.isnan(rstd).all() and mean.shape == rstd.shape == (3,)


@every_provider
def test_o14_all_axes_before_the_row_are_rows(provider: str) -> None:
    x = (((np.arange(24) * 7) % 11 - 5) / 4).reshape(2, 3, 4)
    (got,) = run(provider, x, [1, 0.5, -2, 1.5], [0.1, -0.2, 0.3, 0])
    want = [[-1.213057, 0.062611416, 1.3504456, 1.9695857], [1.1441765, -0.3204819, 3.3522081, 1.0843371]]
    np.testing.assert_allclose([got[0, 0], got[1, 2]], want, rtol=1e-5, atol=1e-6)


@every_provider
def test_statistics_are_taken_of_the_unrounded_sum(provider: str) -> None:
    # In float16 2048 + 1 is 2048: were the sum rounded first, every row would be constant.
    x, residual = np.full((2, 4), 2048), np.array([[0, 1, 0, 1], [1, 0, 0, 1]])
    y, total, mean = run(provider, x, np.ones(4), None, residual, dtype="float16", outputs=("y", "sum", "mean"))
    np.testing.assert_allclose(y, 2 * residual - 1, atol=1e-3)
    np.testing.assert_array_equal(total, 2048)
    np.testing.assert_array_equal(mean, 2048.5)


@every_provider
def test_rows_do_not_depend_on_their_neighbours(provider: str) -> None:
    x = np.random.default_rng(5).standard_normal((37, 384))
    (together,) = run(provider, x, np.ones(384))
    (alone,) = run(provider, x[36:], np.ones(384))
    np.testing.assert_array_equal(together[36:], alone)


def test_wrong_shapes_are_told() -> None:
    with pytest.raises(OpError, match=r"LayerNorm: x: expected shape \[\.\.\. \*D\] with \*D = \[5\], got \[2, 4\]"):
        ops.layer_norm(np.ones((2, 4)), np.ones(5))
    with pytest.raises(OpError, match=r"LayerNorm: residual: expected shape .*, got \[3, 4\]"):
        ops.layer_norm(np.ones((2, 4)), np.ones(4), residual=np.ones((3, 4)))
    with pytest.raises(OpError, match="attribute epsilon: expected a float at least 0, got -1"):
        ops.layer_norm(np.ones((2, 4)), np.ones(4), epsilon=-1.0)


@every_provider
def test_a_nan_stays_in_its_row(provider: str) -> None:
    (got,) = run(provider, [[1, np.nan, 3], [1, 2, 3]], np.ones(3))
    assert np.isnan(got[0]).all() and np.isfinite(got[1]).all()
