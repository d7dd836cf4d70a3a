"""The ratified commits that Unity Catalog states, by the Delta API and by what came before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs import CatalogTable, ManagedState, open_catalog
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import CatalogError
from tests.support.servers.unity_delta import TOKEN, UnityServer, UnityTable, serve_unity

pytestmark = pytest.mark.server

_NAME = CatalogName(CatalogKind.UNITY, ("main", "s", "t"))


@pytest.fixture(params=["delta api", "before it"])
def unity(request: pytest.FixtureRequest) -> Iterator[UnityServer]:
    with serve_unity() as server:
        server.old = request.param == "before it"
        server.add("main.s.t", UnityTable(location="s3://lake/t", managed=True))
        yield server


def staged(version: int, **changes: Any) -> dict[str, Any]:
    """A commit with the names of the Delta API."""
    return {
        "version": version,
        "timestamp": 1_000 + version,
        "file-name": f"{version:020}.0a1b2c3d-0000-4000-8000-000000000000.json",
        "file-size": 10 + version,
        "file-modification-timestamp": 2_000 + version,
        **changes,
    }


def _state(unity: UnityServer, table: CatalogTable | None = None) -> ManagedState:
    options = {"token": TOKEN}
    settings = CatalogSettings(kind=CatalogKind.UNITY, address=unity.url, options=options)
    with open_catalog(settings) as catalog:
        state = catalog.managed_state(table or catalog.resolve(_NAME))
    assert state is not None
    return state


@pytest.mark.parametrize("commits", [0, 1, 2, 3, 7])
def test_all_commits_are_stated_in_order(unity: UnityServer, commits: int) -> None:
    table = unity.tables["main.s.t"]
    table.latest = 9
    table.commits = [staged(version) for version in range(10 - commits, 10)]
    state = _state(unity)
    assert state.latest_version == 9
    assert [each.version for each in state.commits] == [*range(10 - commits, 10)]
    for each in state.commits:
        assert each.file_name.startswith(f"{each.version:020}.")
        assert (each.size, each.modified_ms, each.timestamp_ms) == (
            10 + each.version,
            2_000 + each.version,
            1_000 + each.version,
        )


def test_permissions_are_those_that_are_known(unity: UnityServer) -> None:
    unity.tables["main.s.t"].allowed = ["METADATA_CLEANUP", "REPAINTING"]
    expected = frozenset() if unity.old else {"METADATA_CLEANUP"}
    assert _state(unity).allowed_maintenance == expected


@pytest.mark.parametrize(
    ("latest", "commits", "problem"),
    [
        (5, [staged(3), staged(5)], "commits that do not lead to its latest version 5"),
        (5, [staged(3), staged(4)], "commits that do not lead to its latest version 5"),
        (5, [staged(5, **{"file-name": "../../x.json"})], "file '../../x.json' as version 5"),
        (5, [staged(5, **{"file-name": None})], "file None as version 5"),
        (5, [staged(5, **{"file-name": "x" * 9_000})], r"file 'xxx.*xxx' as version 5"),
        (5, [staged(5, **{"file-size": "1"})], "a commit in an unknown form"),
        (5, [staged(5, **{"file-name": staged(4)["file-name"]})], "as version 5"),
        ("5", [staged(5)], "no latest version"),
        (None, [], "no latest version"),
        (-1, [], "no latest version"),
        (2**63 - 1, [], "no latest version"),
    ],
)
def test_a_contradiction_is_refused(
    unity: UnityServer, latest: Any, commits: list[dict[str, Any]], problem: str
) -> None:
    unity.tables["main.s.t"].latest = latest
    unity.tables["main.s.t"].commits = commits
    with pytest.raises(CatalogError, match=problem) as caught:
        _state(unity)
    assert "uc://main.s.t" in str(caught.value)


def test_a_server_that_repeats_a_page_is_not_asked_for_ever() -> None:
    with serve_unity() as unity:
        unity.old = True
        unity.add("main.s.t", UnityTable(location="s3://lake/t", managed=True, latest=9))
        page = {name.replace("-", "_"): value for name, value in staged(3).items()}
        repeated = {"commits": [page], "latest_table_version": 9}
        unity.tamper = lambda path, status, answer: (
            (status, repeated) if path.endswith("/commits") else (status, answer)
        )
        with pytest.raises(CatalogError, match="do not lead to its latest version 9"):
            _state(unity)
        assert len(unity.requests) < 6


def test_a_table_that_was_dropped_and_created_again_is_another_one() -> None:
    with serve_unity() as unity:
        unity.add("main.s.t", UnityTable(location="s3://lake/t", managed=True))
        before = CatalogTable(
            name=_NAME, location="s3://lake/t", table_id="former", catalog_managed=True
        )
        with pytest.raises(CatalogError, match="dropped and created again"):
            _state(unity, before)


def test_a_server_is_asked_once_what_it_offers(unity: UnityServer) -> None:
    settings = CatalogSettings(kind=CatalogKind.UNITY, address=unity.url, options={"token": TOKEN})
    with open_catalog(settings) as catalog:
        table = catalog.resolve(_NAME)
        for _ in range(3):
            catalog.managed_state(table)
    assert sum("/config" in request for request in unity.requests) == 1


def test_ordinary_tables_have_no_state(unity: UnityServer) -> None:
    unity.tables["main.s.t"].managed = False
    settings = CatalogSettings(kind=CatalogKind.UNITY, address=unity.url, options={"token": TOKEN})
    with open_catalog(settings) as catalog:
        assert catalog.managed_state(catalog.resolve(_NAME)) is None
