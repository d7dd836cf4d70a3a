"""Health of the log, files, protocol and metadata, compared with counts made by hand."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.operations import clean_log, vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.health import SMALL_FILE_BYTES, measure
from delta_maintenance.table.read import Table
from tests.support.operations.table_health import DAY, gone, health
from tests.support.rewrites.data_files import DataTable, field
from tests.support.suite.play import examples
from tests.support.tables.actions import (
    OMIT,
    add,
    deletion_vector,
    domain,
    features,
    metadata,
    protocol,
    remove,
)
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago

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
def test_files_past_the_log_retention_are_those_of_clean_log(retention: timedelta | None) -> None:
    table = Folder()
    for day in (59, 55, 50, 44, 40, 20):
        table.log(add(f"{day}"), days=day)
        table.checksum(table.version, {})
    table.checkpoint(2)
    table.checkpoint(5)
    table.compaction(1, 2)
    seen = health(table, log_retention=retention)
    options = clean_log.CleanLogOptions(log_retention=retention)
    plan = clean_log.plan(table.open().snapshot(), options, context=RunContext.at(NOW))
    assert seen.expired_log_files == sum(group.count for group in plan.groups)
    assert seen.expired_log_bytes == sum(group.bytes for group in plan.groups)
    assert (seen.expired_log_files > 0) is (retention is None or retention < 50 * DAY)


def test_a_checkpoint_without_its_commit_is_not_a_boundary() -> None:
    table = Folder()
    for day in (55, 50, 45):
        table.log(add(f"{day}"), days=day)
    table.checkpoint(2)
    table.checksum(1, {})
    table.drop(*(f"{version:020d}.json" for version in range(3)))
    assert health(table).expired_log_files == 0
    assert clean_log.plan(table.open().snapshot(), context=RunContext.at(NOW)).is_noop


def test_nothing_is_expired_if_clean_up_is_off_or_history_protected() -> None:
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


def test_files_that_only_older_versions_need_end_day_by_day() -> None:
    vector = deletion_vector()
    table = Folder(first=[features("deletionVectors"), metadata()])
    table.log(*(add(name) for name in "abcdefg"))
    table.log(gone("a", 30, 100), gone("b", 6, 20), gone("c", 6, 3), gone("d", 0.1, 4), days=0)
    # A file that is live again, and one whose last tombstone counts.
    table.log(gone("e", 1, 5), add("e", dv=vector), gone("f", 6, 6), add("f", dv=vector), days=0)
    table.log(gone("f", 3, 6, dv=vector), remove("g", deletionTimestamp=2**63 - 9), days=0)
    seen = health(table)
    assert [(each.day, each.files, each.bytes, each.is_last) for each in seen.old_files] == [
        (f"{NOW + DAY:%Y-%m-%d}", 2, 23, False),
        (f"{NOW + 4 * DAY:%Y-%m-%d}", 1, 6, False),
        (f"{NOW + 6.9 * DAY:%Y-%m-%d}", 1, 4, False),
        (f"{NOW + 30 * DAY:%Y-%m-%d}", 1, 0, True),
    ]
    facts = seen.facts()
    assert facts["time travel"] == "5 files, at least 33 B"
    (*_, last) = facts["of them until"]  # type: ignore[misc]  # lines
    assert "and later: 1 file" in last
    # A vacuum that keeps files for longer deletes them later.
    longer = health(table, vacuum_retention=10 * DAY)
    assert longer.old_files[0].day == f"{NOW + 4 * DAY:%Y-%m-%d}"


def test_an_unreliable_size_of_a_tombstone_does_not_count() -> None:
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
    plan = vacuum.plan(table.open().snapshot(), context=RunContext.at(NOW))
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


def test_unsupported_operations_are_listed_with_the_reason() -> None:
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


def test_clustering_columns_have_their_logical_names() -> None:
    table = DataTable(
        field("id", "long", **{"delta.columnMapping.physicalName": "col-1"}),
        features=["columnMapping", "clustering", "domainMetadata"],
        configuration={"delta.columnMapping.mode": "name"},
        domains={"delta.clustering": '{"clusteringColumns":[["col-1"]]}'},
    )
    assert measure(Table(table.store).snapshot(), now=NOW).clustering_columns == ("id",)


@pytest.mark.parametrize("configuration", ["", "{}", "[]", "nonsense", '{"clusteringColumns": 3}'])
def test_an_unknown_clustering_counts_as_none(configuration: str) -> None:
    table = Folder()
    table.log(domain("delta.clustering", configuration))
    assert health(table).clustering_columns == ()
