"""The BERT encoder: any batch and length, every floating type, and weights that do not fit. (public case o40)"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (numpy then knows bfloat16 by name)
import numpy as np
import onnx
import pytest
from ortops.export.text import WordPiece
from ortops.export.transformer import BertConfig, bert_from_folder, random_bert
from ortops.export.weights import RandomWeights, WeightError
from safetensors.numpy import save_file

import ortops

sys.path.insert(0, str(Path(__file__).parent))
import reference_bert

SMALL = BertConfig(vocabulary=40, width=16, layers=2, heads=4, inner=32, positions=24)
EPSILON = {"float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}


def batch(size: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Ids and masks of texts of different lengths; the first is full."""
    rng = np.random.default_rng(seed)
    lengths = np.concatenate([[length], rng.integers(1, length + 1, max(size - 1, 0))])[:size]
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return {"input_ids": rng.integers(0, SMALL.vocabulary, (size, length)) * mask, "attention_mask": mask}


def expected(feeds: dict[str, np.ndarray], dtype: str = "float32") -> np.ndarray:
    weights = RandomWeights(0, dtype)
    shapes = shapes_of(SMALL)
    return reference_bert.encode(
        lambda name: weights(name, *shapes[name]), *feeds.values(), layers=SMALL.layers, heads=SMALL.heads
    )


def shapes_of(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint of Hugging Face's BertModel."""
    width, inner = config.width, config.inner

    def norm(name: str) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

    def dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocabulary, width),
        "embeddings.position_embeddings.weight": (config.positions, width),
        "embeddings.token_type_embeddings.weight": (config.types, width),
        **norm("embeddings.LayerNorm"),
    }
    for layer in (f"encoder.layer.{index}" for index in range(config.layers)):
        for part in ("query", "key", "value"):
            shapes |= dense(f"{layer}.attention.self.{part}", width, width)
        shapes |= dense(f"{layer}.attention.output.dense", width, width) | norm(f"{layer}.attention.output.LayerNorm")
        shapes |= dense(f"{layer}.intermediate.dense", width, inner) | dense(f"{layer}.output.dense", inner, width)
        shapes |= norm(f"{layer}.output.LayerNorm")
    return shapes


def run(session: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
    result: np.ndarray = session.run(["embedding"], feeds)[0]
    return result


@pytest.fixture(scope="module")
def small() -> ortops.InferenceSession:
    return ortops.InferenceSession(random_bert(SMALL), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("size", "length"), [(1, 5), (3, 5), (2, 9), (1, 1), (7, 24), (0, 3)])
def test_any_batch_and_length(small: ortops.InferenceSession, size: int, length: int) -> None:
    feeds = batch(size, length)
    result = run(small, feeds)
    assert result.shape == (size, SMALL.width)
    if size:
        np.testing.assert_allclose(result, expected(feeds), rtol=0, atol=1e-5)


def test_a_batch_is_its_items_stacked(small: ortops.InferenceSession) -> None:
    feeds = batch(5, 11)
    items = [run(small, {name: value[index : index + 1] for name, value in feeds.items()}) for index in range(5)]
    np.testing.assert_allclose(run(small, feeds), np.concatenate(items), rtol=0, atol=1e-5)


def test_padding_does_not_matter(small: ortops.InferenceSession) -> None:
    feeds = batch(3, 9)
    longer = {name: np.pad(value, ((0, 0), (0, 6))) for name, value in feeds.items()}
    longer["input_ids"][:, 9:] = 7
    np.testing.assert_allclose(run(small, longer), run(small, feeds), rtol=0, atol=1e-5)


def test_too_long_is_an_error(small: ortops.InferenceSession) -> None:
    with pytest.raises(Exception, match="residual"):
        run(small, batch(2, SMALL.positions + 1))
    run(small, batch(2, SMALL.positions))


def test_no_size_is_baked_in() -> None:
    model = random_bert(SMALL).build()
    onnx.checker.check_model(model, full_check=True)
    for value in model.graph.input:
        assert [axis.dim_param for axis in value.type.tensor_type.shape.dim] == ["batch", "length"]
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    shapes = [
        constants[node.input[1]]
        for node in model.graph.node
        if node.op_type in ("Reshape", "Expand") and node.input[1] in constants
    ]
    assert shapes
    assert all(shape[:2].tolist() == [0, 0] for shape in shapes)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype: str) -> None:
    session = ortops.InferenceSession(random_bert(SMALL, dtype=dtype), providers=["CPUExecutionProvider"])
    feeds = batch(3, 9)
    result = run(session, feeds)
    assert result.dtype == np.float32
    # The result has length one: its sixteen numbers are a quarter each, and an epsilon is some eight roundings of one of them.
    np.testing.assert_allclose(result, expected(feeds, dtype), rtol=0, atol=EPSILON[dtype])


def test_the_same_seed_is_the_same_model() -> None:
    build = lambda seed: random_bert(SMALL, seed=seed).build().SerializeToString()  # noqa: E731
    assert build(3) == build(3)
    assert build(3) != build(4)


def test_token_types() -> None:
    session = ortops.InferenceSession(random_bert(SMALL, token_types=True), providers=["CPUExecutionProvider"])
    feeds = batch(3, 9)
    zeros = {**feeds, "token_type_ids": np.zeros((3, 9), np.int64)}
    np.testing.assert_allclose(run(session, zeros), expected(feeds), rtol=0, atol=1e-5)
    ones = {**feeds, "token_type_ids": np.ones((3, 9), np.int64)}
    assert np.abs(run(session, ones) - run(session, zeros)).max() > 1e-3
    with pytest.raises(ValueError, match="token_types: expected False beside a tokenizer"):
        random_bert(SMALL, wordpiece=WordPiece(("[PAD]", "[UNK]", "[CLS]", "[SEP]"), 8), token_types=True)


def test_the_tokenizer_must_fit_the_model() -> None:
    with pytest.raises(ValueError, match="up to 25 of 4 pieces, the model takes up to 24 of 40"):
        random_bert(SMALL, wordpiece=WordPiece(("[PAD]", "[UNK]", "[CLS]", "[SEP]"), 25))


def test_the_file_runs_without_the_library(tmp_path: Path, small: ortops.InferenceSession) -> None:
    import onnxruntime

    random_bert(SMALL).save(tmp_path / "bert.onnx")
    alone = onnxruntime.InferenceSession(tmp_path / "bert.onnx", providers=["CPUExecutionProvider"])
    feeds = batch(3, 9)
    np.testing.assert_allclose(run(alone, feeds), run(small, feeds), rtol=0, atol=1e-5)


# --- folders --------------------------------------------------------------------------------------------------------


def folder(path: Path, tensors: dict[str, np.ndarray] | None = None, **changes: Any) -> Path:
    """A checkpoint as Hugging Face writes it."""
    config = {
        "model_type": "bert",
        "vocab_size": SMALL.vocabulary,
        "hidden_size": SMALL.width,
        "num_hidden_layers": SMALL.layers,
        "num_attention_heads": SMALL.heads,
        "intermediate_size": SMALL.inner,
        "max_position_embeddings": SMALL.positions,
        "hidden_act": "gelu",
        **changes,
    }
    (path / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    save_file(good() if tensors is None else tensors, path / "model.safetensors")
    return path


def good(prefix: str = "") -> dict[str, np.ndarray]:
    weights = RandomWeights(0, "float32")
    return {prefix + name: weights(name, *shape) for name, shape in shapes_of(SMALL).items()}


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_published_names(tmp_path: Path, prefix: str) -> None:
    tensors = good(prefix) | {f"{prefix}pooler.dense.weight": np.zeros((16, 16)), "cls.predictions.bias": np.zeros(40)}
    tensors |= {f"{prefix}embeddings.position_ids": np.arange(24)[None]}
    graph = bert_from_folder(folder(tmp_path, tensors), tokenizer=False)
    feeds = batch(3, 9)
    result = run(ortops.InferenceSession(graph, providers=["CPUExecutionProvider"]), feeds)
    np.testing.assert_allclose(result, expected(feeds), rtol=0, atol=1e-5)


def test_all_that_is_wrong_with_the_weights_is_listed(tmp_path: Path) -> None:
    tensors = good()
    del tensors["encoder.layer.1.output.dense.bias"]
    tensors["encoder.layer.0.intermediate.dense.weight"] = np.zeros((16, 32), np.float32)
    tensors["embeddings.LayerNorm.bias"] = np.zeros(16, np.int32)
    tensors["encoder.layer.2.output.dense.bias"] = np.zeros(16, np.float32)
    tensors["embeddings.LayerNorm.weight"] = np.full(16, np.inf, np.float32)
    with pytest.raises(WeightError) as error:
        bert_from_folder(folder(tmp_path, tensors), tokenizer=False)
    text = str(error.value)
    assert text.startswith(f"{tmp_path}: the weights do not fit the configuration:")
    assert sorted(line.strip() for line in text.splitlines()[1:]) == [
        "extra: encoder.layer.2.output.dense.bias [16]",
        "misshapen: encoder.layer.0.intermediate.dense.weight: expected [32, 16], got [16, 32]",
        "missing: encoder.layer.1.output.dense.bias [16]",
        "not finite in float32: embeddings.LayerNorm.weight",
        "of another type: embeddings.LayerNorm.bias: expected one of F64, F32, F16, BF16, got I32",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type: expected bert, got 'gpt2'"),
        ({"model_type": None}, "model_type: expected bert, got None"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_act": "mish"}, "hidden_act: expected one of gelu, .*, got 'mish'"),
        ({"num_attention_heads": 5}, "heads: expected a divisor of the width 16, got 5"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: expected absolute, got 'relative_key'"),
    ],
)
def test_configurations_that_are_not_taken(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightError, match=message):
        bert_from_folder(folder(tmp_path, **changes), tokenizer=False)


def test_broken_folders(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"config\.json: no such file"):
        bert_from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightError, match=r"config\.json: not JSON"):
        bert_from_folder(tmp_path)
    folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0nonsense")
    with pytest.raises(WeightError, match=r"model\.safetensors: not a safetensors file"):
        bert_from_folder(tmp_path, tokenizer=False)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(WeightError, match="no safetensors file"):
        bert_from_folder(tmp_path, tokenizer=False)


def test_sentence_transformers_notes_are_heeded(tmp_path: Path) -> None:
    folder(tmp_path)
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    pooling = tmp_path / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    session = ortops.InferenceSession(bert_from_folder(tmp_path, tokenizer=False), providers=["CPUExecutionProvider"])
    assert np.linalg.norm(run(session, batch(1, 5))) == pytest.approx(
        4, rel=0.2
    )  # 16 numbers of about one: not normalised
    pooling.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}))
    with pytest.raises(
        WeightError, match=r"pooling: expected one of .*, got pooling_mode_cls_token, pooling_mode_mean_tokens"
    ):
        bert_from_folder(tmp_path, tokenizer=False)
