"""An operation of another distribution, on every surface, with nothing else edited.

`delta_touch` is what `CONTRIBUTING.md` shows under "Adding an operation". Each test runs processes
in which that distribution is installed, because policies read the registry when they are imported.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which the exercise is installed."""
    site = tmp_path_factory.mktemp("site")
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    information = site / "delta_touch-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (information / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in project["entry-points"].items()
        )
    )
    path = [str(site), str(HERE), str(REPOSITORY / "tools"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table whose only version is of 2023."""
    builder = TableBuilder(tmp_path / "idle")
    builder.commit([protocol(), metadata()])
    return str(tmp_path / "idle")


@pytest.fixture
def policy(tmp_path: Path, table: str) -> str:
    """Writes a policy that requests the exercise, and an approval for it."""
    path = tmp_path / "policy.yaml"
    rules = "touch: {every: 7 days, note: hello}, approval: [touch]"
    path.write_text(f"version: 1\ntables:\n  - {{name: idle, uri: {table}, {rules}}}\n")
    return str(path)


def run(installed: dict[str, str], *arguments: str, status: int = 0) -> str:
    """Returns the stdout of a command line."""
    command = [sys.executable, "-m", "delta_maintenance", *arguments]
    ended = subprocess.run(command, env=installed, capture_output=True, text=True)
    assert ended.returncode == status, ended.stderr
    return ended.stdout


def told(installed: dict[str, str], code: str, *arguments: str) -> Any:
    """Returns the last line of a script's output, parsed as JSON."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *arguments]
    ended = subprocess.run(command, env=installed, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def history(table: str) -> list[tuple[str, str]]:
    """The note and the engine of each version that the exercise added, the newest first."""
    from delta_maintenance import open_table

    parameters = [
        entry.commit_info.get("operationParameters", {})
        for entry in open_table(table).history()
        if entry.operation == "TOUCH"
    ]
    return [(each["note"], each["by"]) for each in parameters]


def test_command_line(installed: dict[str, str], table: str) -> None:
    assert "add an empty version to an idle table" in run(installed, "--help")
    usage = run(installed, "touch", "--help-all")
    assert all(
        flag in usage for flag in ("--older-than DURATION", "--note TEXT", "--engine", "--dry-run")
    )
    shown = run(installed, "touch", table, "--dry-run").splitlines()
    assert [line.split()[0] for line in shown[1:]] == [
        "table",
        "version",
        "idle",
        "engine",
        "reason",
    ]
    planned = json.loads(run(installed, "touch", table, "--dry-run", "--json"))
    assert (planned["idle"], planned["engine"], history(table)) == (True, "local", [])
    done = json.loads(run(installed, "touch", table, "--note", "by hand", "--json"))
    assert (done["status"], done["version"], history(table)) == (
        "touched",
        1,
        [("by hand", "local")],
    )
    assert json.loads(run(installed, "touch", table, "--json"))["status"] == "nothing-to-do"


def test_policy(installed: dict[str, str], policy: str, table: str) -> None:
    (assessed,) = json.loads(run(installed, "assess", policy, "--json"))
    (due,) = assessed["operations"]
    assert (due["operation"], due["status"], due["needs_approval"]) == ("touch", "due", True)
    (waiting,) = json.loads(run(installed, "run", policy, "--json"))
    assert (waiting["status"], history(table)) == ("blocked", [])
    (done,) = json.loads(run(installed, "run", policy, "--approve", "touch", "--json"))
    assert [each["status"] for each in done["outcomes"]] == ["done"]
    assert history(table) == [("hello", "local")]


def test_by_hand(installed: dict[str, str], policy: str, table: str) -> None:
    code = """
    import json, sys
    from delta_maintenance import open_table
    from delta_maintenance.policies.approval import Approvals, ApprovedPlan, asks_for_approval
    from delta_maintenance.policies.definition.policy import json_schema, load_policy
    from delta_maintenance.policies.on_demand import run_operation

    asked = load_policy(sys.argv[1]).named_tables[0]
    table = open_table(asked.uri)
    (planned,) = run_operation(table, asked, "touch", plan_only=True).outcomes
    approvals = Approvals(plans=[ApprovedPlan.of(planned)])
    (done,) = run_operation(table, asked, "touch", approvals=approvals).outcomes
    asks = asks_for_approval("touch", planned.result)
    print(json.dumps([asks, done.status, "TouchRule" in json_schema()["$defs"]]))
    """
    assert told(installed, code, policy) == [True, "done", True]
    assert history(table) == [("hello", "local")]


@pytest.mark.airflow
def test_airflow_operator_and_form(installed: dict[str, str], tmp_path: Path, table: str) -> None:
    code = """
    import inspect, json, sys
    from datetime import UTC, datetime
    from types import SimpleNamespace
    from unittest.mock import MagicMock

    from delta_maintenance_airflow import operators
    from delta_maintenance.operations.core.registry import find
    from delta_maintenance_airflow.dags.manual import titles
    from delta_maintenance_airflow.health_page.option_fields import option_fields, read_answer
    from delta_maintenance_airflow.operators import DeltaTouchOperator

    task = DeltaTouchOperator(task_id="touch", table_uri=sys.argv[1], note="from Airflow")
    ti = MagicMock(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=0)
    due = SimpleNamespace(run_after=datetime(2026, 1, 1, tzinfo=UTC))
    done = task.execute({"ti": ti, "dag_run": due, "outlet_events": {}, "params": {}})
    print(json.dumps([
        done["status"],
        sorted({"note", "engine", "spark_conf", "table_uri"} - set(task.template_fields)),
        list(inspect.signature(DeltaTouchOperator).parameters)[0],
        f"{DeltaTouchOperator.__module__}.{DeltaTouchOperator.__qualname__}",
        hasattr(operators, "DeltaCheckpointOperator"),
        hasattr(operators, "DeltaLogCleanOperator"),
        titles()["touch"],
        [[each.name, each.kind, each.default] for each in option_fields(find("touch"))],
        read_answer(find("touch"), {"nota": "x", "older_than": "a while"}).problems,
    ]))
    """
    environment = {**installed, "AIRFLOW_HOME": str(tmp_path / "airflow")}
    name = "delta_maintenance_airflow.operators.DeltaTouchOperator"
    form = "Add an empty version"
    *shown, fields, problems = told(environment, code, table)
    assert shown == ["touched", [], "note", name, True, False, form]
    assert fields == [
        ["note", "text", ""],
        ["older_than", "duration", "30 days"],
        ["engine", "choice", "auto"],
        ["other_writers", "choice", ""],
    ]
    assert "give 'note', if that was meant" in problems[""]
    assert "is not a duration" in problems["older_than"]
    assert history(table) == [("from Airflow", "local")]


@pytest.mark.dagster
def test_dagster(installed: dict[str, str], policy: str, table: str) -> None:
    pytest.importorskip("dagster", reason="NO DAGSTER: it is an extra")
    code = """
    import json, sys
    import dagster as dg
    from delta_maintenance.policies.definition.policy import load_policy
    from delta_maintenance_dagster import DeltaTable, build_definitions

    (asked,) = load_policy(sys.argv[1]).named_tables
    table = DeltaTable(policy=asked, key=dg.AssetKey("idle"))
    job = build_definitions([table]).resolve_job_def("delta_maintenance")
    config = {"ops": {"idle__maintenance": {"config": {"operation": "touch"}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        ended = job.execute_in_process(instance=instance, run_config=config)
    (event,) = ended.asset_materializations_for_node("idle__maintenance")
    print(json.dumps(event.metadata["operations"].value))
    """
    environment = {**installed, "DAGSTER_DISABLE_TELEMETRY": "1"}
    *_, row = told(environment, code, policy).strip().splitlines()
    assert "touch" in row and "done" in row
    assert history(table) == [("hello", "local")]


def test_spark_specification(installed: dict[str, str]) -> None:
    where = ["s3://lake/idle", "--for", "livy", "--application", "s3://code/job.py"]
    asked = ["--report", "s3://lake-reports/1.json", "--options", '{"note": "later"}']
    request = run(installed, "spark-spec", "touch", *where, *asked)
    assert '\\"operation\\": \\"touch\\"' in request


@pytest.mark.spark
@pytest.mark.skipif(
    shutil.which("java") is None and "JAVA_HOME" not in os.environ, reason="NO JAVA: Spark needs it"
)
def test_spark_job(installed: dict[str, str], table: str) -> None:
    done = json.loads(run(installed, "touch", table, "--engine", "spark", "--json"))
    assert done["status"] == "touched"
    ((_, by),) = history(table)
    assert by.startswith("Spark ") and by.endswith(", 1 row")


def test_documents(installed: dict[str, str]) -> None:
    code = """
    import json
    from docs_site import pages

    page = pages.collect()["reference/commands/table.md"]
    print(json.dumps(page[page.index("{ #touch }") :]))
    """
    page = told(installed, code)
    for text in ("`--note TEXT`", "Adds versions", "`conflict` | `conflict` | 4", "`spark`"):
        assert text in page
