"""Shallow clones of a table: the files that a vacuum keeps for them, and clones that stop it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import DeltaMaintenanceError, RefusedError, StorageError
from delta_maintenance.operations.holds import Holders
from delta_maintenance.protocol.actions import STORED_ABSOLUTE
from delta_maintenance.storage import MemoryStore
from tests.support.operations.vacuum_cases import VECTOR, removed
from tests.support.tables.actions import (
    add,
    commit_info,
    deletion_vector,
    features,
    metadata,
    remove,
)
from tests.support.tables.table_builder import TableBuilder
from tests.support.tables.vacuum_tables import Folder, named_memory

SOURCE, CLONE = "memory://clones/source", "memory://clones/clone"
FILES = ("a.parquet", "b c.parquet", "day=1/d.parquet")


@pytest.fixture
def source() -> Folder:
    """A table from which everything was removed long ago."""
    named_memory("memory://clones")
    return emptied(SOURCE)


def emptied(address: str, *paths: str) -> Folder:
    table = Folder(named_memory(address))
    paths = paths or FILES
    table.log(*(add(quote(path)) for path in paths))
    table.log(*(removed(quote(path), 39) for path in paths), days=39)
    table.file(*paths)
    return table


def cloned(address: str, *paths: str, root: str = SOURCE, days: float = 10) -> Folder:
    """A clone, in whose log the files of its source have absolute paths."""
    clone = Folder(named_memory(address))
    clone.log(*(add(f"{root}/{quote(path)}") for path in paths), days=days)
    return clone


def test_files_of_a_clone_are_kept_and_the_plan_says_for_whom(source: Folder) -> None:
    clone = cloned(CLONE, "a.parquet", "b c.parquet")
    clone.log(add("a-file-of-its-own.parquet"))
    source.file("a-file-of-its-own.parquet")
    assert source.going() == {*FILES, "a-file-of-its-own.parquet"}
    for options in ({"clones": (CLONE,)}, {"holders": Holders(clones=(CLONE,))}):
        planned = source.survey(ignore_missing_files=True, **options).plan
        # The relative path of the clone is that of another file.
        assert source.going(**options) == {"day=1/d.parquet", "a-file-of-its-own.parquet"}
        [held] = planned.held
        assert (held.holder, held.files, held.bytes) == (f"clone {CLONE}", 2, 2)
        assert held.first_version is held.last_version is None
    source.vacuum(clones=(CLONE,))
    assert source.files() == {"a.parquet", "b c.parquet"}


def test_every_version_of_the_clone_that_can_be_opened_counts(source: Folder) -> None:
    clone = cloned(CLONE, *FILES)
    for path in FILES:
        clone.log(removed(f"{SOURCE}/{quote(path)}", 39), days=39)
    assert source.going(clones=(CLONE,)) == set()
    # The checkpoint lacks expired tombstones, and its version is the oldest that opens.
    clone.checkpoint(actions=[each for each in clone.state() if "remove" not in each])
    clone.drop(*(f"{version:020}.json" for version in range(4)))
    assert source.going(clones=(CLONE,)) == {"a.parquet", "b c.parquet"}


def test_a_version_before_a_gap_in_the_log_counts(source: Folder) -> None:
    clone = cloned(CLONE, "a.parquet")
    clone.checkpoint()
    clone.log(removed(f"{SOURCE}/a.parquet", 39), days=39)
    clone.log(add("own.parquet"))
    clone.checkpoint(actions=[each for each in clone.state() if "remove" not in each])
    clone.drop(f"{0:020}.json", f"{1:020}.json", f"{2:020}.json")
    assert live_in(clone, 1) == {f"{SOURCE}/a.parquet"}
    assert "a.parquet" not in source.going(clones=(CLONE,))


@pytest.mark.parametrize(("days", "kept"), [(3, True), (None, True), (20, False)])
def test_a_tombstone_counts_while_it_is_unexpired_or_of_unknown_age(
    source: Folder, days: float | None, kept: bool
) -> None:
    clone = cloned(CLONE, "a.parquet")
    time = removed("x", days)["remove"]["deletionTimestamp"] if days is not None else None
    gone = remove(f"{SOURCE}/a.parquet", deletionTimestamp=time)
    if days is None:
        del gone["remove"]["deletionTimestamp"]
    clone.log(gone, days=days or 20)
    clone.log(add("later.parquet"), days=0)
    clone.checkpoint()
    clone.drop(*(f"{version:020}.json" for version in range(3)))
    assert ("a.parquet" not in source.going(clones=(CLONE,))) is kept


def test_deletion_vectors_of_the_source_are_kept(source: Folder) -> None:
    source.file(VECTOR)
    clone = Folder(named_memory(CLONE), first=[features("deletionVectors"), metadata()])
    stored = {**deletion_vector(), "storageType": STORED_ABSOLUTE}
    vector = {**stored, "pathOrInlineDv": f"{SOURCE}/{VECTOR}"}
    clone.log(add(f"{SOURCE}/a.parquet", dv=vector))
    assert source.going(clones=(CLONE,)) == {"b c.parquet", "day=1/d.parquet"}


def test_a_clone_of_a_clone_needs_files_of_both(source: Folder) -> None:
    first = emptied(CLONE, "own.parquet")
    second = "memory://clones/second"
    cloned(second, "a.parquet").log(add(f"{CLONE}/own.parquet"))
    assert source.going(clones=(second,)) == {"b c.parquet", "day=1/d.parquet"}
    assert first.going(clones=(second,)) == set()


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file:///{}", "{}"])
def test_all_spellings_of_a_local_root_are_one(tmp_path: Path, form: str) -> None:
    root = tmp_path / "so urce%20ü"
    table = Folder(root)
    table.file("a b.parquet", "c.parquet")
    encoded = quote(str(root))
    clone = Folder(tmp_path / "clone")
    clone.log(add(f"{form.format(encoded)}/a%20b.parquet"))
    assert table.going(clones=(str(tmp_path / "clone"),)) == {"c.parquet"}
    # By an address that is not known to be the same: the name of the file decides.
    clone.log(add("dbfs:/mnt/lake/source/c.parquet"))
    assert table.going(clones=(f"file://{tmp_path}/clone",)) == set()


def _gone(clone: Folder) -> None:
    for batch in list(clone.store.list_tree()):
        clone.store.delete_many(batch["path"].to_pylist())


def _damaged(clone: Folder) -> None:
    clone.store.put("_delta_log/" + f"{1:020}.json", b"{")


def _unsupported(clone: Folder) -> None:
    clone.log(features("fooBar"))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_gone, "no table any more; .*remove it from the policy"),
        (_damaged, "cannot be read"),
        (_unsupported, "fooBar"),
    ],
)
def test_a_clone_that_cannot_be_read_stops_the_vacuum_by_name(
    source: Folder, spoil: Any, says: str
) -> None:
    spoil(cloned(CLONE, "a.parquet"))
    with pytest.raises(RefusedError, match=f"the clone {re.escape(CLONE)} .*") as refused:
        source.vacuum(clones=(CLONE,))
    assert re.search(says, str(refused.value)) and "\n" not in str(refused.value)
    assert source.files() == set(FILES)


def test_a_clone_on_a_store_that_does_not_answer_stops_the_vacuum(
    source: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloned(CLONE, "a.parquet")
    listed = MemoryStore.list_from

    def down(store: MemoryStore, directory: str, start: str = "") -> Any:
        if store.root == CLONE:
            raise StorageError("the connection was refused")
        return listed(store, directory, start)

    monkeypatch.setattr(MemoryStore, "list_from", down)
    with pytest.raises(RefusedError, match=f"the clone {CLONE} .* connection was refused"):
        source.survey(clones=(CLONE,))


def test_files_to_which_a_clone_refers_after_the_plan_are_spared(source: Folder) -> None:
    clone = cloned(CLONE, "a.parquet")
    surveyed = source.survey(ignore_missing_files=True, clones=(CLONE,))
    assert surveyed.plan.files == 2
    clone.log(add(f"{SOURCE}/day%3D1/d.parquet"))
    result = source.vacuum(surveyed)
    assert (result.deleted, result.spared) == (1, 1)
    assert source.files() == {"a.parquet", "day=1/d.parquet"}


def test_a_clone_that_is_replaced_after_the_plan_stops_the_vacuum(source: Folder) -> None:
    clone = cloned(CLONE, "a.parquet")
    surveyed = source.survey(ignore_missing_files=True, clones=(CLONE,))
    _gone(clone)
    cloned(CLONE, "b c.parquet", days=1)
    with pytest.raises(RefusedError, match="replaced after the plan"):
        source.vacuum(surveyed)
    assert source.files() == set(FILES)


def test_a_lite_vacuum_finds_the_files_of_a_clone_again_when_it_is_gone(source: Folder) -> None:
    clone = cloned(CLONE, "a.parquet")
    source.vacuum(mode="lite", clones=(CLONE,))
    assert source.files() == {"a.parquet"}
    clone.log(removed(f"{SOURCE}/a.parquet", 1), days=1)
    assert source.going(mode="lite") == {"a.parquet"}


def live_in(table: TableBuilder, version: int) -> set[str]:
    """Returns the paths of the live files of a version; none if no reader opens it."""
    try:
        snapshot = table.open().snapshot(version=version)
    except DeltaMaintenanceError:
        return set()
    return set(snapshot.live_files()["path"].to_pylist())


STEP = st.tuples(
    st.sampled_from(["clone", "clone", "remove", "checkpoint", "clean"]),
    st.integers(0, 2),
    st.sets(st.integers(0, 5)),
)


@given(steps=st.lists(STEP, min_size=3, max_size=14))
def test_no_version_of_any_clone_loses_a_file(steps: list[tuple[str, int, set[int]]]) -> None:
    named_memory("memory://clones")
    paths = [f"f{n}.parquet" for n in range(6)]
    source = emptied(SOURCE, *paths)
    clones = [Folder(named_memory(f"memory://clones/c{n}")) for n in range(3)]
    live: list[set[str]] = [set() for _ in clones]
    ever: set[str] = set()
    for what, n, chosen in steps:
        clone, files = clones[n], {f"{SOURCE}/{paths[each]}" for each in chosen}
        if what == "clone":
            clone.log(commit_info(), *map(add, sorted(files - live[n])))
            live[n] |= files
            ever |= files
        elif what == "remove":
            gone = [removed(each, 39) for each in sorted(files & live[n])]
            clone.log(commit_info(), *gone, days=39)
            live[n] -= files
        elif what == "checkpoint":
            clone.checkpoint(actions=[each for each in clone.state() if "remove" not in each])
        else:
            # A clean-up that other writers made in any order.
            base = clone.open().snapshot().log.segment.base_version
            clone.drop(
                *(f"{v:020}.json" for v in chosen if v < base and f"{v:020}.json" in clone.names())
            )
    needed = [
        live_in(clone, version)
        for clone in clones
        for version in range(clone.open().latest_version() + 1)
    ]
    source.vacuum(clones=tuple(clone.store.root for clone in clones))
    left = {f"{SOURCE}/{path}" for path in source.files()}
    assert set[str]().union(*needed) <= left <= ever
