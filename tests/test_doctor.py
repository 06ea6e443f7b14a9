"""Where the nodes of a model run, and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import ortops
from ortops import doctor, ops

CPU = "CPUExecutionProvider"

pytestmark = pytest.mark.skipif(
    not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"),
    reason="this onnxruntime does not tell placements",
)


def graph() -> ortops.Graph:
    g = ortops.Graph("small")
    x = g.input("x", "float32", ["batch", 4])
    y = ops.linear(x, np.eye(4, dtype=np.float32), activation="relu")
    g.output(g.onnx.Softmax(ops.identity(y), axis=-1), "y")
    return g


def test_every_node_has_a_place_and_a_reason(tmp_path: Path) -> None:
    graph().save(tmp_path / "small.onnx")
    report = doctor.examine(tmp_path / "small.onnx", [CPU])
    assert report.providers == (CPU,)
    assert ortops.library_path() in report.library
    assert sum(line.count for line in report.lines) == len(report.placements)
    assert all(placement.provider == CPU and placement.reason for placement in report.placements)
    by_name = {placement.node: placement for placement in report.placements}
    assert by_name["identity"].op == "ortops.IdentityCopy"
    assert by_name["identity"].reason == "our kernel"
    assert by_name["Softmax"].reason == "onnxruntime's kernel"


def test_lowered_nodes_say_why() -> None:
    model = graph().build()
    session = ortops.InferenceSession(model, doctor.recording(), [CPU], lower="all")
    report = doctor.explain(session, model)
    assert not [placement for placement in report.placements if placement.op.startswith("ortops.")]
    reasons = {placement.reason for placement in report.placements}
    assert any(reason.startswith("part of Linear: ") for reason in reasons), reasons


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORTOPS_LIBRARY", str(tmp_path / "libortops.so"))
    report = doctor.examine(graph().build(), [CPU])
    assert "no such file" in report.library
    assert "part of Linear: the library is absent" in {placement.reason for placement in report.placements}


def test_what_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        doctor.examine(tmp_path / "no.onnx")
    (tmp_path / "no.onnx").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"no\.onnx: not an ONNX model"):
        doctor.examine(tmp_path / "no.onnx")
