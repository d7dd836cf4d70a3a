"""The durations of tests: recorded in `tests/durations.json`, and used to choose and divide runs.

`pytest --record-durations` writes the file after a run; `make durations` runs all tests so. Each
line has a module: its seconds, its tests, and both of each function that took at least 0.1 s. The
processes of a run get the longest groups of modules first, so that they end at about the same time.
Modules that share a costly session belong to one group, and so to one process.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "durations.json"
SHARED = {
    "tests/oracle/": "tests/oracle",
    "tests/spark/": "tests/spark",
    "tests/storage/hdfs/": "tests/storage/hdfs",
}
"""Modules that share a session or a cluster: the beginning of their paths, and the name of their
group.
"""
ALONE = (
    "tests/oracle/log_store/test_races.py",
    "tests/spark/test_cluster.py",
    "tests/spark/test_connect.py",
    "tests/storage/hdfs/test_kerberos.py",
)
"""Modules in such folders that start processes of their own."""
_SHORT_SECONDS = 0.1
UNKNOWN_SECONDS = 5.0
"""The assumed duration of modules that are not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The duration of a module: seconds of all its tests in one process, and the number of
    tests.
    """

    seconds: float
    tests: int
    functions: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """The same of each function, short ones left out."""


def read_durations(file: Path = FILE) -> dict[str, Recorded]:
    """Reads the record, by module; empty without a file."""
    if not file.exists():
        return {}
    return {
        module: Recorded(seconds=seconds, tests=tests, functions=functions)
        for module, (seconds, tests, functions) in json.loads(file.read_text()).items()
    }


def module_of(nodeid: str) -> str:
    """Returns the path of the module of a test."""
    return nodeid.partition("::")[0]


def function_of(nodeid: str) -> str:
    """Returns the name of the function of a test, with its class, without parameters."""
    return nodeid.partition("::")[2].partition("[")[0]


def mean_seconds(nodeid: str, recorded: Mapping[str, Recorded]) -> float:
    """Returns the seconds of one test of a function; 0 if it is short or not recorded."""
    module = recorded.get(module_of(nodeid))
    seconds, tests = module.functions.get(function_of(nodeid), (0.0, 1)) if module else (0.0, 1)
    return seconds / tests


def group_of(nodeid: str) -> str:
    """Returns the group of modules that runs in one process."""
    module = module_of(nodeid)
    if module in ALONE:
        return module
    return next((group for start, group in SHARED.items() if module.startswith(start)), module)


def longest_first(nodeids: list[str], durations: dict[str, Recorded]) -> list[str]:
    """Returns the groups of these tests, the longest first; equal ones by name."""
    modules = {module_of(nodeid) for nodeid in nodeids}
    seconds: defaultdict[str, float] = defaultdict(float)
    for module in modules:
        recorded = durations.get(module)
        seconds[group_of(module)] += recorded.seconds if recorded else UNKNOWN_SECONDS
    return sorted(seconds, key=lambda group: (-seconds[group], group))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations",
        action="store_true",
        help=f"write {FILE.name} anew: what each test module took in this run",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Only the process that prints the summary gets reports of all tests.
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the tests of a divided run; all processes do the same."""
    if hasattr(config, "workerinput"):
        groups = longest_first([item.nodeid for item in items], read_durations())
        place = {group: number for number, group in enumerate(groups)}
        items.sort(key=lambda item: place[group_of(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Divides a run of `--dist loadfile` by groups, in their order."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler.loadfile import LoadFileScheduling

    class ByGroup(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    # The default order is by the number of tests.
    config.option.loadscopereorder = False
    return ByGroup(config, log)


class _Recorder:
    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        modules: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for nodeid, seconds in self._seconds.items():
            modules[module_of(nodeid)][function_of(nodeid)].append(seconds)
        rows = (
            f"  {json.dumps(module)}: {json.dumps(_record_of(modules[module]))}"
            for module in sorted(modules)
        )
        FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def _record_of(functions: Mapping[str, list[float]]) -> list[Any]:
    return [
        round(sum(map(sum, functions.values())), 1),
        sum(map(len, functions.values())),
        {
            name: [round(sum(seconds), 1), len(seconds)]
            for name, seconds in functions.items()
            if sum(seconds) >= _SHORT_SECONDS
        },
    ]
