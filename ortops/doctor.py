"""Which node of a model runs on which provider, and why.

    report = doctor.examine("model.onnx")
    for line in report.lines:
        print(line.op, line.count, line.provider, line.reason)

No operator is named here: reasons follow from domains, types, the library and what the session lowered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
import onnxruntime

from ortops._declare import find
from ortops._library import LibraryError, build_info, library_path
from ortops.session import InferenceSession, working_cuda

__all__ = ["Line", "Placement", "Report", "examine", "explain", "recording"]

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
OURS, EXTENSIONS = "ortops", "ai.onnx.contrib"
STANDARD = ("", "ai.onnx")
RECORD = "session.record_ep_graph_assignment_info"


@dataclass(frozen=True)
class Placement:
    """A node of the session: its name, its operator with the domain in front ("ortops.Linear"), where it runs and why there."""

    node: str
    op: str
    provider: str
    reason: str


@dataclass(frozen=True)
class Line:
    """The nodes of one operator that run on one provider for one reason."""

    op: str
    provider: str
    reason: str
    count: int


@dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        placements: Every node of the session, in the order of execution as far as onnxruntime tells it.
        providers: Those of the session, the preferred first.
        library: What the library says of itself in a few words, or why there is none.
        cuda: Why CUDA does not work on this machine; None if it does.
    """

    placements: tuple[Placement, ...]
    providers: tuple[str, ...]
    library: str
    cuda: str | None

    @property
    def lines(self) -> tuple[Line, ...]:
        """The placements by operator, provider and reason; the most frequent first."""
        counts: dict[tuple[str, str, str], int] = {}
        for placement in self.placements:
            key = (placement.op, placement.provider, placement.reason)
            counts[key] = counts.get(key, 0) + 1
        return tuple(Line(*key, count) for key, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def recording() -> onnxruntime.SessionOptions:
    """Options for a session that `explain` is to be asked about: onnxruntime then notes where it puts each node."""
    options = onnxruntime.SessionOptions()
    if hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        options.add_session_config_entry(RECORD, "1")
    return options


def examine(model: str | os.PathLike[str] | onnx.ModelProto, providers: Sequence[str] | None = None) -> Report:
    """Opens a session as `ortops.InferenceSession` does and says where its nodes are.

    Where our library is absent, the session is one without it, in which function bodies stand in for our operators.

    Args:
        model: A path or a model.
        providers: As in InferenceSession.

    Raises:
        ValueError, FileNotFoundError, LibraryError: As InferenceSession, and if onnxruntime is too old to tell placements on
            more than one provider (1.31 can).
    """
    try:
        session = InferenceSession(model, recording(), providers)
    except LibraryError:
        if _library_problem() is None:
            raise
        session = InferenceSession(model, recording(), providers, lower="all")
    return explain(session, model)


def explain(session: onnxruntime.InferenceSession, model: str | os.PathLike[str] | onnx.ModelProto) -> Report:
    """Says where the nodes of a session are, which was made with the options that `recording` gives, and of that model."""
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(os.fspath(model), load_external_data=False)
    graph = _Graph.of(proto)
    providers = tuple(session.get_providers())
    lowered = {entry.node: entry for entry in getattr(session, "ortops_lowered", ())}
    problem = _library_problem()
    placements = []
    for provider, domain, op_type, name in _assigned(session, proto):
        origin = next((node for node in _scopes(name) if node in lowered), None)
        if origin is not None:
            reason = f"part of {lowered[origin].op}: {'the library is absent' if problem else lowered[origin].reason}"
        else:
            reason = _reason(graph, provider, providers, domain, op_type, name)
        placements.append(Placement(name, _label(domain, op_type), provider, reason))
    return Report(tuple(placements), providers, problem or _library_words(), working_cuda())


def _assigned(session: onnxruntime.InferenceSession, model: onnx.ModelProto) -> Iterator[tuple[str, str, str, str]]:
    """Provider, domain, operator and name of each node of the session."""
    if hasattr(session, "get_provider_graph_assignment_info"):
        for subgraph in session.get_provider_graph_assignment_info():
            for node in subgraph.get_nodes():
                yield subgraph.ep_name, node.domain, node.op_type, node.name
    elif session.get_providers() == [CPU]:
        for node in _nodes(model.graph):
            yield CPU, node.domain, node.op_type, node.name
    else:
        raise LibraryError(
            f"onnxruntime {onnxruntime.__version__} cannot tell where it puts the nodes of a session; 1.31 can"
        )


def _reason(graph: _Graph, provider: str, providers: tuple[str, ...], domain: str, op_type: str, name: str) -> str:
    if domain == OURS:
        if provider == CPU and CUDA in providers:
            return (
                "no CUDA kernel in the library"
                if not build_info()["cuda"]
                else "onnxruntime placed it with its neighbours"
            )
        return "our kernel"
    if provider != CPU:
        return (
            "onnxruntime's kernel" if not op_type.startswith("Memcpy") else "copies between the processor and the GPU"
        )
    if CUDA not in providers:
        return "onnxruntime-extensions' kernel" if domain == EXTENSIONS else "onnxruntime's kernel"
    if domain == EXTENSIONS:
        return "onnxruntime-extensions has kernels for the CPU alone"
    if name in graph.strings:
        return "works on strings"
    if name in graph.sizes:
        return "computes sizes, which the host needs"
    return "onnxruntime has no CUDA kernel for this version and these types, or its neighbours are on the CPU"


@dataclass(frozen=True)
class _Graph:
    """What there is to know of a model's nodes, by name: those that read or write strings, and those that compute sizes only."""

    strings: frozenset[str]
    sizes: frozenset[str]

    @staticmethod
    def of(model: onnx.ModelProto) -> _Graph:
        string = onnx.TensorProto.STRING
        values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
        texts = {value.name for value in values if value.type.tensor_type.elem_type == string}
        texts |= {tensor.name for tensor in model.graph.initializer if tensor.data_type == string}
        constants = {tensor.name for tensor in model.graph.initializer}
        strings, sizes, size_values = set(), set(), set(constants)
        for node in model.graph.node:
            if texts & {*node.input, *node.output}:
                strings.add(node.name)
            measures = node.op_type in ("Shape", "Size") and node.domain in STANDARD
            derived = node.domain in STANDARD and all(name in size_values or not name for name in node.input)
            if measures or derived:
                sizes.add(node.name)
                size_values.update(node.output)
        return _Graph(frozenset(strings), frozenset(sizes))


def _label(domain: str, op_type: str) -> str:
    """The operator with its domain; a variant's name (see _declare.VARIANTS) is that of its operator."""
    if domain in STANDARD:
        return op_type
    op = find(op_type) if domain == OURS else None
    return f"{domain}.{op.name if op is not None else op_type}"


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _scopes(name: str) -> Iterator[str]:
    """The name and those of the scopes that it is in, the innermost first."""
    while name:
        yield name
        name = name.rpartition("/")[0]


def _library_problem() -> str | None:
    try:
        build_info(library_path())
    except LibraryError as error:
        return str(error)
    return None


def _library_words() -> str:
    info = build_info()
    kinds = f"CUDA ({info['architectures']}) and CPU kernels" if info["cuda"] else "CPU kernels alone"
    return f"{library_path()}: version {info['version']}, {kinds}"
