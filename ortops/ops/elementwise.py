"""Arithmetic on each element: any chain of it is one operator, described by an expression (docs/elementwise.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ortops import _expressions
from ortops._declare import ALL, Case, Parsed, Testing, element_type, op
from ortops.ops.broadcast import sum_to_size

if TYPE_CHECKING:
    from ortops.graph import Value

#: The build turns the list of functions into C++.
GENERATED: Mapping[str, Callable[[], str]] = {"elementwise_functions.h": _expressions.cpp}
#: What expressions are compiled with at run time.
EMBEDDED = {"elementwise_source.h": ("device/math.h", "elementwise_functions.h", "ops/elementwise/device.cuh")}


def case(expression: str, *inputs: tuple[Any, ...] | list[Any], scale: float = 1.0) -> Case:
    """An expression on random inputs of these types and shapes, `("float16", 3, 4)`, or on these numbers."""

    def draw(rng: np.random.Generator) -> dict[str, Any]:
        return {"xs": [random_array(rng, *of, scale=scale) for of in inputs]}

    return Case(draw, {"expression": expression}, expression)


def random_array(rng: np.random.Generator, type_: str, *shape: int, scale: float = 1.0) -> np.ndarray:
    if type_ == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "float" in type_:
        return (scale * rng.standard_normal(shape)).astype(element_type(type_))
    return rng.integers(0 if type_[0] == "u" else -100, 100, shape).astype(type_)


def cases() -> tuple[Case, ...]:
    found: list[Case] = []
    for type_ in ("float32", "float16", "bfloat16", "float64"):
        full = (type_, 5, 67)
        found += [
            case("silu(x0) * x1", full, full),
            case("gelu_tanh(x0 + x1) * 0.5", (type_, 3, 5, 64), (type_, 64)),
            case("where(x2, x0 + x1, 0)", full, full, ("bool", 5, 1)),
            case("x0 * x1 + x2", (type_, 4, 3, 7), (type_, 3, 1), (type_, 4, 1, 7)),
            case("x0", (type_, 1031)),
            case("x0 + x1", (type_, 0, 3), (type_, 3)),
            case("tanh(x0) + 1", (type_,)),
        ]
    found += [
        case("x0 < x1", ("float32", 7, 33), ("float16", 33)),
        case("(x0 > 0) & !x1", ("float32", 9, 16), ("bool", 9, 16)),
        case("isnan(x0 / x1) | isinf(x0)", ("float32", 64), ("float32", 64)),
        case("float16(x0 > x1)", ("float32", 77), ("float32", 77)),
        case("bfloat16(x0) * 2", ("float32", 77)),
        case("float32(x0) / 3", ("int32", 77)),
        case("max(x0, 0) * float64(x1)", ("float32", 77), ("int64", 77)),
        case("sum = x0 + x1; sum * sum - sum", ("int32", 4, 33), ("int32", 33)),
    ]
    for type_ in _expressions.INT_TYPES:
        found += [
            case("x0 * x1 + 3", (type_, 5, 33), (type_, 33)),
            case("(x0 // x1) + x0 % 7 - (x1 & 12)", (type_, 77), (type_, 77)),
            case(f"{type_}(x0 * 3)", ("float32", 77)),
        ]
    return tuple(found)


@op(
    "*xs: any[*X] -> y: R[*broadcast(*X)]",
    name="Elementwise",
    R=ALL,
    variants=64,
    testing=Testing(cases=cases()),
)
def elementwise(
    *xs: np.ndarray,
    expression: Annotated[str, Parsed("elementwise::Program", "ops/elementwise/program.h")],
) -> np.ndarray:
    """Computes an expression of its inputs, element by element, in one pass over memory: `"silu(x0) * x1"`,
    `"where(x2, x0 + x1, 0)"`, `"float16(x0 > x1)"`.

    The inputs x0, x1, .. broadcast, and each has a type of its own. Reals are computed in float32 (in float64 where an input or a
    cast is of float64, on the CPU alone) and rounded when they are stored or cast; integers in 64 bits, and wrapped when they are
    stored. The result is a boolean of a comparison, what a cast says, and else of the type that the inputs are promoted to:
    bool < integers < floats, two different floats to float32. Its ONNX op type names it: ElementwiseFloat16, ElementwiseBool, ..

    Functions, operators and their precedence are in docs/elementwise.md; NaN and remainders are as in PyTorch. An integer divided
    by zero is 0. An expression that is none is an error that points at the character, when the graph is built and when a session
    is made.
    """
    parsed = _expressions.parse(expression, len(xs))
    result = parsed.reference(xs)
    if result.dtype.kind == "i":  # what an integer type holds is not a matter of rounding
        return result.astype(parsed.result_type([str(x.dtype) for x in xs]))
    return result


@elementwise.result_type
def _(types: Sequence[str], *, expression: str) -> str:
    return _expressions.parse(expression, len(types)).result_type(types)


@elementwise.decomposition
def _(*xs: Value, expression: str) -> Value:
    return _expressions.parse(expression, len(xs)).standard(xs)


@elementwise.gradient
def _(xs: Sequence[Value], d_y: Value | None, *, expression: str) -> dict[str, list[Value | None]]:
    """One Elementwise an input; then the sum over the axes along which that input was repeated."""
    if d_y is None:
        return {"xs": [None] * len(xs)}
    parsed = _expressions.parse(expression, len(xs))
    types = [str(x.dtype) for x in xs]
    result: list[Value | None] = []
    for index, x in enumerate(xs):
        found = parsed.gradient(index, types) if "float" in types[index] else None
        if found is None:
            result.append(None)
            continue
        text, used = found
        given = [(*xs, d_y)[number] for number in used]
        if _expressions.parse(text, len(given)).result_type([str(v.dtype) for v in given]) != types[index]:
            text = _expressions.cast(text, types[index])
        d_x = elementwise(*given, expression=text)
        result.append(
            d_x if d_x.shape is not None and d_x.shape == x.shape and None not in d_x.shape else sum_to_size(d_x, x)
        )
    return {"xs": result}
