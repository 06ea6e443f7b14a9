"""What is written from the declarations is as the declarations have it."""

from __future__ import annotations

import ast
from pathlib import Path

import ortops
from ortops import docs

ROOT = Path(__file__).parent.parent


def test_files_are_up_to_date() -> None:
    for path, text in docs.files().items():
        assert path.read_text("utf-8") == text, f"{path.relative_to(ROOT)} is out of date: run python -m ortops.docs"


def test_stubs_are_python_and_have_every_operator() -> None:
    functions = {node.name: node for node in ast.parse(docs.stubs()).body if isinstance(node, ast.FunctionDef)}
    assert set(functions) == {op.__name__ for op in docs.ops()} == set(ortops.ops.__all__)
    for op in docs.ops():
        arguments = functions[op.__name__].args
        assert [argument.arg for argument in arguments.args + arguments.kwonlyargs] == [
            *(formal.name for formal in op.inputs if not formal.variadic),
            *(attribute.name for attribute in op.attributes),
            "outputs",
        ]


def test_contributing_names_what_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in ("ortops/ops/identity.py", "cuda/ops/identity/", "ortops/_declare.py", "cuda/device/"):
        assert path in text
        assert (ROOT / path).exists()
