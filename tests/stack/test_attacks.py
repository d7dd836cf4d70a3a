"""Attacks on a whole Airflow: hostile names where people approve, a search for secrets, and tasks
that are killed.

`make nightly` plays them; each defect that they found has a test of its own as well.
`DELTA_MAINTENANCE_SCREENSHOTS` is a folder for pictures of the pages.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import yaml

from delta_maintenance.operations.core.documents import printable
from delta_maintenance.policies import AssessmentStore
from delta_maintenance.storage import open_store
from tests.support.emulators.s3_server import S3Server
from tests.support.hostile.attacking_site import APPROVALS, attacking_site
from tests.support.hostile.exposure import watched
from tests.support.orchestrators.fake_spark import FakeSpark, reports
from tests.support.orchestrators.health_server import Server, picture, signed_in, visitor
from tests.support.servers.browser import open_browser
from tests.support.suite.play import PLAY
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.overdue_tables import fingerprint, overdue_table
from tests.support.tables.table_builder import TableBuilder

from .conftest import POLL_INTERVAL, Airflow, answered_until_it_ends, standalone

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(PLAY != "all", reason="only make nightly attacks a whole Airflow"),
]

SCRIPT = '<img src=x onerror="document.title=1">'
TEMPLATE = "{{ 7919 * 7919 }}"
LINK = "[Sign in](javascript:document.title=1)"
BACKWARDS = "\u202etxt.daolnwod"
FOLDER = f"{SCRIPT} {LINK} {TEMPLATE} {BACKWARDS}"
NAME = f"`{SCRIPT} {LINK} | {TEMPLATE} {BACKWARDS}"
"""Of a table, with the end of a code span and of a cell as well."""
SECRETS = {"password": uuid.uuid4().hex, "session_token": uuid.uuid4().hex}
BUCKET = "hostile-stack"
KILLED = {"attempt": "before its work", "_ended": "after its work"}
"""The methods in which the first try of a task is killed."""
DAGS = """
import os
from datetime import datetime, timedelta

from airflow.sdk import DAG, Asset, get_current_context

from delta_maintenance_airflow.dags import delta_maintenance_dags
from delta_maintenance_airflow.operators.manual import DeltaApprovalOperator, DeltaManualOperator
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator

START = datetime(2026, 1, 1)
# A task that is continued before Airflow has noticed the end of its process fails once more.
again = {"retries": 5, "retry_delay": timedelta(seconds=1)}
delta_maintenance_dags(schedule=None, default_args=again)


def killed(base, method):
    def run(self, *arguments, **options):
        if get_current_context()["ti"].try_number == 1:
            os.kill(os.getpid(), 9)
        return getattr(base, method)(self, *arguments, **options)

    return type("Killed", (base,), {method: run})


with DAG(dag_id="secured", schedule=None, start_date=START, default_args=again):
    DeltaPolicyRunOperator(
        task_id="run",
        table={"name": "secured"},
        outlets=[Asset(name="maintained", uri="x-maintained:secured")],
    )

with DAG(dag_id="killed", schedule=None, start_date=START, default_args=again):
    for method in METHODS:
        killed(DeltaPolicyRunOperator, method)(task_id=method, table={"name": method})

with DAG(
    dag_id="approved", schedule=None, start_date=START, default_args=again,
    render_template_as_native_obj=True,
):
    asked = {"operation": "vacuum", "table": {"name": "approved"}}
    plan = DeltaManualOperator(task_id="plan", plan_only=True, **asked)
    approve = killed(DeltaApprovalOperator, "execute_complete")(
        task_id="approve", plan=plan.output
    )
    run = DeltaManualOperator(task_id="run", plan=plan.output, approval=approve.output, **asked)
    plan >> approve >> run
""".replace("METHODS", repr(tuple(KILLED)))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> FakeSpark:
    """A driver that works until there is a file `go`."""
    folder = tmp_path_factory.mktemp("spark")
    result = {"table": "t", "version": 9, "status": "written"}
    fake = FakeSpark(folder)
    fake.acts(
        "spec = json.load(open(words[words.index('--spec') + 1][1:]))",
        f"print(*spec['storage_options'], file=open({str(folder / 'options')!r}, 'a'))",
        f"while not os.path.exists({str(folder / 'go')!r}): time.sleep(0.1)",
        reports({"status": "done", "result": result}),
    )
    return fake


@pytest.fixture(scope="module")
def stack(
    running_s3_server: S3Server,
    spark: FakeSpark,
    lake: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Airflow]:
    hostile_tables = {NAME: str(lake / FOLDER), f"chosen {NAME}": str(lake / "chosen" / FOLDER)}
    for name in (FOLDER, f"chosen/{FOLDER}", "approved", *KILLED):
        overdue_table(lake / name)
    running_s3_server.make_bucket(BUCKET)
    options = running_s3_server.storage_options
    secured = TableBuilder(open_store(f"s3://{BUCKET}/t", options))
    secured.commit([features("v2Checkpoint"), metadata()])
    for number in range(8):
        secured.commit([add(f"{number}.parquet")])
        secured.store.put(f"{number}.parquet", b"x")
    (lake / "reports").mkdir()
    hostile = {"vacuum": {"every": "1 day"}, "approval": ["vacuum"]}
    job = {"compact_log": {"commits_per_file": 5}, "engine": {"prefer": "spark"}}
    tables = [
        *({"name": name, "uri": uri, **hostile} for name, uri in hostile_tables.items()),
        {"name": "secured", "uri": f"s3://{BUCKET}/t", "storage": {"connection": "secured"}, **job},
        {"name": "approved", "uri": str(lake / "approved")},
        *({"name": name, "uri": str(lake / name), **job} for name in KILLED),
    ]
    (lake / "policy.yaml").write_text(yaml.safe_dump({"version": 1, "tables": tables}))
    # In a file, because variables would show the secrets in the environment of each process.
    connections = tmp_path_factory.mktemp("secrets") / "connections.json"
    extra = {"endpoint_url": running_s3_server.url, "region": "us-east-1"}
    secured_by = {
        "conn_type": "delta",
        "login": "an-id",
        "password": SECRETS["password"],
        "extra": {**extra, "session_token": SECRETS["session_token"]},
    }
    local = {"conn_type": "spark", "host": "local[1]"}
    connections.write_text(json.dumps({"secured": secured_by, "spark_default": local}))
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    (home / "dags/attacked.py").write_text(DAGS)
    backend = {
        "SECRETS_BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
        "SECRETS_BACKEND_KWARGS": json.dumps({"connections_file_path": str(connections)}),
    }
    settings = {
        "PATH": os.pathsep.join(
            [str(spark.folder), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
        # Without encryption, so that the search reads everything.
        "AIRFLOW__CORE__FERNET_KEY": "",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
        "AIRFLOW__DELTA_MAINTENANCE__POLICY": str(lake / "policy.yaml"),
        "AIRFLOW__DELTA_MAINTENANCE__POLL_INTERVAL": str(POLL_INTERVAL),
        "AIRFLOW__DELTA_MAINTENANCE__REPORT_FOLDER": str(lake / "reports"),
        "AIRFLOW__SECRETS__BACKEND": backend["SECRETS_BACKEND"],
        "AIRFLOW__SECRETS__BACKEND_KWARGS": backend["SECRETS_BACKEND_KWARGS"],
        **{f"AIRFLOW__WORKERS__{name}": value for name, value in backend.items()},
    }
    dags = {"delta_maintenance", "delta_manual", "secured", "killed", "approved"}
    with standalone(home, settings, dags=dags) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def question(run_id: str) -> str:
    """The path of the question of a manual run, in Airflow's API."""
    run = quote(run_id, safe="")
    task = f"taskInstances/{quote('one_table.approve')}/0/hitlDetails"
    return f"api/v2/dags/delta_manual/dagRuns/{run}/{task}"


def is_open(stack: Airflow, run_id: str) -> bool:
    return not stack.call("GET", f"/{question(run_id)}")["response_received"]


def test_only_a_person_with_the_role_who_is_signed_in_approves(
    stack: Airflow, lake: Path, browser: Browser
) -> None:
    before = fingerprint(lake / FOLDER)
    run_id = asked(stack)
    approval = {"chosen_options": ["Approve"], "params_input": {}}
    for token, status in (
        (None, 401),
        ("e30.e30.e30", 403),
        (signed_in(stack.address, "viewer"), 403),
    ):
        request = urllib.request.Request(
            f"{stack.address}/{question(run_id)}",
            method="PATCH",
            data=json.dumps(approval).encode(),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {token}"} if token else {}),
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code == status
        refused.value.close()
    for same_site in (False, True):
        context = browser.new_context()
        # As Airflow sets it.
        cookie = {"name": "_token", "value": stack.token, "url": stack.address, "sameSite": "Lax"}
        context.add_cookies([cookie])
        with attacking_site(
            stack.address, same_site=same_site, question=question(run_id)
        ) as address:
            page = context.new_page()
            page.goto(address)
            page.wait_for_function("window.readAnswers !== undefined", timeout=120_000)
            assert page.evaluate("readAnswers") == [""] * (7 + len(APPROVALS))
        context.close()
    assert is_open(stack, run_id)
    assert fingerprint(lake / FOLDER) == before


def test_a_person_approves_the_deletion_of_a_table_with_a_hostile_name(
    stack: Airflow, lake: Path, browser: Browser
) -> None:
    run_id = asked(stack)
    with visitor(browser, server_of(stack)) as page:
        page.goto(stack.address)
        page.goto(f"{stack.address}/required_actions?response_received=false")
        page.get_by_role("link", name="vacuum of").first.wait_for()
        unharmed(page, "approval-list")
        run, task = quote(run_id, safe=""), "one_table.approve/mapped/0"
        page.goto(f"{stack.address}/dags/delta_manual/runs/{run}/tasks/{task}/required_actions")
        page.get_by_role("button", name="Approve").wait_for()
        shown = page.inner_text("body")
        assert f"vacuum of {printable(str(lake / FOLDER))}" in shown
        assert "1 of " in shown
        unharmed(page, "approval-manual")
        page.get_by_role("button", name="Approve").click()
        stack.wait_for("the answer", lambda: not is_open(stack, run_id))
    assert stack.wait_for_run("delta_manual", run_id) == "success"
    told = stack.told("delta_manual", run_id, "one_table.run", 0)
    assert (told["name"], told["uri"]) == (NAME, str(lake / FOLDER))
    assert not (lake / FOLDER / "0.parquet").exists()


def test_a_person_chooses_the_plan_of_a_table_with_a_hostile_name(
    stack: Airflow, lake: Path, browser: Browser
) -> None:
    name = f"chosen {NAME}"
    run_id = stack.trigger("delta_maintenance", tables=[name])
    stack.wait_for_task("delta_maintenance", run_id, "approve", "awaiting_input")
    with visitor(browser, server_of(stack)) as page:
        run = quote(run_id, safe="")
        page.goto(
            f"{stack.address}/dags/delta_maintenance/runs/{run}/tasks/approve/required_actions"
        )
        page.get_by_role("button", name="Approve").wait_for()
        unharmed(page, "approval-batch")
        page.get_by_role("combobox").first.click()
        page.get_by_role("option", name="vacuum of").click()
        unharmed(page, "approval-batch-chosen")
        page.get_by_role("button", name="Approve").click()
        assert stack.wait_for_run("delta_maintenance", run_id) == "success"
    told = stack.told("delta_maintenance", run_id, "run_approved", 0)
    assert (told["name"], told["uri"]) == (name, str(lake / "chosen" / FOLDER))
    assert told["operations"] == ["vacuum: done"]


def server_of(stack: Airflow) -> Server:
    """The server for a visitor."""
    store = AssessmentStore(str(stack.home / "assessments"))
    return Server(stack.address, store, stack.token)


def asked(stack: Airflow) -> str:
    """A run of the manual Dag whose question is open."""
    run_id = stack.trigger("delta_manual", operation="vacuum", tables=[NAME])
    stack.wait_for_task("delta_manual", run_id, "one_table.approve", "awaiting_input", 0)
    return run_id


def unharmed(page: Page, name: str) -> None:
    """No script of a name has run, no link of it leads anywhere, and nothing of it is hidden."""
    for width, height, kind in ((1600, 950, "desktop"), (390, 844, "phone")):
        page.set_viewport_size({"width": width, "height": height})
        picture(page, f"{name}-{kind}", full_page=True)
        assert page.title() != "1" and BACKWARDS[0] not in page.inner_text("body")
        assert page.locator('img[src="x"], [onerror], [onload]').count() == 0
        hrefs = page.eval_on_selector_all("[href]", "them => them.map(it => it.href)")
        assert hrefs and not [href for href in hrefs if "javascript:" in href.lower()]
    page.set_viewport_size({"width": 1600, "height": 950})


def test_nothing_that_airflow_keeps_has_a_secret(
    stack: Airflow, lake: Path, spark: FakeSpark
) -> None:
    secrets = list(SECRETS.values())
    folder = spark.folder.parent
    with watched(secrets, [stack.home, lake], "no marker") as exposure:
        run_id = stack.trigger("secured")
        stack.wait_for("the driver", lambda: (folder / "options").exists())
        rows, found = database(stack.home, secrets)
        assert found == [] and rows
        assert database(stack.home, ["secured"])[1], "the search finds nothing at all"
        exposure.look()
        (folder / "go").touch()
        assert stack.wait_for_run("secured", run_id) == "success"
    assert "aws_secret_access_key" in (folder / "options").read_text().lower()
    assert exposure.seen == set()
    rows, found = database(stack.home, secrets)
    assert found == []
    searched = {"rendered_task_instance_fields", "xcom", "asset_event", "hitl_detail", "log"}
    assert searched <= {table for table, number in rows.items() if number}


def test_tasks_that_are_killed_are_tried_again_and_finish(
    stack: Airflow, spark: FakeSpark, count_cases: Callable[[str, int], None]
) -> None:
    (spark.folder.parent / "go").touch()
    before = len(spark.starts)
    run_id = stack.trigger("killed")
    assert stack.wait_for_run("killed", run_id) == "success"
    tries = {name: ti["try_number"] for (name, _), ti in stack.tasks("killed", run_id).items()}
    assert set(tries) == set(KILLED) and min(tries.values()) >= 2
    for name in KILLED:
        told = stack.told("killed", run_id, name)
        assert (told["status"], told["operations"]) == ("done", ["compact-log: done"])
    assert len(spark.starts) - before == len(KILLED)
    assert list((stack.home / "assessments").glob("*.lease")) == []
    count_cases("kills of tasks on a real scheduler", len(KILLED) + 1)


def test_an_approval_that_is_killed_after_its_answer_is_asked_for_again(
    stack: Airflow, lake: Path
) -> None:
    run_id = stack.trigger("approved")
    answer = {"chosen_options": ["Approve"], "params_input": {}}
    ended = answered_until_it_ends(stack, "approved", run_id, ("approve", -1), answer)
    assert ended == "success"
    assert stack.tasks("approved", run_id)["approve", -1]["try_number"] >= 2
    assert stack.told("approved", run_id, "run")["operations"] == ["vacuum: done"]
    assert not (lake / "approved/0.parquet").exists()


def database(home: Path, secrets: list[str]) -> tuple[Counter[str], list[str]]:
    """The number of rows of each table of Airflow's database, and the rows with a secret."""
    rows: Counter[str] = Counter()
    found = []
    connection: Any = sqlite3.connect(f"file:{home}/airflow.db?mode=ro", uri=True, timeout=60)
    try:
        for line in connection.iterdump():
            if line.startswith("INSERT INTO"):
                rows[line.split('"')[1]] += 1
                found += [line for secret in secrets if secret in line]
    finally:
        connection.close()
    return rows, found
