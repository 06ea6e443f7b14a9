"""What is particular to RMSNorm."""

from __future__ import annotations

import numpy as np
import pytest

from ortops import ops, testing
from ortops._declare import element_type, find

RMS_NORM = find("RMSNorm")
assert RMS_NORM is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])


def run(provider, x, scale, residual=None, dtype="float32", outputs=("y",), **attributes):
    inputs = tuple(None if a is None else np.asarray(a).astype(element_type(dtype)) for a in (x, scale, residual))
    return testing.run(testing.Sample(RMS_NORM, "", {"T": dtype}, inputs, attributes, outputs), provider)


@pytest.mark.parametrize("axes", [1, 2])
def test_the_reference_is_pytorchs(axes: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(axes)
    x = rng.standard_normal((2, 3, 4, 5))
    scale = rng.standard_normal(x.shape[-axes:])
    want = torch.nn.functional.rms_norm(torch.from_numpy(x), scale.shape, torch.from_numpy(scale), 1e-3)
    np.testing.assert_allclose(ops.rms_norm(x, scale, epsilon=1e-3), want.numpy(), rtol=1e-12, atol=1e-14)


@every_provider
@pytest.mark.parametrize("width", [8, 4096])
def test_o12_squares_beyond_float16(provider: str, width: int) -> None:
    x = np.tile([[2e4, -2e4], [1e-4, -1e-4]], width // 2)
    (got,) = run(provider, x, np.ones(width), dtype="float16", epsilon=1e-6)
    want = np.tile([[1, -1], [0.09955, -0.09955]], width // 2)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


@every_provider
def test_zeros_stay_zeros(provider: str) -> None:
    y, rstd = run(provider, np.zeros((2, 5)), np.ones(5), outputs=("y", "rstd"), epsilon=1e-6)
    np.testing.assert_array_equal(y, 0)
    np.testing.assert_allclose(rstd, 1000, rtol=1e-6)


@every_provider
def test_statistics_are_taken_of_the_unrounded_sum(provider: str) -> None:
    x, residual = np.full((1, 2), 2048), np.array([[-2047, 1]])
    y, total = run(provider, x, np.ones(2), residual, dtype="float16", outputs=("y", "sum"), epsilon=0.0)
    np.testing.assert_array_equal(total, [[1, 2048]])  # 2049 is none of float16
    np.testing.assert_allclose(y, [[1 / np.sqrt((1 + 2049**2) / 2), np.sqrt(2)]], rtol=1e-3)


@every_provider
def test_a_nan_stays_in_its_row(provider: str) -> None:
    (got,) = run(provider, [[1, np.nan, 3], [1, 2, 3]], np.ones(3))
    assert np.isnan(got[0]).all() and np.isfinite(got[1]).all()
