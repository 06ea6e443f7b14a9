"""The declaration language on the hard operators, before sixty depend on it: the shape line must stay readable.

Convolution in both layouts, pooling, a reduction, an elementwise operator of any number of inputs: declared here as an author
would, with their references; checked against PyTorch, and Python's shapes against those of the generated C++.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from ortops import _codegen, _shapes
from ortops._declare import FLOATS, Op, OpError, op

Array = np.ndarray


def windows(x: Array, kernel: tuple[int, int], strides: Any, pads: Any, dilations: Any, fill: float) -> Array:
    """[N C H W] -> [N C H' W' kh kw]"""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=fill)
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, spans, axis=(2, 3))
    return view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]


@op(
    {
        "NCHW": "x: T[N C H W], weight: T[O C//group kh kw], bias: T?[O] -> y: T[N O conv(H, kh, 0) conv(W, kw, 1)]",
        "NHWC": "x: T[N H W C], weight: T[O kh kw C//group], bias: T?[O] -> y: T[N conv(H, kh, 0) conv(W, kw, 1) O]",
    },
    name="TrialConv2D",
    layout="layout",
    register=False,
    T=FLOATS,
)
def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    strides: tuple[int, ...] = (1, 1),
    pads: tuple[int, ...] = (0, 0, 0, 0),
    dilations: tuple[int, ...] = (1, 1),
    group: int = 1,
    layout: Literal["NCHW", "NHWC"] = "NCHW",
) -> Array:
    """Convolves."""
    if layout == "NHWC":
        x, weight = np.moveaxis(x, 3, 1), np.moveaxis(weight, 3, 1)
    parts = windows(x, weight.shape[2:], strides, pads, dilations, 0)
    n, c, h, w = parts.shape[:4]
    parts = parts.reshape(n, group, c // group, h, w, *weight.shape[2:])
    split = weight.reshape(group, -1, *weight.shape[1:])
    y = np.einsum("ngchwij,gocij->ngohw", parts, split).reshape(n, -1, h, w)
    y = y if bias is None else y + bias[:, None, None]
    return np.moveaxis(y, 1, 3) if layout == "NHWC" else y


@op("x: T[N C H W] -> y: T[N C pool(H, 0) pool(W, 1)]", name="TrialMaxPool2D", register=False, T=FLOATS)
def max_pool2d(
    x: Array,
    *,
    kernel_shape: tuple[int, ...],
    strides: tuple[int, ...] = (1, 1),
    pads: tuple[int, ...] = (0, 0, 0, 0),
    dilations: tuple[int, ...] = (1, 1),
    ceil_mode: bool = False,
) -> Array:
    """Takes the maximum of each window."""
    given = {
        "kernel_shape": kernel_shape,
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "ceil_mode": ceil_mode,
    }
    height, width = (_shapes.pool(size, axis, **given) for axis, size in enumerate(x.shape[2:]))
    if ceil_mode:
        pads = (*pads[:2], pads[2] + strides[0] - 1, pads[3] + strides[1] - 1)
    return windows(x, kernel_shape, strides, pads, dilations, -np.inf).max(axis=(-1, -2))[:, :, :height, :width]


@op("x: T[*X] -> y: T[*reduce(*X)]", name="TrialReduce", register=False, T=FLOATS)
def reduce_sum(x: Array, *, axes: tuple[int, ...] = (), keepdims: bool = True) -> Array:
    """Adds up along axes."""
    return x.sum(axis=axes or None, keepdims=keepdims)


@op("*xs: T[*X] -> y: T[*broadcast(*X)]", name="TrialAddAll", register=False, T=FLOATS)
def add_all(*xs: Array) -> Array:
    """Adds any number of tensors."""
    return sum(xs)


TRIAL = (conv2d, max_pool2d, reduce_sum, add_all)
rng = np.random.default_rng(0)


def random_calls(count: int) -> list[tuple[Op, list[tuple[int, ...]], dict[str, Any]]]:
    """Calls of each operator, with shapes that fit."""

    def some(low: int, high: int, n: int = 1) -> tuple[int, ...]:
        return tuple(int(v) for v in rng.integers(low, high + 1, n))

    calls: list[tuple[Op, list[tuple[int, ...]], dict[str, Any]]] = []
    for _ in range(count):
        (group,), kernel, strides, pads, dilations = (
            some(1, 3),
            some(1, 3, 2),
            some(1, 3, 2),
            some(0, 1, 4),
            some(1, 2, 2),
        )
        n, c, o, h, w = *some(1, 2), group * some(1, 2)[0], group * some(1, 2)[0], *some(6, 11, 2)
        attributes = {"strides": strides, "pads": pads, "dilations": dilations}
        calls.append((conv2d, [(n, c, h, w), (o, c // group, *kernel), (o,)], attributes | {"group": group}))
        nhwc = attributes | {"group": group, "layout": "NHWC"}
        calls.append((conv2d, [(n, h, w, c), (o, *kernel, c // group), (o,)], nhwc))
        pooling = {"kernel_shape": tuple(k + 1 for k in kernel), "ceil_mode": bool(some(0, 1)[0])}
        calls.append((max_pool2d, [(n, c, h, w)], attributes | pooling))
        shape = some(1, 4, some(1, 5)[0])
        axes = tuple(int(a) for a in rng.permutation(len(shape))[: some(0, len(shape))[0]])
        signed = tuple(a - len(shape) * some(0, 1)[0] for a in axes)
        calls.append((reduce_sum, [shape], {"axes": signed, "keepdims": bool(some(0, 1)[0])}))
        full = some(1, 4, some(0, 4)[0])
        parts = [
            tuple(1 if rng.random() < 0.4 else d for d in full)[some(0, len(full))[0] :] for _ in range(some(1, 4)[0])
        ]
        calls.append((add_all, parts, {}))
    return calls


def python_shape(op: Op, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> tuple[int, ...]:
    given = op.check_attributes(attributes)
    return op.output_shapes(op.bind_shapes(shapes, given), given)[0]


def test_declared_shapes_are_those_of_the_references() -> None:
    for op_, shapes, attributes in random_calls(60):
        arrays = [rng.standard_normal(shape) for shape in shapes]
        assert op_.reference(*arrays, **attributes)[0].shape == python_shape(op_, shapes, attributes), (
            op_,
            shapes,
            attributes,
        )


def test_references_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    for op_, shapes, attributes in random_calls(20):
        arrays = [rng.standard_normal(shape) for shape in shapes]
        tensors = [torch.from_numpy(a) for a in arrays]
        got = op_.reference(*arrays, **attributes)[0]
        a = op_.check_attributes(attributes)
        if op_ is conv2d and a["layout"] == "NCHW":
            pads = (a["pads"][1], a["pads"][3], a["pads"][0], a["pads"][2])
            x = torch.nn.functional.pad(tensors[0], pads)
            expected = torch.nn.functional.conv2d(x, *tensors[1:], a["strides"], 0, a["dilations"], a["group"])
            np.testing.assert_allclose(got, expected.numpy(), atol=1e-9)
        elif op_ is max_pool2d:
            small = all(p * 2 <= k for p, k in zip(a["pads"], a["kernel_shape"], strict=False))
            if small and a["pads"][:2] == a["pads"][2:]:  # PyTorch has no other
                options = (a["kernel_shape"], a["strides"], a["pads"][:2], a["dilations"], a["ceil_mode"])
                np.testing.assert_allclose(got, torch.nn.functional.max_pool2d(tensors[0], *options).numpy())


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_cpp_shapes_agree_with_python(tmp_path: Path) -> None:
    """Compiles the generated header of the trial operators, and asks it for the shapes of random calls, good and bad."""
    calls = random_calls(40)
    calls += [(op_, [tuple(int(d) for d in rng.permutation(s)) for s in shapes], a) for op_, shapes, a in calls]
    (tmp_path / "gen").mkdir()
    (tmp_path / "gen" / "trial.h").write_text(_codegen.family_header("trial", TRIAL))
    body = []
    for op_, shapes, attributes in calls:
        fields = []
        for name, value in op_.check_attributes(attributes).items():
            kind = next(a for a in op_.attributes if a.name == name)
            if kind.kind == "str":
                value = f"TrialConv2DAttributes::Layout::{value}"
            elif kind.kind == "ints":
                value = f"{{{len(value)}, {{{', '.join(map(str, value))}}}}}"
            fields.append(f"a.{name} = {str(value).lower() if isinstance(value, bool) else value};")
        lists = ", ".join(f"{{{len(shape)}, {{{', '.join(map(str, shape))}}}}}" for shape in shapes)
        body.append(
            f"{{ {op_.name}Attributes a; {' '.join(fields)} {op_.name}Sizes<int64_t> s;\n"
            f"  report({{{lists}}}, [&](auto& b) {{ {op_.__name__}_shapes(a, b, s); }}); }}"
        )
    main = """
#include <cstdio>
#include <functional>
#include "gen/trial.h"
using namespace ortops;
void report(std::vector<Shape> shapes, std::function<void(Binder<int64_t>&)> infer) {
  std::vector<const Shape*> inputs;
  for (const Shape& shape : shapes) inputs.push_back(&shape);
  Shape output;
  Binder<int64_t> b(inputs.data(), static_cast<int>(inputs.size()), &output);
  try { infer(b); std::puts(text(output).c_str()); } catch (const Error&) { std::puts("error"); }
}
"""
    parts = [f"void part{i}() {{\n{chunk}\n}}\n" for i, chunk in enumerate(body)]
    calls_cpp = "int main() {\n" + "".join(f"part{i}();\n" for i in range(len(body))) + "}\n"
    (tmp_path / "main.cc").write_text(main + "".join(parts) + calls_cpp)
    includes = [f"-I{_codegen.CUDA}", f"-I{tmp_path}"]
    flags = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-Wno-restrict"]
    subprocess.run(["g++", *flags, *includes, str(tmp_path / "main.cc"), "-o", str(tmp_path / "main")], check=True)
    lines = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(calls)
    errors = 0
    for line, (op_, shapes, attributes) in zip(lines, calls, strict=True):
        try:
            expected = str(list(python_shape(op_, shapes, attributes)))
        except OpError:
            expected = "error"
            errors += 1
        assert line == expected, (op_, shapes, attributes)
    assert errors > 10


def test_a_shape_line_says_where_it_is_wrong() -> None:
    for line, what in (
        ("x: T[N -> y: T[N]", "expected"),
        ("x: T[... *D] -> y: T[...]", "told apart"),
        ("x T[N] -> y: T[N]", "expected"),
    ):
        with pytest.raises(ValueError, match=what):
            op(line, name="Wrong", register=False, T=FLOATS)(lambda x: x)


def test_variadic_inputs_come_last_and_alone() -> None:
    with pytest.raises(TypeError, match="variadic"):
        op("*xs: T[N] -> y: T[N]", name="Wrong", register=False, T=FLOATS)(lambda *xs: xs)
    assert add_all.inputs[0].variadic
