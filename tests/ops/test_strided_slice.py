"""What is particular to StridedSlice and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

import ortops
from ortops import OpError, ops, testing
from ortops._declare import find

SLICE = find("StridedSlice")
assert SLICE is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])

LEAST, MOST = -(2**63), 2**63 - 1


def sample(x, **attributes):
    return testing.Sample(SLICE, "", {"T": str(x.dtype)}, (x,), attributes, ("y",))


def run(provider, x, **attributes):
    return testing.run(sample(x, **attributes), provider)[0]


@every_provider
def test_numpys_rules(provider: str) -> None:
    """Every way for a start, an end and a step to lie by an axis of 5, the ends of int64 included."""
    x = np.arange(5, dtype=np.int32)
    places = (LEAST, -6, -5, -1, 0, 2, 5, MOST)
    for step in (LEAST, -2, -1, 1, 3, MOST):
        for start in places:
            for end in places[turn_of(step, start) :: 3]:
                got = run(provider, x, starts=(start,), ends=(end,), steps=(step,))
                np.testing.assert_array_equal(got, x[start:end:step], f"{start}:{end}:{step}")


def turn_of(step: int, start: int) -> int:
    """A third of the ends, another for each step and start: each session takes milliseconds."""
    return hash((step, start)) % 3


@every_provider
def test_random_slices_and_their_gradients(provider: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        rank = int(rng.integers(1, 6))
        shape = tuple(int(n) for n in rng.integers(1, 8 if rank > 3 else 50, rank))
        axes = tuple(int(a) for a in rng.permutation(rank)[: rng.integers(1, rank + 1)])
        starts, ends = (tuple(int(n) for n in rng.integers(-60, 60, len(axes))) for _ in range(2))
        steps = tuple(int(rng.choice([-3, -2, -1, 1, 1, 2, 5])) for _ in axes)
        given = {"starts": starts, "ends": ends, "steps": steps, "axes": axes}
        x = rng.standard_normal(shape).astype(rng.choice(["float32", "float64", "float16"]))
        index = [slice(None)] * rank
        for axis, *part in zip(axes, starts, ends, steps, strict=True):
            index[axis] = slice(*part)
        want = x[tuple(index)]
        np.testing.assert_array_equal(run(provider, x, **given), want)
        d_y = rng.standard_normal(want.shape).astype(x.dtype)
        d_x = np.zeros_like(x)
        d_x[tuple(index)] = d_y
        np.testing.assert_array_equal(testing.run_gradient(sample(x, **given), [d_y], provider)[0], d_x)


@every_provider
def test_backward_is_pytorchs(provider: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 20, 33)).astype(np.float32)
    tensor = torch.from_numpy(x).requires_grad_()
    want = tensor[1:, 2:-1:3, ::2]
    call = sample(x, starts=(1, 2, 0), ends=(MOST, -1, MOST), steps=(1, 3, 2))
    np.testing.assert_array_equal(testing.run(call, provider)[0], want.detach().numpy())
    d_y = rng.standard_normal(want.shape).astype(np.float32)
    want.backward(torch.from_numpy(d_y))
    np.testing.assert_array_equal(testing.run_gradient(call, [d_y], provider)[0], tensor.grad.numpy())


BAD = [
    ((5,), {"starts": (0,), "ends": (3,), "steps": (0,)}, "attribute steps: expected steps other than 0"),
    ((5,), {"starts": (0, 0), "ends": (3, 3)}, "attribute starts: expected at most 1 values, one for each axis, got 2"),
    ((5, 5), {"starts": (0, 1), "ends": (3,)}, "attribute ends: expected 2 values"),
    ((5, 5), {"starts": (0,), "ends": (3,), "steps": (1, 1)}, "attribute steps: expected 1 values"),
    (
        (5, 5),
        {"starts": (0,), "ends": (3,), "axes": (2,)},
        "attribute axes: expected distinct axes from -2 to 1, got 2",
    ),
    ((5, 5), {"starts": (0, 0), "ends": (3, 3), "axes": (1, -1)}, "attribute axes: expected distinct axes"),
]


@pytest.mark.parametrize(("shape", "attributes", "text"), BAD)
def test_a_bad_call_is_told(shape: tuple[int, ...], attributes: dict, text: str) -> None:
    with pytest.raises(OpError, match=f"StridedSlice: {text}"):
        ops.strided_slice(np.zeros(shape, np.float32), **attributes)
    graph = ortops.Graph()
    with pytest.raises(OpError, match=f"StridedSlice: {text}"):
        ops.strided_slice(graph.input("x", "float32", shape), **attributes)


@pytest.mark.parametrize(("shape", "attributes", "text"), BAD)
def test_a_bad_node_is_told(shape: tuple[int, ...], attributes: dict, text: str) -> None:
    """The C++ twin of the check, which sees models that were built elsewhere."""
    rank = (len(shape),)
    model = testing.model_of(SLICE, ("float32",), rank, tuple(attributes.items()), ("y",), ("float32",), rank)
    with pytest.raises(Exception, match=text):
        testing._session(model, testing.CPU).run(None, {"input0": np.zeros(shape, np.float32)})


def test_a_gradient_of_another_shape_is_told() -> None:
    d_y, x = np.zeros(3, np.float32), np.zeros(5, np.float32)
    with pytest.raises(OpError, match=r"d_y: expected the shape of the slice, \[2\], got \[3\]"):
        ops.strided_slice_gradient(d_y, x, starts=(0,), ends=(2,))
