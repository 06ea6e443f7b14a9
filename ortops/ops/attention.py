"""Attention."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from ortops._declare import FLOATS, OpError, Range, Testing, op


@op(
    {
        "BHSD": "query: T[B H Sq D], key: T[B Hkv Skv D], value: T[B Hkv Skv Dv], mask: M?<B H Sq Skv> -> y: T[B H Sq Dv]",
        "BSHD": "query: T[B Sq H D], key: T[B Skv Hkv D], value: T[B Skv Hkv Dv], mask: M?<B H Sq Skv> -> y: T[B Sq H Dv]",
    },
    name="ScaledDotProductAttention",
    layout="layout",
    T=FLOATS,
    M=("bool", "T"),
    testing=Testing(sizes=lambda sizes: sizes | {"H": 2 * sizes["Hkv"], "D": min(sizes["D"], 512), "Dv": min(sizes["Dv"], 512)}),
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
    if heads % max(kv_heads, 1):
        raise OpError(f"ScaledDotProductAttention: key: expected a number of heads that divides query's {heads}, got {kv_heads}")
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
