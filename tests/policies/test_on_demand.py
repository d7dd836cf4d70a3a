"""Operations that only run on demand, because no policy has a rule for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.errors import InvalidRequestError, StorageError
from delta_maintenance.operations import add_constraint
from delta_maintenance.operations.add_constraint import AddConstraintOptions, CheckedRows
from delta_maintenance.operations.core import RunContext, operations
from delta_maintenance.policies import OperationOutcome, RunResult
from delta_maintenance.policies.approval import Approvals, ApprovedPlan, asks_for_approval
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.execute import RunEnvironment
from delta_maintenance.policies.on_demand import run_operation, run_plans
from tests.support.tables.actions import add, features, metadata, protocol
from tests.support.tables.droppable_tables import TABLES, Clock, comparable
from tests.support.tables.droppable_tables import built as built_in
from tests.support.tables.policy_tables import asked
from tests.support.tables.table_builder import TableBuilder

A_DAY, A_MINUTE = timedelta(days=1), timedelta(minutes=1)
POSITIVE = {"name": "positive", "expression": "abs(id) > 0"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def built(feature: str, clock: Clock) -> TableBuilder:
    return built_in(TABLES[feature], clock)


def run(
    builder: TableBuilder,
    operation: str,
    options: Mapping[str, Any] | None = None,
    *,
    rules: Mapping[str, Any] | None = None,
    **given: Any,
) -> RunResult:
    policy_table = asked(**(rules or {}))
    environment = RunEnvironment(
        **{name: given.pop(name) for name in ("now", "submit", "progress") if name in given}
    )
    return run_operation(
        builder.open(), policy_table, operation, options=options, environment=environment, **given
    )


def only(result: RunResult) -> OperationOutcome:
    (outcome,) = result.outcomes
    assert RunResult.from_json(result.to_json()) == result
    return outcome


def planned(builder: TableBuilder, operation: str, *args: Any, **given: Any) -> Any:
    """Returns the plan to approve."""
    outcome = only(run(builder, operation, *args, plan_only=True, **given))
    assert outcome.status == "planned" and outcome.result is not None, outcome.reason
    approved = ApprovedPlan.of(outcome)
    return ApprovedPlan.from_json(approved.to_json()), outcome.result


def now_protocol(builder: TableBuilder) -> Any:
    return comparable(builder.open().snapshot().protocol.to_json())


# Dropping a feature


@pytest.mark.parametrize("feature", ["deletionVectors", "domainMetadata", "rowTracking"])
def test_a_feature_is_dropped_after_approval(feature: str, clock: Clock) -> None:
    builder = built(feature, clock)
    given = {"options": {"feature": feature}, "now": clock}
    approved, plan = planned(builder, "drop-feature", **given)
    assert asks_for_approval("drop-feature", plan)
    assert now_protocol(builder) == comparable(TABLES[feature].protocol["protocol"])
    clock.pass_by(timedelta(hours=5))
    builder.commit([add("of_others", stats='{"numRecords":1}')])
    result = run(builder, "drop-feature", **given, approvals=Approvals(plans=(approved,)))
    outcome = only(result)
    assert (result.status, outcome.status, outcome.exit_status) == ("done", "done", 0)
    assert now_protocol(builder) == comparable(TABLES[feature].protected["protocol"])
    assert outcome.commits == len((outcome.result or {})["commits"]) > 0
    assert result.last_runs == (), "it is never due"


def test_a_feature_dropped_by_another_writer_is_done(clock: Clock) -> None:
    builder = built("vacuumProtocolCheck", clock)
    given = {"options": {"feature": "vacuumProtocolCheck"}, "now": clock}
    approved, _ = planned(builder, "drop-feature", **given)
    run(builder, "drop-feature", **given)
    version = builder.open().latest_version()
    result = run(builder, "drop-feature", **given, approvals=Approvals(plans=(approved,)))
    assert only(result).status == "nothing-to-do"
    assert builder.open().latest_version() == version
    _, plan = planned(builder, "drop-feature", **given)
    assert not asks_for_approval("drop-feature", plan)


def test_an_interrupted_drop_is_completed_with_the_same_approval(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = built("deletionVectors", clock)
    given = {"options": {"feature": "deletionVectors"}, "now": clock}
    approved, _ = planned(builder, "drop-feature", **given)

    def down(*_: Any) -> Any:
        raise StorageError("the store is down", remedy="wait")

    with monkeypatch.context() as broken:
        broken.setattr(
            "delta_maintenance.operations.drop_feature.operation._DropFeatureRun._drop", down
        )
        first = run(builder, "drop-feature", **given, approvals=Approvals(plans=(approved,)))
        assert (first.status, first.retryable) == ("failed", True)
    assert (
        run(builder, "drop-feature", **given, approvals=Approvals(plans=(approved,))).status
        == "done"
    )
    assert now_protocol(builder) == comparable(TABLES["deletionVectors"].protected["protocol"])


def test_a_table_with_a_changed_protocol_is_not_touched(clock: Clock) -> None:
    builder = built("deletionVectors", clock)
    given = {"options": {"feature": "deletionVectors"}, "now": clock}
    approved, _ = planned(builder, "drop-feature", **given)
    builder.commit([features("deletionVectors", "vacuumProtocolCheck")])
    version = builder.open().latest_version()
    result = run(builder, "drop-feature", **given, approvals=Approvals(plans=(approved,)))
    assert (result.status, result.exit_status) == ("failed", 3)
    assert "drop-feature would now have another effect than the approved one" in str(result.problem)
    assert builder.open().latest_version() == version


def test_a_feature_that_was_not_approved_is_kept(clock: Clock) -> None:
    builder = TableBuilder()
    builder.commit([features("vacuumProtocolCheck", "typeWidening"), metadata()])
    clock.govern(builder.store)
    given = {"now": clock}
    approved, _ = planned(builder, "drop-feature", {"feature": "typeWidening"}, **given)
    other = {"feature": "vacuumProtocolCheck"}
    result = run(builder, "drop-feature", other, **given, approvals=Approvals(plans=(approved,)))
    assert (result.status, result.exit_status) == ("failed", 3)


def test_truncating_waits_without_a_failure_and_deletes_only_what_was_shown(clock: Clock) -> None:
    builder = built("deletionVectors", clock)
    given = {"options": {"feature": "deletionVectors", "truncate_history": True}, "now": clock}
    approved, plan = planned(builder, "drop-feature", **given)
    assert plan["ends"] == "waiting" and plan["groups"] == []
    assert asks_for_approval("drop-feature", plan)
    waiting = run(builder, "drop-feature", **given, approvals=Approvals(plans=(approved,)))
    outcome = only(waiting)
    assert (waiting.status, waiting.exit_status, waiting.retryable) == ("incomplete", 0, False)
    assert outcome.result is not None and outcome.result["status"] == "waiting"
    assert outcome.result["ready_at"] in str(waiting.problem)
    assert "run again at" in str(waiting.problem)

    cut_off = builder.open().latest_version()
    clock.pass_by(timedelta(hours=1))
    now_ms = round(clock().timestamp() * 1000)
    later = builder.commit([add("later")], version=cut_off + 1, at_ms=now_ms)
    clock.govern(builder.store)
    assert run(builder, "checkpoint", {"kind": "classic"}, now=clock).status == "done"
    clock.pass_by(A_DAY - timedelta(hours=1) + A_MINUTE)
    approved, plan = planned(builder, "drop-feature", **given)
    assert (plan["ends"], plan["oldest_version"]) == ("dropped", cut_off)
    assert sum(group["count"] for group in plan["groups"]) > 0
    # The later version expires too, but the loss of earlier ones was not approved.
    clock.pass_by(timedelta(hours=2))
    _, by_then = planned(builder, "drop-feature", **given)
    assert by_then["oldest_version"] == later
    done = run(builder, "drop-feature", **given, approvals=Approvals(plans=(approved,)))
    assert done.status == "done", done.problem
    assert (only(done).result or {})["cleaned"]["oldest_version"] == cut_off
    assert builder.open().snapshot(version=cut_off).version == cut_off


@pytest.mark.parametrize("kept", [True, False])
def test_truncating_waits_for_the_versions_that_the_policy_holds(kept: bool, clock: Clock) -> None:
    builder = built("deletionVectors", clock)
    options = {"feature": "deletionVectors", "truncate_history": True, "holders": {}}
    rules = {"keep": [{"name": "audit", "version": 0}]} if kept else {}
    for _ in range(2):
        result = run(builder, "drop-feature", options, rules=rules, now=clock)
        clock.pass_by(A_DAY + A_MINUTE)
    assert result.status == ("incomplete" if kept else "done"), result.problem
    assert (f"{0:020}.json" in builder.names()) is kept


def test_approval_to_disable_is_not_approval_to_truncate(clock: Clock) -> None:
    builder = built("deletionVectors", clock)
    options = {"feature": "deletionVectors", "truncate_history": True}
    given = {"options": options, "now": clock}
    approved, _ = planned(builder, "drop-feature", **given)
    run(builder, "drop-feature", **given, approvals=Approvals(plans=(approved,)))
    clock.pass_by(A_DAY + A_MINUTE)
    names = builder.names()
    # A plan of a day ago is applied as of its time: no part of the log is deleted.
    assert (
        run(builder, "drop-feature", **given, approvals=Approvals(plans=(approved,))).status
        == "incomplete"
    )
    assert builder.names() == names
    protects = {"options": {"feature": "deletionVectors"}, "now": clock}
    other, _ = planned(builder, "drop-feature", **protects)
    assert (
        run(builder, "drop-feature", **given, approvals=Approvals(plans=(other,))).exit_status == 3
    )
    assert builder.names() == names


def test_history_that_was_not_shown_is_kept(clock: Clock) -> None:
    builder = built("deletionVectors", clock)
    given = {"options": {"feature": "deletionVectors", "truncate_history": True}, "now": clock}
    run(builder, "drop-feature", **given)
    cut_off = builder.open().latest_version()
    now_ms = round(clock().timestamp() * 1000)
    builder.commit([add("later")], version=cut_off + 1, at_ms=now_ms)
    clock.pass_by(A_DAY + A_MINUTE)
    clock.govern(builder.store)
    approved, plan = planned(builder, "drop-feature", **given)
    assert plan["oldest_version"] == cut_off
    # From here on more could go.
    assert run(builder, "checkpoint", {"kind": "classic"}, now=clock).status == "done"
    names = builder.names()
    result = run(builder, "drop-feature", **given, approvals=Approvals(plans=(approved,)))
    assert (result.status, result.exit_status) == ("failed", 3)
    assert builder.names() == names


def test_the_drop_after_waiting_needs_a_new_approval(clock: Clock) -> None:
    builder = built("deletionVectors", clock)
    given = {"options": {"feature": "deletionVectors", "truncate_history": True}, "now": clock}
    run(builder, "drop-feature", **given)
    approved, plan = planned(builder, "drop-feature", **given)
    assert plan["ends"] == "waiting"
    clock.pass_by(A_DAY + A_MINUTE)
    cleaning = {"log_retention": "P1D", "to_the_minute": True}
    both_flags = {"allow_short_retention": True, "no_other_writers": True}
    by_others = run(builder, "clean-log", {**cleaning, **both_flags}, now=clock)
    assert by_others.status == "done", by_others.problem
    assert planned(builder, "drop-feature", **given)[1]["ends"] == "dropped"
    result = run(builder, "drop-feature", **given, approvals=Approvals(plans=(approved,)))
    assert (result.status, result.exit_status) == ("failed", 3)


@pytest.mark.parametrize(
    ("limits", "beyond"), [({"max_commits": 3}, "would make 4 commits"), ({"max_commits": 4}, None)]
)
def test_the_limits_of_the_policy_hold_for_commits(
    limits: dict[str, int], beyond: str | None, clock: Clock
) -> None:
    builder = built("vacuumProtocolCheck", clock)
    result = run(
        builder,
        "drop-feature",
        {"feature": "vacuumProtocolCheck"},
        rules={"limits": limits},
        now=clock,
    )
    if beyond is None:
        assert result.status == "done" and only(result).commits == 4
    else:
        assert (result.status, result.exit_status) == ("stopped", 3)
        assert beyond in str(result.problem)


def test_the_limits_of_the_policy_hold_for_history(clock: Clock) -> None:
    builder = built("deletionVectors", clock)
    given = {"options": {"feature": "deletionVectors", "truncate_history": True}, "now": clock}
    run(builder, "drop-feature", **given)
    clock.pass_by(A_DAY + A_MINUTE)
    names = builder.names()
    few = {"limits": {"max_deleted_files": 1}}
    result = run(builder, "drop-feature", **given, rules=few)
    assert result.status == "stopped" and "files would be deleted" in str(result.problem)
    assert builder.names() == names


# Adding a constraint


class Spark:
    """Submits to an engine that finds this number of violating rows."""

    def __init__(self, builder: TableBuilder, *, violations: int = 0) -> None:
        self.builder = builder
        self.violations = violations
        self.submitted: list[dict[str, Any]] = []

    def __call__(
        self, table: PolicyTable, due: Any, *, plan_only: bool = False, approved: Any = None
    ) -> Mapping[str, Any]:
        assert due.operation == "add-constraint" and due.engine == "spark" and not plan_only
        self.submitted.append(due.options.to_json())
        table_now = self.builder.open()
        found = CheckedRows(files=1, rows=9, violations=self.violations, violating_files=1)
        plan = add_constraint.plan(
            table_now.snapshot(), due.options, context=RunContext.at(Clock()())
        )
        return add_constraint.apply(
            table_now, plan, context=RunContext(engine=lambda *_, **__: found)
        ).to_json()


@pytest.fixture
def plain() -> TableBuilder:
    builder = TableBuilder()
    builder.commit([protocol(), metadata()])
    builder.commit([add("a", stats='{"numRecords":9}')])
    return builder


def test_a_constraint_is_planned_here_and_added_by_a_job(plain: TableBuilder) -> None:
    spark = Spark(plain)
    given = {"options": POSITIVE, "submit": spark, "rules": {"other_writers": "spark"}}
    approved, plan = planned(plain, "add-constraint", **given)
    assert asks_for_approval("add-constraint", plan), "the protocol is raised"
    assert (plan["num_files"], spark.submitted) == (1, [])
    plain.commit([add("b")])
    result = run(plain, "add-constraint", **given, approvals=Approvals(plans=(approved,)))
    outcome = only(result)
    assert (result.status, outcome.status, outcome.engine) == ("done", "done", "spark")
    asked = AddConstraintOptions(**POSITIVE, other_writers="spark", engine="spark")
    assert spark.submitted == [asked.to_json()]
    found = plain.open().snapshot()
    assert found.metadata.configuration["delta.constraints.positive"] == "abs(id) > 0"
    assert outcome.commits == 1 and result.last_runs == ()

    again = run(plain, "add-constraint", **given, approvals=Approvals(plans=(approved,)))
    assert only(again).status == "nothing-to-do" and len(spark.submitted) == 1


def test_a_constraint_without_a_protocol_change_needs_no_approval(plain: TableBuilder) -> None:
    plain.commit([protocol(1, 3)])
    _, plan = planned(plain, "add-constraint", POSITIVE)
    assert not asks_for_approval("add-constraint", plan)


@pytest.mark.parametrize("other", [{"expression": "id > 1"}, {"name": "other"}])
def test_another_constraint_than_the_approved_one_is_not_added(
    plain: TableBuilder, other: dict[str, str]
) -> None:
    approved, _ = planned(plain, "add-constraint", POSITIVE)
    spark = Spark(plain)
    options = {**POSITIVE, **other}
    result = run(
        plain, "add-constraint", options, submit=spark, approvals=Approvals(plans=(approved,))
    )
    assert (result.status, result.exit_status, spark.submitted) == ("failed", 3, [])


def test_violating_rows_fail_a_constraint_permanently(plain: TableBuilder) -> None:
    result = run(plain, "add-constraint", POSITIVE, submit=Spark(plain, violations=2))
    assert (result.status, result.exit_status, result.retryable) == ("failed", 3, False)
    assert "2 of 9 rows, in 1 of 1 file, do not satisfy abs(id) > 0" in str(result.problem)
    assert plain.open().latest_version() == 1


def test_the_limits_of_the_policy_hold_before_a_job_is_submitted(plain: TableBuilder) -> None:
    spark = Spark(plain)
    none = {"limits": {"max_commits": 0}}
    result = run(plain, "add-constraint", POSITIVE, submit=spark, rules=none)
    assert (result.status, result.exit_status, spark.submitted) == ("stopped", 3, [])


def test_without_spark_a_constraint_names_the_alternatives(plain: TableBuilder) -> None:
    result = run(plain, "add-constraint", POSITIVE)
    assert (result.status, result.exit_status) == ("failed", 2)
    assert "cannot submit Spark jobs; run it from an orchestrator, or with its command" in str(
        result.problem
    )


# Both


@pytest.mark.parametrize(
    ("operation", "options", "said"),
    [
        ("drop-feature", {}, 'the option feature; give options such as {"feature": "'),
        ("drop-feature", {"truncate_history": True}, "lacks the option feature;"),
        ("add-constraint", None, "the option name and the option expression; give options such as"),
        ("add-constraint", {"name": "positive"}, "lacks the option expression;"),
        ("drop-feature", {"feature": "rowTracking", "engine": "local"}, "no option 'engine'"),
        ("add-constraint", {**POSITIVE, "expresion": "x"}, "give 'expression', if that was meant"),
    ],
)
def test_missing_options_are_named_in_one_line(
    plain: TableBuilder, operation: str, options: Any, said: str
) -> None:
    spark = Spark(plain)
    for plan_only in (True, False):
        result = run(plain, operation, options, plan_only=plan_only, submit=spark)
        assert (result.status, result.exit_status, result.retryable) == ("failed", 2, False)
        assert said in str(result.problem) and "\n" not in str(result.problem)
    assert plain.open().latest_version() == 1 and spark.submitted == []


@pytest.mark.parametrize(
    "operation", [record.name for record in operations() if record.policy is None]
)
def test_policies_cannot_request_them(operation: str) -> None:
    key = operation.replace("-", "_")
    for rules in ({key: True}, {"approval": [operation]}):
        with pytest.raises(InvalidRequestError):
            Policy.from_json({"version": 1, "defaults": rules})


# Examining a table that cannot be read


@pytest.fixture
def damaged(plain: TableBuilder) -> TableBuilder:
    """A table without its first commit."""
    plain.commit([add("b.parquet")])
    plain.store.delete(f"_delta_log/{0:020}.json")
    return plain


def test_fsck_examines_a_table_that_cannot_be_read(damaged: TableBuilder) -> None:
    outcome = only(run(damaged, "fsck", plan_only=True))
    assert outcome.status == "planned" and outcome.result is not None
    assert "log-gap" in {each["kind"] for each in outcome.result["findings"]}
    result = run(damaged, "fsck")
    assert (result.status, result.exit_status) == ("failed", 5)
    assert "of corruption" in str(result.problem) and only(result).result is not None


def test_other_operations_say_why_a_table_cannot_be_read(damaged: TableBuilder) -> None:
    result = run(damaged, "checkpoint", plan_only=True)
    assert (result.status, result.exit_status, result.outcomes) == ("failed", 5, ())


def test_an_approval_to_repair_holds_for_a_table_that_cannot_be_read(damaged: TableBuilder) -> None:
    approved, _ = planned(damaged, "fsck", {"repair": True})
    result = run(damaged, "fsck", {"repair": True}, approvals=Approvals(plans=(approved,)))
    assert "of corruption" in str(result.problem), "it ran, and was not refused for its plan"
    assert only(result).result is not None


def test_rows_expire_on_a_table_whose_policy_says_nothing_of_it(tmp_path: Path) -> None:
    column = {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}}
    schema = {"type": "struct", "fields": [column]}
    builder = TableBuilder(tmp_path / "t")
    builder.commit([protocol(), metadata(schemaString=json.dumps(schema))])
    stats = {"numRecords": 1, "nullCount": {"at": 0}}
    stats |= dict.fromkeys(("minValues", "maxValues"), {"at": "2020-01-01T00:00:00.000Z"})
    builder.commit([add("old.parquet", stats=json.dumps(stats))])
    options = {"column": "at", "older_than": "30 days"}
    assert "1 file of the table would be removed" in only(run(builder, "expire", options)).reason
    ended = only(run(builder, "expire", {**options, "allow_large_delete": True}))
    assert ended.status == "done", ended.reason
    assert not builder.open().snapshot().live_files().num_rows
    # Its rule has no defaults: what the request lacks is missing.
    assert "lacks the option column" in only(run(builder, "expire")).reason


def test_an_approved_plan_names_who_approved_it(tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t")
    builder.commit([protocol(), metadata(), add("a")])
    shown = only(run(builder, "checkpoint", plan_only=True))
    plans = [ApprovedPlan.of(shown)]
    done = only(run_plans(builder.open(), asked(), plans, approved_by="ann"))
    assert (shown.reason, shown.approved_by) == ("requested manually", None)
    assert (done.status, done.approved_by) == ("done", "ann")
    again = only(run(builder, "checkpoint", plan_only=True, approvals=Approvals(by="bob")))
    assert again.reason == "approved by bob"
