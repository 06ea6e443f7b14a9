"""Every operator x types, on the CPU and on CUDA, against its reference. No operator is named here."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

from ortops import testing
from ortops._declare import Op, ops

PAIRS = [
    pytest.param(op, types, id=f"{op.name}-{'-'.join(types.values())}") for op in ops() for types in op.type_sets()
]
every_op = pytest.mark.parametrize(("op", "types"), PAIRS)
CUDA_PAIRS = [
    pytest.param(op, types, id=f"{op.name}-{'-'.join(types.values())}")
    for op in ops()
    for types in op.type_sets("cuda")
]
every_cuda_op = pytest.mark.parametrize(("op", "types"), CUDA_PAIRS)

#: compute-sanitizer is some hundred times slower: then each n-th sample.
EVERY = int(os.environ.get("ORTOPS_EVERY", "1"))


@every_op
@pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
def test_kernel(op: Op, types: dict[str, str], provider: str, record_error) -> None:
    if provider == testing.CUDA and types not in op.type_sets("cuda"):
        pytest.skip("computed on the CPU alone")
    for sample in itertools.islice(testing.samples(op, types, large=True), 0, None, EVERY):
        record_error(op, types, testing.compare(sample, testing.run(sample, provider)))


#: On the CPU in float64, where the operator has it, and there to 1e-6; on CUDA, and where it has not, in float32.
GRADIENTS = [
    pytest.param(op, types, id=f"{op.name}-{'-'.join(types.values())}")
    for op in ops()
    if op.backward
    for types in op.type_sets()
    if any("float" in t for t in types.values()) and not {"float16", "bfloat16"} & set(types.values())
]


@pytest.mark.parametrize(("op", "types"), GRADIENTS)
@pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])
def test_gradient(op: Op, types: dict[str, str], provider: str) -> None:
    """Against central differences of the reference. In float32 each product and sum of the backward graph rounds, and ONNX
    Runtime's own products are TF32 on CUDA, hence 2e-3; a wrong rule is off by more."""
    if provider == testing.CUDA and "float64" in types.values():
        pytest.skip("computed on the CPU alone")
    for sample in itertools.islice(testing.samples(op, types), 0, 60, EVERY):
        if sum(a.size for a in sample.inputs if a is not None) < 30_000:
            testing.check_gradient(sample, provider, tolerance=1e-6 if "float64" in types.values() else 2e-3)


#: A body rounds to 16 bits after each of its nodes, a kernel once; in float32 stock kernels sum in another order.
BODY_STEPS = 8


@pytest.mark.parametrize(("op", "types"), [p for p in PAIRS if "bfloat16" not in p.values[1].values()])
def test_function_body(op: Op, types: dict[str, str]) -> None:
    """Without the library. (Stock ONNX Runtime has next to no bfloat16 kernels on the CPU.)"""
    for sample in itertools.islice(testing.samples(op, types), 60):
        testing.compare(sample, testing.run_body(sample), scale=BODY_STEPS)


@every_op
def test_unaligned_inputs(op: Op, types: dict[str, str]) -> None:
    sample = next(testing.samples(op, types))

    def moved(array: np.ndarray | None) -> np.ndarray | None:
        if array is None:
            return None
        memory = np.empty(array.size + 1, array.dtype)
        memory[1:] = array.ravel()
        return memory[1:].reshape(array.shape)

    shifted = testing.Sample(
        op, "unaligned", types, tuple(map(moved, sample.inputs)), sample.attributes, sample.outputs
    )
    testing.compare(shifted, testing.run(shifted))


@every_cuda_op
@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1])
def test_cuda_writes_everything_at_any_alignment(op: Op, types: dict[str, str], offset: int) -> None:
    for sample in itertools.islice(testing.samples(op, types), 4):
        testing.compare(sample, testing.Bound(sample, offset=offset)(sample))


@every_cuda_op
@pytest.mark.gpu
def test_cuda_graph(op: Op, types: dict[str, str]) -> None:
    """Captured, and replayed with changed inputs."""
    for sample in itertools.islice(testing.samples(op, types), 3):
        captured = testing.Bound(sample, graph=True)
        for turn in (sample, testing.changed(sample), sample):
            testing.compare(turn, captured(turn))
