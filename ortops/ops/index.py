"""Reading rows by their numbers."""

from __future__ import annotations

import numpy as np

from ortops._declare import FLOATS, INDICES, OpError, Testing, op


@op(
    "indices: I[*S], table: T[V D], residual: T?<*S D> -> y: T[*S D]",
    name="Embedding",
    I=INDICES,
    T=FLOATS,
    testing=Testing(samples={"indices": lambda rng, shape, sizes: rng.integers(-sizes["V"], max(sizes["V"], 1), shape)}),
)
def embedding(indices, table, residual=None, *, padding_idx: int | None = None):
    """Looks up a row of the table for each index, and adds the residual if there is one (say, the position embeddings).

    A negative index counts from the end. One outside of [-V, V-1] is an error on the CPU; on CUDA that row becomes NaN, or an
    error too in a session with the option `ortops.check_indices`. As in PyTorch, `padding_idx` does not change what comes out:
    it names the row that gets no gradient.
    """
    rows = len(table)
    outside = (indices < -rows) | (indices >= rows)
    if outside.any():
        raise OpError(f"Embedding: indices: index {indices[outside].flat[0]} is outside of the valid range [{-rows}, {rows - 1}]")
    y = table[indices]
    return y if residual is None else y + residual
