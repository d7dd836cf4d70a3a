"""The history, its export and that of the list, and a ledger that is absent, broken or growing."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import pyarrow as pa
import pytest
from markupsafe import escape

from delta_maintenance.errors import StorageError
from delta_maintenance.ledger import LedgerTable
from delta_maintenance.ledger.rows import SCHEMA
from delta_maintenance.storage import open_store
from delta_maintenance_airflow.health_page import history as page_history
from delta_maintenance_airflow.health_page.history import KeptHistory, LedgerLook
from delta_maintenance_airflow.health_page.known_tables import PolicyFile
from tests.support.orchestrators.health_site import POLICY, Elements, Site, words
from tests.support.tables.assessed_tables import NOW, assessment, health, held, waiting
from tests.support.tables.ledger_rows import append, some_rows

# Of Airflow's own imports, which come with the first of these tests.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")

ORDERS = ("orders", "s3://lake/sales/orders")
NAMES = {"critical": "orders", "old-checkpoint": "orders", "healthy": "calm", "unknown": "never"}
HOSTILE = '<img src=x onerror="alert(1)">'


@pytest.fixture
def ledger(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerTable:
    """The ledger of the policy, which does not exist yet. Visits wait for it to be read."""
    monkeypatch.setattr(page_history, "PATIENCE_SECONDS", 60.0)
    site.policy.write_text(f"{POLICY}ledger: {tmp_path}/ledger\nprices: {{cpu_hour: 1000}}\n")
    return LedgerTable(open_store(str(tmp_path / "ledger")))


def exported(site: Site, path: str) -> list[dict[str, Any]]:
    """A file as JSON, which the one as CSV has to equal."""
    answer = site.get(path.format(form="json"))
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("application/json")
    rows: list[dict[str, Any]] = json.loads(answer.text)
    text = site.get(path.format(form="csv")).text
    lines = [*csv.DictReader(io.StringIO(text, newline=""))]
    plain = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
    assert [{k: v.removeprefix("'") for k, v in line.items()} for line in lines] == plain
    return rows


def exported_part(site: Site, part: str, query: str = "") -> list[dict[str, Any]]:
    return exported(site, f"/history/export.{{form}}?part={part}{query}")


def test_tiers_and_anomalies_of_the_list_lead_to_their_tables(site: Site) -> None:
    site.store.save(assessment(health=health(commits_since_checkpoint=501)))
    calm = health("s3://lake/bronze/calm", small_files=0, small_file_share=0.0, deleted_rows=0)
    calm = replace(calm, reclaimable_bytes=0, deleted_rows_share=0.0)
    site.store.save(assessment("calm", uri="s3://lake/bronze/calm", health=calm))
    page = site.get("/").text
    assert "1 critical 1 healthy 1 not assessed No recent checkpoint 1" in words(page)
    links = [at["href"] or "" for tag, at in Elements.of(page).started if tag == "a"]
    shown = {}
    for link in (link for link in links if "anomaly=" in link):
        query = link.partition("?")[2]
        names = re.findall(r'<a class="name"[^>]*>(.*?)</a>', site.get(f"/?{query}").text)
        shown[parse_qs(query)["anomaly"][0]] = names
    assert shown == {name: [table] for name, table in NAMES.items()}
    assert 'name="anomaly" value="critical"' in site.get("/?anomaly=critical").text
    assert "No table matches" in site.get("/?anomaly=no-such").text


def test_the_list_is_exported_with_what_is_wrong_and_what_waits(site: Site) -> None:
    broken = assessment("gone", uri="s3://lake/bronze/gone", status="failed", health=None)
    broken = replace(broken, operations=(), problem="table gone: version 3 is missing; restore it")
    site.store.save(broken, link="/dags/d/runs/r")
    site.store.save(*waiting("orders"))
    hours = assessment("hours", uri="s3://lake/bronze/hours")
    opening = NOW + timedelta(hours=5)
    blocked = replace(hours.operations[1], status="blocked", reason="not now", due_at=opening)
    site.store.save(replace(hours, status="blocked", operations=(blocked,), held=held(2)))
    tables = {row["table"]: row for row in exported(site, "/export.{form}")}
    assert tables.keys() == {"gone", "orders", "hours", "never"}
    gone = tables["gone"]
    assert (gone["status"], gone["tier"], gone["anomaly"]) == ("failed", "critical", "broken")
    assert (gone["problem"], gone["link"]) == (broken.problem, "/dags/d/runs/r")
    assert (tables["orders"]["status"], tables["orders"]["needs_approval"]) == (
        "needs-approval",
        "vacuum",
    )
    row = tables["hours"]
    assert (row["blocked"], row["next_at"]) == ("vacuum", opening.isoformat())
    assert "audit-2026" in row["held_by"] and row["held_bytes"] > 0
    assert tables["never"]["tier"] == "unknown"
    names = [row["table"] for row in exported(site, "/export.{form}?anomaly=broken&q=lake")]
    assert names == ["gone"]
    started = Elements.of(site.get("/?status=blocked").text).started
    links = [at["href"] or "" for tag, at in started if tag == "a"]
    (link,) = [link for link in links if "/export.csv" in link]
    assert [
        row["table"] for row in exported(site, f"/export.{{form}}?{link.partition('?')[2]}")
    ] == ["hours"]


def test_a_policy_without_a_ledger_says_how_to_get_one(site: Site) -> None:
    site.store.save(assessment())
    for path in ("/history", "/table?name=orders"):
        text = words(site.get(path).text)
        assert "names no ledger" in text and "ledger: s3://lake/_maintenance/ledger" in text
        assert "What ran" not in text.replace("90 days What ran", "")
    assert exported_part(site, "ran") == exported_part(site, "trends") == []


def test_a_ledger_that_does_not_exist_yet_is_no_problem(site: Site, ledger: LedgerTable) -> None:
    assert "does not exist yet" in words(site.get("/history").text)
    assert "does not exist yet" in words(site.get("/table?name=never").text)


def test_an_empty_ledger_is_shown_as_one(site: Site, ledger: LedgerTable) -> None:
    append(ledger, some_rows([ORDERS], 3, now=NOW - timedelta(days=200), days=1))
    text = words(site.get("/history").text)
    assert "no operation ran in 90 days" in text and "Nothing like this ran" in text
    assert "Nothing ran on this table" in words(site.get("/table?name=never").text)


def test_an_unreadable_ledger_costs_one_line(
    site: Site, ledger: LedgerTable, tmp_path: Path
) -> None:
    append(ledger, some_rows([ORDERS], 50, now=NOW))
    for file in (tmp_path / "ledger").glob("month=*/*.parquet"):
        file.write_bytes(b"no Parquet")
    site.store.save(assessment())
    for path in ("/history", "/table?name=orders"):
        page = site.get(path)
        assert page.status_code == 200
        assert page.text.count("The ledger cannot be read") == 1
    assert exported_part(site, "ran") == []


def test_what_ran_is_filtered_linked_and_exported(site: Site, ledger: LedgerTable) -> None:
    tables = [ORDERS, ("found", "s3://lake/bronze/found")]
    for name, uri in tables:
        site.store.save(assessment(name, uri=uri))
    rows = some_rows(tables, 400, now=NOW, days=80)
    append(ledger, rows)
    failed = [row for row in rows.to_pylist() if row["outcome"] == "failed"]
    page = site.get("/history?outcome=failed&q=orders")
    shown = exported_part(site, "ran", "&outcome=failed&q=orders")
    of_orders = [row for row in failed if row["table_name"] == "orders"]
    assert sorted(row["at"] for row in shown) == sorted(
        row["started_at"].isoformat() for row in of_orders
    )
    assert {row["error"] for row in shown} == {row["error"] for row in of_orders}
    for row in shown:
        assert f'href="{row["link"]}"' in page.text and row["error"] in unescape(page.text)
    trend = exported_part(site, "trends", "&q=orders")
    every = exported_part(site, "trends")
    assert len(trend) == len(every) == 90
    assert 0 < sum(day["operations"] for day in trend) < sum(day["operations"] for day in every)
    text = words(site.get("/table?name=orders").text)
    assert "From the ledger, as of just now" in text and "More in the history" in text
    own = sum(row["table_name"] == "orders" for row in rows.to_pylist())
    assert f"The newest of {own:,} operations" in text


def test_texts_of_the_ledger_are_escaped_and_links_stay_within_airflow(
    site: Site, ledger: LedgerTable
) -> None:
    rows = some_rows([(HOSTILE, "s3://lake/bronze/x")], 3, now=NOW).to_pylist()
    for row in rows:
        row |= {"error": HOSTILE, "operation": HOSTILE, "outcome": HOSTILE, "done_by": HOSTILE}
        row["link"] = "javascript:alert(1)"
    append(ledger, pa.Table.from_pylist(rows, schema=SCHEMA))
    site.store.save(assessment(HOSTILE, uri="s3://lake/bronze/x"))
    for path in (
        "/history",
        f"/history?operation={quote(HOSTILE)}",
        f"/table?name={quote(HOSTILE)}",
    ):
        page = site.get(path).text
        assert escape(HOSTILE) in page
        tags = Elements.of(page).started
        assert not [tag for tag, _ in tags if tag in ("img", "iframe")]
        assert "javascript:" not in page and 'href="None"' not in page
        assert not [
            name for _, at in tags for name in at if name.startswith("on") or name == "style"
        ]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\uff1d", "\t", "\r"])
def test_no_cell_of_a_spreadsheet_is_a_formula(site: Site, ledger: LedgerTable, start: str) -> None:
    rows = some_rows([(f"{start}HYPERLINK(1)", "s3://lake/x")], 1, now=NOW)
    append(ledger, rows)
    text = site.get("/history/export.csv?part=ran").text
    (line,) = csv.DictReader(io.StringIO(text, newline=""))
    assert line["table"] == f"'{start}HYPERLINK(1)"
    assert float(line["seconds"]) > 0, "numbers stay numbers"


@pytest.mark.parametrize(
    "path", ["/history", "/history/export.csv", "/history/export.json", "/export.csv"]
)
def test_only_users_who_may_see_the_page_see_it_and_its_files(site: Site, path: str) -> None:
    site.store.save(assessment())
    assert site.get(path, role=None).status_code == 401
    assert site.get(path, role="none").status_code == 403
    assert site.get(path).status_code == 200
    assert site.get(path).headers["Cache-Control"] == "no-store"


def test_an_unknown_part_or_form_is_refused(site: Site) -> None:
    assert site.get("/history/export.csv?part=../policy").status_code == 404
    assert site.get("/export.xml").status_code in (404, 422)
    assert site.get("/history/export.xml").status_code in (404, 422)


def test_the_first_visit_does_not_wait_for_the_ledger(
    site: Site, ledger: LedgerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(ledger, some_rows([ORDERS], 20, now=NOW))
    begin, reading = threading.Event(), page_history.read_history

    def slow(*given: Any, **named: Any) -> Any:
        begin.wait(60)
        return reading(*given, **named)

    monkeypatch.setattr(page_history, "read_history", slow)
    monkeypatch.setattr(page_history, "PATIENCE_SECONDS", 0.0)
    first = site.get("/history")
    assert "is being read for the first time" in first.text
    assert first.headers["Refresh"] == "2", "browsers come again by themselves"
    assert site.get("/history/export.csv?part=ran").status_code == 503
    begin.set()
    monkeypatch.setattr(page_history, "PATIENCE_SECONDS", 60.0)
    later = site.get("/history")
    assert "From the ledger" in later.text and "Refresh" not in later.headers


class Clock:
    """Seconds that pass when a test says so."""

    seconds = 0.0


@pytest.fixture
def kept(
    tmp_path: Path,
) -> Iterator[tuple[Callable[[], LedgerLook], Clock, LedgerTable, list[str]]]:
    """Looks that wait for their end, the clock, the ledger, and what was read of it."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"version: 1\nledger: {tmp_path}/ledger\n")
    ledger = LedgerTable(open_store(str(tmp_path / "ledger")))
    asked: list[str] = []

    class Watched(LedgerTable):
        def version(self) -> int:
            asked.append("version")
            return super().version()

        def batches(self, *given: Any, **named: Any) -> Any:
            asked.append("rows")
            return super().batches(*given, **named)

    clock = Clock()
    history = KeptHistory(
        PolicyFile(str(policy)),
        lambda rule: Watched(open_store(rule.uri)),
        now=lambda: NOW,
        elapsed=lambda: clock.seconds,
    )

    def look() -> LedgerLook:
        history.look()
        running = history._running
        if running is not None:
            assert running.wait(60)
        return history.look()

    yield look, clock, ledger, asked


def test_rows_are_read_again_only_for_another_version(kept: Any) -> None:
    look, clock, ledger, asked = kept
    append(ledger, some_rows([ORDERS], 20, now=NOW, days=10))
    assert look().history.rows == 20
    assert asked == ["version", "rows"]
    look()
    assert asked == ["version", "rows"], "not even the version within some seconds"
    clock.seconds = page_history.CHECK_SECONDS
    look()
    assert asked == ["version", "rows", "version"]
    append(ledger, some_rows([ORDERS], 5, now=NOW, days=10, seed=1))
    clock.seconds = 2 * page_history.CHECK_SECONDS
    assert look().history.rows == 25


def test_an_earlier_reading_is_shown_while_the_ledger_cannot_be_read(
    kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, clock, ledger, _ = kept
    append(ledger, some_rows([ORDERS], 20, now=NOW, days=10))
    assert look().problem is None
    clock.seconds = 100.0

    def down(*given: Any, **named: Any) -> Any:
        raise StorageError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerTable, "version", down)
        found = look()
    assert "the store does not answer" in (found.problem or "") and found.history.rows == 20
    clock.seconds = 200.0
    assert look().problem is None, "it recovers"


def test_another_ledger_in_the_policy_replaces_the_history(kept: Any, tmp_path: Path) -> None:
    look, _, ledger, _ = kept
    append(ledger, some_rows([ORDERS], 20, now=NOW, days=10))
    assert look().history.rows == 20
    (tmp_path / "policy.yaml").write_text(f"version: 1\nledger: {tmp_path}/other-ledger\n")
    assert look().history is None, "the other one does not exist yet"


def test_rows_that_are_appended_while_it_is_read_are_found_later(
    kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, clock, ledger, _ = kept
    append(ledger, some_rows([ORDERS], 20, now=NOW, days=10))
    version = LedgerTable.version

    def appended_after(self: LedgerTable) -> int:
        found = version(self)
        monkeypatch.undo()
        append(ledger, some_rows([ORDERS], 5, now=NOW, days=10, seed=1))
        return found

    monkeypatch.setattr(LedgerTable, "version", appended_after)
    look()
    clock.seconds = 100.0
    assert look().history.rows == 25
