"""The fake servers answer as the models of the catalogs' own clients say."""

from __future__ import annotations

import pytest

from delta_maintenance.address import Access, CatalogName
from delta_maintenance.catalogs import Aspect, open_catalog
from delta_maintenance.errors import CatalogError
from tests.catalogs.conftest import PROFILES
from tests.catalogs.test_listing import listed
from tests.support.catalogs.catalog_server import Answer, CatalogServer, Entry, Refusal
from tests.support.catalogs.official_models import ModelsUnavailable, problems_of

pytestmark = [pytest.mark.server, pytest.mark.process]

_UNCHECKED = {"Warehouses", "UnityError"}
"""Answers for which no client has a model."""


@pytest.fixture(scope="module")
def available() -> None:
    """Skips the tests if the models cannot be installed."""
    try:
        problems_of([])
    except ModelsUnavailable as reason:
        pytest.skip(f"NO OFFICIAL MODELS: {reason}")


@pytest.mark.usefixtures("available")
def test_every_answer_fits_its_model() -> None:
    answers: list[Answer] = []
    for profile in PROFILES:
        server = profile()
        with server.running():
            _exercise(server)
        checked = [answer for answer in server.answers if answer[0] not in _UNCHECKED]
        assert len({model for model, _ in checked}) >= 5
        answers += checked
    assert problems_of(answers) == []


def _exercise(server: CatalogServer) -> None:
    """Brings every kind of answer about."""
    options = server.with_client_credentials()
    server.page_size, server.empty_pages = 2, True
    full = Entry(location="s3://b/t", owner="team", comment="text", properties={"a": "b"})
    name = server.add("prod", "sales", "orders", entry=full)
    for number in range(5):
        server.add("prod", "sales", f"t{number}")
    server.add("prod", "sales", "csv", entry=Entry(location="s3://b/c", format="CSV"))
    server.add("prod", "sales", "gone", entry=Entry(location="s3://b/g", deleted=True))
    server.add("prod", "broken", "t")
    server.failing["prod", "broken"] = Refusal(403, "ForbiddenException", "no rights")
    server.credentials = [{"prefix": "s3://b", "config": {"s3.access-key-id": "key"}}]
    with open_catalog(server.settings(token="", **options)) as catalog:
        (table, *_) = listed(catalog).tables
        server.tags = {name.parts[:1]: {"a": "1", "b": "", "c": "3"}, name.parts: {"d": "4"}}
        server.owners = {name.parts: "team-a"}
        catalog.describe(listed(catalog).tables, frozenset(Aspect))
        catalog.hidden_tags({"d", "none"})
        catalog.resolve(name)
        catalog.credentials(table, Access.READ)
        catalog.check()
        with pytest.raises(CatalogError):
            catalog.resolve(CatalogName(server.kind, ("prod", "sales", "none")))


@pytest.mark.usefixtures("available")
def test_the_check_notices_wrong_answers() -> None:
    wrong: list[Answer] = [
        ("ListTablesResponse", {"tables": [{"name": "t", "locaton": "s3://b"}]}),
        ("TableInfo", {"data_source_format": "NOTHING"}),
        ("DatabricksListTablesResponse", {"tables": [{"name": "t", "locaton": "s3://b"}]}),
        ("PolarisLoadGenericTableResponse", {"table": {"name": "t"}}),
        ("LakekeeperLoadGenericTableResponse", {"table": {"name": "t", "format": "delta"}}),
        ("LakekeeperListGenericTablesResponse", {"tables": ["t"]}),
        ("GravitinoTableResponse", {"code": 0, "table": {"name": ""}}),
        ("Unknown", {}),
    ]
    assert [line.partition(":")[0] for line in problems_of(wrong)] == [name for name, _ in wrong]
