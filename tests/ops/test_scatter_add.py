"""What is particular to ScatterAdd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ortops
from ortops import Graph, OpError, ops, testing
from ortops._declare import element_type, find

SCATTER = find("ScatterAdd")
assert SCATTER is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
every_reduction = pytest.mark.parametrize("reduction", ["add", "mul", "min", "max"])
TORCHS = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


def sample(x: Any, indices: Any, updates: Any, dtype: str = "float32", itype: str = "int64", **attributes: Any):
    arrays = (np.asarray(x, element_type(dtype)), np.asarray(indices, itype), np.asarray(updates, element_type(dtype)))
    return testing.Sample(SCATTER, "", {"I": itype, "T": dtype}, arrays, attributes, ("y",))


def run(provider: str, *inputs: Any, **options: Any) -> np.ndarray:
    return testing.run(sample(*inputs, **options), provider)[0]


@every_provider
@pytest.mark.parametrize("itype", ["int64", "int32"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_o35_duplicates(provider: str, itype: str, deterministic: bool) -> None:
    """https://github.com/microsoft/onnxruntime/issues/18381"""
    index, options = [0, 1, 0, 0, 1], {"itype": itype, "deterministic": deterministic}
    np.testing.assert_array_equal(run(provider, [10, 20], index, [1, 2, 3, 4, 5], **options), [18, 27])
    got = run(provider, np.ones((3, 3)), [[1], [2]], [[0.5], [0.25]], axis=1, **options)
    np.testing.assert_array_equal(got, [[1, 1.5, 1], [1, 1, 1.25], [1, 1, 1]])
    call = sample([10, 20], index, [1, 2, 3, 4, 5], **options)
    gradients = testing.run_gradient(call, [np.array([1, 10], np.float32)], provider)
    np.testing.assert_array_equal(gradients[2], [1, 10, 1, 1, 10])
    np.testing.assert_array_equal(gradients[0], [1, 10])


@every_provider
@every_reduction
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("x", "indices", "updates", "axis"),
    [
        ((20,), (90,), (90,), 0),
        ((40, 3), (700, 3), (600, 3), 0),
        ((6, 9), (6, 20), (5, 20), 1),
        ((3, 8, 5), (3, 12, 5), (2, 12, 4), 1),
        ((9, 32), (500, 32), (500, 32), 0),
        ((4, 3000), (4, 50), (4, 50), -1),
    ],
)
def test_it_is_pytorchs(
    provider: str, reduction: str, dtype: str, x: Any, indices: Any, updates: Any, axis: int
) -> None:
    """Forward and backward; torch's index may be larger than the source, ours is not."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    index = rng.integers(0, x[axis], updates)
    # Few values, so that extremes are shared, some of them 0; about 1, so that products stay in range.
    choices = np.array([0.5, 1, 1, 2, -1, 1, 0] if reduction != "mul" else [0.5, 1, 1, 1, 2, -1, -1, 0.5, 2])
    a, b = rng.choice(choices, x), rng.choice(choices, updates)
    if reduction == "mul":  # none, one and several factors of 0 for some elements
        a.flat[:2], b.flat[:5] = 0, 0
    d_y = rng.integers(-4, 4, x) / 4
    tensors = [torch.from_numpy(v).requires_grad_() for v in (a, b)]
    want = tensors[0].scatter_reduce(axis, torch.from_numpy(index), tensors[1], TORCHS[reduction])
    want.backward(torch.from_numpy(d_y))
    call = sample(a, index, b, dtype=dtype, axis=axis, reduction=reduction)
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(testing.run(call, provider)[0], want.detach().numpy(), tolerance, tolerance)
    gradients = testing.run_gradient(call, [d_y.astype(dtype)], provider)
    for at, tensor in ((0, tensors[0]), (2, tensors[1])):
        np.testing.assert_allclose(gradients[at], tensor.grad.numpy(), tolerance, tolerance)


@every_provider
@every_reduction
@pytest.mark.parametrize("count", [40, 3000])
@pytest.mark.parametrize("width", [1, 3, 32, 1000])
def test_rows(provider: str, reduction: str, count: int, width: int) -> None:
    """One index a row gives what one for each element gives."""
    rng = np.random.default_rng(1)
    x, updates = rng.standard_normal((70, width)), rng.standard_normal((count, width))
    if reduction == "mul":
        updates = rng.choice([-1.0, 1.0], updates.shape)
    indices = rng.integers(-70, 70, (count, 1))
    given = {"reduction": reduction, "deterministic": True}
    got = run(provider, x, indices, updates, **given)
    want = run(provider, x, np.repeat(indices, width, 1), updates, **given)
    np.testing.assert_allclose(got, want, 1e-5, 1e-5)


@every_provider
@pytest.mark.parametrize("reduction", ["min", "max", "add", "mul"])
@pytest.mark.parametrize("width", [1, 16])
@pytest.mark.parametrize("count", [8, 400])
def test_nan_wins_wherever_it_stands(provider: str, reduction: str, width: int, count: int) -> None:
    x, updates = np.ones((4, width)), np.ones((count, width))
    x[0], updates[::4] = np.nan, 2  # row 0 has one, and its updates do not
    updates[1], updates[-2] = np.nan, np.nan  # the first update of row 1, the last of row 2
    indices = np.arange(count)[:, None] % 4
    got = run(provider, x, indices, updates, reduction=reduction)
    assert np.isnan(got[:3]).all()
    assert not np.isnan(got[3]).any()


@every_provider
@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_are_rounded_once(provider: str, width: int, dtype: str) -> None:
    """4096 + 1 + 1 + .. stays 4096 if it is rounded to 16 bits each time."""
    x, updates = np.full((2, width), 4096), np.ones((1024, width))
    np.testing.assert_array_equal(run(provider, x, np.zeros((1024, 1)), updates, dtype=dtype)[0].astype(int), 5120)


@every_provider
@every_reduction
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("x", "updates", "axis"),
    [
        ((12_000, 40), (6000, 40), 0),  # more than tiles in shared memory are worth on CUDA: one slice
        ((12_000, 41), (6000, 41), 0),
        ((30_000,), (70_000,), 0),
        ((9, 20_000), (7, 60_000), 1),
    ],
)
def test_many_elements(
    provider: str, reduction: str, deterministic: bool, x: Any, updates: Any, axis: int, dtype: str = "float32"
) -> None:
    """Against numpy's ufunc.at, in float64."""
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-8, 8, shape) / 8 for shape in (x, updates))
    if reduction == "mul":
        b = rng.choice([0.5, 1, -1, 2], updates)
    indices = rng.integers(0, x[axis], updates)
    if len(x) > 1 and axis == 0:  # neighbours that go to neighbours
        indices[:, : updates[1] // 2] = indices[:, :1]
    options = {"axis": axis, "reduction": reduction, "deterministic": deterministic, "dtype": dtype}
    got = run(provider, a, indices - x[axis] * (indices % 2), b, **options)
    at = list(np.indices(updates, sparse=True))
    at[axis] = indices
    {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[reduction].at(a, tuple(at), b)
    np.testing.assert_array_equal(got.astype(np.float64), a.astype(got.dtype).astype(np.float64))


@pytest.mark.gpu
@pytest.mark.parametrize(("reduction", "dtype"), [("add", "float32"), ("add", "float16"), ("max", "bfloat16")])
@pytest.mark.parametrize(
    ("x", "updates", "axis"),
    # Slices of columns; ones whose rows no vector divides; of lines, in three ways; a part of the lines, in one.
    [
        ((40_000, 200), (50_000, 200), 0),
        ((80_000, 101), (50_000, 101), 0),
        ((2, 40_000, 101), (2, 30_000, 101), 1),
        ((9, 900_000), (9, 500_000), 1),
        ((9, 900_001), (9, 500_000), 1),
        ((9, 900_000), (8, 600_000), 1),
    ],
)
def test_slices_on_cuda(x: Any, updates: Any, axis: int, reduction: str, dtype: str) -> None:
    test_many_elements(testing.CUDA, reduction, False, x, updates, axis, dtype)


@every_provider
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_many_small_updates_of_one_element_are_not_lost(provider: str, dtype: str, deterministic: bool) -> None:
    x, indices = np.zeros((12_000, 40)), np.full((4096, 40), 7)
    got = run(provider, x, indices, np.ones(indices.shape), dtype=dtype, deterministic=deterministic)
    x[7] = 4096
    np.testing.assert_array_equal(got.astype(np.float64), x)


@every_provider
def test_updates_that_reach_a_part_leave_the_rest(provider: str) -> None:
    rng = np.random.default_rng(2)
    x, updates, indices = rng.random((3, 50, 40)), rng.random((2, 600, 16)), rng.integers(0, 50, (600, 1))
    got = run(provider, x, indices, updates, axis=1)
    want = x.copy()
    np.add.at(want[:2, :, :16], (slice(None), indices[:, 0]), updates)
    np.testing.assert_allclose(got, want, 1e-5, 1e-5)
    np.testing.assert_array_equal(got[2], x[2].astype(np.float32))


@every_provider
@pytest.mark.parametrize("shape", [(5000, 8), (200_000,)])
def test_deterministic_gives_the_same_bits_in_every_run(provider: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    updates, indices = rng.standard_normal(shape), rng.integers(0, 9, (shape[0],) + (1,) * (len(shape) - 1))
    call = sample(np.zeros((9, *shape[1:])), indices, updates, deterministic=True)
    first = testing.run(call, provider)[0]
    for _ in range(3):
        np.testing.assert_array_equal(testing.run(call, provider)[0], first)


@every_provider
def test_no_updates(provider: str) -> None:
    x = np.arange(12).reshape(4, 3)
    np.testing.assert_array_equal(run(provider, x, np.zeros((0, 1)), np.zeros((0, 3))), x)
    np.testing.assert_array_equal(run(provider, x, np.zeros((2, 1)), np.zeros((2, 0))), x)


# --- bad input ------------------------------------------------------------------------------------------------------


def session_of(provider: str, **options: Any) -> Any:
    graph = Graph()
    given = [graph.input(n, t, [None, None]) for n, t in (("x", "float32"), ("i", "int64"), ("u", "float32"))]
    graph.output(ops.scatter_add(*given), "y")
    return ortops.InferenceSession(graph, providers=[provider], lower="none", **options)


@pytest.mark.parametrize("index", [4, -5])
def test_an_index_out_of_range_is_an_error(index: int) -> None:
    x, indices, u = np.ones((4, 2), np.float32), np.array([[1], [index]]), np.ones((2, 2), np.float32)
    text = rf"indices: index {index} is outside of the valid range \[-4, 3\]"
    with pytest.raises(OpError, match=f"ScatterAdd: {text}"):
        ops.scatter_add(x, indices, u)
    with pytest.raises(Exception, match=text):
        session_of(testing.CPU).run(None, {"x": x, "i": indices, "u": u})


@pytest.mark.gpu
@pytest.mark.parametrize("count", [3, 3000])
@pytest.mark.parametrize("width", [1, 16])
def test_on_cuda_its_update_is_left_out(count: int, width: int) -> None:
    x, u = np.ones((4, width), np.float32), np.ones((count, width), np.float32)
    indices = np.full((count, 1), 2)
    indices[0], indices[-1] = 4, -(2**40)
    given = {"x": x, "i": indices, "u": u}
    got = session_of(testing.CUDA).run(None, given)[0]
    np.testing.assert_array_equal(got, np.where(np.arange(4)[:, None] == 2, count - 1.0, 1.0).repeat(width, 1))
    with pytest.raises(Exception, match=r"indices: index (4|-1099511627776) is outside of the valid range \[-4, 3\]"):
        session_of(testing.CUDA, check_indices=True).run(None, given)


def test_shapes_that_do_not_fit_are_told() -> None:
    x, u = np.ones((4, 2), np.float32), np.ones((3, 3), np.float32)
    with pytest.raises(ValueError, match=r"expected a shape of the rank of \[4, 2\], no larger .* got \[3, 3\]"):
        ops.scatter_add(x, np.zeros((3, 1), np.int64), u)
    with pytest.raises(OpError, match=r"indices: expected a shape that broadcasts to"):
        ops.scatter_add(x, np.zeros((2, 1), np.int64), np.ones((3, 2), np.float32))
    with pytest.raises(Exception, match=r"no larger but in axis 0, got \[3, 3\]"):
        session_of(testing.CPU).run(None, {"x": x, "i": np.zeros((3, 1), np.int64), "u": u})


@pytest.mark.parametrize("reduction", ["min", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_nan_wins_in_the_standard_nodes_too(reduction: str, dtype: str) -> None:
    """ONNX Runtime's own ScatterElements passes over NaN."""
    nan = np.nan
    graph = ortops.Graph()
    values = [graph.input("x", dtype, [4]), graph.input("indices", "int64", [6]), graph.input("updates", dtype, [6])]
    graph.output(ops.scatter_add(*values, reduction=reduction), "y")
    feeds = {
        "x": np.array([nan, 1, 1, 2], dtype),
        "indices": np.array([0, 1, 1, 2, 2, 2]),
        "updates": np.array([1, nan, 5, 5, nan, -5], dtype),
    }
    for lower in ("none", "all"):
        (y,) = ortops.InferenceSession(graph, providers=[testing.CPU], lower=lower).run(None, feeds)
        np.testing.assert_array_equal(y, np.array([nan, nan, nan, 2], dtype))
