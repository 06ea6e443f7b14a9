"""What a stranger gets: the wheel, installed into an empty environment, runs the README's first example."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import ortops

ROOT = Path(__file__).parent.parent


def test_one_version() -> None:
    assert ortops.__version__ == importlib.metadata.version("ortops")


def test_import_is_light() -> None:
    """No library, no onnxruntime and no onnx until something is asked for."""
    heavy = {"onnx", "onnxruntime", "onnx_ir", "torch", "typer"}
    code = f"import sys, ortops; print(*{heavy} & {{name.partition('.')[0] for name in sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == ""


@pytest.mark.slow
def test_readme_example_runs_from_the_wheel(tmp_path: Path) -> None:
    example = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert example, "README.md has no python example"

    def run(*command: str | Path) -> str:
        # Nothing of this environment or this checkout: no PYTHONPATH, another folder.
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environment |= {"ORTOPS_CUDA": "off"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
        return done.stdout

    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    [wheel] = tmp_path.glob("ortops-*.whl")
    assert wheel.name.startswith(f"ortops-{ortops.__version__}-py3-none-")

    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", f"{wheel}[cpu,text]")
    assert str(tmp_path) in run(python, "-c", "import ortops, ortops.export; print(ortops.library_path())")
    run(tmp_path / "venv" / "bin" / "ortops", "ops")
    (tmp_path / "example.py").write_text(example[1])
    run(python, "example.py")
