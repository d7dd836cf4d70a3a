"""The example `delta_checkpoint` is run by Airflow, and every Dag file of the project is parsed."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.operations.core.given_options import read_options
from delta_maintenance_airflow import operators
from delta_maintenance_airflow.hooks import DeltaHook
from tests.support.orchestrators.airflow_versions import DagBag
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

ROOT = Path(__file__).resolve().parents[2]
DAGS, EXAMPLES = ROOT / "dags", ROOT / "examples" / "airflow"

pytestmark = [
    pytest.mark.airflow,
    # Caused by the libraries of Airflow.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]


@pytest.fixture
def dag(airflow_db: None) -> Any:
    bag = DagBag(dag_folder=str(EXAMPLES))
    assert not bag.import_errors
    return bag.dags["delta_checkpoint"]


def states(run: Any) -> dict[tuple[str, int], str]:
    return {(ti.task_id, ti.map_index): str(ti.state) for ti in run.get_task_instances()}


def test_parsing_the_dag_opens_no_table_and_asks_for_no_variable(
    airflow_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import Variable

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("at parse time")

    monkeypatch.setattr(DeltaHook, "open_table", forbidden)
    monkeypatch.setattr(Variable, "get", forbidden)
    expected = {
        DAGS: {"delta_maintenance", "delta_manual", "delta_on_commit"},
        EXAMPLES: {
            "delta_checkpoint",
            "delta_taskflow",
            "delta_upkeep",
            "optimize_events",
            "write_events",
        },
    }
    for folder, dag_ids in expected.items():
        bag = DagBag(dag_folder=str(folder))
        assert not bag.import_errors
        assert set(bag.dags) == dag_ids


def test_every_example_of_the_documentation_is_a_dag(tmp_path: Path, airflow_db: None) -> None:
    pages = ("airflow.md", "airflow-operators.md")
    text = "".join((ROOT / "docs" / "integrations" / page).read_text() for page in pages)
    examples = [block.partition("```")[0] for block in text.split("```python\n")[1:]]
    for number, example in enumerate(examples):
        (tmp_path / f"example_{number}.py").write_text(example)
    bag = DagBag(dag_folder=str(tmp_path))
    assert not bag.import_errors
    assert len({dag.fileloc for dag in bag.dags.values()}) == len(examples)
    assert set(bag.dags["checkpoint_events"].task_ids) == {"wait", "checkpoint"}
    tasks = [task for dag in bag.dags.values() for task in dag.tasks]
    assert [task.task_id for task in tasks if _is_refused_on_s3(task)] == []
    used = {task.task_type for task in tasks}
    made = {name for name in dir(operators) if name.endswith("Operator")}
    assert used >= {*made, "DeltaCommitSensor"}


def _is_refused_on_s3(task: Any) -> bool:
    """Whether a task would commit to a table on S3, and nothing names the other writers."""
    record = getattr(task, "record", None)
    if record is None or not record.asks_for_writers or task.delta_conn_id is not None:
        return False
    options = task.options or {}
    subjects = {name: value for name in record.subjects if (value := getattr(task, name))}
    may_commit = record.may_commit_on_s3(read_options(record, {**options, **subjects}))
    return may_commit and task.table_uri.startswith("s3:") and "other_writers" not in options


def test_one_run_at_a_time_and_every_parameter_explained(dag: Any) -> None:
    assert dag.max_active_runs == 1
    assert dag.doc_md
    for name in dag.params:
        param = dag.params.get_param(name)
        assert param.schema["title"] and param.description, name


def test_a_run_by_hand_checkpoints_the_table_at_once(
    dag: Any, run_dag: Callable[..., Any], neglected_table: TableBuilder
) -> None:
    uri = neglected_table.store.root
    run = run_dag(dag, run_conf={"table_uri": uri, "kind": "v2-json", "actions_per_sidecar": 3})
    assert set(states(run).values()) == {"success"}
    checkpoint = neglected_table.open().snapshot().log.checkpoint
    assert checkpoint is not None
    assert (checkpoint.files.version, len(checkpoint.sidecars)) == (9, 4)
    outcome = run.get_task_instance("one_table.checkpoint", map_index=0).xcom_pull(
        "one_table.checkpoint", map_indexes=0
    )
    assert (outcome["status"], outcome["version"]) == ("written", 9)


def test_a_plan_by_hand_writes_nothing(
    dag: Any, run_dag: Callable[..., Any], neglected_table: TableBuilder
) -> None:
    uri = neglected_table.store.root
    run = run_dag(dag, run_conf={"table_uri": uri, "plan_only": True})
    assert run.state == "success"
    assert neglected_table.open().snapshot().log.checkpoint is None


def test_a_scheduled_run_takes_the_tables_of_the_variable_each_on_its_own(
    dag: Any,
    run_dag: Callable[..., Any],
    neglected_table: TableBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh = TableBuilder(tmp_path / "fresh")
    fresh.commit([protocol(), metadata()])
    fresh.commit([add("a.parquet")])
    tables = [neglected_table.store.root, str(tmp_path / "no table here"), fresh.store.root]
    monkeypatch.setenv("AIRFLOW_VAR_DELTA_CHECKPOINT_TABLES", json.dumps(tables))
    run = run_dag(dag, run_conf={"min_commits": 3})
    assert states(run) == {
        ("tables", -1): "success",
        ("one_table.enough_commits", 0): "success",
        ("one_table.enough_commits", 1): "failed",
        ("one_table.enough_commits", 2): "skipped",
        ("one_table.checkpoint", 0): "success",
        ("one_table.checkpoint", 1): "upstream_failed",
        ("one_table.checkpoint", 2): "skipped",
    }
    assert neglected_table.open().snapshot().log.checkpoint is not None
    assert fresh.open().snapshot().log.checkpoint is None


def test_without_tables_a_scheduled_run_does_nothing(dag: Any, run_dag: Callable[..., Any]) -> None:
    run = run_dag(dag)
    assert run.state == "success"
    assert states(run)["one_table.checkpoint", -1] == "skipped"


def test_a_refusal_fails_the_task_for_good(
    dag: Any, run_dag: Callable[..., Any], classic_table: TableBuilder
) -> None:
    uri = classic_table.store.root
    run = run_dag(dag, run_conf={"table_uri": uri, "kind": "v2-json", "engine": "local"})
    # Not up_for_retry, although the Dag grants two retries.
    assert states(run)["one_table.checkpoint", 0] == "failed"
    assert classic_table.open().snapshot().log.checkpoint is None


@pytest.fixture
def spark_connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    connection = {"conn_type": "spark", "host": "local[2]"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    yield
    # The provider leaves the pipe from spark-submit to the garbage collector.
    gc.collect()


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_spark_job_writes_the_sidecars(
    dag: Any, run_dag: Callable[..., Any], neglected_table: TableBuilder, spark_connection: None
) -> None:
    before = neglected_table.open().snapshot().live_files().sort_by("path")
    run = run_dag(
        dag,
        run_conf={
            "table_uri": neglected_table.store.root,
            "kind": "v2-parquet",
            "engine": "spark",
            "actions_per_sidecar": 3,
        },
    )
    assert run.state == "success"
    snapshot = neglected_table.open().snapshot()
    assert snapshot.log.checkpoint is not None
    assert snapshot.log.checkpoint.sidecars
    assert snapshot.live_files().sort_by("path") == before
    told = run.get_task_instance("one_table.checkpoint", map_index=0).xcom_pull(
        "one_table.checkpoint", map_indexes=0
    )
    assert (told["engine"], told["status"], told["version"]) == ("spark", "written", 9)
