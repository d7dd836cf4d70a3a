"""How many cases the exhaustive tests went through, said at the end of a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

CASES = pytest.StashKey[dict[str, int]]()


@pytest.fixture
def count_cases(pytestconfig: pytest.Config) -> Callable[[str, int], None]:
    """Adds cases of a kind to the summary; one test may stand for hundreds of them."""

    def count(kind: str, number: int) -> None:
        cases = pytestconfig.stash.setdefault(CASES, {})
        cases[kind] = cases.get(kind, 0) + number

    return count


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says how many cases the exhaustive tests went through."""
    for kind, number in config.stash.get(CASES, {}).items():
        terminalreporter.write_line(f"{kind}: {number}")
