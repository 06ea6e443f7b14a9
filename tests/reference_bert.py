"""BERT as a sentence encoder in numpy and float64, written from the paper and apart from the operators: what others are held against."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def encode(
    tensor: Callable[[str], np.ndarray],
    ids: np.ndarray,
    mask: np.ndarray,
    *,
    layers: int,
    heads: int,
    epsilon: float = 1e-12,
) -> np.ndarray:
    """The embeddings, float64 [batch, width], of ids and mask [batch, length]; `tensor` gives each weight by its name.

    Each text is computed by itself and without its padding (which is at the end), so no mask is needed within.
    """
    names: dict[str, np.ndarray] = {}

    def w(name: str) -> np.ndarray:
        if name not in names:
            names[name] = np.asarray(tensor(name)).astype(np.float64)
        return names[name]

    return np.array(
        [_one(w, row[: int(keep.sum())], layers, heads, epsilon) for row, keep in zip(ids, mask, strict=True)]
    )


def _one(w: Callable[[str], np.ndarray], ids: np.ndarray, layers: int, heads: int, epsilon: float) -> np.ndarray:
    def dense(name: str, x: np.ndarray) -> np.ndarray:
        return np.einsum("si,oi->so", x, w(f"{name}.weight"), optimize=True) + w(f"{name}.bias")

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * w(f"{name}.weight") + w(
            f"{name}.bias"
        )

    e = "embeddings"
    x = w(f"{e}.word_embeddings.weight")[ids]
    x = x + w(f"{e}.position_embeddings.weight")[: len(ids)] + w(f"{e}.token_type_embeddings.weight")[0]
    x = norm(f"{e}.LayerNorm", x)
    for index in range(layers):
        layer = f"encoder.layer.{index}"
        q, k, v = (dense(f"{layer}.attention.self.{part}", x) for part in ("query", "key", "value"))
        mixed = []
        for q_h, k_h, v_h in zip(*(np.split(part, heads, axis=1) for part in (q, k, v)), strict=True):
            scores = q_h @ k_h.T / math.sqrt(q_h.shape[1])
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed.append(scores / scores.sum(-1, keepdims=True) @ v_h)
        x = norm(
            f"{layer}.attention.output.LayerNorm",
            x + dense(f"{layer}.attention.output.dense", np.concatenate(mixed, axis=1)),
        )
        inner = dense(f"{layer}.intermediate.dense", x)
        inner = inner * (1 + erf(inner / math.sqrt(2))) / 2
        x = norm(f"{layer}.output.LayerNorm", x + dense(f"{layer}.output.dense", inner))
    y = x.mean(0)
    return y / np.linalg.norm(y)
