"""What is particular to EmbeddingBag and its gradients."""

from __future__ import annotations

import numpy as np
import pytest

import ortops
from ortops import OpError, ops, testing
from ortops._declare import ELEMENT_TYPES, element_type, find

BAG, GRADIENT, WEIGHTS = map(find, ("EmbeddingBag", "EmbeddingBagGradient", "EmbeddingBagWeightsGradient"))
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
every_mode = pytest.mark.parametrize("mode", ["sum", "mean", "max"])

W = np.arange(12, dtype=np.float32).reshape(6, 2)


def run(provider, indices, table, offsets=None, weights=None, itype="int64", dtype="float32", **attributes):
    arrays = [None if a is None else np.asarray(a, itype) for a in (indices, offsets)]
    floats = [None if a is None else np.asarray(a).astype(element_type(dtype)) for a in (table, weights)]
    inputs = (arrays[0], floats[0], arrays[1], floats[1])
    return testing.run(testing.Sample(BAG, "", {"I": itype, "T": dtype}, inputs, attributes, ("y",)), provider)[0]


def gradients(provider, d_y, indices, table, offsets=None, weights=None, dtype="float32", **attributes):
    """Of the table, and of the weights if there are any."""
    floats = [None if a is None else np.asarray(a).astype(element_type(dtype)) for a in (table, weights)]
    offsets = None if offsets is None else np.asarray(offsets)
    inputs = (np.asarray(indices), floats[0], offsets, floats[1])
    sample = testing.Sample(BAG, "", {"I": "int64", "T": dtype}, inputs, attributes, ("y",))
    got = testing.run_gradient(sample, [np.asarray(d_y).astype(element_type(dtype))], provider)
    return got[1], got.get(3)


def session_of(provider, table, rank=1, itype="int64", offsets=True, **attributes):
    options = {name: attributes.pop(name) for name in ("check_indices",) if name in attributes}
    graph = ortops.Graph()
    indices = graph.input("indices", itype, [None] * rank)
    y = ops.embedding_bag(indices, table, graph.input("offsets", itype, [None]) if offsets else None, **attributes)
    graph.output(graph.onnx.Cast(y, to=ELEMENT_TYPES["float32"]), "y")
    return ortops.InferenceSession(graph, providers=[provider], lower="none", **options)


def look_up(session, indices, offsets=None, itype="int64"):
    feeds = {"indices": np.asarray(indices, itype)}
    if offsets is not None:
        feeds["offsets"] = np.asarray(offsets, itype)
    return session.run(None, feeds)[0]


# --- public reports (all checked with PyTorch 2.13 on the CPU)


@every_provider
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("sum", [[0, 0], [10, 12], [6, 9], [0, 0], [0, 0]]),
        ("mean", [[0, 0], [5, 6], [2, 3], [0, 0], [0, 0]]),
        ("max", [[0, 0], [8, 9], [4, 5], [0, 0], [0, 0]]),
    ],
)
def test_o15_empty_bags_are_zeros(provider: str, mode: str, expected: list[list[float]]) -> None:
    """https://github.com/pytorch/pytorch/issues/4169"""
    indices, offsets = [4, 1, 1, 0, 2], [0, 0, 2, 5, 5]
    np.testing.assert_array_equal(run(provider, indices, W, offsets, mode=mode), expected)
    d_table, _ = gradients(provider, np.full((5, 2), 100.0), indices, W, offsets, mode=mode)
    assert (d_table[[3, 5]] == 0).all()
    assert np.isfinite(d_table).all()


@every_provider
def test_o16_padding_is_not_counted(provider: str) -> None:
    """https://github.com/pytorch/pytorch/issues/3194"""
    table, indices, offsets = np.arange(8.0).reshape(4, 2) + 1, [1, 2, 1, 1], [0, 3]
    given = {"mode": "mean", "padding_idx": 1}
    np.testing.assert_array_equal(run(provider, indices, table, offsets, **given), [[5, 6], [0, 0]])
    d_table, _ = gradients(provider, [[1, 1], [10, 10]], indices, table, offsets, **given)
    np.testing.assert_array_equal(d_table, [[0, 0], [0, 0], [1, 1], [0, 0]])


@every_provider
def test_o17_the_first_maximum_gets_the_gradient(provider: str) -> None:
    """https://github.com/flagos-ai/FlagGems/issues/5220"""
    table = [[1, 5, 2], [4, 5, 0], [3, 1, 2], [0, 9, 9], [7, 7, 7]]
    indices, offsets = [0, 1, 2, 4, 3], [0, 3]
    np.testing.assert_array_equal(run(provider, indices, table, offsets, mode="max"), [[4, 5, 2], [7, 9, 9]])
    d_table, _ = gradients(provider, [[1, 10, 100], [1000, 10000, 100000]], indices, table, offsets, mode="max")
    np.testing.assert_array_equal(d_table, [[0, 10, 100], [1, 0, 0], [0, 0, 0], [0, 10000, 100000], [1000, 0, 0]])


# --- PyTorch

CALLS = [
    # indices, offsets, rows, width, weighted, attributes
    ((40,), [0, 3, 3, 10, 39], 11, 7, False, {}),
    ((40,), [0, 3, 3, 10, 40], 11, 64, False, {"padding_idx": 4}),
    ((40,), [0, 3, 3, 10, 40], 5, 64, False, {"padding_idx": 4, "include_last_offset": True}),
    ((40,), [0, 0, 0], 11, 33, True, {"padding_idx": -2}),
    ((6, 5), None, 11, 8, False, {"padding_idx": 3}),
    ((6, 5), None, 3, 128, True, {}),
    ((6, 5), None, 3, 12, False, {"include_last_offset": True}),  # which says nothing of a matrix
    ((300, 20), None, 900, 128, False, {}),
    ((1, 5000), None, 40, 32, False, {"padding_idx": 7}),  # one long bag: shared out among threads
    ((2, 900), None, 400, 1500, True, {}),
    ((0,), [0, 0], 4, 3, False, {}),
    ((0,), [], 4, 3, False, {}),
]


@every_provider
@every_mode
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_forward_and_backward_are_pytorchs(provider: str, mode: str, call) -> None:
    torch = pytest.importorskip("torch")
    shape, offsets, rows, width, weighted, attributes = call
    if weighted and mode != "sum":
        pytest.skip("only a sum is weighted")
    rng = np.random.default_rng(0)
    indices = rng.integers(0, rows, shape)
    table = rng.standard_normal((rows, width)).astype(np.float32)
    weights = rng.standard_normal(shape).astype(np.float32) if weighted else None
    tensors = [
        torch.from_numpy(a).requires_grad_() if a is not None else None
        for a in (table.astype(np.float64), None if weights is None else weights.astype(np.float64))
    ]
    want = torch.nn.functional.embedding_bag(
        torch.from_numpy(indices),
        tensors[0],
        None if offsets is None else torch.tensor(offsets, dtype=torch.int64),
        mode=mode,
        per_sample_weights=tensors[1],
        **attributes,
    )
    given = None if offsets is None else np.array(offsets, np.int64)
    got = run(provider, indices, table, given, weights, mode=mode, **attributes)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-5, atol=1e-4)
    if want.numel() == 0 or indices.size == 0:
        return
    d_y = rng.standard_normal(want.shape).astype(np.float32)
    want.backward(torch.from_numpy(d_y.astype(np.float64)))
    d_table, d_weights = gradients(provider, d_y, indices, table, given, weights, mode=mode, **attributes)
    np.testing.assert_allclose(d_table, tensors[0].grad.numpy(), rtol=1e-5, atol=1e-4)
    if weighted:
        np.testing.assert_allclose(d_weights, tensors[1].grad.numpy(), rtol=1e-5, atol=1e-4)


@every_provider
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_are_rounded_once(provider: str, dtype: str) -> None:
    """In 16 bits 2048 + 1 + 1 + .. stays what it is."""
    table, indices = [[2048.0], [1.0]], [[0] + [1] * 64]
    np.testing.assert_array_equal(run(provider, indices, table, dtype=dtype, mode="sum").astype(float), [[2112]])
    d_table, _ = gradients(provider, [[2048.0], *[[1.0]] * 64], [[0]] * 65, table, dtype=dtype, mode="sum")
    np.testing.assert_array_equal(d_table.astype(float), [[2112], [0]])


# --- bad input, and numbers that are none


@pytest.mark.parametrize("itype", ["int64", "int32"])
@pytest.mark.parametrize("index", [6, -7, 2**31 - 1, -(2**31)])
def test_an_index_outside_of_the_table_is_an_error(itype: str, index: int) -> None:
    text = rf"indices: index {index} is outside of the valid range \[-6, 5\]"
    with pytest.raises(OpError, match=f"EmbeddingBag: {text}"):
        ops.embedding_bag(np.array([[0, index]], itype), W)
    session = session_of(testing.CPU, W, itype=itype)
    with pytest.raises(Exception, match=text):
        look_up(session, [0, index], [0], itype)
    np.testing.assert_array_equal(look_up(session, [-1, 0], [0], itype), [[5, 6]])  # still usable


BAD_OFFSETS = [([1, 3], 0), ([-1, 3], 0), ([0, 3, 2], 2), ([0, 6], 1), ([0, -1], 1), ([0, 2, 2**31 - 1], 2)]


@pytest.mark.parametrize(("offsets", "position"), BAD_OFFSETS, ids=str)
def test_offsets_that_are_none_are_an_error(offsets: list[int], position: int) -> None:
    indices = np.array([0, 1, 2, 3, 4])
    with pytest.raises(OpError, match=rf"offsets: expected .* at position {position}, got {offsets[position]}"):
        ops.embedding_bag(indices, W, np.array(offsets))
    session = session_of(testing.CPU, W)
    with pytest.raises(Exception, match=rf"offsets: expected .* at position {position}, got {offsets[position]}"):
        look_up(session, indices, offsets)
    np.testing.assert_array_equal(look_up(session, indices, [0, 5]), [[4, 5], [0, 0]])


def test_calls_that_are_none_are_told() -> None:
    line, matrix = np.array([0, 1]), np.array([[0, 1]])
    for arguments, attributes, text in (
        ((line, W), {}, "offsets: missing; indices of rank 1 need them"),
        ((matrix, W, np.array([0])), {}, "offsets: expected none, as indices of rank 2 have a bag a row"),
        ((matrix[None], W), {}, "indices: expected rank 1 .* or 2, got rank 3"),
        (
            (matrix, W, None, np.ones((1, 2), np.float32)),
            {"mode": "mean"},
            'weights: expected none, .* got mode "mean"',
        ),
        ((matrix, W, None, np.ones((1, 3), np.float32)), {"mode": "sum"}, r"weights: expected shape .*, got \[1, 3\]"),
        ((line, W, np.array([], np.int64)), {"include_last_offset": True}, "offsets: expected at least one"),
        ((line, W, np.array([0])), {"padding_idx": 6}, "padding_idx: expected an index of the table, from -6 to 5"),
    ):
        with pytest.raises(OpError, match=text):
            ops.embedding_bag(*arguments, **attributes)
    with pytest.raises(Exception, match="padding_idx: expected an index of the table, from -6 to 5, got 6"):
        look_up(session_of(testing.CPU, W, padding_idx=6), [0], [0])
    with pytest.raises(Exception, match="offsets: missing"):
        look_up(session_of(testing.CPU, W, offsets=False), [0])
    d_y = np.ones((3, 2), np.float32)
    for op_ in (GRADIENT, WEIGHTS):
        sample = testing.Sample(op_, "", {}, (d_y, matrix, W, None, None)[: len(op_.inputs)], {}, ("d",))
        with pytest.raises(OpError, match="d_y: expected a row for each of the 1 bags, got 3"):
            sample.reference()


@every_provider
def test_a_maximum_of_nan_is_nan_and_the_first_one_is_to_blame(provider: str) -> None:
    table = np.array([[1.0, 5], [np.nan, 2], [3, np.nan], [np.nan, 1], [-np.inf, -np.inf]], np.float32)
    indices = [[0, 1, 3], [2, 0, 0], [0, 0, 4], [4, 4, 4]]
    got = run(provider, indices, table, mode="max")
    np.testing.assert_array_equal(got, [[np.nan, 5], [3, np.nan], [1, 5], [-np.inf, -np.inf]])
    d_table, _ = gradients(provider, np.ones((4, 2)), indices, table, mode="max")
    np.testing.assert_array_equal(d_table, [[1, 2], [1, 0], [1, 1], [0, 0], [1, 1]])
    long = [[0] * 5000 + [1] + [0] * 5000 + [3]]
    np.testing.assert_array_equal(run(provider, long, table, mode="max"), [[np.nan, 5]])
    d_table, _ = gradients(provider, np.ones((1, 2)), long, table, mode="max")
    np.testing.assert_array_equal(d_table, [[0, 1], [1, 0], [0, 0], [0, 0], [0, 0]])


@every_provider
def test_infinite_and_nan_rows_stay_in_their_bag(provider: str) -> None:
    """The rows beside them are added as zeros times their factor, or not at all."""
    table = np.array([[np.inf], [np.nan], [1.0]], np.float32)
    for length in (1, 3, 5, 9):
        indices = [[0] * length, [1] * length, [2] * length]
        for mode in ("sum", "mean", "max"):
            got = run(provider, indices, table, mode=mode, padding_idx=1)
            np.testing.assert_array_equal(got, [[np.inf], [0], [length if mode == "sum" else 1]])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_gradient_is_the_same_bits_every_time(threads: int) -> None:
    rng = np.random.default_rng(0)
    d_y, indices = rng.standard_normal((500, 40)), rng.integers(0, 7, (500, 30))
    first, _ = gradients(testing.CPU, d_y, indices, np.zeros((7, 40)), mode="mean")
    for _ in range(threads):
        again, _ = gradients(testing.CPU, d_y, indices, np.zeros((7, 40)), mode="mean")
        np.testing.assert_array_equal(first.view(np.int32), again.view(np.int32))


# --- CUDA alone


@pytest.mark.gpu
def test_on_cuda_the_gradient_is_the_same_bits_every_time() -> None:
    """Few rows that very many positions go to, and many rows."""
    rng = np.random.default_rng(0)
    for rows, width, mode in ((3, 40, "sum"), (3, 5, "max"), (50_000, 128, "mean")):
        d_y, indices = rng.standard_normal((3000, width)), rng.integers(0, rows, (3000, 30))
        table = rng.standard_normal((rows, width))
        first, _ = gradients(testing.CUDA, d_y, indices, table, mode=mode)
        for _ in range(3):
            again, _ = gradients(testing.CUDA, d_y, indices, table, mode=mode)
            np.testing.assert_array_equal(first.view(np.int32), again.view(np.int32))


@pytest.mark.gpu
@every_mode
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("width", [3, 64])
def test_o18_on_cuda_the_bag_is_nan_and_no_other(mode: str, dtype: str, width: int) -> None:
    table = (np.arange(6 * width).reshape(6, width) % 64).astype(element_type(dtype))
    session = session_of(testing.CUDA, table, mode=mode)
    got = look_up(session, [0, 6, 1, 5, -7, 2**40, -(2**40), -1], [0, 2, 4, 5, 6, 7])
    assert np.isnan(got[[0, 2, 3, 4]]).all()
    want = table[[1, 5]].astype(float)
    np.testing.assert_array_equal(got[1], getattr(want, mode)(axis=0).astype(element_type(dtype)).astype(float))
    np.testing.assert_array_equal(got[5], table[5].astype(float))


@pytest.mark.gpu
@pytest.mark.parametrize(("offsets", "position"), BAD_OFFSETS, ids=str)
def test_on_cuda_offsets_that_are_none_read_nothing_outside(offsets: list[int], position: int) -> None:
    indices = [0, 1, 2, 3, 4]
    assert np.isfinite(look_up(session_of(testing.CUDA, W), indices, offsets)).all()
    session = session_of(testing.CUDA, W, check_indices=True)
    with pytest.raises(Exception, match=rf"offsets: expected .* at position {position}"):
        look_up(session, indices, offsets)
    np.testing.assert_array_equal(look_up(session, indices, [0, 5]), [[4, 5], [0, 0]])
    with pytest.raises(Exception, match=r"indices: index 6 is outside of the valid range \[-6, 5\]"):
        look_up(session, [0, 6], [0])


@pytest.mark.slow
@pytest.mark.gpu
def test_a_table_of_more_than_2_to_the_31_elements() -> None:
    torch = pytest.importorskip("torch")
    rows, width = 2**31 // 1024 + 8, 1024
    table = torch.zeros((rows, width), dtype=torch.float16, device="cuda")
    table[-1] = 7
    table[-2] = 1
    d_table = torch.full_like(table, torch.nan)
    graph = ortops.Graph()
    indices = graph.input("indices", "int64", [None, None])
    value = graph.input("table", "float16", [None, width])
    y = ops.embedding_bag(indices, value, mode="sum")
    graph.output(y, "y")
    (d,) = ortops.gradients([y], [value])
    graph.output(d, "d_table")
    session = ortops.InferenceSession(graph, providers=[testing.CUDA])
    binding = session.io_binding()
    binding.bind_cpu_input("indices", np.array([[-1, 0], [rows - 1, rows - 2]]))
    binding.bind_input("table", "cuda", 0, np.float16, [rows, width], table.data_ptr())
    binding.bind_output("y")
    binding.bind_output("d_table", "cuda", 0, np.float16, [rows, width], d_table.data_ptr())
    torch.cuda.synchronize()
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0][:, -1], [7, 8])
    assert d_table[-1].eq(2).all()
    assert d_table[-2].eq(1).all()
    assert d_table[0].eq(1).all()
    assert d_table.sum(dtype=torch.float64).item() == 4 * width


# --- without the library


def test_the_function_body_has_no_loop() -> None:
    graph = ortops.Graph()
    indices, offsets = graph.input("indices", "int64", [None]), graph.input("offsets", "int64", [None])
    graph.output(ops.embedding_bag(indices, W, offsets, mode="max", padding_idx=1), "y")
    (function,) = graph.build().functions
    assert not {"Loop", "Scan", "If"} & {node.op_type for node in function.node}


@every_provider
def test_rows_without_elements_have_gradients(provider: str) -> None:
    """Of a table [V, 0]: its own is empty, that of the weights is zeros."""
    sample = testing.Sample(
        WEIGHTS,
        "",
        {"I": "int64", "T": "float32"},
        (np.zeros((2, 0), np.float32), np.array([0, 4, -1]), np.zeros((5, 0), np.float32), np.array([0, 1])),
        {},
        ("d_weights",),
    )
    np.testing.assert_array_equal(testing.run(sample, provider)[0], np.zeros(3))


def test_what_is_in_no_bag_gets_zeros_in_the_standard_nodes_too() -> None:
    """NaN beside it, in its weight or its row, does not reach the result."""
    table = np.array([[1, 2], [np.nan, np.nan], [3, 4]], np.float32)
    indices, offsets = np.array([0, 1, 2]), np.array([0, 1])
    d_y, weights = np.ones((1, 2), np.float32), np.array([2, np.nan, np.nan], np.float32)
    graph = ortops.Graph()
    d, w = graph.input("d_y", "float32", [None, 2]), graph.input("weights", "float32", [None])
    i, o = graph.input("indices", "int64", [None]), graph.input("offsets", "int64", [None])
    bags = {"include_last_offset": True}
    graph.output(ops.embedding_bag_gradient(d, i, table, o, w, mode="sum", **bags), "d_table")
    graph.output(ops.embedding_bag_weights_gradient(d, i, table, o, **bags), "d_weights")
    feeds = {"d_y": d_y, "weights": weights, "indices": indices, "offsets": offsets}
    for lower in ("none", "all"):
        got = ortops.InferenceSession(graph, providers=[testing.CPU], lower=lower).run(None, feeds)
        np.testing.assert_array_equal(got[0], [[2, 2], [0, 0], [0, 0]])
        np.testing.assert_array_equal(got[1], [3, 0, 0])
