"""What a checkpoint leaves out, which files it touches, and what `_last_checkpoint` says then."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log.last_checkpoint import parse_hint
from tests.support.logs.checkpointing import NOW, SHAPES, files_of, only, state_of, write
from tests.support.tables.actions import (
    OMIT,
    Action,
    add,
    features,
    metadata,
    protocol,
    remove,
    txn,
)
from tests.support.tables.table_builder import EPOCH_MS, LOG, MINUTE_MS, TableBuilder

DAY_MS = 86_400_000
HINT = f"{LOG}/_last_checkpoint"


def table_of(*commits: list[Action]) -> TableBuilder:
    table = TableBuilder()
    for commit in commits:
        table.commit(commit)
    return table


def tombstones(table: TableBuilder, *, now: datetime = NOW, kind: str = "classic") -> list[str]:
    """The paths of the removes that a checkpoint keeps."""
    result = write(table.open(), kind, now=now)
    assert result.path is not None
    snapshot = only(table.store, result.path, result.version).snapshot()
    assert snapshot.counts.num_tombstones == result.num_tombstones
    return sorted(path for path, _ in state_of(snapshot).tombstones)


# Tombstones.


@pytest.mark.conformance("REC-07", "CKPT-03")
@pytest.mark.parametrize("kind", ["classic", "v2-json"])
def test_a_tombstone_expires_when_its_retention_is_exceeded(kind: str) -> None:
    kept = {"delta.deletedFileRetentionDuration": "interval 2 days"}
    removed_at = EPOCH_MS + MINUTE_MS
    expires = datetime.fromtimestamp(removed_at / 1000, UTC) + timedelta(days=2)
    for milliseconds, stays in ((-1, True), (0, True), (1, False)):
        removal = remove("a", deletionTimestamp=removed_at)
        table = table_of([features("v2Checkpoint"), metadata(configuration=kept)], [removal])
        now = expires + timedelta(milliseconds=milliseconds)
        table.commit([add("later")], at_ms=epoch_millis(now))
        assert tombstones(table, now=now, kind=kind) == (["a"] if stays else [])
        assert write(table.open()).status == "nothing-to-do"


@pytest.mark.conformance("REC-07")
def test_the_default_retention_is_a_week() -> None:
    week_ago = epoch_millis(NOW) - 7 * DAY_MS
    table = TableBuilder()
    table.commit([protocol(), metadata()], at_ms=week_ago - 2)
    removes = [remove("kept", deletionTimestamp=week_ago), remove("a", deletionTimestamp=1)]
    table.commit(removes, at_ms=week_ago - 1)
    table.commit([add("later")], at_ms=epoch_millis(NOW))
    snapshot = table.open().snapshot()
    planned = checkpoint.plan(snapshot, context=RunContext.at(NOW))
    assert planned.tombstones_from == NOW - timedelta(days=7)
    result = checkpoint.apply(table.open(), planned)
    assert (result.num_tombstones, result.expired_tombstones) == (1, 1)


@pytest.mark.conformance("REC-07")
def test_a_tombstone_is_no_older_than_its_commit() -> None:
    committed = datetime.fromtimestamp((EPOCH_MS + MINUTE_MS) / 1000, UTC)
    for days, stays in ((7, True), (8, False)):
        table = table_of([protocol(), metadata()], [remove("a", deletionTimestamp=1)])
        now = committed + timedelta(days=days)
        table.commit([add("later")], at_ms=epoch_millis(now))
        assert tombstones(table, now=now) == (["a"] if stays else [])


@pytest.mark.conformance("REC-07", "FILE-10")
def test_a_tombstone_without_a_time_is_as_old_as_its_commit() -> None:
    undated = remove("undated", deletionTimestamp=OMIT)
    for days, stays in ((7, True), (8, False)):
        table = table_of([protocol(), metadata()], [undated])
        now = datetime.fromtimestamp((EPOCH_MS + MINUTE_MS) / 1000, UTC) + timedelta(days=days)
        table.commit([add("later")], at_ms=epoch_millis(now))
        assert tombstones(table, now=now) == (["undated"] if stays else [])
    # Once in a checkpoint its commit is not known any more; it must not stay for ever.
    table = table_of([protocol(), metadata()], [undated])
    table.checkpoint()
    table.commit([add("a")])
    assert tombstones(table) == []


@pytest.mark.conformance("REC-07")
@pytest.mark.parametrize(
    ("configuration", "late_commit", "said"),
    [
        ({}, True, "dated in the future"),
        ({"delta.deletedFileRetentionDuration": "interval 1 month"}, False, "cannot be read"),
        ({"delta.deletedFileRetentionDuration": "interval 2000000 days"}, False, ""),
    ],
)
def test_every_tombstone_is_kept_if_its_age_is_unknown(
    configuration: dict[str, str], late_commit: bool, said: str
) -> None:
    table = table_of([protocol(), metadata(configuration=configuration)], [remove("ancient")])
    table.commit([add("a")], at_ms=epoch_millis(NOW) + 1 if late_commit else None)
    planned = checkpoint.plan(table.open().snapshot(), context=RunContext.at(NOW))
    assert planned.tombstones_from is None
    assert said in " ".join(planned.notes)
    assert tombstones(table) == ["ancient"]


def test_a_commit_of_this_very_millisecond_is_not_in_the_future() -> None:
    table = table_of([protocol(), metadata()])
    table.commit([remove("a")], at_ms=epoch_millis(NOW))
    planned = checkpoint.plan(table.open().snapshot(), context=RunContext.at(NOW))
    assert planned.tombstones_from == NOW - timedelta(days=7)


@pytest.mark.parametrize(
    ("retention", "kept"),
    [(None, {"old": 1, "new": 2, "undated": 3}), ("interval 1 hours", {"new": 2, "undated": 3})],
)
def test_transactions_expire_only_with_the_property(
    retention: str | None, kept: dict[str, int]
) -> None:
    name = "delta.setTransactionRetentionDuration"
    table = table_of(
        [
            protocol(),
            metadata(configuration={name: retention} if retention else {}),
            txn("old", 1, lastUpdated=epoch_millis(NOW) - 3_600_000),
            txn("new", 2, lastUpdated=epoch_millis(NOW) - 3_599_999),
            txn("undated", 3),
        ]
    )
    table.commit([add("later")], at_ms=epoch_millis(NOW))
    result = write(table.open())
    assert result.path is not None
    assert only(table.store, result.path, 1).snapshot().txns == kept


@pytest.mark.conformance("REC-07")
@pytest.mark.parametrize("days", [-10, -1, 0, 1, 10])
def test_a_wrong_clock_makes_nothing_older_than_the_newest_file_of_the_log(days: int) -> None:
    kept = {
        "delta.deletedFileRetentionDuration": "interval 9 days",
        "delta.setTransactionRetentionDuration": "interval 9 days",
    }
    table = table_of([protocol(), metadata(configuration=kept)])
    for age, name in ((8, "young"), (10, "old")):
        then = epoch_millis(NOW - timedelta(days=age))
        table.commit(
            [remove(name, deletionTimestamp=then), txn(name, 1, lastUpdated=then)], at_ms=then
        )
    table.commit([add("later")], at_ms=epoch_millis(NOW))
    result = write(table.open(), now=NOW + timedelta(days=days))
    assert result.path is not None
    state = state_of(only(table.store, result.path, 3).snapshot())
    for left in ({path for path, _ in state.tombstones}, set(state.txns)):
        # A slow clock keeps more.
        assert left == {"young"} or (days < 0 and left == {"old", "young"})


# The hint.


def hinted(table: TableBuilder) -> dict[str, Any]:
    parsed = parse_hint(table.read("_last_checkpoint"))
    assert parsed is not None, "the checksum does not hold"
    loaded: dict[str, Any] = json.loads(table.read("_last_checkpoint"))
    return loaded


@pytest.mark.conformance("LAST-04", "LAST-05", "LAST-06", "LAST-08", "CKPT-24", "PQ-04")
@pytest.mark.parametrize(("kind", "per_sidecar"), SHAPES)
def test_the_hint_is_correct(kind: str, per_sidecar: int) -> None:
    table = table_of(
        [features("v2Checkpoint"), metadata(), *(add(f"f{number}") for number in range(7))],
        [remove("f0", deletionTimestamp=EPOCH_MS), txn("app", 1)],
    )
    result = write(table.open(), kind, per_sidecar)
    written = {
        path: data
        for path, data in files_of(table.store).items()
        if path == result.path or path.startswith(f"{LOG}/_sidecars/")
    }
    rows = sum(
        data.count(b"\n")
        if path.endswith(".json")
        else pq.ParquetFile(table.store.open(path)).metadata.num_rows
        for path, data in written.items()
    )
    hint = hinted(table)
    assert hint.pop("checksum")
    sidecars = [path for path in written if path != result.path]
    expected: dict[str, Any] = {
        "version": 1,
        "size": rows,
        "sizeInBytes": sum(map(len, written.values())),
        "numOfAddFiles": 6,
    }
    if kind in ("v2-json", "v2-parquet"):
        assert result.path is not None
        embedded = hint["v2Checkpoint"].pop("sidecarFiles", [])
        expected["v2Checkpoint"] = {
            "path": result.path.removeprefix(f"{LOG}/"),
            "sizeInBytes": len(written[result.path]),
            "modificationTime": table.store.stat(result.path).modified_ms,  # type: ignore[union-attr]
        }
        assert sorted(sidecar["path"] for sidecar in embedded) == sorted(
            path.removeprefix(f"{LOG}/_sidecars/") for path in sidecars
        )
    assert hint == expected
    # The same in the result.
    assert (result.actions, result.bytes_written) == (rows, expected["sizeInBytes"])
    assert (result.num_files, result.num_tombstones, result.sidecars) == (6, 1, len(sidecars))
    assert (result.status, result.hint_updated) == ("written", True)
    # The manifest names every sidecar by its bare name, true size and time.
    named = {
        sidecar.path: (sidecar.size_in_bytes, sidecar.modification_time)
        for sidecar in table.open().snapshot().log.checkpoint.sidecars  # type: ignore[union-attr]
    }
    assert named == {
        path.removeprefix(f"{LOG}/_sidecars/"): (
            len(written[path]),
            table.store.stat(path).modified_ms,  # type: ignore[union-attr]
        )
        for path in sidecars
    }
    per_file = per_sidecar if kind != "classic" else 0
    # Six live files and a tombstone, which have sidecars of their own.
    assert len(sidecars) == (-(-6 // per_file) + 1 if per_file else 0)


@pytest.mark.conformance("LAST-06", "LAST-08")
@pytest.mark.parametrize("sidecars", [9, 11, 31])
def test_a_hint_with_many_sidecars_has_a_valid_checksum(sidecars: int) -> None:
    adds = [add(f"f{number}") for number in range(sidecars)]
    table = table_of([features("v2Checkpoint"), metadata(), *adds])
    assert write(table.open(), "v2-json", 1).sidecars == sidecars
    hint = hinted(table)
    assert "checksum" in hint and hint["size"] == 2 * sidecars + 3
    # Beyond thirty they are left to the manifest.
    assert len(hint["v2Checkpoint"].get("sidecarFiles", [])) == (sidecars if sidecars < 31 else 0)
    assert table.open().snapshot().counts.num_files == sidecars


@pytest.mark.conformance("LAST-09")
@pytest.mark.parametrize(
    ("before", "moved"),
    [(None, True), (0, True), (1, True), (2, False), (b"", True), (b"not JSON", True)],
)
def test_the_hint_is_moved_forwards_only(before: int | bytes | None, moved: bool) -> None:
    table = table_of([protocol(), metadata()], [add("a")], [add("b")])
    if before is not None:
        table.hint(before)
    result = write(table.open(), version=1)
    assert result.status == "written"
    assert result.hint_updated is moved
    assert hinted(table)["version"] == (1 if moved else 2)
    assert table.open().snapshot().version == 2


@pytest.mark.conformance("LAST-03", "LAST-09")
def test_a_hint_at_an_older_checkpoint_gives_way_to_a_newer_one() -> None:
    table = table_of([features("v2Checkpoint"), metadata()], [add("a")])
    write(table.open(), "v2-json", version=0)
    assert "v2Checkpoint" in hinted(table)
    write(table.open(), "classic")
    hint = hinted(table)
    assert hint["version"] == 1 and "v2Checkpoint" not in hint


@pytest.mark.conformance("LAST-09")
def test_a_stale_hadoop_checksum_of_the_hint_is_deleted(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.commit([protocol(), metadata(), add("a")])
    table.hint(0)
    # Hadoop fails on a file that does not fit its checksum.
    stale = tmp_path / LOG / "._last_checkpoint.crc"
    others = tmp_path / LOG / ".00000000000000000000.json.crc"
    for path in (stale, others):
        path.write_bytes(b"crc\0\0\0\2\0")
    write(table.open())
    assert not stale.exists() and others.exists()


# Files that are there already.


@pytest.mark.conformance("CKPT-29", "CKPT-32")
@pytest.mark.parametrize("kind", ["classic", "v2-classic"])
def test_a_damaged_classic_checkpoint_is_never_overwritten(kind: str) -> None:
    data = b"PAR1 and no more"
    table = table_of([features("v2Checkpoint"), metadata(), add("a")], [add("b")])
    name = "00000000000000000001.checkpoint.parquet"
    table.write(name, data)
    with pytest.raises(RefusedError) as refusal:
        write(table.open(), kind, 0)
    assert (refusal.value.file, refusal.value.version) == (f"{LOG}/{name}", 1)
    assert "fsck --repair" in str(refusal.value)
    assert table.read(name) == data
    assert "_last_checkpoint" not in table.names()
    # A name of its own is no problem.
    result = write(table.open(), "v2-json")
    assert result.status == "written" and table.read(name) == data
    assert table.open().snapshot().log.segment.base_version == 1


@pytest.mark.conformance("CKPT-27", "CKPT-16")
def test_a_damaged_checkpoint_of_another_name_is_passed_over() -> None:
    table = table_of([features("v2Checkpoint"), metadata(), add("a")], [add("b")])
    parts = table.checkpoint(parts=2)
    table.drop(parts[1])
    [uuid_named] = table.v2_checkpoint(encoding="parquet")
    table.garbage(uuid_named)
    before = files_of(table.store)
    result = write(table.open(), "classic")
    assert (result.status, result.num_files) == ("written", 2)
    assert any(uuid_named in note for note in result.notes)
    after = files_of(table.store)
    assert {path: after[path] for path in before} == before


@pytest.mark.conformance("CKPT-32")
@pytest.mark.parametrize("kind", ["classic", "v2-json", "v2-parquet"])
@pytest.mark.parametrize("sidecars", [0, 2])
def test_a_base_that_turns_out_damaged_while_it_is_read_is_replaced(
    kind: str, sidecars: int
) -> None:
    table = table_of([features("v2Checkpoint"), metadata(), *(add(f"f{n}") for n in range(50))])
    names = table.v2_checkpoint(encoding="parquet", sidecars=sidecars)
    table.commit([add("late", odd=1)])
    # The pages are damaged, the footer is not.
    footer = pq.ParquetFile(io.BytesIO(table.read(names[-1]))).metadata
    columns = (footer.row_group(0).column(index) for index in range(footer.num_columns))
    [paths] = (column for column in columns if column.path_in_schema == "add.path")
    start = paths.dictionary_page_offset or paths.data_page_offset
    table.garbage(names[-1], at=start, size=paths.total_compressed_size)
    result = write(table.open(), kind, 10)
    assert (result.status, result.num_files) == ("written", 51)
    assert result.path is not None
    assert only(table.store, result.path, 1).snapshot().counts.num_files == 51


@pytest.mark.conformance("CRC-04", "CRC-02", "LOG-10")
@pytest.mark.parametrize("kind", ["classic", "v2-json"])
def test_commits_checksums_and_compactions_are_not_touched(kind: str) -> None:
    table = table_of([features("v2Checkpoint"), metadata(), add("a")], [add("b")], [remove("a")])
    table.checksum(1, {"tableSizeBytes": 1})
    table.checksum(2, b"no JSON")
    table.compaction(0, 1)
    before = files_of(table.store)
    result = write(table.open(), kind)
    after = files_of(table.store)
    assert {path: after[path] for path in before} == before
    new = {path for path in after.keys() - before.keys() if "/_sidecars/" not in path}
    assert new == {result.path, HINT}
