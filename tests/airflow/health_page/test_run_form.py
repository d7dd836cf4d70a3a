"""The form for manual runs in a browser, with an Airflow that runs what it triggers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.policies import AssessmentEntry, assess_table
from delta_maintenance.policies.definition import load_policy
from tests.support.orchestrators.health_server import (
    Server,
    airflow_server,
    framed,
    picture,
    visitor,
)
from tests.support.servers.browser import open_browser
from tests.support.tables.overdue_tables import fingerprint, overdue_table

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VACUUM = "/delta-maintenance/run?name=overdue&operation=vacuum"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    for name in ("overdue", "broken"):
        overdue_table(folder / name)
    log = folder / "broken" / "_delta_log"
    for lost in (log / f"{1:020}.json", *log.glob("*checkpoint*")):
        lost.unlink()
    return folder


@pytest.fixture(scope="module")
def server(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tables = "".join(f"  - {{name: {n}, uri: {lake}/{n}}}\n" for n in ("overdue", "broken"))
    policy = (
        "version: 1\n"
        "defaults:\n"
        "  checkpoint: true\n"
        "  vacuum: {retention: 14 days}\n"
        "  other_writers: none\n"
        "  clones: {unreadable: ignore}\n"
        f"tables:\n{tables}"
    )
    home = tmp_path_factory.mktemp("airflow")
    with airflow_server(home, policy=policy, scheduler=True) as running:
        for table in load_policy(home / "policy.yaml").named_tables:
            running.store.save(assess_table(open_table(table.uri), table, now=clock.now()))
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def runs(server: Server) -> list[dict[str, Any]]:
    """The configurations of all runs, oldest first."""
    found = server.ask("/dags/delta_manual/dagRuns?order_by=run_after")["dag_runs"]
    return [each["conf"] for each in found]


def ready(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#buttons:not([hidden])")


def test_the_plan_is_shown_before_its_approval_is_asked_for(
    server: Server, browser: Browser, lake: Path
) -> None:
    before, earlier = fingerprint(lake / "overdue"), len(runs(server))
    with visitor(browser, server) as page:
        ready(page, f"{server.address}{VACUUM}")
        assert page.get_attribute("#option-retention", "placeholder") == "14 days (policy)"
        page.fill("#option-retention", "20 days")
        picture(page, "health-run")
        # By the return key, which does what is safe.
        page.press("#option-retention", "Enter")
        page.wait_for_selector("#plan:not([hidden])")
        plan = page.inner_text("#plan")
        assert "Retention\n20 days" in plan and "Expired tombstone\n1 file (486 B)" in plan
        assert "no version and no tombstone" in plan and "`" not in plan
        assert page.inner_text("#state").startswith("Nothing was changed. Somebody has to")
        picture(page, "health-plan")
        asking = page.get_by_role("button", name="Ask for the approval of this")
        assert asking.evaluate("it => it === document.activeElement")
        asking.click()
        page.wait_for_selector("#state.warning")
        assert "It waits for approval" in page.inner_text("#state")
        (answer, _) = page.locator("#state a").all()
        assert answer.get_attribute("href") == "/delta-maintenance/approvals"
    asked = {
        "operation": "vacuum",
        "table_uri": str(lake / "overdue"),
        "options": {"retention": "20 days"},
    }
    assert [{**each, "tables": None} for each in runs(server)[earlier:]] == [
        {**asked, "plan_only": plans, "tables": None} for plans in (True, False)
    ]
    assert fingerprint(lake / "overdue") == before


def test_a_plan_with_nothing_to_do_asks_for_nothing(server: Server, browser: Browser) -> None:
    with visitor(browser, server) as page:
        ready(page, f"{server.address}{VACUUM}")
        page.fill("#option-retention", "5000 days")
        page.press("#option-retention", "Enter")
        page.wait_for_selector("#plan:not([hidden])")
        assert page.inner_text("#state").startswith("There is nothing to do. See")
        assert page.locator("[data-do=planned]").is_hidden()


def test_fsck_finds_what_is_wrong_with_a_broken_table(server: Server, browser: Browser) -> None:
    with visitor(browser, server) as page:
        page.goto(f"{server.address}/delta-maintenance/table?name=broken")
        page.get_by_role("link", name="fsck…").click()
        page.wait_for_selector("#buttons:not([hidden])")
        page.get_by_role("button", name="Show the plan").click()
        page.wait_for_selector("#plan:not([hidden])")
        assert "log-gap: 1 (corrupt)" in page.inner_text("#plan")
        page.get_by_role("link", name="the page of the table").click()
        page.wait_for_selector(".findings")
        assert "restore the missing commits" in page.inner_text(".findings")
        picture(page, "health-broken")
    entry = server.store.find_by_name("broken")
    assert isinstance(entry, AssessmentEntry) and entry.assessment.status == "failed"


def test_a_plan_that_cannot_be_made_says_why(server: Server, browser: Browser) -> None:
    with visitor(browser, server) as page:
        ready(page, f"{server.address}/delta-maintenance/run?name=broken&operation=vacuum")
        page.fill("#option-retention", "12 days")
        page.get_by_role("button", name="Show the plan").click()
        page.wait_for_selector("#plan:not([hidden])")
        assert page.inner_text("#plan h2") == "There is no plan"
        assert "commit 1 is missing" in page.inner_text("#plan")
        assert not page.locator("[data-do=planned]").is_visible()
        page.get_by_role("button", name="Back to the options").click()
        assert page.input_value("#option-retention") == "12 days"
        assert page.get_by_role("button", name="Show the plan").is_enabled()


def test_a_button_leads_to_the_form_and_the_form_to_a_run(
    server: Server, browser: Browser, lake: Path
) -> None:
    earlier = len(runs(server))
    with visitor(browser, server) as page:
        page.goto(f"{server.address}/plugin/delta-tables")
        frame = framed(page)
        frame.locator("a.name", has_text="overdue").click()
        frame.get_by_role("row", name=re.compile("^checkpoint")).get_by_role("link").click()
        frame.wait_for_selector("#buttons:not([hidden])")
        frame.select_option("#option-kind", "classic")
        frame.get_by_role("button", name="Run without looking at the plan").click()
        frame.get_by_text("Done. See").wait_for()
        assert "Version\n" in frame.inner_text("#plan")
        # The address of the page leads to the result again.
        with page.expect_event("framenavigated", lambda navigated: navigated == frame):
            frame.evaluate("location.reload()")
        frame.get_by_text("Done. See").wait_for()
    (conf,) = runs(server)[earlier:]
    assert conf["operation"] == "checkpoint" and conf["options"] == {"kind": "classic"}
    assert conf["table_uri"] == str(lake / "overdue") and conf["plan_only"] is False
    assert server.ask("/dags/delta_manual")["is_paused"] is False


def test_wrong_values_are_told_beside_their_fields_and_start_nothing(
    server: Server, browser: Browser
) -> None:
    earlier = len(runs(server))
    with visitor(browser, server) as page:
        ready(page, f"{server.address}{VACUUM}")
        page.fill("#option-retention", "a while")
        page.fill("#option-keep_versions", "3\nlast")
        page.get_by_role("button", name="Show the plan").click()
        page.wait_for_selector("#problem-retention:not([hidden])")
        assert "is not a duration" in page.inner_text("#problem-retention")
        assert "valid integer" in page.inner_text("#problem-keep_versions")
        assert page.evaluate("document.activeElement.id") == "option-retention"
        assert page.get_attribute("#option-retention", "aria-invalid") == "true"
        page.fill("#option-retention", "20 days")
        assert not page.locator("#problem-retention").is_visible()
        ready(page, f"{server.address}/delta-maintenance/run?name=overdue&operation=expire")
        page.get_by_role("button", name="Show the plan").click()
        assert page.inner_text("#problem-column") == "This is required."
        page.get_by_label("Operation").select_option("keep-version")
        page.wait_for_url("**operation=keep-version**")
        page.wait_for_selector("#option-until")
    assert len(runs(server)) == earlier


def test_only_a_dag_that_allows_it_offers_to_shorten_a_retention(
    server: Server, browser: Browser
) -> None:
    tags = [{"name": "delta-manual"}]
    dags = [
        {"dag_id": "a_short_one", "is_paused": False, "tags": [*tags, {"name": "short-retention"}]},
        {"dag_id": "delta_manual", "is_paused": True, "tags": tags},
    ]
    sent: list[Any] = []
    with visitor(browser, server) as page:
        page.route("**/api/v2/dags?*", lambda route: route.fulfill(json={"dags": dags}))

        def trigger(route: Any) -> None:
            sent.append((route.request.url, route.request.post_data_json))
            route.fulfill(json={"dag_run_id": "r"})

        page.route("**/dagRuns", trigger)
        # The page asks for the state of a run that Airflow does not have.
        state = {"state": "queued", "task_instances": []}
        page.route("**/dagRuns/r**", lambda route: route.fulfill(json=state))
        ready(page, f"{server.address}{VACUUM}")
        assert page.input_value("#dag") == "delta_manual", "the other one is chosen on purpose"
        assert page.locator("#paused").is_visible()
        assert not page.locator("#option-no_other_writers").is_visible()
        page.select_option("#dag", "a_short_one")
        assert not page.locator("#paused").is_visible()
        page.check("#option-allow_short_retention")
        page.check("#option-no_other_writers")
        with page.expect_response("**/dagRuns"):
            page.get_by_role("button", name="Run without looking at the plan").click()
    ((url, body),) = sent
    assert "/a_short_one/" in url
    assert body["conf"]["options"] == {"allow_short_retention": True, "no_other_writers": True}


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, {"dags": []}, "There is no Dag for manual runs that you may see"),
        (403, {}, "You may not see the Dags"),
    ],
)
def test_the_page_explains_a_missing_form(
    server: Server, browser: Browser, status: int, body: Any, said: str
) -> None:
    with visitor(browser, server, refused=status if status >= 400 else None) as page:
        answer = {"status": status, "json": body}
        page.route("**/api/v2/dags?*", lambda route: route.fulfill(**answer))
        page.goto(f"{server.address}{VACUUM}")
        page.wait_for_selector("#state.error")
        assert said in page.inner_text("#state")
        assert not page.locator("#buttons").is_visible()


def test_a_user_who_may_not_trigger_is_told_so(server: Server, browser: Browser) -> None:
    with visitor(browser, server, refused=403) as page:
        page.route("**/dagRuns", lambda route: route.fulfill(status=403, json={"detail": "no"}))
        ready(page, f"{server.address}{VACUUM}")
        page.get_by_role("button", name="Show the plan").click()
        page.wait_for_selector("#state.error")
        assert "You may not trigger this Dag" in page.inner_text("#state")
        assert page.get_by_role("button", name="Show the plan").is_enabled()
