"""The command line: what it prints, and that a user's mistake is a readable line and exit code 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from ortops.export.transformer import BertConfig, random_bert

import ortops
from ortops import cli, ops


@pytest.fixture
def model(tmp_path: Path) -> Path:
    g = ortops.Graph("small")
    x = g.input("x", "float32", ["batch", 4])
    g.output(ops.linear(x, np.eye(4, dtype=np.float32), np.ones(4, np.float32), activation="relu"), "y")
    g.save(tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


@pytest.fixture
def array(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.float32).reshape(2, 4) - 3)
    return tmp_path / "x.npy"


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    code, _, err = call(capsys, *arguments)
    assert code == 1, err
    assert err.startswith("ortops: "), err
    assert "Traceback" not in err
    return err


def test_ops(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "ops", "--json")
    assert code == 0
    listed = {entry["name"]: entry for entry in json.loads(out)}
    assert list(listed) == [op.name for op in ortops._declare.ops()]
    linear = listed["Linear"]
    assert [formal["name"] for formal in linear["inputs"]] == ["x", "weight", "bias", "residual"]
    assert linear["attributes"][0] == {
        "name": "activation",
        "type": "str",
        "expected": linear["attributes"][0]["expected"],
        "required": False,
        "default": "none",
    }
    assert linear["types"] == {"T": ["float32", "float16", "bfloat16"]}
    assert set(linear["layouts"]) == {"in_out", "out_in"}
    assert linear["gradient"] is True
    assert linear["types_without_cuda"] == {}
    assert listed["ScatterAdd"]["types_without_cuda"] == {"T": ["float64"]}
    code, out, _ = call(capsys, "ops")
    assert code == 0
    assert "LayerNorm" in out
    code, out, _ = call(capsys, "ops", "--markdown")
    assert code == 0
    assert out.strip() == ortops.docs.table()
    for name in ("Linear", "linear"):
        code, out, _ = call(capsys, "ops", name)
        assert code == 0
        assert out.startswith("linear(x, weight, bias=None, residual=None, *, activation='none'")
        assert "    weight: T[N K]" in out  # in the other layout
    assert "no operator Liner" in fails(capsys, "ops", "Liner")


def test_run(capsys: pytest.CaptureFixture[str], model: Path, array: Path, tmp_path: Path) -> None:
    code, out, err = call(
        capsys, "run", model, "--input", f"x={array}", "--provider", "cpu", "--output", tmp_path / "y.npz"
    )
    assert code == 0, err
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], np.maximum(np.load(array) + 1, 0))
    code, out, _ = call(capsys, "run", model, "--input", f"x={array}")
    assert code == 0
    assert "y: float32 [2, 4]" in out


def test_run_mistakes(capsys: pytest.CaptureFixture[str], model: Path, array: Path, tmp_path: Path) -> None:
    no_model = tmp_path / "no.onnx"
    assert f"{no_model}: no such file" in fails(capsys, "run", no_model)
    no_model.write_text("this is not a model")
    assert f"{no_model}: not an ONNX model" in fails(capsys, "run", no_model)
    assert f"{no_model}: not an ONNX model" in fails(capsys, "lower", no_model, "-o", tmp_path / "out.onnx")
    assert f"{no_model}: not an ONNX model" in fails(capsys, "doctor", no_model)
    assert "no value for x: the model takes x (float)" in fails(capsys, "run", model)
    assert "--text: expected a model with one input of strings" in fails(capsys, "run", model, "--text", "hello")
    assert "expected NAME=FILE.npy" in fails(capsys, "run", model, "--input", "x")
    assert "expected NAME=FILE.npy" in fails(capsys, "run", model, "--input", f"z={array}")
    assert "no such file" in fails(capsys, "run", model, "--input", f"x={tmp_path / 'no.npy'}")
    assert "not a .npy file" in fails(capsys, "run", model, "--input", f"x={no_model}")
    np.save(tmp_path / "wrong.npy", np.zeros((2, 5), np.float32))
    assert "x" in fails(capsys, "run", model, "--input", f"x={tmp_path / 'wrong.npy'}")


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    g = ortops.Graph("texts")
    g.output(g.onnx.Identity(g.input("text", "string", ["batch"])), "same")
    g.save(tmp_path / "texts.onnx")
    command = [sys.executable, "-m", "ortops.cli", "run", tmp_path / "texts.onnx", "--text"]
    good = subprocess.run([*map(os.fsencode, command), "déjà vu".encode()], capture_output=True)
    assert good.returncode == 0, good.stderr
    bad = subprocess.run([*map(os.fsencode, command), b"caf\xe9"], capture_output=True, text=True)
    assert bad.returncode == 1
    assert bad.stderr == "ortops: --text number 1: not valid UTF-8 (character 4)\n"


def test_export_mistakes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert f"{tmp_path / 'no'}: no such folder" in fails(
        capsys, "export", "bert", "--weights", tmp_path / "no", "-o", tmp_path / "x.onnx"
    )
    assert "config.json: no such file" in fails(
        capsys, "export", "bert", "--weights", tmp_path, "-o", tmp_path / "x.onnx"
    )
    code, _, err = call(capsys, "export", "bert", "--weights", tmp_path, "-o", tmp_path / "x.onnx", "--dtype", "int8")
    assert code == 2
    assert "float32" in err


def test_lower_and_doctor(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    code, out, err = call(capsys, "lower", model, "-o", tmp_path / "standard.onnx")
    assert code == 0, err
    assert {node.domain for node in onnx.load(tmp_path / "standard.onnx").graph.node} == {""}
    code, out, err = call(capsys, "doctor", model, "--provider", "cpu")
    assert code == 0, err
    assert "library" in out
    assert "CPU" in out


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cli.main(["--debug", "run", str(tmp_path / "no.onnx")])


def test_export_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = BertConfig(vocabulary=40, width=16, layers=1, heads=2, inner=32, positions=24)
    random_bert(config).save(tmp_path / "bert.onnx")
    np.save(tmp_path / "ids.npy", np.ones((2, 3), np.int64))
    ids, mask = (f"{name}={tmp_path / 'ids.npy'}" for name in ("input_ids", "attention_mask"))
    code, out, err = call(capsys, "run", tmp_path / "bert.onnx", "--input", ids, "--input", mask)
    assert code == 0, err
    assert "embedding: float32 [2, 16]" in out
