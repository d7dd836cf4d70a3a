"""Marks every test with the resources that it starts, and fails unmarked tests that start one.

The marks come from the folder of a test, from its fixtures, and from its module. Any of them makes
a test `slow`. With `--choose quick`, the run watches what unmarked tests start.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

RESOURCES = {
    "spark": "starts a JVM: a Spark session, a cluster or a job",
    "oracle": "asks Delta Spark, whose jars come from Maven Central",
    "airflow": "loads Airflow, most with a database of their own",
    "dagster": "loads Dagster, some with a daemon",
    "browser": "drives a browser",
    "server": "starts a server: an object store or an HTTP endpoint on the loopback interface",
    "process": "starts other processes, mostly of this Python",
    "cases": "goes through many cases: every fault, every table of the corpus, random histories",
}
"""The marks, with descriptions of what a marked test does."""

FOLDERS = {
    "tests/airflow": "airflow",
    "tests/dagster": "dagster",
    "tests/oracle": "oracle",
    "tests/spark": "spark",
    "tests/stack": "airflow",
    "tests/storage/hdfs": "server",
    "tests/simulation": "cases",
}
"""Folders in which all tests have a mark."""

_FIXTURES = {
    "azure_server": "server",
    "browser": "browser",
    "corpus": "cases",
    "count_cases": "cases",
    "gcs_server": "server",
    "hdfs": "server",
    "java": "spark",
    "running_s3_server": "server",
    "secured_hdfs": "server",
    "web": "server",
}
_IMPLIED = {"oracle": {"spark"}}
_ALLOWED = {
    "process": {"airflow", "browser", "dagster", "process", "server", "spark"},
    "server": {"airflow", "browser", "dagster", "server", "spark"},
}
"""Each watched event, and the marks that permit it."""
_EVENTS = {
    "os.fork": "process",
    "os.posix_spawn": "process",
    "socket.bind": "server",
    "subprocess.Popen": "process",
}
_UTILITIES = {"cc", "gcc", "git", "ld", "ldconfig", "lsb_release", "objdump", "uname"}
"""Programs that libraries run to examine the machine, often only once in a process; they end at
once.
"""


def pytest_configure(config: pytest.Config) -> None:
    for name, what in RESOURCES.items():
        config.addinivalue_line("markers", f"{name}: {what}")
    config.addinivalue_line("markers", f"slow: carries any of {', '.join(RESOURCES)}")
    if config.getoption("--choose") == "quick":
        config.pluginmanager.register(_Watch())


# Before -m deselects tests.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in resources_of(item):
            item.add_marker(name)
        if resources_of(item):
            item.add_marker("slow")


def resources_of(item: pytest.Item) -> set[str]:
    """Returns the resources that a test starts, by its folder, its fixtures and its marks."""
    found = {mark.name for mark in item.iter_markers()} & RESOURCES.keys()
    found |= {_FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in _FIXTURES}
    found |= {mark for folder, mark in FOLDERS.items() if item.nodeid.startswith(f"{folder}/")}
    return found.union(*(_IMPLIED.get(name, set()) for name in found))


class _Watch:
    """Records what is started while a test runs."""

    def __init__(self) -> None:
        # Python calls the hook to the very end, when the names of this module no longer exist.
        self._events, self._getpid = _EVENTS, os.getpid
        self._allowed: set[str] | None = None
        self._started: list[tuple[str, str]] = []
        self._process = os.getpid()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        resource = self._events.get(event)
        if resource is None or self._allowed is None or self._process != self._getpid():
            return
        if event == "socket.bind" and arguments[0].family == socket.AF_UNIX:
            return
        if event == "socket.bind" and arguments[1][:2] == ("::1", 0):
            # When urllib3 is imported, it checks whether the machine has IPv6.
            return
        if event == "subprocess.Popen" and os.path.basename(str(arguments[0])) in _UTILITIES:
            return
        if not self._allowed & _ALLOWED[resource]:
            self._started.append((resource, f"{event} {arguments[:2]}"[:200]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self._started.clear()
        self._allowed = resources_of(item)
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        yield
        self._allowed = None
        for resource, what in self._started:
            pytest.fail(f"the test is not marked {resource!r}, and caused {what}", pytrace=False)
