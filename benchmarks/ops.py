"""The speed of single operators on a GPU: `python benchmarks/ops.py [--out FOLDER] [--only WORD]`.

Prints a line a case, and writes ops.md and ops.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from ortops import ops
from ortops.bench import Bench, Runner, compare


def norms(bench: Bench, runner: Runner, rate: float) -> None:
    for rows, width, dtype in (
        (16384, 4096, torch.float16),
        (16384, 4096, torch.float32),
        (8192, 384, torch.float16),
        (1, 100, torch.float16),
    ):
        x = torch.randn(rows, width, dtype=dtype, device="cuda")
        residual, w, b = (
            torch.randn_like(x),
            torch.randn(width, dtype=dtype, device="cuda"),
            torch.randn(width, dtype=dtype, device="cuda"),
        )
        floor = 2 * x.nbytes / rate
        what = f"{rows}x{width} {str(dtype).removeprefix('torch.')}"

        def layer(x: Any = x, w: Any = w, b: Any = b, width: int = width) -> Any:
            return functional.layer_norm(x, (width,), w, b)

        def added(x: Any = x, r: Any = residual, w: Any = w, b: Any = b, width: int = width) -> Any:
            total = x + r
            return functional.layer_norm(total, (width,), w, b), total

        def rms(x: Any = x, w: Any = w, width: int = width) -> Any:
            return functional.rms_norm(x, (width,), w, 1e-5)

        compare(
            bench,
            runner,
            f"LayerNorm {what}",
            ops.layer_norm,
            {"x": x, "w": w, "b": b},
            {"torch": layer},
            compiled=layer,
            floor=floor,
        )
        compare(
            bench, runner, f"RMSNorm {what}", ops.rms_norm, {"x": x, "w": w}, {"torch": rms}, compiled=rms, floor=floor
        )
        compare(
            bench,
            runner,
            f"LayerNorm + residual, sum kept {what}",
            lambda x, r, w, b: ops.layer_norm(x, w, b, r, outputs=("y", "sum")),
            {"x": x, "r": residual, "w": w, "b": b},
            {"torch": added},
            compiled=added,
            floor=2 * floor,
        )


def linears(bench: Bench, runner: Runner, rate: float) -> None:
    for m, k, n in ((8192, 2048, 8192), (8192, 384, 1536), (8192, 384, 384)):
        x, w, b = (torch.randn(*shape, dtype=torch.float16, device="cuda") for shape in ((m, k), (k, n), (n,)))
        w *= k**-0.5
        inputs = {"x": x, "w": w, "b": b}
        what = f"{m}x{k}x{n} float16"
        compare(
            bench,
            runner,
            f"Linear, bare {what}",
            lambda x, w, b: ops.linear(x, w),
            inputs,
            {"torch": lambda x=x, w=w: x @ w},
        )
        compare(
            bench,
            runner,
            f"Linear + bias {what}",
            ops.linear,
            inputs,
            {"torch": lambda x=x, w=w, b=b: torch.addmm(b, x, w)},
        )
        for activation, peer in (
            ("gelu", lambda y: functional.gelu(y)),
            ("gelu_tanh", lambda y: functional.gelu(y, approximate="tanh")),
            ("silu", functional.silu),
            ("relu", functional.relu),
        ):

            def f(peer: Any = peer, x: Any = x, w: Any = w, b: Any = b) -> Any:
                return peer(torch.addmm(b, x, w))

            build = lambda x, w, b, activation=activation: ops.linear(x, w, b, activation=activation)  # noqa: E731
            compare(bench, runner, f"Linear + bias + {activation} {what}", build, inputs, {"torch": f}, compiled=f)


def attentions(bench: Bench, runner: Runner, rate: float) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    cases = [
        (8, 16, 4096, 128, "none", False),
        (8, 16, 4096, 128, "top_left", False),
        (8, 12, 1024, 64, "top_left", False),
    ]
    cases += [
        (16, 12, 512, 64, "none", False),
        (64, 12, 128, 32, "none", False),
        (64, 12, 128, 32, "none", True),
        (1, 12, 32, 32, "none", False),
    ]
    for b, h, s, d, causal, masked in cases:
        q, k, v = (torch.randn(b, h, s, d, dtype=torch.float16, device="cuda") for _ in range(3))
        inputs = {"q": q, "k": k, "v": v}
        mask = None
        if masked:
            lengths = torch.randint(s // 2, s + 1, (b,), device="cuda")
            mask = (torch.arange(s, device="cuda")[None] < lengths[:, None])[:, None, None, :].contiguous()
            inputs["mask"] = mask

        def sdpa(
            backend: Any = None, q: Any = q, k: Any = k, v: Any = v, causal: str = causal, mask: Any = mask
        ) -> Any:
            if backend is None:
                return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal != "none")
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal != "none")

        peers = {"torch": sdpa, "torch cuDNN": lambda f=sdpa: f(SDPBackend.CUDNN_ATTENTION)}
        if not masked:
            peers["torch flash"] = lambda f=sdpa: f(SDPBackend.FLASH_ATTENTION)
        name = (
            f"Attention {b}x{h}x{s}x{d} float16{'' if causal == 'none' else ' causal'}{' key mask' if masked else ''}"
        )
        build = lambda q, k, v, mask=None, causal=causal: ops.scaled_dot_product_attention(q, k, v, mask, causal=causal)  # noqa: E731
        compare(bench, runner, name, build, inputs, peers, stock=b * h * s * s < 2**31)
    for masked in (False, True):
        packed_attention(bench, runner, 64, 12, 128, 32, masked)


def packed_attention(bench: Bench, runner: Runner, b: int, h: int, s: int, d: int, masked: bool) -> None:
    """Attention of one tensor, as the product for query, key and value writes it; lengths of a quarter up to all, as in minilm.py."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    qkv = torch.randn(b, s, 3 * h, d, dtype=torch.float16, device="cuda")
    inputs = {"qkv": qkv}
    mask = None
    if masked:
        lengths = torch.randint(s // 4, s + 1, (b,), device="cuda")
        mask = (torch.arange(s, device="cuda")[None] < lengths[:, None])[:, None, None, :].contiguous()
        inputs["mask"] = mask

    def sdpa(*backends: Any) -> Any:
        q, k, v = qkv.view(b, s, 3, h, d).permute(2, 0, 3, 1, 4)
        if not backends:
            return functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)
        with sdpa_kernel(list(backends)):
            return functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)

    peers = {"torch": sdpa, "torch cuDNN": lambda: sdpa(SDPBackend.CUDNN_ATTENTION)}
    if not masked:
        peers["torch flash"] = lambda: sdpa(SDPBackend.FLASH_ATTENTION)
    name = f"Attention packed {b}x{h}x{s}x{d} float16{' key mask' if masked else ''}"
    build = lambda qkv, mask=None: ops.packed_qkv_attention(qkv, mask, heads=h, kv_heads=h)  # noqa: E731
    compare(bench, runner, name, build, inputs, peers)


def lookups(bench: Bench, runner: Runner, rate: float) -> None:
    for rows, width in ((65536, 1024), (8192, 384)):
        table = torch.randn(100_000, width, dtype=torch.float16, device="cuda")
        indices = torch.randint(0, 100_000, (rows,), device="cuda")
        compare(
            bench,
            runner,
            f"Embedding {rows} rows of {width} float16",
            ops.embedding,
            {"indices": indices, "table": table},
            {"torch": lambda i=indices, t=table: functional.embedding(i, t)},
            floor=2 * rows * width * 2 / rate,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    runner, bench = Runner(), Bench("Single operators")
    rate = runner.copy_rate()
    bench.machine["copy rate"] = f"{rate / 1e9:.2f} TB/s"
    print(bench.machine, flush=True)
    for group in (norms, linears, attentions, lookups):
        if arguments.only in group.__name__:
            group(bench, runner, rate)
            bench.write(arguments.out, "ops")


if __name__ == "__main__":
    main()
