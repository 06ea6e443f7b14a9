"""Models as they are used: a recommender and a decoder stage of a UNet, forward and backward, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortops
from ortops import ops, testing

torch = pytest.importorskip("torch")

#: Where a model runs and in what type: our kernels, and on the CPU the same model in standard nodes, without our library.
RUNS = [
    pytest.param(testing.CPU, "float32", False, id="cpu"),
    pytest.param(testing.CPU, "float32", True, id="stock"),
    pytest.param(testing.CUDA, "float32", False, id="cuda", marks=pytest.mark.gpu),
    pytest.param(testing.CUDA, "float16", False, id="cuda-float16", marks=pytest.mark.gpu),
]
#: Relative to the largest value: a dozen operators, each of which rounds once, and sums of up to a few thousand terms.
ERROR = {"float32": 2e-5, "float16": 2e-2}


def check(
    provider: str,
    dtype: str,
    stock: bool,
    data: dict[str, np.ndarray],
    ours: Callable[..., ortops.Value],
    theirs: Callable[..., Any],
    scale: float,
) -> ortops.Graph:
    """Builds the model on inputs of symbolic sizes, runs it and compares its result and the gradients of all that is not an
    integer with PyTorch, which computes in float64."""
    graph = ortops.Graph("model")
    data = {name: a.astype(dtype) if a.dtype.kind == "f" else a for name, a in data.items()}
    values = {name: graph.input(name, a.dtype, [f"{name}_{i}" for i in range(a.ndim)]) for name, a in data.items()}
    y = ours(graph, **values)
    parameters = [name for name, a in data.items() if a.dtype.kind == "f"]
    graph.output(y, "y")
    d_y = graph.input("d_y", dtype, y.shape)
    for name, d in zip(parameters, ortops.gradients([y], [values[n] for n in parameters], [d_y]), strict=True):
        assert d is not None, name
        graph.output(d, f"d_{name}")

    tensors = {
        name: torch.tensor(a.astype(np.float64), requires_grad=True) if name in parameters else torch.tensor(a)
        for name, a in data.items()
    }
    expected = theirs(**tensors)
    d = (scale * np.random.default_rng(7).standard_normal(expected.shape)).astype(dtype)
    expected.backward(torch.tensor(d.astype(np.float64)))
    wanted = [expected.detach(), *(tensors[name].grad for name in parameters)]

    model = graph.build()
    if stock:
        lowered = ortops.lower(model)
        assert not any(node.domain for node in lowered.graph.node)
        session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=[provider])
    else:
        session = ortops.InferenceSession(model, providers=[provider], lower="none")
    results = session.run(None, data | {"d_y": d})
    for name, got, want in zip(["y", *parameters], results, wanted, strict=True):
        want = want.numpy()
        assert got.shape == want.shape, name
        error = np.abs(got.astype(np.float64) - want).max()
        assert error <= ERROR[dtype] * np.abs(want).max(), (name, error, np.abs(want).max())
        assert np.abs(want).max() > 0, f"{name}: nothing to compare"
    return graph


# --- a recommender: bags of categories and dense features, their products in pairs, and a multi-layer perceptron


#: Rows of the table, how a bag is reduced, whether its entries are weighted, and the padding.
FEATURES = {
    "clicks": (1000, "sum", True, None),
    "words": (300, "mean", False, 7),
    "tags": (50, "max", False, None),
    "country": (12, "sum", False, None),
}
WIDTH, DENSE, BATCH = 16, 13, 37


def bags(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Indices with duplicates, negative numbers' ends left alone, offsets with empty bags; `country` is one index a row, in 2-D."""
    data: dict[str, np.ndarray] = {}
    for name, (rows, _, weighted, _) in FEATURES.items():
        data[f"{name}_table"] = rng.standard_normal((rows, WIDTH))
        if name == "country":
            data["country_indices"] = rng.integers(0, rows, (BATCH, 1))
            continue
        lengths = rng.integers(0, 9, BATCH)
        lengths[[0, 5, BATCH - 1]] = 0
        data[f"{name}_indices"] = rng.integers(0, rows, int(lengths.sum()))
        data[f"{name}_offsets"] = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        if weighted:
            data[f"{name}_weights"] = rng.random(int(lengths.sum()))
    return data


def recommender(
    graph: ortops.Graph, x: ortops.Value, w0: Any, b0: Any, w1: Any, b1: Any, w2: Any, **features: Any
) -> Any:
    dense = ops.linear(x, w0, b0, activation="relu")
    vectors = [dense]
    for name, (_, mode, _, padding) in FEATURES.items():
        given = (features.get(f"{name}_{part}") for part in ("indices", "table", "offsets", "weights"))
        vectors.append(ops.embedding_bag(*given, mode=mode, padding_idx=padding))
    stacked = ops.concatenate(*(graph.onnx.Unsqueeze(vector, [1]) for vector in vectors), axis=1)
    products = stacked @ ops.permute(stacked, perm=[0, 2, 1])
    rows, columns = np.tril_indices(len(vectors), -1)
    pairs = ops.take(graph.onnx.Flatten(products), rows * len(vectors) + columns, axis=1)
    h = ops.linear(ops.concatenate(dense, pairs, axis=1), w1, b1, activation="gelu")
    return ops.linear(h, w2, activation="sigmoid", weight_layout="out_in")


def recommender_in_pytorch(x: Any, w0: Any, b0: Any, w1: Any, b1: Any, w2: Any, **features: Any) -> Any:
    functional = torch.nn.functional
    dense = (x @ w0 + b0).relu()
    vectors = [dense]
    for name, (_, mode, _, padding) in FEATURES.items():
        vectors.append(
            functional.embedding_bag(
                features[f"{name}_indices"],
                features[f"{name}_table"],
                features.get(f"{name}_offsets"),
                mode=mode,
                per_sample_weights=features.get(f"{name}_weights"),
                padding_idx=padding,
            )
        )
    stacked = torch.stack(vectors, 1)
    rows, columns = torch.tril_indices(len(vectors), len(vectors), -1)
    pairs = (stacked @ stacked.transpose(1, 2))[:, rows, columns]
    h = functional.gelu(torch.cat([dense, pairs], 1) @ w1 + b1)
    return (h @ w2.T).sigmoid()


@pytest.mark.parametrize(("provider", "dtype", "stock"), RUNS)
def test_a_recommender(provider: str, dtype: str, stock: bool) -> None:
    rng = np.random.default_rng(0)
    pairs = len(FEATURES) * (len(FEATURES) + 1) // 2
    data = {
        "x": rng.standard_normal((BATCH, DENSE)),
        "w0": rng.standard_normal((DENSE, WIDTH)) / 4,
        "b0": rng.standard_normal(WIDTH),
        "w1": rng.standard_normal((WIDTH + pairs, 32)) / 16,
        "b1": rng.standard_normal(32),
        "w2": rng.standard_normal((1, 32)) / 8,
        **bags(rng),
    }
    graph = check(provider, dtype, stock, data, recommender, recommender_in_pytorch, scale=1.0)
    assert "Loop" not in {node.op_type for node in ortops.lower(graph.build()).graph.node}


# --- a decoder stage of a UNet: what comes from below is enlarged and meets what comes from the side


def decoder(
    graph: ortops.Graph, below: Any, side: Any, weight: Any, mode: str, size: list[int], pads: list[int]
) -> Any:
    enlarged = ops.upsample2d(below, mode=mode, **({"size": size} if size else {"scale": [2.0, 2.0]}))
    if pads:
        enlarged = ops.constant_pad(enlarged, pads=pads, axes=[2, 3])
    joined = ops.concatenate(side, enlarged, axis=1)
    bordered = ops.constant_pad(joined, pads=[1, 1, 1, 1], axes=[-2, -1], mode="reflect")
    last = ops.permute(bordered, perm=[0, 2, 3, 1])
    h = ops.linear(last, weight, activation="silu")  # a convolution of 1 x 1
    return ops.strided_slice(ops.permute(h, perm=[0, 3, 1, 2]), starts=[1, 1], ends=[-1, -1], axes=[2, 3])


def decoder_in_pytorch(below: Any, side: Any, weight: Any, mode: str, size: list[int], pads: list[int]) -> Any:
    functional = torch.nn.functional
    enlarged = functional.interpolate(below, size=size or None, scale_factor=None if size else 2.0, mode=mode)
    if pads:
        enlarged = functional.pad(enlarged, (pads[1], pads[3], pads[0], pads[2]))
    bordered = functional.pad(torch.cat([side, enlarged], 1), (1, 1, 1, 1), mode="reflect")
    h = functional.silu(bordered.permute(0, 2, 3, 1) @ weight)
    return h.permute(0, 3, 1, 2)[:, :, 1:-1, 1:-1]


@pytest.mark.parametrize(("provider", "dtype", "stock"), RUNS)
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize(
    ("height", "width", "size", "pads"),
    [
        (16, 24, [], []),
        (17, 25, [], [0, 0, 1, 1]),  # 8 x 12 enlarged, and one row and column more
        (15, 21, [], [-1, -1, 0, -2]),  # and less
        (19, 11, [19, 11], []),  # by no whole factor
    ],
)
def test_a_decoder_stage(
    provider: str, dtype: str, stock: bool, mode: str, height: int, width: int, size: list[int], pads: list[int]
) -> None:
    rng = np.random.default_rng(1)
    data = {
        "below": rng.standard_normal((3, 10, 8, 12)),
        "side": rng.standard_normal((3, 6, height, width)),
        "weight": rng.standard_normal((16, 5)) / 4,
    }
    check(
        provider,
        dtype,
        stock,
        data,
        lambda graph, **v: decoder(graph, **v, mode=mode, size=size, pads=pads),
        lambda **t: decoder_in_pytorch(**t, mode=mode, size=size, pads=pads),
        scale=1.0,
    )
