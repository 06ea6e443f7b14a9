"""ortops: ONNX models, fast and trainable, on plain ONNX Runtime.

    import ortops
    from ortops import ops

Importing this package loads neither onnx, onnxruntime nor the native library: each name below is fetched when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortops import ops
    from ortops._declare import Op, OpError, find
    from ortops._library import LibraryError, build_info, library_path
    from ortops._standard import onnx
    from ortops.functions import attach_functions, lower
    from ortops.graph import Graph, Value
    from ortops.rewrite import remove_broadcasts
    from ortops.session import InferenceSession, register
    from ortops.training import gradients

__version__ = "0.1.0"

#: Where each public name lives.
_HOMES = {
    "ops": "ortops.ops",
    "Op": "ortops._declare",
    "OpError": "ortops._declare",
    "find": "ortops._declare",
    "onnx": "ortops._standard",
    "Graph": "ortops.graph",
    "Value": "ortops.graph",
    "attach_functions": "ortops.functions",
    "lower": "ortops.functions",
    "LibraryError": "ortops._library",
    "build_info": "ortops._library",
    "library_path": "ortops._library",
    "remove_broadcasts": "ortops.rewrite",
    "InferenceSession": "ortops.session",
    "register": "ortops.session",
    "gradients": "ortops.training",
}

__all__ = [
    "Graph",
    "InferenceSession",
    "LibraryError",
    "Op",
    "OpError",
    "Value",
    "attach_functions",
    "build_info",
    "find",
    "gradients",
    "library_path",
    "lower",
    "onnx",
    "ops",
    "register",
    "remove_broadcasts",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name])
    value = module if name == "ops" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
