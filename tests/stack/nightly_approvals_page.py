"""Plans approved by clicks on the health page, and carried out by a real scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from delta_maintenance.policies import AssessmentEntry, AssessmentStore
from tests.support.orchestrators.health_server import Server, picture, signed_in, visitor
from tests.support.servers.browser import open_browser
from tests.support.tables.overdue_tables import overdue_table

from .conftest import DAGS, ROOT, Airflow, standalone

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(1800)]
ASKED = ("north", "south", "west")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables that two patterns find: vacuums of some wait for an approval, others are not due."""
    lake = tmp_path_factory.mktemp("lake")
    for name in ("quiet/east", *(f"asked/{name}" for name in ASKED)):
        overdue_table(lake / name)
    policy = {
        "version": 1,
        "defaults": {"checkpoint": False},
        "tables": [
            {"name": "quiet", "pattern": f"{lake}/quiet/**", "vacuum": False},
            {
                "name": "asked",
                "pattern": f"{lake}/asked/**",
                "vacuum": {"every": "1 day"},
                "approval": ["vacuum"],
            },
        ],
    }
    (lake / "policy.yaml").write_text(yaml.safe_dump(policy))
    return lake


@pytest.fixture(scope="module")
def airflow(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    for name in DAGS:
        (home / "dags" / f"{name}.py").write_bytes((ROOT / "dags" / f"{name}.py").read_bytes())
    settings = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
        "AIRFLOW__DELTA_MAINTENANCE__POLICY": str(lake / "policy.yaml"),
    }
    with standalone(home, settings, dags={"delta_maintenance", "delta_manual"}) as stack:
        yield stack


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def server(airflow: Airflow) -> Server:
    return Server(
        airflow.address, AssessmentStore(str(airflow.home / "assessments")), airflow.token
    )


@contextmanager
def approvals(
    browser: Browser, server: Server, *, user: str | None = None, refused: int | None = None
) -> Iterator[Page]:
    """Opens the page of approvals, by default as the administrator."""
    if user is not None:
        server = replace(server, token=signed_in(server.address, user))
    with visitor(browser, server, refused=refused) as page:
        page.goto(f"{server.address}/delta-maintenance/approvals")
        yield page


def choose(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_label(f"vacuum of {name}", exact=True).check()


def answer_once(answers: list[object], route: Route) -> None:
    """Gives the next of these answers to a request, and lets later requests pass."""
    if answers:
        route.fulfill(json=answers.pop())
    else:
        route.continue_()


def told(page: Page, name: str) -> str:
    """The result that the page shows for the plan of a table, once there is one."""
    result = page.locator(".plans li").filter(has_text=name).locator(".result")
    result.filter(has_not_text="Answering").filter(has_text=" ").wait_for()
    return result.inner_text()


def is_waiting(airflow: Airflow, dag_id: str, run_id: str, task_id: str, index: int = -1) -> None:
    airflow.wait_for_task(dag_id, run_id, task_id, "awaiting_input", index)


def requested(airflow: Airflow, uri: str) -> str:
    """A manual run whose plan waits."""
    run_id = airflow.trigger("delta_manual", operation="vacuum", table_uri=uri)
    is_waiting(airflow, "delta_manual", run_id, "one_table.approve", 0)
    return run_id


def asking_run(airflow: Airflow) -> str | None:
    for run in airflow.runs("delta_maintenance"):
        task = airflow.tasks("delta_maintenance", run["dag_run_id"]).get(("approve", -1))
        if task is not None and task["state"] == "awaiting_input":
            return str(run["dag_run_id"])
    return None


def take_pictures(browser: Browser, server: Server, name: str) -> None:
    for theme in ("light", "dark"):
        for width in (1440, 390):
            with visitor(browser, server, theme=theme) as page:
                page.set_viewport_size({"width": width, "height": 900})
                for path, shown in (("/approvals", "approvals"), ("/", "overview")):
                    page.goto(f"{server.address}/delta-maintenance{path}")
                    picture(page, f"{name}-{shown}-{width}-{theme}", full_page=True)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"the page is {wide} pixels wide at {width}"


def test_plans_of_a_policy_and_of_a_person_are_approved_on_the_page(
    airflow: Airflow, server: Server, browser: Browser, lake: Path
) -> None:
    # A manual run by address, in another form than that of the pattern, is about the same table.
    deleted = requested(airflow, f"file://{lake}/quiet/east/")
    manual = requested(airflow, f"file://{lake}/quiet/east/")
    scheduled = airflow.wait_for("a question about all plans", lambda: asking_run(airflow))
    names = {
        each.name: each for each in server.store.load_all() if isinstance(each, AssessmentEntry)
    }
    assert set(names) == {"quiet/east", *(f"asked/{name}" for name in ASKED)}
    assert len(names["quiet/east"].pending) == 2

    # Nobody closes the question of a run that was deleted.
    run = f"/api/v2/dags/delta_manual/dagRuns/{deleted}"
    airflow.call("PATCH", run, {"state": "failed"})
    airflow.call("DELETE", run)
    take_pictures(browser, server, "waiting")
    with visitor(browser, server) as page:
        page.goto(f"{server.address}/delta-maintenance/")
        assert "4 plans wait for you" in page.locator(".overview").inner_text()
        page.get_by_role("link", name="vacuum of asked/south").click()
        page.wait_for_url("**/approvals#plan-*")
        plan = page.locator("li:target")
        assert "vacuum of asked/south" in plan.inner_text()
        assert "1 file, 486 B" in plan.inner_text()

    with approvals(browser, server, user="viewer", refused=403) as page:
        choose(page, "quiet/east")
        page.get_by_role("button", name="Approve").click()
        assert "Not allowed" in told(page, "quiet/east")

    question = f"/dags/delta_maintenance/dagRuns/{scheduled}/taskInstances/approve/-1/hitlDetails"
    as_it_was = server.ask(question)
    with (
        approvals(browser, server) as first,
        approvals(browser, server) as second,
        approvals(browser, server, refused=409) as third,
    ):
        choose(first, "quiet/east", "asked/north", "asked/south")
        first.get_by_role("button", name="Approve").click()
        for name in ("quiet/east", "asked/north", "asked/south"):
            assert told(first, name) == "Approved: its run begins now.", name
        picture(first, "approved", full_page=True)
        # The third person has read the question before the first one answered.
        third.route("**/hitlDetails", partial(answer_once, [as_it_was]))
        for late in (second, third):
            choose(late, "asked/west")
            late.get_by_role("button", name="Reject").click()
            assert told(late, "asked/west") == "Already answered by somebody: Approve."
    assert airflow.wait_for_run("delta_manual", manual) == "success"
    assert airflow.wait_for_run("delta_maintenance", scheduled) == "success"
    left = {folder.parent.name for folder in lake.glob("*/*/0.parquet")}
    assert left == {"west"}, "each other table is vacuumed"

    # An answer about the plan that was not chosen opens a question of its own, and closes it.
    with approvals(browser, server) as page:
        assert page.locator(".plans li").count() == 1
        page.get_by_label("All").check()
        page.get_by_label("until").fill("2999-12-31")
        page.get_by_role("button", name="Snooze").click()
        page.locator(".result.good").wait_for()
        assert told(page, "asked/west") == "Snoozed."

    def snoozed() -> bool:
        entry = server.store.load(f"{lake}/asked/west")
        return isinstance(entry, AssessmentEntry) and any(
            e.until.year == 2999 for e in entry.put_off
        )

    airflow.wait_for("the answer", snoozed)
    with approvals(browser, server) as page:
        assert "Nothing waits for an approval" in page.inner_text("body")
    take_pictures(browser, server, "answered")
    assert len(server.store.load_all()) == 4
