"""What is particular to Elementwise: its language, and each of its functions."""

from __future__ import annotations

import itertools

import ml_dtypes  # noqa: F401
import numpy as np
import onnx
import pytest

import ortops
from ortops import OpError, _expressions, ops, schemas, testing
from ortops._declare import ELEMENT_TYPES, element_type, find
from ortops._expressions import BY_NAME, CALLABLE, FLOAT_TYPES, INT_TYPES, TYPES, parse
from ortops.training import gradients

ELEMENTWISE = find("Elementwise")
assert ELEMENTWISE is not None
every_provider = pytest.mark.parametrize("provider", [testing.CPU, pytest.param(testing.CUDA, marks=pytest.mark.gpu)])


def sample(expression: str, *xs: np.ndarray) -> testing.Sample:
    type_ = parse(expression, len(xs)).result_type([str(x.dtype) for x in xs])
    return testing.Sample(ELEMENTWISE, "", {"R": type_}, xs, {"expression": expression}, ("y",))


def run(expression: str, *xs: np.ndarray, provider: str = testing.CPU) -> np.ndarray:
    return testing.run(sample(expression, *xs), provider)[0]


def check(expression: str, *xs: np.ndarray, provider: str = testing.CPU, body: bool = False) -> None:
    """The kernel against the reference; and the function body, which rounds in other places."""
    tested = sample(expression, *xs)
    testing.compare(tested, testing.run(tested, provider))
    if body:
        testing.compare(tested, testing.run_body(tested), scale=8)


# --- the language ---------------------------------------------------------------------------------------------------

WRONG = [
    ("silu(x0", 7, "expected , or ), got the end"),
    ("(x0 + 1", 7, "expected ), got the end"),
    ("x0 +* x0", 4, "expected a value, got *"),
    ("foo(x0)", 0, "unknown function foo"),
    ("x0 + pi", 5, "unknown name pi"),
    ("clip(x0, 0)", 0, "clip takes 3 arguments, got 2"),
    ("exp()", 0, "exp takes 1 argument, got 0"),
    ("elu(x0, 1, 2)", 0, "elu takes 1 or 2 arguments, got 3"),
    ("float16(x0, x0)", 0, "float16 takes 1 argument, got 2"),
    ("0 < x0 < 1", 7, "comparisons do not chain: write (a < b) & (b < c)"),
    ("x0 + x1", 5, "there is no input x1; there is x0"),
    ("x00", 0, "there is no input x00; there is x0"),
    ("1 + 2", 5, "input x0 is not used"),
    ("x0 @ 2", 3, "unexpected character '@'"),
    ("x0 x0", 3, "expected an operator or the end, got x0"),
    ("x0 = 1; x0", 0, "x0 has a meaning already"),
    ("exp = 1; x0", 0, "exp has a meaning already"),
    ("t = x0; t = x0; t", 8, "t has a meaning already"),
    ("t = x0", 6, "expected ;, got the end"),
    ("t = x0 & 1; u = t; x0", 12, "u is not used"),
    ("u = x0 | 1; t = x0 & 1; t + u", 7, "| is for booleans and integers, got float32"),
    ("x0 & 1", 3, "& is for booleans and integers, got float32"),
    ("!x0", 0, "! is for booleans and integers, got float32"),
    ("x0 + 9999999999999999999", 5, "an integer of more than 63 bits; write it with a point to have a float"),
    ("exp(x0,)", 7, "expected a value, got )"),
    ("exp x0", 4, "expected (, got x0"),
    ("exp", 3, "expected (, got the end"),
    ("", 0, "expected a value, got the end"),
    ("x0 +\n 1 $", 8, "unexpected character '$'"),
    ("(" * 100 + "x0" + ")" * 100, 64, "nested more than 64 deep"),
    ("-" * 100 + "x0", 64, "nested more than 64 deep"),
    ("x0" + "+x0" * 2000, 6000, "expected at most 4000 names, numbers and symbols"),
]


def model(
    expression: str, inputs: int = 1, types: tuple[int, ...] = (1,), op_type: str = "ElementwiseFloat32"
) -> bytes:
    """A model that nobody has checked."""
    infos = [onnx.helper.make_tensor_value_info(f"x{i}", types[i % len(types)], ["n"]) for i in range(inputs)]
    node = onnx.helper.make_node(
        op_type, [f"x{i}" for i in range(inputs)], ["y"], domain="ortops", expression=expression
    )
    output = onnx.helper.make_tensor_value_info("y", 1, ["n"])
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("ortops", 1)]
    graph = onnx.helper.make_graph([node], "g", infos, [output])
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


@pytest.mark.parametrize(("expression", "at", "what"), WRONG, ids=[repr(w[0][:20]) for w in WRONG])
def test_a_wrong_expression_points_at_the_character(expression: str, at: int, what: str) -> None:
    """In Python where the graph is built, in C++ where a session is made."""
    shown, place = expression.replace("\n", " "), at
    if len(shown) > 120:
        begin = max(0, at - 60)
        shown, place = "..." * (begin > 0) + shown[begin : begin + 120] + "..." * (begin + 120 < len(shown)), at - begin
        place += 3 * (begin > 0)
    text = f"attribute expression: {what}\n  {shown}\n  {' ' * place}^"
    graph = ortops.Graph()
    with pytest.raises(OpError) as error:
        ops.elementwise(graph.input("x", "float32", ["n"]), expression=expression)
    assert str(error.value) == f"Elementwise: {text}"
    with pytest.raises(Exception, match="ElementwiseFloat32") as thrown:
        ortops.InferenceSession(model(expression), providers=[testing.CPU], lower="none")
    assert text in str(thrown.value)


def test_missing_and_superfluous_inputs() -> None:
    with pytest.raises(OpError, match="input x1 is not used"):
        ops.elementwise(np.ones(3), np.ones(3), expression="x0")
    with pytest.raises(Exception, match="input x1 is not used"):
        ortops.InferenceSession(model("x0", 2), providers=[testing.CPU], lower="none")
    with pytest.raises(Exception, match="there are x0 to x1"):
        ortops.InferenceSession(model("x0 + x1 + x2", 2), providers=[testing.CPU], lower="none")
    with pytest.raises(OpError, match="expected at most 32 inputs"):
        ops.elementwise(*[np.ones(1)] * 33, expression="+".join(f"x{i}" for i in range(33)))


def test_an_operator_of_another_result_type_is_refused() -> None:
    session = ortops.InferenceSession(model("x0 > 1"), providers=[testing.CPU], lower="none")
    with pytest.raises(Exception, match="expected one of type float32, as the operator's name says, got bool: x0 > 1"):
        session.run(None, {"x0": np.ones(3, np.float32)})


@pytest.mark.parametrize(
    ("expression", "meaning"),
    [
        ("-x0 ** 2", "-(x0 ** 2)"),
        ("2 ** -x0", "2 ** (-x0)"),
        ("2 ** x0 ** 2", "2 ** (x0 ** 2)"),
        ("x0 - 1 - 2", "(x0 - 1) - 2"),
        ("x0 / 2 * 3", "(x0 / 2) * 3"),
        ("x0 > 1 == true", None),
        ("x0 + 1 > 2", "(x0 + 1) > 2"),
        ("bool(x0) & x0 > 1", None),
        ("(x0 > 1) | (x0 < 0) & (x0 < -1)", "(x0 > 1) | ((x0 < 0) & (x0 < -1))"),
        ("!(x0 > 1) ^ (x0 < 0)", "(!(x0 > 1)) ^ (x0 < 0)"),
        (" x0%2//1 ", "(x0 % 2) // 1"),
        ("+x0 - -1", "x0 + 1"),
        ("a = x0 * 2; b = a + 1; a * b", "(x0 * 2) * (x0 * 2 + 1)"),
        ("1e-3 * x0 + .5 + 1.", "0.001 * x0 + 0.5 + 1.0"),
        ("leaky_relu(x0)", "leaky_relu(x0, 0.01)"),
    ],
)
def test_precedence(expression: str, meaning: str | None) -> None:
    x = np.linspace(-3, 3, 13).astype(np.float32)
    if meaning is None:
        with pytest.raises(OpError):
            ops.elementwise(x, expression=expression)
        return
    expected = ops.elementwise(x, expression=meaning)
    np.testing.assert_array_equal(ops.elementwise(x, expression=expression), expected)
    check(expression, x, body=True)


PROMOTIONS = {
    "x0 + x1": [
        ("float16", "float16", "float16"),
        ("float16", "bfloat16", "float32"),
        ("float16", "float32", "float32"),
        ("float32", "float64", "float64"),
        ("float16", "int64", "float16"),
        ("bool", "int8", "int8"),
        ("bool", "bool", "int64"),
        ("bool", "bfloat16", "bfloat16"),
        ("uint8", "int8", "int16"),
        ("uint32", "int32", "int64"),
        ("uint64", "int8", "int64"),
        ("int32", "int64", "int64"),
    ],
    "x0 / x1": [("int32", "int32", "float32"), ("bool", "int8", "float32"), ("float16", "int8", "float16")],
    "x0 * 2 + x1": [("int8", "int8", "int8"), ("float16", "float16", "float16")],
    "x0 * 2.5 + x1": [("int8", "int8", "float32"), ("bfloat16", "int8", "bfloat16")],
    "x0 < x1": [("int8", "float32", "bool")],
    "x0 & x1": [("bool", "bool", "bool"), ("bool", "int16", "int16"), ("uint8", "int32", "int32")],
    "where(x0, x1, 0)": [("bool", "float16", "float16"), ("float32", "bool", "int64"), ("int8", "int8", "int8")],
    "where(x0, x1, true)": [("bool", "bool", "bool")],
    "sqrt(x0) * x1": [("int32", "float16", "float16"), ("int32", "int32", "float32")],
    "bfloat16(x0) + x1": [("float32", "int8", "bfloat16")],
    "uint16(x0) + x1": [("float32", "int8", "int32")],
}


@pytest.mark.parametrize(
    ("expression", "a", "b", "result"), [(e, *types) for e, rows in PROMOTIONS.items() for types in rows]
)
def test_types(expression: str, a: str, b: str, result: str) -> None:
    assert parse(expression, 2).result_type([a, b]) == result
    xs = [np.array([0, 1, 1, 0]).astype(element_type(a)), np.array([1, 0, 1, 1]).astype(element_type(b))]
    check(expression, *xs, body="bfloat16" not in (a, b, result))
    graph = ortops.Graph()
    y = ops.elementwise(*(graph.input(n, t, [4]) for n, t in zip("ab", (a, b), strict=True)), expression=expression)
    assert (y.dtype, y.shape) == (result, (4,))


# --- functions ------------------------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 1e-30, -1e-30, 1e4, -1e4, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-42]


#: Steps of the epsilon that is computed in, beside those of the result: the error of exp(z) is that of z, which is up to 100.
EXTRA = dict.fromkeys(("sigmoid", "gelu", "gelu_tanh", "silu", "mish", "softplus"), 120)
#: What functions that go to 0 (in float: and in tails where the argument is clamped) may be off by.
FLOOR = dict.fromkeys(("sigmoid", "gelu", "gelu_tanh", "silu", "mish"), 1e-30) | {"hardsigmoid": 1.0, "hardswish": 4.0}
#: In steps of epsilon: near -3 a sum cancels.
CANCELS = ("hardsigmoid", "hardswish")


def arguments(function: _expressions.Function, type_: str) -> list[np.ndarray]:
    """Of all sizes, and special ones against each other; as rows, so that no large result hides an error in a small one."""
    rng = np.random.default_rng(0)
    random = np.concatenate([rng.standard_normal(600) * scale for scale in (1e-6, 1e-2, 1, 6, 40)])
    pairs = list(itertools.product(SPECIAL, repeat=function.arity)) if function.arity < 3 else []
    if function.name == "pow":
        random = np.concatenate([rng.uniform(0.01, 5, 1500), rng.standard_normal(1500)])
    if function.name in ("sin", "cos", "tan"):
        pairs = [(v,) for v in SPECIAL if not 1e5 < abs(v) < np.inf]
    columns = [np.concatenate([rng.permutation(random), [p[i] for p in pairs]]) for i in range(function.arity)]
    with np.errstate(over="ignore"):
        return [column.astype(element_type(type_))[:, None] for column in columns]


@every_provider
@pytest.mark.parametrize("type_", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", [f.name for f in _expressions.FUNCTIONS if f.real])
def test_every_function_of_reals(name: str, type_: str, provider: str) -> None:
    if provider == testing.CUDA and type_ == "float64":
        pytest.skip("computed on the CPU alone")
    function = BY_NAME[name]
    xs = real_arguments(function, type_)
    tested = sample(call(function), *xs)
    (got,), (want,) = testing.run(tested, provider), tested.reference()
    if "float" not in tested.output_types[0]:
        np.testing.assert_array_equal(got, want)
        return
    with np.errstate(all="ignore"):
        rounded = want.astype(element_type(type_))
        error = np.abs(got.astype(np.float64) - want)
        same = (rounded == got) | (np.isnan(rounded) & np.isnan(got))
        epsilon = testing.EPSILON[type_]
        allowed = (8 if "32" in type_ or "64" in type_ else 1) * epsilon * np.abs(want)
        allowed += EXTRA.get(name, 0) * testing.EPSILON["float64" if type_ == "float64" else "float32"] * np.abs(want)
        allowed += FLOOR.get(name, 0) * (epsilon if name in CANCELS else 1) + testing.SMALLEST[type_]
    wrong = ~(same | (np.isfinite(rounded) & (error <= allowed)))
    assert not wrong.any(), [(*(x[wrong][0] for x in xs), got[wrong][0], want[wrong][0]), int(wrong.sum())]


def real_arguments(function: _expressions.Function, type_: str) -> list[np.ndarray]:
    xs = arguments(function, type_)
    return [xs[0] > 0, *xs[1:]] if function.rule == "where" else xs


def call(function: _expressions.Function) -> str:
    names = [f"x{i}" for i in range(function.arity)]
    if function.symbol:
        return f" {function.symbol} ".join(names) if function.arity == 2 else f"{function.symbol}{names[0]}"
    return f"{function.name}({', '.join(names)})"


@every_provider
@pytest.mark.parametrize("type_", [*INT_TYPES, "bool"])
@pytest.mark.parametrize("name", [f.name for f in _expressions.FUNCTIONS if f.integer or f.boolean])
def test_every_function_of_integers(name: str, type_: str, provider: str) -> None:
    function = BY_NAME[name]
    rng = np.random.default_rng(0)
    if type_ == "bool":
        values = [False, True]
    else:
        info = np.iinfo(type_)
        values = [
            0,
            1,
            2,
            3,
            7,
            63,
            int(info.max),
            int(info.min),
            int(info.max) - 1,
            *rng.integers(info.min, info.max, 7, dtype=type_),
        ]
        values += [-1, -2, -3, -7] if info.min else []
    table = np.array(list(itertools.product(values, repeat=min(2, function.arity)))).T.astype(type_)
    xs = [table[0], table[-1], rng.permutation(table[0])][: function.arity]
    check(call(function), *xs, provider=provider)


@pytest.mark.parametrize("name", [f.name for f in _expressions.FUNCTIONS])
def test_every_function_body(name: str) -> None:
    """Without the library, on numbers of everyday size and on the special ones."""
    function = BY_NAME[name]
    if function.real:
        rng = np.random.default_rng(0)
        xs = [rng.standard_normal((400, 1)).astype(np.float32) * 3 for _ in range(function.arity)]
        if function.name == "pow":
            xs[0] = np.abs(xs[0])
        if function.rule == "where":
            xs[0] = xs[0] > 0
        tested = sample(call(function), *xs)
        terms = (
            3.0 if name in ("gelu", "silu", "log", "log1p", "tan") else 1.0
        )  # where ONNX's nodes cancel, or stock is rough
        got = testing.run_body(tested)[0]
        np.testing.assert_allclose(got, tested.reference()[0], rtol=2e-6, atol=4e-7 * terms)
        special = np.array(SPECIAL[:-1], np.float32)
        if function.arity == 1 and name not in ("sin", "cos", "tan"):
            tested = sample(call(function), special)
            with np.errstate(all="ignore"):
                want = tested.reference()[0].astype(tested.output_types[0])
            np.testing.assert_allclose(testing.run_body(tested)[0], want, rtol=1e-5, atol=1e-6)
    for type_ in ("int8", "int64", "uint32", "bool") if function.integer or function.boolean else ():
        numbers = [0, 1, 2, 3, 7, 100] + ([-1, -2, -7] if type_[0] == "i" else [])
        table = np.array(list(itertools.product(numbers, repeat=2))).T.astype(type_)
        xs = [table[0], table[1], table[0]][: function.arity]
        if name == "pow":
            xs[1] = np.minimum(xs[1], 3)
        tested = sample(call(function), *xs)
        np.testing.assert_array_equal(testing.run_body(tested)[0], tested.reference()[0])


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("from_", TYPES)
@every_provider
def test_every_cast(from_: str, to: str, provider: str) -> None:
    if provider == testing.CUDA and "float64" in (from_, to):
        pytest.skip("computed on the CPU alone")
    numbers = np.array([0, 1, -1, 2.5, -2.5, 100, 127, 300, 70000, 1.0009765625, 1.00048828125, 3e9])
    if kind := "float" not in from_:
        numbers = numbers[numbers >= 0] if from_[0] in "ub" else numbers
        numbers = numbers.astype(np.int64)
    assert kind in (True, False)
    check(f"{to}(x0)", numbers.astype(element_type(from_)), provider=provider)


@every_provider
def test_nan_becomes_the_integer_0_and_what_is_too_large_the_largest(provider: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30], np.float32)
    largest, smallest = 2**63 - 1, -(2**63)
    want = [0, largest, smallest, largest, smallest]
    np.testing.assert_array_equal(run("int64(x0)", x, provider=provider), want)
    np.testing.assert_array_equal(ops.elementwise(x, expression="int64(x0)"), want)


@every_provider
def test_an_integer_divided_by_zero_is_zero(provider: str) -> None:
    x = np.array([5, -5, 0, -(2**63), 7, -7], np.int64)
    y = np.array([0, 0, 0, -1, -2, 2], np.int64)
    np.testing.assert_array_equal(run("x0 // x1", x, y, provider=provider), [0, 0, 0, -(2**63), -4, -4])
    np.testing.assert_array_equal(run("x0 % x1", x, y, provider=provider), [0, 0, 0, 0, -1, 1])
    tested = sample("x0 // x1 + x0 % x1", x, y)
    np.testing.assert_array_equal(testing.run_body(tested)[0], tested.reference()[0])


#: By PyTorch's names; of two arguments where it has two.
TORCH = {
    "add": "x.add(y)",
    "sub": "x.sub(y)",
    "mul": "x.mul(y)",
    "div": "x.div(y)",
    "mod": "torch.remainder(x, y)",
    "floordiv": "torch.floor_divide(x, y)",
    "pow": "torch.pow(x, y)",
    "neg": "-x",
    "lt": "x < y",
    "le": "x <= y",
    "gt": "x > y",
    "ge": "x >= y",
    "eq": "x == y",
    "ne": "x != y",
    "min": "torch.minimum(x, y)",
    "max": "torch.maximum(x, y)",
    "clip": "torch.clamp(x, -0.5, 0.7)",
    "where": "torch.where(x > 0, y, x)",
    "isnan": "torch.isnan(x)",
    "isinf": "torch.isinf(x)",
    "isfinite": "torch.isfinite(x)",
    "abs": "x.abs()",
    "sign": "x.sign()",
    "floor": "x.floor()",
    "ceil": "x.ceil()",
    "round": "x.round()",
    "trunc": "x.trunc()",
    "exp": "x.exp()",
    "log": "x.log()",
    "log1p": "x.log1p()",
    "expm1": "x.expm1()",
    "sqrt": "x.sqrt()",
    "rsqrt": "x.rsqrt()",
    "sin": "x.sin()",
    "cos": "x.cos()",
    "tan": "x.tan()",
    "erf": "x.erf()",
    "tanh": "x.tanh()",
    "sigmoid": "x.sigmoid()",
    "hardsigmoid": "F.hardsigmoid(x)",
    "softplus": "F.softplus(x, threshold=1e9)",
    "relu": "F.relu(x)",
    "leaky_relu": "F.leaky_relu(x, 0.1)",
    "elu": "F.elu(x, 1.5)",
    "selu": "F.selu(x)",
    "gelu": "F.gelu(x)",
    "gelu_tanh": "F.gelu(x, approximate='tanh')",
    "silu": "F.silu(x)",
    "mish": "F.mish(x)",
    "hardswish": "F.hardswish(x)",
}
OURS = {
    "clip": "clip(x0, -0.5, 0.7)",
    "where": "where(x0 > 0, x1, x0)",
    "leaky_relu": "leaky_relu(x0, 0.1)",
    "elu": "elu(x0, 1.5)",
}
#: Where PyTorch has NaN for -infinity times a gate of 0, ours has the limit.
LIMITS = {"gelu", "gelu_tanh", "silu", "mish", "hardswish"}


@pytest.mark.parametrize("name", [f.name for f in _expressions.FUNCTIONS if f.real])
def test_pytorch_forward_and_backward(name: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(300) * 3, rng.standard_normal(300)]
    ties = [0.0, 1.0, -0.5, 0.7, 2.5, -2.5, np.nan]
    pairs = np.array(list(itertools.product(ties, ties))).T
    xs = [np.concatenate([x, p]) for x, p in zip(xs, pairs, strict=True)]
    if name in ("pow", "log", "sqrt", "rsqrt"):
        xs[0] = np.abs(xs[0])
    if name in LIMITS:
        assert ops.elementwise(np.array([-np.inf, np.inf, np.nan]), expression=f"{name}(x0)").tolist()[:2] == [
            0,
            np.inf,
        ]
    expression = OURS.get(name, call(BY_NAME[name]))
    count = 1 + ("x1" in expression)
    tensors = [torch.from_numpy(x).requires_grad_() for x in xs]
    want = eval(TORCH[name], {"torch": torch, "F": torch.nn.functional, "x": tensors[0], "y": tensors[1]})
    got = ops.elementwise(*xs[:count], expression=expression)
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-9, atol=1e-12)
    if not want.requires_grad or (name in ("floordiv",)):
        return
    graph = ortops.Graph()
    values = [graph.input(f"x{i}", "float64", [xs[0].size]) for i in range(count)]
    y = ops.elementwise(*values, expression=expression)
    d_y = rng.standard_normal(xs[0].size)
    results = gradients([y], values, [graph.input("d", "float64", [xs[0].size])])
    want.backward(torch.from_numpy(d_y))
    named = {f"d_x{i}": r for i, r in enumerate(results) if r is not None}
    for n, r in named.items():
        graph.output(r, n)
    fed = {f"x{i}": x for i, x in enumerate(xs[:count])} | {"d": d_y}
    session = ortops.InferenceSession(graph, providers=[testing.CPU]) if named else None
    for i in range(count):
        expected = tensors[i].grad.numpy() if tensors[i].grad is not None else np.zeros_like(d_y)
        if f"d_x{i}" not in named:
            np.testing.assert_array_equal(np.nan_to_num(expected), 0)
            continue
        taken = {v.name for v in session.get_inputs()}
        (found,) = session.run([f"d_x{i}"], {n: v for n, v in fed.items() if n in taken})
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9, err_msg=f"{name}, by x{i}")


# --- shapes, sizes, many inputs -------------------------------------------------------------------------------------


@every_provider
def test_shapes_that_broadcast_in_every_way(provider: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        shape = tuple(int(size) for size in rng.integers(1, 9, rng.integers(0, 6)))
        xs = []
        for _ in range(3):
            own = tuple(1 if rng.random() < 0.4 else size for size in shape)[int(rng.integers(0, len(shape) + 1)) :]
            xs.append(rng.integers(-9, 9, own).astype(rng.choice(["int8", "int32", "int64"])))
        np.testing.assert_array_equal(
            run("x0 * 2 + x1 - x2", *xs, provider=provider), ops.elementwise(*xs, expression="x0 * 2 + x1 - x2")
        )


@every_provider
@pytest.mark.parametrize("size", [1, 7, 8, 511, 512, 513, 100_003])
def test_sizes(size: int, provider: str) -> None:
    rng = np.random.default_rng(size)
    x, mask = rng.standard_normal(size).astype(np.float16), rng.integers(0, 2, size).astype(bool)
    check("where(x1, x0 * 2, -1)", x, mask, provider=provider)
    check("x0 + x1", rng.standard_normal((3, size)).astype(np.float32), x, provider=provider)
    check("x0 * x1", rng.standard_normal((size, 2)).astype(np.float32), x[:, None], provider=provider)


@every_provider
def test_many_inputs_and_values(provider: str) -> None:
    xs = [np.full((2, 3), i, np.float32) for i in range(32)]
    check("+".join(f"x{i}" for i in range(32)), *xs, provider=provider)
    deep = "x0"
    for i in range(60):
        deep = f"tanh({deep} + {i % 7})"
    check(deep, np.linspace(-1, 1, 50).astype(np.float32), provider=provider)
    wide = " + ".join(f"(x0 * {i} - x0)" for i in range(60))
    check(wide, np.linspace(-1, 1, 50).astype(np.float32), provider=provider)
    waiting = "x0"
    for i in range(12):
        waiting = f"(x0 * {i}) * ({waiting} + {i})"
    check(waiting, np.linspace(0, 0.1, 50).astype(np.float32), provider=provider)


def test_the_gradient_is_summed_where_the_input_was_repeated() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 5)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    graph = ortops.Graph()
    values = [graph.input("x", "float32", ["n", 5]), graph.input("y", "float32", [5])]
    z = ops.elementwise(*values, expression="silu(x0) * x1")
    d = graph.input("d", "float32", ["n", 5])
    for name, value in zip("ab", gradients([z], values, [d]), strict=True):
        graph.output(value, name)
    kinds = [node.op_type for node in graph.build(functions=False).graph.node]
    assert kinds.count("SumToSize") == 1  # of y alone: x is known to be whole
    got = ortops.InferenceSession(graph, providers=[testing.CPU]).run(None, {"x": x, "y": y, "d": np.ones_like(x)})
    tensors = [torch.from_numpy(v).requires_grad_() for v in (x, y)]
    (torch.nn.functional.silu(tensors[0]) * tensors[1]).sum().backward()
    for found, tensor in zip(got, tensors, strict=True):
        np.testing.assert_allclose(found, tensor.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_a_model_of_many_expressions_carries_their_bodies() -> None:
    """Each expression is a variant of its own; with the library and without it the same comes out."""
    graph = ortops.Graph()
    x = y = graph.input("x", "float32", [None, 4])
    for i in range(50):
        y = ops.elementwise(y, x, expression=f"tanh(x0 + {i} * x1)")
    graph.output(ops.elementwise(y, expression="x0 > 0"), "positive")
    graph.output(y, "y")
    proto = graph.build()
    onnx.checker.check_model(proto, full_check=True)
    names = {node.op_type for node in proto.graph.node}
    assert names == {"ElementwiseBool", "ElementwiseFloat32", *(f"ElementwiseFloat32_{i}" for i in range(2, 51))}
    data = {"x": np.linspace(-1, 1, 12).astype(np.float32).reshape(3, 4)}
    ours = ortops.InferenceSession(proto, providers=[testing.CPU]).run(None, data)
    import onnxruntime

    stock = onnxruntime.InferenceSession(proto.SerializeToString(), providers=[testing.CPU]).run(None, data)
    reference = schemas.evaluator(proto).run(None, data)
    lowered = onnxruntime.InferenceSession(ortops.lower(proto).SerializeToString(), providers=[testing.CPU]).run(
        None, data
    )
    for other in (stock, reference, lowered):
        assert other[0].dtype == bool
        np.testing.assert_allclose(other[1], ours[1], rtol=1e-5, atol=1e-6)


def test_arithmetic_on_values_stays_standard() -> None:
    graph = ortops.Graph()
    x = graph.input("x", "float32", [3])
    graph.output((x + 1) * x, "y")
    assert [node.op_type for node in graph.build().graph.node] == ["Add", "Mul"]


def test_sessions_infer_types_and_shapes() -> None:
    graph = ortops.Graph()
    y = ops.elementwise(graph.input("a", "float16", ["n", 1]), graph.input("b", "int8", [7]), expression="x0 > x1")
    graph.output(y, "y")
    assert (y.dtype, y.shape) == ("bool", ("n", 7))
    session = ortops.InferenceSession(graph, providers=[testing.CPU])
    assert (session.get_outputs()[0].type, session.get_outputs()[0].shape) == ("tensor(bool)", ["n", 7])


def test_strings_are_refused() -> None:
    graph = ortops.Graph()
    with pytest.raises(OpError, match="xs: expected numbers or booleans, got string"):
        ops.elementwise(graph.input("a", "string", [3]), expression="x0")


def test_the_table_is_complete() -> None:
    assert set(TORCH) | {"and", "or", "xor", "not"} == set(BY_NAME)
    assert set(CALLABLE) <= set(BY_NAME)
    assert set(FLOAT_TYPES) | set(INT_TYPES) | {"bool"} == set(ELEMENT_TYPES)
