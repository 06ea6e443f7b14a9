"""What is particular to packed attention: it is ScaledDotProductAttention of the parts, on every way of the device."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import pytest

import ortops
from ortops import ops as operators
from ortops import testing
from ortops._declare import Op, OpError, ops

packed: Op = next(op for op in ops() if op.name == "PackedQKVAttention")
attention: Op = next(op for op in ops() if op.name == "ScaledDotProductAttention")

PROVIDERS = [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)]
with_provider = pytest.mark.parametrize("provider", PROVIDERS)
#: The ways that the CUDA kernel has; "" is what it chooses by itself.
WAYS = ("", "general", "mma", "cudnn")


@pytest.fixture(params=[testing.CPU, *(pytest.param(f"{testing.CUDA} {way}", marks=pytest.mark.gpu) for way in WAYS)])
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name, _, way = request.param.partition(" ")
    if way:
        monkeypatch.setenv("ORTOPS_ATTENTION", way)
    return str(name)


def run(op: Op, provider: str, *inputs: Any, **attributes: Any) -> np.ndarray:
    types = {"T": str(inputs[0].dtype), "M": "bool" if inputs[-1] is None else str(inputs[-1].dtype)}
    return testing.run(testing.Sample(op, "test", types, inputs, attributes, ("y",)), provider)[0]


def draw(heads: int, kv_heads: int, length: int, size: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(size)
    return rng.standard_normal((2, length, heads + 2 * kv_heads, size)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("size", "heads", "kv_heads"), [(7, 4, 4), (32, 6, 2), (64, 3, 1), (128, 4, 4), (256, 6, 2)])
@pytest.mark.parametrize(("causal", "masked"), [(False, False), (False, True), (True, False), (True, True)])
def test_it_is_the_attention_of_the_parts(
    provider: str, dtype: str, size: int, heads: int, kv_heads: int, causal: bool, masked: bool
) -> None:
    x = draw(heads, kv_heads, 70, size, dtype)
    mask = np.arange(70) < np.array([70, 31])[:, None, None, None] if masked else None
    y = run(packed, provider, x, mask, heads=heads, kv_heads=kv_heads, causal=causal)
    parts = (np.ascontiguousarray(part) for part in np.split(x, [heads, heads + kv_heads], axis=2))
    words = {"causal": "top_left" if causal else "none", "layout": "BSHD"}
    expected = run(attention, provider, *parts, mask, **words)
    # cuDNN may choose another plan for other strides.
    np.testing.assert_allclose(y, expected, atol=1e-6 if dtype == "float32" else 2e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("causal", [False, True])
def test_torch(provider: str, dtype: str, causal: bool) -> None:
    torch = pytest.importorskip("torch")
    x = draw(6, 3, 129, 64, dtype)
    y = run(packed, provider, x, None, heads=6, kv_heads=3, causal=causal)
    wide = torch.from_numpy(x).to(torch.float64).transpose(1, 2)
    query, key, value = wide[:, :6], wide[:, 6:9], wide[:, 9:]
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
    np.testing.assert_allclose(y, expected.transpose(1, 2).numpy(), atol=1e-5 if dtype == "float32" else 2e-3)


# Keys that are left out in every place that a tile of 32 or 64 has: whole tiles, the first ones, single ones, all.
@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize(
    "kept", [range(1), range(199, 200), range(64, 128), range(63, 65), range(130, 190), range(0, 200, 66), range(0)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_runs_of_keys_that_are_left_out(provider: str, size: int, kept: range, causal: bool) -> None:
    x = draw(2, 1, 200, size, "float16")
    mask = np.zeros((2, 1, 1, 200), bool)
    mask[0, ..., list(kept)] = True
    mask[1] = True
    inputs = (x, mask)
    attributes = {"heads": 2, "kv_heads": 1, "causal": causal}
    sample = testing.Sample(packed, "test", {"T": "float16", "M": "bool"}, inputs, attributes, ("y",))
    testing.compare(sample, testing.run(sample, provider))


def test_every_way_of_the_device_on_every_sample(provider: str) -> None:
    if provider == testing.CPU or "ORTOPS_ATTENTION" not in os.environ:
        pytest.skip("test_ops.py has run it")
    for types in packed.type_sets():
        for sample in testing.samples(packed, types):
            testing.compare(sample, testing.run(sample, provider))


WRONG = r"qkv: expected shape \[B S heads\+2\*kv_heads D\] with heads\+2\*kv_heads = 8, got \[2, 5, 12, 16\]"


def test_a_wrong_number_of_heads_is_told_with_numbers() -> None:
    x = np.zeros((2, 5, 12, 16), np.float32)
    with pytest.raises(OpError, match=f"PackedQKVAttention: {WRONG}"):
        packed(x, heads=4, kv_heads=2)
    graph = ortops.Graph("test")
    with pytest.raises(OpError, match=WRONG):
        operators.packed_qkv_attention(graph.input("x", "float32", [2, 5, 12, 16]), heads=4, kv_heads=2)
    node = onnx.helper.make_node("PackedQKVAttention", ["x"], ["y"], domain="ortops", heads=4, kv_heads=2)
    info = [onnx.helper.make_tensor_value_info(name, 1, [2, 5, 12, 16]) for name in ("x", "y")]
    opsets = [onnx.helper.make_opsetid("ortops", 1)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "test", info[:1], info[1:]), opset_imports=opsets)
    with pytest.raises(Exception, match=WRONG):
        onnx.shape_inference.infer_shapes(model, strict_mode=True)


def test_shapes_are_inferred() -> None:
    graph = ortops.Graph("test")
    x = graph.input("x", "float16", ["batch", "length", 8, 16])
    y = operators.packed_qkv_attention(x, heads=4, kv_heads=2)
    assert y.shape == ("batch", "length", 4, 16)


@with_provider
@pytest.mark.parametrize(
    ("shape", "attributes", "message"),
    [
        ((2, 5, 12, 16), {"heads": 4, "kv_heads": 2}, WRONG),
        (
            (2, 5, 20, 16),
            {"heads": 12, "kv_heads": 4, "mask": (2, 1, 5, 6)},
            r"mask: expected a shape that broadcasts to \[B heads S S\] with B = 2, heads = 12, S = 5, got \[2, 1, 5, 6\]",
        ),
        (
            (2, 5, 22, 16),
            {"heads": 12, "kv_heads": 5},
            "attribute kv_heads: expected a divisor of heads = 12, got 5",
        ),
        ((1, 5, 3, 520), {"heads": 1, "kv_heads": 1}, "qkv: expected a head size of at most 512, got 520"),
        ((1, 5, 3, 8), {"heads": 1, "kv_heads": 0}, "attribute kv_heads: expected an int from 1 to 65536, got 0"),
        ((1, 5, 3, 8), {"heads": 1}, "attribute kv_heads: expected an int from 1 to 65536, got nothing"),
    ],
)
def test_errors(provider: str, shape: tuple[int, ...], attributes: dict[str, Any], message: str) -> None:
    given = dict(attributes)
    mask = np.zeros(given.pop("mask"), bool) if "mask" in given else None
    inputs = (np.zeros(shape, np.float32), mask)
    model = testing.model_of(
        packed,
        ("float32", mask if mask is None else "bool"),
        (4, None if mask is None else 4),
        tuple(given.items()),
        ("y",),
        ("float32",),
        (4,),
    )
    import onnxruntime

    from ortops.session import register

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    register(options)
    with pytest.raises(Exception, match=message):
        session = onnxruntime.InferenceSession(model, options, providers=[provider])
        session.run(None, {f"input{i}": x for i, x in enumerate(inputs) if x is not None})


def test_the_reference_checks_the_number_of_heads() -> None:
    with pytest.raises(
        OpError, match="PackedQKVAttention: attribute kv_heads: expected a divisor of heads = 12, got 5"
    ):
        packed(np.zeros((2, 5, 22, 16)), heads=12, kv_heads=5)
