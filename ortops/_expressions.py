"""The language of Elementwise: its functions, its parser, its types, and what follows from an expression.

`FUNCTIONS` is the one list of them. The parser and the types are read off it, the reference (numpy), the derivatives and the
standard ONNX nodes; and the build turns it into the C++ that the library parses and computes with (`cpp`). docs/elementwise.md
describes the language to its users. Like the declarations, this module needs numpy alone.

Each value has a kind: bool, int (computed in 64 bits) or real (computed in float32; in float64 where an input or a cast of the
expression is float64), and the element type that it would be stored in. A literal has no type of its own.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortops._standard import onnx

__all__ = ["FUNCTIONS", "Expression", "ExpressionError", "Function", "cast", "cpp", "parse"]

#: An expression may have this many tokens (names, numbers, symbols) and inputs, and parentheses this deep.
MAX_TOKENS = 4000
MAX_INPUTS = 32
MAX_DEPTH = 64

#: How much of an expression an error shows: ONNX Runtime cuts long ones off.
SHOWN = 120

KINDS = ("bool", "int", "real")
FLOAT_TYPES = ("float16", "bfloat16", "float32", "float64")
INT_TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
TYPES = ("bool", *INT_TYPES, *FLOAT_TYPES)


class ExpressionError(ValueError):
    """An expression that is none. The text points at the character."""


def kind_of(type_: str) -> str:
    return "bool" if type_ == "bool" else "real" if "float" in type_ else "int"


# --- the functions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    """A function or operator of the language.

    Args:
        name: Of the function; of an operator, what its opcode is called.
        rule: What its arguments are turned into, and what comes out.
            number: ints if all are ints or booleans, else reals; the same comes out
            real: reals; a real comes out
            compare: as number; a boolean comes out
            logic: booleans, or ints if one is an int; the same comes out
            where: a boolean, and two of the same kind, which comes out
            test: a real; a boolean comes out
        arity: How many arguments it has.
        reference: In numpy, of float64, int64 or bool.
        real, integer, boolean: In C++, of a, b, c, for the kinds that it computes in; T is float or double.
        derivatives: By each argument, as an expression of the arguments a, b, c, the result y and its gradient g; empty: zero.
        standard: In ONNX: an operator type, or a function of values; or
        means: an expression of other functions, from which that follows.
        defaults: Of the last arguments.
        symbol: How an operator is written.
    """

    name: str
    rule: str
    arity: int
    reference: Callable[..., Any]
    real: str = ""
    integer: str = ""
    boolean: str = ""
    derivatives: tuple[str, ...] = ()
    standard: str | Callable[..., Any] = ""
    means: str = ""
    defaults: tuple[float, ...] = ()
    symbol: str = ""


def _wrapping(symbol: str) -> str:
    return f"int64_t(uint64_t(a) {symbol} uint64_t(b))"


def _int_power(a: Any, b: Any) -> Any:
    inverse = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0))
    return np.where(b < 0, inverse, a ** np.maximum(b, 0))


def _power(a: Any, b: Any) -> Any:
    if a.dtype.kind == "i":
        return _int_power(a, b)
    return a**b


def _of_reals(rounding: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a: a if a.dtype.kind == "i" else rounding(a)


def _erf(a: Any) -> Any:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(a), np.float64)


def _upper_tail(a: Any) -> Any:
    """The chance of a normal variable to be larger, without cancellation."""
    return np.asarray(np.frompyfunc(lambda v: 0.5 * math.erfc(v * math.sqrt(0.5)), 1, 1)(a), np.float64)


def _times_gate(a: Any, gate: Any) -> Any:
    """a * gate, where a gate that vanishes wins against infinity."""
    return np.where(a == -np.inf, 0.0, a * gate)


def _sigmoid(a: Any) -> Any:
    return np.exp(-np.logaddexp(0, -a))


def _standard_floordiv(a: Any, b: Any) -> Any:
    if a.dtype == "int64":
        divisor = onnx.Where(onnx.Or(onnx.Equal(b, 0), onnx.Equal(b, -1)), 1, b)
        quotient = onnx.Div(a - onnx.Mod(a, divisor), divisor)
        return onnx.Where(onnx.Equal(b, 0), 0, onnx.Where(onnx.Equal(b, -1), onnx.Neg(a), quotient))
    rest = onnx.Mod(a, b, fmod=1)
    down = onnx.And(onnx.Not(onnx.Equal(rest, 0.0)), onnx.Xor(onnx.Less(rest, 0.0), onnx.Less(b, 0.0)))
    quotient = onnx.Where(down, onnx.Round((a - rest) / b) - 1.0, onnx.Round((a - rest) / b))
    return onnx.Where(onnx.Equal(b, 0.0), a / b, quotient)


def _standard_mod(a: Any, b: Any) -> Any:
    if a.dtype == "int64":
        unsafe = onnx.Or(onnx.Equal(b, 0), onnx.Equal(b, -1))
        return onnx.Where(unsafe, 0, onnx.Mod(a, onnx.Where(unsafe, 1, b)))
    rest = onnx.Mod(a, b, fmod=1)
    other = onnx.And(onnx.Not(onnx.Equal(rest, 0.0)), onnx.Xor(onnx.Less(rest, 0.0), onnx.Less(b, 0.0)))
    return onnx.Where(other, rest + b, rest)


def _standard_power(a: Any, b: Any) -> Any:
    if a.dtype != "int64":
        return onnx.Pow(a, b)
    power = onnx.Pow(a, onnx.Max(b, 0))
    odd = onnx.Equal(onnx.Mod(b, 2), 1)
    inverse = onnx.Where(onnx.Equal(a, 1), 1, onnx.Where(onnx.Equal(a, -1), onnx.Where(odd, -1, 1), 0))
    return onnx.Where(onnx.Less(b, 0), inverse, power)


def _standard_where(condition: Any, a: Any, b: Any) -> Any:
    if a.dtype == "bool":
        return onnx.Or(onnx.And(condition, a), onnx.And(onnx.Not(condition), b))
    return onnx.Where(condition, a, b)


def _standard_log1p(a: Any) -> Any:
    """log(1 + a), corrected by what 1 + a lost. (Kahan)"""
    total = a + 1.0
    infinite = onnx.IsInf(total, detect_negative=0)
    known = onnx.Or(onnx.Equal(total, 1.0), infinite)
    corrected = onnx.Log(total) * (a / onnx.Where(known, 1.0, total - 1.0))
    return onnx.Where(onnx.Equal(total, 1.0), a, onnx.Where(infinite, total, corrected))


def _standard_expm1(a: Any) -> Any:
    """exp(a) - 1, and by the tangent where that cancels."""
    half = onnx.Tanh(a * 0.5)
    return onnx.Where(onnx.Less(onnx.Abs(a), 1.0), (half + half) / (1.0 - half), onnx.Exp(a) - 1.0)


def _standard_erf(a: Any) -> Any:
    """ONNX Runtime has no Erf of float64 on the CPU: there it has the precision of float32."""
    if a.dtype != "float64":
        return onnx.Erf(a)
    return onnx.Cast(onnx.Erf(onnx.Cast(a, to=1)), to=11)


def _same(integer: str, real: str) -> Callable[..., Any]:
    """The operator for integers, or for booleans and reals."""

    def append(*values: Any) -> Any:
        return getattr(onnx, integer if values[0].dtype == "int64" else real)(*values)

    return append


def _rounding(name: str) -> Callable[..., Any]:
    return lambda a: a if a.dtype == "int64" else getattr(onnx, name)(a)


_F = Function
# fmt: off
FUNCTIONS: tuple[Function, ...] = (
    # operators
    _F("add", "number", 2, np.add, "a + b", _wrapping("+"), "", ("g", "g"), "Add", symbol="+"),
    _F("sub", "number", 2, np.subtract, "a - b", _wrapping("-"), "", ("g", "-g"), "Sub", symbol="-"),
    _F("mul", "number", 2, np.multiply, "a * b", _wrapping("*"), "", ("g * b", "g * a"), "Mul", symbol="*"),
    _F("div", "real", 2, np.divide, "a / b", derivatives=("g / b", "-g * (y / b)"), standard="Div", symbol="/"),
    _F("floordiv", "number", 2, np.floor_divide, "math::floor_divide(a, b)", "math::floor_divide(a, b)",
       standard=_standard_floordiv, symbol="//"),
    _F("mod", "number", 2, np.remainder, "math::remainder(a, b)", "math::remainder(a, b)", "", ("g", "-g * (a // b)"),
       _standard_mod, symbol="%"),
    _F("pow", "number", 2, _power, "math::pow(a, b)", "math::pow(a, b)", "",
       ("where(b == 0, 0, g * (b * a ** (b - 1)))", "where((a == 0) & (b >= 0), 0, g * (y * log(a)))"), _standard_power,
       symbol="**"),
    _F("neg", "number", 1, np.negative, "-a", "int64_t(0 - uint64_t(a))", "", ("-g",), "Neg", symbol="-"),
    _F("lt", "compare", 2, np.less, "a < b", "a < b", standard="Less", symbol="<"),
    _F("le", "compare", 2, np.less_equal, "a <= b", "a <= b", standard="LessOrEqual", symbol="<="),
    _F("gt", "compare", 2, np.greater, "a > b", "a > b", standard="Greater", symbol=">"),
    _F("ge", "compare", 2, np.greater_equal, "a >= b", "a >= b", standard="GreaterOrEqual", symbol=">="),
    _F("eq", "compare", 2, np.equal, "a == b", "a == b", standard="Equal", symbol="=="),
    _F("ne", "compare", 2, np.not_equal, "a != b", "a != b", standard=lambda a, b: onnx.Not(onnx.Equal(a, b)),
       symbol="!="),
    _F("and", "logic", 2, np.bitwise_and, "", "a & b", "a & b", standard=_same("BitwiseAnd", "And"), symbol="&"),
    _F("or", "logic", 2, np.bitwise_or, "", "a | b", "a | b", standard=_same("BitwiseOr", "Or"), symbol="|"),
    _F("xor", "logic", 2, np.bitwise_xor, "", "a ^ b", "a ^ b", standard=_same("BitwiseXor", "Xor"), symbol="^"),
    _F("not", "logic", 1, np.invert, "", "~a", "!a", standard=_same("BitwiseNot", "Not"), symbol="!"),
    # choices
    _F("min", "number", 2, np.minimum, "math::min(a, b)", "a < b ? a : b", "",
       ("g * where(a > b, 0, where(a == b, 0.5, 1))", "g * where(a < b, 0, where(a == b, 0.5, 1))"), "Min"),
    _F("max", "number", 2, np.maximum, "math::max(a, b)", "a > b ? a : b", "",
       ("g * where(a < b, 0, where(a == b, 0.5, 1))", "g * where(a > b, 0, where(a == b, 0.5, 1))"), "Max"),
    _F("clip", "number", 3, lambda a, b, c: np.minimum(np.maximum(a, b), c), "math::min(math::max(a, b), c)",
       "a < b ? (b < c ? b : c) : (a < c ? a : c)", "",
       ("where((a >= b) & (a <= c), g, 0)", "where((b < c) & (a < b), g, 0)", "where((a > c) | (c < b), g, 0)"),
       means="min(max(a, b), c)"),
    _F("where", "where", 3, np.where, "a ? b : c", "a ? b : c", "a ? b : c", ("", "where(a, g, 0)", "where(a, 0, g)"),
       _standard_where),
    _F("isnan", "test", 1, np.isnan, "a != a", standard="IsNaN"),
    _F("isinf", "test", 1, np.isinf, "math::abs(a) == T(INFINITY)", standard="IsInf"),
    _F("isfinite", "test", 1, np.isfinite, "math::abs(a) < T(INFINITY)", means="!(isnan(a) | isinf(a))"),
    # to whole numbers, and signs
    _F("abs", "number", 1, np.abs, "math::abs(a)", "a < 0 ? int64_t(0 - uint64_t(a)) : a", "", ("g * sign(a)",), "Abs"),
    _F("sign", "number", 1, lambda a: np.where(a > 0, 1, np.where(a < 0, -1, 0)).astype(a.dtype), "T(a > 0) - T(a < 0)",
       "int64_t(a > 0) - int64_t(a < 0)", means="where(a > 0, 1, where(a < 0, -1, 0))"),
    _F("floor", "number", 1, _of_reals(np.floor), "math::floor(a)", "a", standard=_rounding("Floor")),
    _F("ceil", "number", 1, _of_reals(np.ceil), "math::ceil(a)", "a", standard=_rounding("Ceil")),
    _F("round", "number", 1, _of_reals(np.rint), "math::rint(a)", "a", standard=_rounding("Round")),
    _F("trunc", "number", 1, _of_reals(np.trunc), "math::trunc(a)", "a", means="where(a < 0, ceil(a), floor(a))"),
    # powers and their like
    _F("exp", "real", 1, np.exp, "math::exp(a)", derivatives=("g * y",), standard="Exp"),
    _F("log", "real", 1, np.log, "math::log(a)", derivatives=("g / a",), standard="Log"),
    _F("log1p", "real", 1, np.log1p, "math::log1p(a)", derivatives=("g / (1 + a)",), standard=_standard_log1p),
    _F("expm1", "real", 1, np.expm1, "math::expm1(a)", derivatives=("g * (y + 1)",), standard=_standard_expm1),
    _F("sqrt", "real", 1, np.sqrt, "math::sqrt(a)", derivatives=("g / (2 * y)",), standard="Sqrt"),
    _F("rsqrt", "real", 1, lambda a: 1 / np.sqrt(a), "math::rsqrt(a)", derivatives=("-0.5 * g * (y * y * y)",),
       means="1 / sqrt(a)"),
    # circles
    _F("sin", "real", 1, np.sin, "math::sin(a)", derivatives=("g * cos(a)",), standard="Sin"),
    _F("cos", "real", 1, np.cos, "math::cos(a)", derivatives=("-g * sin(a)",), standard="Cos"),
    _F("tan", "real", 1, np.tan, "math::tan(a)", derivatives=("g * (1 + y * y)",), means="sin(a) / cos(a)"),
    # steps from one value to another
    _F("erf", "real", 1, _erf, "math::erf(a)", derivatives=("g * (1.1283791670955126 * exp(-(a * a)))",),
       standard=_standard_erf),
    _F("tanh", "real", 1, np.tanh, "math::tanh(a)", derivatives=("g * (1 - y * y)",), standard="Tanh"),
    _F("sigmoid", "real", 1, _sigmoid, "math::sigmoid(a)", derivatives=("g * (y * (1 - y))",), standard="Sigmoid"),
    _F("hardsigmoid", "real", 1, lambda a: np.clip(a / 6 + 0.5, 0, 1), "math::hardsigmoid(a)",
       derivatives=("where((a > -3) & (a < 3), g / 6, 0)",), means="clip(a / 6 + 0.5, 0, 1)"),
    # activations
    _F("softplus", "real", 1, lambda a: np.logaddexp(0, a), "math::softplus(a)", derivatives=("g * sigmoid(a)",),
       means="max(a, 0) + log1p(exp(-abs(a)))"),
    _F("relu", "number", 1, lambda a: np.maximum(a, 0), "math::max(a, T(0))", "a > 0 ? a : 0", "",
       ("where(a <= 0, 0, g)",), means="max(a, 0)"),
    _F("leaky_relu", "real", 2, lambda a, b: np.where(a > 0, a, a * b), "a > 0 ? a : a * b",
       derivatives=("g * where(a > 0, 1, b)", "where(a > 0, 0, g * a)"), means="where(a > 0, a, a * b)",
       defaults=(0.01,)),
    _F("elu", "real", 2, lambda a, b: np.where(a > 0, a, b * np.expm1(a)), "a > 0 ? a : b * math::expm1(a)",
       derivatives=("g * where(a <= 0, b * exp(a), 1)", "where(a > 0, 0, g * expm1(a))"),
       means="where(a > 0, a, b * expm1(a))", defaults=(1.0,)),
    _F("selu", "real", 1, lambda a: 1.0507009873554805 * np.where(a > 0, a, 1.6732632423543772 * np.expm1(a)),
       "T(1.0507009873554805) * (a > 0 ? a : T(1.6732632423543772) * math::expm1(a))",
       derivatives=("g * where(a <= 0, 1.7580993408473766 * exp(a), 1.0507009873554805)",),
       means="1.0507009873554805 * where(a > 0, a, 1.6732632423543772 * expm1(a))"),
    _F("gelu", "real", 1,
       lambda a: np.where(np.isinf(a), np.maximum(a, 0), np.maximum(a, 0) - np.abs(a) * _upper_tail(np.abs(a))),
       "math::gelu(a)",
       derivatives=("g * (0.5 + 0.5 * erf(a * 0.7071067811865476) + 0.3989422804014327 * clip(a, -50, 50) * exp(-0.5 * (a * a)))",),
       means="max(a, -50) * (0.5 + 0.5 * erf(a * 0.7071067811865476))"),
    _F("gelu_tanh", "real", 1, lambda a: _times_gate(a, _sigmoid(1.5957691216057308 * (a + 0.044715 * a**3))),
       "math::gelu_tanh(a)",
       derivatives=("x = clip(a, -50, 50); s = sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x)); "
        "g * (s + x * s * (1 - s) * (1.5957691216057308 * (1 + 0.134145 * x * x)))",),
       means="x = clip(a, -50, 50); max(a, -50) * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))"),
    _F("silu", "real", 1, lambda a: _times_gate(a, _sigmoid(a)), "math::silu(a)",
       derivatives=("s = sigmoid(a); g * (s * (1 + max(a, -800) * (1 - s)))",), means="max(a, -800) * sigmoid(a)"),
    _F("mish", "real", 1, lambda a: _times_gate(a, np.tanh(np.logaddexp(0, a))), "math::mish(a)",
       derivatives=("t = tanh(softplus(a)); g * (t + clip(a, -800, 800) * sigmoid(a) * (1 - t * t))",),
       means="max(a, -800) * tanh(softplus(a))"),
    _F("hardswish", "real", 1, lambda a: _times_gate(a, np.clip(a / 6 + 0.5, 0, 1)),
       "math::max(a, T(-4)) * math::hardsigmoid(a)",
       derivatives=("g * where(a < -3, 0, where(a <= 3, a / 3 + 0.5, 1))",), means="max(a, -4) * hardsigmoid(a)"),
)
# fmt: on
BY_NAME = {function.name: function for function in FUNCTIONS}
#: What can be called; the others are operators.
CALLABLE = {f.name: f for f in FUNCTIONS if not f.symbol or f.name == "pow"}
INFIX = {f.symbol: f.name for f in FUNCTIONS if f.symbol and f.arity == 2}
PREFIX = {f.symbol: f.name for f in FUNCTIONS if f.symbol and f.arity == 1}
#: From those that bind the weakest, as in Python (so `&` binds stronger than `<`). Comparisons do not chain; `**` is apart.
LEVELS = (("<", "<=", ">", ">=", "==", "!="), ("|",), ("^",), ("&",), ("+", "-"), ("*", "/", "//", "%"))
CONSTANTS: dict[str, bool | float] = {"true": True, "false": False, "inf": math.inf, "nan": math.nan}


# --- expressions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Node:
    """A value. `what` is a function's name, or input (`value`: its number), literal (`value`) or cast (`value`: the type)."""

    what: str
    arguments: tuple[Node, ...] = ()
    value: Any = None
    at: int = field(default=0, repr=False)


class _Nodes:
    """Makes nodes, each once, in an order in which arguments come first."""

    def __init__(self, simplify: bool = False) -> None:
        self.simplify = simplify
        self.known: dict[tuple[Any, ...], Node] = {}

    def make(self, what: str, *arguments: Node, value: Any = None, at: int = 0) -> Node:
        if self.simplify and arguments:
            simple = self.simpler(what, arguments)
            if simple is not None:
                return simple
        key = (what, type(value), repr(value), *arguments)
        if key not in self.known:
            self.known[key] = Node(what, arguments, value, at)
        return self.known[key]

    def literal(self, value: bool | float) -> Node:
        return self.make("literal", value=value)

    def simpler(self, what: str, arguments: tuple[Node, ...]) -> Node | None:
        values = [node.value if node.what == "literal" else None for node in arguments]
        first, second = (*values, None)[:2]
        match what:
            case "add" if first == 0:
                return arguments[1]
            case "add" | "sub" if second == 0:
                return arguments[0]
            case "sub" if first == 0:
                return self.make("neg", arguments[1])
            case "mul" if first == 0 or second == 0:
                return self.literal(0)
            case "mul" if first == 1:
                return arguments[1]
            case "mul" | "div" | "pow" if second == 1:
                return arguments[0]
            case "neg" if arguments[0].what == "neg":
                return arguments[0].arguments[0]
            case "where" if arguments[1] is arguments[2]:
                return arguments[1]
        numbers = [v for v in values if v is not None and not isinstance(v, bool) and math.isfinite(v)]
        if len(numbers) == len(arguments) and what in ("add", "sub", "mul", "neg"):
            folded = BY_NAME[what].reference(*map(np.asarray, numbers)).item()
            if abs(folded) < 2**31:
                return self.literal(folded)
        if what in ("eq", "ne") and len(numbers) == 2:
            return self.literal((first == second) == (what == "eq"))
        if what == "where" and isinstance(first, bool):
            return arguments[1 if first else 2]
        return None


@dataclass(frozen=True)
class Typed:
    """What is known of a node once the inputs' types are: its kind, and its type (None: as a literal, any of that kind)."""

    kind: str
    type: str | None

    @property
    def stored(self) -> str:
        return self.type or {"bool": "bool", "int": "int64", "real": "float32"}[self.kind]


def promote(types: Sequence[Typed]) -> Typed:
    """What a computation of these gives: bool < int < float, where floats of different kinds give float32 (or float64)."""
    kind = max((t.kind for t in types), key=KINDS.index)
    return Typed(kind, functools.reduce(_wider, [t.type if t.kind == kind else None for t in types]))


def _wider(a: str | None, b: str | None) -> str | None:
    if a is None or b is None or a == b:
        return a or b
    if kind_of(a) == "real":
        return "float64" if "float64" in (a, b) else "float32"
    bits = [int(re.sub(r"\D", "", t)) for t in (a, b)]
    if a[0] == b[0]:
        return a if bits[0] > bits[1] else b
    signed, unsigned = (bits[0], bits[1]) if b[0] == "u" else (bits[1], bits[0])
    return f"int{signed if signed > unsigned else min(64, 2 * unsigned)}"


@dataclass(frozen=True)
class Expression:
    """A parsed expression: its values in an order in which arguments come first; the last one is the result."""

    text: str
    inputs: int
    nodes: tuple[Node, ...]

    @property
    def root(self) -> Node:
        return self.nodes[-1]

    def error(self, at: int, what: str) -> ExpressionError:
        return _error(self.text, at, what)

    def types(self, inputs: Sequence[str]) -> dict[Node, Typed]:
        """The kind and type of every node; raises ExpressionError where a function does not take them."""
        known: dict[Node, Typed] = {}
        for node in self.nodes:
            given = [known[argument] for argument in node.arguments]
            match node.what:
                case "input":
                    known[node] = Typed(kind_of(inputs[node.value]), inputs[node.value])
                case "literal":
                    kind = {bool: "bool", int: "int", float: "real"}[type(node.value)]
                    known[node] = Typed(kind, "bool" if kind == "bool" else None)
                case "cast":
                    known[node] = Typed(kind_of(node.value), node.value)
                case _:
                    known[node] = self._result(node, BY_NAME[node.what], given)
        return known

    def _result(self, node: Node, function: Function, given: Sequence[Typed]) -> Typed:
        together = promote(given[1:] if function.rule == "where" else given)
        match function.rule:
            case "number" if together.kind == "bool":
                return Typed("int", None)
            case "real" if together.kind != "real":
                return Typed("real", None)
            case "compare" | "test":
                return Typed("bool", "bool")
            case "logic" if together.kind == "real":
                raise self.error(node.at, f"{function.symbol} is for booleans and integers, got {together.stored}")
        return together

    def result_type(self, inputs: Sequence[str]) -> str:
        return self.types(inputs)[self.root].stored

    def arguments_kinds(self, node: Node, known: Mapping[Node, Typed]) -> tuple[str, ...]:
        """The kinds that the node's arguments are turned into."""
        function = BY_NAME[node.what]
        together = promote([known[argument] for argument in node.arguments[function.rule == "where" :]]).kind
        if function.rule in ("real", "test"):
            together = "real"
        elif function.rule in ("number", "compare") and together == "bool":
            together = "int"
        return (("bool",) if function.rule == "where" else ()) + (together,) * (
            len(node.arguments) - (function.rule == "where")
        )

    # --- reference

    def reference(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """In numpy: reals in float64, ints in int64; rounded by casts alone."""
        known = self.types([str(a.dtype) for a in arrays])
        values: dict[Node, np.ndarray] = {}
        for node in self.nodes:
            match node.what:
                case "input":
                    values[node] = _converted(arrays[node.value], known[node].kind)
                case "literal":
                    values[node] = _converted(np.asarray(node.value), known[node].kind)
                case "cast":
                    value = _converted(values[node.arguments[0]], known[node].kind)
                    if node.value not in ("float64", "bool"):
                        value = _converted(value.astype(_numpy_type(node.value)), known[node].kind)
                    values[node] = value
                case _:
                    kinds = self.arguments_kinds(node, known)
                    given = [_converted(values[a], k) for a, k in zip(node.arguments, kinds, strict=True)]
                    values[node] = np.asarray(BY_NAME[node.what].reference(*given))
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        return np.broadcast_to(values[self.root], shape)

    # --- standard nodes

    def standard(self, inputs: Sequence[Any]) -> Any:
        """As standard ONNX nodes on graph values, which have types; the result is of its own type."""
        known = self.types([value.dtype for value in inputs])
        wide = {"bool": "bool", "int": "int64", "real": "float64" if self.is_double(inputs) else "float32"}
        values: dict[Node, Any] = {}
        for node in self.nodes:
            match node.what:
                case "input":
                    values[node] = _cast(inputs[node.value], wide[known[node].kind])
                case "literal":
                    constant = np.asarray(node.value, wide[known[node].kind])
                    values[node] = inputs[0].graph.constant(constant)
                case "cast":
                    value = values[node.arguments[0]]
                    if "float" in value.dtype and known[node].kind == "int":
                        value = onnx.Where(onnx.IsNaN(value), 0.0, value)
                        value = _cast(value, "int64")
                    values[node] = _cast(_cast(value, node.value), wide[known[node].kind])
                case _:
                    kinds = self.arguments_kinds(node, known)
                    given = [_cast(values[a], wide[k]) for a, k in zip(node.arguments, kinds, strict=True)]
                    values[node] = _standard(BY_NAME[node.what], given)
        return _cast(values[self.root], known[self.root].stored)

    def is_double(self, inputs: Sequence[Any]) -> bool:
        casts = [node.value for node in self.nodes if node.what == "cast"]
        return "float64" in (*casts, *(value if isinstance(value, str) else value.dtype for value in inputs))

    # --- gradient

    def gradient(self, index: int, types: Sequence[str]) -> tuple[str, tuple[int, ...]] | None:
        """The derivative by input `index`, as an expression, and the inputs that it reads, in their order (`inputs` stands for the
        gradient of the result); None where it is zero. It is a real, of no certain type."""
        known = self.types(types)
        nodes = _Nodes(simplify=True)
        copies: dict[Node, Node] = {}
        for node in self.nodes:  # the same nodes, in the company of those to come
            copies[node] = nodes.make(node.what, *(copies[a] for a in node.arguments), value=node.value)
        depends = {node for node in self.nodes if node.what == "input" and node.value == index}
        arrived: dict[Node, Node] = {self.root: nodes.make("input", value=self.inputs)}
        for node in self.nodes:
            if known[node].kind == "real" and any(argument in depends for argument in node.arguments):
                depends.add(node)
        for node in reversed(self.nodes):
            if node not in arrived or node not in depends:
                continue
            for position, argument in enumerate(node.arguments):
                if argument not in depends:
                    continue
                part = arrived[node] if node.what == "cast" else None
                derivatives = () if node.what == "cast" else BY_NAME[node.what].derivatives
                if derivatives and derivatives[position]:
                    names = dict(zip("abc", (copies[a] for a in node.arguments), strict=False))
                    names |= {"y": copies[node], "g": arrived[node]}
                    part = _Parser(derivatives[position], self.inputs + 1, nodes, names).all()
                if part is None or (part.what == "literal" and part.value == 0):
                    continue
                before = arrived.get(argument)
                arrived[argument] = part if before is None else nodes.make("add", before, part)
        result = next((arrived[node] for node in depends if node.what == "input" and node in arrived), None)
        if result is None:
            return None
        reached = _reached(result)
        used = sorted({node.value for node in reached if node.what == "input"})
        return _unparse(reached, {number: f"x{place}" for place, number in enumerate(used)}), tuple(used)


def _converted(array: np.ndarray, kind: str) -> np.ndarray:
    if kind == "bool":
        return array != 0 if array.dtype != bool else array
    if kind == "real":
        return array.astype(np.float64)
    if array.dtype.kind not in "biu":  # NaN becomes 0, what is too large the largest
        wide = np.where(np.isnan(array), 0, array.astype(np.float64))
        return np.where(
            wide >= 2.0**63,
            2**63 - 1,
            np.clip(wide, -(2.0**63), 2.0**62).astype(np.int64)
            + (np.clip(wide, 2.0**62, np.nextafter(2.0**63, 0)) - 2.0**62).astype(np.int64),
        )
    return array.astype(np.int64)


def _numpy_type(name: str) -> np.dtype[Any]:
    from ortops._declare import element_type

    return element_type(name)


def _cast(value: Any, to: str) -> Any:
    from ortops._declare import ELEMENT_TYPES

    return value if value.dtype == to else onnx.Cast(value, to=ELEMENT_TYPES[to])


def _standard(function: Function, given: Sequence[Any]) -> Any:
    if callable(function.standard):
        return function.standard(*given)
    if function.standard:
        return getattr(onnx, function.standard)(*given)
    names = {letter: Node("input", value=index) for index, letter in enumerate("abc"[: function.arity])}
    root = _Parser(function.means, 0, _Nodes(), names).all()
    return Expression(function.means, function.arity, _reached(root)).standard(given)


def _reached(root: Node) -> tuple[Node, ...]:
    """The nodes that the root is made of, arguments first."""
    order: dict[Node, None] = {}
    stack = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order[node] = None
        elif node not in order:
            stack.append((node, True))
            stack += [(argument, False) for argument in reversed(node.arguments)]
    return tuple(order)


# --- text -----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<symbol>\*\*|//|[<>=!]=|[-+*/%<>&|^!(),;=]))",
    re.ASCII,
)


def _error(text: str, at: int, what: str) -> ExpressionError:
    begin = at - SHOWN // 2 if len(text) > SHOWN and at > SHOWN // 2 else 0
    shown = re.sub(r"\s", " ", text[begin : begin + SHOWN])
    shown = f"{'...' * (begin > 0)}{shown}{'...' * (begin + SHOWN < len(text))}"
    return ExpressionError(f"attribute expression: {what}\n  {shown}\n  {' ' * (at - begin + 3 * (begin > 0))}^")


class _Parser:
    """A recursive-descent parser. Its twin is in cuda/ops/elementwise/expression.cc; a test compares the two."""

    def __init__(self, text: str, inputs: int, nodes: _Nodes, names: Mapping[str, Node] | None = None) -> None:
        self.text, self.inputs, self.nodes = text, inputs, nodes
        self.names = dict(names or {})
        self.given = frozenset(self.names)
        self.unused: dict[str, int] = {}
        self.depth = 0
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if not match:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise self.error(at, f"unexpected character {text[at]!r}")
            if len(self.tokens) == MAX_TOKENS:
                raise self.error(
                    match.start(match.lastgroup or ""), f"expected at most {MAX_TOKENS} names, numbers and symbols"
                )
            kind = match.lastgroup or ""
            self.tokens.append((kind, match[kind], match.start(kind)))
            at = match.end()
        self.position = 0

    def error(self, at: int, what: str) -> ExpressionError:
        return _error(self.text, at, what)

    def at(self) -> int:
        return self.tokens[self.position][2] if self.position < len(self.tokens) else len(self.text)

    def peek(self, ahead: int = 0) -> str:
        place = self.position + ahead
        return self.tokens[place][1] if place < len(self.tokens) else ""

    def is_a(self, kind: str) -> bool:
        return self.position < len(self.tokens) and self.tokens[self.position][0] == kind

    def accept(self, symbol: str) -> bool:
        if self.peek() != symbol:
            return False
        self.position += 1
        return True

    def expect(self, symbol: str) -> None:
        if not self.accept(symbol):
            raise self.error(self.at(), f"expected {symbol}, got {self.peek() or 'the end'}")

    def all(self) -> Node:
        while self.is_a("name") and self.peek(1) == "=":
            name, at = self.peek(), self.at()
            if self.is_taken(name):
                raise self.error(at, f"{name} has a meaning already")
            self.position += 2
            self.names[name] = self.level(0)
            self.unused[name] = at
            self.expect(";")
        root = self.level(0)
        if self.position < len(self.tokens):
            raise self.error(self.at(), f"expected an operator or the end, got {self.peek()}")
        for name, at in self.unused.items():
            raise self.error(at, f"{name} is not used")
        return root

    def is_taken(self, name: str) -> bool:
        fixed = name in CALLABLE or name in CONSTANTS or name in TYPES or name in self.given
        return fixed or bool(re.fullmatch(r"x\d+", name)) or name in self.names

    def level(self, number: int) -> Node:
        if number == len(LEVELS):
            return self.unary()
        left = self.level(number + 1)
        count = 0
        while self.peek() in LEVELS[number]:
            at, symbol = self.at(), self.peek()
            count += 1
            if number == 0 and count > 1:
                raise self.error(at, "comparisons do not chain: write (a < b) & (b < c)")
            self.position += 1
            left = self.call(INFIX[symbol], at, left, self.level(number + 1))
        return left

    def unary(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(self.at(), f"nested more than {MAX_DEPTH} deep")
        at, symbol = self.at(), self.peek()
        if symbol in ("-", "!", "+") and self.is_a("symbol"):
            self.position += 1
            inner = self.unary()
            result = inner if symbol == "+" else self.call(PREFIX[symbol], at, inner)
        else:
            result = self.atom()
            at = self.at()
            if self.accept("**"):
                result = self.call("pow", at, result, self.unary())
        self.depth -= 1
        return result

    def call(self, name: str, at: int, *arguments: Node) -> Node:
        # A negative number is a literal: its text is not computed with.
        if name == "neg" and arguments[0].what == "literal" and not isinstance(arguments[0].value, bool):
            return self.nodes.make("literal", value=-arguments[0].value, at=at)
        return self.nodes.make(name, *arguments, at=at)

    def atom(self) -> Node:
        at, text = self.at(), self.peek()
        if self.accept("("):
            inner = self.level(0)
            self.expect(")")
            return inner
        if self.is_a("number"):
            self.position += 1
            value = float(text) if re.search(r"[.eE]", text) else int(text)
            if isinstance(value, int) and value >= 2**63:
                raise self.error(at, "an integer of more than 63 bits; write it with a point to have a float")
            return self.nodes.make("literal", value=value, at=at)
        if not self.is_a("name"):
            raise self.error(at, f"expected a value, got {text or 'the end'}")
        self.position += 1
        if text in self.names:
            self.unused.pop(text, None)
            return self.names[text]
        if text in CONSTANTS:
            return self.nodes.make("literal", value=CONSTANTS[text], at=at)
        if re.fullmatch(r"x\d+", text):
            number = int(text[1:])
            if number >= self.inputs or text != f"x{number}":
                have = "x0" if self.inputs == 1 else f"x0 to x{self.inputs - 1}"
                raise self.error(at, f"there is no input {text}; there {'is' if self.inputs == 1 else 'are'} {have}")
            return self.nodes.make("input", value=number, at=at)
        if text not in TYPES and text not in CALLABLE:
            raise self.error(at, f"unknown {'function' if self.peek() == '(' else 'name'} {text}")
        self.expect("(")
        arguments: list[Node] = []
        while self.peek() != ")":
            if arguments and not self.accept(","):
                raise self.error(self.at(), f"expected , or ), got {self.peek() or 'the end'}")
            arguments.append(self.level(0))
        self.expect(")")
        if text in TYPES:
            if len(arguments) != 1:
                raise self.error(at, f"{text} takes 1 argument, got {len(arguments)}")
            return self.nodes.make("cast", *arguments, value=text, at=at)
        function = CALLABLE[text]
        least = function.arity - len(function.defaults)
        if not least <= len(arguments) <= function.arity:
            wanted = f"{least}" if least == function.arity else f"{least} or {function.arity}"
            plural = "" if wanted == "1" else "s"
            raise self.error(at, f"{text} takes {wanted} argument{plural}, got {len(arguments)}")
        for default in function.defaults[len(arguments) - least :]:
            arguments.append(self.nodes.literal(default))
        return self.call(text, at, *arguments)


@functools.lru_cache(maxsize=1024)
def parse(text: str, inputs: int) -> Expression:
    """The expression of inputs x0, x1, .. x<inputs - 1>, each of which it uses. Raises ExpressionError."""
    if inputs > MAX_INPUTS:
        raise _error(text, 0, f"expected at most {MAX_INPUTS} inputs, got {inputs}")
    made = _Nodes()
    reached = set(_reached(_Parser(text, inputs, made).all()))
    nodes = tuple(node for node in made.known.values() if node in reached)
    used = {node.value for node in nodes if node.what == "input"}
    for number in range(inputs):
        if number not in used:
            raise _error(text, len(text), f"input x{number} is not used")
    return Expression(text, inputs, nodes)


def _unparse(nodes: Sequence[Node], inputs: Mapping[int, str]) -> str:
    """The text of the last node. What several nodes use gets a name."""
    uses: dict[Node, int] = {}
    for node in nodes:
        for argument in node.arguments:
            uses[argument] = uses.get(argument, 0) + 1
    text: dict[Node, tuple[str, int]] = {}  # and how strongly it binds
    statements: list[str] = []
    strongest = len(LEVELS) + 2
    for node in nodes:
        given = [text[argument] for argument in node.arguments]
        function = BY_NAME.get(node.what)
        if node.what == "input":
            text[node] = inputs[node.value], strongest
        elif node.what == "literal":
            spelt = {True: "true", False: "false"}[node.value] if isinstance(node.value, bool) else repr(node.value)
            text[node] = spelt, len(LEVELS) if spelt.startswith("-") else strongest
        elif function is not None and function.symbol and node.what != "pow":
            if function.arity == 1:
                text[node] = f"{function.symbol}{_within(given[0], len(LEVELS))}", len(LEVELS)
            else:
                level = next(i for i, symbols in enumerate(LEVELS) if function.symbol in symbols)
                left = _within(given[0], level + (level == 0))
                text[node] = f"{left} {function.symbol} {_within(given[1], level + 1)}", level
        else:
            name = node.value if node.what == "cast" else node.what
            text[node] = f"{name}({', '.join(part for part, _ in given)})", strongest
        if uses.get(node, 0) > 1 and node.arguments:
            statements.append(f"t{len(statements)} = {text[node][0]}; ")
            text[node] = f"t{len(statements) - 1}", strongest
    return "".join(statements) + text[nodes[-1]][0]


def cast(text: str, type_: str) -> str:
    """The expression, cast to that type."""
    before, semicolon, last = text.rpartition("; ")
    return f"{before}{semicolon}{type_}({last})"


def _within(part: tuple[str, int], level: int) -> str:
    return part[0] if part[1] >= level else f"({part[0]})"


# --- C++ ------------------------------------------------------------------------------------------------------------


#: What the library puts between functions: from one kind to another, and to what a type can hold. (In C++ only: here numpy does it.)
CONVERSIONS = (
    ("real_of_int", "real", "int", "T(a)"),
    ("real_of_bool", "real", "bool", "T(a)"),
    ("int_of_real", "int", "real", "a != a ? 0 : a >= T(0x1p63) ? INT64_MAX : a < T(-0x1p63) ? INT64_MIN : int64_t(a)"),
    ("int_of_bool", "int", "bool", "int64_t(a)"),
    ("bool_of_real", "bool", "real", "a != 0"),
    ("bool_of_int", "bool", "int", "a != 0"),
    ("round_float32", "real", "real", "T(float(a))"),
    ("round_float16", "real", "real", "T(to_float(from_float<float16>(float(a))))"),
    ("round_bfloat16", "real", "real", "T(to_float(from_float<bfloat16>(float(a))))"),
    *((f"wrap_{type_}", "int", "int", f"int64_t({type_}_t(a))") for type_ in INT_TYPES if "64" not in type_),
)


def cpp() -> str:
    """The functions as C++: opcodes (a function in one kind), the code of each, and the table that the parser reads."""
    names = {"real": "T", "int": "int64_t", "bool": "bool"}
    codes: list[str] = []
    opcodes: list[str] = []
    rows: list[str] = []

    def opcode(name: str, result: str, given: Sequence[str], code: str) -> None:
        parameters = ", ".join(f"{names[kind]} {letter}" for kind, letter in zip(given, "abc", strict=False))
        codes.append(
            f"template <class T>\nORTOPS_HOST_DEVICE {names[result]} {name}({parameters}) {{\n  return {code};\n}}"
        )
        opcodes.append(f"X{len(given)}({name}, {', '.join(f'{kind}_' for kind in (result, *given))})")

    for function in FUNCTIONS:
        own = []
        for kind, code in (("real", function.real), ("int", function.integer), ("bool", function.boolean)):
            own.append(f"Opcode::{function.name}_{kind}" if code else "Opcode::none")
            if code:
                given = ["bool" if function.rule == "where" and i == 0 else kind for i in range(function.arity)]
                result = "bool" if function.rule in ("compare", "test") else kind
                opcode(f"{function.name}_{kind}", result, given, code)
        least = function.arity - len(function.defaults)
        default = function.defaults[0] if function.defaults else 0
        called = str(function.name in CALLABLE).lower()
        rows.append(
            f'  {{"{function.name}", "{function.symbol}", Rule::{function.rule}_, {function.arity}, {least}, {default}, {called}, '
            f"{{{', '.join(own)}}}}}, \\"
        )
    for name, to, from_, code in CONVERSIONS:
        opcode(name, to, [from_], code)
    return "\n".join(
        [
            "// Generated by ortops/_expressions.py: do not edit.",
            "//",
            "// The functions of Elementwise's language. Each opcode is a function in one kind of numbers.",
            "#pragma once",
            "",
            '#include "device/math.h"',
            "",
            "namespace ortops::elementwise {",
            "",
            *codes,
            "",
            "}  // namespace ortops::elementwise",
            "",
            "// X1(name, kind of the result, kind of the argument), X2 of two arguments, X3 of three.",
            "#define ORTOPS_OPCODES(X1, X2, X3) \\",
            *[f"  {line} \\" for line in opcodes],
            "",
            "// What the parser knows of the functions.",
            "#define ORTOPS_FUNCTIONS \\",
            *rows,
            "",
            f"#define ORTOPS_MAX_TOKENS {MAX_TOKENS}",
            f"#define ORTOPS_MAX_INPUTS {MAX_INPUTS}",
            f"#define ORTOPS_MAX_DEPTH {MAX_DEPTH}",
            f"#define ORTOPS_SHOWN {SHOWN}",
            "",
        ]
    )
