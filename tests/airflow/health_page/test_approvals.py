"""The plans that wait for an approval: which are counted, and what the page says of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.operations.holds import HeldBack
from delta_maintenance.policies import PLAN_LIFE, AssessmentEntry, PendingPlan, PutOff
from delta_maintenance_airflow.health_page.approvals import Question, open_questions
from tests.support.orchestrators.health_site import Elements, Site
from tests.support.tables.assessed_tables import NOW, assessment, held, run_result, waiting

# Of Airflow's own imports, which come with the first of these tests.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
LINK = "/dags/delta_maintenance/runs/scheduled__2026-11-21T06:00:00+00:00/tasks/approve"
MANUAL = "/dags/delta_manual/runs/manual__1/tasks/one_table.approve/mapped/0"


def planned(site: Site, name: str = "orders") -> PendingPlan:
    """A plan of the policy that waits, about which nobody was asked yet."""
    site.store.save(*waiting(name))
    entry = site.store.find_by_name(name)
    assert isinstance(entry, AssessmentEntry)
    (plan,) = entry.pending
    return plan


def asked(site: Site, plan: PendingPlan, link: str = LINK, **changes: object) -> PendingPlan:
    """Opens a question about a plan."""
    until = {"expires_at": NOW + timedelta(hours=20), **changes}
    opened = replace(plan, link=link, **until)
    site.store.open_question(opened)
    return opened


def requested(site: Site, plan: PendingPlan, **changes: object) -> PendingPlan:
    """Opens the question of a manual run about a plan."""
    return asked(site, plan, MANUAL, requested=True, asked_by="ann", **changes)


def words(page: str) -> str:
    return " ".join(Elements.of(page).text.split())


@dataclass(frozen=True)
class FakeListing:
    """The files of a plan."""

    files: list[str]

    def json_lists(self) -> Iterator[tuple[str, Iterable[Any]]]:
        yield "file_list", self.files

    def lines(self, *, reported: bool) -> Iterator[str]:
        yield from self.files


def statuses(site: Site) -> list[str]:
    return re.findall(r'class="tile ([\w-]+)"', site.get("/").text)


def test_only_plans_that_exist_wait_and_others_need_approval(site: Site) -> None:
    due, run = waiting("orders")
    site.store.save(due)
    text = words(site.get("/").text)
    assert "vacuum: needs approval" in text and "waits for you" not in text
    assert "Nothing to do" in text and statuses(site)[1:] == ["due", "never-assessed"]
    assert "needs approval" in words(site.get("/table?name=orders").text)
    assert "Nothing waits for an approval" in site.get("/approvals").text
    site.store.save(due, run)
    text = words(site.get("/").text)
    assert "1 plan waits for you: vacuum of orders (12 files, 3 GiB)" in text
    assert "vacuum: waits for you" in text and "needs approval" not in text
    assert statuses(site)[1:] == ["needs-approval", "never-assessed"]


def test_operations_due_by_the_calendar_alone_are_to_check(site: Site) -> None:
    due, _ = waiting("orders")
    by_calendar = tuple(replace(each, by_calendar=True) for each in due.operations)
    site.store.save(replace(due, operations=by_calendar))
    text = words(site.get("/").text)
    assert "vacuum: to check" in text and "needs approval" not in text
    assert statuses(site)[1:] == ["to-check", "never-assessed"]
    text = words(site.get("/table?name=orders").text)
    assert "to check" in text and "needs approval" not in text
    (exported,) = (row for row in site.get("/export.json").json() if row["table"] == "orders")
    assert exported["to_check"] == "vacuum" and exported["will_ask"] is None


def test_a_click_leads_to_the_plan(site: Site) -> None:
    planned(site)
    for path in ("/", "/table?name=orders"):
        links = set(re.findall(r'href="([^"]*/approvals#[^"]+)"', site.get(path).text))
        (link,) = links
        assert link.startswith("/delta-maintenance/approvals#plan-")
        assert f'<li id="{link.partition("#")[2]}"' in site.get("/approvals").text


def test_the_page_shows_the_facts_of_each_plan(site: Site) -> None:
    plan = planned(site)
    asked(site, replace(plan, held=held(2)), asked_by="bob")
    text = words(site.get("/approvals").text)
    for fact in (
        "Due by the policy, asked by bob",
        "waits for an answer until 2026-11-22 02:40 UTC",
        "vacuum of orders",
        "the last one was on 2026-11-12",
        "Deletes 12 files, 3 GiB Planned",
        "Held back: 12 files, 256 MiB, by audit-2026 until 2027-01-01",
        "Planned just now",
        "Expires in 20 hours",
    ):
        assert fact in text, fact


def test_a_plan_shows_its_evidence_and_its_files(site: Site) -> None:
    plan = planned(site)
    text = words(site.get("/approvals").text)
    assert "What it does Version 3 Retention 7 days Files 12 of 40 (3 GiB)" in text
    where = f"name=orders&plan={plan.id}"
    assert site.get(f"/approvals/files?{where}").status_code == 404, "none are stored"
    listing = FakeListing([f"{n}\texpired-tombstone\tday=1/{n} =.parquet" for n in range(1_200)])
    site.store.save_files(plan.uri, plan.plan, listing, "vacuum")  # type: ignore[arg-type]
    page = site.get(f"/approvals/files?{where}").text
    assert page.count("<tr>") == 1_001 and "the first 1,000" in words(page)
    exported = site.get(f"/approvals/files.json?{where}").json()
    assert len(exported) == 1_200
    assert exported[7] == {"bytes": "7", "reason": "expired-tombstone", "path": "day=1/7 =.parquet"}
    assert site.get(f"/approvals/files?{where}", role=None).status_code == 401
    site.store.close_question(plan, approved_at=NOW)
    assert site.get(f"/approvals/files?{where}").status_code == 404, "the plan does not wait"


def test_a_share_is_shown_where_it_warns(site: Site) -> None:
    asked(site, replace(planned(site), share=0.83))
    assert "83% of all files, dead and live" in words(site.get("/approvals").text)


def test_a_plan_without_a_question_says_what_works(site: Site) -> None:
    planned(site)
    page = site.get("/approvals").text
    assert "Your answer triggers a run of delta_maintenance that asks" in words(page)
    assert "data-api" not in page


def test_a_requested_plan_waits_beside_that_of_the_policy_until_its_question_closes(
    site: Site,
) -> None:
    mine = requested(site, plan := planned(site))
    asked(site, plan)
    text = words(site.get("/").text)
    assert "2 plans wait for you" in text
    page = site.get("/approvals").text
    assert words(page).count("Requested by ann") == 1 and page.count('<li id="plan-') == 2
    api = "/taskInstances/one_table.approve/0/hitlDetails"
    assert f"/api/v2/dags/delta_manual/dagRuns/manual__1{api}" in page
    assert "scheduled__2026-11-21T06%3A00%3A00%2B00%3A00/taskInstances/approve/-1/hitl" in page
    # Work of the policy that has ended is not what the person waits for.
    site.store.save(replace(assessment(), operations=()), run_result(outcomes=()))
    assert "1 plan waits for you" in words(site.get("/").text)
    site.store.close_question(mine)
    assert "Nothing to do" in words(site.get("/").text)


def test_a_question_that_airflow_no_longer_asks_is_not_counted(site: Site) -> None:
    requested(site, plan := planned(site))
    asked(site, plan)
    site.closed = {found for link in (LINK, MANUAL) if (found := Question.at(link))}
    page = site.get("/approvals").text
    assert "No question is open" in page and page.count('<li id="plan-') == 1, "it is asked again"
    assert "1 plan waits for you" in words(site.get("/").text)


@pytest.mark.parametrize("kind", ["asked", "requested"])
def test_a_question_that_timed_out_is_closed(site: Site, kind: str) -> None:
    plan, over = planned(site), NOW - timedelta(minutes=1)
    if kind == "requested":
        site.store.close_question(plan, approved_at=NOW)
        requested(site, plan, expires_at=over)
        assert "Nothing waits" in site.get("/approvals").text
    else:
        asked(site, plan, expires_at=over)
        assert "No question is open" in site.get("/approvals").text


def test_snoozed_approved_and_outdated_plans_do_not_wait(site: Site) -> None:
    plan = planned(site)
    snoozed = PutOff(operation="vacuum", answer="snoozed", until=NOW + timedelta(days=1), at=NOW)
    site.store.put_off(plan, snoozed)
    assert "Nothing waits" in site.get("/approvals").text
    assert "vacuum: blocked" in words(site.get("/").text)
    site.store.put_off(plan, replace(snoozed, until=NOW))
    assert "No question is open" in site.get("/approvals").text
    site.store.close_question(plan, approved_at=NOW)
    assert "Nothing waits" in site.get("/approvals").text
    old = replace(plan, plan=replace(plan.plan, planned_at=NOW - PLAN_LIFE))
    site.store.open_question(old)
    assert "Nothing waits" in site.get("/approvals").text, "the next run plans again"


def test_links_to_other_places_are_no_questions(site: Site) -> None:
    asked(site, planned(site), "https://example.com/dags/d/runs/r/tasks/t")
    page = site.get("/approvals").text
    assert "example.com" not in page and "No question is open" in page


@pytest.mark.parametrize("name", ["somebody", "another"])
def test_the_person_who_asked_is_told_that_another_must_approve(
    site: Site, name: str, tmp_path: Path
) -> None:
    requested(site, planned(site))
    strict = Site(site.store, site.policy, separate_approver=True)
    (plan,) = [each for each in _pending(site) if each.requested]
    site.store.open_question(replace(plan, asked_by=name))
    is_told = "another person has to approve" in strict.get("/approvals").text
    assert is_told == (name == "somebody")
    assert "another person has to approve" not in site.get("/approvals").text


def _pending(site: Site) -> tuple[PendingPlan, ...]:
    entry = site.store.find_by_name("orders")
    assert isinstance(entry, AssessmentEntry)
    return entry.pending


def test_untrusted_texts_are_escaped(site: Site) -> None:
    hostile = "<script>alert(1)</script>"
    plan = planned(site)
    holder = HeldBack(
        holder=hostile, until=None, files=1, bytes=1, first_version=1, last_version=1, why=hostile
    )
    asked(site, replace(plan, reason=hostile, held=(holder,)), asked_by=hostile)
    assert hostile not in site.get("/approvals").text
    assert hostile in words(site.get("/approvals").text)


def test_a_table_is_found_by_any_name_and_has_one_row(site: Site) -> None:
    found = "s3://lake/bronze/new"
    site.store.save(assessment("lake/new", uri=found))
    site.store.save(assessment(found, uri="s3a://lake/bronze/new/"), run_result())
    page = site.get("/").text
    names = [name for name in re.findall(r'class="name"[^>]*>(.*?)</a>', page) if "new" in name]
    assert names == ["lake/<wbr>new"]
    for name in ("lake/new", found, "s3a://lake/bronze/new/"):
        assert site.get(f"/table?name={name}").status_code == 200, name
        assert site.get(f"/run?name={name}").status_code == 200


def test_open_questions_come_from_the_tasks_of_airflow(airflow_db: None) -> None:
    assert open_questions(frozenset()) == frozenset()
    question = Question.at(MANUAL)
    assert question is not None and open_questions(frozenset({question})) == frozenset()
