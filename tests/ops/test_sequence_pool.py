"""What is particular to SequencePool."""

from __future__ import annotations

import numpy as np
import pytest

from ortops import OpError, ops, testing
from ortops._declare import element_type, find

SEQUENCE_POOL = find("SequencePool")
assert SEQUENCE_POOL is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
every_mode = pytest.mark.parametrize("mode", ["mean", "max", "first"])


def run(provider, x, mask, dtype="float32", **attributes):
    mask = np.asarray(mask)
    inputs = (np.asarray(x).astype(element_type(dtype)), mask)
    types = {"T": dtype, "M": str(mask.dtype)}
    return testing.run(testing.Sample(SEQUENCE_POOL, "", types, inputs, attributes, ("y",)), provider)[0]


def test_the_reference_is_sentence_transformers() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, mask = torch.from_numpy(rng.standard_normal((4, 6, 5))), torch.arange(6) < torch.tensor([[6], [1], [3], [4]])
    weight = mask[:, :, None].double()
    mean = (x * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
    want = torch.nn.functional.normalize(mean, p=2, dim=1)
    np.testing.assert_allclose(ops.sequence_pool(x.numpy(), mask.numpy(), normalize=True), want.numpy(), rtol=1e-12)


@every_provider
@every_mode
@pytest.mark.parametrize("normalize", [False, True])
def test_the_gradient_is_pytorchs(provider: str, mode: str, normalize: bool) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    array, mask = rng.standard_normal((5, 6, 4)).astype(np.float32), rng.integers(0, 2, (5, 6))
    array[1, 2] = array[1, 4] = 9.0  # two that are the largest
    mask[0], mask[1] = 0, 1
    x, keep = torch.tensor(array.astype(np.float64), requires_grad=True), torch.tensor(mask != 0)[:, :, None]
    some = keep.any(1)
    if mode == "mean":
        y = (x * keep).sum(1) / keep.sum(1).clamp(min=1)
    elif mode == "max":
        y = torch.where(some, torch.where(keep, x, -torch.inf).max(1).values, 0)
    else:
        y = torch.where(some, x[torch.arange(5), torch.tensor(mask.argmax(1))], 0)
    if normalize:
        y = torch.nn.functional.normalize(y, dim=1)
    sample = testing.Sample(
        SEQUENCE_POOL,
        "",
        {"T": "float32", "M": "int64"},
        (array, mask),
        {"mode": mode, "normalize": normalize},
        ("y",),
    )
    (d_y,) = testing.random_d_outputs(sample)
    y.backward(torch.tensor(d_y.astype(np.float64)))
    got = testing.run_gradient(sample, [d_y], provider)[0]
    np.testing.assert_allclose(got, x.grad.numpy(), rtol=2e-5, atol=2e-6)


@every_provider
@every_mode
@pytest.mark.parametrize("normalize", [False, True])
def test_nothing_kept_gives_zeros(provider: str, mode: str, normalize: bool) -> None:
    for length in (0, 1, 5):
        got = run(
            provider, np.full((2, length, 3), np.nan), np.zeros((2, length), bool), mode=mode, normalize=normalize
        )
        np.testing.assert_array_equal(got, np.zeros((2, 3)))


@every_provider
@every_mode
def test_what_is_not_kept_does_not_show(provider: str, mode: str) -> None:
    x = np.full((1, 4, 9), np.inf)
    x[0, 2] = np.arange(9) - 4
    for mask in (
        np.array([[0, 0, 1, 0]]),
        np.array([[0, 0, -7, 0]], np.int32),
        np.array([[False, False, True, False]]),
    ):
        np.testing.assert_array_equal(run(provider, x, mask, mode=mode), x[:, 2])


@every_provider
def test_the_maximum_of_a_nan_is_nan(provider: str) -> None:
    for place in range(3):
        x = np.zeros((1, 3, 2))
        x[0, place, 1] = np.nan
        np.testing.assert_array_equal(run(provider, x, np.ones((1, 3), bool), mode="max"), [[0, np.nan]])


@every_provider
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("width", [384, 5000])
def test_lengths_are_1(provider: str, dtype: str, width: int) -> None:
    x = np.random.default_rng(3).standard_normal((3, 17, width))
    got = run(provider, x, np.ones((3, 17), np.int64), dtype, normalize=True).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), 1, atol=2e-3)


@every_provider
def test_a_long_sequence(provider: str) -> None:
    x = np.random.default_rng(4).random((1, 100_000, 8))
    np.testing.assert_allclose(run(provider, x, np.ones((1, 100_000), bool)), x.mean(axis=1), rtol=1e-5)


def test_wrong_arguments_are_told() -> None:
    x, mask = np.zeros((2, 3, 4), np.float32), np.ones((2, 3), bool)
    with pytest.raises(OpError, match=r"SequencePool: mask: expected shape \[B S\] with B = 2, S = 3, got \[2, 4\]"):
        ops.sequence_pool(x, np.ones((2, 4), bool))
    with pytest.raises(OpError, match="SequencePool: mask: expected type bool or int64 or int32, got float32"):
        ops.sequence_pool(x, np.ones((2, 3), np.float32))
    with pytest.raises(OpError, match="attribute mode: expected one of mean, max, first, got 'cls'"):
        ops.sequence_pool(x, mask, mode="cls")
