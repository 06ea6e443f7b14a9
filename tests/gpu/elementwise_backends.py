"""Elementwise on CUDA: the interpreter against compiled expressions, and both against PyTorch.

    python tests/gpu/elementwise_backends.py

Runs itself once for each of the two (the library reads ORTOPS_ELEMENTWISE when it is loaded) and prints milliseconds, times
over the floor, and what 50 expressions cost: to make the session, and its first run, in which they are compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CHAIN = "silu(x0) * x1 + x0 * 0.5 - x1"  # five operations


def cases(torch: Any, dtype: Any) -> list[tuple[str, str, list[Any], Callable[..., Any]]]:
    functional = torch.nn.functional

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda").to(dtype)

    x, y, bias = random(8192, 11008), random(8192, 11008), random(11008)
    residual, small = random(8192, 1), random(1, 1000)
    return [
        ("SiLU(x) * y 8192x11008", "silu(x0) * x1", [x, y], lambda x, y: functional.silu(x) * y),
        ("bias + GELU 8192x11008", "gelu(x0 + x1)", [x, bias], lambda x, b: functional.gelu(x + b)),
        ("residual + scale 8192x11008", "x0 + 0.7 * x1", [x, y], lambda x, y: x + 0.7 * y),
        ("row scale 8192x11008", "x0 * x1", [x, residual], lambda x, r: x * r),
        ("5 operations 8192x11008", CHAIN, [x, y], lambda x, y: functional.silu(x) * y + x * 0.5 - y),
        (
            "SiLU(x) * y, off alignment",
            "silu(x0) * x1",
            [x.view(-1)[1:8001], y.view(-1)[1:8001]],
            lambda x, y: functional.silu(x) * y,
        ),
        ("tanh(x) 1x1000", "tanh(x0)", [small], torch.tanh),
    ]


def measure() -> None:
    import torch

    import ortops
    from ortops import ops
    from ortops.bench import Runner

    runner = Runner()
    rate = runner.copy_rate()
    backend = os.environ["ORTOPS_ELEMENTWISE"]
    for dtype in (torch.float16, torch.float32):
        for name, expression, tensors, peer in cases(torch, dtype):
            graph = ortops.Graph("bench")
            kind = str(dtype).removeprefix("torch.")
            values = [graph.input(f"x{i}", kind, tuple(t.shape)) for i, t in enumerate(tensors)]
            graph.output(ops.elementwise(*values, expression=expression), "y")
            inputs = {f"x{i}": t for i, t in enumerate(tensors)}
            ours, (output,) = runner.session(graph.build(functions=False), inputs, ours=True)
            expected = peer(*tensors)
            error = float((output.float() - expected.float()).norm() / expected.float().norm())
            candidates = {backend: ours}
            if backend == "compiled":
                candidates["torch"] = runner.torch_graph(lambda peer=peer, tensors=tensors: peer(*tensors))
                candidates["torch.compile"] = runner.torch_graph(
                    lambda peer=peer, tensors=tensors: peer(*tensors), compiled="max-autotune-no-cudagraphs"
                )
            times = runner.measure(candidates)
            floor = sum(t.nbytes for t in (*tensors, output)) / rate
            listed = ", ".join(f"{n} {t:.4f} ({t / floor:.2f})" for n, t in times.items())
            print(f"{name} {kind}: {listed}, floor {floor:.4f}, error {error:.1e}", flush=True)
            runner.release()
    graph = ortops.Graph("many")
    y = x = graph.input("x", "float16", [1024, 1024])
    for i in range(50):
        y = ops.elementwise(y, x, expression=f"silu(x0 + {i}) * x1")
    graph.output(y, "y")
    data = torch.randn(1024, 1024, device="cuda").half().cpu().numpy()
    start = time.perf_counter()
    session = ortops.InferenceSession(graph.build(functions=False), providers=["CUDAExecutionProvider"])
    made = time.perf_counter()
    session.run(None, {"x": data})
    first = time.perf_counter()
    session.run(None, {"x": data})
    second = time.perf_counter()
    print(
        f"{backend}: 50 expressions: session {1e3 * (made - start):.0f} ms, first run {1e3 * (first - made):.0f} ms, "
        f"second {1e3 * (second - first):.1f} ms"
    )


if __name__ == "__main__":
    if "ORTOPS_ELEMENTWISE" in os.environ:
        measure()
    else:
        for backend in ("compiled", "interpreter"):
            print(f"--- {backend}", flush=True)
            subprocess.run([sys.executable, __file__], env={**os.environ, "ORTOPS_ELEMENTWISE": backend}, check=False)
