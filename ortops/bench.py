"""Measuring on a GPU: ours, stock ONNX Runtime, PyTorch eager and compiled, in one process, interleaved.

Each candidate is a CUDA graph on one stream that is not the default one (which ONNX Runtime is given as its own), with its
inputs bound on the device. A round times every candidate once, in a new order; what is reported is the median over the
rounds. The floor of an operator that is bound by memory is the bytes it must move over the measured rate of a large copy.
"""

from __future__ import annotations

import json
import platform
import random
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortops._declare import ELEMENT_TYPES

if TYPE_CHECKING:
    import onnx

__all__ = ["Bench", "Row", "Runner", "compare", "machine"]

ROUNDS = 15
#: GPU time of one measurement: long against an event's resolution, short against the power limit's regulation.
MILLISECONDS = 4.0


@dataclass(frozen=True)
class Row:
    """One case: milliseconds by candidate, and the floor."""

    case: str
    times: Mapping[str, float]
    floor: float | None = None
    note: str = ""


class Runner:
    """Makes candidates: functions that enqueue one run on the stream."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.stream = torch.cuda.Stream()
        self._keep: list[Any] = []

    def torch_graph(self, f: Callable[[], Any], *, compiled: str = "") -> Callable[[], None]:
        """f of PyTorch, captured; through torch.compile first if a mode of it is named."""
        torch = self.torch
        if compiled:
            torch._dynamo.reset()
            f = torch.compile(f, dynamic=False, fullgraph=True, mode=compiled)
        with torch.cuda.stream(self.stream), torch.no_grad():
            for _ in range(3):
                f()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                result = f()
        self._keep.append((graph, result))
        return graph.replay

    def release(self) -> None:
        """Drops what the candidates so far hold: sessions, graphs, tensors."""
        self._keep.clear()
        self.torch.cuda.empty_cache()

    def session(
        self,
        model: onnx.ModelProto | str,
        inputs: Mapping[str, Any],
        *,
        ours: bool,
        sizes: Mapping[str, int] | None = None,
        **options: str,
    ) -> tuple[Callable[[], None], Sequence[Any]]:
        """A session on the CUDA provider with a CUDA graph, whose inputs are the given tensors; also its output tensors.

        `sizes` fixes symbolic sizes, `options` are the provider's.
        """
        import onnxruntime

        from ortops.session import register

        torch = self.torch
        session_options = onnxruntime.SessionOptions()
        session_options.log_severity_level = 3
        for name, size in (sizes or {}).items():
            session_options.add_free_dimension_override_by_name(name, size)
        if ours:
            register(session_options)
        provider = {"enable_cuda_graph": "1", "user_compute_stream": str(self.stream.cuda_stream), **options}
        source = model if isinstance(model, str) else model.SerializeToString()
        session = onnxruntime.InferenceSession(source, session_options, providers=[("CUDAExecutionProvider", provider)])
        binding = session.io_binding()
        names = {getattr(torch, name): number for name, number in ELEMENT_TYPES.items()}
        dtypes = {"tensor(float)": torch.float32, "tensor(double)": torch.float64}
        for name, tensor in inputs.items():
            binding.bind_input(name, "cuda", 0, names[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
        outputs = []
        for info in session.get_outputs():
            dtype = dtypes.get(info.type) or getattr(torch, info.type[len("tensor(") : -1])
            tensor = torch.empty(tuple(info.shape), dtype=dtype, device="cuda")
            binding.bind_output(info.name, "cuda", 0, names[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
            outputs.append(tensor)
        run_options = onnxruntime.RunOptions()
        run_options.add_run_config_entry("gpu_graph_id", "0")  # its absence costs 0.1 ms a call
        run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._keep.append((session, binding, dict(inputs), outputs))
        session.run_with_iobinding(binding, run_options)
        torch.cuda.synchronize()
        return lambda: session.run_with_iobinding(binding, run_options), outputs

    def measure(self, candidates: Mapping[str, Callable[[], None]]) -> dict[str, float]:
        """Milliseconds of each candidate: medians over rounds in which each is timed once."""
        torch = self.torch
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

        def timed(run: Callable[[], None], count: int) -> float:
            with torch.cuda.stream(self.stream):
                start.record(self.stream)
                for _ in range(count):
                    run()
                end.record(self.stream)
            end.synchronize()
            return float(start.elapsed_time(end)) / count

        counts = {}
        for name, run in candidates.items():
            timed(run, 3)
            counts[name] = max(3, min(400, int(MILLISECONDS / max(timed(run, 5), 1e-3))))
        times: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(ROUNDS):
            for name in random.sample(list(candidates), len(candidates)):
                times[name].append(timed(candidates[name], counts[name]))
        return {name: statistics.median(values) for name, values in times.items()}

    def kernels(self, run: Callable[[], None], count: int = 10) -> list[tuple[str, float, float]]:
        """What one run launches: a kernel's name, how often a run, microseconds a run; the longest first."""
        torch = self.torch
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            with torch.cuda.stream(self.stream):
                for _ in range(count):
                    run()
            torch.cuda.synchronize()
        found: dict[str, list[float]] = {}
        for event in profiler.events():
            if event.device_time_total:
                found.setdefault(event.name, []).append(event.device_time_total)
        table = [(name, len(times) / count, sum(times) / count) for name, times in found.items()]
        return sorted(table, key=lambda row: -row[2])

    def copy_rate(self) -> float:
        """Bytes a millisecond that a large copy on the device moves, read and written."""
        torch = self.torch
        source = torch.empty(2**30, dtype=torch.uint8, device="cuda").random_()
        target = torch.empty_like(source)
        return 2.0 * source.numel() / self.measure({"copy": lambda: target.copy_(source)})["copy"]


def machine() -> dict[str, Any]:
    """What a figure has to be read with: the GPU, the versions, the commit."""
    import onnxruntime
    import torch

    from ortops._library import build_info

    def command(*words: str) -> str:
        try:
            return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"

    return {
        "gpu": torch.cuda.get_device_name(0),
        "driver": command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "onnxruntime": onnxruntime.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "library": build_info(),
        "commit": command("git", "rev-parse", "--short", "HEAD"),
    }


@dataclass
class Bench:
    """Rows, printed as they come and written at the end."""

    title: str
    rows: list[Row] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine)

    def add(self, case: str, times: Mapping[str, float], floor: float | None = None, note: str = "") -> Row:
        """Adds a case. A floor below a microsecond, the time of any launch, says nothing and is left out."""
        row = Row(case, dict(times), floor if floor is None or floor >= 1e-3 else None, note)
        self.rows.append(row)
        print(self.line(row), flush=True)
        return row

    @staticmethod
    def line(row: Row) -> str:
        ours = row.times.get("ortops")
        peers = {name: time for name, time in row.times.items() if name != "ortops"}
        parts = [f"{name} {time:.4f}" for name, time in row.times.items()]
        if row.floor:
            parts.append(f"floor {row.floor:.4f}" + (f" (ortops {ours / row.floor:.2f}x)" if ours else ""))
        if ours and peers:
            best = min(peers, key=lambda name: peers[name])
            parts.append(f"ours/best peer {ours / peers[best]:.2f} ({best})")
        return f"{row.case}: " + ", ".join(parts) + (f" [{row.note}]" if row.note else "")

    def markdown(self) -> str:
        names = list(dict.fromkeys(name for row in self.rows for name in row.times))
        lines = [
            f"# {self.title}",
            "",
            "Milliseconds of GPU time; medians, all candidates of a row interleaved in one process.",
            "",
        ]
        lines += [f"- {key}: {value}" for key, value in self.machine.items()]
        lines += [
            "",
            "| case | " + " | ".join(names) + " | floor | ours / floor | ours / best peer |",
            "|---" * (len(names) + 4) + "|",
        ]
        for row in self.rows:
            ours = row.times.get("ortops")
            peers = [time for name, time in row.times.items() if name != "ortops"]
            cells = [f"{row.times[name]:.4f}" if name in row.times else "" for name in names]
            cells.append(f"{row.floor:.4f}" if row.floor else "")
            cells.append(f"{ours / row.floor:.2f}" if ours and row.floor else "")
            cells.append(f"{ours / min(peers):.2f}" if ours and peers else "")
            lines.append(f"| {row.case}{' (' + row.note + ')' if row.note else ''} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def write(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text(self.markdown())
        (folder / f"{name}.json").write_text(
            json.dumps({"machine": self.machine, "rows": [asdict(row) for row in self.rows]}, indent=1) + "\n"
        )


def compare(
    bench: Bench,
    runner: Runner,
    case: str,
    build: Callable[..., Any],
    inputs: Mapping[str, Any],
    peers: Mapping[str, Callable[[], Any]],
    *,
    compiled: Callable[[], Any] | None = None,
    floor: float | None = None,
    tolerance: float = 2e-3,
    stock: bool = True,
) -> None:
    """Adds one row. `build` makes the outputs of graph values, which ours and stock ONNX Runtime (the lowered model) run on the
    tensors `inputs`; `peers` are functions of PyTorch, the first of which also says what the first output is to be.

    Raises:
        AssertionError: Ours differs by more than `tolerance`, relative to the norm.
    """
    import torch

    import ortops

    graph = ortops.Graph("bench")
    values = [
        graph.input(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in inputs.items()
    ]
    results = build(*values)
    for index, value in enumerate(results if isinstance(results, tuple | list) else (results,)):
        graph.output(value, f"output{index}")
    model = graph.build(functions=False)
    candidates: dict[str, Callable[[], None]] = {}
    candidates["ortops"], outputs = runner.session(model, inputs, ours=True)
    expected = next(iter(peers.values()))()
    expected = expected[0] if isinstance(expected, tuple) else expected
    error = float((outputs[0].float() - expected.float()).norm() / expected.float().norm())
    assert error <= tolerance, f"{case}: relative error {error}"
    if stock:
        try:
            candidates["onnxruntime"], _ = runner.session(ortops.lower(model), inputs, ours=False)
        except Exception as problem:
            print(f"{case}: stock ONNX Runtime: {str(problem).splitlines()[0][:160]}")
    for name, peer in peers.items():
        candidates[name] = runner.torch_graph(peer)
    if compiled is not None:
        candidates["torch.compile"] = runner.torch_graph(compiled, compiled="max-autotune-no-cudagraphs")
    bench.add(case, runner.measure(candidates), floor, f"relative error {error:.1e}")
    torch.cuda.empty_cache()
