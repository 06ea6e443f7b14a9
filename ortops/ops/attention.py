"""Attention."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from ortops._declare import ELEMENT_TYPES, FLOATS, Case, OpError, Range, Testing, element_type, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value

#: Masks by their shape, for 2 batch entries, 4 heads and as many queries and keys as the case has.
MASKS = ("B11K", "B1QK", "1HQK", "BHQK", "BH1K", "QK", "K", "BHQ1", "1")


def _case(
    name: str,
    lengths: tuple[int, int],
    size: int | tuple[int, int],
    mask: str = "",
    *,
    kind: str = "bool",
    batch: int = 2,
    heads: tuple[int, int] = (4, 4),
    **attributes: Any,
) -> Case:
    """Queries and keys of these lengths; `size` is D, or D and Dv. `kind` of mask: bool, float, or inf (float with -inf in it)."""
    (queries, keys), (d, dv) = lengths, size if isinstance(size, tuple) else (size, size)

    def inputs(rng: np.random.Generator) -> dict[str, np.ndarray | None]:
        def draw(h: int, length: int, d: int) -> np.ndarray:
            return rng.standard_normal(
                (batch, length, h, d) if attributes.get("layout") == "BSHD" else (batch, h, length, d)
            )

        added = None
        if mask:
            sizes = {"B": batch, "H": heads[0], "Q": queries, "K": keys, "1": 1}
            shape = tuple(sizes[axis] for axis in mask)
            added = rng.random(shape) < 0.6
            if kind != "bool":
                added = np.where(added | (kind == "float"), rng.standard_normal(shape), -inf)
        return {
            "query": draw(heads[0], queries, d),
            "key": draw(heads[1], keys, d),
            "value": draw(heads[1], keys, dv),
            "mask": added,
        }

    return Case(
        inputs,
        attributes,
        f"{name}, {queries} queries, {keys} keys, head size {size}{f', {kind} mask {mask}' if mask else ''}",
    )


def _cases() -> Iterator[Case]:
    # Head sizes: vectors and none, what cuDNN and the tensor-core kernel take, and what is left for the general one.
    for size in (1, 7, 8, 32, 40, 64, 72, 80, 96, 128, 256, 512):
        yield _case("head size", (37, 70), size)
    yield _case("head sizes", (37, 70), (64, 24))
    yield _case("head sizes", (20, 70), (24, 300))
    yield _case("demo", (128, 128), 32, "B11K", layout="BSHD")
    # Lengths around the tiles of 16, 32, 64 and 128.
    for lengths in ((1, 1), (1, 129), (15, 16), (17, 33), (65, 63), (64, 64), (128, 65), (130, 300)):
        yield _case("length", lengths, 32, "B11K")
        yield _case("length", lengths, 64, causal="top_left")
        yield _case("length", lengths, 64, "QK", causal="bottom_right", layout="BSHD")
    for kind in ("bool", "float", "inf"):
        for mask in MASKS:
            yield _case("mask", (37, 53), 32, mask, kind=kind)
        yield _case("mask", (37, 53), 7, "1HQK", kind=kind, causal="top_left", layout="BSHD")
        yield _case("mask", (150, 140), 64, "BHQK", kind=kind, causal="bottom_right", heads=(4, 2))
    for heads in ((4, 2), (4, 1), (6, 3)):
        for layout in ("BHSD", "BSHD"):
            yield _case("grouped heads", (33, 70), 40, heads=heads, layout=layout)
            yield _case("grouped heads", (70, 33), 64, "B11K", heads=heads, layout=layout, causal="top_left")
            yield _case("grouped heads, one query", (1, 200), 64, "B11K", heads=heads, layout=layout)
    for causal in ("top_left", "bottom_right"):
        yield _case("causal", (60, 200), 128, causal=causal)
        yield _case("causal", (200, 60), 80, causal=causal)
        yield _case("causal", (3, 5), (7, 3), causal=causal)
    yield _case("scale", (37, 70), 64, scale=0.5)
    yield _case("scale", (37, 70), 64, "B11K", scale=0.0)
    yield _case("more heads than a grid has rows", (1, 1), 8, batch=35000, heads=(2, 1))
    yield _case("no batch", (5, 6), 8, batch=0)
    yield _case("no batch", (5, 6), 8, "B11K", batch=0)
    yield _case("no query", (0, 6), 8)
    yield _case("no key", (5, 0), 8)
    yield Case(
        lambda rng: (
            {n: rng.standard_normal((2, 2, 9, 16)) for n in ("query", "key", "value")}
            | {"mask": np.array([True, False]).reshape(2, 1, 1, 1) & np.ones((1, 1, 1, 9), bool)}
        ),
        name="a batch entry without any key",
    )
    yield Case(
        lambda rng: (
            {n: rng.standard_normal((2, 70, 2, 64)) for n in ("query", "key", "value")} | {"mask": np.arange(70) > 40}
        ),
        {"causal": "top_left", "layout": "BSHD"},
        "the first queries see only keys that the mask leaves out",
    )
    yield Case(
        lambda rng: (
            {"query": 30 * np.ones((1, 1, 5, 40)), "key": 30 * rng.choice([-1.0, 1.0], (1, 1, 90, 1)) * np.ones(40)}
            | {"value": rng.standard_normal((1, 1, 90, 16))}
        ),
        name="scores of 5692 and -5692",
    )


def _sizes(sizes: dict[str, int]) -> dict[str, int]:
    """Grouped heads, no head size above the limit, and few of what only multiplies the work of the reference."""
    kv_heads = min(sizes["Hkv"], 5)
    limited = {name: min(sizes[name], 512) for name in ("D", "Dv")}
    return sizes | limited | {"B": min(sizes["B"], 3), "H": 2 * kv_heads, "Hkv": kv_heads}


def _terms(query, key, value, mask=None, **attributes):
    """The results of |value|: weights are not negative."""
    return scaled_dot_product_attention.function(query, key, np.abs(value), mask, **attributes)


@op(
    {
        "BHSD": "query: T[B H Sq D], key: T[B Hkv Skv D], value: T[B Hkv Skv Dv], mask: M?<B H Sq Skv> -> y: T[B H Sq Dv]",
        "BSHD": "query: T[B Sq H D], key: T[B Skv Hkv D], value: T[B Skv Hkv Dv], mask: M?<B H Sq Skv> -> y: T[B Sq H Dv]",
    },
    name="ScaledDotProductAttention",
    layout="layout",
    T=FLOATS,
    M=("bool", "T"),
    testing=Testing(
        cases=tuple(_cases()),
        sizes=_sizes,
        terms=_terms,
        # float32: the error of a score, which grows with D, is relative in its exponential. 16 bits: tensor cores take weights
        # that have been rounded, an error of half an epsilon of every term beside that of the result.
        bar={"float32": 32, "float16": 2, "bfloat16": 2},
    ),
)
def scaled_dot_product_attention(
    query,
    key,
    value,
    mask=None,
    *,
    scale: Annotated[float, Range(min=0)] | None = None,
    causal: Literal["none", "top_left", "bottom_right"] = "none",
    layout: Literal["BHSD", "BSHD"] = "BHSD",
):
    """softmax(scale query key^T + mask) value, without ever holding the matrix of scores. (Vaswani et al., 2017; Dao, 2023)

    H is a multiple of Hkv: each key and value head serves H / Hkv query heads (Ainslie et al., 2023). `scale` is 1 / sqrt(D)
    unless given. A boolean mask keeps where it is true; one of T is added to the scores. `causal` keeps for query i the keys up
    to i (top_left, as torch's is_causal and ONNX's Attention have it) or up to i + Skv - Sq (bottom_right, as with a cache). A
    query that no key is kept for gives zeros. Head sizes D and Dv from 1 to 512.
    """
    if layout == "BSHD":
        query, key, value = (np.swapaxes(array, 1, 2) for array in (query, key, value))
    (heads, queries, size), (kv_heads, keys) = query.shape[1:], key.shape[1:3]
    if heads % kv_heads if kv_heads else heads:
        raise OpError(
            f"ScaledDotProductAttention: key: expected a number of heads that divides query's {heads}, got {kv_heads}"
        )
    key, value = (np.repeat(array, heads // max(kv_heads, 1), axis=1) for array in (key, value))
    scores = (query @ np.swapaxes(key, -1, -2)) * (1 / np.sqrt(max(size, 1)) if scale is None else scale)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal != "none":
        diagonal = 0 if causal == "top_left" else keys - queries
        scores = np.where(np.tri(queries, keys, diagonal, dtype=bool), scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    y = (weights / np.where(total == 0, 1, total)) @ value
    return np.swapaxes(y, 1, 2) if layout == "BSHD" else y


@scaled_dot_product_attention.decomposition
def _(
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    *,
    scale: float | None,
    causal: str,
    layout: str,
) -> Value:
    # Query heads that share a key and value head are stacked, [B Hkv H/Hkv*Sq D], so that grouped heads need no copies. Where the
    # numbers of heads are known ONNX Runtime folds their computation; the Reshapes move nothing.
    if layout == "BSHD":
        query, value = (onnx.Transpose(x, perm=[0, 2, 1, 3]) for x in (query, value))
        kv_heads, transposed = onnx.Shape(key, start=2, end=3), onnx.Transpose(key, perm=[0, 2, 3, 1])
    else:
        kv_heads, transposed = onnx.Shape(key, start=1, end=2), onnx.Transpose(key, perm=[0, 1, 3, 2])
    lengths = onnx.Shape(query, start=1, end=3)
    stacked = onnx.Concat([0], kv_heads, onnx.ReduceProd(lengths, [0]) / kv_heads, [0], axis=0)
    spread = onnx.Concat([0], lengths, [0], axis=0)

    # The scale comes first: in float16 the products of some queries and keys overflow before it.
    scaled = onnx.Reshape(query, stacked)
    if scale is None:
        size = onnx.Cast(onnx.Shape(query, start=3, end=4), to=ELEMENT_TYPES["float32"])
        scaled = scaled * onnx.CastLike(1.0 / onnx.Sqrt(size), query)
    elif scale != 1:
        scaled = scaled * scale
    scores = scaled @ transposed
    bias = _bias(query, transposed, mask, causal)
    if bias is None:
        return _merged(onnx.Reshape(onnx.Softmax(scores, axis=-1) @ value, spread), layout)

    if mask is None and causal == "top_left":
        weights = onnx.Softmax(onnx.Reshape(scores, spread) + bias, axis=-1)
        return _merged(onnx.Reshape(onnx.Reshape(weights, stacked) @ value, spread), layout)
    # Softmax makes NaN of a row of -inf: it gets 0 instead, and the result is multiplied by 0.
    lowest = np.array(-inf, element_type(str(query.dtype)))
    highest = onnx.Slice(
        onnx.ReduceMax(bias, [-1], keepdims=1), [0], [1], [-1]
    )  # ONNX Runtime reduces no axis if there is no batch
    has_key = onnx.Greater(highest, lowest)
    weights = onnx.Softmax(onnx.Reshape(scores, spread) + onnx.Where(has_key, bias, np.zeros_like(lowest)), axis=-1)
    y = onnx.Reshape(onnx.Reshape(weights, stacked) @ value, spread)
    return _merged(y * onnx.CastLike(has_key, y), layout)


def _bias(query: Value, key: Value, mask: Value | None, causal: str) -> Value | None:
    """What is added to the scores, in the mask's own shape if nothing is causal; query is [B H Sq D], key [B Hkv D Skv]."""
    keep = None
    if causal != "none":
        queries, keys = (onnx.Squeeze(onnx.Shape(x, start=axis, end=axis + 1)) for x, axis in ((query, 2), (key, 3)))
        zero, one = np.int64(0), np.int64(1)
        last = onnx.Unsqueeze(onnx.Range(zero, queries, one), [1])
        if causal == "bottom_right":
            last = last + (keys - queries)
        keep = onnx.LessOrEqual(onnx.Range(zero, keys, one), last)
    added = None
    if mask is not None and mask.dtype != "bool":
        added = mask
    elif mask is not None:
        keep = mask if keep is None else onnx.And(keep, mask)
    if keep is None:
        return added
    dtype = element_type(str(query.dtype))
    return onnx.Where(keep, np.zeros((), dtype) if added is None else added, np.array(-inf, dtype))


def _merged(y: Value, layout: str) -> Value:
    return onnx.Transpose(y, perm=[0, 2, 1, 3]) if layout == "BSHD" else y


# --- one tensor -----------------------------------------------------------------------------------------------------


def _packed_case(
    name: str,
    length: int,
    size: int,
    mask: str = "",
    *,
    heads: tuple[int, int] = (4, 4),
    causal: bool = False,
    **options: Any,
) -> Case:
    """The same, packed."""
    case = _case(name, (length, length), size, mask, heads=heads, layout="BSHD", **options)

    def inputs(rng: np.random.Generator) -> dict[str, np.ndarray | None]:
        given = case.inputs(rng)
        parts = [given[part] for part in ("query", "key", "value")]
        return {"qkv": np.concatenate(parts, axis=2), "mask": given["mask"]}

    attributes = {"heads": heads[0], "kv_heads": heads[1], "causal": causal}
    return Case(inputs, attributes, f"{case.name}, {heads[0]} and {heads[1]} heads")


def _packed_cases() -> Iterator[Case]:
    yield _packed_case("demo", 128, 32, "B11K", heads=(12, 12))
    for size in (7, 8, 40, 64, 128, 512):
        yield _packed_case("head size", 70, size)
        yield _packed_case("head size", 37, size, "B11K", heads=(6, 2), causal=True)
    for length in (1, 17, 63, 64, 65, 127, 129, 300):
        yield _packed_case("length", length, 32, "B11K")
        yield _packed_case("length", length, 64, causal=True)
    for kind in ("bool", "float", "inf"):
        for mask in MASKS:
            yield _packed_case("mask", 53, 32, mask, kind=kind, heads=(4, 2))
    yield _packed_case("no batch", 6, 8, "B11K", batch=0)
    yield _packed_case("no token", 0, 8)


def _packed_sizes(sizes: dict[str, int]) -> dict[str, int]:
    return sizes | {"B": min(sizes["B"], 3), "D": min(sizes["D"], 512)}


def _packed_terms(qkv, mask=None, *, heads, kv_heads, **attributes):
    values = np.arange(qkv.shape[2]) >= heads + kv_heads
    absolute = np.where(values[:, None], np.abs(qkv), qkv)
    return packed_qkv_attention.function(absolute, mask, heads=heads, kv_heads=kv_heads, **attributes)


@op(
    "qkv: T[B S heads+2*kv_heads D], mask: M?<B heads S S> -> y: T[B S heads D]",
    name="PackedQKVAttention",
    T=FLOATS,
    M=("bool", "T"),
    testing=Testing(
        cases=tuple(_packed_cases()),
        attributes={"heads": 4, "kv_heads": 2},
        sizes=_packed_sizes,
        terms=_packed_terms,
        bar=scaled_dot_product_attention.testing.bar,  # the same kernels
    ),
)
def packed_qkv_attention(
    qkv,
    mask=None,
    *,
    heads: Annotated[int, Range(min=1, max=65536)],
    kv_heads: Annotated[int, Range(min=1, max=65536)],
    scale: Annotated[float, Range(min=0)] | None = None,
    causal: bool = False,
):
    """ScaledDotProductAttention of one tensor that holds all query heads, then all key heads, then all value heads.

    That is what one Linear writes for all three, its result [B, S, (heads + 2 kv_heads) D] seen as [B, S, heads + 2 kv_heads, D]:
    they are read where they lie. Mask, scale and limits are those of ScaledDotProductAttention, here with as many keys as
    queries; with `causal` position i sees the positions up to i. kv_heads divides heads.
    """
    if heads % kv_heads:
        raise OpError(f"PackedQKVAttention: attribute kv_heads: expected a divisor of heads = {heads}, got {kv_heads}")
    query, key, value = np.split(qkv, [heads, heads + kv_heads], axis=2)
    return scaled_dot_product_attention.function(
        query, key, value, mask, scale=scale, causal="top_left" if causal else "none", layout="BSHD"
    )


@packed_qkv_attention.decomposition
def _(qkv: Value, mask: Value | None, *, heads: int, kv_heads: int, scale: float | None, causal: bool) -> Value:
    query, key, value = onnx.Split(qkv, [heads, kv_heads, kv_heads], outputs=3, axis=2)
    assert scaled_dot_product_attention.body is not None
    result: Value = scaled_dot_product_attention.body(
        query, key, value, mask, scale=scale, causal="top_left" if causal else "none", layout="BSHD"
    )
    return result
