"""The speed of the operators that move and select, forward and backward, on a GPU.

    python benchmarks/movement.py [--out FOLDER] [--only WORD] [--types float16,float32]

Prints a line a case, and writes movement.md and movement.json. A floor is the bytes that must move (each input and output
once; for lookups each row that is named) over the rate of a large copy.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import ortops
from ortops import ops
from ortops.bench import Bench, Runner, compare

aten = torch.ops.aten


class Cases:
    """What a group of cases needs: where rows go, the rate of a copy in bytes a millisecond, and the type."""

    def __init__(self, bench: Bench, runner: Runner, rate: float, dtype: torch.dtype) -> None:
        self.bench, self.runner, self.rate, self.dtype = bench, runner, rate, dtype
        self.size = dtype.itemsize
        self.failed: list[str] = []

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(self.dtype)

    def add(
        self, case: str, build: Any, inputs: dict[str, torch.Tensor], torch_: Any, moved: float, **more: Any
    ) -> None:
        """One row; `moved` is the bytes of the floor. A case that fails is printed, and the rest goes on."""
        name = f"{case} {str(self.dtype).removeprefix('torch.')}"
        try:
            peers = torch_ if isinstance(torch_, dict) else {"torch": torch_}
            compare(self.bench, self.runner, name, build, inputs, peers, floor=moved / self.rate, **more)
        except Exception as problem:
            self.failed.append(name)
            print(f"FAILED {name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
        self.runner.release()


def embedding(c: Cases) -> None:
    for rows, width, vocabulary in ((65536, 1024, 50_000), (8192, 384, 30_000), (1, 100, 1000), (100, 100, 1000)):
        table, index = c.random(vocabulary, width), torch.randint(0, vocabulary, (rows,), device="cuda")
        moved = 2 * rows * width * c.size + 8 * rows
        inputs = {"indices": index, "table": table}
        c.add(
            f"Embedding {rows} rows of {width}",
            ops.embedding,
            inputs,
            lambda i=index, t=table: functional.embedding(i, t),
            moved,
        )
        c.add(
            f"Take {rows} rows of {width}",
            lambda i, t: ops.take(t, i, axis=0),
            inputs,
            lambda i=index, t=table: torch.index_select(t, 0, i),
            moved,
        )
        d_y = c.random(rows, width)
        c.add(
            f"Embedding gradient {rows} rows of {width}",
            lambda i, t, d: ops.take_gradient(d, i, t, axis=0),
            {**inputs, "d_y": d_y},
            lambda i=index, d=d_y, v=vocabulary: aten.embedding_dense_backward(d, i, v, -1, False),
            (rows + vocabulary) * width * c.size + 8 * rows,
        )
    x, index = c.random(4096, 8192), torch.randint(0, 8192, (2048,), device="cuda")
    c.add(
        "Take 2048 columns of 4096x8192",
        lambda x, i: ops.take(x, i, axis=1),
        {"x": x, "i": index},
        lambda x=x, i=index: torch.index_select(x, 1, i),
        2 * 4096 * 2048 * c.size,
    )
    along = torch.randint(0, 8192, (4096, 4096), device="cuda")
    c.add(
        "TakeAlongAxis 4096x4096 of 4096x8192",
        lambda x, i: ops.take_along_axis(x, i, axis=1),
        {"x": x, "i": along},
        lambda x=x, i=along: torch.gather(x, 1, i),
        4096 * 4096 * (8 + 2 * c.size),
    )


def bags(c: Cases) -> None:
    for bags, length, vocabulary, width in ((65536, 20, 1_000_000, 128), (512, 20, 100_000, 64), (1, 100, 1000, 100)):
        table = c.random(vocabulary, width)
        index = torch.randint(0, vocabulary, (bags * length,), device="cuda")
        offsets = torch.arange(0, bags * length, length, device="cuda")
        weights = c.random(bags * length)
        d_y = c.random(bags, width)
        inputs = {"indices": index, "table": table, "offsets": offsets}
        moved = bags * length * (8 + width * c.size) + bags * (8 + width * c.size)
        for mode in ("sum", "mean", "max"):
            c.add(
                f"EmbeddingBag {mode} {vocabulary}x{width}, {bags} bags of {length}",
                lambda i, t, o, m=mode: ops.embedding_bag(i, t, o, mode=m),
                inputs,
                lambda i=index, t=table, o=offsets, m=mode: functional.embedding_bag(i, t, o, mode=m),
                moved,
            )
        c.add(
            f"EmbeddingBag weighted {vocabulary}x{width}, {bags} bags of {length}",
            lambda i, t, o, w: ops.embedding_bag(i, t, o, w, mode="sum"),
            {**inputs, "weights": weights},
            lambda i=index, t=table, o=offsets, w=weights: functional.embedding_bag(
                i, t, o, mode="sum", per_sample_weights=w
            ),
            moved,
        )

        def backward(i: Any, t: Any, o: Any, d: Any) -> Any:
            return ortops.gradients([ops.embedding_bag(i, t, o, mode="sum")], [t], [d])

        bag_of = torch.arange(bags, device="cuda").repeat_interleave(length)
        counts, most = torch.full((bags,), length, device="cuda"), torch.zeros(bags, dtype=torch.int64, device="cuda")
        touched = min(vocabulary, len(torch.unique(index)))
        c.add(
            f"EmbeddingBag gradient {vocabulary}x{width}, {bags} bags of {length}",
            backward,
            {**inputs, "d_y": d_y},
            lambda i=index, b=bag_of, n=counts, m=most, v=vocabulary, d=d_y: aten._embedding_bag_dense_backward(
                d, i, b, n, m, v, False, 0, None, -1
            ),
            bags * length * (8 + width * c.size) + touched * width * c.size,
        )


def scatters(c: Cases) -> None:
    for rows, width, vocabulary in ((65536, 1024, 50_000), (100, 100, 1000)):
        x, updates = c.random(vocabulary, width), c.random(rows, width)
        index = torch.randint(0, vocabulary, (rows, 1), device="cuda")
        whole = index.expand(rows, width).contiguous()
        moved = (2 * vocabulary + rows) * width * c.size
        for deterministic in (False, True):
            c.add(
                f"ScatterAdd{', deterministic' if deterministic else ''} {rows} rows of {width}",
                lambda x, i, u, flag=deterministic: ops.scatter_add(x, i, u, axis=0, deterministic=flag),
                {"x": x, "i": index, "u": updates},
                lambda x=x, i=index, u=updates: torch.index_add(x, 0, i[:, 0], u),
                moved + 8 * rows,
                stock=not deterministic,
            )
        c.add(
            f"ScatterAdd, an index an element, {rows}x{width}",
            lambda x, i, u: ops.scatter_add(x, i, u, axis=0),
            {"x": x, "i": whole, "u": updates},
            lambda x=x, i=whole, u=updates: torch.scatter_add(x, 0, i, u),
            moved + 8 * rows * width,
        )


def pads(c: Cases) -> None:
    for shape, sides in (((32, 64, 224, 224), (3, 3, 3, 3)), ((1, 1, 10, 10), (1, 2, 1, 0))):
        x = c.random(*shape)
        torch_sides = (sides[1], sides[3], sides[0], sides[2])
        wide = functional.pad(x, torch_sides)
        d_y = c.random(*wide.shape)
        for mode in ("constant", "reflect", "replicate", "circular"):
            c.add(
                f"ConstantPad {mode} {shape}",
                lambda x, m=mode, s=sides: ops.constant_pad(x, pads=s, axes=(2, 3), mode=m),
                {"x": x},
                lambda x=x, m=mode, s=torch_sides: functional.pad(x, s, mode=m),
                (x.numel() + wide.numel()) * c.size,
            )

        def backward(x: Any, d: Any, mode: str, sides: Any) -> Any:
            return ortops.gradients([ops.constant_pad(x, pads=sides, axes=(2, 3), mode=mode)], [x], [d])

        moved = 2 * x.numel() * c.size
        c.add(
            f"ConstantPad gradient {shape}",
            lambda x, d, s=sides: backward(x, d, "constant", s),
            {"x": x, "d": d_y},
            lambda d=d_y, s=torch_sides: aten.constant_pad_nd(d, [-side for side in s]).clone(),
            moved,
        )
        c.add(
            f"ConstantPad reflect gradient {shape}",
            lambda x, d, s=sides: backward(x, d, "reflect", s),
            {"x": x, "d": d_y},
            lambda x=x, d=d_y, s=torch_sides: aten.reflection_pad2d_backward(d, x, list(s)),
            moved,
        )


def permutes(c: Cases) -> None:
    for shape, perm in (
        ((32, 64, 128, 128), (0, 2, 3, 1)),
        ((32, 128, 128, 64), (0, 3, 1, 2)),
        ((16, 1024, 32, 64), (0, 2, 1, 3)),
        ((8, 64, 64, 16, 64), (0, 3, 1, 4, 2)),
        ((8192, 8192), (1, 0)),
        ((32, 224, 224, 3), (0, 3, 1, 2)),
        ((32, 3, 224, 224), (0, 2, 3, 1)),
        ((1, 100), (1, 0)),
        ((10, 10, 10), (2, 0, 1)),
    ):
        x = c.random(*shape)
        c.add(
            f"Permute {shape} by {''.join(map(str, perm))}",
            lambda x, p=perm: ops.permute(x, perm=p),
            {"x": x},
            lambda x=x, p=perm: x.permute(p).contiguous(),
            2 * x.numel() * c.size,
            tolerance=0,
        )


def joins(c: Cases) -> None:
    for shapes, axis in (
        (((32, 64, 128, 128), (32, 64, 128, 128)), 1),
        (((65536, 384), (65536, 100)), 1),
        (((4096, 4096),) * 8, 0),
        (((1, 100), (1, 100)), 1),
    ):
        parts = [c.random(*shape) for shape in shapes]
        c.add(
            f"Concatenate {len(parts)} of {shapes[0]} on axis {axis}",
            lambda *xs, a=axis: ops.concatenate(*xs, axis=a),
            {f"x{i}": part for i, part in enumerate(parts)},
            lambda xs=parts, a=axis: torch.cat(xs, a),
            2 * sum(part.numel() for part in parts) * c.size,
            tolerance=0,
        )
    x = c.random(32, 64, 224, 224)
    for what, begins, ends, steps in (
        ("crop 3", (3, 3), (-3, -3), (1, 1)),
        ("every second column", (0, 0), (224, 224), (1, 2)),
        ("every second row", (0, 0), (224, 224), (2, 1)),
    ):
        part = x[:, :, begins[0] : ends[0] : steps[0], begins[1] : ends[1] : steps[1]]
        read = x.numel() if steps[1] == 2 else part.numel()  # a cache line has every second column
        c.add(
            f"StridedSlice {what} (32, 64, 224, 224)",
            lambda x, b=begins, e=ends, s=steps: ops.strided_slice(x, starts=b, ends=e, axes=(2, 3), steps=s),
            {"x": x},
            lambda v=part: v.contiguous(),
            (read + part.numel()) * c.size,
            tolerance=0,
        )
    flat = c.random(4096, 8192)
    c.add(
        "StridedSlice backwards 4096x8192",
        lambda x: ops.strided_slice(x, starts=(-1,), ends=(-(2**62),), axes=(1,), steps=(-1,)),
        {"x": flat},
        lambda x=flat: torch.flip(x, (1,)),
        2 * flat.numel() * c.size,
        tolerance=0,
    )


def broadcasts(c: Cases) -> None:
    for source, target in (((8192,), (8192, 8192)), ((8192, 1), (8192, 8192)), ((1, 100), (100, 100))):
        x = c.random(*source)
        c.add(
            f"BroadcastTo {source} to {target}",
            lambda x, t=target: ops.broadcast_to(x, list(t)),
            {"x": x},
            lambda x=x, t=target: x.expand(t).contiguous(),
            target[0] * target[1] * c.size,
            tolerance=0,
        )
    for shape, like in (
        ((16384, 8192), (8192,)),
        ((16384, 8192), (16384, 1)),
        ((32, 64, 112, 112), (64, 1, 1)),
        ((100, 100), (100,)),
    ):
        x, small = c.random(*shape), c.random(*like)
        c.add(
            f"SumToSize {shape} to {like}",
            ops.sum_to_size,
            {"x": x, "like": small},
            lambda x=x, s=like: x.sum_to_size(s),
            x.numel() * c.size,
            tolerance=1e-2,
        )


def selections(c: Cases) -> None:
    for shape, k in (
        ((4096, 32768), 10),
        ((4096, 32768), 128),
        ((64, 1_000_000), 64),
        ((8192, 1000), 5),
        ((1, 100), 5),
        ((1, 50257), 50),
        ((64, 100_000), 10),
        ((1, 16_000_000), 100),
        ((1_000_000, 64), 4),
        ((256, 8192), 4096),
        ((256, 8192), 8192),
    ):
        x = c.random(*shape)
        c.add(
            f"SelectTopK {k} of {shape[0]}x{shape[1]}",
            lambda x, k=k: ops.select_top_k(x, k=k),
            {"x": x},
            lambda x=x, k=k: torch.topk(x, k),
            x.numel() * c.size + shape[0] * k * (8 + c.size),
            tolerance=0,
        )
    x, d = c.random(4096, 32768), c.random(4096, 128)
    index = torch.topk(x, 128).indices

    def backward(x: Any, d: Any) -> Any:
        values, _ = ops.select_top_k(x, k=128)
        return ortops.gradients([values], [x], [d])

    c.add(
        "SelectTopK 128 of 4096x32768, forward and gradient",
        backward,
        {"x": x, "d": d},
        {
            "torch": lambda x=x, d=d: torch.zeros_like(x).scatter(1, torch.topk(x, 128).indices, d),
            "torch, gradient alone": lambda x=x, d=d, i=index: torch.zeros_like(x).scatter(1, i, d),
        },
        2 * x.numel() * c.size,
        stock=False,
        tolerance=10,  # which of equal values is taken differs
    )


def resizes(c: Cases) -> None:
    for layout in ("NCHW", "NHWC"):
        for mode in ("nearest", "bilinear"):
            for shape, size in (
                ((8, 64, 512, 512), (1024, 1024)),
                ((4, 64, 100, 100), (233, 177)),
                ((1, 1, 10, 10), (20, 20)),
            ):
                x = c.random(*shape)
                format_ = torch.channels_last if layout == "NHWC" else torch.contiguous_format
                x = x.to(memory_format=format_)
                wide = functional.interpolate(x, size, mode=mode)
                d_y = torch.randn_like(wide)
                ours, ours_d = (t.permute(0, 2, 3, 1) if layout == "NHWC" else t for t in (x, d_y))
                options = {"mode": mode, "size": size, "layout": layout}

                def expected(result: torch.Tensor, layout: str = layout) -> torch.Tensor:
                    return result.permute(0, 2, 3, 1) if layout == "NHWC" else result

                moved = (x.numel() + wide.numel()) * c.size
                c.add(
                    f"Upsample2D {mode} {layout} {shape} to {size}",
                    lambda x, o=options: ops.upsample2d(x, **o),
                    {"x": ours},
                    lambda x=x, s=size, m=mode, e=expected: e(functional.interpolate(x, s, mode=m)),
                    moved,
                )

                def backward(x: Any, d: Any, options: Any) -> Any:
                    return ortops.gradients([ops.upsample2d(x, **options)], [x], [d])

                if mode == "nearest":

                    def torch_backward(d: Any = d_y, shape: Any = shape, size: Any = size, e: Any = expected) -> Any:
                        return e(aten.upsample_nearest2d_backward(d, size, shape, None, None))

                else:

                    def torch_backward(d: Any = d_y, shape: Any = shape, size: Any = size, e: Any = expected) -> Any:
                        return e(aten.upsample_bilinear2d_backward(d, size, shape, False, None, None))

                c.add(
                    f"Upsample2D gradient {mode} {layout} {shape} to {size}",
                    lambda x, d, o=options: backward(x, d, o),
                    {"x": ours, "d": ours_d},
                    torch_backward,
                    moved,
                    tolerance=5e-3,
                )


GROUPS = (embedding, bags, scatters, pads, permutes, joins, broadcasts, selections, resizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument(
        "--only", default="", help="groups whose name holds this: " + ", ".join(g.__name__ for g in GROUPS)
    )
    parser.add_argument("--types", default="float16,float32")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    runner, bench = Runner(), Bench("Operators that move and select")
    rate = runner.copy_rate()
    bench.machine["copy rate"] = f"{rate / 1e9:.2f} TB/s"
    print(bench.machine, flush=True)
    failed: list[str] = []
    for group in GROUPS:
        if arguments.only in group.__name__:
            for name in arguments.types.split(","):
                cases = Cases(bench, runner, rate, getattr(torch, name))
                group(cases)
                failed += cases.failed
            bench.write(arguments.out, "movement")
    if failed:
        raise SystemExit(f"{len(failed)} cases failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
