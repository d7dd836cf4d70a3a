"""The example `delta_upkeep`, run by Airflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.orchestrators.airflow_versions import DagBag
from tests.support.tables.overdue_tables import fingerprint, overdue_table

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "airflow"
TASKS = ("enough_commits", "checkpoint", "compact_log", "clean_log", "vacuum")

pytestmark = [
    pytest.mark.airflow,
    # Caused by the libraries of Airflow.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]


@pytest.fixture
def run(airflow_db: None, run_dag: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Runs the Dag; returns the state of each task, or its XCom value if it succeeded."""

    def run(**params: Any) -> dict[str, Any]:
        # Read again each time, because a task stays rendered within one process.
        bag = DagBag(dag_folder=str(EXAMPLES / "delta_upkeep.py"))
        assert not bag.import_errors
        done = run_dag(bag.dags["delta_upkeep"], run_conf=params)
        return {
            ti.task_id: ti.xcom_pull(ti.task_id) if str(ti.state) == "success" else str(ti.state)
            for ti in done.get_task_instances()
        }

    return run


def test_deletions_are_only_planned_by_default(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    table = overdue_table(tmp_path / "t")
    names = set(table.names())
    told = run(table_uri=table.store.root, report_uri=f"{tmp_path}/reports/")
    assert told["enough_commits"] == told["checkpoint"] == "skipped"
    assert told["compact_log"]["status"] == "written"
    assert (told["clean_log"]["status"], told["vacuum"]["status"]) == ("planned", "planned")
    assert told["vacuum"]["files"] == 1 and (tmp_path / "t/0.parquet").exists()
    assert set(table.names()) == names | {f"{5:020}.{14:020}.compacted.json"}
    assert len(list((tmp_path / "reports").iterdir())) == 2


def test_with_confirmation_it_runs_everything_that_is_due(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    table = overdue_table(tmp_path / "t")
    before = table.open().snapshot().live_files().sort_by("path")
    told = run(table_uri=table.store.root, plan_only=False, min_commits=5)
    assert [told[name].get("status") for name in TASKS[1:]] == [
        "written",
        "nothing-to-do",
        "cleaned",
        "vacuumed",
    ]
    snapshot = table.open().snapshot()
    assert snapshot.live_files().sort_by("path") == before
    assert not (tmp_path / "t/0.parquet").exists() and f"{0:020}.json" not in table.names()

    after = fingerprint(tmp_path)
    told = run(table_uri=table.store.root, plan_only=False)
    assert told["checkpoint"] == "skipped"
    assert {told[name]["status"] for name in TASKS[2:]} == {"nothing-to-do"}
    assert fingerprint(tmp_path) == after


def test_parameters_are_explained_and_a_table_is_required(airflow_db: None) -> None:
    dag = DagBag(dag_folder=str(EXAMPLES / "delta_upkeep.py")).dags["delta_upkeep"]
    assert dag.max_active_runs == 1 and dag.doc_md
    for name in dag.params:
        param = dag.params.get_param(name)
        assert param.schema["title"] and param.description, name
    assert dag.params["plan_only"] is True
    assert "table_uri" not in dag.params.dump() or dag.params.dump()["table_uri"] is None
