"""What is particular to Linear."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import ortops
from ortops import OpError, ops, testing
from ortops._declare import find
from ortops.ops.linear import ACTIVATIONS

LINEAR = find("Linear")
assert LINEAR is not None
PROVIDERS = [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def sample(x, weight, bias=None, residual=None, dtype="float32", **attributes) -> testing.Sample:
    inputs = tuple(
        None if a is None else a.astype(ortops._declare.element_type(dtype)) for a in (x, weight, bias, residual)
    )
    return testing.Sample(LINEAR, "", {"T": dtype}, inputs, attributes, ("y",))


def in_pytorch(torch, x, weight, bias, residual, activation="none", weight_layout="in_out"):
    functional = torch.nn.functional
    y = {
        "none": lambda v: v,
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda v: functional.gelu(v, approximate="tanh"),
        "silu": functional.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
    }[activation](functional.linear(x, weight.T if weight_layout == "in_out" else weight, bias))
    return y if residual is None else y + residual


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_reference_is_pytorchs(activation: str) -> None:
    torch = pytest.importorskip("torch")
    for outer in ((), (5,), (2, 3, 4)):
        x, weight, bias, residual = normal(*outer, 7), normal(3, 7), normal(3), normal(*outer, 3)
        want = in_pytorch(torch, *map(torch.from_numpy, (x, weight, bias, residual)), activation, "out_in")
        got = ops.linear(x, weight, bias, residual, activation=activation, weight_layout="out_in")
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-12, atol=1e-14)


#: A gradient is some rounded steps, and a sum of up to 24 such; float16 is worked out in float32 between its products.
GRADIENT_ERROR = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 8e-2}


@pytest.mark.parametrize(
    ("provider", "dtype"),
    [
        (testing.CPU, "float32"),
        (testing.CPU, "float16"),
        *(pytest.param(testing.CUDA, dtype, marks=pytest.mark.gpu) for dtype in GRADIENT_ERROR),
    ],
)
@pytest.mark.parametrize("weight_layout", ["in_out", "out_in"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_pytorchs(activation: str, weight_layout: str, provider: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    for outer, k, with_bias, with_residual in (
        ((24,), 7, True, True),
        ((2, 3, 4), 7, True, False),
        ((2, 3), 7, False, True),
        ((), 7, True, False),
        ((0,), 7, True, False),
        ((2, 3), 0, True, True),
    ):
        case = sample(
            normal(*outer, k),
            normal(k, 5) if weight_layout == "in_out" else normal(5, k),
            normal(5) if with_bias else None,
            normal(*outer, 5) if with_residual else None,
            dtype,
            activation=activation,
            weight_layout=weight_layout,
        )
        (d_y,) = testing.random_d_outputs(case)
        got = testing.run_gradient(case, [d_y], provider)
        tensors = [None if a is None else torch.tensor(a.astype(np.float64), requires_grad=True) for a in case.inputs]
        in_pytorch(torch, *tensors, activation, weight_layout).backward(torch.tensor(d_y.astype(np.float64)))
        assert set(got) == {i for i, tensor in enumerate(tensors) if tensor is not None}
        for i, result in got.items():
            want = tensors[i].grad.numpy()
            assert result.shape == want.shape
            error = np.abs(result.astype(np.float64) - want)
            assert (error <= GRADIENT_ERROR[dtype] * np.maximum(1, np.abs(want).max(initial=0))).all(), (outer, k, i)


# shared/cases, o29: Gemm(alpha=0.5, beta=2, transB=1) is Linear of A / 2, B and 2 C. A bias has one value a column.
A = np.array([[1, 2, 3], [-1, 0, 2]], np.float32)
B = np.array([[1, 0, 1], [2, 1, 0], [0, -1, 1], [1, 1, 1]], np.float32)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_o29_a_bias_of_one_value_a_column(provider: str) -> None:
    bias = 2 * np.array([1, 2, 3, 4], np.float32)
    want = [[4, 6, 6.5, 11], [2.5, 3, 7, 8.5]]
    np.testing.assert_array_equal(ops.linear(A / 2, B, bias, weight_layout="out_in"), want)
    (got,) = testing.run(sample(A / 2, B, bias, weight_layout="out_in"), provider)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(), (1,), (2, 1), (1, 4), (3,), (1, 2, 4)])
def test_o29_other_biases_are_refused_with_both_shapes(shape: tuple[int, ...]) -> None:
    bias = np.ones(shape, np.float32)
    text = rf"Linear: bias: expected shape \[N\] with N = 4, got \[{', '.join(map(str, shape))}\]"
    with pytest.raises(OpError, match=text):
        ops.linear(A, B, bias, weight_layout="out_in")
    g = ortops.Graph()
    with pytest.raises(OpError, match=text):
        ops.linear(g.input("x", "float32", [2, 3]), B, bias, weight_layout="out_in")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"bias": (3,)}, "bias: expected shape [N] with N = 4, got [3]"),
        ({"weight": (4, 5)}, "K = 3, got [4, 5]"),
        ({"residual": (1, 4)}, "residual: expected shape [... N] with ... = [2], N = 4, got [1, 4]"),
    ],
)
def test_a_session_refuses_wrong_sizes_and_goes_on(provider: str, wrong: dict[str, tuple[int, ...]], text: str) -> None:
    attributes = (("weight_layout", "out_in"),)
    model = testing.model_of(LINEAR, ("float32",) * 4, (2, 2, 1, 2), attributes, ("y",), ("float32",), (2,))
    session = testing._session(model, provider)
    right = {"x": (2, 3), "weight": (4, 3), "bias": (4,), "residual": (2, 4)}

    def run(shapes: dict[str, tuple[int, ...]]) -> np.ndarray:
        feeds = {f"input{i}": np.ones(shape, np.float32) for i, shape in enumerate(shapes.values())}
        return session.run(None, feeds)[0]

    with pytest.raises(Exception) as caught:
        run(right | wrong)
    assert "Linear" in str(caught.value) and "tested" in str(caught.value) and text in str(caught.value)
    np.testing.assert_array_equal(run(right), np.full((2, 4), 5, np.float32))


def test_attributes_that_are_not_there() -> None:
    with pytest.raises(
        OpError, match="activation: expected one of none, relu, gelu, gelu_tanh, silu, sigmoid, tanh, got 'swish'"
    ):
        ops.linear(A, B.T, activation="swish")
    with pytest.raises(OpError, match="weight_layout: expected one of in_out, out_in, got 'row'"):
        ops.linear(A, B.T, weight_layout="row")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_nan(activation: str, provider: str) -> None:
    x = normal(3, 8)
    x[1, 2] = np.nan
    for dtype in ("float32", "float16"):
        (got,) = testing.run(sample(x, normal(8, 5), normal(5), dtype=dtype, activation=activation), provider)
        assert np.isnan(got[1]).all() and not np.isnan(got[[0, 2]]).any()


@pytest.mark.parametrize("weight_layout", ["in_out", "out_in"])
def test_the_cpu_widens_large_weights_in_blocks(weight_layout: str) -> None:
    m, k, n = 34, 131072, 34  # blocks of 32 rows and columns
    weight = np.resize(normal(9973), (k, n)) / np.sqrt(k)
    case = sample(
        np.resize(normal(9929), (m, k)),
        weight if weight_layout == "in_out" else weight.T,
        normal(n),
        normal(m, n, seed=1),
        "float16",
        weight_layout=weight_layout,
    )
    testing.compare(case, testing.run(case))


@pytest.mark.parametrize("opset", [18, 20, 21])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_decomposition(activation: str, opset: int) -> None:
    for weight_layout, with_bias, with_residual in (
        ("in_out", True, False),
        ("out_in", False, True),
        ("out_in", True, True),
    ):
        x, weight = (
            normal(2, 3, 7).astype(np.float32),
            normal(*((7, 5) if weight_layout == "in_out" else (5, 7))).astype(np.float32),
        )
        bias = normal(5).astype(np.float32) if with_bias else None
        residual = normal(2, 3, 5).astype(np.float32) if with_residual else None
        attributes = {"activation": activation, "weight_layout": weight_layout}
        g = ortops.Graph(opset=opset, ir_version=9)
        g.output(ops.linear(g.input("x", "float32", ["a", "b", 7]), weight, bias, residual, **attributes), "y")
        lowered = ortops.lower(g.build())
        assert all(node.domain == "" for node in lowered.graph.node)
        onnx.checker.check_model(lowered, full_check=True)
        session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
        want = LINEAR.reference(x, weight, bias, residual, **attributes)[0]
        np.testing.assert_allclose(session.run(None, {"x": x})[0], want, rtol=2e-6, atol=2e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("weight_layout", ["in_out", "out_in"])
@pytest.mark.parametrize("activation", ["gelu", "silu"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_large_products_with_their_activation(dtype: str, activation: str, weight_layout: str) -> None:
    """Large enough for the kernel of cuda/ops/linear/cuda_sm90.cu where that is built; sizes that no tile divides."""
    import torch

    m, k, n = 4100, 520, 2312
    weight = normal(k, n) / np.sqrt(k)
    for bias in (normal(n), None):
        case = sample(
            normal(m, k),
            weight if weight_layout == "in_out" else weight.T.copy(),
            bias,
            dtype=dtype,
            activation=activation,
            weight_layout=weight_layout,
        )
        (got,) = testing.run(case, testing.CUDA)
        x, w, b = (
            None if a is None else torch.from_numpy(a.astype(np.float32)).cuda().double() for a in case.inputs[:3]
        )
        want = torch.nn.functional.linear(x, w.T if weight_layout == "in_out" else w, b)
        want = getattr(torch.nn.functional, activation)(want).cpu().numpy()
        error = np.abs(got.astype(np.float64) - want)
        assert (error <= 1.1 * testing.EPSILON[dtype] * np.maximum(np.abs(want), 1)).all()
