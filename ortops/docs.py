"""What people read and the declarations say: `python -m ortops.docs` writes it anew, in a checkout.

README.md                 the table of operators, between its markers
ortops/ops/__init__.pyi   the operators as typed functions, for editors and type checkers
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortops._declare import Attribute, Formal, Op, ops

__all__ = ["columns", "describe", "files", "ops", "stubs", "table"]

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- operators: written by python -m ortops.docs -->", "<!-- end of operators -->"

#: Every operator has kernels for both.
PROVIDERS = ("CPUExecutionProvider", "CUDAExecutionProvider")


def describe(op: Op) -> dict[str, Any]:
    """An operator for programs: what JSON can hold."""

    def formal(of: Formal) -> dict[str, Any]:
        return {"name": of.name, "type": of.type, "shape": of.shape, "optional": of.optional, "variadic": of.variadic}

    def attribute(of: Attribute) -> dict[str, Any]:
        about: dict[str, Any] = {"name": of.name, "type": of.kind, "expected": of.expected, "required": of.required}
        return about if of.required else {**about, "default": of.default}

    return {
        "name": op.name,
        "function": f"ortops.ops.{op.__name__}",
        "family": op.family,
        "summary": op.summary,
        "inputs": [formal(of) for of in op.inputs],
        "outputs": [formal(of) for of in op.outputs],
        "layouts": {value: _line(op, value) for value in op.layouts} if op.layout else {},
        "attributes": [attribute(of) for of in op.attributes],
        "types": {variable: list(allowed) for variable, allowed in op.types.items()},
        "providers": list(PROVIDERS),
        "types_without_cuda": {variable: without for variable in op.types if (without := _without_cuda(op, variable))},
        "gradient": op.backward is not None,
    }


def columns(op: Op) -> tuple[str, str, str, str]:
    """Inputs, outputs, attributes and types of an operator, as a table has them."""
    attributes = [of.name if of.required else f"{of.name} = {_default(of)}" for of in op.attributes]
    types = [f"{variable}: {', '.join(allowed)}" for variable, allowed in op.types.items()]
    return (
        "\n".join(map(_formal, op.inputs)),
        "\n".join(map(_formal, op.outputs)),
        "\n".join(attributes),
        "\n".join(types),
    )


def table() -> str:
    """The operators as Markdown: a table of those that one calls, one of those that gradients are made of, and their types."""
    called = [op for op in ops() if not op.name.endswith("Gradient")]
    without = [op.name for op in called if op.backward is None]
    lines = [
        *_rows(called),
        "",
        f"`ortops.gradients` goes through all of them but {_or(without, 'and')}. What it appends may hold these:",
        "",
        *_rows([op for op in ops() if op not in called]),
        "",
    ]
    same: dict[tuple[tuple[str, tuple[str, ...]], ...], list[str]] = {}
    for op in ops():
        typed = tuple(
            (variable, tuple(f"{t}{' (CPU)' * (t in _without_cuda(op, variable))}" for t in allowed))
            for variable, allowed in op.types.items()
        )
        same.setdefault(typed, []).append(op.name)
    for types, names in same.items():
        spelt = "; ".join(f"`{variable}` is {_or(allowed)}" for variable, allowed in types)
        lines.append(f"- {', '.join(names)}: {spelt}.")
    return "\n".join(lines)


def stubs() -> str:
    """The stub file of `ortops.ops`."""
    lines = [
        '"""The operators, as functions. Written by `python -m ortops.docs` from the declarations."""',
        "",
        "from collections.abc import Sequence",
        "from typing import Any, Literal",
        "",
        "import numpy as np",
        "",
        "from ortops.graph import Value",
        "",
        "#: A value of a graph, or an array: with a value among its inputs an operator appends a node and returns its results as",
        "#: values; with arrays alone it computes in float64 and returns arrays. One result is returned as it is, more as a tuple.",
        "Tensor = Value | np.ndarray",
        "",
        "__all__ = [",
        *(f'    "{op.__name__}",' for op in sorted(ops(), key=lambda op: op.__name__)),
        "]",
    ]
    for op in sorted(ops(), key=lambda op: op.__name__):
        lines += ["", f"def {op.__name__}("]
        for of in op.inputs:
            star = "*" if of.variadic else ""
            numbers = " | Sequence[int]" if of.host else ""
            lines.append(f"    {star}{of.name}: Tensor{numbers}{' | None = None' if of.optional else ''},")
        if not op.inputs[-1].variadic:
            lines.append("    *,")
        for attribute in op.attributes:
            lines.append(
                f"    {attribute.name}: {_annotation(attribute)}{'' if attribute.required else f' = {_default(attribute, quoted=True)}'},"
            )
        lines += ["    outputs: Sequence[str] | None = None,", ") -> Any:"]
        lines.append(textwrap.indent(f'"""{op.doc}{_closing(op.doc)}"""', "    ", lambda line: bool(line.strip())))
    return "\n".join(lines) + "\n"


def files() -> Mapping[Path, str]:
    """Every file that is written from the declarations, and what it has to say."""
    readme = ROOT / "README.md"
    before, found, rest = readme.read_text("utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{readme}: expected the markers {BEGIN} and {END}")
    return {
        readme: f"{before}{BEGIN}\n{table()}\n{END}{after}",
        ROOT / "ortops" / "ops" / "__init__.pyi": stubs(),
    }


def _rows(of: Iterable[Op]) -> Iterator[str]:
    yield "| operator | what it does | inputs | outputs | attributes |"
    yield "|---|---|---|---|---|"
    for op in of:
        inputs, outputs, attributes, _ = (
            "<br>".join(f"`{line}`" for line in column.split("\n") if line).replace("|", r"\|")
            for column in columns(op)
        )
        yield f"| **{op.name}**<br>`ops.{op.__name__}` | {op.summary} | {inputs} | {outputs} | {attributes} |"


def _without_cuda(op: Op, variable: str) -> list[str]:
    """The types of the variable that only the CPU has kernels for."""
    on_cuda = {types[variable] for types in op.type_sets("cuda")}
    return [type_ for type_ in op.types[variable] if type_ not in on_cuda and type_ not in op.types]


def _closing(doc: str) -> str:
    return "\n" if "\n" in doc else ""


def _formal(of: Formal) -> str:
    return re.sub(r"\s+", " ", str(of))


def _line(op: Op, value: str) -> str:
    signature = op.layouts[value]
    return f"{', '.join(map(_formal, signature.inputs))} -> {', '.join(map(_formal, signature.outputs))}"


def _default(of: Attribute, quoted: bool = False) -> str:
    return repr(of.default).replace("'", '"') if quoted or not isinstance(of.default, str) else of.default


def _annotation(of: Attribute) -> str:
    kinds = {
        "int": "int",
        "float": "float",
        "bool": "bool",
        "str": "str",
        "ints": "Sequence[int]",
        "floats": "Sequence[float]",
    }
    name = (
        f"Literal[{', '.join(f'{choice!r}' for choice in of.choices)}]".replace("'", '"')
        if of.choices
        else kinds[of.kind]
    )
    return f"{name} | None" if of.nullable else name


def _or(names: Sequence[str], word: str = "or") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, "utf-8")
        print(path)
