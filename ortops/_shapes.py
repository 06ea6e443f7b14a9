"""The shape functions of shape lines. Each has a twin in cuda/core/shapes.h, and a test compares the two.

A function takes sizes (int) and runs of axes (tuples, in which a size may be unknown) by position, attributes by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

#: The size of an axis: a number, a symbol, or unknown.
Axis = int | str | None


def call(function: str, values: Sequence[Any], attributes: Mapping[str, Any]) -> int | tuple[Axis, ...] | None:
    """Calls a shape function, handing it the attributes that it names."""
    target = FUNCTIONS[function]
    wanted = [p.name for p in inspect.signature(target).parameters.values() if p.kind is p.KEYWORD_ONLY]
    result: int | tuple[Axis, ...] | None = target(*values, **{name: attributes[name] for name in wanted})
    return result


FUNCTIONS: dict[str, Any] = {}
