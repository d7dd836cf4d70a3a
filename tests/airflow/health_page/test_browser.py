"""The health page in a browser, within the pages of a running API server.

`DELTA_MAINTENANCE_SCREENSHOTS=docs/images` keeps the pictures that the documentation shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from delta_maintenance.operations.core import Freed
from tests.support.hostile.attacking_site import attacking_site
from tests.support.orchestrators.contrast import poor_contrast
from tests.support.orchestrators.health_server import (
    Server,
    airflow_server,
    framed,
    picture,
    visitor,
)
from tests.support.orchestrators.live_filter import type_during_an_answer
from tests.support.servers.browser import open_browser
from tests.support.servers.loopback import Reply, Request, serve
from tests.support.tables.assessed_tables import (
    assessment,
    deferred,
    fill,
    health,
    held,
    run_result,
    waiting,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = '<img src=x onerror="document.title=1"></script><script>document.title=1</script>'
BROKEN = "/table?name=bronze/payments_0003"
POLICY = """\
version: 1
tables:
  - {name: lake, pattern: 's3://lake/**', owner: platform}
  - {name: finance/ledger, uri: 's3://finance/ledger', owner: finance, tags: [gold]}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with airflow_server(tmp_path_factory.mktemp("airflow"), policy=POLICY) as running:
        store = running.store
        fill(store, 104)
        now = datetime.now(UTC)
        for hours in (9, 6, 1):
            run = run_result(started_at=now - timedelta(hours=hours), ended_at=now)
            before = assessment(health=health(bytes_to_open=700 << 20, num_files=90_000))
            freed = Freed(deleted_bytes=hours << 32, state="freed", why="it keeps nothing")
            if hours == 1:
                freed = replace(freed, state="never", why="versions are kept without a rule")
            outcome = replace(run.outcomes[0], freed=freed)
            run = replace(
                run, outcomes=(outcome, *run.outcomes[1:]), before=before, after=assessment()
            )
            orders = assessment("orders", assessed_at=now, held=held(4))
            store.save(orders, run, link="/dags/d/runs/r")
        for seed, name in enumerate(("sales/returns", "sales/stores")):
            plan = {"files": 5_400 << seed, "bytes": 216 << 30, "listed": 30_000, "planned_at": now}
            store.save(*waiting(name, seed=seed, **plan), link="/dags/d/runs/r")
        unlisted = assessment("s3://lake/**", status="failed", health=None, operations=())
        told = "the store turns the credentials away; correct them"
        store.save(replace(unlisted, subject="pattern", problem=f"table s3://lake: {told}"))
        store.save(deferred("returns", "optimize", "checkpoint", at=now))
        store.save(deferred("refunds", "optimize", at=now))
        hostile = assessment(HOSTILE, uri="s3://elsewhere/hostile")
        store.save(replace(hostile, status="blocked"))
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def test_airflows_own_pages_link_to_it(server: Server, browser: Browser) -> None:
    with visitor(browser, server) as page:
        page.goto(server.address)
        page.get_by_text("Browse", exact=True).first.click()
        page.get_by_text("Delta tables").first.click()
        page.wait_for_url("**/plugin/delta-tables**")
        frame = framed(page)
        assert frame.locator("h1").inner_text() == "Delta tables"
        assert frame.locator(".tables tbody tr").count() == 50
        # The pages can be opened from Airflow's page, and their addresses can be shared.
        frame.locator("a.name").nth(40).click()
        frame.wait_for_selector("h1 .chip")
        page.wait_for_url(re.compile("/plugin/delta-tables/.*table"))
        page.reload()
        framed(page).wait_for_selector("h1 .chip")


def test_the_page_requires_signing_in(server: Server, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    response = page.goto(f"{server.address}/delta-maintenance/")
    assert response is not None and response.status == 401
    assert "Please sign in" in page.inner_text("body")
    assert page.evaluate("getComputedStyle(document.querySelector('.button')).cursor") == "pointer"
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_tables_are_found_by_typing_sorting_and_choosing(
    server: Server, browser: Browser, theme: str
) -> None:
    with visitor(browser, server, theme=theme) as page:
        page.goto(f"{server.address}/delta-maintenance/?q=s3://lake&sort=commits&order=desc")
        picture(page, f"health-tables-{theme}")
        page.goto(f"{server.address}/delta-maintenance/")
        picture(page, f"health-overview-{theme}")
        search = page.get_by_role("searchbox")
        type_during_an_answer(page, "gold", " clicks")
        assert search.evaluate("field => document.activeElement === field")
        names = page.locator("a.name").all_inner_texts()
        assert names and all("gold/clicks" in name for name in names)
        search.fill("")
        page.wait_for_url(lambda url: "q=" not in url)
        page.get_by_role("link", name="To replay", exact=True).click()
        page.wait_for_url("**sort=commits**")
        shown = page.locator("tbody tr td:nth-child(3)").all_inner_texts()
        numbers = [int(text.replace(",", "")) for text in shown if text.replace(",", "").isdigit()]
        assert numbers == sorted(numbers, reverse=True)
        page.locator(".tile.due").click()
        page.wait_for_url("**status=due**")
        assert page.locator("tbody .chip.failed").count() == 0
        page.get_by_label("Operation that is due").select_option("checkpoint")
        page.wait_for_url("**operation=checkpoint**")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", background))) < 128) == (theme == "dark")


def test_the_theme_is_the_one_chosen_in_airflow(server: Server, browser: Browser) -> None:
    with visitor(browser, server, theme="light") as page:
        page.goto(f"{server.address}/delta-maintenance/")
        page.evaluate("localStorage.setItem('theme', 'dark')")
        page.reload()
        assert page.get_attribute("html", "data-theme") == "dark"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_charts_of_a_table_are_drawn(server: Server, browser: Browser, theme: str) -> None:
    with visitor(browser, server, theme=theme) as page:
        page.goto(f"{server.address}/delta-maintenance/table?name=orders")
        drawings = page.locator(".drawing svg")
        assert drawings.count() == 3
        panel = page.evaluate("getComputedStyle(document.querySelector('figure')).backgroundColor")
        for number in range(3):
            colours = drawings.nth(number).evaluate(
                """svg => [...svg.querySelectorAll('circle, .bar rect, .series path, text')].map(
                    mark => getComputedStyle(mark)[mark.matches('path') ? 'stroke' : 'fill']
                )"""
            )
            assert len(colours) > 10 and panel not in colours
            assert drawings.nth(number).bounding_box()["height"] > 150
        tips = drawings.nth(1).locator("title").all_text_contents()
        assert any(" – " in tip and "B" in tip for tip in tips), tips[-3:]
        page.locator("summary").first.press("Enter")
        assert page.locator("figure table").first.is_visible()
        page.locator("summary").first.press("Enter")
        page.locator("summary").first.evaluate("it => it.blur()")
        picture(page, f"health-table-{theme}", full_page=True)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast_in_both_themes(
    server: Server, browser: Browser, theme: str
) -> None:
    """A contrast of at least 4.5 to 1, as required by WCAG 2.2."""
    with visitor(browser, server, theme=theme) as page:
        for path in (
            *("/", "/table?name=orders", "/approvals"),
            *(BROKEN, "/run?name=orders&operation=vacuum"),
        ):
            page.goto(f"{server.address}/delta-maintenance{path}")
            assert poor_contrast(page) == [], path


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_a_table_that_waits_for_the_budget_says_why_and_until_when(
    server: Server, browser: Browser, theme: str, width: int
) -> None:
    with visitor(browser, server, theme=theme) as page:
        page.set_viewport_size({"width": width, "height": 900})
        for path in ("/?status=deferred", "/?q=re&operation=optimize", "/table?name=returns"):
            page.goto(f"{server.address}/delta-maintenance{path}")
            assert "optimize: deferred" in page.inner_text("main") or "table" in path
            assert "more gain for their cost" in page.inner_text("main")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert poor_contrast(page) == [], path
            name = "table" if "table" in path else "list" if "status" in path else "operation"
            picture(page, f"budget-{name}-{width}-{theme}", full_page=True)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_a_card_for_each_table(server: Server, browser: Browser, theme: str) -> None:
    with visitor(browser, server, theme=theme) as page:
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(f"{server.address}/delta-maintenance/")
        assert not page.locator(".tables thead").is_visible()
        cards = page.locator(".tables tbody tr")
        heights = sorted(card.bounding_box()["height"] for card in cards.all())
        # One of them says why all that is due waits for the budget.
        assert len(heights) == 50 and heights[-2] < 130 and heights[-1] < 170
        text = cards.filter(has=page.locator("a.name", has_text="gold/clicks")).first.inner_text()
        assert re.search(r"[\d,]+ files, [\d.]+ [GT]iB", text), text
        page.get_by_label("Order").select_option("name")
        page.wait_for_url("**sort=name**")
        names = page.locator("a.name").all_inner_texts()
        assert names == sorted(names, key=str.casefold)
        for path in ("/", "/table?name=orders", BROKEN, "/run?name=orders&operation=vacuum"):
            page.goto(f"{server.address}/delta-maintenance{path}")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 390, f"{path} is {wide} pixels wide"
            for part in page.locator(".scroll").all():
                hidden = part.evaluate("it => it.scrollWidth - it.clientWidth")
                assert hidden <= 0, f"{hidden} pixels of {part} are out of sight"
            name = path.strip("/").partition("?")[0] or "tables"
            name = "broken" if path == BROKEN else name
            picture(page, f"health-phone-{name}-{theme}", full_page=name != "tables")


def test_no_column_is_cut_off_within_airflows_frame(server: Server, browser: Browser) -> None:
    with visitor(browser, server) as page:
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(f"{server.address}/plugin/delta-tables")
        frame = framed(page)
        frame.wait_for_selector(".tables")
        assert frame.evaluate("innerWidth") < 1400, "Airflow's side bar takes a part"
        hidden = "it => it.scrollWidth - it.clientWidth"
        assert frame.locator(".scroll.tall").evaluate(hidden) <= 0
        frame.get_by_role("link", name="All columns").click()
        frame.wait_for_selector(".tables.all")
        assert frame.locator(".scroll.tall").evaluate(hidden) > 0, "all of them are wider"


def test_the_keyboard_reaches_everything(server: Server, browser: Browser) -> None:
    with visitor(browser, server) as page:
        page.goto(f"{server.address}/delta-maintenance/?q=orders")
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        assert page.locator(".skip").bounding_box()["x"] >= 0
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.type") == "search"
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement === document.body"):
                break
            reached.add(page.evaluate("document.activeElement.innerText"))
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none"
        assert {"Table", "To replay", "orders"} <= reached


def test_untrusted_names_run_no_script(server: Server, browser: Browser) -> None:
    with visitor(browser, server) as page:
        page.goto(f"{server.address}/delta-maintenance/?left=1&q=img")
        page.locator("a.name").click()
        page.wait_for_selector("figure")
        assert HOSTILE in page.inner_text("h1")
        page.get_by_role("link", name="Run an operation…").click()
        page.wait_for_selector("#operation")
        assert page.inner_text(".crumbs").endswith(HOSTILE)
        assert page.title() != "1"
        assert page.locator("img").count() == 0


def test_an_empty_folder_of_assessments_shows_instructions(
    server: Server, browser: Browser, tmp_path: Path
) -> None:
    folder = Path(server.store.uri)
    away = folder.rename(tmp_path / "away")
    try:
        with visitor(browser, server) as page:
            page.goto(f"{server.address}/delta-maintenance/?status=due")
            assert "never assessed" in page.inner_text("body")
            assert page.locator("tbody tr").count() == 0
    finally:
        away.rename(folder)


@pytest.mark.parametrize("same_site", [False, True], ids=["another host", "another port"])
def test_a_hostile_site_can_neither_start_nor_read_anything(
    server: Server, browser: Browser, same_site: bool
) -> None:
    before = server.ask("/dags/delta_manual/dagRuns")["total_entries"]
    paused = server.ask("/dags/delta_manual")["is_paused"]
    context = browser.new_context()
    # As Airflow sets it.
    cookie = {"name": "_token", "value": server.token, "url": server.address, "sameSite": "Lax"}
    context.add_cookies([cookie])
    with attacking_site(server.address, same_site=same_site) as address:
        page = context.new_page()
        page.goto(address)
        page.wait_for_function("window.readAnswers !== undefined", timeout=120_000)
        assert page.evaluate("readAnswers") == [""] * 7
        frames = [frame.url for frame in page.frames if frame.name != "sink"]
        assert len(frames) == 2 and not frames[1].startswith(server.address)
    context.close()
    assert server.ask("/dags/delta_manual/dagRuns")["total_entries"] == before
    assert server.ask("/dags/delta_manual")["is_paused"] == paused


def test_an_internal_address_is_shown_and_never_requested(server: Server, browser: Browser) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(request.target)
        return Reply(status=200, body=b"inner")

    with serve(answer) as inner:
        uri = f"{inner}/latest/meta-data"
        server.store.save(replace(assessment("inner", uri=uri), status="due"))
        pages = ["/?left=1&q=inner", "/table?name=inner", "/run?name=inner&operation=vacuum"]
        with visitor(browser, server) as page:
            for path in pages:
                page.goto(f"{server.address}/delta-maintenance{path}")
                assert "inner" in page.inner_text("main")
            assert page.get_attribute("#run", "data-uri") == uri
            assert page.locator(f'[href^="{inner}"], [src^="{inner}"]').count() == 0
        # A link cannot fill in an address: the form accepts only known tables.
        with visitor(browser, server, refused=404) as page:
            page.goto(f"{server.address}/delta-maintenance/run?name={uri}/x&table_uri={uri}")
            assert page.locator("#run").count() == 0
    assert asked == []
