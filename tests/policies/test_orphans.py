"""Tables that nobody names: what is found, what is known under another spelling, what is in use."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.address import Address
from delta_maintenance.catalogs import CatalogTable
from delta_maintenance.errors import CatalogUnavailableError
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.definition.rules import Rules
from delta_maintenance.policies.discovery import Discovery, discover
from delta_maintenance.policies.orphans import Orphans, _Places, find_orphans
from delta_maintenance.policies.tree_search import tables_in_first
from delta_maintenance.storage import open_store
from tests.support.catalogs.in_memory import InMemoryCatalog, catalog_table, use_catalogs
from tests.support.tables.actions import Action, add, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

NOW = datetime(2026, 11, 26, tzinfo=UTC)
LAKE = {"kind": "unity", "address": "https://lake", "catalog": "prod"}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The folder that is searched. Its name reads differently if it is decoded."""
    folder = tmp_path / "la ke%20ü"
    folder.mkdir()
    return folder


def table(folder: Path, *actions: Action) -> Path:
    builder = TableBuilder(str(folder))
    builder.commit([protocol(), metadata()])
    builder.commit(actions or [add("part-1.parquet")])
    (folder / "part-1.parquet").write_bytes(b"x" * 1000)
    return folder


def policy(*tables: Mapping[str, Any], **catalogs: Mapping[str, Any]) -> Policy:
    return Policy.from_json({"version": 1, "catalogs": catalogs, "tables": list(tables)})


def orphans(document: Policy, *under: Path) -> Orphans:
    return find_orphans(document, [str(each) for each in under], now=NOW)


def names(found: Orphans) -> list[str]:
    return [Path(each.uri).name for each in found.orphans]


def in_catalog(monkeypatch: pytest.MonkeyPatch, *tables: CatalogTable) -> type[InMemoryCatalog]:
    monkeypatch.setitem(discover.__kwdefaults__, "pauses", ())
    return use_catalogs(monkeypatch, {"https://lake": tables})


def test_tables_of_the_policy_are_known_and_excluded_ones_are_no_orphans(lake: Path) -> None:
    for path in ("named", "bronze/a", "bronze/tmp/b", "lost/c"):
        table(lake / path)
    found = orphans(
        policy(
            {"uri": str(lake / "named")},
            {"pattern": f"{lake}/bronze/**", "exclude": [f"{lake}/bronze/tmp"]},
        ),
        lake,
    )
    assert names(found) == ["c"]
    assert (found.known, found.excluded, found.failures) == (2, 1, ())


def test_an_orphan_has_its_bytes_and_its_last_commit(lake: Path) -> None:
    folder = table(lake / "sales" / "old")
    (folder / "day=1").mkdir()
    (folder / "day=1" / "part-2.parquet").write_bytes(b"x" * 500)
    [orphan] = orphans(policy(), lake).orphans
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert orphan.uri == str(folder)
    assert (orphan.files, orphan.version) == (len(files), 1)
    assert orphan.size == sum(file.stat().st_size for file in files)
    newest = (folder / "_delta_log" / f"{1:020}.json").stat().st_mtime
    assert orphan.last_commit is not None
    assert abs(orphan.last_commit.timestamp() - newest) < 0.002


def test_a_log_without_commits_is_an_orphan_without_version(lake: Path) -> None:
    (lake / "empty" / "_delta_log").mkdir(parents=True)
    [orphan] = orphans(policy(), lake).orphans
    assert (orphan.size, orphan.version, orphan.last_commit) == (0, None, None)


@pytest.mark.parametrize("stray", [None, "_kept_versions/a.json", "00000000000000000007.tmp/x"])
@pytest.mark.parametrize("above", [".", "bronze", "bronze/a"])
def test_a_log_without_versions_hides_no_table_below_it(
    lake: Path, above: str, stray: str | None
) -> None:
    for path in ("bronze/a/1", "bronze/a/2", "bronze/b"):
        table(lake / path)
    # What is inside of a table belongs to it.
    (lake / "bronze" / "b" / "day=1" / "_delta_log").mkdir(parents=True)
    log = lake / above / "_delta_log"
    log.mkdir()
    (lake / "bronze" / "empty" / "_delta_log").mkdir(parents=True)
    if stray is not None:
        (log / stray).parent.mkdir()
        (log / stray).write_bytes(b"{}")
    assert sorted(names(orphans(policy(), lake))) == ["1", "2", "b", "empty"]
    found = discover(policy({"pattern": f"{lake}/**"})).tables
    assert sorted(Path(each.uri).name for each in found) == ["1", "2", "b", "empty"]
    # As stores do that list everything at once.
    listing = tables_in_first(open_store(str(lake), {}), batches=1000)
    assert sorted(Path(each).name for each in listing) == ["1", "2", "b"]


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}"])
def test_every_table_of_a_catalog_is_known_in_any_form_of_its_address(
    lake: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    table(lake / "known")
    table(lake / "unknown")
    where = str(lake / "known")
    if form.startswith("file:"):
        where = str(Address("file", "", where, before="file://"))
    else:
        where = form.format(where)
    in_catalog(monkeypatch, catalog_table("uc://prod.a.known", where))
    # The policy asks for no table of the catalog.
    found = orphans(policy(lake=LAKE), lake)
    assert names(found) == ["unknown"]
    assert found.known == 1


def test_a_catalog_that_fails_leaves_the_search_incomplete(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(lake / "t")
    server = in_catalog(monkeypatch)
    server.broken["https://lake"] = CatalogUnavailableError("it does not answer")
    found = orphans(policy(lake=LAKE), lake)
    assert names(found) == ["t"]
    assert [failure.where for failure in found.failures] == ["catalogs.lake"]


def test_a_catalog_that_lists_nothing_leaves_the_search_incomplete(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(lake / "t")
    in_catalog(monkeypatch)
    found = orphans(policy(lake=LAKE), lake)
    [failure] = found.failures
    assert (failure.where, failure.error.exit_status) == ("catalogs.lake", 3)
    assert "grant the right to list tables" in str(failure.error)


def test_the_source_of_a_shallow_clone_is_in_use(lake: Path) -> None:
    source = table(lake / "source")
    similar = table(lake / "sour")
    gone = table(lake / "gone")
    removed = f"{gone}/part-1.parquet".replace("%", "%25").replace(" ", "%20")
    file = str(Address("file", "", f"{source}/part-1.parquet", before="file://"))
    clone = table(lake / "clone", add(file), remove(removed))
    found = orphans(policy({"uri": str(clone), "name": "the clone"}), lake)
    assert {(each.uri, each.by) for each in found.referenced} == {
        (str(source), ("the clone",)),
        (str(gone), ("the clone",)),
    }
    assert [each.uri for each in found.orphans] == [str(similar)]


def test_a_known_table_that_cannot_be_read_leaves_the_search_incomplete(lake: Path) -> None:
    table(lake / "source")
    broken = table(lake / "broken")
    for file in (broken / "_delta_log").iterdir():
        file.write_bytes(b"{")
    found = orphans(policy({"uri": str(broken), "name": "broken"}), lake)
    assert names(found) == ["source"]
    assert [failure.where for failure in found.failures] == ["broken"]


def test_a_name_whose_table_is_gone_leaves_no_doubt(lake: Path) -> None:
    table(lake / "t")
    assert orphans(policy({"uri": str(lake / "gone")}), lake).failures == ()


def test_known_tables_below_an_orphan_are_named(lake: Path) -> None:
    outer = table(lake / "outer")
    inner = table(outer / "data" / "inner")
    [orphan] = orphans(policy({"uri": str(inner), "name": "inner"}), lake).orphans
    assert (orphan.uri, orphan.contains) == (str(outer), ("inner",))


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("hdfs://lake/t", "hdfs://namenode:8020/t/", True),
        ("abfss://c@account.dfs.core.windows.net/t", "az://c/t", True),
        ("s3://lake/t", "s3a://lake/t/", True),
        ("s3://lake/t", "s3://other/t", False),
        ("gs://lake/t", "s3://lake/t", False),
    ],
)
def test_a_place_with_several_addresses_is_known_under_each(
    first: str, second: str, equal: bool
) -> None:
    known = _Places(Discovery((PolicyTable(name="t", uri=first, rules=Rules()),)))
    assert known.has(second) == equal


def test_folders_that_overlap_name_a_table_once(lake: Path) -> None:
    table(lake / "a" / "b")
    assert len(orphans(policy(), lake, lake / "a", lake / "a" / "b").orphans) == 1


def test_a_folder_that_cannot_be_searched_hides_no_other(lake: Path) -> None:
    table(lake / "t")
    document = policy({"pattern": "s3://closed/**", "storage": {"options": {"nonsense": "1"}}})
    found = find_orphans(document, ["s3://closed/x", str(lake)], now=NOW)
    assert names(found) == ["t"]
    assert "s3://closed/x" in {failure.where for failure in found.failures}


@given(
    st.lists(
        st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/\\"))
        .filter(lambda name: name and name[0] not in "._")
        .map(lambda name: name[:40]),
        max_size=4,
        unique_by=lambda name: name.casefold(),
    )
)
def test_any_folder_is_found_or_known(
    tmp_path_factory: pytest.TempPathFactory, folders: list[str]
) -> None:
    lake = tmp_path_factory.mktemp("lake")
    for folder in folders:
        (lake / folder / "_delta_log").mkdir(parents=True)
        (lake / folder / "_delta_log" / f"{7:020}.json").write_bytes(b"{}")
    found = orphans(policy(*({"uri": f"{lake}/{folder}"} for folder in folders[:1])), lake)
    assert {each.uri for each in found.orphans} == {f"{lake}/{folder}" for folder in folders[1:]}
    assert all(each.version == 7 for each in found.orphans)


def test_the_ledger_of_the_policy_is_known(lake: Path) -> None:
    for path in ("named", "ledger"):
        table(lake / path)
    document = policy({"uri": str(lake / "named")})
    assert names(orphans(document, lake)) == ["ledger"]
    with_ledger = Policy.from_json({**document.to_json(), "ledger": {"uri": str(lake / "ledger")}})
    found = orphans(with_ledger, lake)
    assert (names(found), found.known) == ([], 2)
