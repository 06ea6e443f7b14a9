"""One binary for every ONNX Runtime from 1.18 on: the library negotiates the API version, needs nothing but libc, and
shows nothing but its entry points.

The releases lie side by side under .cache/abi and run in processes of their own, on models and inputs written here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ortops
from ortops import testing
from ortops._declare import ops

ROOT = Path(__file__).parent.parent

# Each with the newest Python that has a wheel of it, and the numpy it needs where that is not any.
RELEASES = {
    "1.18.1": ((3, 12), "numpy==1.26.4"),
    "1.20.1": ((3, 13), None),
    "1.23.2": ((3, 14), None),
    "1.26.0": ((3, 14), None),
    "1.31.1": ((3, 14), None),
}


def cases() -> Iterator[tuple[bytes, testing.Sample]]:
    """Each operator in each of its types and with each choice of options, once. (bfloat16 has no way in from old Pythons.)"""
    for op in ops():
        for types in op.type_sets():
            if "bfloat16" not in types.values():
                models: dict[bytes, testing.Sample] = {}
                for sample in testing.samples(op, types):
                    models.setdefault(testing.sample_model(sample), sample)
                yield from models.items()


def release(version: str) -> Path:
    """A folder with that onnxruntime, fetched once."""
    newest, numpy = RELEASES[version]
    if sys.version_info[:2] > newest:
        pytest.skip(f"onnxruntime {version} has no wheel for this Python")
    folder = ROOT / ".cache" / "abi" / f"{version}-py{sys.version_info.major}{sys.version_info.minor}"
    if not folder.exists():
        part = folder.with_suffix(f".{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target", part]
        subprocess.run([*pip, f"onnxruntime=={version}", *([numpy] if numpy else [])], check=True)
        part.rename(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_same_binary_in_every_release(version: str, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(release(version))}
    samples = {}
    for index, (model, sample) in enumerate(cases()):
        (operator,) = testing.operators_of(model)
        name = f"{index:05d}-{operator}"
        samples[name] = sample
        (tmp_path / f"{name}.onnx").write_bytes(model)
        inputs = {f"input{i}": array for i, array in enumerate(sample.inputs) if array is not None}
        np.savez(tmp_path / f"{name}.inputs.npz", **inputs)
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "abi" / "run.py", ortops.library_path(), tmp_path],
        env=environment,
        capture_output=True,
        text=True,
    )
    *_, last = run.stdout.split()
    assert run.returncode == 0, f"{samples.get(last, last)}: exit status {run.returncode}\n{run.stderr}"
    assert last == version
    assert run.stderr == "", "a release complains when it is asked for an API that it lacks"
    for name, sample in samples.items():
        with np.load(tmp_path / f"{name}.outputs.npz") as outputs:
            testing.compare(sample, list(outputs.values()))


def binutils(*command: str) -> str:
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run([*command, ortops.library_path()], check=True, capture_output=True, text=True).stdout


def test_needs_only_libc() -> None:
    """No CUDA library, no libonnxruntime, no libstdc++ of a certain age."""
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", binutils("readelf", "--dynamic")))
    assert {re.sub(r"\.so.*", "", name) for name in needed} <= {"libc", "libm", "ld-linux-x86-64", "ld-linux-aarch64"}


def test_shows_only_its_entry_points() -> None:
    exported = [line.split()[-1] for line in binutils("nm", "--dynamic", "--defined-only").splitlines()]
    assert "RegisterCustomOps" in exported
    assert all(name == "RegisterCustomOps" or name.startswith("Ortops") for name in exported), exported
