"""Sessions that run our operators: a real onnxruntime.InferenceSession that has registered the library.

session = ortops.InferenceSession("model.onnx")
(y,) = session.run(None, {"x": x})
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import onnx

try:
    import onnxruntime
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "ortops runs models on onnxruntime, which is not installed: pip install onnxruntime, or onnxruntime-gpu for CUDA"
    ) from missing

from ortops import _library
from ortops._cpu_policy import prefers_stock
from ortops._declare import Op, OpError
from ortops._library import LibraryError

if TYPE_CHECKING:
    import onnx_ir

    from ortops.graph import Graph

__all__ = ["InferenceSession", "Lowered", "register", "working_cuda"]

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
OURS, EXTENSIONS = "ortops", "ai.onnx.contrib"

CHECK_INDICES = "ortops.check_indices"
OPERATORS = "ortops.operators"
EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"

#: A model in memory with more constants than this goes to onnxruntime through a file: a protobuf holds 2 GiB at most.
PROTOBUF_BYTES = 1_500_000_000

Provider = str | tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Lowered:
    """A node that a CPU session runs as standard nodes, and why."""

    node: str
    op: str
    reason: str


GRAPH_ID = "gpu_graph_id"
_recording = threading.Lock()


def register(
    session_options: onnxruntime.SessionOptions,
    *,
    check_indices: bool = False,
    library: str | os.PathLike[str] | None = None,
    operators: Iterable[str] | None = None,
) -> None:
    """Registers our library with the options of a session; a second call for the same options does nothing.

    Args:
        session_options: An onnxruntime.SessionOptions.
        check_indices: Makes an index outside its table an error on CUDA too, at the price of a synchronisation.
        library: Another library than the one that `library_path` finds.
        operators: The names, as nodes have them, of the operators that the model uses; all of the library's by default. A session
            starts faster with the fewer (all of them take some tens of milliseconds).

    Raises:
        LibraryError: The library is missing, is none, or was built from other declarations than this package's.
    """
    path = str(library) if library is not None else _library.library_path()
    _library.check(path)
    if check_indices:
        session_options.add_session_config_entry(CHECK_INDICES, "1")  # the library reads it when it is registered
    if operators is not None:
        session_options.add_session_config_entry(OPERATORS, ",".join(sorted(operators)))
    _register_once(session_options, "ortops.registered", path)


def _register_once(options: onnxruntime.SessionOptions, key: str, path: str) -> None:
    """Registers a library unless the entry `key` says that it is: ONNX Runtime takes a domain once only."""
    with contextlib.suppress(RuntimeError):
        if options.get_session_config_entry(key):
            return
    options.register_custom_ops_library(path)
    options.add_session_config_entry(key, "1")


def _register_extensions(options: onnxruntime.SessionOptions) -> None:
    try:
        from onnxruntime_extensions import get_library_path
    except ImportError:
        raise LibraryError(
            f"the model uses operators of {EXTENSIONS} (a tokenizer, say): install the package onnxruntime-extensions"
        ) from None
    _register_once(options, "ortops.extensions_registered", get_library_path())


class InferenceSession(onnxruntime.InferenceSession):
    """A session with our library, and with onnxruntime-extensions' if the model uses it.

    Args:
        model: A path, the bytes of a file, an onnx.ModelProto, an onnx_ir.Model, or a Graph.
        sess_options: An onnxruntime.SessionOptions; the libraries are registered with it.
        providers: As in onnxruntime. By default CUDA where it really works, else the CPU; here a CUDA that does not work is an
            error if asked for, never a silent change to the CPU.
        provider_options: As in onnxruntime.
        cuda_graph: Records the launches of the first run as a CUDA graph, which later runs replay: inputs and outputs must be
            bound to fixed device memory (IOBinding), and shapes must not change.
        check_indices: See `register`.
        lower: Which operators are written in standard nodes first: "auto", those that stock ONNX Runtime was measured to run
            faster, in a session on the CPU alone (see `ortops_lowered`); "all"; or "none".
        kwargs: As in onnxruntime.

    Attributes:
        ortops_lowered: What was lowered, and why.

    Raises:
        LibraryError: A library is missing or stale, or CUDA was asked for and does not work.
        ValueError: The model is none.
        FileNotFoundError: There is no such file.
    """

    ortops_lowered: tuple[Lowered, ...]

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto | onnx_ir.Model | Graph,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[dict[str, Any]] | None = None,
        *,
        cuda_graph: bool = False,
        check_indices: bool = False,
        lower: Literal["auto", "all", "none"] = "auto",
        **kwargs: Any,
    ) -> None:
        if lower not in ("auto", "all", "none"):
            raise ValueError(f"lower: expected auto, all or none, got {lower!r}")
        options = sess_options if sess_options is not None else onnxruntime.SessionOptions()
        source = _Source.of(model)
        chosen = _providers(providers, provider_options, cuda_graph, ours=OURS in source.domains and lower != "all")
        on_cpu = all(_name(provider) == CPU for provider in chosen)
        self.ortops_lowered = ()
        if OURS in source.domains and (lower == "all" or (lower == "auto" and on_cpu)):
            source, self.ortops_lowered = _lower(source, everything=lower == "all", on_cpu=on_cpu)
        if source.domains & {OURS, "?"}:
            # Options of the caller's may serve another model, too, and onnxruntime takes our domain once.
            needed = source.operators if sess_options is None else None
            register(options, check_indices=check_indices, operators=needed)
        if EXTENSIONS in source.domains:
            _register_extensions(options)
        if source.folder is not None:
            options.add_session_config_entry(EXTERNAL_FOLDER, source.folder)
        graphs = any(str(extra.get("enable_cuda_graph", "0")).lower() in ("1", "true") for _, extra in chosen)
        self._recorded = threading.local() if graphs else None
        kwargs.setdefault("enable_fallback", 0)  # an error is an error, not a second try on the CPU
        with source.opened() as file:
            super().__init__(file, options, chosen, **kwargs)
        if any(_name(provider) == CUDA for provider in chosen) and CUDA not in self.get_providers():
            raise LibraryError(
                f"{CUDA} was asked for, but onnxruntime could not start it and made a session on {self.get_providers()}"
            )

    def run_with_iobinding(
        self, iobinding: onnxruntime.IOBinding, run_options: onnxruntime.RunOptions | None = None
    ) -> None:
        """As in onnxruntime. A thread's first run of a CUDA graph, which records it, waits for other threads' first runs: CUDA
        fails what a process does on the GPU while one of its threads records."""
        if self._recorded is None:
            super().run_with_iobinding(iobinding, run_options)
            return
        graph = "0"
        if run_options is not None:
            try:
                graph = run_options.get_run_config_entry(GRAPH_ID)
            except RuntimeError:  # absent: then onnxruntime looks for it in vain, too, for 0.1 ms a run
                run_options.add_run_config_entry(GRAPH_ID, graph)
        done: set[str] = self._recorded.__dict__.setdefault("graphs", set())
        with contextlib.nullcontext() if graph in done else _recording:
            super().run_with_iobinding(iobinding, run_options)
        done.add(graph)


# --- models ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """A model as it was given: a file, or what is in memory. `domains` are those it uses; "?" where that cannot be seen."""

    path: str | None
    model: bytes | onnx.ModelProto | onnx_ir.Model | None
    domains: frozenset[str]
    operators: frozenset[str] | None = None  # the op types of our nodes; None where they cannot be seen
    folder: str | None = None  # where its external data is, if it is in memory and has some

    @staticmethod
    def of(model: Any) -> _Source:
        if isinstance(model, str | os.PathLike):
            path = os.fspath(model)
            if not Path(path).exists():
                raise FileNotFoundError(f"{path}: no such file")
            with Path(path).open("rb") as file:
                if file.read(8)[4:] == b"ORTM":
                    return _Source(path, None, frozenset("?"))
            return _Source(path, None, *_used(_parse(Path(path).read_bytes(), path)))
        if isinstance(model, bytes):
            if model[4:8] == b"ORTM":
                return _Source(None, model, frozenset("?"))
            return _Source(None, model, *_used(_parse(model, "the model")))
        if isinstance(model, onnx.ModelProto):
            return _Source(None, model, *_used(model))
        import onnx_ir

        from ortops.graph import Graph

        if isinstance(model, Graph):
            try:
                model = model.ir()
            except OpError:  # a rank that is not known: there is no body then, but our kernels need none
                model = model.ir(functions=False)
        if not isinstance(model, onnx_ir.Model):
            raise TypeError(
                f"expected a path, bytes, a ModelProto, an onnx_ir.Model or a Graph, got {type(model).__name__}"
            )
        return _Source(None, model, *_ir_used(model))

    def ir(self) -> onnx_ir.Model:
        """A copy of the model that may be changed."""
        import onnx_ir

        if self.path is not None:
            return onnx_ir.load(self.path)
        if isinstance(self.model, bytes):
            return onnx_ir.from_proto(onnx.load_model_from_string(self.model))
        if isinstance(self.model, onnx.ModelProto):
            return onnx_ir.from_proto(self.model)
        assert self.model is not None
        return self.model.clone()

    @contextlib.contextmanager
    def opened(self) -> Iterator[str | bytes]:
        """The model as onnxruntime takes it. One that does not fit in a protobuf goes through a file, gone once it is read."""
        if self.path is not None:
            yield self.path
        elif isinstance(self.model, bytes):
            yield self.model
        elif isinstance(self.model, onnx.ModelProto):
            yield self.model.SerializeToString()
        else:
            import onnx_ir

            assert self.model is not None
            tensors = [
                value.const_value for value in self.model.graph.initializers.values() if value.const_value is not None
            ]
            external = any(isinstance(tensor, onnx_ir.ExternalTensor) for tensor in tensors)
            if self.folder is not None or (not external and sum(tensor.nbytes for tensor in tensors) < PROTOBUF_BYTES):
                yield onnx_ir.to_proto(self.model).SerializeToString()
                return
            with tempfile.TemporaryDirectory(prefix="ortops-") as folder:
                onnx_ir.save(self.model, Path(folder) / "model.onnx", external_data="model.data")
                yield str(Path(folder) / "model.onnx")


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:
        raise ValueError(f"{what}: not an ONNX model: {error}") from None
    if not model.HasField("graph") or not model.ir_version:
        raise ValueError(f"{what}: not an ONNX model: it has no graph")
    return model


def _used(model: onnx.ModelProto) -> tuple[frozenset[str], frozenset[str]]:
    """The domains that a model uses, and the op types of our nodes."""
    imports = [*model.opset_import, *(item for function in model.functions for item in function.opset_import)]
    nodes = [node for scope in (model.graph, *model.functions) for node in _all_nodes(scope)]
    return (
        frozenset({item.domain for item in imports} | {node.domain for node in nodes}),
        frozenset(node.op_type for node in nodes if node.domain == OURS),
    )


def _all_nodes(scope: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    for node in scope.node:
        yield node
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _all_nodes(graph)


def _ir_used(model: onnx_ir.Model) -> tuple[frozenset[str], frozenset[str]]:
    scopes: list[onnx_ir.Graph | onnx_ir.Function] = [model.graph, *model.functions.values()]
    nodes = [node for scope in scopes for node in scope.all_nodes()]
    return (
        frozenset({domain for scope in scopes for domain in scope.opset_imports} | {node.domain for node in nodes}),
        frozenset(node.op_type for node in nodes if node.domain == OURS),
    )


def _lower(source: _Source, everything: bool, on_cpu: bool) -> tuple[_Source, tuple[Lowered, ...]]:
    """The model with what is to be lowered lowered; the very same if that is nothing. What cannot be lowered is left, unless
    everything is to be."""
    import onnx_ir

    from ortops._infer import attribute_values, axes, type_name
    from ortops.functions import lower_in_place

    done: list[Lowered] = []

    def choose(op: Op, node: onnx_ir.Node) -> bool:
        present = {f.name: value for f, value in zip(op.inputs, node.inputs, strict=False) if value is not None}
        inputs = {name: type_name(value.dtype) for name, value in present.items()}
        if everything:
            if on_cpu and "bfloat16" in inputs.values():
                raise OpError(
                    f'lower="all": {op.name} (node {node.name}) is of bfloat16, for which onnxruntime has no standard operators '
                    'on the CPU; our kernels take it: open the model with lower="auto"'
                )
            reason: str | None = 'lower="all"'
        elif op.body is None:
            return False
        else:
            outputs = [
                formal.name
                for formal, value in zip(op.outputs, node.outputs, strict=False)
                if value.uses() or value.is_graph_output()
            ]
            attributes = attribute_values(op, node, op.name)
            # Standard nodes would take some calls that ours refuses: sizes that broadcast where they should be equal.
            shapes = {name: axes(value.shape) for name, value in present.items()}
            if not op.surely_takes(shapes, attributes):
                return False
            reason = prefers_stock(op.name, inputs, attributes, outputs, shapes)
        if reason is None:
            return False
        done.append(Lowered(node.name or "", op.name, reason))
        return True

    try:
        model = source.ir()
    except Exception:  # onnxruntime is to say what is wrong with it
        if everything:
            raise
        return source, ()
    external = any(isinstance(value.const_value, onnx_ir.ExternalTensor) for value in model.graph.initializers.values())
    # Before 1.21 onnxruntime finds external data beside a file only: the model then goes through one (see `opened`).
    beside = external and source.path is not None and _version() >= (1, 21)
    folder = str(Path(source.path or "").resolve().parent) if beside else None
    try:
        model = lower_in_place(model, choose)
    except Exception:  # a model that is wrong, or of a kind not foreseen: onnxruntime is to say what it thinks of it
        if everything:
            raise
        return source, ()
    if not done:
        return source, ()
    return _Source(None, model, *_ir_used(model), folder), tuple(done)


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


# --- providers ------------------------------------------------------------------------------------------------------


def _name(provider: Provider) -> str:
    return provider if isinstance(provider, str) else provider[0]


def _providers(
    requested: Sequence[Provider] | None, options: Sequence[Mapping[str, Any]] | None, cuda_graph: bool, ours: bool
) -> list[tuple[str, dict[str, Any]]]:
    """The providers with their options."""
    if requested is None:
        problem = _cuda_problem(ours)
        if cuda_graph and problem:
            raise LibraryError(f"cuda_graph: {problem}")
        result: list[tuple[str, dict[str, Any]]] = [] if problem else [(CUDA, {})]
        result.append((CPU, {}))
    else:
        given = options if options is not None else [{} for _ in requested]
        if len(given) != len(requested):
            raise ValueError(f"provider_options: expected {len(requested)} of them, one a provider, got {len(given)}")
        result = [
            (_name(provider), {**({} if isinstance(provider, str) else provider[1]), **extra})
            for provider, extra in zip(requested, given, strict=True)
        ]
        if any(name == CUDA for name, _ in result) and (problem := _cuda_problem(ours)):
            raise LibraryError(f"{CUDA} does not work here: {problem}")
    if cuda_graph:
        if all(name != CUDA for name, _ in result):
            raise ValueError(f"cuda_graph: expected {CUDA} among the providers, got {[name for name, _ in result]}")
        result = [(name, {**extra, "enable_cuda_graph": "1"} if name == CUDA else extra) for name, extra in result]
    return result


def _cuda_problem(ours: bool) -> str | None:
    """Why a session cannot run on CUDA, None if it can. `ours` if the model has operators of our library."""
    if ours:
        path = _library.library_path()
        if not _library.check(path)["cuda"]:
            return (
                f"{path} is a CPU-only build of the ortops library; build it again with ORTOPS_CUDA=on "
                "(`make library ORTOPS_CUDA=on`, or `ORTOPS_CUDA=on pip install` of the source)"
            )
    return working_cuda()


@functools.cache
def working_cuda() -> str | None:
    """None where onnxruntime's CUDA provider really works on this machine; else why it does not.

    onnxruntime.get_available_providers() says what was compiled in, which is no answer.
    """
    if CUDA not in onnxruntime.get_available_providers():
        return f"onnxruntime {onnxruntime.__version__} has no CUDA provider; install onnxruntime-gpu in its place"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1)"
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the NVIDIA driver finds no GPU"
    # The provider's own libraries (cuBLAS, cuDNN) may still be missing. Only trying tells, and without a word on stderr.
    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(None):
            onnxruntime.preload_dlls()
    make = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])], "probe", [make("x", 1, [1])], [make("y", 1, [1])]
    )
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnxruntime.set_default_logger_severity(4)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=[CUDA, CPU])
    finally:
        onnxruntime.set_default_logger_severity(2)
    if CUDA in session.get_providers():
        return None
    return "onnxruntime's CUDA provider does not load: its CUDA or cuDNN libraries are missing (pip install onnxruntime-gpu[cuda,cudnn])"
