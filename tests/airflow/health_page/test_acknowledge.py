"""The form that acknowledges a failure: who may send it, from where, and what it shows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from delta_maintenance.policies import AssessmentEntry
from delta_maintenance.policies.acknowledgements import Acknowledgement
from tests.support.orchestrators.health_site import Elements, Site, token
from tests.support.tables.assessed_tables import NOW, assessment, run_result

# Of Airflow's own imports, which come with the first of these tests.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
FORM = {"name": "orders", "reason": "<b>known</b>", "until": "7d"}
HERE = {"Sec-Fetch-Site": "same-origin", "Origin": "http://airflow"}


@pytest.fixture(autouse=True)
def broken(site: Site) -> None:
    found = assessment("orders", status="failed", health=None, operations=(), uri="s3://lake/o")
    site.store.save(replace(found, problem="it is damaged", exit_status=5))
    well = assessment("users", uri="s3://lake/sales/users")
    calm = tuple(replace(each, status="not-due") for each in well.operations)
    site.store.save(replace(well, operations=calm, status="nothing-due"))


def send(
    site: Site,
    form: dict[str, str] | None = None,
    *,
    role: str | None = "op",
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """Sends the form as a browser does, with the session in a cookie."""
    cookie = token(role) if role is not None else None
    more = HERE if headers is None else headers
    return site.get(
        "/acknowledge", role=None, cookie=cookie, method="POST", form=form or FORM, more=more
    )


def stored(site: Site) -> Acknowledgement | None:
    entry = site.store.find_by_name("orders")
    assert isinstance(entry, AssessmentEntry)
    return entry.acknowledgement


def test_it_is_stored_shown_counted_and_removed(site: Site) -> None:
    answer = send(site)
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/delta-maintenance/table?name=orders"
    known = stored(site)
    assert known is not None
    assert (known.reason, known.by) == ("<b>known</b>", "somebody")
    assert known.until == NOW + timedelta(days=7) and not known.until_changed
    page = Elements.of(site.get("/table?name=orders").text)
    assert "Acknowledged by somebody" in page.text and "<b>known</b>" in page.text
    assert "b" not in {tag for tag, _ in page.started}
    overview = site.get("/?q=orders").text
    assert "1 known broken</strong></a>, acknowledged" in overview
    assert "Nothing to do" in overview and 'class="tile acknowledged"' in overview
    assert "orders" in site.get("/?status=acknowledged").text
    assert send(site, {"name": "orders", "remove": "true"}).status_code == 303
    assert stored(site) is None
    assert "To do" in site.get("/?q=orders").text


def test_without_a_date_it_holds_until_the_failure_changes(site: Site) -> None:
    assert send(site, {**FORM, "until": ""}).status_code == 303
    known = stored(site)
    assert known is not None and known.until is None and known.until_changed
    assert "Until the failure changes" in site.get("/table?name=orders").text


def test_an_operation_beyond_its_limit_can_be_acknowledged_too(site: Site) -> None:
    due = assessment("orders", uri="s3://lake/o")
    run = run_result("orders", status="stopped", exit_status=3, problem="too many files")
    step = next(each.operation for each in due.operations if each.status == "due")
    outcomes = (replace(run.outcomes[0], operation=step, status="stopped"),)
    site.store.save(due, replace(run, outcomes=outcomes))
    assert "Acknowledge this failure" in site.get("/table?name=orders").text
    assert send(site).status_code == 303
    assert 'class="chip acknowledged"' in site.get("/?q=orders").text


@pytest.mark.parametrize("role", [None, "none", "viewer"])
def test_it_takes_the_permission_to_trigger_the_scheduled_dag(site: Site, role: str | None) -> None:
    assert send(site, role=role).status_code in (401, 403)
    assert stored(site) is None
    assert send(site, role="user").status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://airflow"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://airflow"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://airflow.evil.example"},
        {"Origin": "http://airflow:8080"},
        {"Origin": "null"},
        {},
    ],
)
def test_another_site_cannot_send_it(site: Site, headers: dict[str, str]) -> None:
    refused = send(site, headers=headers)
    assert refused.status_code == 403 and "another site" in refused.text
    assert stored(site) is None


def test_a_browser_without_the_newer_header_and_a_program_can_send_it(site: Site) -> None:
    assert send(site, headers={"Origin": "http://airflow"}).status_code == 303
    program = site.get("/acknowledge", role="op", method="POST", form=FORM)
    assert program.status_code == 303


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"name": "users"}, "users has not failed"),
        ({"name": "unknown"}, "was never assessed"),
        ({"reason": " "}, "needs a reason"),
        ({"until": "soon"}, "is not a date or a duration"),
    ],
)
def test_what_cannot_be_acknowledged_is_answered_by_a_page(
    site: Site, form: dict[str, Any], problem: str
) -> None:
    refused = send(site, {**FORM, **form})
    assert refused.status_code == 400 and problem in refused.text
    assert stored(site) is None


def test_the_form_is_only_on_the_page_of_a_failed_table(site: Site) -> None:
    assert 'action="/delta-maintenance/acknowledge"' in site.get("/table?name=orders").text
    assert 'action="/delta-maintenance/acknowledge"' not in site.get("/table?name=users").text
