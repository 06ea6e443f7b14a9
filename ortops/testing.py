"""One harness for every operator: draws inputs from the declaration, runs a kernel, compares with the reference.

The tests use it (tests/test_ops.py); so can the author of a new operator, and whoever wants to see that a build is right
on a machine of their own: `python -m ortops.testing [--cuda]`.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from ortops._declare import ELEMENT_TYPES, OUTER, Bindings, Formal, Group, Name, Op, element_type, names_in

__all__ = ["Sample", "compare", "model_of", "samples", "tolerances"]

#: The sizes that dimensions take in turn, such that those of one call differ. No vector width divides 3, 7 and 129.
SIZES = (7, 64, 3, 129, 16, 1, 33)
RUNS: tuple[tuple[int, ...], ...] = ((5,), (2, 3), (), (1, 2, 3))
LARGE = 1024


@dataclass(frozen=True)
class Sample:
    """The inputs of one call, in input order (None: absent), its attributes and the outputs asked for."""

    op: Op
    name: str
    types: Mapping[str, str]
    inputs: tuple[np.ndarray | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    @property
    def output_types(self) -> list[str]:
        types = {
            formal.name: type_ for formal, type_ in zip(self.op.outputs, self.op.output_types(self.types), strict=True)
        }
        return [str(types[name]) for name in self.outputs]

    def reference(self) -> list[np.ndarray]:
        """The outputs asked for, in float64, of the inputs as they are (already rounded to their type)."""
        by_name = dict(
            zip([f.name for f in self.op.outputs], self.op.reference(*self.inputs, **self.attributes), strict=True)
        )
        return [np.asarray(by_name[name]) for name in self.outputs]

    def terms(self) -> np.ndarray | float:
        """The size of what each element is summed from, where the operator tells (Testing.terms)."""
        if self.op.testing.terms is None:
            return 0.0
        wide = [None if a is None else a.astype(np.float64) for a in self.inputs]
        return np.asarray(self.op.testing.terms(*wide, **self.attributes))

    def __str__(self) -> str:
        shapes = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in self.inputs)
        return f"{self.op.name} {self.name}: {shapes} {dict(self.attributes)}"


def draw(
    op: Op, formal: Formal, type_: str, shape: tuple[int, ...], rng: np.random.Generator, bound: Mapping[str, Any]
) -> np.ndarray:
    """Random values of a type, as the operator wants them."""
    if formal.name in op.testing.samples:
        return op.testing.samples[formal.name](rng, shape, bound).astype(element_type(type_))
    if type_ == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "float" in type_:
        return rng.standard_normal(shape).astype(element_type(type_))
    low = 0 if type_.startswith("u") else -100
    return rng.integers(low, 100, shape).astype(element_type(type_))


def samples(op: Op, types: Mapping[str, str], *, large: bool = False) -> Iterator[Sample]:
    """The standard samples of an operator for one choice of types, and its own."""
    rng = np.random.default_rng(zlib.crc32(repr((op.name, sorted(types.items()))).encode()))
    everything = tuple(formal.name for formal in op.outputs)
    required = tuple(op.chosen_outputs(None))
    options = [formal.name for formal in op.inputs if formal.optional]
    defaults = {
        a.name: a.default if not a.required else a.choices[0] for a in op.attributes if not a.required or a.choices
    }
    varied = [
        {},
        *({a.name: choice} for a in op.attributes for choice in _choices(a) if choice != defaults.get(a.name)),
    ]
    if op.result is not None:
        varied = []  # what comes out depends on attributes and types in its own way: the operator's cases have to do
    for turn, attributes in enumerate(varied):
        for present in dict.fromkeys([tuple(options), (), *((option,) for option in options)]):
            for sizes in _sizes(op, turn, large):
                sample = _sample(
                    op,
                    types,
                    rng,
                    {**op.testing.attributes, **attributes},
                    present,
                    sizes,
                    everything if present == tuple(options) else required,
                    f"{turn}",
                )
                inputs_by_name = {f.name: a for f, a in zip(op.inputs, sample.inputs, strict=False)}
                if op.testing.accepts(inputs_by_name, {**defaults, **sample.attributes}):
                    yield sample
    for case in op.testing.cases:
        given = dict(case.inputs(rng))
        inputs = []
        values = [
            (formal, value)
            for formal in op.inputs
            for given_value in (given.pop(formal.name, None),)
            for value in ((given_value or ()) if formal.variadic else (given_value,))
        ]
        for formal, value in values:
            type_ = types.get(formal.type, str(value.dtype) if formal.type == "any" else formal.type)
            if value is not None and (type_ == "bool") != (np.asarray(value).dtype == bool):
                break  # the case is for another type of this input: a boolean mask, say, where this one is added
            inputs.append(None if value is None else np.asarray(value).astype(element_type(type_)))
        else:
            if given:
                raise ValueError(f"{op.name}: case {case.name}: no input {', '.join(given)}")
            if op.result is not None:
                bound = op.bind_types([None if a is None else str(a.dtype) for a in inputs], case.attributes)
                if bound[op.result] != types[op.result]:
                    continue  # the case is for another result type
            yield Sample(op, case.name, types, tuple(inputs), case.attributes, everything)


def _choices(attribute: Any) -> tuple[Any, ...]:
    return attribute.choices or ((True, False) if attribute.kind == "bool" else ())


def _sizes(op: Op, turn: int, large: bool) -> Iterator[dict[str, Any]]:
    names: dict[str, bool] = {}
    for signature in op.layouts.values():
        for axis in (axis for formal in signature.inputs for axis in formal.axes):
            names.update({found.name: isinstance(found, Group) for found in names_in(axis)})
    plain = [name for name, run in names.items() if not run]
    runs = [name for name, run in names.items() if run]
    for shift in range(4):
        sizes: dict[str, Any] = {n: SIZES[(i + shift + turn) % len(SIZES)] for i, n in enumerate(plain)}
        yield op.testing.sizes(
            sizes
            | {n: RUNS[(i + shift) % len(RUNS)] if n == OUTER or i else RUNS[shift % 2] for i, n in enumerate(runs)}
        )
    small: dict[str, Any] = {n: 2 + i % 3 for i, n in enumerate(plain)}
    if turn == 0:
        for name in names if large else ():
            sizes = small | ({} if names[name] else {name: LARGE})
            yield op.testing.sizes(sizes | {n: (LARGE,) if n == name else (3,) for n in runs})
        for name in (runs or plain)[:1]:
            yield op.testing.sizes(small | dict.fromkeys(runs, (3,)) | {name: (0,) if names[name] else 0})


def _sample(
    op: Op,
    types: Mapping[str, str],
    rng: np.random.Generator,
    attributes: Mapping[str, Any],
    present: Sequence[str],
    sizes: Mapping[str, Any],
    outputs: tuple[str, ...],
    name: str,
) -> Sample:
    given = op.check_attributes(dict(attributes))
    inputs: list[np.ndarray | None] = []
    for formal in op.signature(given).inputs:
        if formal.optional and formal.name not in present:
            inputs.append(None)
            continue
        shape: list[int] = []
        for axis in formal.axes:
            match axis:
                case Name(axis_name):
                    shape.append(sizes[axis_name])
                case Group(axis_name):
                    shape.extend(sizes[axis_name])
                case _:
                    size = Bindings(sizes=dict(sizes)).value(axis, given)
                    if not isinstance(size, int):
                        raise ValueError(f"{op.name}: {formal}: the size of {axis} is not known")
                    shape.append(size)
        if formal.broadcast:  # some axes of 1, and some left out in front
            shape = [1 if rng.random() < 0.3 else size for size in shape][
                int(rng.integers(0, len(shape))) if shape and rng.random() < 0.5 else 0 :
            ]
        inputs.append(draw(op, formal, types.get(formal.type, formal.type), tuple(shape), rng, sizes))
    return Sample(
        op,
        f"attributes {dict(attributes)}, with {', '.join(present) or 'no options'} #{name}",
        types,
        tuple(inputs),
        attributes,
        outputs,
    )


# --- running --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def model_of(
    op: Op,
    input_types: tuple[str | None, ...],
    ranks: tuple[int | None, ...],
    attributes: tuple[tuple[str, Any], ...],
    outputs: tuple[str, ...],
    output_types: tuple[str, ...],
    output_ranks: tuple[int, ...],
    shapes: tuple[tuple[int, ...] | None, ...] | None = None,
) -> bytes:
    """A model of that one node, with symbolic sizes, or those of `shapes`. What is bfloat16 is cast to float32 at the end."""
    from onnx import TensorProto, helper

    names = [f"input{i}" if type_ else "" for i, type_ in enumerate(input_types)]
    inputs = [
        helper.make_tensor_value_info(
            n, ELEMENT_TYPES[t], list(shapes[i] or ()) if shapes else [f"d{i}_{axis}" for axis in range(rank or 0)]
        )
        for i, (n, t, rank) in enumerate(zip(names, input_types, ranks, strict=True))
        if t
    ]
    results = [formal.name if formal.name in outputs else "" for formal in op.outputs]
    while results and not results[-1]:
        results.pop()
    while names and not names[-1]:
        names.pop()
    op_type = op.op_type(op.bind_types(input_types, dict(attributes)) if op.result else {})
    nodes = [helper.make_node(op_type, names, results, name="tested", domain="ortops", **dict(attributes))]
    infos = []
    for name, type_, rank in zip(outputs, output_types, output_ranks, strict=True):
        final, onnx_type = name, ELEMENT_TYPES[type_]
        if type_ == "bfloat16":
            final, onnx_type = f"{name}_float32", TensorProto.FLOAT
            nodes.append(helper.make_node("Cast", [name], [final], to=onnx_type))
        infos.append(helper.make_tensor_value_info(final, onnx_type, [f"{name}{axis}" for axis in range(rank)]))
    graph = helper.make_graph(nodes, "tested", inputs, infos)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ortops", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def node_attributes(op: Op, attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The attributes as a node holds them."""
    given = {n: int(v) if isinstance(v, bool) else v for n, v in attributes.items() if v is not None}
    kinds = {a.name: a.kind for a in op.attributes}

    def held(kind: str, value: Any) -> Any:
        return float(value) if kind == "float" else tuple(map(float, value)) if kind == "floats" else value

    return tuple((n, held(kinds[n], v)) for n, v in given.items())


def sample_model(sample: Sample, *, static: bool = False) -> bytes:
    """The model of the sample's one node."""
    arrays = sample.inputs
    return model_of(
        sample.op,
        tuple(None if a is None else str(a.dtype) for a in arrays),
        tuple(None if a is None else a.ndim for a in arrays),
        node_attributes(sample.op, sample.attributes),
        sample.outputs,
        tuple(sample.output_types),
        tuple(r.ndim for r in sample.reference()),
        tuple(None if a is None else a.shape for a in arrays) if static else None,
    )


CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def operators_of(model: bytes) -> set[str]:
    """The op types of our nodes."""
    import onnx

    return {node.op_type for node in onnx.load_model_from_string(model).graph.node if node.domain == "ortops"}


@lru_cache(maxsize=64)  # each holds memory of the GPU
def _session(model: bytes, provider: str, options: tuple[tuple[str, str], ...] = ()) -> Any:
    import onnxruntime

    from ortops.session import register

    session_options = onnxruntime.SessionOptions()
    session_options.log_severity_level = 3
    # Hundreds of sessions live at once: their threads are not to wait busily for work.
    session_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if provider == CUDA:
        session_options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    register(session_options, operators=operators_of(model))
    return onnxruntime.InferenceSession(model, session_options, providers=[(provider, dict(options))])


def _ort_value(array: np.ndarray) -> Any:
    import onnxruntime

    if str(array.dtype) == "bfloat16":
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), ELEMENT_TYPES["bfloat16"])
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def run(sample: Sample, provider: str = CPU) -> list[np.ndarray]:
    """The outputs asked for, by the kernel of that provider."""
    session = _session(sample_model(sample), provider)
    feeds = {f"input{i}": _ort_value(np.asarray(a, order="C")) for i, a in enumerate(sample.inputs) if a is not None}
    return [value.numpy() for value in session.run_with_ort_values(None, feeds)]


def run_body(sample: Sample) -> list[np.ndarray]:
    """The outputs asked for, by the function body, in a session that has not registered the library."""
    import onnxruntime

    from ortops.graph import Graph

    graph = Graph("body")
    values = [
        None if a is None else graph.input(f"input{i}", str(a.dtype), [f"d{i}_{axis}" for axis in range(a.ndim)])
        for i, a in enumerate(sample.inputs)
    ]
    results = sample.op(*values, outputs=sample.outputs, **sample.attributes)
    for name, value in zip(sample.outputs, results if isinstance(results, tuple) else (results,), strict=True):
        graph.output(value, f"result_{name}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph.build().SerializeToString(), options, providers=[CPU])
    feeds = {f"input{i}": _ort_value(np.asarray(a, order="C")) for i, a in enumerate(sample.inputs) if a is not None}
    return [value.numpy() for value in session.run_with_ort_values(None, feeds)]


@dataclass(frozen=True)
class _Memory:
    """Bytes on the GPU, a torch tensor, and where they begin: an empty tensor does not tell."""

    bytes: Any
    pointer: int


class Bound:
    """The sample's node on CUDA with inputs and outputs in memory of our own, which lies `offset` elements off its alignment.
    Everything that is not an input is filled with 0xff before each run (NaN, or -1), so that what is not written is seen."""

    def __init__(self, sample: Sample, *, graph: bool = False, offset: int = 0) -> None:
        import torch

        self.torch = torch
        options = (("enable_cuda_graph", "1"),) if graph else ()
        open_session = _session.__wrapped__ if graph else _session  # a captured graph knows its addresses: never shared
        self.session = open_session(sample_model(sample, static=True), CUDA, options)
        self.binding = self.session.io_binding()
        self.inputs: list[Any] = []
        for i, array in enumerate(sample.inputs):
            if array is not None:
                if sample.op.formal_of(i).host:
                    self.binding.bind_cpu_input(f"input{i}", array)
                    self.inputs.append(None)
                    continue
                memory = self._memory(array.nbytes, array.itemsize * offset)
                self.binding.bind_input(
                    f"input{i}", "cuda", 0, ELEMENT_TYPES[str(array.dtype)], array.shape, memory.pointer
                )
                self.inputs.append(memory)
        self.outputs = []
        for info, reference in zip(self.session.get_outputs(), sample.reference(), strict=True):
            dtype = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64"}.get(
                info.type, info.type[7:-1]
            )
            size = np.dtype(dtype).itemsize
            memory = self._memory(reference.size * size, size * offset)
            self.binding.bind_output(info.name, "cuda", 0, ELEMENT_TYPES[dtype], reference.shape, memory.pointer)
            self.outputs.append((memory, np.dtype(dtype), reference.shape))

    def _memory(self, size: int, offset: int) -> _Memory:
        whole = self.torch.empty(offset + size + 64, dtype=self.torch.uint8, device="cuda")
        return _Memory(whole[offset : offset + size], whole.data_ptr() + offset)

    def __call__(self, sample: Sample) -> list[np.ndarray]:
        arrays = [np.asarray(a, order="C") for a in sample.inputs if a is not None]
        for memory, array in zip(self.inputs, arrays, strict=True):
            if memory is not None:
                memory.bytes.copy_(self.torch.from_numpy(array.reshape(-1).view(np.uint8).copy()))
        for memory, _, _ in self.outputs:
            memory.bytes.fill_(255)
        self.torch.cuda.synchronize()
        self.session.run_with_iobinding(self.binding)
        self.torch.cuda.synchronize()
        return [memory.bytes.cpu().numpy().view(dtype).reshape(shape) for memory, dtype, shape in self.outputs]


def changed(sample: Sample) -> Sample:
    """The same call with the elements of each input in the opposite order, but for those that must keep theirs."""
    fixed = {f.name for f in sample.op.inputs if f.host} | set(sample.op.testing.fixed)
    inputs = tuple(
        a if a is None or sample.op.formal_of(i).name in fixed else np.asarray(a).reshape(-1)[::-1].reshape(a.shape)
        for i, a in enumerate(sample.inputs)
    )
    return Sample(sample.op, sample.name + ", reversed", sample.types, inputs, sample.attributes, sample.outputs)


# --- gradients ------------------------------------------------------------------------------------------------------


def flowing(sample: Sample) -> list[str]:
    """The outputs of the sample through which its gradient flows back."""
    assert sample.op.backward is not None
    named = inspect.signature(sample.op.backward).parameters
    return [name for name in sample.outputs if f"d_{name}" in named]


@lru_cache(maxsize=256)
def _gradient_model(
    op: Op,
    input_types: tuple[str | None, ...],
    ranks: tuple[int | None, ...],
    attributes: tuple[tuple[str, Any], ...],
    outputs: tuple[str, ...],
    flows: tuple[str, ...],
) -> bytes | None:
    """None where no input has a gradient: then there is nothing to run."""
    from ortops.graph import Graph
    from ortops.training import gradients

    graph = Graph("gradient")
    values = [
        None if type_ is None else graph.input(f"input{i}", type_, [f"d{i}_{axis}" for axis in range(rank or 0)])
        for i, (type_, rank) in enumerate(zip(input_types, ranks, strict=True))
    ]
    results = op(*values, outputs=outputs, **dict(attributes))
    by_name = dict(zip(outputs, results if isinstance(results, tuple) else (results,), strict=True))
    arriving = [graph.input(f"d_{name}", by_name[name].dtype, by_name[name].shape) for name in flows]
    wanted = [
        (i, value)
        for i, value in enumerate(values)
        if value is not None and op.formal_of(i).name in op.differentiable and "float" in str(value.dtype)
    ]
    found = gradients([by_name[n] for n in flows], [v for _, v in wanted], arriving)
    if all(d is None for d in found):
        return None
    for (i, _), d in zip(wanted, found, strict=True):
        if d is not None:
            graph.output(graph.onnx.Cast(d, to=1) if d.dtype == "bfloat16" else d, f"d_input{i}")
    return bytes(graph.build(functions=False).SerializeToString())


def run_gradient(sample: Sample, d_outputs: Sequence[np.ndarray], provider: str = CPU) -> dict[int, np.ndarray]:
    """The gradients of the inputs, by their position, given those of the outputs that `flowing` names."""
    model = _gradient_model(
        sample.op,
        tuple(None if a is None else str(a.dtype) for a in sample.inputs),
        tuple(None if a is None else a.ndim for a in sample.inputs),
        tuple(sorted((n, v) for n, v in sample.attributes.items() if v is not None)),
        sample.outputs,
        tuple(flowing(sample)),
    )
    if model is None:
        return {}
    session = _session(model, provider)
    feeds = {f"input{i}": a for i, a in enumerate(sample.inputs) if a is not None}
    feeds |= {f"d_{name}": d for name, d in zip(flowing(sample), d_outputs, strict=True)}
    taken = {value.name for value in session.get_inputs()}
    values = {name: _ort_value(np.asarray(a, order="C")) for name, a in feeds.items() if name in taken}
    names = [value.name for value in session.get_outputs()]
    results = session.run_with_ort_values(names, values)
    return {int(name[len("d_input") :]): value.numpy() for name, value in zip(names, results, strict=True)}


def random_d_outputs(sample: Sample, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = dict(zip(sample.outputs, (r.shape for r in sample.reference()), strict=True))
    types = dict(zip(sample.outputs, sample.output_types, strict=True))
    return [rng.standard_normal(shapes[n]).astype(element_type(types[n])) for n in flowing(sample)]


def check_gradient(sample: Sample, provider: str = CPU, points: int = 24, tolerance: float = 1e-6) -> None:
    """Compares the gradient with central differences of the reference in float64, at some elements of each input; raises
    AssertionError. `tolerance` is relative to the largest gradient of the input."""
    names = [formal.name for formal in sample.op.outputs]
    wide = [a.astype(np.float64) if a is not None and "float" in str(a.dtype) else a for a in sample.inputs]
    d_outputs = random_d_outputs(sample)
    flows = flowing(sample)

    def scalar() -> float:
        results = dict(zip(names, sample.op.reference(*wide, **sample.attributes), strict=True))
        return float(sum((d.astype(np.float64) * results[n]).sum() for n, d in zip(flows, d_outputs, strict=True)))

    got = run_gradient(sample, d_outputs, provider)
    rng = np.random.default_rng(1)
    for i, array in enumerate(wide):
        if (
            array is None
            or sample.op.formal_of(i).name not in sample.op.differentiable
            or "float" not in str(array.dtype)
        ):
            continue
        got.setdefault(i, np.zeros(array.shape))  # none at all: zero, as the gradient's rule says it
        assert got[i].shape == array.shape, (
            f"{sample}: gradient of input {i}: expected {array.shape}, got {got[i].shape}"
        )
        assert np.isfinite(got[i].astype(np.float64)).all(), f"{sample}: gradient of input {i}: not finite"
        chosen = rng.permutation(array.size)[:points]
        step = 1e-4
        differences = []
        for at in chosen:
            kept = array.flat[at]
            sides = []
            for sign in (1, -1):
                array.flat[at] = kept + sign * step
                sides.append(scalar())
            array.flat[at] = kept
            differences.append((sides[0] - sides[1]) / (2 * step))
        expected, actual = np.asarray(differences), got[i].reshape(-1)[chosen].astype(np.float64)
        allowed = tolerance * max(1.0, float(np.abs(expected).max(initial=0.0)))
        wrong = np.abs(expected - actual) > allowed
        assert not wrong.any(), (
            f"{sample}: gradient of input {i} ({sample.op.formal_of(i).name}): {wrong.sum()} of {len(chosen)} differ; "
            f"at {np.unravel_index(chosen[np.argmax(wrong)], array.shape)} expected {expected[np.argmax(wrong)]:.9g}, "
            f"got {actual[np.argmax(wrong)]:.9g}"
        )


# --- comparing ------------------------------------------------------------------------------------------------------

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}
LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}


def tolerances(op: Op, type_: str, reference: np.ndarray, terms: np.ndarray | float = 0.0) -> np.ndarray:
    """The error allowed to each element: steps of the type's epsilon, relative to the value, or to the root mean square of its
    row or to `terms`, where terms of that size cancel."""
    steps = op.testing.bar.get(type_, 1.0 if type_ in ("float16", "bfloat16") else 8.0)
    finite = np.where(np.isfinite(reference), reference, 0.0)
    row = np.sqrt(np.square(finite).mean(axis=-1, keepdims=True)) if finite.ndim and finite.size else np.abs(finite)
    return np.asarray(steps * (EPSILON[type_] * np.maximum(np.maximum(np.abs(finite), row), terms) + SMALLEST[type_]))


def compare(sample: Sample, results: Sequence[np.ndarray], scale: float = 1.0) -> float:
    """Raises AssertionError, saying where, if a result is not what the reference says; else gives the largest error as a share
    of what is allowed (times `scale`)."""
    worst = 0.0
    for name, type_, expected, got in zip(
        sample.outputs, sample.output_types, sample.reference(), results, strict=True
    ):
        where = f"{sample}: output {name}"
        assert got.shape == expected.shape, f"{where}: expected shape {expected.shape}, got {got.shape}"
        if "float" not in type_:
            wrong = np.asarray(got != expected)
            assert not wrong.any(), (
                f"{where}: {wrong.sum()} of {wrong.size} differ, the first at {np.argwhere(wrong)[0]}"
            )
            continue
        moved = next(f for f in sample.op.outputs if f.name == name).type in sample.op.by_size
        allowed = 0.0 * expected if moved else scale * tolerances(sample.op, type_, expected, sample.terms())
        with np.errstate(all="ignore"):
            rounded = expected.astype(element_type(type_)).astype(np.float64)
            error = np.abs(got.astype(np.float64) - expected)
            special = ~np.isfinite(rounded)
            same = (np.isnan(rounded) & np.isnan(got.astype(np.float64))) | (rounded == got.astype(np.float64))
            # A value at the edge of the type's range may be rounded to the largest number or to infinity.
            same |= (
                np.isinf(rounded)
                & (np.abs(got.astype(np.float64)) >= LARGEST[type_])
                & (np.sign(rounded) == np.sign(got.astype(np.float64)))
            )
            wrong = np.where(special, ~same, ~(error <= allowed))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{where}: {wrong.sum()} of {wrong.size} differ, the first at {list(at)}: "
                f"expected {expected[at]!r}, got {got[at]!r} (allowed error {allowed[at]:.3g})"
            )
        if error.size:
            worst = max(worst, float(np.where(special, 0, error / np.maximum(allowed, 1e-300)).max()))
    return worst
