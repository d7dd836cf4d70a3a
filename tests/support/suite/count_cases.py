"""Counts the cases of exhaustive tests, and prints the counts at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

CASES = pytest.StashKey[dict[str, int]]()


@pytest.fixture
def count_cases(pytestconfig: pytest.Config) -> Callable[[str, int], None]:
    """Adds cases of a kind to the summary; one test may have hundreds of them."""

    def count(kind: str, number: int) -> None:
        cases = pytestconfig.stash.setdefault(CASES, {})
        cases[kind] = cases.get(kind, 0) + number

    return count


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of a divided run sends its counts to the process that prints the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["cases"] = session.config.stash.get(CASES, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds the counts of a worker."""
    cases = node.config.stash.setdefault(CASES, {})
    for kind, number in getattr(node, "workeroutput", {}).get("cases", {}).items():
        cases[kind] = cases.get(kind, 0) + number


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints the number of cases of the exhaustive tests."""
    for kind, number in config.stash.get(CASES, {}).items():
        terminalreporter.write_line(f"{kind}: {number}")
