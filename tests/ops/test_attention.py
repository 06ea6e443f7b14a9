"""What is particular to attention: public reports of faults, PyTorch's results, errors, and every way the device has."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from ortops import testing
from ortops._declare import Op, OpError, ops

attention: Op = next(op for op in ops() if op.name == "ScaledDotProductAttention")

PROVIDERS = [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)]
with_provider = pytest.mark.parametrize("provider", PROVIDERS)
#: The ways that the CUDA kernel has (cuda/ops/attention/cuda.cu); "" is what it chooses by itself.
WAYS = ("", "general", "mma", "cudnn")


@pytest.fixture(params=[testing.CPU, *(pytest.param(f"{testing.CUDA} {way}", marks=pytest.mark.gpu) for way in WAYS)])
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name, _, way = request.param.partition(" ")
    if way:
        monkeypatch.setenv("ORTOPS_ATTENTION", way)
    return str(name)


def run(provider: str, query: Any, key: Any, value: Any, mask: Any = None, **attributes: Any) -> np.ndarray:
    types = {"T": str(query.dtype), "M": "bool" if mask is None else str(mask.dtype)}
    inputs = (query, key, value, mask)
    return testing.run(testing.Sample(attention, "test", types, inputs, attributes, ("y",)), provider)[0]


def ramp(count: int, divisor: float, *shape: int, dtype: str = "float32") -> np.ndarray:
    return (np.arange(count) / divisor).astype(dtype).reshape(shape)


# Public case o25.
@pytest.mark.parametrize(
    ("causal", "expected"),
    [
        ("top_left", [[0.0, 1.0], [1.1006731, 2.100673]]),
        ("bottom_right", [[2.0538602, 3.0538602], [3.499325, 4.499325]]),
    ],
)
def test_causal_with_fewer_queries_than_keys(provider: str, causal: str, expected: list[list[float]]) -> None:
    y = run(provider, ramp(4, 5, 1, 1, 2, 2), ramp(8, 7, 1, 1, 4, 2), ramp(8, 1, 1, 1, 4, 2), causal=causal)
    np.testing.assert_allclose(y[0, 0], expected, rtol=1e-5, atol=1e-6)


# Public case o26, forward.
@pytest.mark.parametrize("kind", ["bool", "float32"])
def test_a_query_without_keys_gives_zeros(provider: str, kind: str) -> None:
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
    given = mask if kind == "bool" else np.where(mask, 0, -np.inf).astype(np.float32)
    y = run(provider, ramp(6, 5, 1, 1, 3, 2), ramp(8, 7, 1, 1, 4, 2), ramp(8, 1, 1, 1, 4, 2), given)
    assert (y[0, 0, 1] == 0).all()
    np.testing.assert_allclose(y[0, 0, ::2], [[1.0202003, 2.0202003], [3.8767085, 4.8767085]], rtol=1e-5, atol=1e-5)


# Public case o27; the smaller head sizes are for the kernels that take no 512.
@pytest.mark.parametrize("size", [512, 256, 128])
def test_scores_above_the_range_of_float16(provider: str, size: int) -> None:
    q = np.full((1, 1, 6, size), 12.0 * (512 / size) ** 0.5, np.float16)
    v = (np.arange(6 * size) % 8 / 8).astype(np.float16).reshape(1, 1, 6, size)
    y = run(provider, q, q, v, causal="top_left", scale=1.0)
    mean = np.cumsum(v.astype(np.float64), axis=2) / np.arange(1, 7)[:, None]
    np.testing.assert_allclose(y.astype(np.float64), mean, atol=2e-3)


@pytest.mark.parametrize("size", [7, 40, 72, 80, 128, 256, 512])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["none", "causal", "key", "bool", "added"])
def test_torch(provider: str, size: int, dtype: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(size)
    q, k, v = (rng.standard_normal((2, 4, length, size)).astype(dtype) for length in (45, 70, 70))
    mask: Any = {
        "key": rng.random((2, 1, 1, 70)) < 0.7,
        "bool": rng.random((45, 70)) < 0.7,
        "added": rng.standard_normal((1, 4, 45, 70)).astype(dtype),
    }.get(kind)
    y = run(provider, q, k, v, mask, causal="top_left" if kind == "causal" else "none")
    wide = [torch.from_numpy(x).to(torch.float64) for x in (q, k, v)]
    given = None if mask is None else torch.from_numpy(mask if mask.dtype == bool else mask.astype(np.float64))
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, given, is_causal=kind == "causal")
    # float16: two epsilon, since tensor cores take the weights rounded to it, too.
    np.testing.assert_allclose(y, expected.numpy(), atol=1e-5 if dtype == "float32" else 2e-3)


def test_every_way_of_the_device_on_every_sample(provider: str) -> None:
    if provider == testing.CPU or "ORTOPS_ATTENTION" not in os.environ:
        pytest.skip("test_ops.py has run it")
    for types in attention.type_sets():
        for sample in testing.samples(attention, types):
            testing.compare(sample, testing.run(sample, provider))


@with_provider
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            ((1, 12, 3, 8), (1, 5, 4, 8), (1, 5, 4, 8)),
            "key: expected a number of heads that divides query's 12, got 5",
        ),
        (
            ((1, 2, 3, 520), (1, 2, 4, 520), (1, 2, 4, 8)),
            "query: expected a head size of at most 512, got 520",
        ),
        (
            ((1, 2, 3, 8), (1, 2, 4, 8), (1, 2, 4, 513)),
            "value: expected a head size of at most 512, got 513",
        ),
    ],
)
def test_errors(provider: str, shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(Exception, match=message):
        run(provider, *(np.zeros(shape, np.float32) for shape in shapes))


@with_provider
def test_a_mask_that_does_not_broadcast(provider: str) -> None:
    x = np.zeros((1, 2, 3, 8), np.float32)
    with pytest.raises(Exception, match=r"mask: expected a shape that broadcasts to .*, got"):
        run(provider, x, x, x, np.zeros((2, 3, 4), np.float32))


def test_the_reference_checks_the_number_of_heads() -> None:
    with pytest.raises(OpError, match="divides query's 12, got 5"):
        attention(np.zeros((1, 12, 3, 8)), *[np.zeros((1, 5, 4, 8))] * 2)
