"""`pytest --quick`: the tests that start no process, and a table of the skipped tests.

Folders that contain only other tests are not imported.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.suite.durations import read_durations
from tests.support.suite.resources import FOLDERS, RESOURCES, resources_of

LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="run only tests that are not marked slow, and say what is left out",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("--quick"):
        return None
    relative = collection_path.relative_to(config.rootpath).as_posix()
    return True if relative in FOLDERS else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    left_out: Counter[str] = Counter()
    kept, dropped = [], []
    for item in items:
        resources = resources_of(item)
        (dropped if resources else kept).append(item)
        # Each test is counted once, under its costliest resource.
        left_out.update(
            [next(name for name in RESOURCES if name in resources)] if resources else []
        )
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept
    config.stash[LEFT_OUT] = left_out


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of a divided run sends its counts to the process that prints the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash.get(LEFT_OUT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """All workers skip the same tests."""
    counted = getattr(node, "workeroutput", {}).get("left_out", {})
    node.config.stash[LEFT_OUT] = Counter(counted)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints which tests `make test` would have run in addition."""
    if not config.getoption("--quick"):
        return
    left_out = Counter(config.stash.get(LEFT_OUT, {}))
    for module, recorded in read_durations().items():
        for folder, mark in FOLDERS.items():
            if module.startswith(f"{folder}/"):
                left_out[mark] += recorded.tests
    terminalreporter.write_line(f"not run ({sum(left_out.values())} tests; `make test` does):")
    for name, what in RESOURCES.items():
        if left_out[name]:
            terminalreporter.write_line(f"  {left_out[name]:5} {name}: {what}")
