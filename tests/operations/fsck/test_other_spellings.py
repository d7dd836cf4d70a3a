"""Data files that are stored under another spelling of the path in the log."""

from __future__ import annotations

import unicodedata
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.protocol.actions.paths import file_locations
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core.paths import FileStatus
from delta_maintenance.table.data.locations import find_other_spellings
from delta_maintenance.table.read import Table
from tests.support.faults.every_fault import files_of as all_files
from tests.support.faults.every_fault import play_faults, store_of
from tests.support.operations.fsck_runs import NOW, REPAIR, files_of, outcomes, run
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import DATA, SoundTable

REMOVE = FsckOptions(remove_missing_files=True)
ALL = FsckOptions(repair=True, remove_missing_files=True)


def with_file(logged: str, *stored: str, store: MemoryStore | None = None) -> SoundTable:
    """A table with a file that exists only under these names."""
    table = SoundTable(store, extras=False)
    table.step(table.data(logged), table.mark())
    (place,) = file_locations(pa.array([logged]), root="t").to_pylist()
    for path in (place.decode(), logged.replace("%20", " ")):
        table.store.delete(path)
    for path in stored:
        table.store.put(path, DATA)
    return table


@pytest.mark.conformance("FILE-01")
@pytest.mark.parametrize(
    ("logged", "stored"),
    [
        ("p=R%26D/x", "p=R%2526D/x"),
        ("p=a%20b%2F%25/x", "p=a%2520b%252F%2525/x"),
        ("p=R%2526D/x", "p=R&D/x"),
        ("p=%C3%BC/x", "p=%25C3%25BC/x"),
        ("p=%C3%BC/x", unicodedata.normalize("NFD", "p=ü/x")),
        ("p=A/x", "p=a/x"),
        ("p=A%20B/x", "p=a%2520b/x"),
    ],
)
def test_a_file_under_another_spelling_is_copied_and_never_given_up(
    logged: str, stored: str
) -> None:
    """deltalake 0.8 and 0.10 encode the names of their files once more than the log says."""
    table = with_file(logged, stored)
    before = files_of(table)

    refused = run(table, REMOVE)

    (finding,) = refused.findings
    assert (finding.kind, finding.path) == ("misnamed-file", logged)
    assert stored in finding.problem and "fsck --repair" in finding.remedy
    assert refused.repairs == () and files_of(table) == before
    assert any(logged in note and stored in note for note in refused.notes)

    result = run(table, ALL)

    assert outcomes(result) == {"copy-misnamed-files": "done"}
    assert (result.status, result.repairs[0].count) == ("sound", 1)
    (place,) = file_locations(pa.array([logged]), root="t").to_pylist()
    assert files_of(table) == before | {place.decode(): DATA}
    assert run(table, REPAIR).repairs == ()


def test_a_file_in_doubt_is_neither_copied_nor_given_up() -> None:
    two_candidates = with_file("p=A/x", "p=a/x", "p=%41/x")
    two_claims = with_file("p=A/x", "p=%2541/x")
    two_claims.step(two_claims.data("p=a/x"), two_claims.mark())
    two_claims.store.delete("p=a/x")
    other_size = with_file("p=A/x")
    other_size.store.put("p=a/x", DATA + b"more")
    impossible = with_file("x")
    add = impossible.data("y")
    add["add"]["path"] = "p=%2E%2E/..%2Fx"
    impossible.step(log.remove("x"), add, impossible.mark())
    impossible.store.delete("y")
    impossible.store.put("p=%252E%252E/..%252Fx", DATA)
    for table, doubt in (
        (two_candidates, "several files have such a name"),
        (two_claims, "several missing files could be this one"),
        (other_size, "the log states another size"),
        (impossible, "the store cannot have a file of that name"),
    ):
        before = files_of(table)
        result = run(table, ALL)
        assert {finding.kind for finding in result.findings} == {"doubtful-file"}, doubt
        assert all(doubt in finding.problem for finding in result.findings)
        assert result.repairs == () and files_of(table) == before
        assert any("stays: its file may be" in note for note in result.notes)


def test_a_file_of_another_entry_is_no_other_spelling() -> None:
    table = with_file("p=A/x")
    table.step(table.data("p=a/x"), table.data("P=a/x"), table.mark())
    table.step({"remove": {"path": "P=a/x", "deletionTimestamp": 1, "dataChange": True}})

    result = run(table, ALL)

    assert outcomes(result) == {"remove-missing-files": "done"}
    assert result.status == "sound"


def test_the_file_of_a_deletion_vector_is_copied_too() -> None:
    table = SoundTable()
    data = table.store.read(table.vector_path)
    table.store.delete(table.vector_path)
    table.store.put(table.vector_path.upper(), data)

    assert {finding.kind for finding in run(table).findings} == {"misnamed-file"}
    result = run(table, REPAIR)

    assert (result.status, table.store.read(table.vector_path)) == ("sound", data)


def test_a_file_that_appears_in_the_meantime_is_not_touched() -> None:
    table = with_file("p=A/x", "p=a/x")
    surveyed = fsck.survey(table.open(), REPAIR, now=NOW)
    theirs = DATA[:-1] + b"!"
    table.store.put("p=A/x", theirs)

    result = fsck.apply(table.open(), surveyed.plan, context=RunContext.at(NOW), surveyed=surveyed)

    assert outcomes(result) == {"copy-misnamed-files": "already-done"}
    assert table.store.read("p=A/x") == theirs


def test_a_store_that_ignores_case_finds_the_file_itself() -> None:
    class IgnoresCase(MemoryStore):
        def stat(self, path: str) -> FileStatus | None:
            return super().stat(path.lower()) or super().stat(path)

    table = with_file("p=A/x", "p=a/x", store=IgnoresCase())
    assert run(table, FsckOptions(repair=True, deep=True)).status == "sound"
    assert "p=A/x" not in files_of(table)


def test_no_fault_loses_the_only_copy() -> None:
    table = with_file("p=R%26D/x", "p=R%2526D/x")
    files = all_files(table.store)

    def repair(store: MemoryStore) -> None:
        plan = fsck.plan(Table(store), ALL, context=RunContext.at(NOW))
        fsck.apply(Table(store), plan, context=RunContext.at(NOW))

    for outcome in play_faults(repair, lambda: store_of(files, now_ms=lambda: 1)):
        if not outcome.is_new:
            continue
        left = {path: data for path, (data, _) in all_files(outcome.store).items()}
        assert left.items() >= {path: data for path, (data, _) in files.items()}.items()
        assert left.get("p=R&D/x", DATA) == DATA, outcome.where
        assert run(Table(outcome.store), ALL).status == "sound", outcome.where


NAMES = st.lists(
    st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\\/"), min_size=1),
    min_size=1,
    max_size=3,
).map("/".join)


@given(NAMES, st.integers(0, 3), st.booleans())
def test_every_other_spelling_is_found(name: str, times: int, upper: bool) -> None:
    stored = name
    for _ in range(times):
        stored = quote(stored)
    if upper and name.isascii():
        stored = stored.upper()
    wanted = pa.table({"path": [quote(name)], "location": [name.encode()], "size": [1]})
    found = find_other_spellings(wanted, pa.table({"path": [stored, "another"], "size": [1, 1]}))
    assert found["found"].to_pylist()[:1] == [stored] or name.lower() == "another"
