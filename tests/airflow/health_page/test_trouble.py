"""What the page tells about a table that cannot be read, or whose task was killed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import open_table
from delta_maintenance.errors import CorruptTableError, StorageError
from delta_maintenance.operations.fsck import Finding
from delta_maintenance.operations.health.models import FileCheck
from delta_maintenance.policies import AssessmentEntry, assess_table
from delta_maintenance.policies.definition import Policy
from delta_maintenance.policies.leases import Lease
from delta_maintenance.policies.on_demand import run_operation
from delta_maintenance.policies.state_files import lease_file
from delta_maintenance_airflow.health_page.trouble import examination_of, problem_of, steps_for
from tests.support.orchestrators.health_site import Site, words
from tests.support.tables.assessed_tables import NOW, assessment, health, run_result
from tests.support.tables.table_builder import TableBuilder

# Of Airflow's own imports, which come with the first of these tests.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
URI = "s3://lake/sales/orders"


@pytest.mark.parametrize(
    "where",
    [{}, {"version": 212}, {"file": "_delta_log/7.json"}, {"version": 7, "file": "a b.parquet"}],
)
@pytest.mark.parametrize("remedy", [None, "restore it; or give up"])
def test_the_line_of_an_error_is_divided(where: dict[str, Any], remedy: str | None) -> None:
    error = CorruptTableError("line 3 is not JSON: no value", table=URI, remedy=remedy, **where)
    found = problem_of(str(error), name="orders", uri=URI)
    assert (found.version, found.file) == (where.get("version"), where.get("file"))
    assert (found.text, found.remedy) == ("line 3 is not JSON: no value", remedy or error.remedy)


@pytest.mark.parametrize(
    "line",
    ["it is gone", "table elsewhere: gone", f"table {URI}_2, file 7.json: gone", "", "file : x; y"],
)
def test_any_other_line_is_shown_as_it_is(line: str) -> None:
    found = problem_of(line, name="orders", uri=URI)
    assert "; ".join(filter(None, (found.text, found.remedy))) == line
    assert found.file is None


def test_a_file_is_named_once() -> None:
    line = f"table {URI}, version 5, file a.json: a.json is not JSON; restore it"
    found = problem_of(line, name="orders", uri=URI)
    assert (found.text, found.file, found.version) == ("a.json is not JSON", None, 5)


def test_steps_depend_on_the_kind_of_problem() -> None:
    def steps(error: Exception, **changes: Any) -> list[str]:
        told = str(error)
        failed = assessment(status="failed", problem=told, operations=(), health=None, **changes)
        problem = problem_of(told, name="orders", uri=URI)
        return [each.text for each in steps_for(AssessmentEntry(assessment=failed), problem, None)]

    damaged = CorruptTableError("commit 7 is missing", table=URI, version=7)
    first, second, third, last = steps(damaged, exit_status=5)
    assert first.startswith("Pause every vacuum") and second == "Find out what is wrong."
    assert third == "Restore the damaged files from a backup."
    assert "Resume deletions" in last
    passing = steps(StorageError("no answer", remedy="try again"), exit_status=1, retryable=True)
    assert (
        passing[0].startswith("Wait for the next run") and passing[1] == "If it lasts: try again."
    )
    denied = steps(StorageError("no access", remedy="correct the credentials"), exit_status=1)
    assert denied == ["Correct the credentials.", "The next run assesses the table again."]


def test_a_broken_table_has_its_findings_and_its_last_good_version(
    site: Site, neglected_table: TableBuilder
) -> None:
    uri = str(neglected_table.store.root)
    policy = Policy.from_json({"version": 1, "tables": [{"name": "orders", "uri": uri}]})
    site.policy.write_text(f"version: 1\ntables: [{{name: orders, uri: {uri}}}]\n")
    (table,) = policy.named_tables
    site.store.save(assess_table(open_table(uri), table, now=NOW))
    Path(uri, "_delta_log", f"{4:020}.json").unlink()
    broken = assess_table(open_table(uri), table, now=NOW)
    assert broken.status == "failed" and broken.exit_status == 5
    site.store.save(broken)

    page = words(site.get("/table?name=orders").text)
    assert "commit 4 is missing" in page and "Last good version 9" in page
    assert "What to do Pause every vacuum" in page and "Find out what is wrong. fsck" in page
    assert "docs/guides/damaged-table.md" in page
    row = _row(site.get("/").text)
    assert row.count("commit 4 is missing") == 2, "in the cell, and the whole line in its title"
    assert "restore" in row.replace(_title(row), ""), "the remedy is readable without a click"

    # fsck is what examines a table that cannot be read.
    examined = run_operation(open_table(uri), table, "fsck", plan_only=True)
    assert examined.status == "planned", examined.problem
    site.store.save(broken, examined)
    page = words(site.get("/table?name=orders").text)
    assert "Findings of fsck" in page and "log-gap" in page
    assert "Find out what is wrong" not in page
    assert "Follow the remedy of each finding" in page


def test_the_documentation_is_linked_where_it_is_known(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = f"table {URI}, version 3: it is damaged; restore it"
    site.store.save(
        assessment(status="failed", problem=told, exit_status=5, operations=(), health=None)
    )
    option = "AIRFLOW__DELTA_MAINTENANCE__DOCUMENTATION"
    monkeypatch.setenv(option, "https://docs.example.com/delta/")
    link = 'href="https://docs.example.com/delta/guides/damaged-table/"'
    assert link in site.get("/table?name=orders").text
    monkeypatch.setenv(option, "javascript:alert(1)")
    assert "javascript:" not in site.get("/table?name=orders").text


def test_findings_of_another_release_are_left_out() -> None:
    outcome = replace(run_result().outcomes[0], operation="fsck", result={"findings": [], "x": 1})
    assert examination_of(AssessmentEntry(assessment=assessment())) is None
    assert examination_of(AssessmentEntry(assessment=assessment(), reports=(outcome,))) is None


def _row(page: str) -> str:
    return page[
        page.index('<td class="due">') : page.index("</tr>", page.index('<td class="due">'))
    ]


def _title(row: str) -> str:
    start = row.index('title="table')
    return row[start : row.index('"', start + 7)]


def test_a_pattern_leads_to_its_page_where_it_can_be_acknowledged(site: Site) -> None:
    failed = assessment("s3://lake/bronze/**", status="failed", health=None, operations=())
    site.store.save(
        replace(failed, subject="pattern", problem="no access; grant it", exit_status=1)
    )
    assert site.get("/").text.count('/table?name=s3%3A%2F%2Flake%2Fbronze%2F%2A%2A"') == 2
    page = site.get("/table?name=s3://lake/bronze/**").text
    assert "The next run lists it again." in page and "Last good version" not in page
    assert "Acknowledge this failure" in page


def test_a_killed_task_is_named_with_a_link_to_it(site: Site) -> None:
    uri = "s3://lake/sales/orders"
    site.store.save(assessment("orders", uri=uri))
    run = "/dags/delta_maintenance/runs/scheduled__2026-11-21T06:00:00+00:00/tasks/run/mapped/3"
    told = "ended without a report"

    def shown(holder: str, *, minutes: int) -> str:
        until = NOW - timedelta(minutes=minutes)
        lease = Lease(name="orders", holder=holder, until=until, nonce="n")
        site.store.store.put(lease_file(uri), json.dumps(lease.to_json()).encode())
        return site.get("/table?name=orders").text

    holder = "delta_maintenance, run scheduled__2026-11-21T06:00:00+00:00, task run[3]"
    page = shown(holder, minutes=1)
    assert f'href="{run}" data-leave>The last task on this table</a> {told}' in page
    assert f"(the command line) {told}" in words(shown("the command line", minutes=1))
    # It still works.
    assert told not in shown(holder, minutes=-1)


def test_a_table_that_lost_a_file_shows_what_was_looked_for(site: Site) -> None:
    finding = Finding(
        kind="missing-data-file",
        severity="corrupt",
        version=7,
        path="day=1/a.parquet",
        problem="the data file does not exist",
        remedy="restore it",
    )
    check = FileCheck(version=7, asked=58, findings=(finding,))
    hollow = replace(health(), file_check=check)
    site.store.save(assessment(status="failed", problem="a is gone", health=hollow, operations=()))
    text = words(site.get("/table?name=orders").text)
    for told in ("58 files", "1 of them missing", "a.parquet", "the data file does not exist"):
        assert told in text, told
    assert "What follows is from the last good assessment" not in text
