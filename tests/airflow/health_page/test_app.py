"""The health page within Airflow's own application: who may see it, and what it says."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from assessed_tables import NOW, assessment, fill, health, run_result

from delta_maintenance.errors import StorageError
from delta_maintenance.operations.health.models import Refusal
from delta_maintenance.operations.vacuum import VacuumOptions, VacuumPlan
from delta_maintenance.policies.assessments import AssessmentStore
from delta_maintenance.policies.pending import PutOff
from delta_maintenance.testing.table_builder import TableBuilder
from delta_maintenance_airflow.health_page.known_tables import PolicyFile
from delta_maintenance_airflow.plugin import URL_PREFIX, DeltaMaintenancePlugin, HealthPage

# Of Airflow's own imports, which come with the first of these tests.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; alert(1); //",
    "{{ 7919 * 7919 }}",
    "javascript:alert(1)",
    "</script><script>alert(1)</script>",
    "a&b=c#d?e/../../f",
    "\u202egnp.exe",
)
POLICY = """\
version: 1
tables:
  - {name: orders, uri: s3://lake/sales/orders, owner: sales, tags: [gold]}
  - {name: never, uri: s3://lake/sales/never}
  - {name: lake, pattern: "s3://lake/bronze/**", owner: platform}
"""


class Site:
    """Airflow's application with our page, as one user after another sees it."""

    def __init__(self, store: AssessmentStore, policy: Path) -> None:
        from delta_maintenance_airflow.health_page.app import create_app

        self.store, self.policy = store, policy
        self.page = HealthPage()
        self.app = airflow_with(self.page)
        self.page._app = create_app(
            lambda: self.store, PolicyFile(str(self.policy)), now=lambda: NOW
        )

    def get(
        self,
        path: str,
        *,
        role: str | None = "viewer",
        cookie: str | None = None,
        method: str = "GET",
    ) -> httpx.Response:
        """What a user of this role gets; without a role, somebody who is not signed in."""
        headers = {} if role is None else {"Authorization": f"Bearer {token(role)}"}
        if cookie is not None:
            headers["Cookie"] = f"_token={cookie}"

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
                return await client.request(method, f"{URL_PREFIX}{path}", headers=headers)

        return asyncio.run(ask())


@pytest.fixture
def site(airflow_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    store = AssessmentStore(str(tmp_path / "assessments"))
    yield Site(store, policy)
    store.close()


def airflow_with(page: HealthPage) -> Any:
    """Airflow's application, of which only the mounts and the authentication take part."""
    from airflow.api_fastapi.app import init_auth_manager
    from fastapi import FastAPI

    app = FastAPI()
    init_auth_manager(app)
    app.mount(URL_PREFIX, page)
    return app


def token(role: str) -> str:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    user = SimpleAuthManagerUser(username="somebody", role=role if role != "none" else None)
    signed: str = get_auth_manager().generate_jwt(user)
    return signed


def test_nobody_sees_data_without_signing_in(site: Site) -> None:
    site.store.save(assessment())
    for path in ("/", "/table?name=orders", "/run?name=orders", "/?q=orders"):
        response = site.get(path, role=None)
        assert response.status_code == 401
        assert "orders" not in response.text.replace("/run?name=orders", "")
        assert "Please sign in" in response.text


def test_a_forged_token_is_no_token(site: Site) -> None:
    response = site.get("/", role=None, cookie="e30.e30.e30")
    assert response.status_code == 403


def test_the_cookie_of_airflows_pages_opens_ours(site: Site) -> None:
    assert site.get("/", role=None, cookie=token("viewer")).status_code == 200


def test_a_user_without_a_role_is_turned_away(site: Site) -> None:
    assert site.get("/", role="none").status_code == 403


@pytest.mark.parametrize("path", ["/", "/table?name=orders", "/run?name=orders"])
def test_a_viewer_sees_every_page(site: Site, path: str) -> None:
    site.store.save(assessment())
    response = site.get(path)
    assert response.status_code == 200
    assert "orders" in response.text


def test_every_route_asks_who_is_there(site: Site) -> None:
    """But the style sheets and scripts, in which there are no data."""
    from fastapi.routing import APIRoute
    from starlette.routing import Mount

    app: Any = site.page._app
    open_to_all = [route.path for route in app.routes if not isinstance(route, APIRoute)]
    assert open_to_all == ["/static"]
    assert all(isinstance(route, APIRoute | Mount) for route in app.routes)
    for route in app.routes:
        if isinstance(route, APIRoute):
            names = {each.call.__qualname__ for each in route.dependant.dependencies if each.call}
            assert "requires_access_view.<locals>.inner" in names


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_no_request_from_another_site_can_change_anything(site: Site, method: str) -> None:
    """The pages only show; the form starts a run through Airflow's own interface."""
    before = sorted(path.name for path in site.policy.parent.rglob("*"))
    for path in ("/", "/table?name=orders", "/run?name=orders&operation=vacuum"):
        assert site.get(path, method=method).status_code == 405
    assert sorted(path.name for path in site.policy.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["../policy.yaml", "/etc/passwd", "..%2f..%2fpolicy", "http://169.254.169.254/", "a\0b"]
)
def test_a_name_leads_nowhere_but_to_a_known_table(site: Site, name: str) -> None:
    site.store.save(assessment())
    for page in ("table", "run"):
        response = site.get(f"/{page}?name={quote(name, safe='')}")
        assert response.status_code == 404
        assert "version: 1" not in response.text and "root:" not in response.text


def test_static_files_are_open_and_stay_in_their_folder(site: Site) -> None:
    for name in ("page.css", "page.js", "run.js", "theme.js", "icon.svg"):
        assert site.get(f"/static/{name}", role=None).status_code == 200
    for name in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "x/../../app.py"):
        assert site.get(f"/static/{name}", role=None).status_code == 404


@pytest.mark.parametrize("role", [None, "viewer"])
@pytest.mark.parametrize("path", ["/", "/table?name=orders", "/nothing-here", "/static/page.css"])
def test_every_answer_says_what_a_browser_may_load(site: Site, path: str, role: str | None) -> None:
    headers = site.get(path, role=role).headers
    policy = dict(
        part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'self'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert ("no-store" in headers.get("Cache-Control", "")) == ("static" not in path)


@pytest.mark.parametrize("path", ["/", "/table?name=orders", "/run?name=orders&operation=vacuum"])
def test_nothing_comes_from_elsewhere_and_no_script_is_inline(site: Site, path: str) -> None:
    site.store.save(assessment(), run_result())
    elements = Elements.of(site.get(path).text)
    for tag, attributes in elements.started:
        assert tag != "style" and "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        if tag == "script":
            assert attributes["src"]
        for name in ("src", "href", "action"):
            if attributes.get(name):
                assert str(attributes[name]).startswith(("/", "#")), attributes


def test_names_and_texts_of_others_are_text(site: Site) -> None:
    for number, text in enumerate(HOSTILE):
        one = assessment(text, seed=number, uri=f"s3://lake/{text}", notes=(text,))
        operations = tuple(replace(each, reason=text) for each in one.operations)
        known = replace(
            health(seed=number),
            features=(text,),
            properties={text: text},
            partition_columns=(text,),
            refused=(Refusal(operation=text, problem=text),),
            warnings=(text,),
            commits=tuple(replace(each, operation=text) for each in health().commits[:3]),
            maintenance=tuple(replace(each, operation=text) for each in health().maintenance),
        )
        site.store.save(
            replace(one, operations=operations, health=known, problem=text),
            run_result(text, problem=text),
            link=text,
        )
    (site.policy).write_text(POLICY.replace("gold", '"<b>gold</b>"'))
    pages = [site.get("/").text]
    for text in HOSTILE:
        name = quote(text, safe="")
        pages += [site.get(f"/table?name={name}").text, site.get(f"/run?name={name}").text]
        pages += [site.get(f"/?q={name}").text, site.get(f"/table?name=unknown{name}").text]
    for page in pages:
        elements = Elements.of(page)
        assert {tag for tag, _ in elements.started}.isdisjoint({"img", "b", "iframe", "object"})
        for tag, attributes in elements.started:
            assert not any(name.startswith("on") for name in attributes)
            assert tag != "script" or attributes.get("src")
            for name in ("href", "action"):
                assert "javascript:" not in str(attributes.get(name, "")).lower()[:20]
        assert "62710561" not in elements.text
    table = site.get(f"/table?name={quote(HOSTILE[0], safe='')}").text
    assert HOSTILE[0] in Elements.of(table).text


def test_links_to_a_table_find_it_whatever_its_name(site: Site) -> None:
    site.policy.unlink()
    for text in HOSTILE:
        site.store.save(assessment(text, uri=f"s3://lake/{text}"))
    found = set()
    for tag, attributes in Elements.of(site.get("/").text).started:
        if tag == "a" and "name" in str(attributes.get("class", "")).split():
            path = str(attributes["href"]).removeprefix(URL_PREFIX)
            found.add(unescape(re.findall("<h1>(.*?) <span", site.get(path).text)[0]))
    assert found >= set(HOSTILE)


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("/dags/d/runs/r", True),
        ("//evil.example", False),
        ("/\\evil.example", False),
        ("https://evil.example", False),
        ("javascript:alert(1)", False),
        (None, False),
    ],
)
def test_the_link_to_a_run_stays_within_airflow(site: Site, link: str | None, shown: bool) -> None:
    site.store.save(assessment(), run_result(), link=link)
    for path in ("/", "/table?name=orders"):
        text = site.get(path).text
        assert ("data-leave" in text) == shown
        assert "evil" not in text


def test_an_empty_page_says_what_to_do(site: Site) -> None:
    site.policy.write_text("version: 1\n")
    text = site.get("/").text
    assert "No table was assessed yet" in text
    assert "delta_maintenance" in text
    assert site.store.uri in text


def test_a_table_without_assessment_is_shown_as_such(site: Site) -> None:
    site.store.save(assessment())
    text = site.get("/").text
    assert "No run has assessed it yet" in text
    assert "never assessed" in text
    page = site.get("/table?name=never")
    assert page.status_code == 200
    assert "no run has assessed it yet" in page.text
    assert site.get("/run?name=never").status_code == 200


def test_a_table_that_left_the_policy_is_marked(site: Site) -> None:
    site.store.save(assessment("left", uri="s3://elsewhere/left"))
    site.store.save(assessment("found", uri="s3://lake/bronze/found"))
    text = site.get("/").text
    assert "found" in text and "name=left" not in text, "it leaves the list"
    assert "left the policy" in text
    kept = site.get("/?left=1").text
    assert kept.count("not in the policy") == 1 and "name=left" in kept
    assert "name=found" not in kept
    assert site.get("/table?name=left").status_code == 200
    site.policy.unlink()
    text = site.get("/").text
    assert "not in the policy" not in text and "name=left" in text


def test_owner_and_tags_come_from_the_policy(site: Site) -> None:
    site.store.save(assessment())
    site.store.save(assessment("found", uri="s3://lake/bronze/found"))
    text = site.get("/").text
    for tag in ("sales", "gold", "platform"):
        assert f'<span class="tag">{tag}</span>' in text


def test_a_changed_policy_is_read_again(site: Site) -> None:
    site.get("/")
    site.policy.write_text(POLICY.replace("name: never", "name: brand-new"))
    assert "brand-new" in site.get("/").text


@pytest.mark.parametrize("content", ["version: 2\n", "tables: [", None])
def test_a_policy_that_cannot_be_read_hides_no_assessed_table(
    site: Site, content: str | None
) -> None:
    site.store.save(assessment())
    site.policy.unlink()
    if content is not None:
        site.policy.write_text(content)
    response = site.get("/")
    assert response.status_code == 200
    assert "orders" in response.text
    assert "The policy cannot be read here" in response.text


def test_a_damaged_entry_is_shown_with_its_problem(site: Site) -> None:
    site.store.save(assessment())
    (file,) = Path(site.store.uri).iterdir()
    file.write_text("no JSON")
    text = site.get("/").text
    assert "unreadable" in text
    assert "it is not JSON; delete it" in text
    page = site.get("/table?name=orders")
    assert page.status_code == 200
    assert "it is not JSON; delete it" in page.text


def test_a_store_that_is_down_is_an_answer_and_recovers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.store.save(assessment())

    def down(store: AssessmentStore) -> Any:
        raise StorageError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(AssessmentStore, "load_all", down)
        response = site.get("/")
        assert response.status_code == 503
        assert "the store does not answer" in response.text
    assert site.get("/").status_code == 200


def test_a_folder_that_cannot_be_opened_is_opened_again_at_the_next_visit(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from delta_maintenance_airflow import settings
    from delta_maintenance_airflow.health_page.app import configured_app

    site.page._app = configured_app()
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", "s3://lake/assessments")
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS_CONN_ID", "no_such_connection")
    response = site.get("/")
    assert response.status_code == 503
    assert "no_such_connection" in response.text
    monkeypatch.delenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS_CONN_ID")
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", site.store.uri)
    settings.assessment_store().save(assessment("put-right"))
    assert "put-right" in site.get("/").text


def test_a_table_that_failed_shows_why_and_what_was_known(site: Site) -> None:
    site.store.save(assessment())
    site.store.save(
        assessment(status="failed", problem="version 212 is missing", health=None, operations=())
    )
    assert "version 212 is missing" in site.get("/").text
    text = site.get("/table?name=orders").text
    assert "version 212 is missing" in text
    assert "What follows is from the last good assessment" in text
    assert f"{health().version:,}" in text


def test_the_first_screen_says_that_all_is_well(site: Site) -> None:
    calm = tuple(replace(each, status="not-due") for each in assessment().operations)
    well = assessment(status="nothing-due", operations=calm)
    for name in ("orders", "never"):
        before = replace(well, name=name, health=health(bytes_to_open=5 << 20))
        after = replace(well, name=name, health=health(bytes_to_open=1 << 20))
        outcome = replace(run_result().outcomes[0], result={"bytes": 3 << 30})
        run = run_result(
            outcomes=(outcome,), before=before, after=after, started_at=NOW - timedelta(days=1)
        )
        site.store.save(after, run)
        site.store.save(after, replace(run, started_at=NOW - timedelta(days=8)))
    text = words(site.get("/").text)
    assert "No problems No table failed, and nothing waits for an approval." in text
    assert "Runs in 7 days 2 Reclaimed 6 GiB Log that readers no longer open 8 MiB" in text


def test_the_first_screen_says_what_needs_somebody_worst_first(site: Site) -> None:
    waiting = replace(assessment().operations[0], operation="vacuum", needs_approval=True)
    site.store.save(assessment("never", operations=(waiting,), status="due"))
    gone = assessment("orders", status="failed", problem="it is gone", health=None, operations=())
    site.store.save(gone, link="/dags/d/runs/first")
    site.store.save(replace(gone, assessed_at=NOW), link="/dags/d/runs/r/tasks/assess/mapped/3")
    pattern = replace(gone, name="s3://lake/bronze/**", uri="s3://lake/bronze/**")
    site.store.save(replace(pattern, subject="pattern", problem="the store turns us away"))
    page = site.get("/").text
    text = words(page)
    assert "Needs attention s3://lake/bronze/** cannot be listed, since" in text
    assert "the store turns us away" in text
    assert "1 table failed: orders (" in text
    assert "1 table waits for you: never (vacuum)" in text
    assert "vacuum: waits for you" in text
    rows = page[page.index("<tbody>") :]
    assert rows.index("s3://lake/bronze/**</span>") < rows.index('name=orders"')
    assert '/dags/d/runs/r/tasks/assess/mapped/3" data-leave>task' in page
    assert "operation=fsck" in page
    one = site.get("/table?name=orders").text
    assert '/dags/d/runs/r/tasks/assess/mapped/3" data-leave>The task that failed' in one
    assert "Examine the table with fsck" in one


def test_a_pattern_that_left_the_policy_is_not_held_against_it(site: Site) -> None:
    pattern = assessment(
        "s3://other/**", status="failed", problem="gone", health=None, operations=()
    )
    site.store.save(replace(pattern, subject="pattern"))
    site.store.save(assessment())
    assert "s3://other" not in site.get("/").text
    assert "s3://other" in site.get("/?left=1").text


def test_a_dag_that_does_not_run_is_told_of(site: Site) -> None:
    site.store.save(assessment(assessed_at=NOW - timedelta(hours=2)))
    assert "Is the Dag" not in site.get("/").text
    site.store.save(assessment(assessed_at=NOW - timedelta(hours=4)))
    assert "Is the Dag" in site.get("/").text


def test_a_run_that_failed_makes_its_table_fail_until_nothing_is_due(site: Site) -> None:
    failed = run_result(status="failed", problem="a file could not be written", exit_status=1)
    site.store.save(assessment(), failed, link="/dags/d/runs/r/tasks/run/mapped/7")
    page = site.get("/").text
    assert "a file could not be written" in page
    assert '/dags/d/runs/r/tasks/run/mapped/7" data-leave>task' in page
    calm = tuple(replace(each, status="not-due") for each in assessment().operations)
    site.store.save(assessment(status="nothing-due", operations=calm))
    assert "a file could not be written" not in site.get("/").text


def test_the_history_of_a_table_has_its_last_runs(site: Site) -> None:
    for hours in range(3):
        at = NOW - timedelta(hours=hours)
        site.store.save(assessment(), run_result(started_at=at), link=f"/dags/d/runs/r{hours}")
    page = site.get("/table?name=orders").text
    for hours in range(3):
        assert f"/dags/d/runs/r{hours}" in page
    assert "History" in page


def test_an_approval_that_is_missing_has_one_name_everywhere(site: Site) -> None:
    waiting = replace(assessment().operations[0], operation="vacuum", needs_approval=True)
    outcome = replace(run_result().outcomes[0], operation="vacuum", status="needs-approval")
    before = assessment(operations=(waiting,))
    run = run_result(status="blocked", outcomes=(outcome,), before=before)
    site.store.save(assessment(operations=(waiting,)), run)
    for path in ("/", "/table?name=orders"):
        chips = re.findall(r'class="chip ([\w-]+)"', site.get(path).text)
        assert "needs-approval" in chips and not {"blocked", "due"} & set(chips), path


def test_plans_that_wait_are_listed_with_the_question_that_is_open(site: Site) -> None:
    waiting = replace(assessment().operations[0], operation="vacuum", needs_approval=True)
    asked = assessment("orders", operations=(waiting,), status="due")
    plan = {**_PLAN, "table": asked.uri}
    outcome = replace(
        run_result().outcomes[0], operation="vacuum", status="needs-approval", result=plan
    )
    site.store.save(asked, run_result(status="blocked", outcomes=(outcome,)))
    page = site.get("/").text
    assert "will be asked about by the next run" in page
    site.store.link_pending("orders", ["vacuum"], "/dags/d/runs/r/tasks/approve")
    page = site.get("/").text
    assert '/dags/d/runs/r/tasks/approve/required_actions" data-leave>Answer' in page
    assert "12 files, 3 GiB 40%" in words(page)
    site.store.link_pending("orders", ["vacuum"], "https://example.com/")
    assert "https://example.com" not in site.get("/").text
    snoozed = PutOff(operation="vacuum", answer="snoozed", until=NOW + timedelta(days=1), at=NOW)
    site.store.put_off("orders", snoozed)
    assert "Waits for approval" not in site.get("/").text


_PLAN = VacuumPlan(
    table="",
    version=3,
    planned_at=NOW,
    options=VacuumOptions(),
    engine="local",
    retention=timedelta(days=7),
    delete_before=NOW,
    files=12,
    bytes=3 << 30,
    groups=(),
    kept=(),
    listed=40,
    live_files=18,
    directories=0,
    sample_directories=(),
    large=None,
    logs_commits=False,
    reason="listed",
).to_json()


def test_an_unknown_table_is_not_found(site: Site) -> None:
    assert site.get("/table?name=nope").status_code == 404
    assert site.get("/run?name=nope").status_code == 404
    assert site.get("/table").status_code == 422


def test_a_table_page_says_what_a_person_looks_for(site: Site) -> None:
    site.store.save(assessment(), run_result())
    text = Elements.of(site.get("/table?name=orders").text).text
    known = health()
    for expected in (
        f"{known.version:,}",
        f"{known.commits_since_checkpoint} commits",
        known.checkpoint_kind,
        f"{known.num_files:,}",
        f"{known.tombstones:,}",
        "121 commits since the checkpoint of version 1000 are more than 100",
        "in 4 days",
        "waits for you",
        "wrote the checkpoint of version 1121",
        "delta.checkpointPolicy",
        "VACUUM END",
        *known.features,
    ):
        assert expected in text, expected


def test_what_an_assessment_finds_is_what_the_page_shows(
    site: Site, neglected_table: TableBuilder, tmp_path: Path
) -> None:
    from delta_maintenance import open_table
    from delta_maintenance.policies.assess import assess_table
    from delta_maintenance.policies.definition.policy import load_policy

    uri = neglected_table.store.root
    site.policy.write_text(
        "version: 1\n"
        "defaults: {checkpoint: {max_commits: 5}, vacuum: true, other_writers: none}\n"
        f"tables: [{{name: neglected, uri: {uri}}}, {{name: gone, uri: {tmp_path}/gone}}]\n"
    )
    for table in load_policy(site.policy).named_tables:
        site.store.save(assess_table(open_table(table.uri), table, now=NOW))
    text = Elements.of(site.get("/table?name=neglected").text).text
    assert "10 commits" in text
    assert "v2Checkpoint" in text
    assert "9 – version" not in text
    assert Elements.of(site.get("/table?name=neglected").text).text.count("As a table") == 3
    rows = site.get("/").text
    assert "operation=checkpoint" in rows
    gone = site.get("/table?name=gone").text
    assert "failed" in gone and f"{tmp_path}/gone" in gone


def test_the_form_is_filled_in_for_one_table_and_operation(site: Site) -> None:
    site.store.save(assessment())
    (form,) = [
        attributes
        for tag, attributes in Elements.of(
            site.get("/run?name=orders&operation=vacuum").text
        ).started
        if tag == "form"
    ]
    assert form["data-api"] == "/api/v2/dags/delta_manual"
    assert form["data-values"] == ('{"table_uri": "s3://lake/sales/orders", "operation": "vacuum"}')
    assert "drop-everything" not in site.get("/run?name=orders&operation=drop-everything").text
    drop = site.get("/run?name=orders&operation=drop-feature").text
    assert "&#34;operation&#34;: &#34;drop-feature&#34;" in drop
    assert "deletes nothing before the plan is approved" in drop


@pytest.fixture
def lake(site: Site) -> Callable[[str], list[str]]:
    """The names that a query shows, in order, of two dozen tables."""
    site.policy.write_text("version: 1\ntables: [{pattern: 's3://lake/**'}]\n")
    fill(site.store, 24)

    def names(query: str) -> list[str]:
        text = site.get(f"/?{query}").text
        return [unescape(name) for name in re.findall(r'<a class="name"[^>]*>(.*?)</a>', text)]

    return names


def test_rows_can_be_filtered(lake: Callable[[str], list[str]]) -> None:
    assert len(lake("")) == 24
    assert set(lake("q=ORDERS")) == {"bronze/orders_0000", "silver/orders_0016", "gold/orders_0008"}
    assert lake("q=gold+orders") == ["gold/orders_0008"]
    assert lake("q=no-such-table") == []
    assert all(int(name[-4:]) % 9 == 3 for name in lake("status=failed"))
    assert all(int(name[-4:]) % 9 == 5 for name in lake("operation=vacuum"))
    assert lake("status=no-such-status") == []


@pytest.mark.parametrize(
    "column",
    ["version", "commits", "log-bytes", "files", "small-files", "tombstones", "reclaimable"],
)
def test_rows_can_be_sorted_with_what_is_unknown_last(
    lake: Callable[[str], list[str]], site: Site, column: str
) -> None:
    from delta_maintenance_airflow.health_page.rows import COLUMNS, put_together

    rows = {row.name: row for row in put_together(site.store.load_all(), PolicyFile(None).tables())}
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
def test_every_other_column_sorts_too(lake: Callable[[str], list[str]], column: str) -> None:
    assert sorted(lake(f"sort={column}")) == sorted(lake(f"sort={column}&order=desc"))
    assert lake(f"sort={column}") != lake(f"sort={column}&order=desc")
    assert len(lake("sort=no-such-column")) == 24


def test_many_tables_come_in_pages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from delta_maintenance_airflow.health_page import rows

    monkeypatch.setattr(rows, "PAGE_SIZE", 10)
    site.policy.write_text("version: 1\ntables: [{pattern: 's3://lake/**'}]\n")
    fill(site.store, 24)
    seen: list[str] = []
    for page in (1, 2, 3):
        text = site.get(f"/?sort=name&page={page}").text
        assert f"Page {page} of 3" in text
        seen += re.findall(r'<a class="name"[^>]*>(.*?)</a>', text)
    assert len(seen) == len(set(seen)) == 24
    assert "Page 3 of 3" in site.get("/?page=99").text
    assert site.get("/?page=0").status_code == 422


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
    assert json.loads(run.stdout.splitlines()[-1]) == ["delta_maintenance_airflow.plugin"]


def test_ages_are_told_from_the_moment_of_the_visit(site: Site) -> None:
    site.store.save(assessment(assessed_at=NOW - timedelta(days=3)))
    assert "3 days ago" in site.get("/table?name=orders").text


def words(page: str) -> str:
    """The text of a page, with single blanks."""
    return " ".join(Elements.of(page).text.split())


class Elements(HTMLParser):
    """The elements of a page, as a browser would find them."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    @classmethod
    def of(cls, page: str) -> Elements:
        parser = cls()
        parser.feed(page)
        parser.close()
        return parser

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.started.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data
