"""Fixtures shared by every test: the corpus of real tables and where to find it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# What an example takes depends on who else uses the machine; no property is about time.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")

pytest_plugins = ["conformance", "count_cases"]

ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("DELTA_MAINTENANCE_CORPUS", ROOT.parent / "shared" / "tables"))


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real tables; tests that need it skip loudly where it is absent."""
    if not (CORPUS / "expected").is_dir():
        pytest.skip(f"NO CORPUS: {CORPUS} is absent; set DELTA_MAINTENANCE_CORPUS")
    return CORPUS


def pytest_report_header() -> str:
    """Says in the first lines of a run whether the corpus takes part."""
    found = (CORPUS / "expected").is_dir()
    return f"corpus of real tables: {CORPUS if found else 'ABSENT, tests that need it are skipped'}"
