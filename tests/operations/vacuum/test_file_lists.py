"""File lists from other sources than a listing: the mode `lite` and inventories; and the report."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from pathlib import Path
from threading import get_ident

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import InvalidRequestError, RefusedError, StorageError
from delta_maintenance.operations.vacuum.engine import write_report
from delta_maintenance.operations.vacuum.inventory import read_inventory
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.local import LocalStore
from tests.support.operations.vacuum_cases import VECTOR, Stubborn, removed
from tests.support.tables.actions import (
    add,
    cdc,
    commit_info,
    deletion_vector,
    features,
    metadata,
    protocol,
)
from tests.support.tables.table_builder import LOG, TableBuilder
from tests.support.tables.vacuum_tables import Folder, paths_of

# By the log alone


@pytest.mark.conformance("VAC-18")
def test_the_mode_lite_names_each_file_once_and_resumes_where_it_ended() -> None:
    """deltalake 1.6.6 leaves deletion vectors, and names a path twice (D10)."""
    first = [features("deletionVectors"), metadata()]
    table = Folder(first=first)
    table.log(
        add("a.parquet"), add("b.parquet", dv=deletion_vector()), cdc("_change_data/c.parquet")
    )
    table.log(removed("a.parquet", 35), days=35)
    table.log(add("a.parquet"), days=34)
    table.log(removed("a.parquet", 30), removed("b.parquet", 30, dv=deletion_vector()), days=30)
    last = table.log(add("e.parquet"), days=25)
    table.log(removed("e.parquet", 2), days=2)
    table.file("a.parquet", "b.parquet", VECTOR, "_change_data/c.parquet", "e.parquet", "x.parquet")
    planned = table.survey(mode="lite")
    assert paths_of(planned) == {"a.parquet", "b.parquet", VECTOR, "_change_data/c.parquet"}
    assert (planned.plan.first_commit, planned.plan.last_commit) == (0, last)
    assert any("never were in the table" in note for note in planned.plan.notes)
    assert table.vacuum(planned).deleted == 4
    info = json.loads(table.read("_last_vacuum_info"))
    assert info == {"latestCommitVersionOutsideOfRetentionWindow": last}
    again = table.survey(mode="lite")
    assert again.plan.last_commit is None and "no commit" in again.plan.reason
    table.now += timedelta(days=6)
    later = table.survey(mode="lite")
    assert paths_of(later) == {"e.parquet"} and later.plan.first_commit == last + 1
    assert table.files() == {"e.parquet", "x.parquet"}


@pytest.mark.conformance("VAC-18")
def test_the_mode_lite_needs_every_commit_since_the_last_one() -> None:
    table = Folder()
    table.log(add("a.parquet"))
    table.log(removed("a.parquet", 30), days=30)
    table.log(commit_info(), days=20)
    table.checkpoint()
    table.drop(*(f"{version:020}.json" for version in (0, 1)))
    table.file("a.parquet")
    for info in (None, b"{}", b"garbage", b'{"latestCommitVersionOutsideOfRetentionWindow":0}'):
        if info is not None:
            table.write("_last_vacuum_info", info)
        with pytest.raises(RefusedError, match="before version 2 were deleted"):
            table.survey(mode="lite")
    table.write("_last_vacuum_info", b'{"latestCommitVersionOutsideOfRetentionWindow":1}')
    assert table.going(mode="lite") == {"a.parquet"}


@pytest.mark.conformance("VAC-18")
def test_a_full_vacuum_leaves_the_mark_that_the_mode_lite_begins_at() -> None:
    table = Folder()
    table.log(add("a.parquet"), add("b.parquet"))
    table.log(removed("a.parquet", 30), days=30)
    last = table.log(commit_info(), days=20)
    table.checkpoint()
    table.drop(*(f"{version:020}.json" for version in (0, 1)))
    table.log(removed("b.parquet", 3), days=3)
    table.file("a.parquet", "b.parquet")
    with pytest.raises(RefusedError, match="vacuum with --mode full"):
        table.survey(mode="lite")
    assert table.vacuum(retention=timedelta(days=25)).deleted == 1
    mark = {"latestCommitVersionOutsideOfRetentionWindow": last - 1}
    assert json.loads(table.read("_last_vacuum_info")) == mark
    assert table.vacuum().status == "nothing-to-do"
    mark = {"latestCommitVersionOutsideOfRetentionWindow": last}
    assert json.loads(table.read("_last_vacuum_info")) == mark
    table.vacuum(retention=timedelta(days=25))
    assert json.loads(table.read("_last_vacuum_info")) == mark, "it never goes back"
    table.now += timedelta(days=6)
    assert table.vacuum(keep_versions=(last,)).status == "nothing-to-do"
    assert json.loads(table.read("_last_vacuum_info")) == mark, "a kept version needs b.parquet"
    later = table.survey(mode="lite")
    assert paths_of(later) == {"b.parquet"} and later.plan.first_commit == last + 1


@pytest.mark.conformance("VAC-18")
def test_a_mark_that_cannot_be_written_does_not_hide_the_result() -> None:
    class ReadOnlyLog(MemoryStore):
        def put(self, path: str, data: bytes) -> None:
            if path.endswith("_last_vacuum_info"):
                raise StorageError("access denied", file=path)
            super().put(path, data)

    table = Folder(ReadOnlyLog())
    table.log(commit_info())
    table.file("orphan.parquet")
    result = table.vacuum()
    assert (result.status, result.deleted) == ("vacuumed", 1)
    assert any("access denied" in note for note in result.notes)
    assert any("access denied" in note for note in table.vacuum().notes)


@pytest.mark.conformance("VAC-18")
@pytest.mark.parametrize("mode", ["full", "lite"])
def test_no_mode_records_what_it_could_not_delete(mode: str) -> None:
    table = Folder(Stubborn())
    table.log(add("stuck.parquet"), add("a.parquet"))
    table.log(removed("stuck.parquet", 30), removed("a.parquet", 30), days=30)
    table.file("stuck.parquet", "a.parquet")
    assert table.vacuum(mode=mode).status == "partly"
    assert "_last_vacuum_info" not in table.names()


def test_paths_of_the_log_never_lead_out_of_the_table(tmp_path: Path) -> None:
    """Delta Spark's VACUUM LITE joins them to the root as they are."""
    victim = tmp_path / "victim.parquet"
    victim.write_bytes(b"x")
    table = Folder(tmp_path / "t")
    hostile = ["../victim.parquet", "%2e%2e/victim.parquet", "a/../../victim.parquet"]
    hostile += [f"file:{victim}", "_delta_log/0.json", f"{LOG}/{0:020}.json", "~/x", "a\\b", "%00"]
    table.log(*(add(path) for path in hostile))
    table.log(*(removed(path, 30) for path in hostile), days=30)
    planned = table.survey(mode="lite", ignore_missing_files=True)
    assert paths_of(planned) == set() and victim.exists()


def inventory(rows: list[tuple[str, int, bool, int]]) -> pa.Table:
    path, length, is_dir, modified = zip(*rows, strict=True)
    columns = {"path": path, "length": length, "isDir": is_dir, "modificationTime": modified}
    return pa.table(columns)


# By an inventory


@pytest.mark.parametrize("form", ["file", "folder", "delta"])
def test_an_inventory_only_suggests_files(tmp_path: Path, form: str) -> None:
    table = Folder(tmp_path / "t")
    table.log(add("live.parquet"))
    table.file("live.parquet", "p=1/dead one.parquet", "q/dead.parquet", "unlisted.parquet")
    table.file("young.parquet", days=1)
    root = tmp_path / "t"
    rows = [
        ("live.parquet", 1, False, 1),
        (f"{root}/p=1/dead one.parquet", 1, False, 1),
        (f"file:{root}/q/dead.parquet", 1, False, 1),
        (f"{root}/p=1", 0, True, 1),
        ("young.parquet", 1, False, 1),
        ("gone.parquet", 1, False, 1),
        ("/elsewhere/x.parquet", 1, False, 1),
        (f"{LOG}/{0:020}.json", 1, False, 1),
    ]
    place = tmp_path / "inventory"
    place.mkdir()
    pq.write_table(inventory(rows[:4]), place / "a.parquet")
    pq.write_table(inventory(rows[4:]), place / "b.parquet")
    address = str(place)
    if form == "file":
        pq.write_table(inventory(rows), tmp_path / "all.parquet")
        address = str(tmp_path / "all.parquet")
    if form == "delta":
        listed = TableBuilder(str(place))
        listed.commit([protocol(), metadata(), add("a.parquet"), add("b.parquet")])
    planned = table.survey(mode="inventory", inventory=address)
    assert paths_of(planned) == {"p=1/dead one.parquet", "q/dead.parquet"}
    assert {row["size"] for row in planned.found.files().to_pylist()} == {1}


def test_arrow_reads_no_inventory_in_threads_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a thread may hold the file when the interpreter ends, and then aborts the process."""
    threads = set()

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            threads.add(get_ident())
            return super().read(size)

    pq.write_table(inventory([("f:/t/a", 1, False, 0)]), tmp_path / "i.parquet")
    monkeypatch.setattr(LocalStore, "open", lambda self, path: Watched(self.read(path)))
    found = read_inventory(str(tmp_path / "i.parquet"), roots=["f:/t"])
    assert found.num_rows == 1
    assert threads == {get_ident()}


def test_an_inventory_without_a_column_is_refused(tmp_path: Path) -> None:
    table = Folder(tmp_path / "t")
    pq.write_table(pa.table({"path": ["a"], "isDir": [False]}), tmp_path / "i.parquet")
    with pytest.raises(InvalidRequestError, match="no column length"):
        table.survey(mode="inventory", inventory=str(tmp_path / "i.parquet"))
    with pytest.raises(StorageError):
        table.survey(mode="inventory", inventory=str(tmp_path / "none.parquet"))
    with pytest.raises(InvalidRequestError, match="--mode inventory requires --inventory"):
        table.survey(inventory="x")


# The report


def test_the_report_has_the_exact_list(tmp_path: Path) -> None:
    table = Folder(tmp_path / "t")
    table.file("a.parquet", "b/ü.parquet")
    planned = table.survey()
    write_report(planned.found.batches(), str(tmp_path / "report.parquet"), table=table.store)
    rows = pq.read_table(tmp_path / "report.parquet").to_pylist()
    assert {(row["path"], row["size"], row["reason"]) for row in rows} == {
        ("a.parquet", 1, "unreferenced"),
        ("b/ü.parquet", 1, "unreferenced"),
    }
    for place in (tmp_path / "report.parquet", tmp_path / "t" / "report.parquet"):
        with pytest.raises(RefusedError):
            write_report(planned.found.batches(), str(place), table=table.store)
