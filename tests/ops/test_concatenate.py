"""What is particular to Concatenate and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

import ortops
from ortops import OpError, ops, testing
from ortops._declare import find

CONCATENATE = find("Concatenate")
assert CONCATENATE is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])


def sample(*xs, axis):
    return testing.Sample(CONCATENATE, "", {"T": str(xs[0].dtype)}, xs, {"axis": axis}, ("y",))


@every_provider
@pytest.mark.parametrize("axis", [0, 1])
def test_more_inputs_than_one_launch_takes(provider: str, axis: int) -> None:
    """Pieces of no, one and more elements, 400 of them, so that vectors lie across the ends of what a launch writes."""
    for dtype in (np.uint8, np.float16, np.float32, np.int64):
        xs = [np.full((2, i % 5) if axis else (i % 5, 2), i).astype(dtype) for i in range(400)]
        call = sample(*xs, axis=axis)
        testing.compare(call, testing.run(call, provider))


@every_provider
def test_random_pieces(provider: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        rank = int(rng.integers(1, 5))
        shape = [int(n) for n in rng.integers(1, 60 // rank, rank)]
        axis = int(rng.integers(-rank, rank))
        dtype = rng.choice(["uint8", "float16", "float32", "int64"])
        xs = []
        for _ in range(rng.integers(1, 6)):
            shape[axis] = int(rng.integers(0, 40))
            xs.append(rng.integers(0, 100, shape).astype(dtype))
        call = sample(*xs, axis=axis)
        testing.compare(call, testing.run(call, provider))


@every_provider
@pytest.mark.parametrize("static", [True, False])
def test_backward_is_pytorchs(provider: str, static: bool) -> None:
    """With sizes that are known when the gradient is built, and with sizes that are not."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    xs = [rng.standard_normal((4, size, 3)).astype(np.float32) for size in (3, 1, 0, 9)]
    tensors = [torch.from_numpy(x).requires_grad_() for x in xs]
    want = torch.cat(tensors, 1)
    d_y = rng.standard_normal(want.shape).astype(np.float32)
    want.backward(torch.from_numpy(d_y))
    graph = ortops.Graph()
    values = [graph.input(f"x{i}", "float32", x.shape if static else [None] * 3) for i, x in enumerate(xs)]
    y = ops.concatenate(*values, axis=-2)
    d_value = graph.input("d_y", "float32", d_y.shape if static else [None] * 3)
    for i, d_x in enumerate(ortops.gradients([y], values, [d_value])):
        graph.output(d_x, f"d_x{i}")
    session = ortops.InferenceSession(graph, providers=[provider], lower="none")
    feeds = {f"x{i}": x for i, x in enumerate(xs)} | {"d_y": d_y}
    taken = {value.name for value in session.get_inputs()}
    got = session.run(None, {name: value for name, value in feeds.items() if name in taken})
    for d_x, tensor in zip(got, tensors, strict=True):
        np.testing.assert_array_equal(d_x, tensor.grad.numpy())


BAD = [
    ([(2, 3), (2, 4)], 0, r"xs: expected shapes that differ in axis 0 alone, got \[2, 3\] and \[2, 4\]"),
    ([(2, 3), (2,)], 0, r"xs: expected shapes that differ in axis 0 alone, got \[2, 3\] and \[2\]"),
    ([(2, 3)], 2, "attribute axis: expected from -2 to 1, got 2"),
]


@pytest.mark.parametrize(("shapes", "axis", "text"), BAD)
def test_a_bad_call_is_told(shapes: list, axis: int, text: str) -> None:
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    with pytest.raises(OpError, match=f"Concatenate: {text}"):
        ops.concatenate(*arrays, axis=axis)
    graph = ortops.Graph()
    with pytest.raises(OpError, match=f"Concatenate: {text}"):
        ops.concatenate(*(graph.input(f"x{i}", "float32", s) for i, s in enumerate(shapes)), axis=axis)
    ranks = tuple(len(shape) for shape in shapes)
    model = testing.model_of(
        CONCATENATE, ("float32",) * len(shapes), ranks, (("axis", axis),), ("y",), ("float32",), ranks[:1]
    )
    with pytest.raises(Exception, match=text):
        testing._session(model, testing.CPU).run(None, {f"input{i}": array for i, array in enumerate(arrays)})


def test_a_known_size_beside_an_unknown_one_is_the_results() -> None:
    graph = ortops.Graph()
    a, b = graph.input("a", "float32", ["n", 3, 2]), graph.input("b", "float32", [4, "m", 2])
    assert ops.concatenate(a, b, axis=2).shape == (4, 3, 4)
    assert ops.concatenate(a, b, axis=1).shape == (4, None, 2)


def test_a_list_of_arrays_is_not_one_array() -> None:
    """As numpy.concatenate is called; as one array it would be a stack of both."""
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(OpError, match="Concatenate: xs: expected a value or an array, got a list of arrays; give each"):
        ops.concatenate([x, x], axis=0)
