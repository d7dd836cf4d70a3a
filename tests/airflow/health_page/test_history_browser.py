"""The history in a browser, on a running API server and a ledger.

`DELTA_MAINTENANCE_SCREENSHOTS=docs/images` keeps the pictures that the documentation shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from delta_maintenance.ledger import LedgerTable
from delta_maintenance.policies import AssessmentEntry
from delta_maintenance.storage import open_store
from tests.support.orchestrators.contrast import poor_contrast
from tests.support.orchestrators.health_server import (
    Server,
    airflow_server,
    framed,
    picture,
    visitor,
)
from tests.support.servers.browser import open_browser
from tests.support.tables.assessed_tables import assessment, fill, health, waiting
from tests.support.tables.ledger_rows import append, some_rows

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = '<img src=x onerror="document.title=1"></script><script>document.title=1</script>'
POLICY = """\
version: 1
ledger: {folder}/ledger
prices: {{currency: EUR, requests: {{write: 5, list: 5, read: 0.4}}, cpu_hour: 0.04}}
tables:
  - {{name: bronze, pattern: 's3://lake/bronze/**', owner: ingestion}}
  - {{name: silver, pattern: 's3://lake/silver/**', owner: platform}}
  - {{name: gold, pattern: 's3://lake/gold/**', owner: finance}}
"""
SIZES = [(1440, 900), (390, 844)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("airflow")
    with airflow_server(home, policy=POLICY.format(folder=home)) as running:
        now = datetime.now(UTC)
        fill(running.store, 240)
        for seed, name in enumerate(("returns", "stores")):
            planned, run = waiting(
                name, seed=seed, files=5_400 << seed, bytes=216 << 30, listed=30_000, planned_at=now
            )
            uri = f"s3://lake/gold/{name}"
            planned, run = replace(planned, uri=uri, assessed_at=now), replace(run, uri=uri)
            running.store.save(planned, run, link="/dags/d/runs/r")
        few: dict[str, Any] = {"small_files": 12, "small_file_share": 0.1, "reclaimable_bytes": 0}
        troubled: dict[str, dict[str, Any]] = {
            "clicks_raw": {"checkpoint_version": None, "commits_since_checkpoint": 2_412},
            "sessions_raw": {"commits_since_checkpoint": 731},
            "events_raw": {"unreported_commits": 9},
            "payments_raw": {"bytes_to_open": 640 << 20, **few},
            "carts": {"deleted_rows_share": 0.31},
            "returns_raw": {**few, "reclaimable_bytes": 3 << 40},
            "logins": {"expired_log_files": 41_208, **few},
        }
        for name, changes in troubled.items():
            uri = f"s3://lake/bronze/{name}"
            running.store.save(
                assessment(name, uri=uri, assessed_at=now, health=health(uri, **changes))
            )
        unlisted = assessment("s3://lake/raw/**", status="failed", health=None, operations=())
        told = "the store turns the credentials away; correct them"
        running.store.save(replace(unlisted, subject="pattern", problem=f"table s3://lake: {told}"))
        for each in running.store.load_all()[6:]:
            # Few of so many tables fail at the same time.
            if isinstance(each, AssessmentEntry) and each.assessment.status == "failed":
                at = each.assessment
                if at.subject == "table":
                    calm = assessment(
                        at.name, uri=at.uri, seed=1, operations=(), status="nothing-due"
                    )
                    running.store.save(calm)
        tables = [
            (each.name, each.assessment.uri)
            for each in running.store.load_all()
            if isinstance(each, AssessmentEntry) and each.assessment.subject == "table"
        ]
        ledger = LedgerTable(open_store(f"{home}/ledger"))
        append(ledger, some_rows(tables, 20_000, now=now - timedelta(minutes=7)), deliveries=3)
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def visit_history(page: Page, server: Server, query: str = "") -> None:
    """Opens the page, and waits for the ledger: the page loads itself again until it is read."""
    page.goto(f"{server.address}/delta-maintenance/history{query}")
    page.get_by_text("From the ledger, as of").wait_for()


def test_the_list_leads_to_the_history_and_to_the_tables_of_an_anomaly(
    server: Server, browser: Browser
) -> None:
    with visitor(browser, server) as page:
        page.goto(f"{server.address}/plugin/delta-tables")
        frame = framed(page)
        frame.get_by_role("link", name="History", exact=True).click()
        frame.get_by_text("From the ledger, as of").wait_for()
        frame.get_by_role("link", name="Delta tables").click()
        anomaly = frame.locator(".tiers a", has_text="No recent checkpoint")
        number = int(anomaly.inner_text().rpartition(" ")[2])
        anomaly.click()
        frame.get_by_role("link", name="No recent checkpoint ×").wait_for()
        assert frame.locator("a.name").count() == number > 0
        frame.get_by_role("link", name="No recent checkpoint ×").click()
        frame.wait_for_selector(".pages")
        assert frame.locator("a.name").count() == 50
        with page.expect_download() as started:
            frame.get_by_role("link", name="JSON").click()
        rows = json.loads(Path(started.value.path()).read_text())
        assert started.value.suggested_filename == "tables.json" and len(rows) > 50


def test_what_is_shown_can_be_downloaded_within_airflows_frame(
    server: Server, browser: Browser
) -> None:
    with visitor(browser, server) as page:
        visit_history(page, server, "?outcome=failed&q=gold")
        shown = page.locator("#ran ~ * .outcome, section:has(#ran) .outcome").count()
        page.goto(f"{server.address}/plugin/delta-tables")
        frame = framed(page)
        frame.goto(f"{server.address}/delta-maintenance/history?outcome=failed&q=gold#ran")
        with page.expect_download() as started:
            frame.locator("section:has(#ran)").get_by_role("link", name="JSON").click()
        rows = json.loads(Path(started.value.path()).read_text())
        assert started.value.suggested_filename == "history-ran.json"
        assert len(rows) == shown > 0
        assert {row["outcome"] for row in rows} == {"failed"}
        assert {row["table"].partition("/")[0] for row in rows} <= {"gold", "returns", "stores"}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=["desktop", "phone"])
def test_everything_is_in_sight_in_both_themes(
    server: Server, browser: Browser, theme: str, size: tuple[int, int]
) -> None:
    width, height = size
    kind = "-phone" if width < 700 else ""
    with visitor(browser, server, theme=theme) as page:
        page.set_viewport_size({"width": width, "height": height})
        visit_history(page, server)
        assert page.locator(".drawing svg").count() == 5
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for part in page.locator(".scroll").all():
            assert part.evaluate("it => it.scrollWidth - it.clientWidth") <= 0
        assert poor_contrast(page) == []
        picture(page, f"health-history-all{kind}-{theme}", full_page=True)
        picture(page, f"health-history{kind}-{theme}")
        page.locator("#most").evaluate("it => it.scrollIntoView()")
        picture(page, f"health-history-trends{kind}-{theme}")
        page.goto(f"{server.address}/delta-maintenance/table?name=gold/orders_0008")
        section = page.locator("section", has=page.get_by_role("heading", name="90 days"))
        assert section.locator(".drawing svg").count() >= 4
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert poor_contrast(page) == []
        section.scroll_into_view_if_needed()
        picture(page, f"health-history-table{kind}-{theme}", full_page=True)


def test_the_keyboard_reaches_every_part_in_order(server: Server, browser: Browser) -> None:
    with visitor(browser, server) as page:
        visit_history(page, server)
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        assert page.locator(".skip").bounding_box()["x"] >= 0
        tops, reached = [], []
        for _ in range(400):
            page.keyboard.press("Tab")
            found = page.evaluate(
                """() => {
                    const it = document.activeElement;
                    const box = it.getBoundingClientRect();
                    const part = it.closest("section")?.querySelector("h2")?.id ?? "";
                    const outline = getComputedStyle(it).outlineStyle;
                    return [it.tagName, part, box.top + scrollY, outline];
                }"""
            )
            if found[0] == "BODY":
                break
            assert found[3] != "none", f"no focus is visible on {found}"
            if not reached or reached[-1] != found[1]:
                reached.append(found[1])
                tops.append(found[2])
        assert reached == ["", "most", "trends", "ran"]
        assert tops == sorted(tops)
        page.locator("figure summary").first.press("Enter")
        assert page.locator("figure table").first.is_visible()


def test_untrusted_texts_run_no_script(server: Server, browser: Browser) -> None:
    with visitor(browser, server) as page:
        hostile = assessment(
            HOSTILE, uri="s3://lake/gold/hostile", health=health(small_files=10**9)
        )
        server.store.save(hostile)
        visit_history(page, server)
        assert HOSTILE in page.locator("section:has(#most)").inner_text()
        assert page.locator("img").count() == 0
        assert page.title() != "1"
