"""Weights: a model in Hugging Face's form is a folder with `config.json` and one or more safetensors files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes  # noqa: F401  (numpy then knows bfloat16 by name)
import numpy as np

__all__ = ["RandomWeights", "SafetensorsWeights", "WeightError", "Weights", "read_config"]

Progress = Callable[[str, int, int], None]


class WeightError(ValueError):
    """A folder does not hold the weights of the model that its configuration describes. The text lists all that is wrong."""


class Weights(Protocol):
    """Where a model gets its tensors from: it asks for each by name and shape while it is built, then calls `check`."""

    def __call__(self, name: str, *shape: int) -> np.ndarray:
        """The tensor of that name; one that is not there or has another shape is noted, and zeros stand in for it."""

    def check(self) -> None:
        """Raises WeightError for all that is missing, misshapen or left over."""


def read_config(folder: Path, model_types: tuple[str, ...]) -> dict[str, Any]:
    """Reads `config.json`.

    Raises:
        WeightError: It is missing, no JSON object, or describes a model of another type than those.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise WeightError(f"{path}: no such file; expected a folder as Hugging Face's save_pretrained writes it")
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise WeightError(f"{path}: not JSON: {error}") from None
    found = config.get("model_type") if isinstance(config, dict) else None
    if found not in model_types:
        raise WeightError(f"{path}: model_type: expected {' or '.join(model_types)}, got {found!r}")
    return dict(config)


class SafetensorsWeights:
    """The tensors of a folder, converted to one floating type as they are asked for.

    Args:
        folder: Holds `*.safetensors`.
        dtype: "float32", "float16" or "bfloat16".
        prefixes: What the names in the file may have in front of those of the model ("bert.").
        ignored: A pattern of names that the model knowingly does not use.
        progress: Called with what is being done, how much of it is done and how much there is, in bytes.

    Raises:
        WeightError: There is no such file, or one cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        dtype: str,
        *,
        prefixes: tuple[str, ...] = (),
        ignored: str = "(?!)",
        progress: Progress | None = None,
    ) -> None:
        self.folder, self.dtype, self.ignored = folder, np.dtype(dtype), re.compile(ignored)
        self._progress = progress or (lambda what, done, total: None)
        self._files = sorted(folder.glob("*.safetensors"))
        if not self._files:
            raise WeightError(f"{folder}: no safetensors file; expected model.safetensors")
        self._where: dict[str, tuple[Path, dict[str, Any]]] = {}
        for path in self._files:
            for name, about in _header(path).items():
                for prefix in prefixes:
                    name = name.removeprefix(prefix)
                self._where[name] = (path, about)
        self._unused = set(self._where)
        self._wrong: list[str] = []
        self._done = 0

    def __call__(self, name: str, *shape: int) -> np.ndarray:
        self._unused.discard(name)
        if name not in self._where:
            self._wrong.append(f"missing: {name} {list(shape)}")
            return np.zeros(shape, self.dtype)
        path, about = self._where[name]
        if tuple(about["shape"]) != shape:
            self._wrong.append(f"misshapen: {name}: expected {list(shape)}, got {about['shape']}")
            return np.zeros(shape, self.dtype)
        if about["dtype"] not in ELEMENT_TYPES:
            self._wrong.append(
                f"of another type: {name}: expected one of {', '.join(ELEMENT_TYPES)}, got {about['dtype']}"
            )
            return np.zeros(shape, self.dtype)
        begin, end = about["data_offsets"]
        raw = np.memmap(path, np.uint8, "r", about["start"] + begin, (end - begin,))
        self._done += end - begin
        self._progress(f"Reading {path.name}", self._done, sum(file.stat().st_size for file in self._files))
        array = raw.view(ELEMENT_TYPES[about["dtype"]]).reshape(shape).astype(self.dtype)
        if not np.isfinite(array.astype(np.float32)).all():
            self._wrong.append(f"not finite in {self.dtype}: {name}")
        return array

    def check(self) -> None:
        extra = [
            f"extra: {name} {self._where[name][1]['shape']}"
            for name in sorted(self._unused)
            if not self.ignored.fullmatch(name)
        ]
        if self._wrong or extra:
            wrong = "".join(f"\n  {line}" for line in (*self._wrong, *extra))
            raise WeightError(f"{self.folder}: the weights do not fit the configuration:{wrong}")


#: safetensors' names of the types that become one of ours.
ELEMENT_TYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("float64"),
    "F32": np.dtype("float32"),
    "F16": np.dtype("float16"),
    "BF16": np.dtype("bfloat16"),
}


def _header(path: Path) -> dict[str, dict[str, Any]]:
    """What a safetensors file says of its tensors, checked by safetensors itself. (8 bytes: the length of the JSON that follows)"""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
    except (SafetensorError, OSError) as error:
        raise WeightError(f"{path}: not a safetensors file: {error}") from None
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    return {name: {**about, "start": 8 + length} for name, about in header.items() if name in names}


class RandomWeights:
    """Weights drawn anew: normal with that standard deviation; ones for the scale of a norm and zeros for biases, a little off.

    Args:
        seed: The same seed gives the same weights, in every floating type up to rounding.
        dtype: "float32", "float16" or "bfloat16".
    """

    def __init__(self, seed: int, dtype: str, deviation: float = 0.05) -> None:
        self.seed, self.dtype, self.deviation = seed, np.dtype(dtype), deviation

    def __call__(self, name: str, *shape: int) -> np.ndarray:
        random = np.random.default_rng([self.seed, *name.encode()])
        centre = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
        return random.normal(centre, self.deviation, shape).astype(np.float32).astype(self.dtype)

    def check(self) -> None:
        """Nothing can be wrong."""
