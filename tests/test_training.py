"""Gradients of graphs: every rule for ONNX's own operators against PyTorch in float64, and the walk over the graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ortops
from ortops import OpError, _declare, ops, schemas, testing
from ortops._declare import FLOATS, op
from ortops._standard import onnx as standard

torch = pytest.importorskip("torch")
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])


def one_thread() -> onnxruntime.SessionOptions:
    """For sessions that are many and small: threads that wait cost more than they bring."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return options


def run(graph: ortops.Graph, feeds: dict[str, np.ndarray], provider: str = testing.CPU) -> list[np.ndarray]:
    onnx.checker.check_model(graph.build(), full_check=True)
    session = ortops.InferenceSession(graph, one_thread(), providers=[provider], lower="none")
    taken = {value.name for value in session.get_inputs()}
    return session.run(None, {name: array for name, array in feeds.items() if name in taken})


# --- the rules


@dataclass(frozen=True)
class Rule:
    """An expression in ONNX and in PyTorch, and the shapes of its arguments."""

    name: str
    onnx: Callable[..., Any]
    torch: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    positive: bool = False
    dtype: str = "float64"


def _where(module: Any) -> Callable[..., Any]:
    def where(a: Any, b: Any) -> Any:
        condition = np.arange(12).reshape(4, 3) % 5 < 2
        return module.Where(condition, a, b) if module is standard else torch.where(torch.tensor(condition), a, b)

    return where


UNARY = {
    "Identity": lambda x: x.clone(),
    "Neg": lambda x: -x,
    "Abs": lambda x: x.abs(),
    "Exp": lambda x: x.exp(),
    "Log": lambda x: x.log(),
    "Sqrt": lambda x: x.sqrt(),
    "Reciprocal": lambda x: 1 / x,
    "Relu": lambda x: x.relu(),
    "Sigmoid": lambda x: x.sigmoid(),
    "Tanh": lambda x: x.tanh(),
}
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
}
BROADCASTS = (((4, 3), (4, 3)), ((2, 4, 3), (3,)), ((4, 1), (1, 3)), ((), (2, 3)), ((2, 3), (1, 1, 3)), ((0, 3), (3,)))
PRODUCTS = (
    ((4, 5), (5, 3)),
    ((2, 4, 5), (5, 3)),
    ((4, 5), (2, 5, 3)),
    ((2, 4, 5), (2, 5, 3)),
    ((7, 1, 4, 5), (2, 5, 3)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((5,), (5,)),
    ((5,), (2, 5, 3)),
    ((2, 4, 5), (5,)),
    ((3, 0), (0, 2)),
    ((0, 3), (3, 2)),
    ((2, 0, 3), (3, 2)),
)


def _rules() -> list[Rule]:
    rules = [
        Rule(name, lambda x, name=name: getattr(standard, name)(x), function, [(4, 3)], name in ("Log", "Sqrt"))
        for name, function in UNARY.items()
    ]
    # ONNX Runtime has no kernel of float64.
    rules.append(Rule("Erf", lambda x: standard.Erf(x), lambda x: x.erf(), [(4, 3)], dtype="float32"))
    rules += [
        Rule(f"{name} {list(a)} {list(b)}", function, function, [a, b], name in ("div", "pow"))
        for name, function in BINARY.items()
        for a, b in BROADCASTS
    ]
    rules += [
        Rule(f"x ** {p}", lambda x, p=p: x**p, lambda x, p=p: x**p, [(4, 3)], p != int(p))
        for p in (-1, 0, 0.5, 1, 2, 3)
    ]
    rules += [Rule(f"{list(a)} @ {list(b)}", lambda a, b: a @ b, lambda a, b: a @ b, [a, b]) for a, b in PRODUCTS]
    for trans_a in (0, 1):
        for trans_b in (0, 1):
            for c in ((), (3,), (4, 1), (4, 3), None):
                rules.append(
                    Rule(
                        f"Gemm {trans_a} {trans_b} {c}",
                        lambda a, b, c=None, ta=trans_a, tb=trans_b: standard.Gemm(
                            a, b, c, alpha=0.5, beta=2.0, transA=ta, transB=tb
                        ),
                        lambda a, b, c=0, ta=trans_a, tb=trans_b: (
                            0.5 * (a.T if ta else a) @ (b.T if tb else b) + 2.0 * c
                        ),
                        [(5, 4) if trans_a else (4, 5), (3, 5) if trans_b else (5, 3), *([] if c is None else [c])],
                    )
                )
    rules += [
        Rule("Sum", lambda a, b, c: standard.Sum(a, b, c), lambda a, b, c: a + b + c, [(4, 3), (3,), (4, 1)]),
        Rule("Where", _where(standard), _where(torch), [(3,), (4, 1)]),
        Rule("Softmax", lambda x: standard.Softmax(x, axis=1), lambda x: x.softmax(1), [(4, 3, 2)]),
        Rule("LogSoftmax", lambda x: standard.LogSoftmax(x), lambda x: x.log_softmax(-1), [(4, 3)]),
        Rule("Reshape", lambda x: standard.Reshape(x, [0, -1]), lambda x: x.reshape(2, -1), [(2, 3, 4)]),
        Rule("Reshape of nothing", lambda x: standard.Reshape(x, [5, -1]), lambda x: x.reshape(5, 0), [(2, 0, 4)]),
        Rule("Flatten", lambda x: standard.Flatten(x, axis=2), lambda x: x.reshape(6, 4), [(2, 3, 4)]),
        Rule("Squeeze", lambda x: standard.Squeeze(x, [1]), lambda x: x.squeeze(1), [(2, 1, 4)]),
        Rule("Unsqueeze", lambda x: standard.Unsqueeze(x, [0, 2]), lambda x: x[None, :, None], [(2, 3)]),
        Rule("Transpose", lambda x: standard.Transpose(x), lambda x: x.permute(2, 1, 0), [(2, 3, 4)]),
        Rule(
            "Transpose by perm",
            lambda x: standard.Transpose(x, perm=[1, 2, 0]),
            lambda x: x.permute(1, 2, 0),
            [(2, 3, 4)],
        ),
        Rule("Cast", lambda x: standard.Cast(standard.Cast(x, to=1), to=11), lambda x: x.float().double(), [(4, 3)]),
        Rule("CastLike", lambda x, y: standard.CastLike(x, y), lambda x, y: x + 0 * y, [(4, 3), (1,)]),
        Rule(
            "Concat", lambda *x: standard.Concat(*x, axis=-2), lambda *x: torch.cat(x, 1), [(2, n, 3) for n in (1, 4)]
        ),
        Rule("Concat of one", lambda x: standard.Concat(x, axis=0), lambda x: x.clone(), [(2, 3)]),
        Rule("Concat, one empty", lambda *x: standard.Concat(*x, axis=0), lambda *x: torch.cat(x), [(2, 3), (0, 3)]),
        Rule(
            "Split",
            lambda x: standard.Split(x, [1, 2, 2], axis=1, outputs=3)[1] * 2.0,
            lambda x: x[:, 1:3] * 2.0,
            [(2, 5)],
        ),
        Rule("Expand", lambda x: standard.Expand(x, [2, 4, 3]), lambda x: x.expand(2, 4, 3), [(4, 1)]),
        Rule("Expand two ways", lambda x: standard.Expand(x, [2, 1, 1]), lambda x: x.expand(2, 4, 3), [(4, 3)]),
    ]
    for starts, ends, axes, steps in (
        ([1], [3], [0], [1]),
        ([-1, 0], [-(2**63), 2**63 - 1], [0, 1], [-2, 2]),
        ([2], [2], [1], [1]),
    ):
        rules.append(
            Rule(
                f"Slice {starts} {ends} {axes} {steps}",
                lambda x, s=starts, e=ends, a=axes, t=steps: standard.Slice(x, s, e, a, t),
                lambda x, s=starts, e=ends, a=axes, t=steps: _index(x, s, e, a, t),
                [(5, 4)],
            )
        )
    rows, elements = np.array([[1, -1], [0, 1]]), np.array([[0, 1, 1, -1], [2, 0, 2, 2]])
    rules += [
        Rule(
            "Gather",
            lambda x: standard.Gather(x, rows, axis=1),
            lambda x: x[:, torch.tensor(rows)],
            [(2, 3, 4)],
        ),
        Rule(
            "GatherElements",
            lambda x: standard.GatherElements(x, elements),
            lambda x: x.gather(0, torch.tensor(elements % 3)),
            [(3, 4)],
        ),
    ]
    for name in ("ReduceSum", "ReduceMean"):
        for axes in ([1], [0, -1], None, []):
            for keepdims in (0, 1):
                for noop in (0, 1):
                    rules.append(
                        Rule(
                            f"{name} {axes} keepdims {keepdims} noop {noop}",
                            lambda x, f=name, a=axes, k=keepdims, n=noop: getattr(standard, f)(
                                x,
                                *([] if a is None else [np.array(a, np.int64)]),
                                keepdims=k,
                                noop_with_empty_axes=n,
                            ),
                            lambda x, f=name, a=axes, k=keepdims, n=noop: (
                                x.clone()
                                if n and not a
                                else getattr(torch, f[6:].lower())(x, a or [0, 1, 2], keepdim=bool(k))
                            ),
                            [(2, 3, 4)],
                        )
                    )
    return rules


def _index(x: Any, starts: Any, ends: Any, axes: Any, steps: Any) -> Any:
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = range(x.shape[axis])[slice(start, end, step)]
        x = x.index_select(axis, torch.tensor(list(at), dtype=torch.int64))
    return x


@pytest.mark.parametrize("symbolic", [False, True], ids=["known sizes", "symbolic sizes"])
@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.name) for rule in _rules()])
def test_rule(rule: Rule, symbolic: bool) -> None:
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.standard_normal(shape), rule.dtype) for shape in rule.shapes]
    if rule.positive:
        arrays = [np.asarray(np.abs(array) + 0.5) for array in arrays]
    g = ortops.Graph()
    values = [
        g.input(f"x{i}", rule.dtype, [f"n{i}_{axis}" for axis in range(a.ndim)] if symbolic else a.shape)
        for i, a in enumerate(arrays)
    ]
    y = rule.onnx(*values)
    gradients = ortops.gradients([y], values, [g.input("d", rule.dtype, y.shape)])
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    expected = rule.torch(*tensors)
    d = rng.standard_normal(expected.shape).astype(rule.dtype)
    expected.backward(torch.tensor(d))
    for i, (gradient, tensor) in enumerate(zip(gradients, tensors, strict=True)):
        if gradient is None:
            assert not tensor.grad.any()
        else:
            g.output(gradient, f"d_x{i}")
    results = iter(run(g, {f"x{i}": array for i, array in enumerate(arrays)} | {"d": d}))
    for gradient, tensor, array in zip(gradients, tensors, arrays, strict=True):
        if gradient is not None:
            got = next(results)
            assert got.shape == array.shape
            narrow = rule.dtype == "float32" or rule.name == "Cast"  # which passes through float32
            np.testing.assert_allclose(got, tensor.grad.numpy(), rtol=1e-6 if narrow else 1e-11, atol=1e-11)


def test_every_rule_is_tested() -> None:
    from ortops.training.standard import RULES

    g = ortops.Graph()
    for rule in _rules():
        rule.onnx(*[g.input(f"{rule.name}{i}", rule.dtype, shape) for i, shape in enumerate(rule.shapes)])
    assert set(RULES) <= set(op_types(g))


def test_where_the_derivative_jumps_it_is_pytorchs() -> None:
    special = np.array([-1.0, -0.0, 0.0, 2.0, np.nan, np.inf, -np.inf])
    bases, exponents = np.array([0.0, 0.0, 0.0, 2.0, 3.0, -2.0]), np.array([0.0, 1.0, 2.0, 0.0, -1.0, 2.0])
    for ours, theirs, arrays in (
        (standard.Relu, torch.relu, [special]),
        (standard.Abs, torch.abs, [special[:4]]),
        (lambda x: x**2, lambda x: x**2, [special]),
        (lambda x: x**3, lambda x: x**3, [bases]),
        (lambda x, p: x**p, lambda x, p: x ** p.detach(), [bases, exponents]),
        (lambda x, p: x**p, lambda x, p: x**p, [np.abs(bases), exponents]),
    ):
        g = ortops.Graph()
        values = [g.input(f"x{i}", "float64", a.shape) for i, a in enumerate(arrays)]
        tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
        theirs(*tensors).sum().backward()
        wanted = [(v, t) for v, t in zip(values, tensors, strict=True) if t.grad is not None]
        for i, gradient in enumerate(ortops.gradients(ours(*values), [v for v, _ in wanted])):
            g.output(gradient, f"d{i}")
        for got, (_, tensor) in zip(run(g, {f"x{i}": a for i, a in enumerate(arrays)}), wanted, strict=True):
            np.testing.assert_allclose(got, tensor.grad.numpy(), rtol=1e-12)


@every_provider
def test_means_of_many_in_float16(provider: str) -> None:
    """Neither the number of elements nor its reciprocal is a float16 of use."""
    g = ortops.Graph()
    x = g.input("x", "float16", [None, None])
    (d_x,) = ortops.gradients(g.onnx.ReduceMean(x, keepdims=0) * np.float16(30000), x)
    g.output(d_x, "d_x")
    (got,) = run(g, {"x": np.zeros((300, 400), np.float16)}, provider)
    np.testing.assert_array_equal(got, np.full((300, 400), 0.25, np.float16))


# --- the walk


X = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)


def op_types(g: ortops.Graph) -> Counter[str]:
    """Of all nodes that were appended; what nobody reads is not built."""
    return Counter(node.op_type for node in g._graph)


@every_provider
def test_a_value_that_is_used_more_than_once(provider: str) -> None:
    g = ortops.Graph()
    x = g.input("x", "float32", [4, 3])
    h = g.onnx.Tanh(x)
    a, b = h * 2.0, g.onnx.Exp(h)  # a diamond
    y = a * b + h * h + x
    (d_x,) = ortops.gradients(y, x)
    g.output(d_x, "d_x")
    tensor = torch.tensor(X, requires_grad=True)
    h = tensor.tanh()
    (h * 2.0 * h.exp() + h * h + tensor).sum().backward()
    np.testing.assert_allclose(run(g, {"x": X}, provider)[0], tensor.grad.numpy(), rtol=2e-6, atol=2e-6)


def test_an_input_that_nothing_depends_on_has_none() -> None:
    g = ortops.Graph()
    x, unused, w = g.input("x", "float32", [4, 3]), g.input("unused", "float32", [2]), g.input("w", "float32", [3])
    y = x * w
    g.onnx.Exp(unused)
    d_unused, d_w, again = ortops.gradients([y], [unused, w, w])
    assert d_unused is None
    assert d_w is not None and again is not None and again.name == d_w.name


def test_outputs_and_results_on_the_way_are_inputs_too() -> None:
    g = ortops.Graph()
    x = g.input("x", "float32", [4, 3])
    h = x * 2.0
    y = h * h
    d_y, d_h, d_x = ortops.gradients([y], [y, h, x])
    for i, value in enumerate((d_y, d_h, d_x)):
        g.output(value, f"d{i}")
    for got, want in zip(run(g, {"x": X}), (np.ones_like(X), 4 * X, 8 * X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_several_outputs() -> None:
    g = ortops.Graph()
    x = g.input("x", "float32", ["n", 3])
    y, z = x * x, g.onnx.ReduceSum(x, keepdims=0)
    d_y = g.input("d_y", "float32", ["n", 3])
    (weighted,) = ortops.gradients([y, z], [x], [d_y, None])
    (twice,) = ortops.gradients([z, z], x)
    g.output(weighted, "weighted")
    g.output(twice, "twice")
    got, two = run(g, {"x": X, "d_y": 3 * X})
    np.testing.assert_allclose(got, 6 * X * X + 1, rtol=1e-6)
    np.testing.assert_array_equal(two, np.full_like(X, 2))


def test_integers_let_no_gradient_pass() -> None:
    g = ortops.Graph()
    x = g.input("x", "float32", ["n", 3])
    count = g.onnx.Cast(g.onnx.Size(x), to=1)
    best = g.onnx.ArgMax(x, axis=1, keepdims=1)  # has no gradient, and needs none
    y = x / count * g.onnx.Cast(best + 1, to=1)
    (d_x,) = ortops.gradients(y, x)
    g.output(d_x, "d_x")
    np.testing.assert_allclose(
        run(g, {"x": X})[0], np.broadcast_to((X.argmax(1, keepdims=True) + 1) / X.size, X.shape), rtol=1e-6
    )
    only = g.onnx.Cast(best, to=1)
    assert ortops.gradients(only, x) == [None]


def test_gradients_of_gradients() -> None:
    g = ortops.Graph()
    x = g.input("x", "float64", [5])
    y = x**3 + g.onnx.Exp(x)
    (first,) = ortops.gradients(y, x)
    (second,) = ortops.gradients(first, x)
    g.output(second, "second")
    array = np.linspace(-1, 1, 5)
    np.testing.assert_allclose(run(g, {"x": array})[0], 6 * array + np.exp(array), rtol=1e-12)


def test_gradients_that_nobody_asked_for_are_not_computed() -> None:
    g = ortops.Graph()
    x, w = g.input("x", "float32", [4, 3]), g.input("w", "float32", [3, 5])
    y = g.onnx.Tanh(x) @ w
    before = op_types(g)
    (d_w,) = ortops.gradients([y], [w], [g.input("d", "float32", [4, 5])])
    g.output(d_w, "d_w")
    added = op_types(g) - before
    assert added == {"Flatten": 2, "Gemm": 1}, added


def test_sums_over_axes_that_were_not_repeated_are_left_out() -> None:
    g = ortops.Graph()
    x, y = g.input("x", "float32", ["n", 3]), g.input("y", "float32", ["n", 3])
    g.output(ortops.gradients(x * y, x)[0], "d_x")
    assert "SumToSize" not in op_types(g)


def test_it_runs_without_the_library() -> None:
    g = ortops.Graph()
    x, b = g.input("x", "float32", ["n", 3]), g.input("b", "float32", [3])
    for value in ortops.gradients(g.onnx.ReduceMean(g.onnx.Tanh(x + b)), [x, b]):
        g.output(value)
    feeds = {"x": X, "b": X[0]}
    model = g.build()
    for stock in (model, ortops.lower(model)):
        session = onnxruntime.InferenceSession(stock.SerializeToString(), one_thread(), providers=[testing.CPU])
        for got, want in zip(session.run(None, feeds), run(g, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_the_readmes_example() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    (example,) = (
        code for code in re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE) if "gradients" in code
    )
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["loss_now"] < 1e-10
    np.testing.assert_allclose(names["feeds"]["w"], 1, atol=1e-5)


@every_provider
def test_float16(provider: str) -> None:
    g = ortops.Graph()
    x, w, b = g.input("x", "float16", ["n", 3]), g.input("w", "float16", [3, 5]), g.input("b", "float16", [5])
    y = g.onnx.Softmax(g.onnx.Sigmoid(x @ w + b) ** 2)
    d = g.input("d", "float16", ["n", 5])
    for value in ortops.gradients([y], [x, w, b], [d]):
        assert value is not None and value.dtype == "float16"
        g.output(value)
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(shape).astype(np.float16) for shape in ((4, 3), (3, 5), (5,), (4, 5))]
    tensors = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in arrays]
    ((tensors[0] @ tensors[1] + tensors[2]).sigmoid() ** 2).softmax(-1).backward(tensors[3].detach())
    results = run(g, dict(zip(["x", "w", "b", "d"], arrays, strict=True)), provider)
    for got, tensor in zip(results, tensors, strict=False):
        np.testing.assert_allclose(got, tensor.grad.numpy(), rtol=1e-2, atol=2e-3)  # some 10 roundings to 11 bits


# --- operators of ours


@op("x: T[... N] -> y: T[... N], first: T?[...], total: T?[...]", name="TestTotal", T=("float64",), register=False)
def total(x):
    """Multiplies each row by its sum."""
    return x * x.sum(axis=-1, keepdims=True), x[..., 0], x.sum(axis=-1)


@total.decomposition
def _(x):
    sums = standard.ReduceSum(x, [-1], keepdims=0)
    return x * standard.Unsqueeze(sums, [-1]), standard.Gather(x, 0, axis=-1), sums


@total.gradient
def _(x, total, d_y):
    return d_y * standard.Unsqueeze(total, [-1]) + standard.ReduceSum(d_y * x, [-1])


@op("factor: T[], *xs: T[*X] -> y: T[*broadcast(*X)]", name="TestSum", T=("float64",), register=False)
def scaled_sum(factor, *xs):
    """A factor that has no gradient, times a sum whose second term has none."""
    return factor * sum(xs)


@scaled_sum.decomposition
def _(factor, *xs):
    return factor * standard.Sum(*xs)


@scaled_sum.gradient
def _(factor, xs, d_y):
    d = factor * d_y
    return {"xs": [None if i == 1 else ops.sum_to_size(d, x) for i, x in enumerate(xs)]}


@op("x: T[...] -> y: T[...]", name="TestNoGradient", T=FLOATS, register=False)
def no_gradient(x):
    """An operator that has no gradient."""
    return x


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    of_this_file = (total, scaled_sum, no_gradient)
    for declaration in of_this_file:
        monkeypatch.setitem(_declare._registry, declaration.name, declaration)
    schemas.register()
    yield
    for declaration in of_this_file:
        for name in schemas.names(declaration):
            onnx.defs.deregister_schema(name, schemas.VERSION, schemas.DOMAIN)


def run_lowered(graph: ortops.Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    model = ortops.lower(graph.build())
    return onnxruntime.InferenceSession(model.SerializeToString(), one_thread(), providers=[testing.CPU]).run(
        None, feeds
    )


@pytest.mark.parametrize("given", [["y"], ["y", "first"], ["y", "total"], ["y", "first", "total"]])
def test_an_output_that_a_gradient_reads_is_added_to_its_node(declared: None, given: list[str]) -> None:
    g = ortops.Graph()
    x = g.input("x", "float64", ["n", 3])
    y = total(x, outputs=given)
    g.output(ortops.gradients(y if given == ["y"] else y[0], x)[0], "d_x")
    (node,) = (node for node in g.build(functions=False).graph.node if node.op_type == "TestTotal")
    assert len(node.output) == 3 and node.output[2] and bool(node.output[1]) == ("first" in given)
    tensor = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    (tensor * tensor.sum(-1, keepdim=True)).sum().backward()
    np.testing.assert_allclose(run_lowered(g, {"x": X.astype(np.float64)})[0], tensor.grad.numpy(), rtol=1e-12)


def test_any_number_of_inputs(declared: None) -> None:
    g = ortops.Graph()
    factor, *xs = (g.input(f"x{i}", "float64", shape) for i, shape in enumerate([(), (4, 3), (3,), (4, 1)]))
    d_factor, *d_xs = ortops.gradients(scaled_sum(factor, *xs), [factor, *xs])
    assert (d_factor, d_xs[1]) == (None, None)
    g.output(d_xs[0], "first")
    g.output(d_xs[2], "last")
    feeds = {"x0": np.array(2.0), "x1": np.zeros((4, 3)), "x2": np.zeros(3), "x3": np.zeros((4, 1))}
    first, last = run_lowered(g, feeds)
    np.testing.assert_array_equal(first, np.full((4, 3), 2.0))
    np.testing.assert_array_equal(last, np.full((4, 1), 6.0))


# --- what is refused


def test_an_operator_without_a_gradient_is_named(declared: None) -> None:
    g = ortops.Graph()
    x = g.input("x", "float32", [4, 3])
    with pytest.raises(OpError, match=r"TestNoGradient \(node no_gradient\): it has no gradient"):
        ortops.gradients(no_gradient(x), x)
    with pytest.raises(OpError, match=r"Floor \(node Floor\): no gradient is known for onnx.Floor; known are Abs,"):
        ortops.gradients(g.onnx.Floor(x), x)
    with pytest.raises(OpError, match=r"Mystery \(node Mystery\): no gradient is known for com.example.Mystery"):
        ortops.gradients(g.op("Mystery", x, domain="com.example", types=["float32"]), x)
    assert ortops.gradients(g.onnx.Floor(x) + g.input("b", "float32", [3]), g.input("c", "float32", [1])) == [None]


def test_bad_calls() -> None:
    g, other = ortops.Graph("one"), ortops.Graph("other")
    x, i = g.input("x", "float32", ["n", 3]), g.input("i", "int64", [3])
    y = x * 2.0
    for call, text in (
        (lambda: ortops.gradients([], x), "expected at least one output"),
        (lambda: ortops.gradients(y, other.input("x", "float32")), "belongs to another graph, other"),
        (lambda: ortops.gradients(y, i), r"inputs: expected values of a floating type, got <i: int64\[3\]>"),
        (lambda: ortops.gradients(i, x), r"outputs: expected values of a floating type, got <i: int64\[3\]>"),
        (lambda: ortops.gradients([y], x, []), "d_outputs: expected 1 of them, as there are outputs, got 0"),
        (lambda: ortops.gradients([y], x, [i]), r"d_outputs: expected the type and shape of .*, got <i: int64\[3\]>"),
        (lambda: ortops.gradients([y], x, [g.constant(np.ones((2, 4), np.float32))]), "d_outputs: expected the type"),
        (lambda: ortops.gradients([y], x, [other.input("d", "float32")]), "belongs to another graph, other"),
        (
            lambda: ortops.gradients(g.onnx.Slice(x, i, i), x),
            r"Slice \(node Slice\): starts: its gradient needs a constant, got <i",
        ),
        (
            lambda: ortops.gradients(g.input("u", "float32") @ x, x),
            r"MatMul \(node MatMul\): its gradient needs the rank of u; give its input a shape",
        ),
    ):
        with pytest.raises(OpError, match=text):
            call()
