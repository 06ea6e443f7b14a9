"""Every operator x types, on the CPU and on CUDA, against its reference. No operator is named here."""

from __future__ import annotations

import numpy as np
import pytest

from ortops import testing
from ortops._declare import Op, ops

PAIRS = [pytest.param(op, types, id=f"{op.name}-{'-'.join(types.values())}") for op in ops() for types in op.type_sets()]


@pytest.mark.parametrize(("op", "types"), PAIRS)
def test_cpu_kernel(op: Op, types: dict[str, str]) -> None:
    for sample in testing.samples(op, types, large=True):
        testing.compare(sample, testing.run_cpu(sample))


@pytest.mark.parametrize(("op", "types"), PAIRS)
def test_unaligned_inputs(op: Op, types: dict[str, str]) -> None:
    sample = next(testing.samples(op, types))

    def moved(array: np.ndarray | None) -> np.ndarray | None:
        if array is None:
            return None
        memory = np.empty(array.size + 1, array.dtype)
        memory[1:] = array.ravel()
        return memory[1:].reshape(array.shape)

    shifted = testing.Sample(op, "unaligned", types, tuple(map(moved, sample.inputs)), sample.attributes, sample.outputs)
    testing.compare(shifted, testing.run_cpu(shifted))
