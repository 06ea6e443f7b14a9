"""The native library: where it is, what it says of itself, and whether it is the one that this package was written for."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import struct
from pathlib import Path
from typing import Any

__all__ = ["LibraryError", "build_info", "declarations_hash", "library_path", "load"]

NAME = "libortops.so"
VARIABLE = "ORTOPS_LIBRARY"
REBUILD = "build it with `make library` in a checkout, or install the package again with pip"


class LibraryError(RuntimeError):
    """The native library is missing, is none, is stale, or cannot do what it is asked for. The text names the path and the reason."""


def library_path() -> str:
    """The path of libortops.so: what the environment variable ORTOPS_LIBRARY says, else beside the installed package, else in
    the build folder of the checkout. Raises LibraryError if it is in none of these places."""
    if chosen := os.environ.get(VARIABLE):
        return chosen
    import ortops

    places = [Path(base) / NAME for base in ortops.__path__] + [Path(__file__).resolve().parent.parent / "build" / NAME]
    for place in places:
        if place.is_file():
            return str(place)
    raise LibraryError(
        f"{NAME} was not found; looked for {', '.join(map(str, places))}: {REBUILD}, or set {VARIABLE} to its path"
    )


def build_info(path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """What the library says of itself: version, declarations (their hash), cuda, architectures, variants.

    Raises:
        LibraryError: It is missing or is not a library of ours.
    """
    library = load(path)
    describe = library.OrtopsBuildInfo
    describe.restype = ctypes.c_char_p
    info: dict[str, Any] = json.loads(describe().decode())
    return info


def load(path: str | os.PathLike[str] | None = None) -> ctypes.CDLL:
    """Loads the library, for its description; raises LibraryError with the path and the reason if that cannot be done."""
    path = Path(path if path is not None else library_path())
    if not path.is_file():
        raise LibraryError(f"{path}: {'not a file' if path.exists() else 'no such file'}; {REBUILD}")
    try:
        with path.open("rb") as file:
            header = file.read(64)
        if header[:4] != b"\x7fELF":
            raise LibraryError(f"{path}: not a shared library (it begins with {header[:4]!r}); {REBUILD}")
        if not _is_whole(header, path.stat().st_size):
            raise LibraryError(f"{path}: only the beginning of a library, a copy that broke off; {REBUILD}")
        library = ctypes.CDLL(str(path.resolve()))
    except OSError as error:
        raise LibraryError(f"{path}: cannot be loaded: {error}") from error
    for function in ("RegisterCustomOps", "OrtopsBuildInfo"):
        if not hasattr(library, function):
            raise LibraryError(f"{path}: not a library of ortops: it has no function {function}; {REBUILD}")
    return library


def _is_whole(header: bytes, size: int) -> bool:
    """Whether the table of sections, which ends a 64-bit ELF file, is there: loading a file that breaks off kills the process."""
    if len(header) < 64:
        return False
    offset, entry, count = (*struct.unpack_from("<Q", header, 40), *struct.unpack_from("<HH", header, 58))
    return bool(offset + entry * count <= size)


@functools.cache
def declarations_hash() -> str:
    """The hash of the declarations in this package, which a library that was built from them gives too."""
    from ortops._codegen import fingerprint

    return fingerprint()


def check(path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """`build_info` of a library that was built from this package's declarations; raises LibraryError for any other."""
    info = build_info(path)
    if info.get("declarations") != declarations_hash():
        raise LibraryError(
            f"{path if path is not None else library_path()}: stale: built from other declarations ({info.get('declarations')}) than "
            f"this package's ({declarations_hash()}); {REBUILD}"
        )
    return info
