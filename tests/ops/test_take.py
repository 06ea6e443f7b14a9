"""What is particular to Take and TakeAlongAxis, and to their gradients and Embedding's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ortops
from ortops import Graph, OpError, ops, testing
from ortops._declare import ALL, element_type, find

every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
every_index_type = pytest.mark.parametrize("itype", ["int64", "int32"])


def run(provider: str, name: str, *inputs: np.ndarray, itype: str = "int64", **attributes: Any) -> np.ndarray:
    """One call, by the kernel; integers that index are given the type."""
    op = find(name)
    assert op is not None
    arrays = tuple(a.astype(itype) if formal.type == "I" else a for a, formal in zip(inputs, op.inputs, strict=True))
    types = {formal.type: str(a.dtype) for a, formal in zip(arrays, op.inputs, strict=True)}
    return testing.run(testing.Sample(op, "", types, arrays, attributes, (op.outputs[0].name,)), provider)[0]


def session_of(provider: str, op: Any, x: np.ndarray, rank: int, itype: str = "int64", **options: Any) -> Any:
    graph = Graph()
    graph.output(op(graph.input("x", str(x.dtype), x.shape), graph.input("indices", itype, [None] * rank)), "y")
    return ortops.InferenceSession(graph, providers=[provider], lower="none", **options)


# --- as PyTorch -----------------------------------------------------------------------------------------------------


@every_provider
@every_index_type
@pytest.mark.parametrize("dtype", ALL)
def test_every_type_is_read_bit_for_bit(provider: str, itype: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    size = element_type(dtype).itemsize
    bits = rng.integers(0, 2 if dtype == "bool" else 256, (7, 6, 5 * size), np.uint8)
    x = (bits[..., :5] if dtype == "bool" else bits).view(element_type(dtype))
    if "float" in dtype:  # bits of NaN are not compared
        with np.errstate(invalid="ignore"):
            x = np.where(x == x, x, element_type(dtype).type(1))
    indices = rng.integers(-6, 6, (2, 4))
    np.testing.assert_array_equal(run(provider, "Take", x, indices, itype=itype, axis=1), x[:, indices])
    along = rng.integers(-6, 6, (7, 9, 4))
    np.testing.assert_array_equal(
        run(provider, "TakeAlongAxis", x, along, itype=itype, axis=1), np.take_along_axis(x[:, :, :4], along, 1)
    )


@every_provider
@pytest.mark.parametrize(("x", "indices", "axis"), [((9,), (4,), 0), ((9, 5), (20, 5), 0), ((4, 9, 6), (3, 30, 2), 1)])
def test_take_along_axis_is_pytorchs_gather(provider: str, x: Any, indices: Any, axis: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    values, index = rng.standard_normal(x).astype(np.float32), rng.integers(0, x[axis], indices)
    tensor = torch.from_numpy(values).requires_grad_()
    want = torch.gather(tensor, axis, torch.from_numpy(index))
    d_y = rng.standard_normal(indices).astype(np.float32)
    want.backward(torch.from_numpy(d_y))
    np.testing.assert_array_equal(run(provider, "TakeAlongAxis", values, index, axis=axis), want.detach().numpy())
    for deterministic in (False, True):
        got = run(provider, "TakeAlongAxisGradient", d_y, index, values, axis=axis, deterministic=deterministic)
        np.testing.assert_allclose(got, tensor.grad.numpy(), rtol=1e-5, atol=1e-5)


@every_provider
@every_index_type
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("padding", [None, 2, -2])
@pytest.mark.parametrize(
    ("rows", "width", "count"),
    # Few indices and many (a sort on CUDA), rows of one element, ones that no vector divides, one row that gets all.
    [(11, 64, (5, 3)), (500, 24, (900,)), (40, 1, (3000,)), (3, 5, (20_000,)), (4, 8, (300, 60)), (5000, 16, (10,))],
)
def test_embeddings_gradient_is_pytorchs(
    provider: str, itype: str, dtype: str, padding: int | None, rows: int, width: int, count: tuple[int, ...]
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    padding_ = padding if padding is None else padding % rows
    indices = rng.integers(0, rows, count)
    table = np.zeros((rows, width), element_type(dtype))
    d_y = rng.standard_normal((*count, width)).astype(element_type(dtype))
    weight = torch.zeros((rows, width), dtype=torch.float64, requires_grad=True)
    y = torch.nn.functional.embedding(torch.from_numpy(indices), weight, padding_)
    y.backward(torch.from_numpy(d_y.astype(np.float64)))
    given = {} if padding is None else {"padding_idx": padding}
    got = run(provider, "TakeGradient", d_y, indices, table, itype=itype, **given).astype(np.float64)
    want = weight.grad.numpy()
    # Sums of n terms in float32, of about sqrt(n) and with an error each of half a step of that; then rounded once.
    allowed = testing.EPSILON[dtype] / 2 * np.abs(want) + 2 * testing.EPSILON["float32"] * (1 + indices.size / rows)
    assert (np.abs(got - want) <= allowed).all()
    if padding is not None:
        assert not got[padding].any()


@every_provider
@pytest.mark.parametrize(
    ("axis", "x", "indices"), [(0, (9, 4), (300, 2)), (1, (5, 9, 4), (300,)), (-1, (5, 9), (2, 400))]
)
def test_takes_gradient_along_every_axis(provider: str, axis: int, x: Any, indices: Any) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    index = rng.integers(0, x[axis], indices)
    tensor = torch.zeros(x, dtype=torch.float64, requires_grad=True)
    at = [slice(None)] * len(x)
    at[axis] = torch.from_numpy(index)
    y = tensor[tuple(at)]
    d_y = rng.standard_normal(y.shape).astype(np.float32)
    y.backward(torch.from_numpy(d_y.astype(np.float64)))
    got = run(provider, "TakeGradient", d_y, index, np.zeros(x, np.float32), axis=axis)
    np.testing.assert_allclose(got, tensor.grad.numpy(), rtol=1e-5, atol=2e-5)


@every_provider
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sums_do_not_stop_where_the_type_does(provider: str, dtype: str) -> None:
    """In float16, 2048 + 1 is 2048: 5000 ones are 5000 only if they are added in float32."""
    d_y, table = np.ones((5000, 8), dtype), np.zeros((3, 8), dtype)
    np.testing.assert_array_equal(run(provider, "TakeGradient", d_y, np.ones(5000, np.int64), table)[1], 5000)


@every_provider
def test_the_same_bits_in_every_run(provider: str) -> None:
    rng = np.random.default_rng(4)
    d_y, indices = rng.standard_normal((30_000, 8)).astype(np.float32), rng.integers(0, 7, 30_000)
    table = np.zeros((7, 8), np.float32)
    first = run(provider, "TakeGradient", d_y, indices, table)
    for _ in range(3):
        np.testing.assert_array_equal(run(provider, "TakeGradient", d_y, indices, table), first)
    lines, d_lines = rng.integers(0, 9, (2, 5000)), rng.standard_normal((2, 5000)).astype(np.float32)
    x = np.zeros((2, 9), np.float32)
    first = run(provider, "TakeAlongAxisGradient", d_lines, lines, x, axis=1, deterministic=True)
    for _ in range(3):
        again = run(provider, "TakeAlongAxisGradient", d_lines, lines, x, axis=1, deterministic=True)
        np.testing.assert_array_equal(again, first)


# --- bad input ------------------------------------------------------------------------------------------------------


@every_index_type
@pytest.mark.parametrize("index", [4, -5, 2**31 - 1, -(2**31)])
def test_an_index_out_of_range_is_an_error(itype: str, index: int) -> None:
    text = rf"indices: index {index} is outside of the valid range \[-4, 3\]"
    x = np.zeros((4, 3), np.float32)
    for op, indices in ((ops.take, np.array([0, index], itype)), (ops.take_along_axis, np.array([[index]], itype))):
        with pytest.raises(OpError, match=f"{op.name}: {text}"):
            op(x, indices)
        session = session_of(testing.CPU, op, x, indices.ndim, itype)
        with pytest.raises(Exception, match=text):
            session.run(None, {"x": x, "indices": indices})
        session.run(None, {"x": x, "indices": np.zeros_like(indices)})  # still usable


@pytest.mark.gpu
@every_index_type
@pytest.mark.parametrize("width", [1, 3, 64])
def test_on_cuda_it_gives_nan_and_no_other(itype: str, width: int) -> None:
    x = np.arange(5 * width, dtype=np.float32).reshape(5, width)
    indices = np.array([5, 1, -6, 2, 2**31 - 1, -(2**31), -1], itype)
    for op, given in ((ops.take, indices), (ops.take_along_axis, np.repeat(indices[:, None], width, 1))):
        got = session_of(testing.CUDA, op, x, given.ndim, itype).run(None, {"x": x, "indices": given})[0]
        assert np.isnan(got[[0, 2, 4, 5]]).all()
        np.testing.assert_array_equal(got[[1, 3, 6]], x[[1, 2, 4]])
        session = session_of(testing.CUDA, op, x, given.ndim, itype, check_indices=True)
        with pytest.raises(Exception, match=r"indices: index -?\d+ is outside of the valid range \[-5, 4\]"):
            session.run(None, {"x": x, "indices": given})
    whole = np.arange(5, dtype=np.int32)
    got = session_of(testing.CUDA, ops.take, whole, 1, itype).run(None, {"x": whole, "indices": indices})[0]
    np.testing.assert_array_equal(got, [-1, 1, -1, 2, -1, -1, 4])


def test_shapes_that_do_not_fit_are_told() -> None:
    graph = Graph()
    x = graph.input("x", "float32", [4, 3])
    indices = graph.input("indices", "int64", [2, 2])
    with pytest.raises(OpError, match=r"Take: attribute axis: expected from -2 to 1, got 2"):
        ops.take(x, indices, axis=2)
    with pytest.raises(
        OpError, match=r"TakeAlongAxis: expected a shape of the rank of \[4, 3\], no larger .* got \[9, 9\]"
    ):
        ops.take_along_axis(x, graph.input("more", "int64", [9, 9]), axis=1)
    with pytest.raises(OpError, match=r"TakeAlongAxis: expected a shape of the rank of \[4, 3\], .* got \[5\]"):
        ops.take_along_axis(x, graph.input("flat", "int64", [5]))
    with pytest.raises(OpError, match=r"attribute axis: expected an input of at least one axis"):
        ops.take(graph.input("scalar", "float32", []), indices)
    with pytest.raises(
        OpError, match=r"TakeGradient: d_y: expected the shape \[2, 2, 3\] of what was taken, got \[4, 3\]"
    ):
        ops.take_gradient(x, indices, x)
    x, bad = np.zeros((4, 3), np.float32), np.zeros((9, 9), np.int64)
    session = session_of(testing.CPU, lambda x, i: ops.take_along_axis(x, i, axis=1), x, 2)
    with pytest.raises(Exception, match=r"no larger but in axis 1, got \[9, 9\]"):
        session.run(None, {"x": x, "indices": bad})


@every_provider
def test_nothing_is_read_from_an_empty_axis_by_no_index(provider: str) -> None:
    x, none = np.zeros((0, 4), np.float32), np.zeros((0,), np.int64)
    assert run(provider, "Take", x, none).shape == (0, 4)
    got = run(provider, "TakeGradient", x, none, np.zeros((3, 4), np.float32))
    np.testing.assert_array_equal(got, np.zeros((3, 4)))
