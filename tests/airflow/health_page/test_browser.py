"""The health page in a browser, within the pages of a running API server.

`DELTA_MAINTENANCE_SCREENSHOTS=docs/images` keeps the pictures that the documentation shows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from delta_maintenance.policies.assessments import AssessmentStore
from tests.support.hostile.attacking_site import attacking_site
from tests.support.orchestrators.health_server import (
    Server,
    eventually,
    framed,
    picture,
    signed_in,
    visitor,
)
from tests.support.orchestrators.live_filter import type_during_an_answer
from tests.support.servers.browser import open_browser
from tests.support.servers.loopback import Reply, Request, serve
from tests.support.servers.ports import free_port
from tests.support.tables.assessed_tables import assessment, fill, health, held, run_result, waiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = '<img src=x onerror="document.title=1"></script><script>document.title=1</script>'
DAGS = Path(__file__).resolve().parents[3] / "dags"
PREPARE = """
from tests.support.orchestrators.airflow_versions import DagBag, sync_bag_to_db
from airflow.models.dagbundle import DagBundleModel
from airflow.utils import db
from airflow.utils.session import create_session

db.initdb()
with create_session() as session:
    session.merge(DagBundleModel(name="dags-folder"))
sync_bag_to_db(DagBag(), "dags-folder", None)
"""
PARAMETERS = {
    "name": {"type": "string", "minLength": 1, "title": "<b>Name</b>"},
    "choice": {"enum": ["a", 2, None], "values_display": {"a": "An A"}},
    "number": {"type": ["integer", "null"], "minimum": 3},
    "share": {"type": "number"},
    "flag": {"type": "boolean", "description": "<i>raise</i>"},
    "lines": {"type": "array", "items": {"type": "string"}},
    "numbers": {"type": "array", "items": {"type": "integer"}},
    "thing": {"type": ["object", "null"]},
    "anything": {},
    "hidden": {"const": "constant"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("airflow")
    shutil.copytree(DAGS, home / "dags")
    (home / "passwords.json").write_text('{"somebody": "secret"}')
    (home / "policy.yaml").write_text(
        "version: 1\n"
        "tables:\n"
        "  - {name: lake, pattern: 's3://lake/**', owner: platform}\n"
        "  - {name: finance/ledger, uri: 's3://finance/ledger', owner: finance, tags: [gold]}\n"
    )
    port = free_port()
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "somebody:admin",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS": str(home / "assessments"),
        "AIRFLOW__DELTA_MAINTENANCE__POLICY": str(home / "policy.yaml"),
    }
    store = AssessmentStore(str(home / "assessments"))
    fill(store, 104)
    now = datetime.now(UTC)
    for hours in (9, 6, 1):
        run = run_result(started_at=now - timedelta(hours=hours), ended_at=now)
        before = assessment(health=health(bytes_to_open=700 << 20))
        outcome = replace(run.outcomes[0], result={"bytes": hours << 32})
        run = replace(run, outcomes=(outcome, *run.outcomes[1:]), before=before, after=assessment())
        store.save(assessment("orders", assessed_at=now, held=held(4)), run, link="/dags/d/runs/r")
    for seed, name in enumerate(("sales/returns", "sales/stores")):
        plan = {"files": 5_400 << seed, "bytes": 216 << 30, "listed": 30_000, "planned_at": now}
        store.save(*waiting(name, seed=seed, **plan), link="/dags/d/runs/r")
    unlisted = assessment("s3://lake/**", status="failed", health=None, operations=())
    told = "the store turns the credentials away; correct them"
    store.save(replace(unlisted, subject="pattern", problem=f"table s3://lake: {told}"))
    store.save(replace(assessment(HOSTILE, uri="s3://elsewhere/hostile"), status="blocked"))
    subprocess.run(
        [sys.executable, "-c", PREPARE],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
    )
    with (home / "api-server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "api-server"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        token = eventually(lambda: signed_in(address), process, home / "api-server.log")
        yield Server(address, store, token)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
        assert frame.locator(".tables tbody tr").count() == 100
        # The pages can be opened from Airflow's page, and their addresses can be shared.
        frame.locator("a.name").nth(70).click()
        frame.wait_for_selector(".drawing svg")
        page.wait_for_url(re.compile("/plugin/delta-tables/.*table"))
        page.reload()
        framed(page).wait_for_selector(".drawing svg")


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
        page.goto(f"{server.address}/delta-maintenance/?q=s3://lake&sort=tombstones&order=desc")
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
        page.get_by_role("link", name="Commits", exact=True).click()
        page.wait_for_url("**sort=commits**")
        shown = page.locator("tbody tr td:nth-child(4)").all_inner_texts()
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
        assert any("version" in tip or "KiB" in tip for tip in tips)
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
        for path in ("/", "/table?name=orders", "/approvals"):
            page.goto(f"{server.address}/delta-maintenance{path}")
            poor = page.evaluate(
                """() => {
                    const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
                    const over = (top, below) => {
                        const a = top[3] ?? 1;
                        return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a));
                    };
                    const light = (c) => {
                        const [r, g, b] = c.map((v) => {
                            const s = v / 255;
                            return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
                        });
                        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
                    };
                    const ground = (e) => {
                        const layers = [];
                        for (let at = e; at; at = at.parentElement)
                            layers.unshift(parse(getComputedStyle(at).backgroundColor));
                        return layers.reduce((below, top) => over(top, below), [255, 255, 255]);
                    };
                    const poor = [];
                    for (const e of document.querySelectorAll("main *")) {
                        const texts = [...e.childNodes].filter((n) => n.nodeType === 3);
                        const shown = texts.some((n) => n.data.trim());
                        if (!shown || !e.getClientRects().length || e.closest("svg")) continue;
                        const below = ground(e);
                        const text = over(parse(getComputedStyle(e).color), below);
                        const [a, b] = [light(text), light(below)].sort((x, y) => y - x);
                        const ratio = (a + 0.05) / (b + 0.05);
                        if (ratio < 4.5) poor.push(`${e.className}: ${ratio.toFixed(2)}`);
                    }
                    return [...new Set(poor)];
                }"""
            )
            assert poor == [], path


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_the_columns_that_matter(
    server: Server, browser: Browser, theme: str
) -> None:
    with visitor(browser, server, theme=theme) as page:
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(f"{server.address}/delta-maintenance/")
        heads = page.locator(".tables thead th:visible").all_inner_texts()
        assert [head.strip() for head in heads] == ["Table", "Status", "Last maintenance"]
        for path in ("/", "/table?name=orders", "/run?name=orders"):
            page.goto(f"{server.address}/delta-maintenance{path}")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 390, f"{path} is {wide} pixels wide"
            for part in page.locator(".scroll").all():
                hidden = part.evaluate("it => it.scrollWidth - it.clientWidth")
                assert hidden <= 0, f"{hidden} pixels of {part} are out of sight"
            name = path.strip("/").partition("?")[0] or "tables"
            picture(page, f"health-phone-{name}-{theme}", full_page=name != "tables")


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
        assert {"Table", "Commits", "orders"} <= reached


def test_untrusted_names_run_no_script(server: Server, browser: Browser) -> None:
    with visitor(browser, server) as page:
        page.goto(f"{server.address}/delta-maintenance/?left=1&q=img")
        page.locator("a.name").click()
        page.wait_for_selector(".drawing svg")
        assert HOSTILE in page.inner_text("h1")
        page.get_by_role("link", name="Run an operation…").click()
        page.wait_for_selector("#field-table_uri")
        assert page.inner_text(".crumbs").endswith(HOSTILE)
        assert page.title() != "1"
        assert page.locator("img").count() == 0


def test_a_button_leads_to_the_form_and_the_form_to_a_run(server: Server, browser: Browser) -> None:
    with visitor(browser, server) as page:
        page.goto(f"{server.address}/plugin/delta-tables")
        frame = framed(page)
        frame.get_by_role("searchbox").fill("orders")
        frame.get_by_role("button", name="Filter").click()
        frame.get_by_role("link", name="orders", exact=True).click()
        frame.get_by_role("row", name=re.compile("^vacuum")).get_by_role("link").click()
        frame.wait_for_selector("#field-table_uri")
        assert frame.input_value("#field-table_uri") == "s3://lake/sales/orders"
        assert frame.locator("#field-operation option:checked").inner_text().startswith("Vacuum")
        picture(page, "health-run")
        frame.fill("#field-options", '{"mode": "lite"')
        frame.get_by_role("button", name="Trigger").click()
        assert "not JSON" in frame.eval_on_selector("#field-options", "it => it.validationMessage")
        frame.fill("#field-options", '{"mode": "lite"}')
        frame.check("#field-plan_only")
        frame.get_by_role("button", name="Trigger").click()
        page.wait_for_url("**/dags/delta_manual/runs/**")
        page.get_by_text("one_table").first.wait_for()
    (run,) = server.ask("/dags/delta_manual/dagRuns")["dag_runs"]
    assert run["conf"] == {
        "operation": "vacuum",
        "table_uri": "s3://lake/sales/orders",
        "tables": [],
        "options": {"mode": "lite"},
        "plan_only": True,
    }
    assert server.ask("/dags/delta_manual")["is_paused"] is False


def test_every_kind_of_parameter_has_a_field(server: Server, browser: Browser) -> None:
    details = {
        "is_paused": False,
        "params": {
            name: {"value": None, "schema": schema, "description": schema.get("description")}
            for name, schema in PARAMETERS.items()
        },
    }
    with visitor(browser, server) as page:
        page.route("**/delta_manual/details", lambda route: route.fulfill(json=details))
        page.goto(f"{server.address}/delta-maintenance/run?name=orders")
        page.wait_for_selector("#field-name")
        assert page.locator("#fields b, #fields i, #field-hidden, #unpause").count() == 0
        assert page.locator("label").first.inner_text() == "<b>Name</b>"
        page.locator("summary").click()

        def configuration() -> Any:
            return json.loads(page.inner_text("#configuration pre"))

        assert configuration() == {
            "name": "",
            "choice": None,
            "number": None,
            "share": None,
            "flag": False,
            "lines": [],
            "numbers": None,
            "thing": None,
            "anything": None,
        }
        assert page.get_attribute("#field-number", "min") == "3"
        assert not page.eval_on_selector("#field-name", "field => field.checkValidity()")
        page.fill("#field-name", "x")
        page.select_option("#field-choice", label="An A")
        page.fill("#field-number", "7")
        page.fill("#field-share", "0.5")
        page.check("#field-flag")
        page.fill("#field-lines", " a \n\nb")
        page.fill("#field-numbers", "[1, 2]")
        page.fill("#field-thing", '{"a": {"b": 1}}')
        page.fill("#field-anything", "text")
        assert configuration() == {
            "name": "x",
            "choice": "a",
            "number": 7,
            "share": 0.5,
            "flag": True,
            "lines": ["a", "b"],
            "numbers": [1, 2],
            "thing": {"a": {"b": 1}},
            "anything": "text",
        }


def test_the_form_shows_what_airflow_refuses(server: Server, browser: Browser) -> None:
    with visitor(browser, server, refused=400) as page:
        page.goto(f"{server.address}/delta-maintenance/run?name=orders")
        page.wait_for_selector("#field-options")
        page.fill("#field-options", "[1]")
        page.get_by_role("button", name="Trigger").click()
        page.wait_for_selector("#state.error")
        assert "is not of type 'object'" in page.inner_text("#state")
        assert page.get_by_role("button", name="Trigger").is_enabled()


@pytest.mark.parametrize(
    ("status", "said"), [(404, "This Airflow has no Dag delta_manual"), (403, "You may not see")]
)
def test_the_page_explains_a_missing_form(
    server: Server, browser: Browser, status: int, said: str
) -> None:
    with visitor(browser, server, refused=status) as page:
        page.route("**/delta_manual/details", lambda route: route.fulfill(status=status, json={}))
        page.goto(f"{server.address}/delta-maintenance/run?name=orders")
        page.wait_for_selector("#state.error")
        assert said in page.inner_text("#state")
        assert page.get_by_role("button", name="Trigger").count() == 0


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
            page.wait_for_selector("#field-table_uri")
            assert page.input_value("#field-table_uri") == uri
            assert page.locator(f'[href^="{inner}"], [src^="{inner}"]').count() == 0
        # A link cannot fill in an address: the form accepts only known tables.
        with visitor(browser, server, refused=404) as page:
            page.goto(f"{server.address}/delta-maintenance/run?name={uri}/x&table_uri={uri}")
            assert page.locator("#run").count() == 0
    assert asked == []
