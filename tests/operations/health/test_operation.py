"""The health of a table, held against counts made by hand and against the other operations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suite.play import examples
from vacuum_tables import NOW, Folder, days_ago

import delta_maintenance
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import checkpoint, clean_log, compact_log, vacuum
from delta_maintenance.operations.health import SMALL_FILE_BYTES, TableHealth, measure
from delta_maintenance.operations.health.commit_history import MAINTENANCE_OPERATIONS
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.testing.actions import (
    OMIT,
    add,
    commit_info,
    deletion_vector,
    domain,
    features,
    metadata,
    protocol,
    remove,
)
from delta_maintenance.testing.fault_store import FaultStore
from delta_maintenance.testing.table_builder import TableBuilder

DAY = timedelta(days=1)


def health(table: TableBuilder, **options: Any) -> TableHealth:
    """The health at the tests' instant."""
    return measure(table.open().snapshot(), now=NOW, **options)


def gone(path: str, days: float, size: int | None = None, **fields: Any) -> dict[str, Any]:
    """A remove of so many days ago that vouches for its size."""
    told = {} if size is None else {"size": size, "extendedFileMetadata": True}
    return remove(path, deletionTimestamp=days_ago(days), **told, **fields)


# The log.


def test_what_a_reader_replays_and_opens() -> None:
    table = Folder()
    table.log(add("a"))
    table.checkpoint()
    table.log(add("b"), days=30)
    table.log(add("c"), days=20)
    seen = health(table)
    sizes = [len(table.read(f"{version:020d}.json")) for version in (2, 3)]
    checkpoint_size = len(table.read(f"{1:020d}.checkpoint.parquet"))
    assert (seen.version, seen.commits_since_checkpoint) == (3, 2)
    assert seen.bytes_since_checkpoint == sum(sizes)
    assert seen.oldest_commit_since_checkpoint == NOW - 30 * DAY
    assert (seen.checkpoint_version, seen.checkpoint_kind) == (1, "classic")
    assert seen.checkpoint_bytes == checkpoint_size
    assert (seen.files_to_open, seen.bytes_to_open) == (3, sum(sizes) + checkpoint_size)
    assert seen.oldest_version == 0


def test_a_table_without_a_checkpoint_replays_everything() -> None:
    seen = health(Folder())
    assert (seen.commits_since_checkpoint, seen.checkpoint_version) == (1, None)
    assert (seen.checkpoint_kind, seen.checkpoint_at, seen.checkpoint_bytes) == (None, None, 0)


def test_the_files_of_the_log_by_kind() -> None:
    table = Folder(first=[features("v2Checkpoint"), metadata()])
    table.log(add("a"))
    table.v2_checkpoint(sidecars=1)
    table.log(add("b"))
    table.log(add("c"))
    table.compaction(2, 3)
    table.checksum(1, {})
    table.hint(1)
    table.write("notes.txt", b"12345")
    table.write("00000000000000000004.json.tmp", b"123")
    seen = health(table)
    assert {kind.kind: kind.files for kind in seen.log_files} == {
        "commits": 4,
        "checkpoints": 1,
        "sidecars": 1,
        "compactions": 1,
        "checksums": 1,
        "hints": 1,
        "temporary-files": 1,
        "others": 1,
    }
    assert sum(kind.bytes for kind in seen.log_files) == seen.log_bytes
    assert seen.checkpoint_kind == "v2-json" and seen.files_to_open == 3
    assert [point.is_compaction for point in seen.commits] == [False, False, False, True]
    assert [point.is_checkpoint for point in seen.commits] == [False, True, False, False]


@pytest.mark.parametrize("retention", [None, 45 * DAY, 100 * DAY])
def test_what_is_behind_the_log_retention_is_what_clean_log_deletes(
    retention: timedelta | None,
) -> None:
    table = Folder()
    for day in (59, 55, 50, 44, 40, 20):
        table.log(add(f"{day}"), days=day)
        table.checksum(table.version, {})
    table.checkpoint(2)
    table.checkpoint(5)
    table.compaction(1, 2)
    seen = health(table, log_retention=retention)
    options = clean_log.CleanLogOptions(log_retention=retention)
    plan = clean_log.plan(table.open().snapshot(), options, now=NOW)
    assert seen.expired_log_files == sum(group.count for group in plan.groups)
    assert seen.expired_log_bytes == sum(group.bytes for group in plan.groups)
    assert (seen.expired_log_files > 0) is (retention is None or retention < 50 * DAY)


def test_a_checkpoint_whose_commit_is_gone_is_nothing_that_history_may_rest_on() -> None:
    table = Folder()
    for day in (55, 50, 45):
        table.log(add(f"{day}"), days=day)
    table.checkpoint(2)
    table.checksum(1, {})
    table.drop(*(f"{version:020d}.json" for version in range(3)))
    assert health(table).expired_log_files == 0
    assert clean_log.plan(table.open().snapshot(), now=NOW).is_noop


def test_nothing_is_behind_the_retention_where_clean_up_is_off_or_history_protected() -> None:
    for key, value in (
        ("delta.enableExpiredLogCleanup", "false"),
        ("delta.requireCheckpointProtectionBeforeVersion", "3"),
    ):
        table = Folder(first=[protocol(), metadata(configuration={key: value})])
        table.log(add("a"), days=50)
        table.checkpoint(1)
        assert health(table).expired_log_files == 0


# The files.


def test_files_by_size_are_buckets_of_powers_of_two() -> None:
    sizes = [0, 1, 2, 3, 4, 1023, 1024, SMALL_FILE_BYTES - 1, SMALL_FILE_BYTES, 1 << 40]
    table = Folder()
    table.log(*(add(f"{n}", size=size) for n, size in enumerate(sizes)))
    seen = health(table)
    wanted = Counter(0 if not size else 1 << (size.bit_length() - 1) for size in sizes)
    assert {bucket.from_bytes: bucket.files for bucket in seen.file_sizes} == wanted
    assert [b.from_bytes for b in seen.file_sizes] == sorted(wanted)
    assert sum(bucket.bytes for bucket in seen.file_sizes) == seen.total_bytes == sum(sizes)
    assert (seen.small_files, seen.small_file_share) == (8, 0.8)


def test_only_files_of_expired_tombstones_that_no_vacuum_took_are_reclaimable() -> None:
    table = Folder()
    table.log(*(add(name) for name in "abcdef"))
    table.log(gone("a", 30, 100), gone("b", 8, 200), gone("c", 6, 400), gone("d", 20), days=5)
    table.log(remove("e", deletionTimestamp=OMIT), days=5)
    seen = health(table)
    assert (seen.tombstones, seen.expired_tombstones) == (5, 3)
    assert (seen.reclaimable_files, seen.reclaimable_bytes) == (3, 300)
    after = health(table, vacuumed_at=NOW - 10 * DAY)
    assert (after.expired_tombstones, after.reclaimable_files) == (3, 1), "only that of b"
    longer = health(table, vacuum_retention=25 * DAY)
    assert (longer.expired_tombstones, longer.reclaimable_files) == (3, 1), "only that of a"


def test_a_size_that_a_tombstone_does_not_vouch_for_counts_for_nothing() -> None:
    table = Folder()
    table.log(add("a"), add("b"))
    table.log(gone("a", 30, 100), remove("b", deletionTimestamp=days_ago(30), size=200))
    seen = health(table)
    assert (seen.reclaimable_files, seen.reclaimable_bytes) == (2, 100)


def test_a_file_that_got_another_deletion_vector_is_not_reclaimable() -> None:
    first, second = deletion_vector("ab^-aqEH.-t@S}K{vb[*k^"), deletion_vector("x" * 22)
    table = Folder(first=[features("deletionVectors"), metadata()])
    stats = '{"numRecords":10}'
    table.log(add("a", stats=stats), add("b", stats=stats), add("c", stats=stats))
    table.log(gone("a", 30, 7), add("a", dv=first, stats=stats), gone("b", 30, 9))
    table.log(gone("a", 29, 7, dv=first), add("a", dv=second, stats=stats))
    seen = health(table)
    assert (seen.tombstones, seen.expired_tombstones) == (3, 3)
    assert (seen.reclaimable_files, seen.reclaimable_bytes) == (1, 9)
    assert (seen.files_with_deletion_vector, seen.deletion_vector_share) == (1, 0.5)
    assert (seen.deleted_rows, seen.rows, seen.deleted_rows_share) == (2, 20, 0.1)


def test_a_file_named_by_two_tombstones_is_reclaimed_once() -> None:
    vector = deletion_vector()
    table = Folder(first=[features("deletionVectors"), metadata()])
    table.log(add("a"))
    table.log(gone("a", 30, 7), add("a", dv=vector))
    table.log(gone("a", 29, 7, dv=vector))
    seen = health(table)
    assert (seen.expired_tombstones, seen.reclaimable_files, seen.reclaimable_bytes) == (2, 1, 7)
    assert seen.rows == 0 and seen.deleted_rows_share == 0.0


def test_what_a_vacuum_of_the_folder_finds_is_reclaimable() -> None:
    table = Folder()
    table.log(*(add(f"{n}.parquet", size=3) for n in range(9)))
    for n in reversed(range(9)):
        table.log(gone(f"{n}.parquet", 5 + n, 3), days=5 + n)
    table.file(*(f"{n}.parquet" for n in range(9)), data=b"123")
    plan = vacuum.plan(table.open().snapshot(), now=NOW)
    seen = health(table)
    assert (seen.reclaimable_files, seen.reclaimable_bytes) == (plan.files, plan.bytes)
    assert plan.files == 6


_FILES = st.lists(
    st.tuples(
        st.integers(0, 6), st.booleans(), st.integers(0, 20), st.none() | st.integers(0, 1 << 50)
    ),
    max_size=30,
)


@settings(max_examples=examples(60))
@given(_FILES, st.none() | st.integers(0, 29))
def test_counts_are_those_of_a_replay_by_hand(
    events: list[tuple[int, bool, int, int | None]], checkpointed: int | None
) -> None:
    table = Folder()
    live: dict[str, int] = {}
    dead: dict[str, tuple[int, int | None]] = {}
    for number, (file, adds, age, size) in enumerate(events):
        name = f"{file}"
        if adds:
            table.log(add(name, size=size or 0), days=age)
            live[name] = size or 0
            dead.pop(name, None)
        else:
            table.log(gone(name, age, size), days=age)
            live.pop(name, None)
            dead[name] = (age, size)
        if number == checkpointed:
            table.checkpoint()
    seen = health(table)
    assert (seen.num_files, seen.total_bytes) == (len(live), sum(live.values()))
    assert seen.small_files == sum(size < SMALL_FILE_BYTES for size in live.values())
    assert seen.tombstones == len(dead)
    expired = [size for age, size in dead.values() if age > 7]
    assert seen.expired_tombstones == seen.reclaimable_files == len(expired)
    assert seen.reclaimable_bytes == sum(size or 0 for size in expired)


# Protocol and metadata.


def test_what_the_metadata_says() -> None:
    configuration = {"delta.logRetentionDuration": "interval 60 days", "owner": "me"}
    clustering = json.dumps({"clusteringColumns": [["id"], ["a", "b"]]})
    table = Folder(
        first=[
            features("v2Checkpoint", writer_only=("clustering", "domainMetadata", "rowTracking")),
            metadata(configuration=configuration, partitioned_by=()),
            domain("delta.clustering", clustering),
        ]
    )
    seen = health(table)
    assert (seen.min_reader_version, seen.min_writer_version) == (3, 7)
    assert seen.features == ("clustering", "domainMetadata", "rowTracking", "v2Checkpoint")
    assert seen.row_tracking == "supported"
    assert seen.clustering_columns == ("id", "a.b")
    assert seen.log_retention == 60 * DAY and seen.deleted_file_retention == 7 * DAY
    assert seen.properties == configuration
    assert seen.refused == ()


def test_what_the_protocol_does_not_allow_is_told_with_the_reason() -> None:
    table = Folder(first=[features("deletionVectors", writer_only=("teleportation",)), metadata()])
    refused = {refusal.operation: refusal.problem for refusal in health(table).refused}
    assert refused.keys() == {
        "checkpoint",
        "compact-log",
        "clean-log",
        "vacuum",
        "commit",
        "change-metadata",
    }
    assert all("teleportation" in problem for problem in refused.values())


@pytest.mark.parametrize("configuration", ["", "{}", "[]", "nonsense", '{"clusteringColumns": 3}'])
def test_a_clustering_that_nobody_understands_is_none(configuration: str) -> None:
    table = Folder()
    table.log(domain("delta.clustering", configuration))
    assert health(table).clustering_columns == ()


# The newest commits.


def vacuumed(days: float, status: str = "COMPLETED") -> dict[str, Any]:
    """What a vacuum commits at its end."""
    return commit_info("VACUUM END", operationParameters={"status": status})


def test_the_series_holds_the_newest_commits_with_what_they_say_of_themselves() -> None:
    table = Folder()
    for number in range(5):
        table.log(commit_info(f"WRITE {number}"), add(f"{number}"), days=30 - number)
    seen = health(table, max_commits=3)
    assert [(p.version, p.operation) for p in seen.commits] == [
        (3, "WRITE 2"),
        (4, "WRITE 3"),
        (5, "WRITE 4"),
    ]
    assert [p.timestamp for p in seen.commits] == [NOW - n * DAY for n in (28, 27, 26)]
    assert health(table, max_commits=0).commits == ()


def test_commits_carry_their_own_times_where_the_table_says_so() -> None:
    configuration = {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "1",
    }
    table = Folder()
    first = epoch_millis(NOW - 20 * DAY)
    table.log(
        commit_info("SET", inCommitTimestamp=first),
        features(writer_only=("inCommitTimestamp",)),
        metadata(configuration=configuration),
    )
    seen = health(table)
    assert [p.timestamp for p in seen.commits] == [NOW - 60 * DAY, NOW - 20 * DAY]


def test_the_last_vacuum_that_the_log_tells_of_spares_what_it_took() -> None:
    table = Folder()
    table.log(add("a"), add("b"))
    table.log(gone("a", 30, 1), gone("b", 9, 2), days=9)
    table.log(vacuumed(20), days=8.5)
    table.log(vacuumed(1, "FAILED"), days=1)
    seen = health(table)
    assert [(m.operation, m.result, m.version) for m in seen.maintenance] == [
        ("VACUUM END", "FAILED", 4),
        ("VACUUM END", "COMPLETED", 3),
    ]
    assert (seen.reclaimable_files, seen.reclaimable_bytes) == (1, 2), "a is gone, b was too young"


def test_what_an_older_measure_knows_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Folder()
    for number in range(6):
        table.log(commit_info("OPTIMIZE" if number == 1 else "WRITE"), add(f"{number}"))
    table.checkpoint(5)
    before = health(table, max_commits=4)
    table.log(commit_info("WRITE"), add("x"))
    snapshot = table.open().snapshot()
    reads: list[str] = []
    read = type(table.store).read

    def counted(self: Store, path: str) -> bytes:
        reads.append(path)
        return read(self, path)

    monkeypatch.setattr(type(table.store), "read", counted)
    after = measure(snapshot, now=NOW, previous=before)
    new = [path for path in reads if path.endswith(".json")]
    # Short commits behind the checkpoint are kept with the snapshot, but for the newest one.
    assert sorted(set(new)) == [f"_delta_log/{v:020d}.json" for v in (0, 1, 2, 7)]
    assert [p.operation for p in after.commits[-4:]] == ["WRITE"] * 4
    assert [m.operation for m in after.maintenance] == ["OPTIMIZE"]
    assert after == measure(snapshot, now=NOW)


def test_what_an_older_measure_saw_of_another_table_counts_for_nothing() -> None:
    old, new = Folder(), Folder(first=[protocol(), metadata(id="another")])
    old.log(commit_info("OPTIMIZE"), add("a"))
    new.log(commit_info("WRITED!"), add("a"))
    assert health(new, previous=health(old)) == health(new)


def test_maintenance_is_remembered_beyond_the_series() -> None:
    table = Folder()
    table.log(vacuumed(30), days=30)
    before = health(table, max_commits=2)
    for number in range(3):
        table.log(commit_info("WRITE"), add(f"{number}"), days=20)
    assert health(table, max_commits=2).maintenance == ()
    assert health(table, max_commits=2, previous=before).maintenance == before.maintenance != ()


def test_only_the_beginning_of_a_large_commit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Folder()
    large = [commit_info("LARGE"), *(add(f"{n}" + "x" * 200) for n in range(2000))]
    table.log(*large)
    table.log(*reversed(large))
    table.log(add("y" * 300_000))
    table.log(commit_info("WIDE"), metadata(description="z" * 300_000))
    table.checkpoint()
    seen = health(table)
    assert [p.operation for p in seen.commits] == [None, "LARGE", None, None, "WIDE"]
    assert seen.warnings == ()


def test_a_damaged_commit_behind_the_checkpoint_is_a_warning() -> None:
    table = Folder()
    for number in range(4):
        table.log(commit_info("WRITE"), add(f"{number}"))
    table.checkpoint()
    table.garbage(f"{2:020d}.json")
    seen = health(table)
    assert [p.operation for p in seen.commits] == [None, None, None, "WRITE", "WRITE"]
    assert any("00000000000000000002.json" in warning for warning in seen.warnings)


# As a whole.


def test_every_measure_round_trips_and_is_small(corpus: Path) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    names = sorted(path.parent for path in corpus.glob("*/_delta_log"))[::4]
    measured = 0
    for name in names:
        try:
            snapshot = delta_maintenance.open_table(name).snapshot()
        except DeltaMaintenanceError:
            continue
        seen = measure(snapshot, now=now)
        document = json.dumps(seen.to_json())
        assert TableHealth.from_json(json.loads(document)) == seen
        assert len(document) < 64 << 10
        counts = snapshot.counts
        assert (seen.num_files, seen.total_bytes) == (counts.num_files, counts.total_size)
        assert seen.tombstones == counts.num_tombstones
        assert seen.files_with_deletion_vector == counts.num_deletion_vectors
        assert seen.deleted_rows == counts.num_deleted_rows
        measured += 1
    assert measured > 20


def test_measuring_writes_nothing_and_opens_no_data_file() -> None:
    table = Folder()
    table.log(add("a.parquet"))
    table.checkpoint()
    watched = FaultStore(table.store)
    seen = measure(delta_maintenance.Table(watched).snapshot(), now=NOW)
    assert seen.num_files == 1
    kinds = {step.kind for step in watched.trace}
    assert kinds <= {"list_from", "read", "open", "stat"}
    assert all(step.path.startswith("_delta_log") for step in watched.trace)


def test_a_commit_that_is_cleaned_up_meanwhile_has_no_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Folder()
    table.log(commit_info("WRITE"), add("a"))
    table.checkpoint()
    snapshot = table.open().snapshot()
    read = type(table.store).read

    def cleaned(self: Store, path: str) -> bytes:
        if path.endswith(f"{0:020d}.json"):
            raise FileNotFoundError(2, "gone", path)
        return read(self, path)

    monkeypatch.setattr(type(table.store), "read", cleaned)
    seen = measure(snapshot, now=NOW)
    assert [p.operation for p in seen.commits] == [None, "WRITE"] and seen.warnings == ()


def test_a_checkpoint_that_turns_out_damaged_is_passed_over(tmp_path: Path) -> None:
    table = Folder()
    table.log(add("a", size=5))
    table.checkpoint(0)
    snapshot: Snapshot = table.open().snapshot()
    table.drop(f"{0:020d}.checkpoint.parquet")
    seen = measure(snapshot, now=NOW)
    assert (seen.num_files, seen.total_bytes) == (1, 5)


def test_the_names_of_our_own_commits_are_among_those_of_maintenance() -> None:
    table = Folder()
    table.log(add("a.parquet"))
    table.log(gone("a.parquet", 30, 1))
    table.file("a.parquet")
    opened = table.open()
    now = datetime.now(UTC)
    checkpoint.apply(opened, checkpoint.plan(opened.snapshot(), now=now))
    compact_log.plan(opened.snapshot(), now=now)
    survey = vacuum.survey(opened.snapshot(), now=now)
    table.store.now_ms = lambda: epoch_millis(now)  # type: ignore[attr-defined]
    result = vacuum.apply(opened, survey.plan, now=now, surveyed=survey)
    assert result.status == "vacuumed" and result.end_version is not None
    seen: Mapping[str, str | None] = {
        m.operation: m.result for m in measure(opened.snapshot(), now=now).maintenance
    }
    assert seen == {"VACUUM END": "COMPLETED", "VACUUM START": None}
    assert seen.keys() <= MAINTENANCE_OPERATIONS
