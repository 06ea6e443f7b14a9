"""Broadcasts that are removed: each rule where it is to be used, where it only just is not, and that the numbers agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import ortops
from ortops import Graph, Value, ops, testing

rng = np.random.default_rng(0)
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
COPIES = ("Expand", "BroadcastTo")


def nodes(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph if node.op_type != "Constant")


def both(
    build: Callable[..., Value],
    *shapes: Sequence[Any],
    sizes: dict[str, int] | None = None,
    dtype: str = "float32",
    provider: str = testing.CPU,
) -> Counter[str]:
    """Builds a model, compares its result with that after the rules, and says what nodes are left."""
    graph = Graph("tested")
    inputs = [graph.input(f"x{i}", dtype, shape) for i, shape in enumerate(shapes)]
    graph.output(build(*inputs), "y")
    before = graph.ir()
    after = ortops.remove_broadcasts(before.clone())
    concrete = [[(sizes or {}).get(size, size) for size in shape] for shape in shapes]
    feeds = {f"x{i}": rng.integers(-9, 9, shape).astype(dtype) for i, shape in enumerate(concrete)}
    kept = {name: array.copy() for name, array in feeds.items()}
    results = []
    for model in (before, after):
        session = ortops.InferenceSession(ir.to_proto(model), providers=[provider], lower="none")
        results.append(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})[0])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)
    assert results[0].shape == results[1].shape
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, kept[name])  # nothing was written to the source
    return nodes(after)


def copies(left: Counter[str]) -> int:
    return sum(left[name] for name in COPIES)


def expand(x: Value, *shape: int) -> Value:
    return x.graph.onnx.Expand(x, np.array(shape, np.int64))


def expand_ours(x: Value, *shape: int) -> Value:
    return ops.broadcast_to(x, np.array(shape, np.int64))


every_expand = pytest.mark.parametrize("repeat", [expand, expand_ours])


# --- standard operators


@every_provider
@every_expand
def test_no_copy_is_made_for_an_elementwise_operator(repeat: Callable[..., Value], provider: str) -> None:
    def build(x: Value, z: Value) -> Value:
        g = x.graph.onnx
        y = g.Mul(repeat(x, 4, 3, 8), z) + repeat(x, 4, 3, 8)  # each with its own other input, which has the shape
        return g.Where(g.Greater(repeat(x, 4, 3, 8), z), y, z)

    left = both(build, (3, 1), (4, 3, 8), provider=provider)
    assert left == {"Mul": 1, "Add": 1, "Greater": 1, "Where": 1}


@every_expand
def test_sizes_may_be_symbols(repeat: Callable[..., Value]) -> None:
    def build(x: Value, z: Value) -> Value:
        return (x.graph.onnx.Expand if repeat is expand else ops.broadcast_to)(x, x.graph.onnx.Shape(z)) * z

    def shaped(x: Value, z: Value) -> Value:
        y = build(x, z)
        y._ir.producer().inputs[0].shape = ir.Shape(["n", 4])
        return y

    assert copies(both(shaped, (1, 4), ("n", 4), sizes={"n": 5})) == 0


@every_expand
def test_what_gives_the_result_its_shape_stays(repeat: Callable[..., Value]) -> None:
    assert copies(both(lambda x, z: repeat(x, 4, 3, 8) * z, (3, 1), (3, 8))) == 1  # the 4 is nowhere else
    assert copies(both(lambda x, z: repeat(x, 4, 8) * z, (1, 8), (1, 8))) == 1
    assert copies(both(lambda x, z: repeat(x, 4, 8) * z, (1, 8), ("n", 8), sizes={"n": 4})) == 1  # n might be 1
    assert copies(both(lambda x: repeat(x, 4, 8) * repeat(x, 4, 8), (8,))) == 1  # one of two that need each other


@every_expand
def test_one_that_both_inputs_share_stays_once(repeat: Callable[..., Value]) -> None:
    def build(x: Value) -> Value:
        y = repeat(x, 4, 8)
        return y * y

    assert copies(both(build, (8,))) == 1


@every_expand
def test_a_copy_that_is_an_output_or_has_another_use_stays(repeat: Callable[..., Value]) -> None:
    def build(x: Value, z: Value) -> Value:
        y = repeat(x, 4, 8)
        return x.graph.onnx.Concat(y * z, y, axis=0)

    assert copies(both(build, (8,), (4, 8))) == 1


@every_expand
def test_an_operator_that_does_not_broadcast_keeps_its_copy(repeat: Callable[..., Value]) -> None:
    assert copies(both(lambda x, z: x.graph.onnx.Concat(repeat(x, 4, 8), z, axis=0), (8,), (4, 8))) == 1
    assert copies(both(lambda x, z: x.graph.onnx.MatMul(z, repeat(x, 8, 3)), (3,), (4, 8))) == 1


# --- operators of ours


@every_provider
@every_expand
def test_an_input_of_ours_that_broadcasts_is_read_with_strides_of_0(
    repeat: Callable[..., Value], provider: str
) -> None:
    def build(table: Value, residual: Value) -> Value:
        rows = ops.embedding(np.arange(12).reshape(4, 3) % 5, table, repeat(residual, 4, 3, 8))
        return rows + residual  # the source is read once more, after

    assert copies(both(build, (5, 8), (3, 1), provider=provider)) == 0


@every_provider
def test_nothing_is_written_through_a_stride_of_0(provider: str) -> None:
    """The source is an intermediate, whose memory a kernel might take for its result."""

    def build(table: Value, residual: Value) -> Value:
        source = residual.graph.onnx.Neg(residual)
        rows = ops.embedding(np.zeros((1, 8), np.int64)[:, :1], table, expand(source, 1, 1, 8))
        more = ops.embedding(np.zeros((4, 3), np.int64), table, expand(source, 4, 3, 8))
        return more + rows + source

    assert copies(both(build, (5, 8), (1, 1, 8), provider=provider)) == 0


@every_expand
def test_an_input_of_ours_that_must_have_its_shape_keeps_it(repeat: Callable[..., Value]) -> None:
    def build(table: Value) -> Value:
        return ops.embedding(np.arange(4), repeat(table, 5, 8))

    assert copies(both(build, (1, 8))) == 1


# --- reductions


@every_provider
@every_expand
@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_no_copy_is_made_for_a_reduction(
    repeat: Callable[..., Value], op_type: str, keepdims: int, provider: str
) -> None:
    def build(*reduced: int) -> Callable[[Value], Value]:
        def of(x: Value) -> Value:
            axes = np.array(reduced, np.int64)
            return getattr(x.graph.onnx, op_type)(repeat(x, 4, 3, 8), axes, keepdims=keepdims)

        return of

    counted = {"Mul": 1} if op_type == "ReduceSum" else {}
    unsqueezed = {"Unsqueeze": 1} if keepdims else {}
    expected = [
        ((0,), (3, 8), {**counted, **unsqueezed} or {"Identity": 1}),
        ((0, -1), (3, 8), {op_type: 1, **counted, **unsqueezed}),
        ((2,), (4, 3, 1), {op_type: 1, **counted}),
        ((0, 1), (1, 1, 8), {op_type: 1, **counted}),
    ]
    for reduced, shape, left in expected:
        assert both(build(*reduced), shape, provider=provider) == left, (reduced, shape)
    # What is kept and was broadcast is so after the reduction.
    assert both(build(2), (3, 1), provider=provider) == {op_type: 1, "Expand": 1, **counted}
    assert both(build(0), (1, 3, 1), provider=provider) == {op_type: 1, "Expand": 1, **counted}


@every_expand
def test_a_reduction_of_all_axes(repeat: Callable[..., Value]) -> None:
    assert both(lambda x: x.graph.onnx.ReduceMean(repeat(x, 4, 3), keepdims=0), (3,)) == {"ReduceMean": 1}


@every_expand
def test_a_reduction_over_what_was_not_broadcast_keeps_its_copy(repeat: Callable[..., Value]) -> None:
    def reduce(x: Value, op_type: str, shape: tuple[int, ...], *axes: int) -> Value:
        return getattr(x.graph.onnx, op_type)(repeat(x, *shape), np.array(axes, np.int64))

    assert copies(both(lambda x: reduce(x, "ReduceMax", (4, 3), 1), (3,))) == 1
    assert copies(both(lambda x: reduce(x, "ReduceProd", (4, 3), 0), (3,))) == 1
    assert copies(both(lambda x: reduce(x, "ReduceMax", (4, 3), 0), ("n", 3), sizes={"n": 4})) == 1  # n might be 4
    assert copies(both(lambda x: x.graph.onnx.ReduceMax(repeat(x, 4, 3), noop_with_empty_axes=1), (3,))) == 1


def test_a_number_that_the_type_does_not_hold_does_not_count() -> None:
    def build(x: Value) -> Value:
        return x.graph.onnx.ReduceSum(expand(x, 2049, 3), np.array([0]))

    assert copies(both(build, (3,), dtype="float32")) == 0
    graph = Graph("half")
    graph.output(build(graph.input("x", "float16", [3])), "y")
    assert copies(nodes(ortops.remove_broadcasts(graph.ir()))) == 1


def test_axes_or_sizes_that_are_not_known_leave_the_copy() -> None:
    def by_axes(x: Value, axes: Value) -> Value:
        return x.graph.onnx.ReduceMax(expand(x, 4, 3), x.graph.onnx.Cast(axes, to=7))

    graph = Graph("axes")
    graph.output(by_axes(graph.input("x", "float32", [3]), graph.input("axes", "float32", [1])), "y")
    assert copies(nodes(ortops.remove_broadcasts(graph.ir()))) == 1

    graph = Graph("sizes")
    x, z = graph.input("x", "float32", [3]), graph.input("z", "float32", ["n", 3])
    graph.output(graph.onnx.ReduceMean(graph.onnx.Expand(x, graph.onnx.Shape(z)), np.array([0])), "y")
    assert copies(nodes(ortops.remove_broadcasts(graph.ir()))) == 1  # n might be 0, and the mean no number


def test_a_protobuf_is_not_changed_and_names_stay() -> None:
    graph = Graph("kept")
    x, z = graph.input("x", "float32", [3]), graph.input("z", "float32", [4, 3])
    graph.output(ops.broadcast_to(x, np.array([4, 3])) + z, "y")
    graph.output(graph.onnx.ReduceSum(graph.onnx.Expand(x, np.array([4, 3])), np.array([0])), "total")
    model = graph.build()
    before = model.SerializeToString()
    after = ortops.remove_broadcasts(model)
    assert model.SerializeToString() == before
    assert [value.name for value in after.graph.output] == ["y", "total"]
    assert not after.graph.initializer
    assert not after.functions  # the broadcast's function body has gone with it
