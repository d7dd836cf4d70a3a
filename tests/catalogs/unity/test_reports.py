"""Reports of published commits, and what a server of Unity Catalog answers to changes."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs import CatalogTable, open_catalog
from delta_maintenance.catalogs.catalog import Catalog
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import CatalogError, CatalogUnavailableError
from tests.support.servers.unity_delta import (
    MOST_COMMITS,
    TOKEN,
    UnityServer,
    UnityTable,
    serve_unity,
)

pytestmark = pytest.mark.server

_NAME = CatalogName(CatalogKind.UNITY, ("main", "s", "t"))
_PATH = "/api/2.1/unity-catalog/delta/v1/catalogs/main/schemas/s/tables/t"
_OTHER = "99999999-2222-3333-4444-555555555555"


@pytest.fixture(params=["delta api", "before it"])
def unity(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnityServer]:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with serve_unity() as server:
        server.old = request.param == "before it"
        server.add("main.s.t", UnityTable(location="s3://lake/t", managed=True))
        yield server


@pytest.fixture
def server() -> Iterator[UnityServer]:
    with serve_unity() as running:
        running.add("main.s.t", UnityTable(location="s3://lake/t", managed=True))
        yield running


@pytest.fixture
def catalog(unity: UnityServer) -> Iterator[Catalog]:
    options = {"token": TOKEN}
    settings = CatalogSettings(kind=CatalogKind.UNITY, address=unity.url, options=options)
    with open_catalog(settings) as client:
        yield client


def commit(version: int, writer: int = 0) -> dict[str, Any]:
    return {
        "version": version,
        "timestamp": 1_000 + version,
        "file-name": f"{version:020}.{writer:08}-0000-4000-8000-000000000000.json",
        "file-size": 1,
        "file-modification-timestamp": 2_000,
    }


def body(*updates: dict[str, Any], uuid: str | None = UnityTable(location="").table_id) -> Any:
    requirements = [{"type": "assert-table-uuid", "uuid": uuid}] if uuid is not None else []
    return {"requirements": requirements, "updates": [*updates]}


def adding(version: int, writer: int = 0, **more: Any) -> dict[str, Any]:
    return {"action": "add-commit", "commit": commit(version, writer), **more}


def reporting(version: int) -> dict[str, Any]:
    return {"action": "set-latest-backfilled-version", "latest-published-version": version}


def post(server: UnityServer, document: Any) -> tuple[int, str]:
    """The status and the kind of error of an answer."""
    request = urllib.request.Request(
        server.url + _PATH,
        data=json.dumps(document).encode(),
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]["type"]


def _fill(server: UnityServer, commits: int) -> UnityTable:
    for version in range(1, commits + 1):
        assert post(server, body(adding(version))) == (200, "")
    return server.tables["main.s.t"]


def _versions(table: UnityTable) -> list[int]:
    return [entry["version"] for entry in table.commits]


_CONFLICT = (409, "CommitVersionConflictException")
_INVALID = (400, "InvalidParameterValueException")


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        pytest.param(body(adding(4), uuid=None), _INVALID, id="no uuid"),
        pytest.param(
            body(adding(4), uuid=_OTHER),
            (409, "UpdateRequirementConflictException"),
            id="another uuid",
        ),
        pytest.param(body(adding(3, writer=1)), _CONFLICT, id="taken"),
        pytest.param(body(adding(3)), (200, ""), id="resent"),
        pytest.param(body(adding(1)), _CONFLICT, id="resent and forgotten"),
        pytest.param(body(adding(5)), _INVALID, id="gap"),
        pytest.param(body(reporting(4)), _INVALID, id="report above the latest"),
        pytest.param(body(reporting(0)), _INVALID, id="report of an older version"),
        pytest.param(body(reporting(2), reporting(3)), _INVALID, id="two of a kind"),
    ],
)
def test_a_change_that_changes_nothing(
    server: UnityServer, document: Any, answer: tuple[int, str]
) -> None:
    table = _fill(server, 3)
    assert post(server, body(reporting(1))) == (200, "")
    assert post(server, document) == answer
    assert (table.latest, _versions(table)) == (3, [2, 3])


def test_later_releases_answer_500_to_a_commit_that_is_sent_again(server: UnityServer) -> None:
    _fill(server, 2)
    server.later = True
    assert post(server, body(reporting(2))) == (200, "")
    assert post(server, body(adding(1))) == (500, "CommitStateUnknownException")


def test_an_eleventh_commit_waits_for_a_report(server: UnityServer) -> None:
    table = _fill(server, MOST_COMMITS)
    assert post(server, body(adding(11))) == (429, "ResourceExhaustedException")
    assert (table.latest, len(table.commits)) == (10, 10)
    # A report in the same request counts first.
    assert post(server, body(adding(11), reporting(1))) == (200, "")
    assert _versions(table) == [*range(2, 12)]


def test_what_clients_say_of_commits_is_not_examined(server: UnityServer) -> None:
    table = _fill(server, 3)
    assert post(server, body(reporting(3))) == (200, "")
    assert (table.latest, table.commits) == (3, [])


def test_a_table_for_iceberg_readers_needs_a_block_in_each_commit(server: UnityServer) -> None:
    table = server.tables["main.s.t"]
    table.uniform = True
    assert post(server, body(adding(1))) == _INVALID
    assert post(server, body(adding(1, uniform={}))) == (200, "")


def test_rights_filter_lists_and_refuse_changes(server: UnityServer) -> None:
    table = _fill(server, 1)
    table.rights = frozenset(("READ",))
    assert post(server, body(reporting(1))) == (403, "PermissionDeniedException")
    table.rights = frozenset()
    assert server.answer("GET", "/api/2.1/unity-catalog/tables", f"Bearer {TOKEN}", {}) == (
        200,
        {"tables": []},
    )


def _listed(unity: UnityServer, catalog: Catalog, commits: int) -> CatalogTable:
    table = unity.tables["main.s.t"]
    table.latest = commits
    table.commits = [commit(version) for version in range(1, commits + 1)]
    return catalog.resolve(_NAME)


def test_a_report_names_the_table_by_its_id_and_takes_one_request(
    unity: UnityServer, catalog: Catalog
) -> None:
    table = _listed(unity, catalog, 3)
    catalog.managed_state(table)
    unity.requests.clear()
    catalog.report_published(table, 2)
    assert _versions(unity.tables["main.s.t"]) == [3]
    assert len(unity.requests) == 1 and unity.requests[0].startswith("POST ")


def test_a_report_may_be_repeated(unity: UnityServer, catalog: Catalog) -> None:
    table = _listed(unity, catalog, 3)
    for version in (2, 2, 1, 3, 3, 2):
        catalog.report_published(table, version)
    assert unity.tables["main.s.t"].commits == []


Change = Callable[[], Any]


def _down(_: Change) -> Any:
    return 500, {"error": {"type": "InternalServerErrorException", "message": "m"}}


def _locked(_: Change) -> Any:
    return 409, {"error": {"type": "UpdateRequirementConflictException", "message": "m"}}


def _hurried(_: Change) -> Any:
    return 429, {"error": {"type": "TooManyRequestsException", "message": "m"}}


def _dropped(_: Change) -> Any:
    return None, {}


def _lost(change: Change) -> Any:
    change()
    return None, {}


def _unsure(change: Change) -> Any:
    change()
    return 500, {"error": {"type": "CommitStateUnknownException", "message": "m"}}


def _garbled(change: Change) -> Any:
    change()
    return 200, b"<html>"


def _empty(change: Change) -> Any:
    change()
    return 200, {}


_FAULTS = (_down, _locked, _hurried, _dropped, _lost, _unsure, _garbled, _empty)


@pytest.mark.parametrize("fault", _FAULTS)
@pytest.mark.parametrize("times", [1, 3])
def test_a_report_survives_a_fault(
    unity: UnityServer, catalog: Catalog, fault: Callable[[Change], Any], times: int
) -> None:
    table = _listed(unity, catalog, 3)
    left = [fault] * times
    unity.spoil = lambda change: left.pop()(change) if left else change()
    catalog.report_published(table, 3)
    assert unity.tables["main.s.t"].commits == []


@pytest.mark.parametrize("fault", [_down, _locked, _hurried, _dropped])
def test_a_fault_that_stays_ends_in_an_error_to_try_again(
    unity: UnityServer, catalog: Catalog, fault: Callable[[Change], Any]
) -> None:
    table = _listed(unity, catalog, 3)
    unity.spoil = fault
    with pytest.raises(CatalogUnavailableError, match="uc://main.s.t") as caught:
        catalog.report_published(table, 3)
    assert caught.value.retryable and caught.value.remedy
    assert not any(secret in str(caught.value) for secret in unity.canaries())
    assert _versions(unity.tables["main.s.t"]) == [1, 2, 3]
    assert sum(line.startswith("POST") for line in unity.requests) == 4


def test_a_report_above_the_latest_version_is_refused(unity: UnityServer, catalog: Catalog) -> None:
    table = _listed(unity, catalog, 3)
    # The server looks for the published files since unitycatalog#1912, with the same answer.
    unity.spoil = lambda _: (
        400,
        {"error": {"type": "InvalidParameterValueException", "message": f"no {TOKEN}"}},
    )
    with pytest.raises(CatalogError, match="refuses the report that uc://main.s.t is") as caught:
        catalog.report_published(table, 3)
    assert not caught.value.retryable and TOKEN not in str(caught.value)
    assert sum(line.startswith("POST") for line in unity.requests) == 1


def test_a_catalog_that_is_behind_takes_no_report(unity: UnityServer, catalog: Catalog) -> None:
    table = _listed(unity, catalog, 3)
    # It was restored from a backup, and lists nothing.
    unity.tables["main.s.t"].latest, unity.tables["main.s.t"].commits = 1, []
    with pytest.raises(CatalogError, match="published up to version 3"):
        catalog.report_published(table, 3)


def test_a_report_without_the_right_names_it(unity: UnityServer, catalog: Catalog) -> None:
    table = _listed(unity, catalog, 3)
    unity.tables["main.s.t"].rights = frozenset(("READ",))
    with pytest.raises(CatalogError, match="SELECT and MODIFY"):
        catalog.report_published(table, 3)


def test_a_table_that_was_made_again_takes_no_report(unity: UnityServer, catalog: Catalog) -> None:
    table = _listed(unity, catalog, 3)
    unity.tables["main.s.t"].table_id = _OTHER
    problem = "does not know uc://main.s.t" if unity.old else "dropped and created again"
    with pytest.raises(CatalogError, match=problem):
        catalog.report_published(table, 3)
    assert _versions(unity.tables["main.s.t"]) == [1, 2, 3]
    unity.tables.clear()
    with pytest.raises(CatalogError, match="does not know uc://main.s.t"):
        catalog.report_published(replace(table, table_id=_OTHER), 3)


def test_other_catalogs_take_no_reports() -> None:
    settings = CatalogSettings(kind=CatalogKind.POLARIS, address="https://host", options={})
    table = CatalogTable(name=_NAME, location="s3://lake/t")
    with open_catalog(settings) as client, pytest.raises(CatalogError, match="takes no reports"):
        client.report_published(table, 3)
