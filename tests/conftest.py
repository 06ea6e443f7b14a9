"""What the tests share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from ortops._declare import Op

_errors: dict[str, float] = defaultdict(float)


def pytest_configure(config: pytest.Config) -> None:
    if "gpu" in (config.getoption("-m") or "") and "not gpu" not in config.getoption("-m"):
        import torch  # noqa: F401  (makes the CUDA libraries findable)


@pytest.fixture
def record_error(request: pytest.FixtureRequest) -> Iterator[Callable[[Op, dict[str, str], float], None]]:
    """Collects the largest errors, as a share of what is allowed, for the table at the end."""

    def record(op: Op, types: dict[str, str], error: float) -> None:
        provider = request.getfixturevalue("provider").removesuffix("ExecutionProvider")
        key = f"{op.name} {' '.join(types.values())} {provider}"
        _errors[key] = max(_errors[key], error)

    yield record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _errors and terminalreporter.config.getoption("verbose") > 0:
        terminalreporter.section("largest errors, as a share of what is allowed")
        for key, error in sorted(_errors.items()):
            terminalreporter.write_line(f"{key}: {error:.2f}")
