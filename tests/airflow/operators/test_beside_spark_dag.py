"""The example `delta_beside_spark`: Spark and maintenance take turns on a table on S3."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.operations.core.flags import has_field
from delta_maintenance.storage import open_store
from delta_maintenance.table.evidence.overwritten_commits import states_of
from delta_maintenance.table.read.segment import list_log
from tests.support.emulators.s3_server import S3Server
from tests.support.orchestrators.airflow_versions import DagBag
from tests.support.tables import actions as log
from tests.support.tables.table_builder import log_text, parquet_bytes

DATA = parquet_bytes(pa.table({"id": pa.array(range(10), pa.int64())}))
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "airflow" / "delta_beside_spark.py"

pytestmark = [
    pytest.mark.airflow,
    # Caused by the libraries of Airflow.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]


@pytest.fixture
def bag(airflow_db: None) -> Any:
    bag = DagBag(dag_folder=str(EXAMPLE))
    assert not bag.import_errors
    return bag


def test_every_task_that_commits_is_in_the_pool_and_maintenance_follows_writes(bag: Any) -> None:
    tasks = [task for dag in bag.dags.values() for task in dag.tasks]
    assert {task.task_id: task.pool for task in tasks} == {
        "append": "writers_of_events",
        "optimize": "writers_of_events",
    }
    (append,) = bag.dags["write_events"].tasks
    (optimize,) = bag.dags["optimize_events"].tasks
    assert append.outlets[0].uri == optimize.table_uri
    assert append.outlets[0].uri in str(bag.dags["optimize_events"].timetable.asset_condition)
    assert has_field(optimize.record.options, "quiet")
    assert "writers_of_events 1" in bag.dags["optimize_events"].doc_md


@pytest.mark.server
def test_it_commits_directly_after_a_write_of_spark(
    bag: Any, run_dag: Callable[..., Any], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.make_bucket("lake")
    first = [log.protocol(), log.metadata()]
    adds = [log.add(name, size=len(DATA)) for name in ("a.parquet", "b.parquet")]
    s3_server.fill("lake", ["events/a.parquet", "events/b.parquet"], DATA)
    for version, lines in enumerate((first, adds)):
        s3_server.fill("lake", [f"events/_delta_log/{version:020}.json"], log_text(lines))
    lake = {"conn_type": "delta", "extra": s3_server.storage_options}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))
    done = run_dag(bag.dags["optimize_events"])
    (ti,) = done.get_task_instances()
    assert str(ti.state) == "success"
    store = open_store("s3://lake/events", s3_server.storage_options)
    listing = list_log(store)
    assert [state for _, state in states_of(store, listing.guarded, listing.commits)] == ["sound"]
    store.close()
