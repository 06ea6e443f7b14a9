"""From a sequence of vectors to one."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ortops._declare import FLOATS, Testing, op


@op(
    "x: T[B S D], mask: M[B S] -> y: T[B D]",
    name="SequencePool",
    T=FLOATS,
    M=("bool", "int64", "int32"),
    testing=Testing(samples={"mask": lambda rng, shape, sizes: rng.integers(0, 2, shape)}),
)
def sequence_pool(x, mask, *, mode: Literal["mean", "max", "first"] = "mean", normalize: bool = False):
    """Reduces each sequence to one vector: the mean, the maximum or the first of the vectors that its mask keeps (is not 0).

    `normalize` then divides the vector by its Euclidean length (at least 1e-12, as torch.nn.functional.normalize has it). A
    sequence of which nothing is kept gives zeros. (Reimers & Gurevych, 2019, for the mean)
    """
    keep = (mask != 0)[:, :, None]
    some = keep.any(axis=1)
    if mode == "mean":
        y = np.where(keep, x, 0).sum(axis=1) / np.maximum(keep.sum(axis=1), 1)
    elif mode == "max":
        y = np.where(some, np.where(keep, x, -np.inf).max(axis=1, initial=-np.inf), 0)
    else:
        first = keep.argmax(axis=1)[:, :, None] if x.shape[1] else np.zeros((len(x), 0, 1), int)
        y = np.where(some, np.take_along_axis(x, first, axis=1).sum(axis=1), 0)
    if normalize:
        y = y / np.maximum(np.sqrt(np.square(y).sum(axis=-1, keepdims=True)), 1e-12)
    return y
