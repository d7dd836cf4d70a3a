"""The maintenance asset: runs on real tables, what it tells and what it remembers."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from delta_maintenance.errors import StorageAccessError, StorageError
from delta_maintenance.policies.definition import Policy
from delta_maintenance.table.read import Table
from delta_maintenance_dagster import DeltaTable, Execution, build_definitions, memory, table_run
from delta_maintenance_dagster.metadata import log_svg
from tests.support.markdown import markdown_rows
from tests.support.suite.reported_metrics import reported
from tests.support.tables.actions import add, features
from tests.support.tables.table_builder import TableBuilder

Load = Callable[..., dg.Definitions]
TABLE = dg.AssetKey(["lake", "events"])
MAINTENANCE = dg.AssetKey(["lake", "events", "maintenance"])
OP = "lake__events__maintenance"


@pytest.fixture
def run(
    table: TableBuilder, tmp_path: Path, load: Load, instance: dg.DagsterInstance
) -> Callable[..., dg.ExecuteInProcessResult]:
    """Runs the job on the table: `run(rules, config)`."""

    def ran(
        rules: dict[str, Any] | None = None, config: dict[str, Any] | None = None, **more: Any
    ) -> dg.ExecuteInProcessResult:
        rules = {"checkpoint": {"max_commits": 5}} if rules is None else rules
        uri = str(tmp_path / "lake" / "events")
        definitions = load(tables=[{"uri": uri, "key": "lake/events", **rules}], **more)
        return definitions.resolve_job_def("delta_maintenance").execute_in_process(
            instance=instance,
            run_config={"ops": {OP: {"config": config or {}}}},
            raise_on_error=False,
        )

    return ran


Run = Callable[..., dg.ExecuteInProcessResult]


def told(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Returns the metadata of the only materialization."""
    (event,) = result.asset_materializations_for_node(OP)
    return {name: value.value for name, value in event.metadata.items()}


def observed(instance: dg.DagsterInstance, key: dg.AssetKey = MAINTENANCE) -> dict[str, Any]:
    (record,) = instance.fetch_observations(key, limit=1).records
    assert record.asset_observation is not None
    return {name: value.value for name, value in record.asset_observation.metadata.items()}


def problem_of(result: dg.ExecuteInProcessResult) -> dg.Failure | Any:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    return failure.step_failure_data


def checkpoints(table: TableBuilder) -> list[str]:
    return [name for name in table.names() if "checkpoint.parquet" in name]


def test_due_operations_run_and_are_reported(table: TableBuilder, run: Run) -> None:
    result = run()
    assert result.success
    facts = told(result)
    assert len(checkpoints(table)) == 1
    assert facts["status"] == "done"
    assert (facts["version_before"], facts["version_after"]) == (9, 9)
    assert (facts["commits_to_replay_before"], facts["commits_to_replay_after"]) == (10, 0)
    (operation,) = markdown_rows(facts["operations"])
    assert operation["operation"] == "checkpoint"
    assert "10 commits" in operation["why"]
    assert facts["results"]["checkpoint"]["status"] == "written"
    assert markdown_rows(facts["due"])[0]["status"] == "not due"


def test_a_run_is_reported_to_opentelemetry(run: Run) -> None:
    reported()
    run(config={"plan_only": True})
    assert reported() == {}
    run()
    found = reported()
    assert found["delta_maintenance.runs"] == {("done",): 1}
    assert found["delta_maintenance.operations"] == {("checkpoint", "done"): 1}


def test_no_due_operation_is_a_normal_answer(run: Run) -> None:
    run()
    facts = told(run())
    assert facts["status"] == "nothing-due"
    assert markdown_rows(facts["operations"]) == []


def test_the_table_itself_is_never_materialised(run: Run, instance: dg.DagsterInstance) -> None:
    run()
    assert instance.get_latest_materialization_event(MAINTENANCE) is not None
    assert instance.get_latest_materialization_event(TABLE) is None


def test_the_table_is_observed_by_its_maintenance(
    table: TableBuilder, run: Run, instance: dg.DagsterInstance
) -> None:
    table.commit([add("9.parquet", stats='{"numRecords": 7}')])
    run()
    facts = observed(instance, TABLE)
    assert (facts["version"], facts["files"], facts["dagster/size_bytes"]) == (10, 10, 10)
    assert [column.name for column in facts["columns"].columns] == ["id", "part"]
    assert data_version(instance) == maintained_version(instance) == "10"

    # Maintenance changes the version, and no data.
    table.commit([features(writer_only=["appendOnly", "checkConstraints"])])
    config = {"operation": "drop-feature", "options": {"feature": "checkConstraints"}}
    assert run({"other_writers": "none"}, config).success
    assert observed(instance, TABLE)["version"] == 12
    assert data_version(instance) == maintained_version(instance) == "10"


def data_version(instance: dg.DagsterInstance) -> str:
    (record,) = instance.fetch_observations(TABLE, limit=1).records
    assert record.asset_observation is not None
    return str(record.asset_observation.tags["dagster/data_version"])


def maintained_version(instance: dg.DagsterInstance) -> str:
    """The data version of the table of which its maintenance is."""
    event = instance.get_latest_materialization_event(MAINTENANCE)
    assert event is not None and event.asset_materialization is not None
    tags = event.asset_materialization.tags or {}
    return tags["dagster/input_data_version/lake/events"]


def test_a_change_of_data_that_no_assessment_has_seen_is_not_observed(
    table: TableBuilder, run: Run, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = table_run.read_versions

    def read_later(*arguments: Any) -> Any:
        table.commit([add("later.parquet")])
        return read(*arguments)

    monkeypatch.setattr(table_run, "read_versions", read_later)
    assert run().success
    assert not instance.fetch_observations(TABLE, limit=1).records


def test_the_log_is_drawn(run: Run) -> None:
    markdown = told(run())["log"]
    svg = base64.b64decode(markdown.partition("base64,")[2].removesuffix(")")).decode()
    assert "version 0" in svg and "version 9" in svg
    assert len(markdown) < 8_000


def test_a_log_without_commits_is_drawn_too() -> None:
    assert log_svg([]).startswith("<svg")


def test_a_plan_changes_nothing_and_materialises_nothing(
    table: TableBuilder, run: Run, instance: dg.DagsterInstance
) -> None:
    before = table.names()
    result = run(config={"plan_only": True})
    assert result.success
    assert table.names() == before
    assert result.asset_materializations_for_node(OP) == []
    facts = observed(instance)
    assert facts["status"] == "planned"
    assert facts["plans"].startswith("**checkpoint**: `10 commits")
    plan = {row["fact"]: row["value"] for row in markdown_rows(facts["plans"])}
    assert plan["version"] == "9" and facts["results"] == {}


def test_a_plan_with_nothing_due_materialises_nothing_either(
    run: Run, instance: dg.DagsterInstance
) -> None:
    run()
    result = run(config={"plan_only": True})
    assert result.asset_materializations_for_node(OP) == []
    assert observed(instance)["status"] == "nothing-due"


def test_an_operation_by_name_runs_although_nothing_is_due(table: TableBuilder, run: Run) -> None:
    facts = told(run({}, {"operation": "checkpoint"}))
    assert facts["status"] == "done"
    assert len(checkpoints(table)) == 1


def test_options_of_the_launchpad_go_before_the_policy(table: TableBuilder, run: Run) -> None:
    rules = {"compact_log": {"commits_per_file": 5}}
    run(rules, {"operation": "compact-log", "options": {"commits_per_file": 3}})
    compacted = [name for name in table.names() if "compacted" in name]
    assert len(compacted) == 3
    assert all(int(b.split(".")[0]) - int(a) == 2 for a, b in (n.split(".", 1) for n in compacted))


def test_an_operation_by_name_can_be_planned(table: TableBuilder, run: Run) -> None:
    before = table.names()
    assert run({}, {"operation": "checkpoint", "plan_only": True}).success
    assert table.names() == before


def test_a_feature_outside_of_policies_can_be_dropped(table: TableBuilder, run: Run) -> None:
    table.commit([features(writer_only=["appendOnly", "checkConstraints"])])
    config = {"operation": "drop-feature", "options": {"feature": "checkConstraints"}}
    result = run({"other_writers": "none"}, config)
    assert result.success
    assert told(result)["results"]["drop-feature"]["status"] == "dropped"
    assert table.open().snapshot().protocol.writer_features == ("appendOnly",)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"operation": "optimise"}, "no operation"),
        ({"options": {"kind": "classic"}}, "without an operation"),
        ({"approve": ["drop-feature"]}, "not an operation of policies"),
        ({"operation": "checkpoint", "options": {"knd": "classic"}}, "knd"),
    ],
)
def test_a_mistake_in_the_launchpad_fails_at_once(
    table: TableBuilder, run: Run, config: dict[str, Any], said: str
) -> None:
    before = table.names()
    failure = problem_of(run(config=config))
    assert said in str(failure)
    assert failure.user_failure_data is not None
    assert table.names() == before


def test_operations_that_need_approval_wait(table: TableBuilder, run: Run) -> None:
    rules = {"checkpoint": {"max_commits": 5}, "approval": ["checkpoint"]}
    facts = told(run(rules))
    assert facts["status"] == "blocked"
    assert markdown_rows(facts["operations"])[0]["status"].startswith("needs approval, ")
    assert checkpoints(table) == []
    assert told(run(rules, {"approve": ["checkpoint"]}))["status"] == "done"
    assert len(checkpoints(table)) == 1


def test_an_address_without_a_table_fails_and_is_not_retried(
    tmp_path: Path, load: Load, instance: dg.DagsterInstance
) -> None:
    definitions = load(tables=[{"uri": str(tmp_path), "key": "lake/events"}])
    job = definitions.resolve_job_def("delta_maintenance")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    assert not [event for event in result.all_events if event.is_step_up_for_retry]
    assert str(tmp_path) in str(problem_of(result))
    kind = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    checks = [
        record.event_log_entry.get_dagster_event().asset_check_evaluation_data
        for record in instance.get_records_for_run(result.run_id, of_type=kind).records
    ]
    assert len(checks) == 8 and not any(each.passed for each in checks)


@pytest.mark.parametrize(
    ("error", "retried"), [(StorageError("down"), True), (StorageAccessError("no"), False)]
)
def test_only_temporary_failures_are_retried(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    error: StorageError,
    retried: bool,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Table, "snapshot", fail)
    events = Policy.model_validate({"version": 1}).table_at(str(tmp_path))
    definitions = build_definitions(
        [DeltaTable(policy=events, key=TABLE)],
        execution=Execution(retry_policy=dg.RetryPolicy(max_retries=1, delay=0)),
    )
    job = definitions.resolve_job_def("delta_maintenance")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    tries = [event for event in result.all_events if event.is_step_up_for_retry]
    assert len(tries) == retried


def test_a_failure_keeps_the_completed_work(
    table: TableBuilder, run: Run, instance: dg.DagsterInstance
) -> None:
    # Named in the log and not there, which a vacuum refuses.
    table.commit([add("lost.parquet")])
    rules = {"checkpoint": {"max_commits": 5}, "vacuum": True}
    result = run(rules)
    assert not result.success
    assert "a file of the table is missing" in str(problem_of(result))
    facts = observed(instance)
    assert facts["status"] == "failed"
    assert [each["operation"] for each in facts[memory.METADATA_KEY]] == ["checkpoint", "vacuum"]


def test_the_newest_state_counts_even_after_a_failure(
    table: TableBuilder, run: Run, instance: dg.DagsterInstance
) -> None:
    known = DeltaTable(
        policy=Policy.model_validate({"version": 1}).table_at(table.store.root), key=TABLE
    )

    def remembered() -> dict[str, str]:
        return {each.operation: each.status for each in memory.recall(instance, known).last_runs}

    assert remembered() == {}
    run({"vacuum": True})
    assert remembered() == {"vacuum": "nothing-to-do"}
    table.commit([add("lost.parquet")])
    assert not run(None, {"operation": "vacuum"}).success
    assert remembered() == {"vacuum": "failed"}
    # A missing file is corruption, which holds everything else back.
    run({"fsck": True, "checkpoint": {"max_commits": 5}})
    assert remembered() == {"vacuum": "failed", "fsck": "corrupt"}


def test_dagster_records_operations_without_a_commit(run: Run) -> None:
    rules = {"fsck": True}
    first = told(run(rules))
    assert [each["operation"] for each in first[memory.METADATA_KEY]] == ["fsck"]
    second = told(run(rules))
    assert second["status"] == "nothing-due"
    # A plan in between does not make it forget.
    run(rules, {"plan_only": True})
    assert told(run(rules))["status"] == "nothing-due"


def test_a_run_evaluates_the_checks_of_the_table(run: Run, instance: dg.DagsterInstance) -> None:
    result = run()
    evaluations = {each.check_name: each for each in result.get_asset_check_evaluations()}
    assert len(evaluations) == 8
    assert all(each.asset_key == TABLE for each in evaluations.values())
    # Of the table as it is afterwards.
    assert evaluations["checkpoint_lag"].passed
    assert evaluations["checkpoint_lag"].metadata["commits_since_checkpoint"].value == 0


def test_without_checks_none_is_evaluated(run: Run) -> None:
    assert run(checks=False).get_asset_check_evaluations() == []


def test_a_table_that_fails_does_not_stop_the_others(
    table: TableBuilder, tmp_path: Path, load: Load, instance: dg.DagsterInstance
) -> None:
    rules = {"checkpoint": {"max_commits": 5}}
    definitions = load(
        tables=[
            {"uri": str(tmp_path / "absent"), "key": "lake/absent", **rules},
            {"uri": str(tmp_path / "lake" / "events"), "key": "lake/events", **rules},
        ]
    )
    result = definitions.resolve_job_def("delta_maintenance").execute_in_process(
        instance=instance, raise_on_error=False
    )
    assert not result.success
    assert len(checkpoints(table)) == 1


def test_commits_of_others_meanwhile_do_no_harm(table: TableBuilder, run: Run) -> None:
    run()
    for number in range(20, 26):
        table.commit([add(f"{number}.parquet")])
    facts = told(run())
    assert facts["version_after"] == 15
    assert len(checkpoints(table)) == 2
