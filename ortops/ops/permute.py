"""The order of a tensor's axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ortops import _shapes
from ortops._declare import ALL, Case, Testing, op
from ortops._standard import onnx

if TYPE_CHECKING:
    from ortops.graph import Value


def permutation(shape: tuple[int, ...], *perm: int) -> Case:
    return Case(
        lambda rng: {"x": rng.integers(0, 2, shape) if 0 in shape else np.arange(np.prod(shape)).reshape(shape) % 113},
        {"perm": perm} if perm else {},
        f"{list(shape)} by {list(perm)}",
    )


CASES = (
    permutation((130, 257), 1, 0),  # tiles that end early, of rows of any alignment
    permutation((256, 192), 1, 0),
    permutation((64, 8), 1, 0),  # small
    permutation((2100, 8), 1, 0),
    permutation((2, 64, 9, 16), 0, 2, 3, 1),
    permutation((2, 33, 130, 3), 0, 3, 1, 2),
    permutation((2, 3, 33, 130), 0, 2, 3, 1),
    permutation((2, 9, 16, 64), 0, 2, 1, 3),
    permutation((5, 7, 9, 2), 2, 1, 0, 3),
    permutation((25, 27, 9, 3), 2, 1, 0, 3),
    permutation((90, 100, 4), 1, 0, 2),
    permutation((130, 66, 16), 1, 0, 2),
    permutation((2, 8, 9, 10, 12), 0, 3, 1, 4, 2),
    permutation((4, 3, 4, 5, 2, 3, 4, 3), 7, 1, 5, 3, 4, 2, 6, 0),
    permutation((2, 1, 3, 1, 5, 1, 1, 2, 1), 8, 4, 7, 2, 1, 3, 0, 6, 5),  # sizes of 1 cost no axis
    permutation((2, 3, 4, 5), 2, 3, 0, 1),  # neighbours that stay neighbours are one axis
    permutation((3, 1, 4), 1, 0, 2),
    permutation((3, 4, 5), -1, 0, -2),
    permutation((3, 0, 4), 2, 0, 1),
    permutation((), *()),
)


@op("x: T[*X] -> y: T[*permute(*X)]", name="Permute", by_size=["T"], T=ALL, testing=Testing(cases=CASES))
def permute(x: np.ndarray, *, perm: tuple[int, ...] = ()) -> np.ndarray:
    """Puts the axes of x in another order: axis i of y is axis `perm[i]` of x.

    A negative axis counts from the end; without `perm` the order is reversed, as ONNX's Transpose has it. An axis that is
    missing, or there twice, is an error. At most 16 axes. (PyTorch's Tensor.permute)
    """
    _shapes.permute(x.shape, perm=perm)
    return x.transpose(perm or None)


@permute.decomposition
def _(x: Value, *, perm: tuple[int, ...]) -> Value:
    return onnx.Transpose(x, perm=[axis % len(perm) for axis in perm] or None)


@permute.gradient
def _(d_y: Value, *, perm: tuple[int, ...]) -> Value:
    return permute(d_y, perm=tuple(int(axis) for axis in np.argsort([axis % len(perm) for axis in perm])))
