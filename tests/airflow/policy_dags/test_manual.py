"""The Dag for single operations that a user starts with its form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.operations import add_constraint
from delta_maintenance.operations.core import RunContext, registry
from delta_maintenance.policies import AssessmentEntry, PendingPlan, RunEnvironment
from delta_maintenance_airflow import operators
from delta_maintenance_airflow.compat import AirflowFailException
from delta_maintenance_airflow.health_page.option_fields import read_answer
from delta_maintenance_airflow.operators.manual import DeltaManualOperator
from delta_maintenance_airflow.settings import assessment_store
from delta_maintenance_airflow.spark.submission import SparkSubmission
from tests.support.operations.held_tables import (
    DELETING,
    ODD,
    HeldTable,
    flag_names,
    option_cases,
    some_cases,
)
from tests.support.operations.vacuum_cases import removed
from tests.support.orchestrators.airflow_versions import DagBag
from tests.support.orchestrators.policy_dags import DAGS, Somebody, fresh_table
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.overdue_tables import FEATURE, fingerprint, overdue_table
from tests.support.tables.table_builder import TableBuilder
from tests.support.tables.vacuum_tables import Folder

pytestmark = [
    pytest.mark.airflow,
    # Caused by the libraries of Airflow.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]


def run_manually(run: Callable[..., Any], **params: Any) -> dict[str, Any]:
    return run("delta_manual", run_conf=params)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of submitted jobs; the engine finds one violating row of nine."""
    submitted: list[dict[str, Any]] = []

    def run(
        self: SparkSubmission, verb: str, table_uri: str, given: dict[str, Any], **_: Any
    ) -> dict[str, Any]:
        assert verb == "add-constraint"
        submitted.append(given)
        table = open_table(table_uri)
        options = add_constraint.AddConstraintOptions.from_json(given)
        plan = add_constraint.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
        violations = int("> 0" in options.expression)
        found = add_constraint.CheckedRows(
            files=1, rows=9, violations=violations, violating_files=violations
        )
        return add_constraint.apply(
            table, plan, context=RunContext(engine=lambda *_, **__: found)
        ).to_json()

    monkeypatch.setattr(SparkSubmission, "run", run)
    return submitted


def test_manual_run_a_plan_without_deletions_needs_no_approval(
    policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    table = overdue_table(tmp_path / "t")
    policy({"name": "mine", "uri": str(tmp_path / "t")})
    found = run_manually(run, operation="checkpoint", tables=["mine"], options={"kind": "classic"})
    assert found["state"] == "success"
    assert found["one_table.plan[0]"].told["needs_approval"] is False
    assert found["one_table.run[0]"].told["operations"] == ["checkpoint: done"]
    assert table.open().snapshot().log.checkpoint is not None


def test_manual_run_a_run_may_only_plan(
    policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    overdue_table(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")})
    before = fingerprint(tmp_path / "t")
    found = run_manually(run, operation="vacuum", table_uri=str(tmp_path / "t"), plan_only=True)
    assert found["state"] == "success"
    plan = found["one_table.plan[0]"].told
    assert (plan["is_idle"], plan["needs_approval"]) == (False, True)
    assert "| `expired-tombstone` | `1 file (486 B)` |" in plan["plan_text"]
    assert found["one_table.run[0]"].state == "skipped"
    assert fingerprint(tmp_path / "t") == before
    longer = {"retention": "5000 days"}
    found = run_manually(
        run, operation="vacuum", table_uri=str(tmp_path / "t"), options=longer, plan_only=True
    )
    assert found["one_table.plan[0]"].told["is_idle"] is True


def test_manual_run_a_feature_is_dropped_after_approval(
    policy: Callable[..., Path], run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    table = overdue_table(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")})
    given = {"operation": "drop-feature", "table_uri": str(tmp_path / "t")}
    found = run_manually(run, **given, options={"feature": FEATURE})
    assert found["state"] == "success"
    assert found["one_table.plan[0]"].told["needs_approval"] is True
    (shown,) = somebody.shown
    assert shown.startswith(f"drop-feature of {tmp_path}/t\ndrop-feature: `requested manually`\n")
    assert "the protocol becomes" in shown
    assert found["one_table.run[0]"].told["operations"] == ["drop-feature: done"]
    assert FEATURE not in (table.open().snapshot().protocol.reader_features or ())


def test_manual_run_a_rejected_drop_changes_nothing(
    policy: Callable[..., Path], run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    overdue_table(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")})
    somebody.answer = "Reject"
    before = fingerprint(tmp_path / "t")
    given = {"operation": "drop-feature", "table_uri": str(tmp_path / "t")}
    found = run_manually(run, **given, options={"feature": FEATURE})
    assert len(somebody.shown) == 1 and found["one_table.run[0]"].state == "skipped"
    assert fingerprint(tmp_path / "t") == before


def test_manual_run_a_drop_that_has_to_wait_succeeds(
    policy: Callable[..., Path], run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path / "t")
    table.commit([features("v2Checkpoint"), metadata()])
    table.commit([add("a.parquet")])
    table.v2_checkpoint(sidecars=1)
    policy({"name": "t", "uri": str(tmp_path / "t")})
    options = {"feature": "v2Checkpoint", "truncate_history": True}
    found = run_manually(
        run, operation="drop-feature", table_uri=str(tmp_path / "t"), options=options
    )
    assert found["state"] == "success" and len(somebody.shown) == 1
    told = found["one_table.run[0]"].told
    assert told["status"] == "incomplete"
    assert "v2Checkpoint is switched off, but not dropped yet; run again at" in told["problem"]


def test_manual_run_a_constraint_is_checked_by_spark_and_approved(
    policy: Callable[..., Path],
    run: Callable[..., Any],
    somebody: Somebody,
    jobs: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    table = fresh_table(tmp_path / "t")
    policy({"uri": str(tmp_path / "t"), "other_writers": "spark"})
    given = {"operation": "add-constraint", "table_uri": str(tmp_path / "t")}
    violated = run_manually(run, **given, options={"name": "positive", "expression": "abs(id) > 0"})
    assert violated["state"] == "failed" and len(somebody.shown) == 1
    told = violated["one_table.run[0]"].told
    assert told["status"] == "failed" and "1 of 9 rows" in told["problem"]
    assert table.open().latest_version() == 1

    options = {"name": "not_negative", "expression": "abs(id) >= 0"}
    found = run_manually(run, **given, options=options)
    assert found["state"] == "success" and len(somebody.shown) == 2
    assert ": (not set) → abs(id) >= 0" in somebody.shown[1]
    assert found["one_table.run[0]"].told["operations"] == ["add-constraint: done"]
    asked = add_constraint.AddConstraintOptions(**options, engine="spark", other_writers="spark")
    assert jobs[-1] == asked.to_json()
    # The protocol already supports constraints now.
    more = run_manually(run, **given, options={"name": "more", "expression": "abs(id) >= -1"})
    assert more["one_table.plan[0]"].told["needs_approval"] is False and len(somebody.shown) == 2
    configuration = table.open().snapshot().metadata.configuration
    assert {name for name in configuration if name.startswith("delta.constraints.")} == {
        "delta.constraints.not_negative",
        "delta.constraints.more",
    }


@pytest.mark.parametrize("operation", ["drop-feature", "add-constraint"])
def test_manual_run_a_missing_option_is_named_at_once(
    operation: str, policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    fresh_table(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")})
    found = run_manually(run, operation=operation, table_uri=str(tmp_path / "t"))
    assert found["state"] == "failed"
    plan = found["one_table.plan[0]"]
    assert (plan.state, found["one_table.run[0]"].state) == ("failed", "upstream_failed")
    assert f"{operation} lacks the option" in plan.told["problem"]
    assert "give options such as" in plan.told["problem"]


@pytest.mark.parametrize("spelling", ["file://{}/", "{}", "lake/t"])
def test_a_manual_run_of_a_table_that_a_pattern_finds_is_about_that_table(
    spelling: str,
    policy: Callable[..., Path],
    run: Callable[..., Any],
    somebody: Somebody,
    tmp_path: Path,
) -> None:
    table = tmp_path / "lake" / "t"
    overdue_table(table)
    policy({"name": "lake", "pattern": f"{tmp_path}/lake/**"}, checkpoint={"max_commits": 5})
    assert run("delta_maintenance")["state"] == "success"
    store = assessment_store()
    found = run_manually(run, operation="vacuum", tables=[spelling.format(table)])
    assert found["one_table.run[0]"].told["operations"] == ["vacuum: done"]
    assert found["one_table.run[0]"].told["name"] == "lake/t"
    (entry,) = store.load_all()
    assert isinstance(entry, AssessmentEntry) and entry.name == "lake/t"
    assert {each.operation for each in entry.last_runs} == {"checkpoint", "vacuum"}


@pytest.mark.parametrize("answer", ["Approve", "Reject"])
def test_the_plan_of_a_manual_run_waits_while_its_question_is_open(
    answer: str,
    policy: Callable[..., Path],
    run: Callable[..., Any],
    somebody: Somebody,
    tmp_path: Path,
) -> None:
    overdue_table(tmp_path / "t")
    policy(
        {"name": "t", "uri": str(tmp_path / "t")}, vacuum={"every": "1 day"}, approval=["vacuum"]
    )
    somebody.answer = "Ask again later"
    assert run("delta_maintenance")["state"] == "success"
    seen: list[PendingPlan] = []
    somebody.answer, somebody.meanwhile = answer, lambda: seen.extend(pending())

    def pending() -> tuple[PendingPlan, ...]:
        entry = assessment_store().load(str(tmp_path / "t"))
        assert isinstance(entry, AssessmentEntry)
        return entry.pending

    (of_policy,) = pending()
    run_manually(run, operation="vacuum", table_uri=str(tmp_path / "t"))
    of_person = next(plan for plan in seen if plan.requested)
    assert of_policy in seen and len(seen) == 2, "the plan of the policy keeps waiting"
    assert (of_person.name, of_person.files, of_person.bytes) == ("t", 1, 486)
    assert of_person.link is not None and of_person.link.endswith("one_table.approve/mapped/0")
    assert of_person.expires_at is not None and of_person.is_open(clock.now())
    # Nothing is left to delete after the approval.
    assert pending() == (() if answer == "Approve" else (of_policy,))


@pytest.mark.parametrize(
    "options", [{"retentoin": "30 days"}, {"retention": "long"}, {"mode": "light"}]
)
def test_manual_run_impossible_options_are_refused_by_the_first_task(
    options: dict[str, Any], policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    fresh_table(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")})
    found = run_manually(run, operation="vacuum", tables=["t"], options=options)
    assert found["state"] == "failed" and found["tables"].state == "failed"
    assert not any(name.startswith("one_table.plan[") for name in found)


def test_manual_run_durations_are_those_of_the_command_line(
    policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    overdue_table(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")})
    options = {"retention": "10 days 12 hours", "mode": ""}
    found = run_manually(run, operation="vacuum", tables=["t"], options=options, plan_only=True)
    assert "`10 days 12 hours`" in found["one_table.plan[0]"].told["plan_text"]


def test_dags_for_manual_runs_are_found_by_their_tags(airflow_db: None) -> None:
    from delta_maintenance_airflow.dags import DagIds, delta_maintenance_dags

    dags = delta_maintenance_dags(ids=DagIds(manual="by_hand", short_retention="short"))
    tags = {name: set(dag.tags) & {"delta-manual", "short-retention"} for name, dag in dags.items()}
    assert tags["by_hand"] == {"delta-manual"}
    assert tags["short"] == {"delta-manual", "short-retention"}
    assert tags["delta_maintenance"] == set()


def test_the_form_has_every_operation(airflow_db: None) -> None:
    bag = DagBag(dag_folder=str(DAGS / "delta_maintenance_dags.py"))
    schema = bag.dags["delta_manual"].params.get_param("operation").schema
    assert set(schema["enum"]) == set(registry.names()) == set(schema["values_display"])


def test_without_a_table_the_form_is_refused(
    policy: Callable[..., Path], run: Callable[..., Any]
) -> None:
    policy()
    assert run_manually(run, operation="vacuum")["state"] == "failed"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table_uri": "/etc"}, "/etc is not a table of the policy"),
        ({"table_uri": "{lake}/../other"}, "is not a table of the policy"),
        ({"options": {"allow_short_retention": True, "retention": "PT1H"}}, "shorten a retention"),
        ({"options": {"no_other_writers": True}}, "may not shorten a retention"),
        ({"options": {"inventory": "/etc/passwd"}}, "an inventory is outside"),
    ],
)
def test_manual_run_addresses_and_short_retentions_need_permission(
    given: dict[str, Any],
    said: str,
    policy: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy({"pattern": f"{tmp_path}/lake/**"})

    def asked(**arguments: Any) -> DeltaManualOperator:
        uri = given.get("table_uri", "{lake}/t").format(lake=tmp_path / "lake")
        options, operation = given.get("options"), "vacuum"
        return DeltaManualOperator(
            task_id="plan", operation=operation, table={"uri": uri}, options=options, **arguments
        )

    with pytest.raises(AirflowFailException, match=said):
        asked().policy_work()
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ANY_ADDRESS", "True")
    assert asked(short_retention=True).policy_work().policy.patterns


@pytest.mark.parametrize("operation", ["vacuum", "clean-log"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        None,
        "",
        *({"holders": value} for value in ({}, [], "", None, 0, False, "0", {"keep": []})),
    ],
    ids=str,
)
def test_no_option_of_a_manual_run_takes_what_the_policy_keeps(
    options: Any, operation: str, policy: Callable[..., Path], tmp_path: Path
) -> None:
    table = Folder(tmp_path / "orders", now=clock.now())
    table.log(add("1.parquet"), days=50)
    table.log(removed("1.parquet", 40), add("2.parquet"))
    table.checkpoint(2)
    table.file("1.parquet", "2.parquet", "orphan.parquet", days=50)
    policy({"uri": f"{tmp_path}/orders", "keep": [{"name": "audit", "version": 1}]}, vacuum=True)
    given = {"task_id": "run", "operation": operation, "table": {"uri": f"{tmp_path}/orders"}}
    operator = DeltaManualOperator(**given, options=options)
    try:
        work = operator.policy_work()
        found = work.table(None, f"{tmp_path}/orders")
        done = operator.work(found, RunEnvironment(clones=work.clones), None).status
    except AirflowFailException:
        done = "failed"
    allowed = (options or {}).get("holders", "") in ("", None, {})
    assert (done == "done") is allowed
    assert table.files() == {"1.parquet", "2.parquet"} | (
        set() if allowed and operation == "vacuum" else {"orphan.parquet"}
    )
    assert f"{1:020}.json" in table.names()


@pytest.fixture
def held(policy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeldTable:
    """A table of the policy whose files have holders, where every option is allowed."""

    def refuse_job(*_: Any, **__: Any) -> None:
        raise AirflowFailException("no job")

    monkeypatch.setattr(SparkSubmission, "run", refuse_job)
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ANY_ADDRESS", "True")
    held = HeldTable(tmp_path, now=clock.now(), in_log=True)
    policy(held.entry)
    return held


def plan_and_run(
    held: HeldTable, context: dict[str, Any], operation: str, options: Any
) -> dict[str, Any]:
    """Plays the tasks of the Dag that may shorten a retention, with an approval."""
    given: dict[str, Any] = {
        "operation": operation,
        "table": {"uri": held.uri},
        "options": options,
        "short_retention": True,
    }
    planned = DeltaManualOperator(task_id="plan", plan_only=True, **given).execute(context)
    approval = {"chosen_options": ["Approve"]}
    return DeltaManualOperator(task_id="run", plan=planned, approval=approval, **given).execute(
        context
    )


def test_no_conf_of_a_manual_run_weakens_what_the_policy_holds(
    held: HeldTable, task_context: dict[str, Any]
) -> None:
    cases = [*some_cases(option_cases(), 30), *((verb, e) for verb in DELETING for e in ODD)]
    for operation, options in cases:
        held.play(
            (operation, options), partial(plan_and_run, held, task_context, operation, options)
        )


def test_no_answer_in_a_form_weakens_what_the_policy_holds(
    held: HeldTable, task_context: dict[str, Any]
) -> None:
    for operation, fields in some_cases(option_cases(flag_names), 30):
        answer = read_answer(registry.find(operation), fields, short_retention=True)
        if not answer.problems:
            held.play(
                (operation, fields),
                partial(plan_and_run, held, task_context, operation, answer.options),
            )


def test_no_option_of_an_operator_weakens_what_its_other_options_and_the_log_hold(
    held: HeldTable, task_context: dict[str, Any]
) -> None:
    for operation, options in some_cases(option_cases(), 30):
        name = f"Delta{''.join(map(str.title, operation.split('-')))}Operator"
        given = {**options, **held.holders_of(operation)}

        def execute(name: str = name, given: dict[str, Any] = given) -> Any:
            operator = getattr(operators, name)(task_id="t", table_uri=held.uri, options=given)
            return operator.execute(task_context)

        held.play((operation, options), execute)
