"""The list of tables: filters, order and pages; and the plugin in Airflow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from html import unescape
from typing import Literal

import pytest

from delta_maintenance.policies import AssessmentEntry
from delta_maintenance_airflow.health_page.known_tables import PolicyFile
from delta_maintenance_airflow.plugin import URL_PREFIX, DeltaMaintenancePlugin
from tests.support.orchestrators.health_site import Site, words
from tests.support.tables.assessed_tables import (
    NOW,
    assessment,
    deferred,
    fill,
    health,
    run_result,
    waiting,
)

# Of Airflow's own imports, which come with the first of these tests.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")


@pytest.fixture
def lake(site: Site) -> Callable[[str], list[str]]:
    """The names that a query shows, in order, of two dozen tables."""
    site.policy.write_text("version: 1\ntables: [{pattern: 's3://lake/**'}]\n")
    fill(site.store, 24)

    return partial(names_of, site)


def names_of(site: Site, query: str) -> list[str]:
    """The names in the list, in order; tables that fail for one reason as in their own list."""
    names: list[str] = []
    text = site.get(f"/?{query}").text
    for link, name in re.findall(r'<a class="name" href="([^"]*)">(.*?)</a>', text):
        cause = re.search(r"cause=\w+", link)
        plain = unescape(name.replace("<wbr>", ""))
        names += [plain] if cause is None else names_of(site, cause[0])
    return names


def test_rows_can_be_filtered(lake: Callable[[str], list[str]]) -> None:
    assert len(lake("")) == 24
    assert set(lake("q=ORDERS")) == {"bronze/orders_0000", "silver/orders_0016", "gold/orders_0008"}
    assert lake("q=gold+orders") == ["gold/orders_0008"]
    assert lake("q=no-such-table") == []
    assert all(int(name[-4:]) % 9 == 3 for name in lake("status=failed"))
    assert all(int(name[-4:]) % 9 == 5 for name in lake("operation=vacuum"))
    assert lake("status=no-such-status") == []


def test_what_waits_for_the_budget_is_a_state_of_its_own(site: Site) -> None:
    site.store.save(deferred("orders", "optimize"))
    site.store.save(deferred("returns", "optimize", "checkpoint"))
    site.store.save(replace(assessment("stores"), status="nothing-due", operations=()))
    site.policy.write_text("version: 1\ntables: [{pattern: 's3://lake/**'}]\n")
    assert names_of(site, "") == ["orders", "returns", "stores"]
    assert names_of(site, "status=deferred") == ["returns"]
    assert names_of(site, "operation=optimize") == ["orders", "returns"]
    text = site.get("/").text
    page = words(text)
    assert "1 table waits because of the budget" in page and "1 deferred" in page
    (why,) = re.findall(r'title="([^"]*)">optimize: deferred', text)[:1]
    assert "but deferred until 2026-11-21 11:40 UTC: after 3 operations" in why
    assert page.count("optimize: deferred") == 2 and page.count("checkpoint: deferred") == 1
    assert 'class="tile deferred"' in text and "Nothing to do" in page, "it is no problem"
    one = words(site.get("/table?name=orders").text)
    until = "deferred until 2026-11-21 11:40 UTC: after 3 operations with more gain for their cost"
    assert f"optimize: 27 files are small, and can become 1, but {until}" in one
    assert "in 5 hours" in one
    rows = {row["table"]: row for row in site.get("/export.json").json()}
    assert (rows["orders"]["due"], rows["orders"]["deferred"]) == ("checkpoint", "optimize")
    assert rows["returns"]["status"] == "deferred" and rows["returns"]["next_at"]
    assert rows["stores"]["deferred"] is None


def test_tables_that_fail_for_one_reason_are_one_row(site: Site) -> None:
    site.policy.write_text("version: 1\ntables: [{pattern: 's3://lake/**'}]\n")
    remedy = "upgrade it, or give --allow-large-delete"
    for number in range(36):
        uri = f"s3://lake/t{number}"
        problem = f"table {uri}, version {number}, file _delta_log/{number:020}.json: "
        problem += "the feature of tomorrow is unknown" if number < 34 else f"{number:c} is broken"
        failed = assessment(f"t{number}", uri=uri, status="failed", operations=(), health=None)
        site.store.save(replace(failed, problem=f"{problem}; {remedy}"))
    page = site.get("/").text
    assert "To do: repair 36 tables, which fail for 3 reasons" in words(page)
    assert "34 tables fail (3 min): the feature of tomorrow is unknown" in words(page)
    body = page[page.index("<tbody>") :]
    assert body.count("<tr>") == 3 and words(body).count("is unknown") == 1
    assert "upgrade it, or give the option allow_large_delete" in words(body)
    assert "--" not in body
    (cause,) = set(re.findall(r"\?(cause=\w+)", page))
    assert (
        len(names_of(site, cause)) == 34 == len(json.loads(site.get(f"/export.json?{cause}").text))
    )


def test_the_ledger_of_the_policy_belongs_to_it(site: Site) -> None:
    site.policy.write_text(
        "version: 1\nledger: s3://lake/ops/ledger\ntables: [{uri: s3://lake/a}]\n"
    )
    site.store.save(assessment("ledger", uri="s3://lake/ops/ledger"))
    page = words(site.get("/").text)
    assert "2 tables" in page and "left the policy" not in page


def test_a_healthy_table_of_one_small_file_has_no_bar(site: Site) -> None:
    small = replace(health(), num_files=1, small_files=1, small_file_share=1.0)
    site.store.save(assessment(health=small))
    assert "Share of small files" not in site.get("/").text
    site.store.save(assessment(health=replace(small, num_files=200, small_files=200)))
    assert "Share of small files" in site.get("/").text


def test_a_plan_that_the_policy_does_not_request_is_shown_with_its_reason(site: Site) -> None:
    site.store.save(*waiting("orders"))
    entry = site.store.find_by_name("orders")
    assert isinstance(entry, AssessmentEntry)
    link = "/dags/delta_manual/runs/manual__1/tasks/one_table.approve/mapped/0"
    plan = replace(entry.pending[0], requested=True, link=link, reason="requested manually")
    site.store.save(assessment("orders", operations=()))
    site.store.open_question(plan)
    for path in ("/", "/table?name=orders", "/approvals"):
        page = site.get(path)
        assert page.status_code == 200
        assert "requested manually" in page.text or path.startswith("/table")


@pytest.mark.parametrize(
    "column",
    [
        "version",
        "commits",
        "log-bytes",
        "files",
        "small-files",
        "tombstones",
        "reclaimable",
        "held",
    ],
)
def test_unknown_values_are_sorted_last(
    lake: Callable[[str], list[str]], site: Site, column: str
) -> None:
    from delta_maintenance_airflow.health_page.listing import COLUMNS
    from delta_maintenance_airflow.health_page.rows import build_rows

    rows = {row.name: row for row in build_rows(site.store.load_all(), PolicyFile(None).tables())}
    up, down = lake(f"sort={column}"), lake(f"sort={column}&order=desc")
    for names, sign in ((up, 1), (down, -1)):
        values = [COLUMNS[column](rows[name]) for name in names]
        known = [value * sign for value in values if value is not None]
        assert known == sorted(known)
        assert None in values
        assert all(value is None for value in values[len(known) :])


@pytest.mark.parametrize(
    "column", ["name", "status", "checkpoint-kind", "checkpoint-at", "protocol", "maintained"]
)
def test_every_other_column_can_be_sorted(lake: Callable[[str], list[str]], column: str) -> None:
    assert sorted(lake(f"sort={column}")) == sorted(lake(f"sort={column}&order=desc"))
    assert lake(f"sort={column}") != lake(f"sort={column}&order=desc")
    assert len(lake("sort=no-such-column")) == 24


def test_many_tables_come_in_pages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from delta_maintenance_airflow.health_page import listing

    monkeypatch.setattr(listing, "PAGE_SIZE", 10)
    site.policy.write_text("version: 1\ntables: [{pattern: 's3://lake/**'}]\n")
    fill(site.store, 24)
    seen: list[str] = []
    for page in (1, 2, 3):
        text = site.get(f"/?sort=name&page={page}").text
        assert f"Page {page} of 3" in text
        seen += names_of(site, f"sort=name&page={page}")
    assert len(seen) == len(set(seen)) == 24
    assert "Page 3 of 3" in site.get("/?page=99").text
    assert site.get("/?page=0").status_code == 422


def test_further_columns_are_shown_on_demand(lake: Callable[[str], list[str]], site: Site) -> None:
    def headings(query: str) -> list[str]:
        text = site.get(f"/?{query}").text
        return re.findall(r'<th scope="col".*?>\s*<a [^>]*>(.*?)</a>', text)

    assert len(lake("columns=all")) == 24
    few = headings("")
    assert few == [
        "Table",
        "Status",
        "To replay",
        "Checkpoint",
        "Files",
        "Small",
        "To reclaim",
        "Held by",
        "Last maintenance",
        "Assessed",
    ]
    every = headings("columns=all")
    assert set(few) < set(every) and len(every) == 16
    # A column by which the list is sorted is visible.
    assert "Tombstones" in headings("sort=tombstones")
    cells = re.findall(r"<tr>\s*<th scope=\"row\">.*?</tr>", site.get("/?columns=all").text, re.S)
    # A row with a problem has no numbers.
    assert {cell.count("<td") for cell in cells if "colspan" not in cell} == {15}
    assert "columns=all" in site.get("/?columns=all&q=gold").text


def test_airflow_finds_the_plugin_by_its_entry_point() -> None:
    from importlib.metadata import entry_points

    (entry,) = [each for each in entry_points(group="airflow.plugins") if "delta" in each.name]
    assert entry.load() is DeltaMaintenancePlugin
    (view,) = DeltaMaintenancePlugin.external_views
    assert view["href"] == f"{URL_PREFIX[1:]}/"


def test_loading_the_plugin_loads_no_web_framework_and_no_library() -> None:
    import subprocess
    import sys

    code = (
        "import json, sys, airflow.plugins_manager; before = set(sys.modules)\n"
        "import delta_maintenance_airflow.plugin\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # Which of them Airflow has loaded already depends on its version.
    assert set(json.loads(run.stdout.splitlines()[-1])) <= {
        "airflow._shared.listeners",
        "airflow.listeners",
        "delta_maintenance",
        "delta_maintenance.dependencies",
        "delta_maintenance.lazy",
        "delta_maintenance_airflow",
        "delta_maintenance_airflow.plugin",
        "delta_maintenance_airflow.settings",
    }


@pytest.mark.parametrize("status", ["planned", "needs-approval"])
def test_a_plan_is_no_maintenance(site: Site, status: Literal["planned", "needs-approval"]) -> None:
    ran = run_result()
    plans = tuple(replace(outcome, status=status) for outcome in ran.outcomes)
    site.store.save(assessment(), ran, link="/dags/d/runs/maintained")
    planned = replace(
        ran,
        status="planned" if status == "planned" else "blocked",
        started_at=NOW - timedelta(minutes=2),
        ended_at=NOW - timedelta(minutes=1),
        outcomes=plans,
    )
    site.store.save(assessment(), planned, link="/dags/d/runs/planned")
    _, _, cell = site.get("/?q=orders").text.partition('<td class="last">')
    cell, _, _ = cell.partition("</td>")
    assert words(cell) == "done 1 h ago checkpoint" and "/dags/d/runs/maintained" in cell
