"""What is particular to the gradients of LayerNorm and RMSNorm."""

from __future__ import annotations

import numpy as np
import pytest

from ortops import Graph, OpError, gradients, ops, testing
from ortops._declare import element_type, find

LAYER_NORM, RMS_NORM = map(find, ("LayerNorm", "RMSNorm"))
assert LAYER_NORM is not None and RMS_NORM is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])


def passed_back(provider, op, inputs, d_outputs, outputs=("y",), dtype="float32", **attributes):
    """The gradients of the inputs, by name."""
    arrays = tuple(None if a is None else np.asarray(a).astype(element_type(dtype)) for a in inputs)
    sample = testing.Sample(op, "", {"T": dtype}, arrays, attributes, outputs)
    results = testing.run_gradient(sample, [np.asarray(d).astype(element_type(dtype)) for d in d_outputs], provider)
    return {op.inputs[i].name: d.astype(np.float64) for i, d in results.items()}


@every_provider
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 5, 24), (37, 384), (5, 1000), (600, 33), (2, 9000)])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("path", ["plain", "residual", "sum"])
def test_the_gradient_is_pytorchs(provider: str, dtype: str, shape: tuple[int, ...], kind: str, path: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(sum(shape))
    op = LAYER_NORM if kind == "layer" else RMS_NORM
    drawn = {f.name: rng.standard_normal(shape if f.name in ("x", "residual") else shape[-1:]) for f in op.inputs}
    if path == "plain":
        del drawn["residual"]
    d_y, d_sum = rng.standard_normal((2, *shape))
    rounded = {n: a.astype(element_type(dtype)).astype(np.float64) for n, a in drawn.items()}
    inputs = {n: torch.tensor(a, requires_grad=True) for n, a in rounded.items()}
    total = inputs["x"] + inputs["residual"] if path != "plain" else inputs["x"]
    if kind == "layer":
        y = torch.nn.functional.layer_norm(total, shape[-1:], inputs["scale"], inputs["bias"], 1e-3)
    else:
        y = torch.nn.functional.rms_norm(total, shape[-1:], inputs["scale"], 1e-3)
    d_y, d_sum = (d.astype(element_type(dtype)).astype(np.float64) for d in (d_y, d_sum))
    ((y * torch.tensor(d_y)).sum() + (0 if path != "sum" else (total * torch.tensor(d_sum)).sum())).backward()
    got = passed_back(
        provider,
        op,
        [drawn.get(f.name) for f in op.inputs],
        [d_y, d_sum] if path == "sum" else [d_y],
        ("y", "sum") if path == "sum" else ("y",),
        dtype,
        epsilon=1e-3,
    )
    assert set(got) == set(inputs)
    # With path "sum" it is the rounded sum whose gradient is taken.
    step = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for name, value in inputs.items():
        want = value.grad.numpy()
        np.testing.assert_allclose(got[name], want, rtol=step, atol=step * np.abs(want).max(), err_msg=name)


@every_provider
def test_o13_no_rows(provider: str) -> None:
    got = passed_back(provider, LAYER_NORM, [np.zeros((0, 4)), np.ones(4), np.zeros(4)], [np.zeros((0, 4))])
    assert got["x"].shape == (0, 4)
    np.testing.assert_array_equal([got["scale"], got["bias"]], np.zeros((2, 4)))
    np.testing.assert_array_equal(
        passed_back(provider, RMS_NORM, [np.zeros((0, 4)), np.ones(4)], [np.zeros((0, 4))])["scale"], np.zeros(4)
    )


@every_provider
def test_o14_all_axes_before_the_row_are_rows(provider: str) -> None:
    x = (((np.arange(24) * 7) % 11 - 5) / 4).reshape(2, 3, 4)
    d_y = (((np.arange(24) * 5) % 13 - 6) / 8).reshape(2, 3, 4)
    got = passed_back(provider, LAYER_NORM, [x, [1, 0.5, -2, 1.5], [0.1, -0.2, 0.3, 0]], [d_y])
    rows = [[0.054897495, 0.5393729, -0.30958793, -0.28468248], [-0.2233386, -0.6342804, 0.23991814, 0.6177009]]
    np.testing.assert_allclose([got["x"][0, 0], got["x"][1, 2]], rows, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["scale"], [2.264611, 0.27571255, -0.45627946, 0.27289116], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["bias"], [-1.125, -0.625, 1.5, 0.375], rtol=1e-6)


@every_provider
@pytest.mark.parametrize("width", [4, 40, 768, 9000])
def test_o14_no_row_is_lost(provider: str, width: int) -> None:
    x = np.random.default_rng(width).standard_normal((1025, width))
    got = passed_back(provider, LAYER_NORM, [x, np.ones(width), np.zeros(width)], [np.ones((1025, width))])
    np.testing.assert_array_equal(got["bias"], 1025)
    np.testing.assert_allclose(got["x"], 0, atol=1e-5)


@every_provider
def test_sums_are_the_same_each_time(provider: str) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((5000, 96)), rng.standard_normal(96), rng.standard_normal(96)]
    d_y = rng.standard_normal((5000, 96))
    first = passed_back(provider, LAYER_NORM, inputs, [d_y])
    for _ in range(3):
        again = passed_back(provider, LAYER_NORM, inputs, [d_y])
        for name, value in first.items():
            np.testing.assert_array_equal(again[name], value)


@every_provider
def test_rows_of_nothing(provider: str) -> None:
    got = passed_back(provider, LAYER_NORM, [np.zeros((3, 0)), np.ones(0), np.ones(0)], [np.zeros((3, 0))])
    assert (got["x"].shape, got["scale"].shape, got["bias"].shape) == ((3, 0), (0,), (0,))


def test_the_sum_is_read_where_it_is_there() -> None:
    """Else x and the residual: the forward pass is not made to write a sum that only the gradient reads."""
    for outputs, reads in ((("y",), 2), (("y", "sum"), 1)):
        graph = Graph("g")
        x, residual, scale = (graph.input(n, "float32", s) for n, s in (("x", ["N", 8]), ("r", ["N", 8]), ("s", [8])))
        results = ops.rms_norm(x, scale, residual, outputs=outputs)
        y = results[0] if isinstance(results, tuple) else results
        (d_x,) = gradients([y], [x])
        node = d_x._ir.producer()
        assert node.op_type == "RMSNormGradient"
        assert sum(value is not None for value in node.inputs[1:2] + node.inputs[4:5]) == reads
        assert len(y._ir.producer().outputs) == 3 and (not y._ir.producer().outputs[1].name) == (reads == 2)


def test_wrong_shapes_are_told() -> None:
    row = np.ones((2, 4))
    with pytest.raises(OpError, match=r"LayerNormGradient: mean: expected shape .*, got \[3\]"):
        ops.layer_norm_gradient(row, row, np.ones(4), np.ones(3), np.ones(2))
    with pytest.raises(OpError, match=r"RMSNormGradient: x: expected shape .*, got \[2, 5\]"):
        ops.rms_norm_gradient(row, np.ones((2, 5)), np.ones(4), np.ones(2))
