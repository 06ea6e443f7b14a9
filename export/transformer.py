"""Transformers.

    model = transformer.bert_from_folder(Path("all-MiniLM-L6-v2"), dtype="float16")
    model.save("encoder.onnx")

`bert` reads top to bottom like the paper: BERT (Devlin et al., 2018) as a sentence encoder (Reimers & Gurevych, 2019).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from ortops.export.text import WordPiece, read_wordpiece, tokenize
from ortops.export.weights import Progress, RandomWeights, SafetensorsWeights, WeightError, Weights, read_config

from ortops import ops
from ortops.graph import Graph, Value

__all__ = ["BertConfig", "bert", "bert_from_folder", "random_bert"]

#: Tensors of a BERT checkpoint that a sentence encoder does not use: buffers, the pooler, the heads of pre-training.
UNUSED = r"embeddings\.(position_ids|token_type_ids)|pooler\..*|cls\..*"

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Pooling = Literal["mean", "max", "first"]

#: `hidden_act` in config.json, and the attribute of Linear.
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT encoder.

    Args:
        vocabulary: How many pieces there are.
        width: Of a token's vector.
        layers: How many there are.
        heads: Of attention; a divisor of the width.
        inner: The width inside the feed-forward block.
        positions: How long a text may be, in pieces.
        types: How many token types (segments) there are.
        activation: Of the feed-forward block, as Linear has it.
        epsilon: Of the norms.
        pooling: What one vector is made of: "mean", "max" or "first" (CLS).
        normalize: Whether that vector is brought to unit length.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    inner: int
    positions: int = 512
    types: int = 2
    activation: Activation = "gelu"
    epsilon: float = 1e-12
    pooling: Pooling = "mean"
    normalize: bool = True

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width % self.heads:
            raise WeightError(f"heads: expected a divisor of the width {self.width}, got {self.heads}")


def bert(
    weights: Weights,
    config: BertConfig,
    *,
    dtype: str = "float32",
    wordpiece: WordPiece | None = None,
    token_types: bool = False,
) -> Graph:
    """A sentence encoder as a graph with the output `embedding`, float32 [batch, width].

    Its inputs are `input_ids` and `attention_mask`, int64 [batch, length]; with a tokenizer, `text`, strings [batch].

    Args:
        weights: The tensors, by the names that Hugging Face's BertModel gives them.
        config: The sizes.
        dtype: What is computed in: "float32", "float16" or "bfloat16".
        wordpiece: The tokenizer, if it is to be part of the graph.
        token_types: Adds the input `token_type_ids`, int64 [batch, length]; without it all tokens are of type 0.

    Raises:
        WeightError: Tensors are missing, misshapen or left over; the text lists all of them.
        ValueError: A tokenizer and token types together, or a tokenizer that lets a text become longer than the model can take.
    """
    if wordpiece is not None and token_types:
        raise ValueError("token_types: expected False beside a tokenizer, which takes single texts")
    if wordpiece is not None and (
        wordpiece.max_length > config.positions or len(wordpiece.vocabulary) > config.vocabulary
    ):
        raise ValueError(
            f"the tokenizer gives up to {wordpiece.max_length} of {len(wordpiece.vocabulary)} pieces, "
            f"the model takes up to {config.positions} of {config.vocabulary}"
        )
    g = Graph("bert")
    if wordpiece is not None:
        ids, mask = tokenize(g, g.input("text", "string", ["batch"]), wordpiece)
    else:
        ids = g.input("input_ids", "int64", ["batch", "length"])
        mask = g.input("attention_mask", "int64", ["batch", "length"])
    types = g.input("token_type_ids", "int64", ["batch", "length"]) if token_types else None

    with g.name_scope("embeddings"):
        x = _embeddings(g, weights, config, ids, types)
    keep = g.onnx.Cast(g.onnx.Unsqueeze(mask, [1, 2]), to=9)  # [batch, 1, 1, length]: the keys that are not padding
    for layer in range(config.layers):
        with g.name_scope(f"layer.{layer}"):
            x = _layer(g, weights, config, f"encoder.layer.{layer}", x, keep)
    y = ops.sequence_pool(x, mask, mode=config.pooling, normalize=config.normalize)
    weights.check()
    g.output(y if dtype == "float32" else g.onnx.Cast(y, to=1), "embedding", ["batch", config.width])
    return g


def _embeddings(g: Graph, weights: Weights, config: BertConfig, ids: Value, types: Value | None) -> Value:
    words = g.constant(
        weights("embeddings.word_embeddings.weight", config.vocabulary, config.width), "embeddings.words"
    )
    positions = weights("embeddings.position_embeddings.weight", config.positions, config.width)
    segments = weights("embeddings.token_type_embeddings.weight", config.types, config.width)
    if types is None:  # all of type 0: a constant, which the positions take in
        positions = (positions.astype(np.float32) + segments[0].astype(np.float32)).astype(positions.dtype)
    length = g.onnx.Shape(ids, start=1, end=2)
    x = g.onnx.Slice(g.constant(positions, "embeddings.positions"), [0], length, [0])  # [length, width]
    if types is not None:
        x = ops.embedding(types, g.constant(segments, "embeddings.segments"), x)
    x = ops.embedding(ids, words, x)
    return _norm(weights, config, "embeddings.LayerNorm", x)


def _layer(g: Graph, weights: Weights, config: BertConfig, name: str, x: Value, keep: Value) -> Value:
    # Three products with one input are one product.
    qkv = [
        _weight(weights, f"{name}.attention.self.{part}", config.width, config.width)
        for part in ("query", "key", "value")
    ]
    weight, bias = (np.concatenate(parts, axis=-1) for parts in zip(*qkv, strict=True))
    heads = np.array([0, 0, 3 * config.heads, config.width // config.heads])
    packed = g.onnx.Reshape(ops.linear(x, weight, bias), heads)
    attended = ops.packed_qkv_attention(packed, keep, heads=config.heads, kv_heads=config.heads)
    attended = g.onnx.Reshape(attended, np.array([0, 0, config.width]))
    attended = ops.linear(attended, *_weight(weights, f"{name}.attention.output.dense", config.width, config.width))
    x = _norm(weights, config, f"{name}.attention.output.LayerNorm", attended, x)

    inner = ops.linear(
        x, *_weight(weights, f"{name}.intermediate.dense", config.width, config.inner), activation=config.activation
    )
    outer = ops.linear(inner, *_weight(weights, f"{name}.output.dense", config.inner, config.width))
    return _norm(weights, config, f"{name}.output.LayerNorm", outer, x)


def _norm(weights: Weights, config: BertConfig, name: str, x: Value, residual: Value | None = None) -> Value:
    return ops.layer_norm(
        x,
        weights(f"{name}.weight", config.width),
        weights(f"{name}.bias", config.width),
        residual,
        epsilon=config.epsilon,
    )


def _weight(weights: Weights, name: str, inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """The weight, turned to [in, out], and the bias of a dense layer."""
    return np.ascontiguousarray(weights(f"{name}.weight", outputs, inputs).T), weights(f"{name}.bias", outputs)


# --- where models come from -----------------------------------------------------------------------------------------


def bert_from_folder(
    folder: Path | str,
    *,
    dtype: str = "float32",
    tokenizer: bool = True,
    token_types: bool = False,
    max_length: int | None = None,
    progress: Progress | None = None,
) -> Graph:
    """A sentence encoder from a folder in the form of Hugging Face or sentence-transformers.

    Args:
        folder: Holds `config.json`, `*.safetensors`, `vocab.txt`; what sentence-transformers adds is heeded: the length limit,
            the pooling, whether the result is normalised. Without that, it is the normalised mean.
        dtype: What is computed in: "float32", "float16" or "bfloat16".
        tokenizer: Whether the graph takes text; else it takes ids.
        token_types: See `bert`.
        max_length: How many pieces a text may become; by default what the folder says, else as many as the model has positions.
        progress: See SafetensorsWeights.

    Raises:
        WeightError: The folder is not one of a BERT encoder, or its weights do not fit.
        ValueError: The vocabulary is missing or broken.
    """
    folder = Path(folder)
    config = _read(folder)
    noted = _json(folder / "sentence_bert_config.json").get("max_seq_length")
    limit = max_length or min(noted or config.positions, config.positions)
    wordpiece = read_wordpiece(folder, limit) if tokenizer else None
    weights = SafetensorsWeights(folder, dtype, prefixes=("bert.",), ignored=UNUSED, progress=progress)
    return bert(weights, config, dtype=dtype, wordpiece=wordpiece, token_types=token_types)


def random_bert(
    config: BertConfig,
    *,
    seed: int = 0,
    dtype: str = "float32",
    wordpiece: WordPiece | None = None,
    token_types: bool = False,
) -> Graph:
    """The same with random weights; see `bert`."""
    return bert(RandomWeights(seed, dtype), config, dtype=dtype, wordpiece=wordpiece, token_types=token_types)


def _read(folder: Path) -> BertConfig:
    config = read_config(folder, ("bert",))
    try:
        activation = config.get("hidden_act", "gelu")
        if activation not in ACTIVATIONS:
            raise WeightError(
                f"{folder / 'config.json'}: hidden_act: expected one of {', '.join(ACTIVATIONS)}, got {activation!r}"
            )
        if (kind := config.get("position_embedding_type", "absolute")) != "absolute":
            raise WeightError(f"{folder / 'config.json'}: position_embedding_type: expected absolute, got {kind!r}")
        return BertConfig(
            vocabulary=config["vocab_size"],
            width=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            inner=config["intermediate_size"],
            positions=config["max_position_embeddings"],
            types=config.get("type_vocab_size", 2),
            activation=ACTIVATIONS[activation],
            epsilon=config.get("layer_norm_eps", 1e-12),
            **_sentence_transformers(folder),
        )
    except KeyError as error:
        raise WeightError(f"{folder / 'config.json'}: {error.args[0]} is missing") from None


def _sentence_transformers(folder: Path) -> dict[str, Any]:
    """How the vector of a sentence is made, as sentence-transformers notes it; nothing where it notes nothing."""
    modules = _json(folder / "modules.json", [])
    if not modules:
        return {}
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    for module, kind in zip(modules, kinds, strict=True):
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise WeightError(
                f"{folder / 'modules.json'}: expected Transformer, Pooling and Normalize, got {kind} ({module['path']})"
            )
    pooling = _json(
        folder
        / next((module["path"] for module, kind in zip(modules, kinds, strict=True) if kind == "Pooling"), "")
        / "config.json"
    )
    chosen = [name for name, on in pooling.items() if name.startswith("pooling_mode_") and on]
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first", "pooling_mode_max_tokens": "max"}
    if len(chosen) != 1 or chosen[0] not in known:
        raise WeightError(f"{folder}: pooling: expected one of {', '.join(known)}, got {', '.join(chosen) or 'none'}")
    return {"pooling": known[chosen[0]], "normalize": "Normalize" in kinds}


def _json(path: Path, default: Any = None) -> Any:
    empty: Mapping[str, Any] = {}
    return json.loads(path.read_text("utf-8")) if path.is_file() else (empty if default is None else default)
