"""The page with the form for manual runs, and the check of its answers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.orchestrators.health_site import Elements, Site, words
from tests.support.tables.assessed_tables import assessment

# Of Airflow's own imports, which come with the first of these tests.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")


def test_the_form_has_the_fields_of_an_operation(site: Site) -> None:
    site.store.save(assessment())
    page = site.get("/run?name=orders&operation=vacuum").text
    elements = Elements.of(page)
    (form,) = [each for tag, each in elements.started if tag == "form" and each["id"] == "run"]
    assert form["data-api"] == "/api/v2"
    assert form["data-uri"] == "s3://lake/sales/orders" and form["data-operation"] == "vacuum"
    assert "data-plans-first" in form
    fields = {each["name"]: each for _, each in elements.started if "data-option" in each}
    assert {"mode", "retention", "clones", "allow_short_retention"} <= set(fields)
    assert "operation_id" not in fields
    assert "deletes" in words(page)
    # What shortens a retention is hidden until a Dag is chosen that allows it.
    short = page[page.index('<fieldset id="short" hidden>') : page.index("</fieldset>")]
    assert short.count("data-option") == 2
    checkpoint = site.get("/run?name=orders&operation=checkpoint").text
    assert "data-plans-first" in checkpoint and "fieldset" not in checkpoint
    assert '<details class="advanced">' in page and "Show the plan" in checkpoint
    assert "data-plans-first" not in site.get("/run?name=orders&operation=layout").text
    unknown = site.get("/run?name=orders&operation=drop-everything").text
    assert "drop-everything" not in unknown and 'id="run"' not in unknown
    assert "Choose an operation" in unknown
    drop = site.get("/run?name=orders&operation=drop-feature").text
    assert re.search(r'id="option-feature".* required', drop)


def test_the_form_shows_the_values_of_the_policy(site: Site) -> None:
    site.store.save(assessment())
    site.policy.write_text(
        "version: 1\n"
        "defaults: {vacuum: {retention: 14 days}, other_writers: spark}\n"
        "tables: [{name: orders, uri: s3://lake/sales/orders}]\n"
    )
    page = site.get("/run?name=orders&operation=vacuum").text
    assert 'placeholder="14 days (policy)"' in page
    assert "spark (policy)" in page and "full (default)" in page


def test_the_server_checks_the_options_of_a_form(site: Site) -> None:
    def ask(operation: str, **options: object) -> Any:
        asked = {"operation": operation, "options": options}
        response = site.get("/options", method="POST", json=asked)
        assert response.status_code == 200
        return response.json()

    assert ask("vacuum", retention="14 days", mode="lite") == {
        "options": {"retention": "14 days", "mode": "lite"},
        "problems": {},
    }
    wrong = ask("vacuum", retention="a while", mode="light", retentoin="1 day")
    assert wrong["options"] == {} and set(wrong["problems"]) == {"retention", "mode", ""}
    assert "'retention', if that was meant" in wrong["problems"][""]
    assert "is not installed" in ask("drop-everything")["problems"][""]
    assert site.get("/options", role=None, method="POST").status_code == 401
    assert site.get("/options", method="GET").status_code == 405
