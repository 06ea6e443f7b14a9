"""Declarations: an operator is written once, as a Python function, and all else is derived from it.

    @op("x: T[... *D], scale: T[*D] -> y: T[... *D]", name="RMSNorm", T=FLOATS)
    def rms_norm(x, scale, *, epsilon: Annotated[float, Range(min=0)] = 1e-5):
        '''Divides each row by its root mean square, then scales it.'''
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale

The first string is the *shape line*: the inputs, an arrow, the outputs. Of each it gives the name, the element type and
the shape.

    name: type[shape]     exactly this shape
    name: type<shape>     a shape that broadcasts to this one (numpy's rule)
    name: type?[shape]    optional
    *name: type[shape]    any number of them; the last input only
    name: host type[N]    an input that the host reads when the node runs, a few int64; as a run of axes, `*name` is
                          what it holds (and is not known while shapes are inferred, unless it is a constant)

A type is a variable (bound by a keyword of the decorator to the types it may take), the name of a type, or for an input
`any`: each such input has the type that it has. A variable that only outputs have is a *result type*: it follows from the
attributes too (`@f.result_type` tells how), which ONNX cannot say of one op type, so each of its types has an op type of its
own (ElementwiseFloat16, ElementwiseBool, ..).

The axes of a shape are separated by spaces:

    8  N                  a size; a name means the same size everywhere
    ...  *D               any number of axes; `...` is a nameless one
    2*N  N-1  (A+B)//2    integer arithmetic on names that are bound elsewhere, and on attributes
    conv(H, kh, 0)        a shape function of one axis (ortops/_shapes.py)
    *reduce(X)            a shape function that gives a whole run of axes

A shape function takes sizes and runs of axes by position and attributes by name, as an operator does. Where an
attribute changes the line (a layout), a mapping from the attribute's values to lines is given instead of the string.

This module needs numpy alone: it is also run by the build, before anything else is installed.
"""

from __future__ import annotations

import inspect
import itertools
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from ortops import _shapes
from ortops._shapes import Axis

__all__ = [
    "ALL",
    "FLOATS",
    "INDICES",
    "INTEGERS",
    "VARIANTS",
    "WIDE_FLOATS",
    "Annotated",
    "Case",
    "Literal",
    "Op",
    "OpError",
    "Parsed",
    "Range",
    "Testing",
    "find",
    "op",
    "ops",
]

#: How many names an operator has in a model file. A file can hold one function body a name, so the second kind of call
#: of an operator (other attributes, other optional inputs) goes by the name with `_2`, and so on: see docs/design.md.
VARIANTS = 16

#: ONNX element types (TensorProto.DataType) by the names that numpy and ml_dtypes give them.
ELEMENT_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
}
ELEMENT_SIZES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
}

FLOATS = ("float32", "float16", "bfloat16")
WIDE_FLOATS = (*FLOATS, "float64")
INTEGERS = ("int32", "int64", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
INDICES = ("int64", "int32")
ALL = tuple(ELEMENT_TYPES)


class OpError(ValueError):
    """A call that an operator does not take. The text says which operator and argument, what it expects and what came."""


@dataclass(frozen=True)
class Range:
    """The values that a number may have, ends included; put beside its type: `Annotated[float, Range(min=0)]`."""

    min: float | None = None
    max: float | None = None

    def __contains__(self, value: float) -> bool:
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        if self.max is None:
            return f"at least {self.min:g}"
        if self.min is None:
            return f"at most {self.max:g}"
        return f"from {self.min:g} to {self.max:g}"


@dataclass(frozen=True)
class Parsed:
    """A text that the library parses once, when a session is created: `Annotated[str, Parsed("type", "header")]` names the C++
    type that kernels get in its place. A `std::shared_ptr<const type>` of it is made by `type::parse(text, input types)`."""

    type: str
    header: str


# --- the shape line -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Name:
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Parameter:
    """The value of an attribute."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Group:
    """A run of axes."""

    name: str

    def __str__(self) -> str:
        return "..." if self.name == OUTER else f"*{self.name}"


@dataclass(frozen=True)
class Binary:
    operator: str
    left: Expression
    right: Expression

    def __str__(self) -> str:
        def side(expression: Expression, *weaker: str) -> str:
            brackets = isinstance(expression, Binary) and expression.operator in weaker
            return f"({expression})" if brackets else str(expression)

        if self.operator in "+-":
            return f"{self.left}{self.operator}{side(self.right, '+', '-')}"
        return f"{side(self.left, '+', '-')}{self.operator}{side(self.right, '+', '-', '*', '//', '%')}"


@dataclass(frozen=True)
class Apply:
    """A call of a shape function; `group` where it gives a run of axes instead of one."""

    function: str
    arguments: tuple[Expression, ...]
    group: bool = False

    def __str__(self) -> str:
        return f"{'*' if self.group else ''}{self.function}({', '.join(map(str, self.arguments))})"


Expression = Number | Name | Parameter | Group | Binary | Apply

OUTER = "outer"


def names_in(expression: Expression) -> Iterator[Name | Group]:
    """Every size and run of axes that the expression reads."""
    match expression:
        case Name() | Group():
            yield expression
        case Binary(_, left, right):
            yield from names_in(left)
            yield from names_in(right)
        case Apply(_, arguments):
            for argument in arguments:
                yield from names_in(argument)


@dataclass(frozen=True)
class Formal:
    """One input or output, as the shape line describes it."""

    name: str
    type: str
    axes: tuple[Expression, ...]
    optional: bool = False
    variadic: bool = False
    broadcast: bool = False
    host: bool = False

    @property
    def shape(self) -> str:
        text = " ".join(map(str, self.axes))
        return f"<{text}>" if self.broadcast else f"[{text}]"

    def __str__(self) -> str:
        host = "host " if self.host else ""
        return f"{'*' if self.variadic else ''}{self.name}: {host}{self.type}{'?' if self.optional else ''}{self.shape}"


@dataclass(frozen=True)
class Signature:
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]

    def binding_order(self) -> list[int]:
        """The inputs that bind names, such that each has at most one run of axes that is still unknown when its turn comes."""
        waiting = [i for i, formal in enumerate(self.inputs) if not formal.broadcast]
        order: list[int] = []
        known: set[str] = {formal.name for formal in self.inputs if formal.host}
        while waiting:
            for index in waiting:
                axes = self.inputs[index].axes
                unknown = [axis.name for axis in axes if isinstance(axis, Group) and axis.name not in known]
                computed = [axis for axis in axes if not isinstance(axis, Name | Group)]
                ready = all(name.name in known for axis in computed for name in names_in(axis))
                if len(unknown) <= 1 and ready:
                    known |= {axis.name for axis in axes if isinstance(axis, Name | Group)}
                    order.append(index)
                    waiting.remove(index)
                    break
            else:
                stuck = ", ".join(str(self.inputs[i]) for i in waiting)
                raise ValueError(
                    f"the shapes of {stuck} cannot be told apart: more than one unknown run of axes, or an unbound name"
                )
        return order


_TOKEN = re.compile(r"\s*(?:(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)|(?P<symbol>\.\.\.|->|//|[-+*/%()<>\[\]?:,]))")


class _Parser:
    """A recursive-descent parser of shape lines. A space before `*` begins a new axis, so that `T[N *D]` has two."""

    def __init__(self, text: str, attributes: Collection[str] = ()) -> None:
        self.text = text
        self.attributes = attributes
        self.tokens: list[tuple[str, str, int, bool]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if not match:
                raise self.error(at, "no such token")
            kind = match.lastgroup or ""
            self.tokens.append((kind, match[kind], match.start(kind), match.start(kind) > at))
            at = match.end()
        self.position = 0

    def error(self, at: int, what: str) -> ValueError:
        return ValueError(f"shape line: {what}\n  {self.text}\n  {' ' * at}^")

    def peek(self) -> str:
        return self.tokens[self.position][1] if self.position < len(self.tokens) else ""

    def spaced(self) -> bool:
        return self.position < len(self.tokens) and self.tokens[self.position][3]

    def take(self, expected: str | None = None, kind: str | None = None) -> str:
        at = self.tokens[self.position][2] if self.position < len(self.tokens) else len(self.text)
        if self.position == len(self.tokens) or (expected is not None and self.peek() != expected):
            raise self.error(at, f"expected {expected or kind!r}")
        if kind is not None and self.tokens[self.position][0] != kind:
            raise self.error(at, f"expected a {kind}")
        self.position += 1
        return self.tokens[self.position - 1][1]

    def accept(self, symbol: str) -> bool:
        if self.peek() != symbol:
            return False
        self.position += 1
        return True

    def signature(self) -> Signature:
        inputs = self.formals("->")
        self.take("->")
        return Signature(tuple(inputs), tuple(self.formals("")))

    def formals(self, end: str) -> list[Formal]:
        result = [self.formal()]
        while self.peek() != end:
            self.take(",")
            result.append(self.formal())
        return result

    def formal(self) -> Formal:
        variadic = self.accept("*")
        name = self.take(kind="name")
        self.take(":")
        type_ = self.take(kind="name")
        host = type_ == "host"
        if host:
            type_ = self.take("int64")
        optional = self.accept("?")
        broadcast = self.accept("<")
        if not broadcast:
            self.take("[")
        close = ">" if broadcast else "]"
        axes: list[Expression] = []
        while self.peek() != close:
            axes.append(self.axis())
        self.take(close)
        return Formal(name, type_, tuple(axes), optional, variadic, broadcast, host)

    def axis(self) -> Expression:
        if self.accept("..."):
            return Group(OUTER)
        if self.accept("*"):
            name = self.take(kind="name")
            return Apply(name, self.arguments(), group=True) if self.peek() == "(" else Group(name)
        return self.sum(inside=False)

    def arguments(self) -> tuple[Expression, ...]:
        self.take("(")
        result: list[Expression] = []
        while self.peek() != ")":
            if result:
                self.take(",")
            if self.accept("*"):
                result.append(Group(self.take(kind="name")))
            elif self.accept("..."):
                result.append(Group(OUTER))
            else:
                result.append(self.sum(inside=True))
        self.take(")")
        return tuple(result)

    def sum(self, inside: bool) -> Expression:
        left = self.product(inside)
        while self.peek() in ("+", "-") and (inside or not self.spaced()):
            left = Binary(self.take(), left, self.product(inside))
        return left

    def product(self, inside: bool) -> Expression:
        left = self.atom()
        while self.peek() in ("*", "//", "%") and (inside or not self.spaced()):
            left = Binary(self.take(), left, self.atom())
        return left

    def atom(self) -> Expression:
        if self.accept("("):
            inner = self.sum(inside=True)
            self.take(")")
            return inner
        if self.position < len(self.tokens) and self.tokens[self.position][0] == "number":
            return Number(int(self.take()))
        name = self.take(kind="name")
        if self.peek() == "(":
            return Apply(name, self.arguments())
        return Parameter(name) if name in self.attributes else Name(name)


# --- binding shapes -------------------------------------------------------------------------------------------------


@dataclass
class Bindings:
    """What the names of a shape line stand for in one call. A size that is not known is a symbol (str) or None."""

    sizes: dict[str, Axis] = field(default_factory=dict)
    runs: dict[str, tuple[Axis, ...]] = field(default_factory=dict)
    #: The shapes of the inputs of a variadic formal `*xs: T[*X]`; None for one that is not known.
    lists: dict[str, tuple[tuple[Axis, ...] | None, ...]] = field(default_factory=dict)

    def value(self, expression: Expression, attributes: Mapping[str, Any]) -> Axis:
        match expression:
            case Number(value):
                return value
            case Name(name):
                return self.sizes.get(name)
            case Parameter(name):
                return typing.cast(int, attributes[name])
            case Binary(operator, left, right):
                a, b = self.value(left, attributes), self.value(right, attributes)
                if not isinstance(a, int) or not isinstance(b, int):
                    return None
                return {"+": a + b, "-": a - b, "*": a * b, "//": a // b if b else 0, "%": a % b if b else 0}[operator]
            case Apply(function, arguments, False):
                values = [self.value(argument, attributes) for argument in arguments]
                if any(not isinstance(value, int) for value in values):
                    return None
                return typing.cast(int, _shapes.call(function, values, attributes))
        raise AssertionError(expression)

    def axes(self, formal: Formal, attributes: Mapping[str, Any]) -> tuple[Axis, ...] | None:
        """The shape that the line gives; None where a run of axes is not known."""
        result: list[Axis] = []
        for axis in formal.axes:
            if isinstance(axis, Group):
                if axis.name not in self.runs:
                    return None
                result.extend(self.runs[axis.name])
            elif isinstance(axis, Apply) and axis.group:
                values: list[Any] = []
                for argument in axis.arguments:
                    if isinstance(argument, Group) and argument.name in self.lists:
                        values.append(self.lists[argument.name])
                    elif isinstance(argument, Group):
                        if argument.name not in self.runs:
                            return None
                        values.append(self.runs[argument.name])
                    else:
                        values.append(self.value(argument, attributes))
                run = _shapes.call(axis.function, values, attributes)
                if run is None:
                    return None
                result.extend(typing.cast(tuple[Axis, ...], run))
            else:
                result.append(self.value(axis, attributes))
        return tuple(result)


def _agree(a: Axis, b: Axis) -> bool:
    return a == b or not isinstance(a, int) or not isinstance(b, int)


def _more_exact(a: Axis, b: Axis) -> Axis:
    if isinstance(a, int) or b is None:
        return a
    return b if isinstance(b, int) or a is None else a


# --- attributes -----------------------------------------------------------------------------------------------------

MISSING = inspect.Parameter.empty


@dataclass(frozen=True)
class Attribute:
    """An attribute. `kind` is int, float, bool, str (one of `choices`, or what `parsed` parses), ints or floats; `nullable` if it
    may be left out to mean None."""

    name: str
    kind: Literal["int", "float", "bool", "str", "ints", "floats"]
    default: Any = MISSING
    choices: tuple[str, ...] = ()
    range: Range = Range()
    nullable: bool = False
    parsed: Parsed | None = None

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def expected(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        kind = {
            "bool": "True or False",
            "str": "a text",
            "ints": "a list of ints",
            "floats": "a list of floats",
            "int": "an int",
            "float": "a float",
        }[self.kind]
        bounds = f" {self.range}" if self.range != Range() else ""
        return f"{kind}{bounds}{' or None' if self.nullable else ''}"

    def check(self, where: str, value: Any) -> Any:
        """The value in its own type; raises OpError if it is none that the attribute takes."""
        wrong = OpError(f"{where}: attribute {self.name}: expected {self.expected}, got {value!r}")
        if value is None and self.nullable:
            return None
        if self.choices:
            if value not in self.choices:
                raise wrong
            return value
        if self.kind == "str":
            if not isinstance(value, str):
                raise wrong
            return value
        if self.kind in ("ints", "floats"):
            if isinstance(value, str | bytes) or not isinstance(value, Sequence | np.ndarray):
                raise wrong
            element = Attribute(self.name, "int" if self.kind == "ints" else "float", range=self.range)
            try:
                return tuple(element.check(where, item) for item in value)
            except OpError:
                raise wrong from None
        if self.kind == "bool":
            if not isinstance(value, bool | np.bool_) and not (isinstance(value, int) and value in (0, 1)):
                raise wrong
            return bool(value)
        if isinstance(value, bool | np.bool_):
            raise wrong
        if self.kind == "int":
            if not isinstance(value, int | np.integer):
                raise wrong
            value = int(value)
            if not -(2**63) <= value < 2**63:
                raise wrong
        else:
            if not isinstance(value, int | float | np.integer | np.floating):
                raise wrong
            value = float(value)
        if value != value or value not in self.range:
            raise wrong
        return value


def _attribute(name: str, annotation: Any, default: Any) -> Attribute:
    bounds, nullable, choices, parsed = Range(), False, (), None
    if type(None) in typing.get_args(annotation):
        nullable = True
        annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
    if typing.get_origin(annotation) is Annotated:
        annotation, *extras = typing.get_args(annotation)
        bounds = next((extra for extra in extras if isinstance(extra, Range)), bounds)
        parsed = next((extra for extra in extras if isinstance(extra, Parsed)), None)
    if typing.get_origin(annotation) is Literal:
        choices, annotation = typing.get_args(annotation), str
    kinds = {int: "int", float: "float", bool: "bool", str: "str", tuple[int, ...]: "ints", tuple[float, ...]: "floats"}
    if annotation not in kinds or (annotation is str and not choices and parsed is None):
        raise TypeError(
            f"attribute {name}: {annotation!r} is none of int, float, bool, Literal, tuple[int, ...], tuple[float, ...] and a Parsed str"
        )
    return Attribute(name, typing.cast(Any, kinds[annotation]), default, choices, bounds, nullable, parsed)


# --- operators ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Inputs that an operator is afraid of: arrays (or None) by input name, beside the attributes; see testing.py."""

    inputs: Callable[..., Mapping[str, Any]]  # of a numpy.random.Generator; of a variadic input a list
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


Sampler = Callable[[np.random.Generator, tuple[int, ...], Mapping[str, Any]], np.ndarray]


@dataclass(frozen=True)
class Testing:
    """What the generic tests need to know of an operator, where the declaration does not tell it.

    Args:
        cases: Inputs to test beside the standard ones.
        attributes: Of the standard samples; one that has no default needs a value here.
        samples: How to draw an input, by its name: of a generator, the shape, and the sizes and runs that are bound.
        sizes: Changes the sizes and runs of axes that the tests have chosen to ones that go together.
        accepts: Whether the operator takes a standard sample, of the inputs by name (None: absent) and the attributes; where
            some inputs and attributes exclude each other.
        bar: Allowed error, by type, in steps of that type's epsilon; 1 for 16-bit types and 8 for wider ones unless given.
            Each one is to say why.
        fixed: Inputs that keep their values when a captured graph is replayed with others (offsets, say).
        terms: Called like the operator (in float64, of the attributes only those that are not their default): the size of
            the terms that results are summed from. Where they cancel, errors are relative to it.
    """

    cases: tuple[Case, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, Sampler] = field(default_factory=dict)
    sizes: Callable[[dict[str, Any]], dict[str, Any]] = dict
    accepts: Callable[[Mapping[str, np.ndarray | None], Mapping[str, Any]], bool] = lambda inputs, attributes: True
    bar: Mapping[str, float] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    terms: Callable[..., Any] | None = None


@dataclass(eq=False)
class Op:
    """An operator. Call it on graph values to append a node, on arrays to compute."""

    name: str
    function: Callable[..., Any]
    family: str
    layouts: Mapping[str, Signature]
    layout: str | None
    types: Mapping[str, tuple[str, ...]]
    attributes: tuple[Attribute, ...]
    by_size: frozenset[str]
    testing: Testing = Testing()
    variants: int = VARIANTS
    body: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None
    chooser: Callable[..., str] | None = None

    def __post_init__(self) -> None:
        self.__name__ = self.function.__name__
        self.__doc__ = self.help()
        self.__module__ = self.function.__module__
        self.__signature__ = inspect.signature(self.function)
        self.__wrapped__ = self.function

    # The parts that are the same in every layout are read off the first.

    @property
    def inputs(self) -> tuple[Formal, ...]:
        return next(iter(self.layouts.values())).inputs

    @property
    def outputs(self) -> tuple[Formal, ...]:
        return next(iter(self.layouts.values())).outputs

    @property
    def result(self) -> str | None:
        """The type variable that only outputs have."""
        taken = {formal.type for formal in self.inputs}
        return next((f.type for f in self.outputs if f.type in self.types and f.type not in taken), None)

    @property
    def op_types(self) -> tuple[str, ...]:
        """The ONNX op types: one, or one for each of the result types."""
        return tuple(self.op_type({self.result: t}) for t in self.types[self.result]) if self.result else (self.name,)

    def op_type(self, types: Mapping[str, str]) -> str:
        """The ONNX op type of a call in which the type variables have these types."""
        if self.result is None:
            return self.name
        if self.result not in types:
            raise OpError(f"{self.name}: its result type depends on the types of its inputs, which are not all known")
        return f"{self.name}{_TITLES[types[self.result]]}"

    @property
    def doc(self) -> str:
        return inspect.cleandoc(self.function.__doc__ or "")

    def help(self) -> str:
        """What `help()` shows: how it is called, what it does, what it takes and gives."""
        inputs = [f"*{f.name}" if f.variadic else f"{f.name}=None" if f.optional else f.name for f in self.inputs]
        after_star = [] if self.inputs[-1].variadic else ["*"]
        given = [a.name if a.required else f"{a.name}={a.default!r}" for a in self.attributes]
        arguments = ", ".join([*inputs, *after_star, *given, "outputs=None"])
        blocks = {
            "Inputs": [str(f) for f in self.inputs],
            "Outputs": [str(f) for f in self.outputs],
            **{
                f"With {self.layout} = {value}": [str(f) for f in signature.inputs + signature.outputs]
                for value, signature in list(self.layouts.items())[1:]
            },
            "Attributes": [f"{a.name}: {a.expected}" for a in self.attributes],
            "Types": [f"{variable}: {', '.join(allowed)}" for variable, allowed in self.types.items()],
        }
        lines = [f"{self.function.__name__}({arguments})", "", self.doc]
        for title, block in blocks.items():
            lines += ["", f"{title}:", *(f"    {line}" for line in block)] if block else []
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        return re.sub(r"\s+", " ", self.doc.split("\n\n")[0])

    def __repr__(self) -> str:
        return f"<ortops op {self.name}>"

    def signature(self, attributes: Mapping[str, Any]) -> Signature:
        return self.layouts[attributes[self.layout] if self.layout else ""]

    def type_sets(self, device: str = "cpu") -> Iterator[dict[str, str]]:
        """Every way to give the type variables their types, in the declaration's order. What is computed in float64 has kernels on
        the CPU alone; what is only moved has them on both."""

        def expand(variables: list[str], chosen: dict[str, str]) -> Iterator[dict[str, str]]:
            if not variables:
                yield dict(chosen)
                return
            for type_ in self.types[variables[0]]:
                yield from expand(variables[1:], chosen | {variables[0]: chosen.get(type_, type_)})

        for chosen in expand(list(self.types), {}):
            if device == "cpu" or all(t != "float64" or v in self.by_size for v, t in chosen.items()):
                yield chosen

    def decomposition(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Registers the function that builds the operator from standard ONNX nodes. It is called like the operator itself,
        on graph values and with every attribute given, and may ask a value for its rank and its type."""
        if list(inspect.signature(body).parameters) != list(inspect.signature(self.function).parameters):
            raise TypeError(f"{self.name}: the decomposition takes other arguments than the operator")
        self.body = body
        return body

    def result_type(self, chooser: Callable[..., str]) -> Callable[..., str]:
        """Registers the function that tells the result type: of the inputs' types, in a list, and the attributes by name. Its
        ValueError is one of the call."""
        self.chooser = chooser
        return chooser

    def gradient(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """Registers the function that builds the operator's gradient on graph values.

        Its positional parameters say what it needs: an input or an output by its name, `d_<output>` for the gradient of an output
        (None if nothing flows back through that one); its keyword-only parameters are attributes. An optional output that the node
        does not give yet is added to it; but a parameter with a default (None) has it where the output is not there. It returns a
        dictionary from the names of inputs to their gradients (None: zero; of a variadic input a list), or the gradient itself
        where the operator has only one input that can have one. See ortops/training.
        """
        parameters = inspect.signature(backward).parameters.values()
        inputs, outputs = {f.name for f in self.inputs}, {f.name for f in self.outputs}
        known = inputs | outputs | {f"d_{name}" for name in outputs}
        for parameter in parameters:
            allowed = {a.name for a in self.attributes} if parameter.kind is parameter.KEYWORD_ONLY else known
            if parameter.name not in allowed:
                raise TypeError(
                    f"{self.name}: the gradient's parameter {parameter.name} is none of {', '.join(sorted(allowed))}"
                )
        self.backward = backward
        return backward

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The inputs that can have a gradient: those of a floating type."""
        return tuple(
            f.name
            for f in self.inputs
            if f.type == "any" or any("float" in t for t in self.types.get(f.type, (f.type,)) if t not in self.types)
        )

    # --- calling

    def arguments(self, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Sorts a call's arguments into inputs (None where absent) and attributes (checked, with defaults)."""
        keywords = dict(keywords)
        variadic = self.inputs[-1].variadic
        values: list[Any] = list(inputs)
        if not variadic and len(values) > len(self.inputs):
            raise OpError(
                f"{self.name}: expected at most {len(self.inputs)} inputs ({', '.join(f.name for f in self.inputs)}), got {len(values)};"
                " attributes go by name"
            )
        for index, value in enumerate(values):
            if not isinstance(value, list | tuple):
                continue
            what = "values" if any(hasattr(entry, "__ortops_call__") for entry in value) else ""
            if not what and self.formal_of(index).variadic and any(isinstance(entry, np.ndarray) for entry in value):
                what = "arrays"  # which numpy would make one array of, by an axis in front
            if what:
                raise OpError(
                    f"{self.name}: {self.formal_of(index).name}: expected a value or an array, got a {type(value).__name__} of"
                    f" {what}; give each as an argument of its own"
                )
        for index, formal in enumerate(self.inputs):
            if formal.variadic:
                continue
            if formal.name in keywords:
                if index < len(values):
                    raise OpError(f"{self.name}: input {formal.name} is given twice, by position and by name")
                values += [None] * (index - len(values)) + [keywords.pop(formal.name)]
            elif index >= len(values):
                values.append(None)
            if values[index] is None and not formal.optional:
                raise OpError(f"{self.name}: input {formal.name} is missing; expected {formal}")
        return values, self.check_attributes(keywords)

    def check_attributes(self, given: Mapping[str, Any], where: str | None = None) -> dict[str, Any]:
        """The attributes with defaults filled in; raises OpError for an unknown, missing, ill-typed or out-of-range one."""
        where = where or self.name
        known = {attribute.name: attribute for attribute in self.attributes}
        for name in given:
            if name not in known:
                raise OpError(f"{where}: unknown attribute {name}; it has {', '.join(known) or 'none'}")
        result = {}
        for name, attribute in known.items():
            if name in given:
                result[name] = attribute.check(where, given[name])
            elif attribute.required:
                raise OpError(f"{where}: attribute {name} is missing; expected {attribute.expected}")
            else:
                result[name] = attribute.default
        return result

    def formal_of(self, index: int) -> Formal:
        return self.inputs[min(index, len(self.inputs) - 1)]

    def bind_types(
        self,
        types: Sequence[str | None],
        attributes: Mapping[str, Any],
        where: str | None = None,
        also: Sequence[str] = (),
    ) -> dict[str, str]:
        """The types of the variables; raises OpError for a type that the operator does not take. An unknown type (None) binds nothing.
        `also` are types that are let pass for any variable that may be a float (float64, in references)."""
        where = where or self.name
        bound: dict[str, str] = {}
        for index, type_ in enumerate(types):
            formal = self.formal_of(index)
            if type_ is None:
                continue
            if formal.type == "any":
                if type_ not in ELEMENT_TYPES:
                    raise OpError(f"{where}: {formal.name}: expected numbers or booleans, got {type_}")
                continue
            if formal.type in ELEMENT_TYPES:
                if type_ != formal.type and not (type_ in also and "float" in formal.type):
                    raise OpError(f"{where}: {formal.name}: expected type {formal.type}, got {type_}")
                continue
            allowed = [bound.get(choice, choice) for choice in self.types[formal.type]]
            if type_ not in allowed and not (type_ in also and any("float" in choice for choice in allowed)):
                raise OpError(f"{where}: {formal.name}: expected type {' or '.join(allowed)}, got {type_}")
            if formal.type in bound and not formal.variadic and bound[formal.type] != type_:
                raise OpError(
                    f"{where}: {formal.name}: expected type {bound[formal.type]}, as the inputs before it have, got {type_}"
                )
            bound.setdefault(formal.type, type_)
        if self.result is not None and None not in types:
            assert self.chooser is not None, f"{self.name} has no result_type"
            try:
                bound[self.result] = self.chooser(list(types), **attributes)
            except ValueError as error:
                raise OpError(f"{where}: {error}") from None
        return bound

    def bind_shapes(
        self,
        shapes: Sequence[Sequence[Axis] | None],
        attributes: Mapping[str, Any],
        where: str | None = None,
        values: Mapping[str, Sequence[int] | None] | None = None,
    ) -> Bindings:
        """Matches the inputs' shapes (None: absent, or of unknown rank) with the shape line; raises OpError where they do not fit.
        `values` are those of host inputs by name, as far as they are there and known (None: there, but not known)."""
        where = where or self.name
        signature = self.signature(attributes)
        bindings = Bindings()
        for index in signature.binding_order():
            formal = signature.inputs[index]
            if formal.variadic:
                bindings.lists[typing.cast(Group, formal.axes[0]).name] = tuple(
                    None if shape is None else tuple(shape) for shape in shapes[index:]
                )
            elif index < len(shapes) and shapes[index] is not None:
                given = tuple(typing.cast(Sequence[Axis], shapes[index]))
                try:
                    self._match(signature.inputs[index], given, bindings, attributes, where)
                except OpError:
                    raise
                except ValueError as error:  # of a shape function that an axis is computed by
                    raise OpError(f"{where}: {error}") from None
        for formal, shape in itertools.zip_longest(signature.inputs, shapes[: len(signature.inputs)]):
            if formal.host:
                values = values or {}
                held: Sequence[Axis] | None = values.get(formal.name)
                if held is None and shape is not None and isinstance(shape[0], int):
                    held = [None] * shape[0]
                absent = shape is None and formal.name not in values
                if held is not None or absent:
                    bindings.runs[formal.name] = tuple(held or ())
            if formal.broadcast and shape is not None:
                full = bindings.axes(formal, attributes)
                fits = full is None or (
                    len(shape) <= len(full)
                    and all(a == 1 or _agree(a, b) for a, b in zip(reversed(shape), reversed(full), strict=False))
                )
                if not fits:
                    expected = f"a shape that broadcasts to {self._explain(formal, bindings, attributes)}"
                    raise OpError(f"{where}: {formal.name}: expected {expected}, got {_text(shape)}")
        return bindings

    def _match(
        self, formal: Formal, shape: tuple[Axis, ...], bindings: Bindings, attributes: Mapping[str, Any], where: str
    ) -> None:
        wrong = OpError(
            f"{where}: {formal.name}: expected shape {self._explain(formal, bindings, attributes)}, got {_text(shape)}"
        )
        unknown = [axis for axis in formal.axes if isinstance(axis, Group) and axis.name not in bindings.runs]
        if len(unknown) > 1:
            return  # an input that would tell where one run ends is of unknown rank
        length = len(shape) - sum(
            len(bindings.runs[a.name]) if isinstance(a, Group) else 1 for a in formal.axes if a not in unknown
        )
        if length < 0 or (length > 0 and not unknown):
            raise wrong
        at = 0
        for axis in formal.axes:
            if isinstance(axis, Group):
                run = bindings.runs.get(axis.name)
                count = length if run is None else len(run)
                came = shape[at : at + count]
                if run is None:
                    bindings.runs[axis.name] = came
                elif all(map(_agree, run, came)):
                    bindings.runs[axis.name] = tuple(map(_more_exact, run, came))
                else:
                    raise wrong
                at += count
                continue
            expected = bindings.value(axis, attributes)
            if not _agree(expected, shape[at]):
                raise wrong
            if isinstance(axis, Name):
                bindings.sizes[axis.name] = _more_exact(expected, shape[at])
            at += 1

    def _explain(self, formal: Formal, bindings: Bindings, attributes: Mapping[str, Any]) -> str:
        known = [
            f"{n} = {v}"
            for n, v in bindings.sizes.items()
            if any(n == x.name for a in formal.axes for x in names_in(a))
        ]
        known += [
            f"{Group(n)} = {_text(r)}"
            for n, r in bindings.runs.items()
            if any(n == x.name for a in formal.axes for x in names_in(a))
        ]
        computed = {
            str(axis): bindings.value(axis, attributes)
            for axis in formal.axes
            if not isinstance(axis, Number | Name | Group) and not (isinstance(axis, Apply) and axis.group)
        }
        known += [f"{text} = {value}" for text, value in computed.items() if value is not None]
        return f"[{' '.join(map(str, formal.axes))}]" + (f" with {', '.join(known)}" if known else "")

    def surely_takes(self, shapes: Mapping[str, Sequence[Axis] | None], attributes: Mapping[str, Any]) -> bool:
        """Whether the inputs that are there, of these shapes by name (None: of unknown rank), fit together, whatever the symbols
        in the shapes stand for."""
        if None in shapes.values() or sum(None in (shape or ()) for shape in shapes.values()) > 1:
            return False
        formals = self.signature(attributes).inputs
        try:
            bindings = self.bind_shapes([shapes.get(formal.name) for formal in formals], attributes)
        except OpError:
            return False
        return all(
            bindings.axes(formal, attributes) == tuple(shapes[formal.name] or ())
            for formal in formals
            if formal.name in shapes
        )

    def output_shapes(
        self, bindings: Bindings, attributes: Mapping[str, Any], where: str | None = None
    ) -> list[tuple[Axis, ...] | None]:
        """The outputs' shapes; raises OpError where a shape function finds the inputs unfit."""
        try:
            return [bindings.axes(formal, attributes) for formal in self.signature(attributes).outputs]
        except ValueError as error:
            raise OpError(f"{where or self.name}: {error}") from None

    def output_types(self, types: Mapping[str, str]) -> list[str | None]:
        return [formal.type if formal.type in ELEMENT_TYPES else types.get(formal.type) for formal in self.outputs]

    def chosen_outputs(self, outputs: Sequence[str] | None) -> list[str]:
        """The outputs to give: the required ones, or those named."""
        names = [formal.name for formal in self.outputs]
        required = [formal.name for formal in self.outputs if not formal.optional]
        if outputs is None:
            return required
        if isinstance(outputs, str) or any(name not in names for name in outputs) or not set(required) <= set(outputs):
            raise OpError(
                f"{self.name}: outputs: expected names out of {', '.join(names)}, with {', '.join(required)} among them, got {outputs!r}"
            )
        return list(outputs)

    def host_values(self, arrays: Sequence[np.ndarray | None]) -> dict[str, Sequence[int]]:
        """What the host inputs among these hold."""
        return {
            formal.name: array.tolist()
            for formal, array in zip(self.inputs, arrays, strict=False)
            if formal.host and array is not None
        }

    def reference(self, *inputs: Any, **attributes: Any) -> tuple[np.ndarray, ...]:
        """Computes in float64, every output unrounded."""
        values, given = self.arguments(inputs, attributes)
        arrays = [None if value is None else np.asarray(value) for value in values]
        types = [None if array is None else str(array.dtype) for array in arrays]
        self.bind_types(types, given, also=("float64",))
        bindings = self.bind_shapes(
            [None if array is None else array.shape for array in arrays], given, values=self.host_values(arrays)
        )
        self.output_shapes(bindings, given)
        wide = [a.astype(np.float64) if a is not None and "float" in str(a.dtype) else a for a in arrays]
        with np.errstate(all="ignore"):
            result = self.function(*wide, **given)
        return result if isinstance(result, tuple) else (result,)

    def __call__(self, *inputs: Any, outputs: Sequence[str] | None = None, **attributes: Any) -> Any:
        for value in (*inputs, *attributes.values()):
            if hasattr(value, "__ortops_call__"):
                return value.__ortops_call__(self, inputs, attributes, outputs)
        chosen = self.chosen_outputs(outputs)
        results = self.reference(*inputs, **attributes)
        values, given = self.arguments(inputs, attributes)
        types = self.bind_types(
            [None if v is None else str(np.asarray(v).dtype) for v in values], given, also=("float64",)
        )
        arrays = []
        for formal, type_, result in zip(self.outputs, self.output_types(types), results, strict=True):
            if formal.name in chosen:
                arrays.append(np.asarray(result).astype(element_type(type_ or "float64")))
        return arrays[0] if len(arrays) == 1 else tuple(arrays)


#: How op types spell the types.
_TITLES = {name: name.capitalize().replace("Uint", "UInt").replace("Bfloat", "BFloat") for name in ELEMENT_TYPES}


def element_type(name: str) -> np.dtype[Any]:
    """The numpy type of that name."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _text(shape: Sequence[Axis]) -> str:
    return "[" + ", ".join("?" if axis is None else str(axis) for axis in shape) + "]"


_registry: dict[str, Op] = {}
_op_types: dict[str, Op] = {}


def ops() -> tuple[Op, ...]:
    """Every operator of the library, in the order of declaration."""
    from ortops import ops as _  # noqa: F401  (declares them)

    return tuple(_registry.values())


def find(op_type: str) -> Op | None:
    """The operator of that ONNX op type; any of its variant names will do."""
    ops()
    base, _, number = op_type.rpartition("_")
    variant = _op_types.get(base) or _registry.get(base)
    if variant is not None and number.isdigit() and 2 <= int(number) <= variant.variants:
        return variant
    return _op_types.get(op_type) or _registry.get(op_type)


def op(
    line: str | Mapping[str, str],
    *,
    name: str,
    layout: str | None = None,
    by_size: Sequence[str] = (),
    testing: Testing = Testing(),
    register: bool = True,
    variants: int = VARIANTS,
    **types: tuple[str, ...],
) -> Callable[[Callable[..., Any]], Op]:
    """Declares an operator.

    Args:
        line: The shape line; or, where the attribute `layout` chooses it, one for each of that attribute's values.
        name: The ONNX op type, a name that ONNX itself does not use.
        layout: The attribute that chooses the line.
        by_size: Type variables of which a kernel need only know the element's size (moves).
        testing: What the generic tests need to know.
        register: False for a declaration that is to be looked at, not built.
        variants: How many names it has in a file, for an operator that has many kinds of calls.
        types: The types of each type variable. One type may be the name of a variable before it.
    """

    def declare(function: Callable[..., Any]) -> Op:
        lines = {"": line} if isinstance(line, str) else dict(line)
        parameters = inspect.signature(function).parameters.values()
        hints = typing.get_type_hints(function, include_extras=True)
        positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        attributes = tuple(_attribute(p.name, hints[p.name], p.default) for p in parameters if p.kind is p.KEYWORD_ONLY)
        layouts = {value: _Parser(text, [a.name for a in attributes]).signature() for value, text in lines.items()}
        for signature in layouts.values():
            if [(f.name, f.variadic) for f in signature.inputs] != [
                (p.name, p.kind is p.VAR_POSITIONAL) for p in positional
            ]:
                raise TypeError(f"{name}: the shape line names other inputs than the function")
            for formal in (*signature.inputs, *signature.outputs):
                alone = len(formal.axes) == 1 and isinstance(formal.axes[0], Group)
                if formal.variadic and (formal is not signature.inputs[-1] or not alone):
                    raise TypeError(
                        f"{name}: {formal.name}: only the last input may be variadic, and its shape is one run of axes"
                    )
                if formal.type not in ELEMENT_TYPES and formal.type not in types and formal.type != "any":
                    raise TypeError(
                        f"{name}: {formal.name} has the type {formal.type}, which is neither a type nor a variable that is given types"
                    )
            signature.binding_order()
            axes = [axis for formal in (*signature.inputs, *signature.outputs) for axis in formal.axes]
            clash = {found.name for axis in axes for found in names_in(axis)} & {
                f.name for f in (*signature.inputs, *signature.outputs) if not f.host
            }
            if clash:
                raise TypeError(f"{name}: {', '.join(clash)} is a size as well as an input or output")
        if layout is not None:
            chooser = next((a for a in attributes if a.name == layout), None)
            if chooser is None or set(chooser.choices) != set(layouts):
                raise TypeError(
                    f"{name}: {layout} is to choose the line, but is not an attribute with the choices {', '.join(layouts)}"
                )
        declared = Op(
            name=name,
            function=function,
            family=function.__module__.rpartition(".")[2],
            layouts=layouts,
            layout=layout,
            types=types,
            attributes=attributes,
            by_size=frozenset(by_size),
            testing=testing,
            variants=variants,
        )
        if register:
            if name in _registry:
                raise TypeError(f"{name} is declared twice")
            _registry[name] = declared
            _op_types.update(dict.fromkeys(declared.op_types, declared))
        return declared

    return declare
