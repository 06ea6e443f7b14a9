"""Tensors of more than 2^31 elements, on CUDA: read, written, and both. They are made on the GPU, and compared there."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ortops
from ortops import ops, testing
from ortops._declare import ELEMENT_TYPES

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

#: Rows of 1024 elements, the last 8 of which lie behind element 2^31.
ROWS, WIDTH = 2**21 + 8, 1024
LONG = 2**31 + 1001


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """Gives back what a test held: each takes up to 20 GB."""
    torch.manual_seed(0)
    yield
    gc.collect()
    torch.cuda.empty_cache()


def run(build: Callable[..., Any], *inputs: Any, y: tuple[tuple[int, ...], str]) -> Any:
    """The one output, of that shape and type, of an expression over tensors that lie on the GPU."""
    graph = ortops.Graph("large")
    values = [graph.input(f"x{i}", str(t.dtype)[6:], [None] * t.dim()) for i, t in enumerate(inputs)]
    graph.output(build(*values), "y")
    # An arena that doubles would take more than there is.
    cuda = (testing.CUDA, {"arena_extend_strategy": "kSameAsRequested"})
    session = ortops.InferenceSession(graph, providers=[cuda])
    binding = session.io_binding()
    taken = {value.name for value in session.get_inputs()}
    for i, tensor in enumerate(inputs):
        if f"x{i}" in taken:
            type_ = ELEMENT_TYPES[str(tensor.dtype)[6:]]
            binding.bind_input(f"x{i}", "cuda", 0, type_, list(tensor.shape), tensor.data_ptr())
    shape, dtype = y
    result = torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
    assert max(t.numel() for t in (*inputs, result)) > 2**31
    result.view(torch.uint8).fill_(0x7F)
    binding.bind_output("y", "cuda", 0, ELEMENT_TYPES[dtype], list(shape), result.data_ptr())
    torch.cuda.synchronize()
    session.run_with_iobinding(binding)
    torch.cuda.synchronize()
    return result


def int8(*shape: int) -> Any:
    return torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")


def float16(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float16, device="cuda")


def rows_near_the_ends(count: int) -> Any:
    """Numbers of rows: the first, the last, those around element 2^31, and some in between, with duplicates."""
    ends = torch.tensor([0, 1, ROWS - 1, ROWS - 2, 2**21, 2**21 - 1, ROWS - 1, 0], device="cuda")
    return torch.cat([ends, torch.randint(0, ROWS, (count - len(ends),), device="cuda")])


# --- reading


def test_rows_of_a_large_table() -> None:
    table, indices = float16(ROWS, WIDTH), rows_near_the_ends(100)
    for operator in (lambda i, t: ops.embedding(i, t), lambda i, t: ops.take(t, i)):
        got = run(operator, indices, table, y=((100, WIDTH), "float16"))
        assert torch.equal(got, table[indices])


def test_many_rows_of_a_small_table() -> None:
    table, indices = int8(50, WIDTH), torch.randint(-50, 50, (ROWS,), device="cuda", dtype=torch.int32)
    got = run(lambda t, i: ops.take(t, i), table, indices, y=((ROWS, WIDTH), "int8"))
    assert torch.equal(got, table[indices.long()])


def test_elements_along_a_long_axis() -> None:
    x = int8(3, 2**30)
    indices = torch.randint(-(2**30), 2**30, (3, 1000), device="cuda")
    indices[:, :2] = torch.tensor([0, -1])
    expected = x.gather(1, indices % 2**30)
    got = run(lambda x, i: ops.take_along_axis(x, i, axis=1), x, indices, y=((3, 1000), "int8"))
    assert torch.equal(got, expected)
    got = run(lambda x, i: ops.take(x, i, axis=-1), x, indices[2], y=((3, 1000), "int8"))
    assert torch.equal(got, x[:, indices[2]])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_a_large_table(mode: str) -> None:
    table, indices = float16(ROWS, WIDTH), rows_near_the_ends(64 * 20)
    offsets = torch.arange(0, 64 * 20, 20, device="cuda")
    rows = table[indices].float().reshape(64, 20, WIDTH)
    expected = {"sum": rows.sum(1), "mean": rows.mean(1), "max": rows.amax(1)}[mode]
    got = run(
        lambda i, t, o: ops.embedding_bag(i, t, o, mode=mode), indices, table, offsets, y=((64, WIDTH), "float16")
    )
    torch.testing.assert_close(got.float(), expected, rtol=1e-3, atol=1e-3)


def test_many_bags() -> None:
    table, indices = float16(50, WIDTH), torch.randint(0, 50, (ROWS, 1), device="cuda")
    got = run(lambda i, t: ops.embedding_bag(i, t, mode="sum"), indices, table, y=((ROWS, WIDTH), "float16"))
    assert torch.equal(got, table[indices[:, 0]])


# --- gradients of reading


def check_rows(d_table: Any, indices: Any, d_rows: Any) -> None:
    """Row i of the table has the sum of the d_rows whose index is i; all others are zero."""
    touched, where = indices.unique(return_inverse=True)
    expected = torch.zeros((len(touched), WIDTH), device="cuda").index_add_(0, where, d_rows.float())
    torch.testing.assert_close(d_table[touched].float(), expected, rtol=1e-3, atol=1e-3)
    others = torch.ones(ROWS, dtype=torch.bool, device="cuda")
    others[touched] = False
    assert not (d_table.any(dim=1) & others).any()


def test_gradient_of_a_large_table() -> None:
    indices, d_y, table = rows_near_the_ends(3000), float16(3000, WIDTH), float16(ROWS, WIDTH)

    def build(i: Any, t: Any, d: Any) -> Any:
        return ortops.gradients([ops.embedding(i, t)], [t], [d])[0]

    check_rows(run(build, indices, table, d_y, y=((ROWS, WIDTH), "float16")), indices, d_y)


@pytest.mark.parametrize("mode", ["sum", "max"])
def test_gradient_of_bags(mode: str) -> None:
    indices, d_y, table = rows_near_the_ends(64 * 20), float16(64, WIDTH), float16(ROWS, WIDTH)
    offsets = torch.arange(0, 64 * 20, 20, device="cuda")

    def build(i: Any, t: Any, o: Any, d: Any) -> Any:
        return ortops.gradients([ops.embedding_bag(i, t, o, mode=mode)], [t], [d])[0]

    d_rows = d_y[:, None].expand(64, 20, WIDTH)
    if mode == "max":
        first = table[indices].reshape(64, 20, WIDTH).float().cpu().numpy().argmax(axis=1)  # numpy's is the first
        mine = torch.arange(20, device="cuda")[None, :, None] == torch.tensor(first, device="cuda")[:, None]
        d_rows = d_rows * mine
    got = run(build, indices, table, offsets, d_y, y=((ROWS, WIDTH), "float16"))
    check_rows(got, indices, d_rows.reshape(-1, WIDTH))


@pytest.mark.parametrize("deterministic", [False, True])
def test_rows_added_to_a_large_table(deterministic: bool) -> None:
    x, indices, updates = float16(ROWS, WIDTH), rows_near_the_ends(200), float16(200, WIDTH)
    got = run(
        lambda x, i, u: ops.scatter_add(x, i, u, deterministic=deterministic),
        x,
        indices[:, None],
        updates,
        y=((ROWS, WIDTH), "float16"),
    )
    touched, where = indices.unique(return_inverse=True)
    expected = x[touched].float().index_add_(0, where, updates.float())
    torch.testing.assert_close(got[touched].float(), expected, rtol=1e-3, atol=1e-3)
    got[touched] = x[touched]
    assert torch.equal(got, x)


def test_elements_added_along_a_long_axis() -> None:
    d_y, indices = float16(3, 1000), (torch.arange(3000, device="cuda") * 357_913).reshape(3, 1000)
    indices[:, -1] = 2**30 - 1
    like = torch.empty((3, 2**30), dtype=torch.float16, device="cuda")

    def build(d: Any, i: Any, x: Any) -> Any:
        return ops.take_along_axis_gradient(d, i, x, axis=1)

    got = run(build, d_y, indices, like, y=((3, 2**30), "float16"))
    expected = like.zero_().scatter_(1, indices, d_y)
    assert torch.equal(got, expected)


# --- moves


@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((2**16 + 3, 2**15 + 1), (1, 0)),
        ((3, 5, 12_001, 12_003), (0, 2, 3, 1)),
        ((70_001, 3, 10_243), (1, 0, 2)),
    ],
)
def test_permute(shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    x = int8(*shape)
    got = run(lambda x: ops.permute(x, perm=perm), x, y=(tuple(shape[axis] for axis in perm), "int8"))
    assert torch.equal(got, x.permute(perm))


def test_constant_pad() -> None:
    x = int8(3, 26_755, 26_757)
    pads = (0, 1, -2, 1, 3, 7)
    expected = torch.nn.functional.pad(x, (-2, 7, 1, 3, 0, 1), value=5)
    got = run(lambda x: ops.constant_pad(x, pads=pads, value=5.0), x, y=(tuple(expected.shape), "int8"))
    assert torch.equal(got, expected)


@pytest.mark.parametrize(("mode", "torch_mode"), [("reflect", "reflect"), ("circular", "wrap")])
def test_pad_with_what_is_there(mode: str, torch_mode: str) -> None:
    height, width, border = 46_341, 46_343, 3
    x = int8(height, width)
    pads = (border,) * 4
    shape = (height + 2 * border, width + 2 * border)
    got = run(lambda x: ops.constant_pad(x, pads=pads, mode=mode), x, y=(shape, "int8"))
    rows, columns = (
        torch.tensor(np.pad(np.arange(size), border, mode=torch_mode), device="cuda") for size in (height, width)
    )
    assert torch.equal(got, x[rows][:, columns])


def test_concatenate() -> None:
    parts = [int8(2, 2**29 - 7, 2), int8(2, 301, 2), int8(2, 5, 2)]
    expected = torch.cat(parts, 1)
    got = run(lambda *xs: ops.concatenate(*xs, axis=1), *parts, y=(tuple(expected.shape), "int8"))
    assert torch.equal(got, expected)


def test_strided_slice() -> None:
    x = int8(LONG)
    got = run(lambda x: ops.strided_slice(x, starts=[7], ends=[-3]), x, y=((LONG - 10,), "int8"))
    assert torch.equal(got, x[7:-3])
    expected = x.flip(0)[::3].contiguous()
    backwards: dict[str, Any] = {"starts": [-1], "ends": [-(2**63)], "steps": [-3]}
    got = run(lambda x: ops.strided_slice(x, **backwards), x, y=((len(expected),), "int8"))
    assert torch.equal(got, expected)


def test_gradient_of_a_slice() -> None:
    x, d_y = torch.empty(LONG, dtype=torch.float16, device="cuda"), float16((LONG - 5 + 1) // 2)

    def build(x: Any, d: Any) -> Any:
        return ortops.gradients([ops.strided_slice(x, starts=[5], ends=[2**63 - 1], steps=[2])], [x], [d])[0]

    got = run(build, x, d_y, y=((LONG,), "float16"))
    assert torch.equal(got[5::2], d_y)
    assert not got[:5].any() and not got[6::2].any()


def test_broadcast_to() -> None:
    x = int8(1024, 1)
    shape = (2**11 + 1, 1024, 1024)
    got = run(lambda x: ops.broadcast_to(x, np.array(shape)), x, y=(shape, "int8"))
    assert torch.equal(got, x.expand(shape))


@pytest.mark.parametrize("like", [(ROWS, 1), (WIDTH,)])
def test_sum_to_size(like: tuple[int, ...]) -> None:
    x = float16(ROWS, WIDTH)
    got = run(lambda x, like: ops.sum_to_size(x, like), x, float16(*like), y=(like, "float16"))
    axis = 1 if like[-1] == 1 else 0
    expected = x.sum(axis, keepdim=True, dtype=torch.float64).reshape(like)
    # Sums of float16 in float32: the last rounding's half epsilon, and what cancels of terms that together are `size` large.
    size = x.shape[axis] ** 0.5
    assert ((got.double() - expected).abs() <= 2**-11 * expected.abs() + 1e-5 * size).all()


def test_select_top_k() -> None:
    rows, columns, k = 2100, 2**20 + 1, 5
    x = float16(rows, columns)
    got = run(lambda x: ops.select_top_k(x, k=k)[1], x, y=((rows, k), "int64"))
    for row in (0, 1, 2**31 // columns - 1, 2**31 // columns, rows - 1):
        expected = np.argsort(-x[row].float().cpu().numpy(), kind="stable")[:k]
        np.testing.assert_array_equal(got[row].cpu().numpy(), expected)


# --- images


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_upsample2d_and_its_gradient(mode: str, layout: str) -> None:
    """Planes are large and few; those at both ends are compared, of which the last holds element 2^31."""
    images, channels, height, width = 2, 3, 9_501, 9_499
    last = layout == "NHWC"

    def shape(scale: int) -> tuple[int, ...]:
        sizes = (scale * height, scale * width)
        return (images, *sizes, channels) if last else (images, channels, *sizes)

    def plane(tensor: Any, image: int) -> Any:
        return tensor[image, :, :, -image] if last else tensor[image, -image]

    def build(x: Any) -> Any:
        return ops.upsample2d(x, scale=[2.0, 2.0], mode=mode, layout=layout)

    x = float16(*shape(1))
    got = run(build, x, y=(shape(2), "float16"))
    for image in (0, 1):
        expected = torch.nn.functional.interpolate(plane(x, image)[None, None].float(), scale_factor=2.0, mode=mode)
        torch.testing.assert_close(plane(got, image).float(), expected[0, 0], rtol=1e-3, atol=1e-3)
    del got, expected
    d_y = float16(*shape(2))
    d_x = run(lambda x, d: ortops.gradients([build(x)], [x], [d])[0], x, d_y, y=(shape(1), "float16"))
    for image in (0, 1):
        source = plane(x, image)[None, None].float().requires_grad_()
        torch.nn.functional.interpolate(source, scale_factor=2.0, mode=mode).backward(
            plane(d_y, image)[None, None].float()
        )
        torch.testing.assert_close(plane(d_x, image).float(), source.grad[0, 0], rtol=1e-3, atol=2e-3)
