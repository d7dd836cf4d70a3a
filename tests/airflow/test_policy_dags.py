"""The Dags that look after the tables of a policy, run for real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.providers.standard.operators.hitl import HITLOperator
from suite.airflow_versions import DagBag
from worn_tables import FEATURE, fingerprint, worn_table

from delta_maintenance import clock, open_table
from delta_maintenance.operations import add_constraint
from delta_maintenance.operations.core import registry
from delta_maintenance.policies.assessments import AssessmentEntry
from delta_maintenance.policies.leases import Leases
from delta_maintenance.testing.actions import add, features, metadata, protocol
from delta_maintenance.testing.table_builder import TableBuilder
from delta_maintenance_airflow.approver import require_other_person
from delta_maintenance_airflow.compat import AirflowException, AirflowFailException
from delta_maintenance_airflow.operators.by_hand import DeltaManualOperator
from delta_maintenance_airflow.settings import assessment_store
from delta_maintenance_airflow.spark.submission import SparkSubmission

DAGS = Path(__file__).resolve().parents[2] / "dags"

pytestmark = [
    pytest.mark.airflow,
    # Airflow's own business: one library it uses tells another one about a third.
    pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`"),
]


@pytest.fixture
def policy(
    airflow_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Writes the policy that Airflow's configuration names."""

    def write(*tables: dict[str, Any], **defaults: Any) -> Path:
        path = tmp_path / "policy.yaml"
        document = {"version": 1, "defaults": defaults, "tables": list(tables)}
        path.write_text(yaml.safe_dump(document))
        monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__POLICY", str(path))
        monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "kept"))
        return path

    return write


@pytest.fixture
def run(run_dag: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Runs a Dag; gives by task and map index what each has told, with its state."""

    def run(dag_id: str, **options: Any) -> dict[str, Any]:
        # Read anew each time: within one process a task stays rendered.
        bag = DagBag(dag_folder=str(DAGS / "delta_maintenance_dags.py"))
        assert not bag.import_errors
        done = run_dag(bag.dags[dag_id], **options)
        found = {"state": str(done.state)}
        for ti in done.get_task_instances():
            name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]"
            told = ti.xcom_pull(ti.task_id, map_indexes=ti.map_index)
            found[name] = SimpleNamespace(state=str(ti.state), told=told)
        return found

    return run


def scheduled(run: Callable[..., Any], **params: Any) -> dict[str, Any]:
    return run("delta_maintenance", run_conf=params)


def fresh_table(folder: Path) -> TableBuilder:
    table = TableBuilder(folder)
    table.commit([protocol(), metadata()])
    table.commit([add("a.parquet")])
    return table


def test_each_table_with_work_gets_what_is_due_and_a_broken_one_holds_up_no_other(
    policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    worn = worn_table(tmp_path / "lake/worn")
    fresh_table(tmp_path / "lake/fresh")
    policy(
        {"name": "gone", "uri": str(tmp_path / "nowhere")},
        {"name": "lost", "uri": f"{tmp_path}/lost", "storage": {"connection": "of nobody"}},
        {"uri": f"{tmp_path}/lake/fresh", "vacuum": False, "clean_log": False},
        {"pattern": f"{tmp_path}/lake/**"},
        {"pattern": "s3://unlisted/**", "storage": {"connection": "of nobody"}},
        checkpoint={"max_commits": 5},
        clean_log={"every": "1 day"},
        vacuum={"every": "7 days", "min_reclaimable": 0},
    )
    found = scheduled(run)
    assert found["state"] == "failed"
    runs = [each for name, each in found.items() if name.startswith("run[")]
    worked = {each.told["name"]: each for each in runs if each.told}
    assert [each.state for each in runs] == ["success"], "what cannot be assessed costs no task"
    assert worked["worn"].state == "success"
    assert worked["worn"].told["status"] == "done"
    assert worked["worn"].told["operations"][0] == "checkpoint: done"
    assert not (tmp_path / "lake/worn/0.parquet").exists()
    assert worn.open().snapshot().checkpoint is not None
    assert set(worked) == {"worn"}
    summary = found["summary"]
    assert summary.state == "failed"
    assert summary.told["tables"] == 1
    assert summary.told["statuses"] == {"done": 1} and summary.told["not_assessed"] == 3
    told = dict(problem.split(": ", 1) for problem in summary.told["problems"])
    assert set(told) == {"gone", "lost", "s3://unlisted/**"}
    assert "nowhere" in told["gone"] and "of nobody" in told["lost"]
    assert "of nobody" in told["s3://unlisted/**"]
    kept = assessment_store().load("s3://unlisted/**")
    assert isinstance(kept, AssessmentEntry) and kept.assessment.subject == "pattern"
    gone = assessment_store().load("gone")
    assert isinstance(gone, AssessmentEntry) and gone.assessed_link is not None
    assert "/tasks/assess/mapped/" in gone.assessed_link

    lake = {"name": "all", "pattern": f"{tmp_path}/lake/**"}
    policy(lake, checkpoint={"max_commits": 5}, vacuum={"every": "7 days"})
    again = scheduled(run, tables=["all/worn"])
    assert again["state"] == "success"
    assert again["assess[0]"].told == []
    assert again["summary"].told["text"] == "nothing was due"


def test_a_plan_changes_nothing(
    policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    worn_table(tmp_path / "t")
    before = fingerprint(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")}, checkpoint=True, vacuum={"every": "1 day"})
    found = scheduled(run, plan_only=True)
    assert found["run[0]"].told["status"] == "planned"
    assert fingerprint(tmp_path / "t") == before


def test_who_is_at_work_on_a_table_has_it_and_what_it_keeps_is_for_the_page(
    policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    worn_table(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")}, checkpoint={"max_commits": 1})
    store = assessment_store()
    with Leases(store.store).held("t", holder="somebody"):
        found = scheduled(run)
    assert found["state"] == "success"
    assert found["run[0]"].state == "skipped"
    assert found["summary"].told["statuses"] == {"busy": 1}
    found = scheduled(run)
    assert found["run[0]"].told["operations"] == ["checkpoint: done"]
    entry = store.load("t")
    assert isinstance(entry, AssessmentEntry)
    assert entry.run is not None and entry.run.status == "done"
    assert entry.link is not None and entry.link.endswith("/tasks/run/mapped/0")
    assert entry.health is not None and entry.health.commits_since_checkpoint == 0


@pytest.fixture
def chat() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    heard: list[dict[str, Any]] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            heard.append(
                {"auth": self.headers["Authorization"], **json.loads(self.rfile.read(length))}
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Chat)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", heard
    server.shutdown()
    server.server_close()


def test_the_summary_is_posted_where_somebody_is_needed(
    policy: Callable[..., Path],
    run: Callable[..., Any],
    chat: tuple[str, list[dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, heard = chat
    connection = {"conn_type": "http", "host": address, "password": "of the chat"}
    monkeypatch.setenv("AIRFLOW_CONN_CHAT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__NOTIFY_CONN_ID", "chat")
    policy({"name": "gone", "uri": str(tmp_path / "nowhere")}, checkpoint=True)
    assert scheduled(run)["state"] == "failed"
    assert len(heard) == 1
    assert heard[0]["auth"] == "Bearer of the chat"
    assert heard[0]["text"].startswith(
        "delta_maintenance: nothing was due; 1 could not be assessed; gone: "
    )


def worn_again(folder: Path) -> None:
    """One more file that nothing refers to, as old as the others."""
    shutil.copy2(folder / "0.parquet", folder / "forgotten.parquet")


def approving(folder: Path) -> dict[str, Any]:
    """The entry of a table on which a vacuum is due that needs an approval."""
    own = {"vacuum": {"every": "1 day"}, "approval": ["vacuum"]}
    return {"name": folder.name, "uri": str(folder), **own}


def test_one_question_asks_about_all_plans_and_what_is_chosen_runs_in_the_same_run(
    policy: Callable[..., Path], run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        worn_table(tmp_path / name)
    TableBuilder(tmp_path / "clean").commit([protocol(), metadata()])
    folders = [tmp_path / name for name in ("a", "b", "clean")]
    policy(*map(approving, folders), checkpoint={"max_commits": 5})
    somebody.given = {"plans": ["vacuum of a"], "snooze_until": None}
    found = scheduled(run)
    assert found["state"] == "success"
    assert found["summary"].state == "success", "the summary waits for nobody"
    asked = found["pending_plans"].told
    assert sorted((plan["name"], plan["files"]) for plan in asked) == [("a", 1), ("b", 1)]
    (shown,) = somebody.shown
    assert "2 plans on 2 tables wait for approval; together they delete 2 files" in shown
    assert "| `b` | `vacuum` | `1` |" in shown
    assert found["run_approved[0]"].told["operations"] == ["vacuum: done"]
    assert "run_approved[1]" not in found
    assert not (tmp_path / "a/0.parquet").exists() and (tmp_path / "b/0.parquet").exists()
    store = assessment_store()
    pending = {name: store.load(name).pending for name in ("a", "b", "clean")}
    assert {name: len(plans) for name, plans in pending.items()} == {"a": 0, "b": 1, "clean": 0}

    # The plan of b is asked about again, and costs no task of its own.
    somebody.answer, somebody.given = "Snooze", {"plans": ["all of them"]}
    again = scheduled(run)
    assert "run[0]" not in again and len(again["pending_plans"].told) == 1
    assert again["run_approved"].state == "skipped"
    (first,) = (plan["due_since"] for plan in asked if plan["name"] == "b")
    assert again["pending_plans"].told[0]["due_since"] == first
    # Nobody is asked about it for a week.
    last = scheduled(run)
    assert last["state"] == "success" and "run[0]" not in last
    assert last["pending_plans"].state == last["approve"].state == "skipped"
    assert (tmp_path / "b/0.parquet").exists()


def test_a_table_that_changed_since_its_plan_was_approved_is_left_alone(
    policy: Callable[..., Path], run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    worn_table(tmp_path / "a")
    policy(approving(tmp_path / "a"))
    somebody.given = {"plans": ["vacuum of a"]}
    somebody.meanwhile = lambda: worn_again(tmp_path / "a")
    found = scheduled(run)
    assert found["state"] == "failed"
    told = found["run_approved[0]"].told
    assert told["status"] == "failed" and "the table has changed" in told["problem"]
    assert (tmp_path / "a/0.parquet").exists()


def by_hand(run: Callable[..., Any], **params: Any) -> dict[str, Any]:
    return run("delta_manual", run_conf=params)


@dataclass
class Somebody:
    """Who is asked."""

    answer: str = "Approve"
    shown: list[str] = field(default_factory=list)
    name: str = "somebody"
    given: dict[str, Any] = field(default_factory=dict)
    """What the form of the question gets."""
    meanwhile: Callable[[], object] = lambda: None


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch) -> Somebody:
    """Answers at once: a Dag that a test runs waits for nobody."""
    somebody = Somebody()

    def answer(self: HITLOperator, context: Any) -> dict[str, Any]:
        somebody.shown.append(f"{self.subject}\n{self.body}")
        somebody.meanwhile()
        event = {
            "chosen_options": [somebody.answer],
            "params_input": somebody.given,
            "responded_at": clock.now(),
            "responded_by_user": {"id": somebody.name, "name": somebody.name},
        }
        return self.execute_complete(context, event)

    monkeypatch.setattr(HITLOperator, "execute", answer)
    return somebody


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of submitted jobs, done by an engine that finds one row of nine below zero."""
    submitted: list[dict[str, Any]] = []

    def run(
        self: SparkSubmission, verb: str, table_uri: str, given: dict[str, Any], **_: Any
    ) -> dict[str, Any]:
        assert verb == "add-constraint"
        submitted.append(given)
        table = open_table(table_uri)
        options = add_constraint.AddConstraintOptions.from_json(given)
        plan = add_constraint.plan(table.snapshot(), options, now=clock.now())
        violations = int("> 0" in options.expression)
        found = add_constraint.CheckedRows(
            files=1, rows=9, violations=violations, violating_files=violations
        )
        return add_constraint.apply(table, plan, engine=lambda *_, **__: found).to_json()

    monkeypatch.setattr(SparkSubmission, "run", run)
    return submitted


def test_by_hand_what_deletes_nothing_needs_no_approval(
    policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    table = worn_table(tmp_path / "t")
    policy({"name": "mine", "uri": str(tmp_path / "t")})
    found = by_hand(run, operation="checkpoint", tables=["mine"], options={"kind": "classic"})
    assert found["state"] == "success"
    assert found["one_table.plan[0]"].told["needs_approval"] is False
    assert found["one_table.run[0]"].told["operations"] == ["checkpoint: done"]
    assert table.open().snapshot().checkpoint is not None


def test_by_hand_a_plan_may_be_all(
    policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    worn_table(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")})
    before = fingerprint(tmp_path / "t")
    found = by_hand(run, operation="vacuum", table_uri=str(tmp_path / "t"), plan_only=True)
    assert found["state"] == "success"
    plan = found["one_table.plan[0]"].told
    assert plan["needs_approval"] is True and "`1 file (1 byte)`" in plan["plan_text"]
    assert found["one_table.run[0]"].state == "skipped"
    assert fingerprint(tmp_path / "t") == before


def test_by_hand_a_feature_goes_once_somebody_agrees(
    policy: Callable[..., Path], run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    table = worn_table(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")})
    given = {"operation": "drop-feature", "table_uri": str(tmp_path / "t")}
    found = by_hand(run, **given, options={"feature": FEATURE})
    assert found["state"] == "success"
    assert found["one_table.plan[0]"].told["needs_approval"] is True
    (shown,) = somebody.shown
    assert shown.startswith(f"drop-feature of {tmp_path}/t\ndrop-feature: requested manually\n")
    assert "the protocol becomes" in shown
    assert found["one_table.run[0]"].told["operations"] == ["drop-feature: done"]
    assert FEATURE not in (table.open().snapshot().protocol.reader_features or ())


def test_by_hand_no_feature_goes_where_somebody_says_no(
    policy: Callable[..., Path], run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    worn_table(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")})
    somebody.answer = "Reject"
    before = fingerprint(tmp_path / "t")
    given = {"operation": "drop-feature", "table_uri": str(tmp_path / "t")}
    found = by_hand(run, **given, options={"feature": FEATURE})
    assert len(somebody.shown) == 1 and found["one_table.run[0]"].state == "skipped"
    assert fingerprint(tmp_path / "t") == before


def test_by_hand_history_that_is_too_young_ends_the_run_well(
    policy: Callable[..., Path], run: Callable[..., Any], somebody: Somebody, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path / "t")
    table.commit([features("v2Checkpoint"), metadata()])
    table.commit([add("a.parquet")])
    table.v2_checkpoint(sidecars=1)
    policy({"name": "t", "uri": str(tmp_path / "t")})
    options = {"feature": "v2Checkpoint", "truncate_history": True}
    found = by_hand(run, operation="drop-feature", table_uri=str(tmp_path / "t"), options=options)
    assert found["state"] == "success" and len(somebody.shown) == 1
    told = found["one_table.run[0]"].told
    assert told["status"] == "incomplete"
    assert "v2Checkpoint is switched off, but not dropped yet; run again at" in told["problem"]


def test_by_hand_a_constraint_is_looked_at_by_spark_and_approved(
    policy: Callable[..., Path],
    run: Callable[..., Any],
    somebody: Somebody,
    jobs: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    table = fresh_table(tmp_path / "t")
    policy({"uri": str(tmp_path / "t"), "other_writers": "spark"})
    given = {"operation": "add-constraint", "table_uri": str(tmp_path / "t")}
    violated = by_hand(run, **given, options={"name": "positive", "expression": "id > 0"})
    assert violated["state"] == "failed" and len(somebody.shown) == 1
    told = violated["one_table.run[0]"].told
    assert told["status"] == "failed" and "1 of 9 rows" in told["problem"]
    assert table.open().latest_version() == 1

    options = {"name": "not_negative", "expression": "id >= 0"}
    found = by_hand(run, **given, options=options)
    assert found["state"] == "success" and len(somebody.shown) == 2
    assert ": (not set) → id >= 0" in somebody.shown[1]
    assert found["one_table.run[0]"].told["operations"] == ["add-constraint: done"]
    stated = {name: value for name, value in jobs[-1].items() if value is not None}
    assert stated == {**options, "other_writers": "spark"}
    # The protocol is what it is to be by now.
    more = by_hand(run, **given, options={"name": "more", "expression": "id >= -1"})
    assert more["one_table.plan[0]"].told["needs_approval"] is False and len(somebody.shown) == 2
    configuration = table.open().snapshot().metadata.configuration
    assert {name for name in configuration if name.startswith("delta.constraints.")} == {
        "delta.constraints.not_negative",
        "delta.constraints.more",
    }


@pytest.mark.parametrize("operation", ["drop-feature", "add-constraint"])
def test_by_hand_what_lacks_an_option_fails_at_once_and_says_which(
    operation: str, policy: Callable[..., Path], run: Callable[..., Any], tmp_path: Path
) -> None:
    fresh_table(tmp_path / "t")
    policy({"name": "t", "uri": str(tmp_path / "t")})
    found = by_hand(run, operation=operation, table_uri=str(tmp_path / "t"))
    assert found["state"] == "failed"
    plan = found["one_table.plan[0]"]
    assert (plan.state, found["one_table.run[0]"].state) == ("failed", "upstream_failed")
    assert f"{operation} lacks the option" in plan.told["problem"]
    assert "give options such as" in plan.told["problem"]


def test_the_form_has_every_operation_that_there_is_by_hand(airflow_db: None) -> None:
    bag = DagBag(dag_folder=str(DAGS / "delta_maintenance_dags.py"))
    schema = bag.dags["delta_manual"].params.get_param("operation").schema
    assert set(schema["enum"]) == set(registry.names()) == set(schema["values_display"])


def test_without_a_table_the_form_is_refused(
    policy: Callable[..., Path], run: Callable[..., Any]
) -> None:
    policy()
    assert by_hand(run, operation="vacuum")["state"] == "failed"


def test_on_commit_the_tables_that_changed_get_what_is_due(
    policy: Callable[..., Path], tmp_path: Path
) -> None:
    from delta_maintenance_airflow.policy_assets import changed_tables

    uri = str(tmp_path / "t")
    policy({"name": "mine", "uri": uri}, {"pattern": f"{tmp_path}/lake/**"})
    bag = DagBag(dag_folder=str(DAGS / "delta_maintenance_dags.py"))
    assert not bag.import_errors
    schedule = bag.dags["delta_on_commit"].timetable.asset_condition
    assets = schedule.objects
    assert [watcher.trigger.store for asset in assets for watcher in asset.watchers] == ["file:"]
    events = {
        assets[0]: [
            SimpleNamespace(extra={"payload": {"status": "changed", "table": uri}}),
            SimpleNamespace(
                extra={"payload": {"status": "error", "table": "x", "message": "gone"}}
            ),
            SimpleNamespace(extra=None),
        ]
    }
    assert changed_tables(events) == [
        {"name": "mine", "uri": uri, "problem": None},
        {"name": "x", "uri": "x", "problem": "gone"},
    ]


def test_without_a_policy_nothing_is_watched_and_every_dag_is_parsed(airflow_db: None) -> None:
    bag = DagBag(dag_folder=str(DAGS))
    assert not bag.import_errors
    assert {"delta_maintenance", "delta_on_commit", "delta_manual"} <= set(bag.dags)
    for dag in bag.dags.values():
        assert dag.doc_md and dag.description


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
def test_by_hand_addresses_and_short_retentions_take_a_right_of_their_own(
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


def test_the_requester_of_a_run_cannot_approve_it(
    airflow_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    context: Any = {"dag_run": SimpleNamespace(triggering_user_name="ann", run_type="manual")}
    ann, bob = {"id": "1", "name": "ann"}, {"id": "2", "name": "bob"}
    require_other_person(context, ann)
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__SEPARATE_APPROVER", "True")
    require_other_person(context, bob)
    for user in (ann, {"id": "ann", "name": "Ann"}, None):
        with pytest.raises(AirflowException, match="triggered by ann"):
            require_other_person(context, user)
    context["dag_run"].triggering_user_name = None
    with pytest.raises(AirflowException, match="whose name is unknown"):
        require_other_person(context, bob)
    context["dag_run"].run_type = "scheduled"
    require_other_person(context, ann)
