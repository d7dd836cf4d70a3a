"""Arguments, documentation and outlets of every operator, and work in Spark jobs."""

from __future__ import annotations

import importlib
import inspect
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from airflow.sdk import Asset

from delta_maintenance import Table, clock
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext, find
from delta_maintenance_airflow import operators
from delta_maintenance_airflow.spark.submission import SparkSubmission
from tests.support.orchestrators.airflow_versions import AirflowFailException, DagSerialization
from tests.support.orchestrators.operator_cases import BY_VERB, CASES, Case
from tests.support.orchestrators.operator_runs import dag_of, each, task
from tests.support.tables.actions import add
from tests.support.tables.overdue_tables import fingerprint, overdue_table

pytestmark = pytest.mark.usefixtures("spark_job")


@pytest.mark.parametrize(
    ("verb", "told", "error", "retried"),
    [
        (
            "clean-log",
            {"status": "partly", "failed": 2, "failures": ["a: no", "b: no"]},
            "2 files could not be deleted, first a: no",
            True,
        ),
        (
            "vacuum",
            {"status": "partly", "deleted": 3, "failed": 1, "failures": ["a: no"]},
            "1 file could not be deleted, first a: no",
            True,
        ),
        ("vacuum", {"status": "partly", "stopped": "denied"}, "deleted, then: denied", True),
        (
            "vacuum",
            {"status": "partly", "lost": ["a.parquet"]},
            "file a.parquet: 1 file referenced again",
            False,
        ),
        (
            "compact-log",
            {
                "status": "failed",
                "windows": [
                    {"first_version": 1, "last_version": 9, "status": s, "reason": "odd"}
                    for s in ("written", "differs")
                ],
            },
            "1 window could not be compacted, the first from version 1 to 9: odd",
            False,
        ),
        (
            "add-constraint",
            {"status": "violated", "problem": "2 of 9 rows do not satisfy id > 0"},
            "2 of 9 rows",
            False,
        ),
        ("add-constraint", {"status": "conflict", "problem": "changed"}, "changed", True),
        ("upgrade-protocol", {"status": "conflict", "problem": "changed"}, "changed", True),
        ("set-properties", {"status": "conflict", "problem": "changed"}, "changed", True),
        (
            "backfill-row-ids",
            {"status": "incomplete", "num_commits": 2, "problem": "lost"},
            "2 commits were made, then: lost",
            True,
        ),
    ],
)
def test_a_partly_completed_task_fails_and_reports_its_progress(
    verb: str,
    told: dict[str, Any],
    error: str,
    retried: bool,
    tmp_path: Path,
    task_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = BY_VERB[verb]
    overdue_table(tmp_path)
    result = find(verb).result.from_json({"table": "/t", "version": 9, **told})
    code = importlib.import_module(find(verb).code)
    monkeypatch.setattr(code, "apply", lambda *_, **__: result)
    asset = Asset(name="events", uri="s3://lake/events")
    arguments = {**case.arguments, "table_uri": str(tmp_path), "outlets": [asset]}
    with pytest.raises(Exception, match=error) as caught:
        task(case, **arguments).execute(task_context)
    assert isinstance(caught.value, AirflowFailException) is not retried
    pushed = task_context["ti"].xcom_push.call_args.kwargs
    assert (pushed["key"], pushed["value"]["status"]) == ("return_value", told["status"])
    assert not task_context["outlet_events"]


def test_an_outlet_gets_the_version_of_the_commits_of_a_vacuum(
    tmp_path: Path, task_context: dict[str, Any]
) -> None:
    overdue_table(tmp_path)
    asset = Asset(name="events", uri="s3://lake/events")
    task(BY_VERB["vacuum"], table_uri=str(tmp_path), outlets=[asset]).execute(task_context)
    extra = {"delta_version": 17, "operation": "vacuum", "status": "vacuumed"}
    assert task_context["outlet_events"][asset].extra == extra


def test_a_policy_of_the_table_is_a_warning_in_the_log_or_kept(
    tmp_path: Path,
    task_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    overdue_table(tmp_path / "t")
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        f"version: 1\ntables:\n- uri: {tmp_path}/t\n  readers: [{{share: bi, max_lag: 90 days}}]\n"
    )
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__POLICY", str(policy))

    def plan(**arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        vacuum = task(BY_VERB["vacuum"], table_uri=f"{tmp_path}/t", plan_only=True, **arguments)
        planned: dict[str, Any] = vacuum.execute(task_context)
        return planned

    assert plan()["files"] > 0
    (warning,) = policies_in(capsys.readouterr().out)
    assert f"{policy} names this table and keeps versions or files of it (share bi)" in warning
    assert f"give the option policy {policy}" in warning
    assert plan(policy=str(policy))["files"] == 0
    assert not policies_in(capsys.readouterr().out)
    with pytest.raises(
        AirflowFailException, match="checkpoint deletes nothing that a policy keeps"
    ):
        checkpoint = task(BY_VERB["checkpoint"], table_uri=f"{tmp_path}/t", policy=str(policy))
        checkpoint.execute(task_context)


def policies_in(log: str) -> list[str]:
    return [line for line in log.splitlines() if "the policy" in line]


def test_one_flag_alone_shortens_no_retention(tmp_path: Path, task_context: dict[str, Any]) -> None:
    overdue_table(tmp_path)
    before = fingerprint(tmp_path)
    for verb, name in (("vacuum", "retention"), ("clean-log", "log_retention")):
        for flag in ("allow_short_retention", "no_other_writers"):
            options = {name: timedelta(hours=1), flag: "True"}
            both = "the options allow_short_retention, no_other_writers"
            with pytest.raises(AirflowFailException, match=both):
                task(BY_VERB[verb], table_uri=str(tmp_path), options=options).execute(task_context)
    assert fingerprint(tmp_path) == before


def arguments(case: Case) -> set[str]:
    """The fields of the Options that are arguments of the operator."""
    return set(find(case.verb).options.__dataclass_fields__) & set(case.operator.template_fields)


def test_options_with_an_argument_of_their_own_are_rejected() -> None:
    for case in CASES:
        for name in arguments(case):
            with pytest.raises(ValueError, match=f"the argument `{name}`"):
                task(case, options={name: "x"})


@each
def test_every_argument_is_templated_named_and_documented(case: Case) -> None:
    made = task(case)
    own = [
        name
        for base in type(made).__mro__
        if base.__module__.startswith("delta_maintenance_airflow")
        for name, parameter in inspect.signature(base.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    docs = "".join(inspect.getdoc(base) or "" for base in type(made).__mro__)
    assert sorted(made.template_fields) == sorted({*own})
    for name in own:
        assert hasattr(made, name) and f":param {name}:" in docs
    assert set(find(case.verb).subjects) <= set(made.template_fields)


@each
def test_every_option_is_documented(case: Case) -> None:
    module = importlib.import_module(f"delta_maintenance.operations.{case.module}")
    kind = getattr(module, f"{case.verb.title().replace('-', '')}Options")
    docs = inspect.getdoc(case.operator) or ""
    for name in set(kind.__dataclass_fields__) - {*arguments(case), "engine"}:
        assert f"`{name}`" in docs, name


def test_they_survive_serialisation() -> None:
    options = {"retention": timedelta(days=30), "keep_versions": (3,)}
    dag = dag_of(
        Path("/t"),
        *(lambda c=c: task(c) for c in CASES),
        lambda: task(BY_VERB["vacuum"], name="more", options=options),
    )
    serialized = DagSerialization.serialize_dag(dag)
    json.dumps(serialized)
    again = DagSerialization.deserialize_dag(serialized)
    for made in dag.tasks:
        assert again.get_task(made.task_id).template_fields == list(made.template_fields)


def test_all_of_them_are_exported() -> None:
    exported = {name for name in dir(operators) if name.endswith("Operator")}
    # The tables of the cases have no catalog.
    assert {case.operator.__name__ for case in CASES} == exported - {"DeltaPublishOperator"}


def test_a_publication_needs_the_name_of_the_table_in_its_catalog(
    tmp_path: Path, task_context: dict[str, Any]
) -> None:
    overdue_table(tmp_path)
    publish = operators.DeltaPublishOperator(task_id="publish", table_uri=str(tmp_path))
    with pytest.raises(AirflowFailException, match=r"such as uc://CATALOG\.SCHEMA\.TABLE"):
        publish.execute(task_context)


@pytest.mark.parametrize(
    "case", [c for c in CASES if find(c.verb).commits_by_name], ids=lambda c: c.verb
)
def test_commits_carry_the_id_that_all_tries_of_a_task_share(
    case: Case, tmp_path: Path, task_context: dict[str, Any]
) -> None:
    table = overdue_table(tmp_path)
    arguments = {**case.arguments, "table_uri": str(tmp_path)}
    mine = task(case, **arguments)._given(task_context)["operation_id"]
    since = task(case, **arguments)._given(task_context)["operation_since"]
    assert since == task_context["dag_run"].run_after
    task_context["ti"].try_number = 2
    task(case, **arguments).execute(task_context)
    told = {str(entry.commit_info.get("operationId")) for entry in table.open().history(limit=5)}
    assert any(operation_id.startswith(mine) for operation_id in told)
    given = task(case, **arguments, options={"operation_id": "my own"})._given(task_context)
    assert given["operation_id"] == "my own" and "operation_since" not in given


def test_a_constraint_is_planned_in_the_worker_and_checked_by_a_job(
    tmp_path: Path, task_context: dict[str, Any], spark_job: list[dict[str, Any]]
) -> None:
    overdue_table(tmp_path)
    case = BY_VERB["add-constraint"]
    planned = task(case, table_uri=str(tmp_path), plan_only=True).execute(task_context)
    assert (planned["status"], planned["num_files"], spark_job) == ("planned", 13, [])
    done = task(case, table_uri=str(tmp_path)).execute(task_context)
    assert (done["status"], done["version"], done["checked_rows"]) == ("committed", 16, 13)
    assert done["added_features"] == ["checkConstraints"]
    again = task(case, table_uri=str(tmp_path)).execute(task_context)
    assert again["status"] == "nothing-to-do"
    (options,) = spark_job
    assert (
        options["expression"] == "abs(id) > 0"
        and options["engine"] == "spark"
        and options["operation_id"]
    )


@pytest.mark.parametrize("engine", ["spark", "auto"])
def test_a_backfill_on_spark_gets_the_id_and_the_newest_version(
    engine: str, tmp_path: Path, task_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = overdue_table(tmp_path)
    table.log(add("uncounted.parquet"))
    submitted: list[Any] = []

    def run(self: SparkSubmission, *given: Any, **named: Any) -> dict[str, Any]:
        submitted.append((given, named))
        return {"table": "/t", "version": 20, "status": "enabled", "num_commits": 3}

    monkeypatch.setattr(SparkSubmission, "run", run)
    case = BY_VERB["backfill-row-ids"]
    outcome = task(
        case, table_uri=str(tmp_path), engine=engine, options={"auto_spark_files": "1"}
    ).execute(task_context)
    assert (outcome["status"], outcome["num_commits"]) == ("enabled", 3)
    (((verb, uri, options), named),) = submitted
    assert (verb, uri) == ("backfill-row-ids", str(tmp_path))
    assert named.pop("settles")({"table": "/t", "version": 20, "status": "enabled"})
    assert named == {"version": None, "report_uri": None, "plan_only": False}
    assert options["engine"] == "spark" and options["operation_id"]


@pytest.mark.parametrize("engine", ["spark", "auto"])
def test_files_of_a_deep_examination_are_opened_by_a_job_which_writes_the_report(
    engine: str, tmp_path: Path, task_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    overdue_table(tmp_path / "t")
    submitted: list[Any] = []

    def run(self: SparkSubmission, *given: Any, **named: Any) -> dict[str, Any]:
        submitted.append((given, named))
        report = named["report_uri"]
        return {"table": "/t", "version": 15, "status": "warnings", "report": report}

    monkeypatch.setattr(SparkSubmission, "run", run)
    case = BY_VERB["fsck"]
    given = {"table_uri": str(tmp_path / "t"), "engine": engine, "report_uri": f"{tmp_path}/r/"}
    options = {"deep": "True", "auto_spark_files": "1"}
    outcome = task(case, **given, options=options).execute(task_context)
    (((verb, _, options), named),) = submitted
    assert (verb, options["deep"], options["engine"]) == ("fsck", True, "spark")
    assert outcome["report_uri"] == named["report_uri"]
    assert outcome["report_uri"].startswith(f"{tmp_path}/r/") and named["version"] is None
    planned = task(case, **given, options={"deep": True, "auto_spark_files": 1}, plan_only=True)
    outcome = planned.execute(task_context)
    assert outcome["status"] == "planned"
    # Who only plans opens no file, and so has no list of all findings.
    assert (outcome["engine"], "report_uri" in outcome) == ("spark", False)
    assert len(submitted) == 1 and not (tmp_path / "r").exists()


@pytest.mark.parametrize("plan_only", [True, False])
@pytest.mark.parametrize("engine", ["spark", "auto"])
def test_a_vacuum_of_a_large_table_is_planned_and_done_by_a_job(
    engine: str,
    plan_only: bool,
    tmp_path: Path,
    task_context: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = overdue_table(tmp_path / "t")
    before = fingerprint(tmp_path)
    plan = vacuum.plan(table.open().snapshot(), context=RunContext.at(datetime.now(UTC))).to_json()
    result = {"table": "/t", "version": 15, "status": "vacuumed", "deleted": 9}
    submitted: list[Any] = []

    def run(self: SparkSubmission, *given: Any, **named: Any) -> dict[str, Any]:
        submitted.append((given, named))
        return plan if named["plan_only"] else result

    monkeypatch.setattr(SparkSubmission, "run", run)
    outcome = task(
        BY_VERB["vacuum"],
        table_uri=str(tmp_path / "t"),
        engine=engine,
        plan_only=plan_only,
        report_uri=f"{tmp_path}/r/",
        options={"auto_spark_bytes": 1, "retention": "30 days"},
    ).execute(task_context)
    (((verb, _, options), named),) = submitted
    assert (verb, options["engine"], options["retention"]) == ("vacuum", "spark", "P30D")
    assert (named["version"], named["plan_only"]) == (None, plan_only)
    assert outcome["report_uri"] == named["report_uri"] and fingerprint(tmp_path) == before
    if plan_only:
        assert (outcome["status"], outcome["files"]) == ("planned", 1)
    else:
        assert (outcome["status"], outcome["deleted"]) == ("vacuumed", 9)


def test_a_vacuum_reads_the_clock_before_the_table(
    tmp_path: Path, task_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    overdue_table(tmp_path)
    order: list[str] = []
    now, snapshot = clock.now, Table.snapshot

    def told_now() -> datetime:
        order.append("clock")
        return now()

    def told_snapshot(table: Table, **options: Any) -> Any:
        order.append("table")
        return snapshot(table, **options)

    monkeypatch.setattr(clock, "now", told_now)
    monkeypatch.setattr(Table, "snapshot", told_snapshot)
    task(BY_VERB["vacuum"], table_uri=str(tmp_path), plan_only=True).execute(task_context)
    assert order[:2] == ["clock", "table"]


def test_the_log_has_reason_progress_and_result(
    tmp_path: Path, task_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    overdue_table(tmp_path)
    lines: dict[bool, list[str]] = {True: [], False: []}
    for plan_only, told in lines.items():
        made = task(BY_VERB["vacuum"], table_uri=str(tmp_path), plan_only=plan_only)
        log = MagicMock()
        log.info = lambda text, *given, told=told: told.append(text % given)
        monkeypatch.setattr(type(made), "log", log)
        made.execute(task_context)
    why = f"{tmp_path}, version 15: no version and no tombstone since"
    assert lines[True][0].startswith(why) and lines[False][0].startswith(why)
    assert any(line.startswith("expired-tombstone: 1 file (") for line in lines[True])
    assert "files deleted: 1 of 1" in lines[False]
    assert f"{tmp_path}, version 17: vacuumed" in lines[False]
    assert any(line.startswith("deleted: 1 file (") for line in lines[False])
