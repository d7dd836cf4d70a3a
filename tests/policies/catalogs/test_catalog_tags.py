"""Conditions on tags that a catalog states only on a further request."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from delta_maintenance import clock
from delta_maintenance.address import CatalogName
from delta_maintenance.catalogs.http import client
from delta_maintenance.cli.main import main
from delta_maintenance.errors import CatalogError
from delta_maintenance.policies.catalogs import CatalogMemory, table_named
from delta_maintenance.policies.definition import Policy
from delta_maintenance.policies.discovery import Discovery, discover, environment_options
from delta_maintenance.storage.local import LocalStore
from tests.cli.test_policies import neglected
from tests.support.catalogs.catalog_server import CatalogServer, Entry, Refusal
from tests.support.catalogs.gravitino_server import GravitinoServer
from tests.support.catalogs.unity_server import DatabricksServer

pytestmark = pytest.mark.server

DENIED = Refusal(403, "PERMISSION_DENIED", "no rights")
ORDERS, HELD = ("prod", "sales", "orders"), ("prod", "sales", "held")
EXCEPT_HELD = (
    {"catalog": "lake.*.*", "where": {"tags": {"hold": "*"}}, "checkpoint": False},
    {"catalog": "lake.**"},
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[DatabricksServer]:
    """Two tables, of which one has the tag `hold`."""
    monkeypatch.setattr(client, "PAUSES", ())
    monkeypatch.setitem(discover.__kwdefaults__, "pauses", ())
    with DatabricksServer().running() as made:
        for parts in (ORDERS, HELD):
            made.add(*parts, entry=Entry(location=f"s3://lake/{parts[-1]}"))
        made.tags[HELD] = {"hold": "legal"}
        yield made


@pytest.fixture
def memory(tmp_path: Path) -> CatalogMemory:
    return CatalogMemory(LocalStore(str(tmp_path / "state")))


def _document(server: CatalogServer, *tables: object, **options: str) -> dict[str, object]:
    lake = {"kind": "unity", "address": server.url, "catalog": "prod", "options": options}
    defaults = {"checkpoint": {"max_commits": 2}}
    return {"version": 1, "defaults": defaults, "catalogs": {"lake": lake}, "tables": list(tables)}


def _found(
    server: DatabricksServer, *tables: object, memory: CatalogMemory | None = None, **options: str
) -> Discovery:
    server.requests.clear()
    document = Policy.from_json(_document(server, *tables, **options))
    return discover(document, memory=memory, pauses=())


def _asked(server: DatabricksServer) -> int:
    return sum("entity-tag-assignments" in request for request in server.requests)


def _named(discovery: Discovery) -> list[str]:
    return [table.name.rpartition(".")[2] for table in discovery.tables]


def test_a_hidden_tag_holds_back_the_tables_whose_rules_it_decides(
    memory: CatalogMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSES", ())
    with GravitinoServer().running() as server:
        for parts in (ORDERS, HELD, ("prod", "hr", "t")):
            server.add(*parts, entry=Entry(location=f"s3://lake/{parts[-1]}"))
        server.add(
            "prod", "sales", "stated", entry=Entry(properties={"hold": "x"}, location="s3://lake/u")
        )
        server.tags[HELD] = {"hold": ""}
        document = _document(
            server,
            {"catalog": "lake.sales.*", "where": {"tags": {"hold": "*"}}, "checkpoint": False},
            {"catalog": "lake.**"},
            metalake="lake",
        )
        document["catalogs"]["lake"]["kind"] = "gravitino"  # type: ignore[index]  # a document of JSON

        def found() -> Discovery:
            return discover(Policy.from_json(document), memory=memory, pauses=())

        started = clock.now()
        kept = {table.name for table in found().complete() if table.rules.checkpoint is None}
        assert kept == {"gravitino://prod.sales.held", "gravitino://prod.sales.stated"}
        server.hidden_tags = frozenset(("hold", "unused"))
        monkeypatch.setattr(clock, "now", lambda: started + timedelta(hours=2))
        discovery = found()
        # Of the others no condition needs a tag, or the property meets it.
        assert _named(discovery) == ["t", "stated"]
        (failure,) = discovery.unlisted
        assert failure.pattern == "gravitino://prod"
        assert "2 of its tables, such as gravitino://prod.sales.held: hold;" in str(failure.error)
        assert "APPLY_TAG" in str(failure.error) and failure.error.exit_status == 3
        server.hidden_tags = frozenset()
        assert len(found().complete()) == 4
        # With the hour of the memory over, the server cannot say it.
        monkeypatch.setattr(clock, "now", lambda: started + timedelta(hours=4))
        server.failing["tags", "hold"] = Refusal(500, "Internal", "broken")
        with pytest.raises(CatalogError, match="tags"):
            found().complete()


def test_tags_are_requested_only_if_a_condition_can_need_them(server: DatabricksServer) -> None:
    assert _named(_found(server, {"catalog": "lake.**"})) == ["held", "orders"]
    assert _asked(server) == 0
    _found(server, {"catalog": "lake.**", "where": {"owner": "team-a"}})
    assert _asked(server) == 0
    tagged = {"catalog": "lake.sales.h*", "where": {"tags": {"hold": "legal"}}}
    assert _named(_found(server, {"catalog": "lake.sales.orders"}, tagged)) == ["held", "orders"]
    # Of the catalog, the schema and the only table of which the condition decides.
    assert _asked(server) == 3
    assert _named(_found(server, tagged, tags="false")) == [] and _asked(server) == 0


def test_a_setting_asks_for_all_tags(server: DatabricksServer) -> None:
    held, orders = _found(server, {"catalog": "lake.**"}, tags="true").complete()
    assert (held.tags, orders.tags) == (("hold=legal",), ())
    assert _asked(server) == 4


def test_conditions_see_inherited_tags(server: DatabricksServer) -> None:
    server.tags["prod", "sales"] = {"hold": "all"}
    rules = {table.name: table.rules.checkpoint for table in _found(server, *EXCEPT_HELD).tables}
    assert len(rules) == 2 and not any(rules.values())


@pytest.mark.parametrize("denied", [HELD, HELD[:2], HELD[:1]])
def test_a_table_of_unknown_tags_is_a_failure_and_no_match(
    server: DatabricksServer, denied: tuple[str, ...], memory: CatalogMemory
) -> None:
    server.failing["tags", *denied] = DENIED
    # Neither an entry without conditions nor one with them applies.
    discovery = _found(server, *EXCEPT_HELD, memory=memory)
    assert _named(discovery) == (["orders"] if denied == HELD else [])
    (failed,) = discovery.unlisted
    assert failed.pattern == f"uc://{'.'.join(denied)}"
    assert failed.error.exit_status == 3
    assert "tags" in str(failed.error)
    with pytest.raises(CatalogError, match="tags"):
        table_named(
            Policy.from_json(_document(server, *EXCEPT_HELD)),
            CatalogName.parse("uc://prod.sales.held"),
            storage_options=lambda rule, _: environment_options(rule),
            memory=memory,
        )


def test_tags_are_remembered_for_a_time(
    server: DatabricksServer, memory: CatalogMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = Policy.from_json(_document(server, *EXCEPT_HELD))
    started = clock.now()

    def held() -> bool:
        table = table_named(
            document,
            CatalogName.parse("uc://prod.sales.held"),
            storage_options=lambda rule, _: environment_options(rule),
            memory=memory,
        )
        return table.rules.checkpoint is None

    _found(server, *EXCEPT_HELD, memory=memory)
    assert _asked(server) == 4
    monkeypatch.setattr(clock, "now", lambda: started + timedelta(minutes=50))
    assert _named(_found(server, *EXCEPT_HELD, memory=memory)) == ["held", "orders"]
    assert held() and _asked(server) == 0
    # The age counts from the request, not from the last run that used its answer.
    server.tags[HELD] = {}
    monkeypatch.setattr(clock, "now", lambda: started + timedelta(minutes=61))
    assert not held() and _asked(server) == 3
    server.failing["tags", *HELD] = DENIED
    assert _named(_found(server, *EXCEPT_HELD, memory=memory)) == ["orders"]


def test_a_table_that_is_created_anew_has_no_remembered_tags(
    server: DatabricksServer, memory: CatalogMemory
) -> None:
    _found(server, *EXCEPT_HELD, memory=memory)
    server.add(*ORDERS, entry=Entry(location="s3://lake/another"))
    _found(server, *EXCEPT_HELD, memory=memory)
    assert _asked(server) == 3


def test_the_command_line_reports_it_and_maintains_the_others(
    server: DatabricksServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for parts in (ORDERS, HELD):
        neglected(tmp_path / parts[-1])
        server.add(*parts, entry=Entry(location=f"file://{tmp_path / parts[-1]}"))
    server.failing["tags", *HELD] = DENIED
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(_document(server, *EXCEPT_HELD)))
    before = {*tmp_path.rglob("*.checkpoint.parquet")}
    assert main(["run", str(path)]) == 3
    shown = capsys.readouterr()
    assert "uc://prod.sales.held" in shown.err and "denies access to the tags" in shown.err
    (written,) = {*tmp_path.rglob("*.checkpoint.parquet")} - before
    assert "/orders/" in str(written)
