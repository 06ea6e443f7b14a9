"""What is particular to SelectTopK."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ortops
from ortops import OpError, ops, testing
from ortops._declare import element_type, find

SELECT_TOP_K = find("SelectTopK")
assert SELECT_TOP_K is not None
ROOT = Path(__file__).parents[2]
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
FLOATS = ("float32", "float16", "bfloat16")


def run(provider, x, k=None, k_input=None, **attributes):
    inputs = (x, None if k_input is None else np.array([k_input]))
    given = attributes if k is None else {"k": k, **attributes}
    sample = testing.Sample(SELECT_TOP_K, "", {"T": str(x.dtype)}, inputs, given, ("values", "indices"))
    return testing.run(sample, provider)


def check(provider, x, k, **attributes):
    """Against the reference, values and indices, exactly."""
    values, indices = run(provider, x, k, **attributes)
    want_values, want_indices = ops.select_top_k(x, k=k, outputs=["values", "indices"], **attributes)
    np.testing.assert_array_equal(indices, want_indices)
    np.testing.assert_array_equal(values.astype(np.float64), want_values.astype(np.float64))
    return values, indices


@every_provider
def test_o01_of_equal_values_the_lower_index_is_taken(provider: str) -> None:
    """https://github.com/pytorch/pytorch/issues/127196"""
    x = np.array([[4, 1, 0, 4, 2, 4], [6, 6, 3, 6, -1, 6]], np.float32)
    values, indices = run(provider, x, 2)
    np.testing.assert_array_equal(values, [[4, 4], [6, 6]])
    np.testing.assert_array_equal(indices, [[0, 3], [0, 1]])


@every_provider
@pytest.mark.parametrize("size", [50, 1000, 5000, 40_000])
def test_o01_a_row_in_a_batch_gives_what_it_gives_alone(provider: str, size: int) -> None:
    x = np.random.default_rng(0).integers(0, 20, (70, size)).astype(np.float16)
    _, together = run(provider, x, 25)
    for _ in range(3):
        np.testing.assert_array_equal(run(provider, x, 25)[1], together)
    for row in (0, 69):
        np.testing.assert_array_equal(run(provider, x[row : row + 1], 25)[1], together[row : row + 1])


@every_provider
@pytest.mark.parametrize("dtype", FLOATS)
def test_o02_nan_is_larger_than_all(provider: str, dtype: str) -> None:
    """https://github.com/microsoft/onnxruntime/pull/10314"""
    x = np.array([[1, np.nan, 3, 2], [np.nan] * 4]).astype(element_type(dtype))
    values, indices = run(provider, x, 2)
    np.testing.assert_array_equal(indices, [[1, 2], [0, 1]])
    np.testing.assert_array_equal(values.astype(np.float32), [[np.nan, 3], [np.nan, np.nan]])
    values, indices = run(provider, x, 4, largest=False)
    np.testing.assert_array_equal(indices, [[0, 3, 2, 1], [0, 1, 2, 3]])


@every_provider
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("size", [40, 700, 3000, 20_000, 70_000])
@pytest.mark.parametrize("share", [0.01, 0.9, 1.0])
def test_o02_nan_among_infinities_and_zeros_of_both_signs(
    provider: str, largest: bool, size: int, share: float
) -> None:
    rng = np.random.default_rng(size)
    x = rng.choice(np.array([np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0], np.float32), (3, size))
    x[rng.random(x.shape) < share] = np.nan
    x[:, 0] = -np.nan
    for k in (1, 20):
        values, indices = check(provider, x, k, largest=largest)
        taken = np.take_along_axis(x, indices, 1)
        np.testing.assert_array_equal(values.view(np.int32), taken.view(np.int32))  # the bits: -0 and NaN, too


def test_o03_a_k_beyond_the_axis_is_an_error_that_names_both() -> None:
    """https://github.com/microsoft/onnxruntime/issues/12669"""
    x = np.array([[0.5, -1, 2, 8, 0]], np.float32)
    text = r"expected a number from 0 to the size 5 of axis -1, got k = 7"
    with pytest.raises(OpError, match=rf"SelectTopK: attribute k: {text}"):
        ops.select_top_k(x, k=7)
    graph = ortops.Graph()
    with pytest.raises(OpError, match=rf"attribute k: {text}"):
        ops.select_top_k(graph.input("x", "float32", [None, 5]), k=7)


@every_provider
@pytest.mark.parametrize("as_input", [True, False])
def test_o03_at_run_time(provider: str, as_input: bool) -> None:
    graph = ortops.Graph()
    x = graph.input("x", "float32", [None, None])
    k = {"k_input": graph.input("k", "int64", [1])} if as_input else {"k": 7}
    for value, name in zip(ops.select_top_k(x, outputs=["values", "indices"], **k), "vi", strict=True):
        graph.output(value, name)
    session = ortops.InferenceSession(graph, providers=[provider], lower="none")

    def call(size: int, k: int) -> list[np.ndarray]:
        feeds = {"x": np.arange(2 * size, dtype=np.float32).reshape(2, size)}
        return session.run(None, feeds | ({"k": np.array([k])} if as_input else {}))

    name = "k_input" if as_input else "attribute k"
    with pytest.raises(Exception, match=rf"{name}: expected a number from 0 to the size 5 of axis -1, got k = 7"):
        call(5, 7)
    if as_input:
        with pytest.raises(Exception, match=r"k_input: expected a number from 0 .*, got k = -1"):
            call(5, -1)
        assert [r.shape for r in call(5, 0)] == [(2, 0), (2, 0)]
    np.testing.assert_array_equal(call(8, 7)[1][1], [7, 6, 5, 4, 3, 2, 1])  # still usable


@every_provider
@pytest.mark.parametrize("size", [1000, 1023, 1024, 1025, 1500, 2047, 2048, 2049, 65537])
@pytest.mark.parametrize("dtype", FLOATS)
def test_o04_an_axis_longer_than_a_block(provider: str, size: int, dtype: str) -> None:
    """https://github.com/microsoft/onnxruntime/issues/2434"""
    x = np.zeros((1, size))
    x[0, :6] = [0.2, 0.7, 0.11, 0.9, 0.4, 0.33]
    x = x.astype(element_type(dtype))
    values, indices = run(provider, x, 3)
    np.testing.assert_array_equal(indices, [[3, 1, 4]])
    np.testing.assert_array_equal(values.astype(np.float32), x[0, [[3, 1, 4]]].astype(np.float32))


@every_provider
@pytest.mark.parametrize("types", list(SELECT_TOP_K.type_sets()), ids=lambda types: types["T"])
@pytest.mark.parametrize("values", [1, 2, 30])
def test_few_values(provider: str, types: dict[str, str], values: int) -> None:
    """So that nearly all are equal to others: by the kernel, and by the function body."""
    if provider == testing.CUDA and types["T"] == "float64":
        pytest.skip("computed on the CPU alone")
    rng = np.random.default_rng(values)
    for size, k in ((20, 3), (1025, 8), (1025, 1025), (1003, 70), (5003, 700), (5003, 3000), (70_001, 3)):
        x = rng.integers(0, values, (2, size)).astype(element_type(types["T"]))
        if "float" in types["T"]:
            x[rng.random(x.shape) < 0.003] = np.nan
        for largest in (True, False):
            attributes = {"k": k, "largest": largest, "sorted": size != 1003}
            sample = testing.Sample(SELECT_TOP_K, "", types, (x, None), attributes, ("values", "indices"))
            testing.compare(sample, testing.run(sample, provider))
            if provider == testing.CPU and types["T"] != "bfloat16" and size < 5000:
                testing.compare(sample, testing.run_body(sample))


#: Around every bound between two ways to do it.
SIZES = (1, 31, 128, 129, 255, 256, 512, 1024, 2048, 2049, 4097, 8192, 8200, 16384, 16400, 32768, 33000, 65536, 150_007)


@every_provider
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int8"])
@pytest.mark.parametrize("size", SIZES)
def test_every_size(provider: str, dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = (rng.standard_normal((2, size)) * 30).astype(dtype)
    for k, largest, sorted_ in (
        (1, True, True),
        (7, False, True),
        (64, True, False),
        (65, True, True),
        (300, True, False),
    ):
        if k <= size:
            check(provider, x, k, largest=largest, sorted=sorted_)


@every_provider
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_what_was_selected_of_slices_is_cut_once_more(provider: str, dtype: str) -> None:
    """A row so long that the best of its slices are more than a block holds."""
    x = (np.random.default_rng(7).standard_normal((1, 1_500_000)) * 1000).astype(dtype)
    check(provider, x, 500)


@every_provider
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int8"])
@pytest.mark.parametrize("shape", [(40, 20_001), (300, 9001)])
def test_rows_of_several_tiles(provider: str, dtype: str, shape: tuple[int, int]) -> None:
    """Their number lets a block take whole rows, of any alignment; the orders overflow what it can put aside."""
    rng = np.random.default_rng(8)
    i = np.arange(shape[1])
    for x in (rng.standard_normal(shape) * 60, i + np.zeros(shape), -i + np.zeros(shape), i // 5000 + np.zeros(shape)):
        for k in (4, 128, 256):
            with np.errstate(invalid="ignore"):
                check(provider, x.astype(dtype), k, largest=k != 128, sorted=k != 4)


@every_provider
@pytest.mark.parametrize("sorted_", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8"])
def test_rows_that_a_block_sorts(provider: str, dtype: str, sorted_: bool) -> None:
    rng = np.random.default_rng(9)
    for size in (2049, 8192, 8193, 16384, 16385):
        x = rng.integers(0, 100, (3, size)).astype(element_type(dtype))
        if "float" in dtype:
            x[rng.random(x.shape) < 0.01] = np.nan
        for k in (2049, size):
            check(provider, x, k, sorted=sorted_)
            check(provider, x, k, sorted=sorted_, largest=False)


@every_provider
@pytest.mark.parametrize("order", ["ascending", "descending", "one value", "two values", "mostly zero", "a step"])
@pytest.mark.parametrize("size", [1000, 30_000, 140_000])
@pytest.mark.parametrize("k", [1, 50, 600, 2048, 2049])
def test_orders_that_defy_sampling(provider: str, order: str, size: int, k: int) -> None:
    i = np.arange(size)
    row = {
        "ascending": i,
        "descending": -i,
        "one value": 0 * i,
        "two values": i % 2,
        "mostly zero": np.where(i % 997 == 5, i, 0),
        "a step": i // 700 % 8,
    }[order]
    x = np.stack([row, row[::-1]]).astype(np.float32)
    if k <= size:
        check(provider, x, k)
        check(provider, x, k, largest=False, sorted=False)


@every_provider
@pytest.mark.parametrize(("shape", "axis"), [((300, 5), 0), ((2, 3000, 33), 1), ((40, 2, 9), 0), ((2, 40_000, 9), -2)])
def test_every_axis(provider: str, shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    for k in (1, 13, shape[axis] // 2):
        check(provider, x, k, axis=axis)
        check(provider, x, k, axis=axis, largest=False, sorted=False)


@every_provider
@pytest.mark.parametrize("rows", [65_536, 300_000])
def test_many_rows(provider: str, rows: int) -> None:
    x = np.random.default_rng(4).integers(0, 9, (rows, 10)).astype(np.float16)
    check(provider, x, 3)


@every_provider
def test_without_k_it_is_a_stable_sort(provider: str) -> None:
    x = np.random.default_rng(5).integers(0, 30, (2, 5000)).astype(np.int32)
    _, indices = run(provider, x, largest=False)
    np.testing.assert_array_equal(indices, np.argsort(x, axis=1, kind="stable"))


def test_bad_input_is_told() -> None:
    x = np.zeros((2, 5), np.float32)
    with pytest.raises(OpError, match="attribute k: expected either the attribute k or the input k_input, got both"):
        ops.select_top_k(x, np.array([2]), k=2)
    with pytest.raises(OpError, match="attribute axis: expected an axis from -2 to 1, got 2"):
        ops.select_top_k(x, k=1, axis=2)
    with pytest.raises(OpError, match="attribute axis: expected an input of at least one axis, got a scalar"):
        ops.select_top_k(np.float32(3), k=1)
    with pytest.raises(OpError, match="attribute k: expected an int at least 0 or None, got -1"):
        ops.select_top_k(x, k=-1)
    with pytest.raises(OpError, match=r"k_input: expected shape \[1\], got \[2\]"):
        ops.select_top_k(x, np.array([2, 3]))


@every_provider
@pytest.mark.parametrize("k", [0, 1, 9, 64])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_values_are_pytorchs(provider: str, k: int, largest: bool, dim: int) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(6).permutation(64 * 64 * 3).reshape(64, 64, 3).astype(np.float32)
    if k > x.shape[dim]:
        return
    values, indices = run(provider, x, k, axis=dim, largest=largest)
    want = torch.topk(torch.from_numpy(x), k, dim, largest)
    np.testing.assert_array_equal(values, want.values.numpy())
    np.testing.assert_array_equal(indices, want.indices.numpy())


def test_what_cuda_does_with_a_row_on_the_host(tmp_path: Path) -> None:
    """The kernel's code, compiled for the host, with threads in the place of a block's."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "select_on_host"
    source = ROOT / "tests" / "ops" / "select_on_host.cc"
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-pthread", f"-I{ROOT / 'cuda'}", source, "-o", program], check=True, timeout=300
    )
    result = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout


@every_provider
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sorted_", [True, False])
def test_the_gradient_is_pytorchs(provider: str, dtype: str, sorted_: bool) -> None:
    """Of different values; elements that were not selected have none."""
    torch = pytest.importorskip("torch")
    x = np.stack([np.random.default_rng(row).permutation(200) - 100.0 for row in range(6)]).reshape(2, 3, 200)
    x = x.astype(element_type(dtype))
    for axis, k in ((-1, 7), (1, 2), (0, 0)):
        attributes = {"k": k, "axis": axis, "sorted": sorted_}
        sample = testing.Sample(SELECT_TOP_K, "", {"T": dtype}, (x, None), attributes, ("values", "indices"))
        (d_values,) = testing.random_d_outputs(sample)
        got = testing.run_gradient(sample, [d_values], provider)[0]
        leaf = torch.tensor(x.astype(np.float32), requires_grad=True)
        values, indices = torch.topk(leaf, k, axis)
        if not sorted_:  # torch's order may be any: ours is that of the indices
            indices = indices.sort(axis).values
            values = leaf.gather(axis, indices)
        values.backward(torch.tensor(d_values.astype(np.float32)))
        np.testing.assert_array_equal(got.astype(np.float32), leaf.grad.numpy())
