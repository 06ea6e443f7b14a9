"""The command `ortops`. What a user gets wrong is one line on stderr and exit code 1; --debug shows where it came from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from ortops.doctor import Report

__all__ = ["app", "main", "placement_table"]

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Fast operators for ONNX Runtime."
)
export_app = typer.Typer(no_args_is_help=True, help="Write a model from its published weights.")
app.add_typer(export_app, name="export")

console = Console()
errors = Console(stderr=True, soft_wrap=True, highlight=False)

Dtype = Literal["float32", "float16", "bfloat16"]
Device = Literal["cpu", "cuda"]


class UserError(Exception):
    """What the user can put right; its text is all that is shown."""


@app.callback()
def options(debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False) -> None:
    """Read in `main`, before anything can go wrong; here for --help."""


@app.command("ops")
def list_ops(
    name: Annotated[str | None, typer.Argument(help="One operator, with all there is to know about it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All there is to know, for programs.")] = False,
    markdown: Annotated[bool, typer.Option(help="The table of the README.")] = False,
) -> None:
    """What operators there are; or one of them: its inputs, outputs, attributes and types."""
    from ortops import docs

    found = [op for op in docs.ops() if name in (None, op.name, op.__name__)]
    if not found:
        raise UserError(f"no operator {name}; `ortops ops` lists them")
    if as_json:
        print(json.dumps([docs.describe(op) for op in found], indent=2))
    elif markdown:
        print(docs.table())
    elif name is not None:
        print(found[0].help())
    else:
        table = Table(Column("operator", no_wrap=True), "what it does", box=None, pad_edge=False)
        for op in found:
            table.add_row(op.name, Text(op.summary))
        console.print(table)


@export_app.command("bert")
def export_bert(
    weights: Annotated[Path, typer.Option(help="The folder with config.json, *.safetensors and vocab.txt.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    dtype: Annotated[Dtype, typer.Option(help="What the model computes in.")] = "float32",
    tokenizer: Annotated[bool, typer.Option(help="Text in, or the ids of tokens.")] = True,
    token_types: Annotated[bool, typer.Option(help="An input for token types (without the tokenizer).")] = False,
    max_length: Annotated[
        int | None, typer.Option(min=3, help="Pieces that a text may become; by default what the folder says.")
    ] = None,
) -> None:
    """A sentence encoder: text in, embeddings out."""
    from rich.progress import Progress

    from ortops.export import transformer

    if not weights.is_dir():
        raise UserError(f"{weights}: no such folder")
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("Reading", total=None)

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        graph = transformer.bert_from_folder(
            weights, dtype=dtype, tokenizer=tokenizer, token_types=token_types, max_length=max_length, progress=progress
        )
        bar.update(task, description=f"Writing {output.name}", total=None)
        output.parent.mkdir(parents=True, exist_ok=True)
        graph.save(output)
    console.print(f"{output}: {output.stat().st_size / 1e6:.1f} MB, {dtype}", highlight=False, soft_wrap=True)


@app.command()
def run(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    text: Annotated[
        list[str] | None, typer.Option(help="A text for the input of strings; once for each of the batch.")
    ] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", metavar="NAME=FILE.npy", help="An array for an input.")
    ] = None,
    provider: Annotated[Device | None, typer.Option(help="By default CUDA where it works.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the outputs to this .npz file.")] = None,
) -> None:
    """Run a model once."""
    import numpy as np

    from ortops.session import InferenceSession

    session = InferenceSession(model, providers=_providers(provider))
    feeds = _feeds([(value.name, value.type) for value in session.get_inputs()], text or [], inputs or [])
    names = [value.name for value in session.get_outputs()]
    results = dict(zip(names, session.run(None, feeds), strict=True))
    if output is not None:
        with output.open("wb") as file:
            np.savez(file, **results)
        console.print(f"{output}: {', '.join(names)}", highlight=False, soft_wrap=True)
        return
    for name, result in results.items():
        array = np.asarray(result)
        console.print(f"{name}: {array.dtype} {list(array.shape)}", highlight=False)
        console.print(np.array2string(array, threshold=64, precision=5), highlight=False, markup=False)


@app.command()
def doctor(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    provider: Annotated[Device | None, typer.Option(help="By default CUDA where it works.")] = None,
    nodes: Annotated[bool, typer.Option(help="One line a node, not one an operator.")] = False,
) -> None:
    """Which node runs on which provider, and why."""
    from ortops.doctor import examine

    report = examine(model, _providers(provider))
    console.print(f"library    {report.library}", highlight=False, soft_wrap=True)
    console.print(f"providers  {', '.join(report.providers)}", highlight=False)
    if report.cuda:
        console.print(f"no CUDA    {report.cuda}", highlight=False, soft_wrap=True)
    console.print(placement_table(report, nodes=nodes))


@app.command()
def lower(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
) -> None:
    """Replace our operators by standard ones."""
    import onnx_ir

    import ortops

    if not model.is_file():
        raise UserError(f"{model}: no such file")
    try:
        given = onnx_ir.load(model)
    except Exception as error:
        raise UserError(f"{model}: not an ONNX model: {error}") from None
    lowered = ortops.lower(given)
    onnx_ir.save(lowered, output)
    console.print(f"{output}: {len(lowered.graph)} nodes", highlight=False, soft_wrap=True)


def placement_table(report: Report, *, nodes: bool = False) -> Table:
    """A report as a table: a line an operator, provider and reason; or a line a node. Long reasons are told once, below it."""
    notes: dict[str, int] = {}

    def noted(reason: str) -> str:
        what, _, why = reason.partition(": ")
        return f"{what} ({notes.setdefault(why, len(notes) + 1)})" if len(why) > 40 else reason

    table = Table(
        "node" if nodes else "nodes",
        Column("operator", no_wrap=True),
        "provider",
        Column("reason", overflow="fold"),
        caption_justify="left",
    )
    if nodes:
        for placement in report.placements:
            table.add_row(placement.node, placement.op, _short(placement.provider), noted(placement.reason))
    else:
        for line in report.lines:
            table.add_row(str(line.count), line.op, _short(line.provider), noted(line.reason))
    table.caption = "\n".join(f"({number}) {why}" for why, number in notes.items()) or None
    return table


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


def _providers(device: Device | None) -> list[str] | None:
    return {None: None, "cpu": ["CPUExecutionProvider"], "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"]}[
        device
    ]


def _feeds(expected: list[tuple[str, str]], texts: list[str], files: list[str]) -> dict[str, Any]:
    """The inputs by name, of what --text and --input give."""
    import numpy as np

    feeds: dict[str, Any] = {}
    if texts:
        strings = [name for name, type_ in expected if type_ == "tensor(string)"]
        if len(strings) != 1:
            raise UserError(
                f"--text: expected a model with one input of strings, got {len(strings)}: {_inputs(expected)}"
            )
        for number, text in enumerate(texts, 1):
            try:
                text.encode("utf-8")  # bytes of the command line that are none come as lone surrogates
            except UnicodeEncodeError as error:
                raise UserError(f"--text number {number}: not valid UTF-8 (character {error.start + 1})") from None
        feeds[strings[0]] = np.array(texts, object)
    for item in files:
        name, equals, path = item.partition("=")
        if not equals or name not in dict(expected):
            raise UserError(f"--input {item}: expected NAME=FILE.npy with a name out of {_inputs(expected)}")
        try:
            feeds[name] = np.load(path, allow_pickle=False)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file") from None
        except (ValueError, OSError, EOFError) as error:
            raise UserError(f"{path}: not a .npy file of numbers: {error}") from None
    missing = [name for name, _ in expected if name not in feeds]
    if missing:
        raise UserError(
            f"no value for {', '.join(missing)}: the model takes {_inputs(expected)}; give --text TEXT or --input NAME=FILE.npy"
        )
    return feeds


def _inputs(expected: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({type_.removeprefix('tensor(').removesuffix(')')})" for name, type_ in expected)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0, 1 for what the user can put right, 2 for a wrong call."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        app(given, standalone_mode=True)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if "--debug" in given:
            raise
        errors.print(f"ortops: {_one_line(error)}", style="red", markup=False)
        return 1
    return 0


def _one_line(error: Exception) -> str:
    """What the user is told; of WeightError's list every line."""
    text = str(error).strip() or type(error).__name__
    return text.removeprefix("[ONNXRuntimeError] : ")


if __name__ == "__main__":
    sys.exit(main())
