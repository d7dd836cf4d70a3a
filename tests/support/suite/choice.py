"""`pytest --choose`: the part of the suite that a run takes, by marks and by recorded durations.

The durations are those of `tests/durations.json`. A function without a record runs with all its
tests.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

from tests.support.suite.durations import (
    Recorded,
    function_of,
    mean_seconds,
    module_of,
    read_durations,
)
from tests.support.suite.resources import FOLDERS, RESOURCES, resources_of

CHOICES = {
    "quick": "tests that start nothing, as far as they fit in two minutes",
    "sample": "some tests of every module, all of the short ones",
    "rest": "the tests that `sample` leaves out",
}
QUICK_SECONDS = 0.1
SAMPLE_SECONDS = 0.5
"""What the chosen tests of one function may have taken together, in one process."""
LONGEST_SECONDS = 8.0
"""Where all functions of a module are slow, one test that took at most so long is chosen."""
QUICK_ENVIRONMENT = ".venv-quick"
NOT_IN_IT = {"airflow", "dagster", "dagster_shared", "duckdb", "pandas", "polars", "pyspark"}
"""Packages that only the environment of the other commands has."""
LEFT_OUT = pytest.StashKey[Counter[str]]()


def sample(nodeids: Iterable[str], recorded: dict[str, Recorded], seconds: float) -> set[str]:
    """Returns the tests of each function that took at most `seconds` together, evenly spread.

    A function of which each test took longer has none.
    """
    tests: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for nodeid in nodeids:
        tests[module_of(nodeid), function_of(nodeid)].append(nodeid)
    chosen: set[str] = set()
    for same in tests.values():
        mean = mean_seconds(same[0], recorded)
        number = len(same) if mean * len(same) <= seconds else int(seconds / mean)
        chosen.update(same[place * len(same) // number] for place in range(number))
    return chosen


def sample_of_every_module(nodeids: Iterable[str], recorded: dict[str, Recorded]) -> set[str]:
    """Returns the sample of `make test`, in which modules with slow functions alone have a test."""
    nodeids = list(nodeids)
    chosen = sample(nodeids, recorded, SAMPLE_SECONDS)
    fastest: dict[str, str] = {}
    for nodeid in nodeids:
        module = module_of(nodeid)
        best = fastest.setdefault(module, nodeid)
        if mean_seconds(nodeid, recorded) < mean_seconds(best, recorded):
            fastest[module] = nodeid
    sampled = {module_of(nodeid) for nodeid in chosen}
    return chosen | {
        nodeid
        for module, nodeid in fastest.items()
        if module not in sampled and mean_seconds(nodeid, recorded) <= LONGEST_SECONDS
    }


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--choose",
        choices=CHOICES,
        help="run a part of the suite: "
        + "; ".join(f"{name}: {what}" for name, what in CHOICES.items()),
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders that contain only slow tests are not imported for `quick`."""
    if config.getoption("--choose") != "quick":
        return None
    relative = collection_path.relative_to(config.rootpath).as_posix()
    return True if relative in FOLDERS else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skips a module that imports a package which the environment of `make quick` lacks."""
    report = yield
    if report.failed:
        _skip_without_package(report, str(report.longrepr), collector.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skips a test that imports such a package itself."""
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(ModuleNotFoundError):
        _skip_without_package(report, str(call.excinfo.value), item.path)
    return report


def _skip_without_package(
    report: pytest.CollectReport | pytest.TestReport, error: str, path: Path
) -> None:
    missing = re.search(r"No module named '(\w+)", error)
    if missing and missing[1] in NOT_IN_IT and Path(sys.prefix).name == QUICK_ENVIRONMENT:
        report.outcome = "skipped"
        report.longrepr = (str(path), 1, f"NO {missing[1]}: make test installs it")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    choice = config.getoption("--choose")
    if choice is None:
        return
    recorded = read_durations()
    if choice == "quick":
        # Each test is counted once, under its costliest resource.
        config.stash[LEFT_OUT] = Counter(
            next(name for name in RESOURCES if name in resources)
            for resources in map(resources_of, items)
            if resources
        )
        unmarked = [item.nodeid for item in items if not resources_of(item)]
        chosen = sample(unmarked, recorded, QUICK_SECONDS)
    else:
        nodeids = {item.nodeid for item in items}
        chosen = sample_of_every_module((item.nodeid for item in items), recorded)
        chosen = chosen if choice == "sample" else nodeids - chosen
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]


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
    """Prints which tests start something, and so are not in `quick`."""
    if config.getoption("--choose") != "quick":
        return
    left_out = Counter(config.stash.get(LEFT_OUT, {}))
    for module, recorded in read_durations().items():
        for folder, mark in FOLDERS.items():
            if module.startswith(f"{folder}/"):
                left_out[mark] += recorded.tests
    terminalreporter.write_line(
        f"not run: tests that took too long, and {sum(left_out.values())} that start something:"
    )
    for name, what in RESOURCES.items():
        if left_out[name]:
            terminalreporter.write_line(f"  {left_out[name]:5} {name}: {what}")
