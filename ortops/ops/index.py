"""Reading rows by their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ortops._declare import ELEMENT_TYPES, INDICES, WIDE_FLOATS, Case, OpError, Testing, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value


def table(rows: int, width: int, indices: tuple[int, ...], *residual: int) -> Case:
    return Case(
        lambda rng: {
            "indices": rng.integers(-rows, rows, indices),
            "table": rng.standard_normal((rows, width)),
            "residual": rng.standard_normal(residual) if residual else None,
        },
        name=f"{list(indices)} of {rows} rows of {width}, residual {list(residual)}",
    )


CASES = (
    *(table(11, width, (5, 3)) for width in (1, 2, 7, 8, 300, 384, 4096)),
    *(table(11, width, (5, 3), 5, 3, width) for width in (1, 7, 384)),
    table(11, 384, (5, 3), 3, 384),
    table(11, 384, (5, 3), 5, 1, 384),
    table(11, 384, (5, 3), 5, 3, 1),
    table(11, 384, (5, 3), 384),
    table(11, 384, (5, 3), 1),
    table(11, 384, (2, 3, 4), 2, 1, 4, 384),
    table(1, 16, ()),
    table(3, 16, (0, 4)),
    table(3, 16, (100_000,)),
    Case(lambda rng: {"indices": np.array([-3, 2, -1, 0]), "table": np.eye(3)}, {"padding_idx": 0}, "both ends"),
)


@op(
    "indices: I[*S], table: T[V D], residual: T?<*S D> -> y: T[*S D]",
    name="Embedding",
    I=INDICES,
    T=WIDE_FLOATS,
    testing=Testing(
        cases=CASES,
        samples={"indices": lambda rng, shape, sizes: rng.integers(-sizes["V"], max(sizes["V"], 1), shape)},
    ),
)
def embedding(
    indices: np.ndarray, table: np.ndarray, residual: np.ndarray | None = None, *, padding_idx: int | None = None
) -> np.ndarray:
    """Looks up a row of the table for each index, and adds the residual if there is one (say, the position embeddings).

    A negative index counts from the end. One outside of [-V, V-1] is an error on the CPU; on CUDA that row becomes NaN, or an
    error too in a session with the option `ortops.check_indices`. As in PyTorch, `padding_idx` does not change what comes out:
    it names the row that gets no gradient.
    """
    rows = len(table)
    outside = (indices < -rows) | (indices >= rows)
    if outside.any():
        index = indices[outside].flat[0]
        raise OpError(f"Embedding: indices: index {index} is outside of the valid range [{-rows}, {rows - 1}]")
    y = table[indices]
    return y if residual is None else y + residual


@embedding.decomposition
def _(indices: Value, table: Value, residual: Value | None, *, padding_idx: int | None) -> Value:
    rows = onnx.Gather(table, indices, axis=0)
    if residual is None:
        return rows
    wide = ELEMENT_TYPES["float64" if table.dtype == "float64" else "float32"]
    return onnx.CastLike(onnx.Cast(rows, to=wide) + onnx.Cast(residual, to=wide), table)
