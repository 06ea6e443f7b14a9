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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ortops

ROOT = Path(__file__).parent.parent

# Each with the newest Python that has a wheel of it, and the numpy it needs where that is not any.
RELEASES = {
    "1.18.1": ((3, 12), "numpy==1.26.4"),
    "1.20.1": ((3, 13), None),
    "1.23.2": ((3, 14), None),
    "1.26.0": ((3, 14), None),
    "1.31.1": ((3, 14), None),
}
OPSET, IR_VERSION = 20, 10  # what 1.18 reads


@dataclass(frozen=True)
class Case:
    name: str
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


def identity(element: int) -> Case:
    dtype = helper.tensor_dtype_to_np_dtype(element)
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    node = helper.make_node("IdentityCopy", ["x"], ["y"], domain="ortops")
    info = [helper.make_tensor_value_info(name, element, ["N", 3, 4]) for name in "xy"]
    graph = helper.make_graph([node], "identity", info[:1], info[1:])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ortops", 1)]
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)
    return Case(f"identity_{dtype}", model, {"x": x}, {"y": x})


def cases() -> list[Case]:
    return [
        identity(element) for element in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL)
    ]


def release(version: str) -> Path:
    """A folder with that onnxruntime, fetched once."""
    newest, numpy = RELEASES[version]
    if sys.version_info[:2] > newest:
        pytest.skip(f"onnxruntime {version} has no wheel for this Python")
    folder = ROOT / ".cache" / "abi" / f"{version}-py{sys.version_info.major}{sys.version_info.minor}"
    if not folder.exists():
        part = folder.with_suffix(f".{os.getpid()}")
        wanted = [f"onnxruntime=={version}", *([numpy] if numpy else [])]
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--target",
            str(part),
        ]
        subprocess.run([*pip, *wanted], check=True)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_same_binary_in_every_release(version: str, tmp_path: Path) -> None:
    expected = cases()
    for case in expected:
        onnx.save(case.model, tmp_path / f"{case.name}.onnx")
        np.savez(tmp_path / f"{case.name}.inputs.npz", **case.inputs)
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "abi" / "run.py", ortops.library_path(), tmp_path],
        env=os.environ | {"PYTHONPATH": str(release(version))},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == version
    assert run.stderr == "", "asking for an API that a release lacks makes it complain there"
    for case in expected:
        with np.load(tmp_path / f"{case.name}.outputs.npz") as outputs:
            for name, value in case.outputs.items():
                np.testing.assert_array_equal(outputs[name], value, err_msg=case.name, strict=True)


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
