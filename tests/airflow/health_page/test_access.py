"""Access to the health page, and texts of other people on it."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from delta_maintenance.operations.health.models import Refusal
from delta_maintenance_airflow.plugin import URL_PREFIX
from tests.support.orchestrators.health_site import POLICY, Elements, Site, token
from tests.support.tables.assessed_tables import assessment, health, run_result

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


def test_data_requires_signing_in(site: Site) -> None:
    site.store.save(assessment())
    for path in ("/", "/table?name=orders", "/run?name=orders", "/?q=orders"):
        response = site.get(path, role=None)
        assert response.status_code == 401
        assert "orders" not in response.text.replace("/run?name=orders", "")
        assert "Please sign in" in response.text


def test_a_forged_token_is_rejected(site: Site) -> None:
    response = site.get("/", role=None, cookie="e30.e30.e30")
    assert response.status_code == 403


def test_the_session_cookie_of_airflow_is_accepted(site: Site) -> None:
    assert site.get("/", role=None, cookie=token("viewer")).status_code == 200


def test_a_user_without_a_role_is_rejected(site: Site) -> None:
    assert site.get("/", role="none").status_code == 403


@pytest.mark.parametrize("path", ["/", "/table?name=orders", "/run?name=orders"])
def test_a_viewer_sees_every_page(site: Site, path: str) -> None:
    site.store.save(assessment())
    response = site.get(path)
    assert response.status_code == 200
    assert "orders" in response.text


def test_every_route_requires_authentication(site: Site) -> None:
    """Except style sheets and scripts, which contain no data."""
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
    """The pages only show; the form starts a run through Airflow's own interface, and only
    `/acknowledge` takes a form (`test_acknowledge`).
    """
    before = sorted(path.name for path in site.policy.parent.rglob("*"))
    for path in ("/", "/table?name=orders", "/run?name=orders&operation=vacuum"):
        assert site.get(path, method=method).status_code == 405
    assert sorted(path.name for path in site.policy.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["../policy.yaml", "/etc/passwd", "..%2f..%2fpolicy", "http://169.254.169.254/", "a\0b"]
)
def test_only_names_of_known_tables_are_served(site: Site, name: str) -> None:
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
def test_every_response_has_a_content_security_policy(
    site: Site, path: str, role: str | None
) -> None:
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
def test_resources_are_local_and_scripts_are_not_inline(site: Site, path: str) -> None:
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


def test_untrusted_names_and_texts_are_escaped(site: Site) -> None:
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
            (heading,) = re.findall("<h1>(.*?) <span", site.get(path).text)
            found.add(unescape(heading.replace("<wbr>", "")))
    assert found >= set(HOSTILE)


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("/dags/d/runs/r", True),
        ("//evil.example", False),
        ("/dags/d/runs/scheduled__2026-11-26T00:00:00+00:00/tasks/t/mapped/3", True),
        ("/\\evil.example", False),
        ("/\t/evil.example", False),
        ("/\n/evil.example", False),
        ("/\r\\evil.example", False),
        ("\t//evil.example", False),
        (" //evil.example", False),
        ("\\\\evil.example", False),
        ("/dags//evil.example", False),
        ("/..//evil.example", False),
        ("/.%2e/evil.example", False),
        ("/%2E%2e/evil.example", False),
        ("/dags/../../evil.example", False),
        ("/@evil.example/..", False),
        ("/dags?next=//evil.example", False),
        ("/dags#evil", False),
        ("/\u2028/evil.example", False),
        ("/\uff0fevil.example", False),
        ("/\x00/evil.example", False),
        ("", False),
        ("/", False),
        ("https://evil.example", False),
        ("javascript:alert(1)", False),
        (None, False),
    ],
)
def test_the_link_to_a_run_is_within_airflow(site: Site, link: str | None, shown: bool) -> None:
    site.store.save(assessment(), run_result(), link=link)
    for path in ("/", "/table?name=orders"):
        text = site.get(path).text
        assert ("data-leave" in text) == shown
        assert "evil" not in text
