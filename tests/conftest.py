"""Fixtures shared by every test: the corpus of real tables and where to find it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from delta_maintenance.protocol.delta_log.file_sample import FileSample
from tests.support.tables.corpus_tables import CORPUS

pytest_plugins = [
    "tests.support.suite.conformance",
    "tests.support.suite.count_cases",
    "tests.support.suite.durations",
    "tests.support.suite.hangs",
    "tests.support.suite.play",
    "tests.support.suite.oracle_mode",
    "tests.support.suite.resources",
    "tests.support.suite.choice",
    "tests.support.suite.servers",
]


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real tables; tests that need it skip loudly where it is absent."""
    if not (CORPUS / "expected").is_dir():
        pytest.skip(f"NO CORPUS: {CORPUS} is absent; set DELTA_MAINTENANCE_CORPUS")
    return CORPUS


_FILES = FileSample.files
# The data files of most tables in tests do not exist.
FileSample.files = lambda _: []  # type: ignore[method-assign]  # for all tests, also at import


@pytest.fixture
def asks_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets health ask the store for files, as it does outside of tests."""
    monkeypatch.setattr(FileSample, "files", _FILES)


def pytest_collection_finish() -> None:
    """Exempts the collected tests from garbage collection, each pass of which would visit them."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    """Says in the first lines of a run whether the corpus takes part."""
    found = (CORPUS / "expected").is_dir()
    return f"corpus of real tables: {CORPUS if found else 'ABSENT, tests that need it are skipped'}"
