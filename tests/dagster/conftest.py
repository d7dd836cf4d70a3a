"""Separate Dagster instances for tests, and tables to maintain."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.suite.loggers import kept_root_logger
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

if TYPE_CHECKING:
    import dagster as dg

# Before it is first imported.
os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"
INSTALLED = importlib.util.find_spec("dagster") is not None
if not INSTALLED:
    # The modules of this folder import it.
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    """Says in the first lines of a run whether Dagster takes part."""
    return f"Dagster: {'there' if INSTALLED else 'ABSENT, none of its tests is run'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Dagster warns of what it uses itself."""
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.dagster)
            item.add_marker(pytest.mark.filterwarnings("ignore::dagster.BetaWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:dagster.*"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Dagster adds handlers to loggers; the tests of other folders get theirs back."""
    with kept_root_logger():
        yield


@pytest.fixture(autouse=True)
def no_earlier_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading definitions asks the last instance of the process for their state, even if an earlier
    test has ended it; the garbage collector brings it back in the middle of a test.
    """
    from dagster._core.storage.defs_state.base import DefsStateStorage

    monkeypatch.setattr(DefsStateStorage, "get", classmethod(lambda _: None))


@pytest.fixture(autouse=True, scope="module")
def no_connections() -> Iterator[None]:
    """Collects the connections of ended instances here.

    SQLAlchemy logs an error for each of them. In the middle of a test that parses Python, the
    traceback in this log breaks the parser (CPython 3.11: "recursion depth mismatch").
    """
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Dagster handles SIGTERM like SIGINT; the processes of other folders get its handler back.

    A run in the background of a shell ignores SIGINT. After Dagster it ignores SIGTERM as well,
    and so do the processes it starts.
    """
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance in memory."""
    import dagster as dg

    with dg.DagsterInstance.ephemeral() as temporary:
        yield temporary


@pytest.fixture
def instance_with_pools() -> Iterator[dg.DagsterInstance]:
    """An instance with a database in files, which supports pools."""
    import dagster as dg

    with tempfile.TemporaryDirectory() as home, dg.DagsterInstance.local_temp(home) as temporary:
        yield temporary


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Ten commits and no checkpoint."""
    builder = TableBuilder(tmp_path / "lake" / "events")
    builder.commit([protocol(), metadata()])
    for number in range(9):
        builder.commit([add(f"{number}.parquet")])
        (tmp_path / "lake" / "events" / f"{number}.parquet").write_bytes(b"x")
    return builder


@pytest.fixture
def load() -> Callable[..., dg.Definitions]:
    """Definitions of a component with these attributes: `load(tables=[...])`."""
    from dagster.components.testing.utils import component_defs

    from delta_maintenance_dagster import DeltaMaintenanceComponent

    def loaded(*, resources: dict[str, Any] | None = None, **attributes: Any) -> dg.Definitions:
        component = DeltaMaintenanceComponent.from_attributes_dict(attributes=attributes)
        return component_defs(component=component, resources=resources)

    return loaded
