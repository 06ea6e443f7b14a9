"""Elementwise on random expressions, and its two parsers on random texts."""

from __future__ import annotations

import ml_dtypes  # noqa: F401
import numpy as np
import onnx
import pytest

import ortops
from ortops import testing
from ortops._declare import ELEMENT_TYPES, element_type, find
from ortops._expressions import TYPES, ExpressionError, parse

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ELEMENTWISE = find("Elementwise")
assert ELEMENTWISE is not None


def sample(expression: str, *xs: np.ndarray) -> testing.Sample:
    type_ = parse(expression, len(xs)).result_type([str(x.dtype) for x in xs])
    return testing.Sample(ELEMENTWISE, "", {"R": type_}, xs, {"expression": expression}, ("y",))


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


#: What keeps numbers of moderate size moderate, and does not jump: the rest is tested above, one by one.
SMOOTH = [
    "exp(-abs({}))",
    "tanh({})",
    "sigmoid({})",
    "erf({})",
    "sin({})",
    "silu({})",
    "gelu({})",
    "softplus({})",
    "mish({})",
]
SMOOTH += [
    "-{}",
    "abs({})",
    "relu({})",
    "log1p(abs({}))",
    "sqrt(abs({}) + 1)",
    "clip({}, -2, 2)",
    "elu({})",
    "hardswish({})",
]
BINARY = ["({} + {})", "({} - {})", "min({}, {})", "max({}, {})", "(tanh({}) * {})", "({} / (1 + abs({})))"]


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, list[str]]:
    types = draw(
        st.lists(st.sampled_from(["float32", "float16", "bfloat16", "bool", "int8", "uint16"]), min_size=1, max_size=4)
    )
    used: set[int] = set()

    def grow(depth: int) -> str:
        choice = draw(st.integers(0, 9)) if depth else 0
        if choice <= 1:
            if draw(st.integers(0, 3)) == 0:
                return draw(st.sampled_from(["0.5", "2", "1.25", "3"]))
            number = draw(st.integers(0, len(types) - 1))
            used.add(number)
            return f"x{number}" if "float" in types[number] else f"(x{number} / 50)"
        if choice <= 4:
            return draw(st.sampled_from(SMOOTH)).format(grow(depth - 1))
        if choice <= 8:
            return draw(st.sampled_from(BINARY)).format(grow(depth - 1), grow(depth - 1))
        number = draw(st.integers(0, len(types) - 1))
        used.add(number)
        return f"where(x{number} > 0, {grow(depth - 1)}, {grow(depth - 1)})"

    text = grow(draw(st.integers(1, 6)))
    for number in range(len(types)):
        if number not in used:
            text = f"({text} + tanh(x{number} / 50))"
    return text, types


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(expressions(), st.integers(0, 1000))
def test_random_expressions(made: tuple[str, list[str]], seed: int) -> None:
    """Of mixed types that broadcast. The allowance is that of float32 for each operation, or of the result's type."""
    text, types = made
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 9, 3))
    xs = []
    for type_ in types:
        own = tuple(1 if rng.random() < 0.3 else int(size) for size in shape)[int(rng.integers(0, 4)) :]
        drawn = (
            rng.integers(0, 2, own) if type_ == "bool" else rng.standard_normal(own) * (1 if "float" in type_ else 40)
        )
        xs.append(np.asarray(np.abs(drawn) if type_ == "uint16" else drawn).astype(element_type(type_)))
    tested = sample(text, *xs)
    (got,) = testing.run(tested)
    (want,) = tested.reference()
    epsilon = {"float32": 2e-6, "float16": 1.1e-3, "bfloat16": 8.5e-3}[tested.output_types[0]]
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=epsilon, atol=max(epsilon / 4, 2e-6) * (1 + np.abs(want).max())
    )


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.text("x01 +-*/%<>=!&|^(),;.e\n@t", max_size=14)
    | st.lists(
        st.sampled_from(
            [
                "x0",
                "x1",
                " ",
                "+",
                "**",
                "//",
                "<",
                "==",
                "&",
                "!",
                "(",
                ")",
                ",",
                "exp",
                "elu",
                "where",
                "1",
                "2.5",
                "1e",
                "t",
                "=",
                ";",
                "int8",
                "nan",
            ]
        ),
        max_size=9,
    ).map("".join)
)
def test_both_parsers_say_the_same(text: str) -> None:
    """Of any text: that it is right, and of which type, or the same error."""
    try:
        said = parse(text, 1).result_type(["float32"])
    except ExpressionError as error:
        said = str(error)
    op_type = f"Elementwise{said.capitalize().replace('Bf', 'BF')}" if said in TYPES else "ElementwiseFloat32"
    try:
        # The output is a bool or float; a graph output of another type than it says is an error of another kind.
        ortops.InferenceSession(
            loose_model(text, op_type.replace("Uint", "UInt")), providers=[testing.CPU], lower="none"
        )
        found = "right"
    except Exception as error:
        found = str(error)
    if said in TYPES:
        assert found == "right", text
    else:
        assert said in found, text


def loose_model(text: str, op_type: str) -> bytes:
    proto = onnx.load_model_from_string(model(text, op_type=op_type))
    proto.graph.output[0].type.tensor_type.elem_type = ELEMENT_TYPES[
        next(t for t in TYPES if t.lower() == op_type.removeprefix("Elementwise").lower())
    ]
    return proto.SerializeToString()


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(expressions())
def test_random_gradients(made: tuple[str, list[str]]) -> None:
    """The derivative, as an expression, against central differences."""
    text, types = made
    types = ["float64" if "float" in t else t for t in types]
    rng = np.random.default_rng(len(text))
    xs = [np.asarray(rng.standard_normal(5) if t == "float64" else rng.integers(0, 2, 5)).astype(t) for t in types]
    parsed = parse(text, len(xs))
    for index, type_ in enumerate(types):
        found = parsed.gradient(index, types) if type_ == "float64" else None
        step = np.zeros(5)
        shifted = [[x + s * 1e-6 if i == index else x for i, x in enumerate(xs)] for s in (1, -1)]
        if type_ != "float64":
            continue
        with np.errstate(all="ignore"):
            difference = (parsed.reference(shifted[0]) - parsed.reference(shifted[1])) / 2e-6
            if found is not None:
                given_ = [(*xs, np.ones(5))[number] for number in found[1]]
                step = parse(found[0], len(given_)).reference(given_)
        np.testing.assert_allclose(step, difference, rtol=2e-5, atol=2e-5, err_msg=text)
