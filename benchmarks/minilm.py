"""A whole sentence encoder of MiniLM's size on a GPU: `python benchmarks/minilm.py [--out FOLDER]`.

Random weights (the time does not depend on them), float16, 64 texts padded to 128 tokens, each candidate a CUDA graph: ours,
stock ONNX Runtime on the lowered model, PyTorch eager and torch.compile. Prints a line a case, and writes minilm.md, minilm.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from ortops.export import transformer
from safetensors.torch import save_file
from torch.nn import functional

import ortops
from ortops.bench import Bench, Runner

WIDTH, LAYERS, HEADS, INNER, VOCABULARY, POSITIONS = 384, 6, 12, 1536, 30522, 512


def random_weights() -> dict[str, torch.Tensor]:
    """By the names of Hugging Face's BertModel."""
    weights = {}

    def dense(name: str, inputs: int, outputs: int) -> None:
        weights[f"{name}.weight"] = torch.randn(outputs, inputs) * inputs**-0.5
        weights[f"{name}.bias"] = torch.randn(outputs) * 0.1

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = 1 + 0.1 * torch.randn(WIDTH)
        weights[f"{name}.bias"] = 0.1 * torch.randn(WIDTH)

    for table, rows in (("word", VOCABULARY), ("position", POSITIONS), ("token_type", 2)):
        weights[f"embeddings.{table}_embeddings.weight"] = torch.randn(rows, WIDTH)
    norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            dense(f"{name}.{part}", WIDTH, WIDTH)
        norm(f"{name}.attention.output.LayerNorm")
        dense(f"{name}.intermediate.dense", WIDTH, INNER)
        dense(f"{name}.output.dense", INNER, WIDTH)
        norm(f"{name}.output.LayerNorm")
    return weights


def exported(weights: dict[str, torch.Tensor]) -> ortops.Graph:
    """Our exporter's graph of these weights."""
    config = {
        "model_type": "bert",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS,
        "hidden_act": "gelu",
    }
    with tempfile.TemporaryDirectory() as folder:
        save_file(weights, f"{folder}/model.safetensors")
        Path(folder, "config.json").write_text(json.dumps(config))
        return transformer.bert_from_folder(folder, dtype="float16", tokenizer=False)


def in_torch(weights: dict[str, torch.Tensor], ids: torch.Tensor, mask: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The same encoder as a function of PyTorch, in the form that is fastest there: q, k and v in one product."""
    w = {name: tensor.half().cuda() for name, tensor in weights.items()}
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}.attention.self"
        for kind in ("weight", "bias"):
            w[f"{name}.qkv.{kind}"] = torch.cat([w[f"{name}.{part}.{kind}"] for part in ("query", "key", "value")])
    batch, length = ids.shape

    def dense(name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    def encode() -> torch.Tensor:
        keep = mask.bool()[:, None, None, :]
        x = functional.embedding(ids, w["embeddings.word_embeddings.weight"])
        x = x + w["embeddings.position_embeddings.weight"][:length] + w["embeddings.token_type_embeddings.weight"][0]
        x = norm("embeddings.LayerNorm", x)
        for layer in range(LAYERS):
            name = f"encoder.layer.{layer}"
            qkv = dense(f"{name}.attention.self.qkv", x).view(batch, length, 3, HEADS, WIDTH // HEADS)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, keep).transpose(1, 2).reshape(batch, length, WIDTH)
            x = norm(f"{name}.attention.output.LayerNorm", x + dense(f"{name}.attention.output.dense", y))
            y = dense(f"{name}.output.dense", functional.gelu(dense(f"{name}.intermediate.dense", x)))
            x = norm(f"{name}.output.LayerNorm", x + y)
        kept = mask[:, :, None].float()
        y = (x.float() * kept).sum(1) / kept.sum(1).clamp_min(1)
        return functional.normalize(y, dim=-1)

    return encode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--mode", default="default", help="of torch.compile")
    parser.add_argument("--profile", action="store_true", help="also prints the kernels of each candidate")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    runner, bench = Runner(), Bench("MiniLM's encoder, float16")
    weights = random_weights()
    graph = exported(weights)
    ours, lowered = graph.build(functions=False), ortops.lower(graph.build(functions=False))
    for batch, length in ((64, 128), (1, 32)):
        ids = torch.randint(0, VOCABULARY, (batch, length), device="cuda")
        lengths = torch.randint(length // 4, length + 1, (batch, 1), device="cuda")
        mask = (torch.arange(length, device="cuda")[None] < lengths).long()
        inputs, sizes = {"input_ids": ids, "attention_mask": mask}, {"batch": batch, "length": length}
        candidates, results = {}, {}
        for name, model in (("ortops", ours), ("onnxruntime", lowered)):
            candidates[name], outputs = runner.session(model, inputs, ours=name == "ortops", sizes=sizes)
            results[name] = outputs[0]
        encode = in_torch(weights, ids, mask)
        expected = encode().float()
        candidates["torch"] = runner.torch_graph(encode)
        candidates["torch.compile"] = runner.torch_graph(encode, compiled=arguments.mode)
        errors = {name: float((result.float() - expected).abs().max()) for name, result in results.items()}
        note = "largest difference from torch: " + ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
        bench.add(f"{batch} texts of {length} tokens", runner.measure(candidates), note=note)
        assert max(errors.values()) < 5e-3, errors
        for name in candidates if arguments.profile else ():
            print(f"-- {name}: kernel, times a run, microseconds a run")
            for kernel, times, microseconds in runner.kernels(candidates[name])[:16]:
                print(f"   {kernel[:110]:110s} {times:5.1f} {microseconds:8.1f}")
    bench.write(arguments.out, "minilm")


if __name__ == "__main__":
    main()
