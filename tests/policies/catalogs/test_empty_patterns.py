"""Patterns that match no table: a line if they never did, a failure if they did before.

Catalogs answer a caller whose rights were revoked with empty lists, and so does a folder of a store
that is not mounted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.catalogs import Aspect, CatalogListing
from delta_maintenance.cli.main import main
from delta_maintenance.errors import CatalogError
from delta_maintenance.policies.catalogs import CatalogMemory
from delta_maintenance.policies.definition import Policy
from delta_maintenance.policies.discovery import Discovery, discover, environment_options
from delta_maintenance.policies.session import kept_tables, tables_of_catalog
from delta_maintenance.storage.local import LocalStore
from tests.cli.test_policies import neglected
from tests.support.catalogs.in_memory import InMemoryCatalog, catalog_table, use_catalogs

LAKE = {"kind": "unity", "address": "https://lake", "catalog": "prod"}
OTHER = {"kind": "unity", "address": "https://other", "catalog": "dev"}
PATTERN = "lake.sales.*"
REFUSED = 3


class Place:
    """The tables of a policy: some in a catalog, some in a folder, and some that stay."""

    def __init__(self, root: Path, server: type[InMemoryCatalog]) -> None:
        self.root, self.server = root, server
        self.state = root / "state"
        self.config = root / "policy.yaml"
        self.folders = f"{root}/lake/*"
        self.write(PATTERN, self.folders)
        for name in ("lake/a", "lake/b", "orders", "other"):
            neglected(root / name)
        self.catalog = server.tables["https://lake"]
        self.listed = dict(self.catalog)

    def write(self, *patterns: str) -> None:
        document = {
            "version": 1,
            "defaults": {"checkpoint": {"max_commits": 2}},
            "catalogs": {"lake": LAKE, "other": OTHER},
            "tables": [
                *({"pattern" if "/" in text else "catalog": text} for text in patterns),
                {"catalog": "other.**"},
            ],
        }
        self.config.write_text(yaml.safe_dump(document))

    def hide(self, pattern: str) -> None:
        """Revokes the rights, or unmounts the folder."""
        if pattern == PATTERN:
            self.catalog.clear()
        else:
            (self.root / "lake").rename(self.root / "unmounted")

    def show(self, pattern: str) -> None:
        if pattern == PATTERN:
            self.catalog.update(self.listed)
        else:
            (self.root / "unmounted").rename(self.root / "lake")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    server = use_catalogs(
        monkeypatch,
        {
            "https://lake": [catalog_table("uc://prod.sales.orders", f"{tmp_path}/orders")],
            "https://other": [catalog_table("uc://dev.a.t", f"{tmp_path}/other")],
        },
    )
    return Place(tmp_path, server)


@pytest.fixture
def cli(place: Place, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: str, state: bool = True) -> tuple[int, str, str]:
        more = ["--state", str(place.state)] if state else []
        status = main([*words, *([str(place.config)] if len(words) == 1 else []), *more])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return call


@pytest.mark.parametrize("which", ["catalog", "folder"])
def test_a_pattern_that_had_tables_fails_until_they_are_back(
    place: Place, cli: Callable[..., tuple[int, str, str]], which: str
) -> None:
    pattern = PATTERN if which == "catalog" else place.folders
    assert cli("run")[0] == 0
    place.hide(pattern)
    for verb in ("tables", "assess", "run", "run"):
        status, out, err = cli(verb)
        assert (verb, status) == (verb, REFUSED)
        [line] = [line for line in err.splitlines() if "no table matches" in line]
        assert f"{pattern}: no table matches {pattern} any more; check the rights" in line
        # The tables of other patterns are maintained.
        assert "uc://dev.a.t" in out or "3 nothing to do" in out or "2 nothing to do" in out
    # Without stored state nobody knows that there were some.
    status, _, err = cli("run", state=False)
    assert status == 0 and f"no table matches {pattern}" in err
    place.show(pattern)
    status, _, err = cli("run")
    assert status == 0 and "no table matches" not in err
    assert cli("assess")[0] == 0


def test_the_remedies_help(place: Place, cli: Callable[..., tuple[int, str, str]]) -> None:
    cli("run")
    place.hide(PATTERN)
    assert cli("run")[0] == REFUSED
    words = ("acknowledge", PATTERN, "--until", "7d", "--reason", "dropped")
    assert cli(*words)[0] == 0
    status, _, err = cli("run")
    assert status == 0 and "acknowledged" in err
    assert cli("acknowledge", PATTERN, "--remove")[0] == 0
    assert cli("run")[0] == REFUSED
    place.write(place.folders)
    assert cli("run")[0] == 0


def test_a_pattern_that_never_had_tables_is_a_line(
    place: Place, cli: Callable[..., tuple[int, str, str]]
) -> None:
    place.write(PATTERN, "lake.none.*", f"{place.root}/none/*", place.folders)
    for verb in ("tables", "assess", "run", "run"):
        status, _, err = cli(verb)
        assert (verb, status) == (verb, 0)
        for pattern in ("lake.none.*", f"{place.root}/none/*"):
            assert err.count(f"no table matches {pattern}") == 1


def found(memory: CatalogMemory | None = None, *entries: dict[str, Any]) -> Discovery:
    return discover(document(*entries), memory=memory, pauses=())


def document(*entries: dict[str, Any]) -> Policy:
    tables = entries or ({"catalog": PATTERN},)
    return Policy.from_json({"version": 1, "catalogs": {"lake": LAKE}, "tables": tables})


@pytest.fixture
def memory(tmp_path: Path) -> CatalogMemory:
    return CatalogMemory(LocalStore(str(tmp_path / "memory")))


def test_a_condition_that_no_longer_holds_is_a_line(place: Place, memory: CatalogMemory) -> None:
    held = {"catalog": "lake.*.*", "where": {"tags": {"hold": "*"}}}
    name, table = next(iter(place.listed.items()))
    place.catalog[name] = catalog_table(str(name), table.location, tags={"hold": "legal"})
    entries = ({"catalog": "lake.**"}, held)
    assert [*found(memory, *entries).warnings()] == []
    place.catalog[name] = table
    discovery = found(memory, *entries)
    assert discovery.complete()
    unmet = "no table that matches lake.*.* meets its condition"
    assert [*discovery.warnings()] == [unmet]


def test_a_part_that_cannot_be_listed_says_nothing_of_its_patterns(
    place: Place, memory: CatalogMemory
) -> None:
    found(memory)
    place.server.broken["uc://prod.sales"] = CatalogError("the right to list is missing")
    discovery = found(memory, {"catalog": PATTERN}, {"catalog": "lake.hr.*"})
    assert [failed.pattern for failed in discovery.unlisted] == ["uc://prod.sales"]
    assert discovery.empty == ("lake.hr.*",)


def test_tables_of_other_entries_do_not_count(place: Place, memory: CatalogMemory) -> None:
    assert found(memory, {"catalog": "lake.sales.orders"}, {"catalog": PATTERN}).empty == ()
    excluded = {"catalog": PATTERN, "exclude": ["lake.sales.orders"]}
    discovery = found(None, {"catalog": "lake.sales.orders"}, excluded)
    assert discovery.empty == (PATTERN,) and len(discovery.complete()) == 1


def test_a_watcher_keeps_the_tables_of_a_pattern_without_tables(place: Place) -> None:
    memory = CatalogMemory.in_process()

    def listed() -> Discovery:
        return tables_of_catalog(
            document(),
            "lake",
            storage_options=lambda rule, _: environment_options(rule),
            memory=memory,
        )

    before = listed()
    place.hide(PATTERN)
    after = listed()
    assert after.tables == () and [each.pattern for each in after.unlisted] == [PATTERN]
    kept = kept_tables(document(), after, before.tables)
    assert [*kept] == ["uc://prod.sales.orders"]
    place.show(PATTERN)
    assert listed().unlisted == ()


def test_a_state_folder_that_cannot_be_written_stops_nothing(
    place: Place, memory: CatalogMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(patterns: frozenset[str]) -> None:
        raise CatalogError("read-only")

    monkeypatch.setattr(memory, "save_patterns", refuse)
    assert len(found(memory).complete()) == 1


def test_a_damaged_memory_of_patterns_is_none(place: Place, memory: CatalogMemory) -> None:
    memory._store.put("patterns.listing", b"[1, {}]")
    assert memory.patterns() == frozenset()
    found(memory)
    assert json.loads(memory._store.read("patterns.listing"))


def test_a_server_without_owners_is_one_line(
    place: Place, memory: CatalogMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = {"catalog": "lake.**", "where": {"owner": "team-a"}}
    name, table = next(iter(place.listed.items()))
    further = frozenset({Aspect.OWNER})
    for number in range(3):
        other = catalog_table(f"uc://prod.sales.t{number}", f"s3://b/{number}", further=further)
        place.catalog[other.name] = other

    def described(self: object, tables: Any, aspects: Any) -> CatalogListing:
        return CatalogListing(tables=tuple(tables), without=further)

    monkeypatch.setattr(InMemoryCatalog, "describe", described)
    for _ in range(2):
        discovery = found(memory, {"catalog": "lake.**"}, owned)
        assert len(discovery.complete()) == 4
        lines = [line for line in discovery.warnings() if "owner" in line]
        assert lines == ["catalogs.lake: the server has no owners, so no condition on one holds"]
    assert not [line for line in found(memory).warnings() if "owner" in line]
