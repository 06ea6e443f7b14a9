"""The gradients of ONNX's own operators that stand between ours: arithmetic, matrix products, reductions, reshaping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np
import onnx_ir as ir

from ortops import ops
from ortops._declare import ELEMENT_TYPES, OpError
from ortops._standard import onnx
from ortops.graph import Value

__all__ = ["RULES", "Call"]


@dataclass(frozen=True)
class Call:
    """A node, and the gradients that arrive at its outputs (None: nothing does; at least one is there)."""

    where: str
    inputs: Sequence[Any]  # of Value | None, as the others
    outputs: Sequence[Any]
    d_outputs: Sequence[Any]
    attributes: dict[str, Any]

    @property
    def x(self) -> Value:
        value: Value = self.inputs[0]
        return value

    @property
    def y(self) -> Value:
        value: Value = self.outputs[0]
        return value

    @property
    def d(self) -> Value:
        value: Value = self.d_outputs[0]
        return value

    def input(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def rank(self, value: Value) -> int:
        if value.rank is None:
            raise OpError(f"{self.where}: its gradient needs the rank of {value.name}; give its input a shape")
        return value.rank

    def constant(self, name: str, value: Value | None) -> tuple[int, ...] | None:
        """The numbers that an input holds; None if it is absent."""
        if value is None:
            return None
        tensor = ir.convenience.get_const_tensor(value._ir)
        if tensor is None:
            raise OpError(f"{self.where}: {name}: its gradient needs a constant, got {value!r}")
        return tuple(int(number) for number in tensor.numpy().ravel())


#: Of a call: the gradients of its inputs, in their order, or of the only one that can have one. Absent ones are zero.
Rule = Callable[[Call], Sequence[Value | None] | Value]

RULES: dict[str, Rule] = {
    "Identity": lambda call: call.d,
    "Neg": lambda call: -call.d,
    "Abs": lambda call: call.d * onnx.Sign(call.x),
    "Exp": lambda call: call.d * call.y,
    "Log": lambda call: call.d / call.x,
    "Sqrt": lambda call: 0.5 * call.d / call.y,
    "Reciprocal": lambda call: -call.d * call.y * call.y,
    "Erf": lambda call: call.d * (2 / sqrt(pi)) * onnx.Exp(-call.x * call.x),
    "Relu": lambda call: onnx.Where(onnx.LessOrEqual(call.y, 0.0), 0.0, call.d),
    "Sigmoid": lambda call: call.d * call.y * (1.0 - call.y),
    "Tanh": lambda call: call.d * (1.0 - call.y * call.y),
    "Cast": lambda call: onnx.CastLike(call.d, call.x),
    "CastLike": lambda call: onnx.CastLike(call.d, call.x),
    "Transpose": lambda call: onnx.Transpose(call.d, perm=_inverse(call)),
    "Expand": lambda call: sum_to(call.d, call.x),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), lambda call: reshape_like(call.d, call.x)),
}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, function))
        return function

    return register


# --- what rules share


def shape_of(value: Value) -> Any:
    """The value's shape, as an operator's input: a constant where it is known."""
    shape = value.shape
    return (
        onnx.Shape(value)
        if shape is None or not all(isinstance(size, int) for size in shape)
        else np.array(shape, np.int64)
    )


def size_of(value: Value, axis: int) -> Any:
    """The size of an axis, as a list of one number."""
    size = None if value.shape is None else value.shape[axis]
    return np.array([size], np.int64) if isinstance(size, int) else onnx.Shape(value, start=axis, end=axis + 1)


def sum_to(d: Value, like: Value) -> Value:
    """The gradient of a value that was broadcast: the sum over the axes that it was repeated along."""
    known = like.shape is not None and None not in like.shape and like.shape == d.shape
    result: Value = d if known else ops.sum_to_size(d, like)
    return result


def reshape_like(d: Value, like: Value) -> Value:
    result: Value = onnx.Reshape(d, shape_of(like), allowzero=1)
    return result


def expand_like(d: Value, like: Value) -> Value:
    result: Value = ops.broadcast_to(d, shape_of(like))
    return result


def transposed(value: Value, rank: int) -> Value:
    """With the last two axes exchanged."""
    result: Value = onnx.Transpose(value, perm=[*range(rank - 2), rank - 1, rank - 2])
    return result


# --- arithmetic


@rule("Add", "Sum")
def _(call: Call) -> list[Value]:
    return [sum_to(call.d, x) for x in call.inputs]


@rule("Sub")
def _(call: Call) -> list[Value]:
    a, b = call.inputs
    return [sum_to(call.d, a), -sum_to(call.d, b)]


@rule("Mul")
def _(call: Call) -> list[Value]:
    a, b = call.inputs
    return [sum_to(call.d * b, a), sum_to(call.d * a, b)]


@rule("Div")
def _(call: Call) -> list[Value]:
    a, b = call.inputs
    d_a = call.d / b
    return [sum_to(d_a, a), -sum_to(d_a * call.y, b)]


@rule("Pow")
def _(call: Call) -> list[Value]:
    x, exponent = call.inputs
    power = onnx.CastLike(exponent, x)
    tensor = ir.convenience.get_const_tensor(exponent._ir)
    number = float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None
    if number == 2:
        slope = 2.0 * x
    elif number:
        slope = number * x ** (number - 1)
    else:  # x^0 is 1 for every x, 0 included
        slope = onnx.Where(onnx.Equal(power, 0.0), 0.0, power * x ** (power - 1.0))
    # 0^p is 0 around p > 0, where log(0) is none.
    logarithm = onnx.Log(onnx.Where(onnx.Equal(x, 0.0), 1.0, x))
    return [sum_to(call.d * slope, x), onnx.CastLike(sum_to(call.d * call.y * logarithm, power), exponent)]


@rule("Where")
def _(call: Call) -> list[Value | None]:
    condition, a, b = call.inputs
    return [None, sum_to(onnx.Where(condition, call.d, 0.0), a), sum_to(onnx.Where(condition, 0.0, call.d), b)]


@rule("Softmax")
def _(call: Call) -> Value:
    product = call.d * call.y
    result: Value = product - call.y * onnx.ReduceSum(product, [call.attributes.get("axis", -1)], keepdims=1)
    return result


@rule("LogSoftmax")
def _(call: Call) -> Value:
    total = onnx.ReduceSum(call.d, [call.attributes.get("axis", -1)], keepdims=1)
    result: Value = call.d - onnx.Exp(call.y) * total
    return result


# --- matrix products


@rule("MatMul")
def _(call: Call) -> list[Value]:
    (a, b), d = call.inputs, call.d
    rank_a, rank_b = call.rank(a), call.rank(b)
    wide_a = onnx.Unsqueeze(a, [0]) if rank_a == 1 else a
    wide_b = onnx.Unsqueeze(b, [1]) if rank_b == 1 else b
    if rank_b == 1:
        d = onnx.Unsqueeze(d, [-1])
    if rank_a == 1:
        d = onnx.Unsqueeze(d, [-2])
    d_a = d @ transposed(wide_b, max(rank_b, 2))
    if rank_b <= 2 <= rank_a:  # one product of all rows, not one a matrix to be summed
        d_b = onnx.Gemm(*(onnx.Flatten(value, axis=-1) for value in (a, d)), transA=1)
    else:
        d_b = transposed(wide_a, max(rank_a, 2)) @ d
    if rank_a == 1:
        d_a = onnx.Squeeze(d_a, [-2])
    if rank_b == 1:
        d_b = onnx.Squeeze(d_b, [-1])
    return [sum_to(d_a, a), sum_to(d_b, b)]


@rule("Gemm")
def _(call: Call) -> list[Value | None]:
    (a, b, *c), d = call.inputs, call.d
    transposed_a, transposed_b = call.attributes.get("transA", 0), call.attributes.get("transB", 0)
    alpha, beta = call.attributes.get("alpha", 1.0), call.attributes.get("beta", 1.0)
    d_a = (
        onnx.Gemm(b, d, alpha=alpha, transA=transposed_b, transB=1)
        if transposed_a
        else onnx.Gemm(d, b, alpha=alpha, transB=1 - transposed_b)
    )
    d_b = (
        onnx.Gemm(d, a, alpha=alpha, transA=1, transB=transposed_a)
        if transposed_b
        else onnx.Gemm(a, d, alpha=alpha, transA=1 - transposed_a)
    )
    if not c or c[0] is None:
        return [d_a, d_b]
    d_c = sum_to(d, c[0])
    return [d_a, d_b, d_c if beta == 1.0 else beta * d_c]


# --- reductions


def _reduced(call: Call) -> tuple[Value, bool]:
    """The gradient with 1 in the place of each axis that was reduced; and whether any was."""
    axes, d = call.attributes.get("axes", call.input(1)), call.d
    if axes is None or (call.inputs[-1] is axes and size_of(axes, 0) == 0):
        if call.attributes.get("noop_with_empty_axes", 0):
            return d, False
    elif not call.attributes.get("keepdims", 1):
        d = onnx.Unsqueeze(d, axes)
    return d, True


@rule("ReduceSum")
def _(call: Call) -> Value:
    d, reduced = _reduced(call)
    return expand_like(d, call.x) if reduced else d


@rule("ReduceMean")
def _(call: Call) -> Value:
    d, reduced = _reduced(call)
    if not reduced:
        return d
    # In 16 bits neither the number of elements nor its reciprocal need fit.
    wide = ELEMENT_TYPES["float64" if call.x.dtype == "float64" else "float32"]
    share = onnx.Cast(onnx.Size(call.y), to=wide) / onnx.Cast(onnx.Size(call.x), to=wide)
    return expand_like(onnx.CastLike(onnx.Cast(d, to=wide) * share, d), call.x)


# --- moves


def _inverse(call: Call) -> list[int]:
    perm = call.attributes.get("perm") or list(range(call.rank(call.x)))[::-1]
    return [int(axis) for axis in np.argsort(perm)]


@rule("Concat")
def _(call: Call) -> list[Value]:
    axis = call.attributes["axis"] % call.rank(call.y)
    sizes = [size_of(x, axis) for x in call.inputs]
    if len(sizes) == 1:
        return [call.d]
    known = all(isinstance(size, np.ndarray) for size in sizes)
    split = np.concatenate(sizes) if known else call.y.graph.onnx.Concat(*sizes, axis=0)
    return list(onnx.Split(call.d, split, axis=axis, outputs=len(sizes)))


@rule("Gather")
def _(call: Call) -> Value:
    result: Value = ops.take_gradient(call.d, call.inputs[1], call.x, axis=call.attributes.get("axis", 0))
    return result


@rule("GatherElements")
def _(call: Call) -> Value:
    axis = call.attributes.get("axis", 0)
    result: Value = ops.take_along_axis_gradient(call.d, call.inputs[1], call.x, axis=axis)
    return result


@rule("Slice")
def _(call: Call) -> Value:
    names = ("starts", "ends", "axes", "steps")
    given: dict[str, Any] = {name: call.constant(name, call.input(index)) for index, name in enumerate(names, 1)}
    result: Value = ops.strided_slice_gradient(
        call.d, call.x, **{name: v for name, v in given.items() if v is not None}
    )
    return result


@rule("Split")
def _(call: Call) -> Value:
    parts = [
        onnx.Expand(onnx.CastLike(0.0, y), shape_of(y)) if d is None else d
        for y, d in zip(call.outputs, call.d_outputs, strict=True)
    ]
    result: Value = onnx.Concat(*parts, axis=call.attributes.get("axis", 0))
    return result
