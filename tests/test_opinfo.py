"""PyTorch's own samples of the functions that our operators have the meaning of (OpInfo), forward and gradient, in float64."""

from __future__ import annotations

import sys
import types
import unittest
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortops
from ortops import ops, testing

torch = pytest.importorskip("torch")


@cache
def op_infos() -> dict[str, Any]:
    """PyTorch's table, by name and variant."""
    try:
        import expecttest  # noqa: F401
    except ModuleNotFoundError:  # PyTorch's tests derive from its class; their samples need nothing of it
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{info.name} {info.variant_test_name}".strip(): info for info in op_db}


class OutOfScopeError(Exception):
    """A sample of what our operator does not do, on purpose; the text says what."""


@dataclass
class Building:
    """The graph of one sample: called with a tensor, it gives the input that stands for it."""

    graph: ortops.Graph = field(default_factory=lambda: ortops.Graph("sample"))
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    leaves: list[tuple[Any, ortops.Value]] = field(default_factory=list)

    def __call__(self, tensor: Any) -> ortops.Value:
        name, array = f"x{len(self.feeds)}", tensor.detach().numpy()
        self.feeds[name] = array
        value = self.graph.input(name, array.dtype, [f"{name}_{axis}" for axis in range(array.ndim)])
        if tensor.requires_grad:
            self.leaves.append((tensor, value))
        return value

    def shaped(self, value: ortops.Value, shape: Any) -> ortops.Value:
        reshaped: ortops.Value = self.graph.onnx.Reshape(value, np.asarray(shape, np.int64), allowzero=1)
        return reshaped


#: By the name in PyTorch's table: what builds the sample's call of ours, and how many samples it is to take at least.
CALLS: dict[str, tuple[Callable[..., Any], int]] = {}


def matches(*names: str, at_least: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CALLS.update(dict.fromkeys(names, (function, at_least)))
        return function

    return register


def check_axis(x: Any) -> None:
    if not x.dim():
        raise OutOfScopeError("an axis of a scalar")


@matches("nn.functional.embedding", at_least=3)
def _(place, table, indices, padding_idx=None, max_norm=None, scale_grad_by_freq=False):
    if max_norm is not None or scale_grad_by_freq:
        raise OutOfScopeError("max_norm and scale_grad_by_freq")
    return ops.embedding(place(indices), place(table), padding_idx=padding_idx)


@matches("nn.functional.embedding_bag", at_least=24)
def _(
    place,
    table,
    indices,
    offsets=None,
    max_norm=None,
    scale_grad_by_freq=False,
    mode="mean",
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    if max_norm is not None or scale_grad_by_freq:
        raise OutOfScopeError("max_norm and scale_grad_by_freq")
    return ops.embedding_bag(
        place(indices),
        place(table),
        None if offsets is None else place(offsets),
        None if per_sample_weights is None else place(per_sample_weights),
        mode=mode,
        include_last_offset=include_last_offset,
        padding_idx=padding_idx,
    )


@matches("gather", at_least=3)
def _(place, x, dim, index):
    check_axis(x)
    if index.dtype not in (torch.int64, torch.int32):
        raise OutOfScopeError("indices of 8 bits")
    return ops.take_along_axis(place(x), place(index), axis=dim)


@matches("take_along_dim", at_least=5)
def _(place, x, index, dim=None):
    if dim is None:
        return ops.take_along_axis(place.shaped(place(x), [-1]), place.shaped(place(index), [-1]), axis=0)
    sizes = list(torch.broadcast_shapes(*([*t.shape[:dim], 1, *t.shape[dim + 1 :]] for t in (x, index))))
    whole = [np.array([*sizes[:dim], t.shape[dim], *sizes[dim + 1 :]]) for t in (x, index)]
    return ops.take_along_axis(ops.broadcast_to(place(x), whole[0]), ops.broadcast_to(place(index), whole[1]), axis=dim)


@matches("index_select", at_least=2)
def _(place, x, dim, index):
    check_axis(x)
    return ops.take(place(x), place(index), axis=dim)


@matches("take", at_least=3)
def _(place, x, index):
    return ops.take(place.shaped(place(x), [-1]), place(index), axis=0)


@matches(*(f"scatter_reduce {reduce}" for reduce in ("sum", "prod", "amin", "amax")), at_least=6)
def _(place, x, dim, index, src, reduce, include_self=True):
    check_axis(x)
    if not include_self:
        raise OutOfScopeError("a result that leaves out what was there")
    reduction = {"sum": "add", "prod": "mul", "amin": "min", "amax": "max"}[reduce]
    return ops.scatter_add(place(x), place(index), place(src), axis=dim, reduction=reduction)


@matches("scatter_add", at_least=3)
def _(place, x, dim, index, src):
    check_axis(x)
    if index.dtype not in (torch.int64, torch.int32):
        raise OutOfScopeError("indices of 8 bits")
    if index.shape != src.shape:
        raise OutOfScopeError("more updates than indices")
    return ops.scatter_add(place(x), place(index), place(src), axis=dim)


@matches("index_add", at_least=6)
def _(place, x, dim, index, src, alpha=1):
    check_axis(x)
    along = [1] * x.dim()
    along[dim] = len(index)
    return ops.scatter_add(place(x), place.shaped(place(index), along), place(src) * float(alpha), axis=dim)


@matches("nn.functional.pad constant", at_least=51)
@matches("nn.functional.pad reflect", at_least=12)
@matches("nn.functional.pad replicate", at_least=12)
@matches("nn.functional.pad replicate_negative", at_least=3)
@matches("nn.functional.pad circular", at_least=8)
def _(place, x, pad, mode="constant", value=None):
    count = len(pad) // 2
    axes = [x.dim() - 1 - i for i in range(count)]
    cropped = [x.shape[axes[i]] + min(pad[2 * i], 0) + min(pad[2 * i + 1], 0) for i in range(count)]
    if mode != "constant" and min(cropped) <= 0 < x.numel():
        raise OutOfScopeError("copies of an edge that was cropped with all the rest")
    return ops.constant_pad(place(x), pads=[*pad[::2], *pad[1::2]], axes=axes, mode=mode, value=float(value or 0))


@matches("permute", at_least=4)
def _(place, x, dims):
    return ops.permute(place(x), perm=dims)


@matches("expand", "broadcast_to", at_least=7)
def _(place, x, shape):
    return ops.broadcast_to(place(x), np.array([1 if size == -1 else size for size in shape], np.int64))


@matches("narrow", at_least=10)
def _(place, x, dim, start, length):
    return ops.strided_slice(place(x), starts=[int(start)], ends=[int(start) + length], axes=[dim])


@matches("slice", at_least=4)
def _(place, x, dim=0, start=None, end=None, step=1):
    return ops.strided_slice(
        place(x),
        starts=[0 if start is None else start],
        ends=[2**63 - 1 if end is None else end],
        axes=[dim],
        steps=[step],
    )


@matches("cat", at_least=8)
def _(place, xs, dim=0):
    if len({x.dim() for x in xs}) > 1:
        raise OutOfScopeError("an empty vector beside tensors of another rank")
    return ops.concatenate(*map(place, xs), axis=dim)


@matches("topk", at_least=7)
def _(place, x, k, dim=-1, largest=True, sorted=True):
    check_axis(x)
    return ops.select_top_k(place(x), k=k, axis=dim, largest=largest, sorted=sorted)


@matches("nn.functional.interpolate nearest", at_least=8)
@matches("nn.functional.interpolate bilinear", at_least=24)
def _(
    place,
    x,
    size=None,
    scale_factor=None,
    mode="nearest",
    align_corners=None,
    recompute_scale_factor=None,
    antialias=False,
):
    if x.dim() != 4:
        raise OutOfScopeError("other than 2 spatial axes")
    if antialias:
        raise OutOfScopeError("antialias")
    given = size if scale_factor is None else scale_factor
    given = list(given) if isinstance(given, list | tuple) else [given, given]
    if recompute_scale_factor:
        given = [int(n * scale) for n, scale in zip(x.shape[2:], given, strict=True)]
    by_size = scale_factor is None or recompute_scale_factor
    return ops.upsample2d(
        place(x), mode=mode, align_corners=bool(align_corners), **{"size" if by_size else "scale": given}
    )


@pytest.mark.parametrize("name", CALLS)
def test_samples(name: str) -> None:
    build, at_least = CALLS[name]
    info = op_infos()[name]
    torch.manual_seed(0)
    taken, left_out = 0, Counter[str]()
    for sample in info.sample_inputs("cpu", torch.float64, requires_grad=True):
        place = Building()
        try:
            results = build(place, sample.input, *sample.args, **sample.kwargs)
        except OutOfScopeError as reason:
            left_out[str(reason)] += 1
            continue
        compare(place, results, info(sample.input, *sample.args, **sample.kwargs))
        taken += 1
    print(f"{name}: {taken} samples taken; left out: {dict(left_out)}")
    assert taken >= at_least, (name, taken, left_out)


def compare(place: Building, results: Any, expected: Any) -> None:
    """Values and gradients of one sample."""
    results = results if isinstance(results, tuple) else (results,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    graph, outputs = place.graph, [(r, e) for r, e in zip(results, expected, strict=True) if e.requires_grad]
    d_outputs = [torch.randn_like(e) for _, e in outputs]
    arriving = [graph.input(f"d{i}", "float64", r.shape) for i, (r, _) in enumerate(outputs)]
    leaves = [value for _, value in place.leaves]
    gradients = ortops.gradients([r for r, _ in outputs], leaves, arriving)
    for i, result in enumerate(results):
        graph.output(result, f"y{i}")
    present = [gradient for gradient in gradients if gradient is not None]
    for i, gradient in enumerate(present):
        graph.output(gradient, f"g{i}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = ortops.InferenceSession(graph, options, providers=[testing.CPU], lower="none")
    feeds = place.feeds | {f"d{i}": d.numpy() for i, d in enumerate(d_outputs)}
    names = {value.name for value in session.get_inputs()}
    got = session.run(None, {name: np.asarray(a, order="C") for name, a in feeds.items() if name in names})
    for result, want in zip(got, expected, strict=False):
        same(result, want.detach().numpy())
    wanted = torch.autograd.grad(
        [e for _, e in outputs], [tensor for tensor, _ in place.leaves], d_outputs, allow_unused=True
    )
    given = iter(got[len(expected) :])
    for gradient, want in zip(gradients, wanted, strict=True):
        if gradient is None:
            assert want is None or not want.any()
        else:
            result = next(given)
            same(result, np.zeros_like(result) if want is None else want.numpy())


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
