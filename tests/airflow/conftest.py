"""Airflow with a separate database, in a folder that is deleted after the tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.support.suite.loggers import kept_root_logger
from tests.support.tables.actions import add, features, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

_HOME = tempfile.TemporaryDirectory(prefix="delta-maintenance-airflow-")
# Airflow reads these once, when it is first imported: by the test modules of this folder.
os.environ.update(
    AIRFLOW_HOME=_HOME.name,
    AIRFLOW__API_AUTH__JWT_SECRET="of these tests, as long as Airflow asks for: " + "x" * 20,
    AIRFLOW__CORE__DAGS_FOLDER=str(Path(__file__).resolve().parents[2] / "dags"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME.name}/airflow.db",
)


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Restores the root logger, which Airflow changes, for the tests of other folders."""
    with kept_root_logger():
        yield


@pytest.fixture(scope="session")
def airflow_db() -> None:
    """A migrated database."""
    from airflow.utils import db

    from tests.support.orchestrators.airflow_versions import share_in_process_api

    db.initdb()
    share_in_process_api()


@pytest.fixture
def run_dag(airflow_db: None) -> Callable[..., Any]:
    """Runs a Dag to its end, for real: `run_dag(dag, run_conf={...})` gives the DagRun."""

    def run(dag: Any, **options: Any) -> Any:
        from airflow.models.dagbundle import DagBundleModel
        from airflow.utils.session import create_session

        from tests.support.orchestrators.airflow_versions import DagBag, sync_bag_to_db

        with create_session() as session:
            session.merge(DagBundleModel(name="testing"))
        bag = DagBag(dag_folder=os.devnull)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "testing", None)
        return dag.test(**options)

    return run


@pytest.fixture
def task_context() -> dict[str, Any]:
    """The part of a task's context that our operators read."""

    class Events(dict[Any, Any]):
        """By names, as in Airflow: until 3.1, assets were not hashable."""

        def __getitem__(self, outlet: Any) -> Any:
            event = SimpleNamespace(extra=None, add=MagicMock())
            return self.setdefault((type(outlet).__name__, outlet.name), event)

    ti = MagicMock(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=0)
    dag_run = SimpleNamespace(run_after=datetime(2026, 1, 1, tzinfo=UTC))
    return {"outlet_events": Events(), "ti": ti, "dag_run": dag_run, "params": {}}


@pytest.fixture
def neglected_table(tmp_path: Path) -> TableBuilder:
    """Ten commits, two tombstones, no checkpoint; the feature v2Checkpoint is on."""
    table = TableBuilder(tmp_path / "table")
    table.commit([features("v2Checkpoint"), metadata()])
    for number in range(8):
        table.commit([add(f"{number}.parquet")])
    table.commit([remove("0.parquet"), remove("1.parquet"), add("last.parquet")])
    return table


@pytest.fixture
def classic_table(tmp_path: Path) -> TableBuilder:
    """Two commits, no checkpoint, no table feature."""
    table = TableBuilder(tmp_path / "classic")
    table.commit([protocol(), metadata()])
    table.commit([add("a.parquet")])
    return table
