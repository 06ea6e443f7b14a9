"""scikit-build-core's build backend, which also asks PyPI for NVIDIA's compiler where CUDA is on and nvcc is missing.

A static requirement would make everyone download 300 MB. Run as a script, this prints the requirement or nothing, for
builds that bypass pip.
"""

import ctypes.util
import os
import shutil
from pathlib import Path
from typing import Any

from scikit_build_core import build as _backend
from scikit_build_core.build import (  # noqa: F401  (the hooks that stay as they are)
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

# One release of each part: nvcc alone would bring newer parts that its assembler refuses.
TOOLKIT = "cuda-toolkit[nvcc,crt,nvvm,cudart,cccl]==13.0.2"


def toolkit() -> list[str]:
    """The requirement, if this build (ORTOPS_CUDA as cmake/Cuda.cmake reads it) needs one."""
    wanted = os.environ.get("ORTOPS_CUDA", "auto").lower()
    if wanted == "auto":
        driver = Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") or ctypes.util.find_library("cuda")
        wanted = "on" if driver else "off"
    if wanted not in ("on", "true", "yes", "1"):
        return []
    folders = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    path = os.pathsep.join([os.environ.get("PATH", ""), *(f"{folder}/bin" for folder in folders if folder)])
    return [] if shutil.which("nvcc", path=path) else [TOOLKIT]


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _backend.get_requires_for_build_wheel(config_settings) + toolkit()


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _backend.get_requires_for_build_editable(config_settings) + toolkit()


if __name__ == "__main__":
    print(*toolkit())
