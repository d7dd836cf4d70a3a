"""A summary from a version checksum: equal to a replay, few requests, and nothing decided by it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations import checkpoint, checksum, clean_log, fsck, vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.health.inspection import describe
from delta_maintenance.protocol.delta_log import (
    FileSizeHistogram,
    VersionChecksum,
    checksum_name,
    is_consistent,
    parse_checksum,
    render_checksum,
)
from delta_maintenance.table.read import summary
from delta_maintenance.table.read.summary import summarize
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import (
    Action,
    add,
    commit_info,
    deletion_vector,
    domain,
    features,
    metadata,
    protocol,
    remove,
    txn,
)
from tests.support.tables.table_builder import EPOCH_MS, LOG, TableBuilder

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
VECTOR = deletion_vector(cardinality=12)


@pytest.fixture(autouse=True)
def small_tables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "FEWEST_FILES", 1)


def gone(path: str, size: int, **fields: Any) -> Action:
    return remove(path, size=size, extendedFileMetadata=True, partitionValues={}, **fields)


def begun(store: CountingStore | None = None) -> TableBuilder:
    """Files, a tombstone, a vector, a transaction and a domain; with a checkpoint."""
    table = TableBuilder(store)
    supported = features("deletionVectors", "v2Checkpoint", writer_only=["domainMetadata"])
    table.commit([commit_info(), supported, metadata(), add("a", size=7), add("b", size=9000)])
    changed = add("b", size=9000, dv=VECTOR)
    table.commit([commit_info(), gone("a", 7), gone("b", 9000), changed, txn("app", 3)])
    table.commit([commit_info(), add("c", size=1), domain("d", "{}")])
    opened, options = table.open(), checkpoint.CheckpointOptions(kind="v2-json")
    checkpoint.apply(
        opened, checkpoint.plan(opened.snapshot(), options, context=RunContext.at(NOW))
    )
    return table


def checksummed(table: TableBuilder) -> TableBuilder:
    opened = table.open()
    plan = checksum.plan(
        opened.snapshot(), checksum.ChecksumOptions(checkpoints=False), context=RunContext.at(NOW)
    )
    assert checksum.apply(opened, plan).status == "written"
    return table


def agrees(table: TableBuilder) -> bool:
    """Whether there is a summary; fails if it differs from the replay."""
    found = summarize(table.store)
    if found is None:
        return False
    assert describe(found) == describe(table.open().snapshot())
    return True


LATER: list[list[Action]] = [
    [commit_info(), add("e", size=5), txn("app", 4), txn("other", 1)],
    [commit_info("DELETE"), gone("c", 1)],
    [commit_info("MERGE"), add("f", size=9), domain("d", removed=True)],
    [commit_info("SET TBLPROPERTIES"), metadata(configuration={"x": "y"})],
    [commit_info("OPTIMIZE"), gone("e", 5), gone("f", 9), add("g", size=14, dataChange=False)],
    [commit_info("REORG"), gone("b", 9000, dv=VECTOR), add("h", size=8000, dataChange=False)],
]


@pytest.mark.parametrize("commits", range(len(LATER) + 1))
@pytest.mark.conformance("CRC-09")
def test_a_summary_is_the_same_as_a_replay(commits: int) -> None:
    table = checksummed(begun())
    for actions in LATER[:commits]:
        table.commit(actions)
    assert agrees(table)


@given(st.lists(st.sampled_from(["add", "remove", "vector", "checksum"]), max_size=8), st.data())
@settings(max_examples=25)
def test_a_summary_is_the_same_after_any_usual_commits(
    steps: list[str], data: st.DataObject
) -> None:
    table = checksummed(begun())
    live: dict[str, tuple[int, Action | None]] = {"c": (1, None)}
    for made, step in enumerate(steps, 1):
        if step == "checksum":
            if not table.store.stat(f"{LOG}/{checksum_name(table.version)}"):
                checksummed(table)
        elif step == "add" or not live:
            live[f"n{made}"] = (made, None)
            table.commit([commit_info(), add(f"n{made}", size=made)])
        else:
            path = data.draw(st.sampled_from(sorted(live)))
            size, before = live.pop(path)
            actions = [commit_info("DELETE"), gone(path, size, dv=before)]
            if step == "vector":
                vector = deletion_vector(f"v{made}", cardinality=made)
                live[path] = (size, vector)
                actions.append(add(path, size=size, dv=vector))
            table.commit(actions)
    assert agrees(table)


def test_three_requests_are_enough() -> None:
    store = CountingStore()
    table = checksummed(begun(store))
    store.requests.clear()
    assert summarize(store) is not None
    assert len(store.requests) == 3, store.requests
    table.commit([commit_info(), add("e", size=5)])
    store.requests.clear()
    assert summarize(store) is not None
    assert len(store.requests) == 4, store.requests


def test_a_long_log_is_listed_from_the_checkpoint_on() -> None:
    table = TableBuilder()
    table.commit([commit_info(), protocol(), metadata(), add("a", size=7)])
    for number in range(1010):
        table.commit([commit_info(), add(f"f{number}", size=1)])
    table.checkpoint(1005)
    table.hint(1005)
    checksummed(table)
    assert agrees(table)
    found = summarize(table.store)
    assert found is not None and found.oldest_commit == 0


@pytest.mark.parametrize(
    "actions",
    [
        [commit_info("RESTORE"), add("a", size=7)],
        [commit_info("COMPUTE STATS"), add("c", size=1)],
        [add("unnamed", size=1)],
        [commit_info(), add("x", size=1), {"surprise": {}}],
        [commit_info(), remove("c")],
        [commit_info(), add("x", size=None)],
    ],
)
def test_commits_that_may_repeat_files_are_replayed(actions: list[Action]) -> None:
    table = checksummed(begun())
    table.commit(actions)
    assert summarize(table.store) is None


def test_other_uncertain_logs_are_replayed() -> None:
    assert summarize(begun().store) is None
    table = checksummed(begun())
    table.commit([commit_info(), add("e", size=5)])
    table.commit([commit_info(), add("f", size=5)])
    table.compaction(3, 4)
    assert summarize(table.store) is None
    # A checkpoint that may be V2, because its name does not tell.
    table = begun()
    table.commit([commit_info(), add("e", size=5)])
    table.checkpoint()
    assert summarize(checksummed(table).store) is None


def test_small_tables_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "FEWEST_FILES", 3)
    assert summarize(checksummed(begun()).store) is None


DAMAGE: dict[str, Callable[[VersionChecksum], VersionChecksum]] = {
    "num_files": lambda said: replace(said, num_files=3),
    "table_size": lambda said: replace(said, table_size=1),
    "num_deleted_records": lambda said: replace(said, num_deleted_records=1),
    "num_deletion_vectors": lambda said: replace(said, num_deletion_vectors=0),
    "unknown vectors": lambda said: replace(
        said, num_deleted_records=None, num_deletion_vectors=None, deleted_record_counts=None
    ),
    "num_metadata": lambda said: replace(said, num_metadata=2),
    "num_protocol": lambda said: replace(said, num_protocol=0),
    "txns": lambda said: replace(said, txns=None),
    "domains": lambda said: replace(said, domains=None),
    "metadata": lambda said: replace(said, metadata=None),
    "protocol": lambda said: replace(said, protocol=None),
    "file_sizes": lambda said: replace(
        said, file_sizes=FileSizeHistogram(boundaries=(0,), file_counts=(2,), total_bytes=(1,))
    ),
    "deleted_record_counts": lambda said: replace(said, deleted_record_counts=(3, *([0] * 9))),
    "all_files": lambda said: replace(said, all_files=()),
    "tombstones": lambda said: replace(said, extra={"delta-maintenance.numTombstones": 77}),
}


@pytest.mark.parametrize("field", DAMAGE)
@pytest.mark.conformance("CRC-03")
def test_a_contradiction_is_found_and_the_log_is_replayed(field: str) -> None:
    table = checksummed(begun())
    path = f"{LOG}/{checksum_name(table.version)}"
    said = parse_checksum(table.store.read(path))
    assert is_consistent(said) and agrees(table)
    table.store.put(path, render_checksum(DAMAGE[field](said)))
    assert summarize(table.store) is None


LIES: dict[str, dict[str, Any]] = {
    "numFiles": {"numFiles": 2000},
    "tableSizeBytes": {"tableSizeBytes": 5 * 9001},
    "setTransactions": {"setTransactions": [{"appId": "foreign", "version": 7}]},
    "domainMetadata": {"domainMetadata": []},
    "configuration": {"metadata": {"configuration": {"delta.logRetentionDuration": "0 days"}}},
    "protocol": {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
}
"""Contents of a checksum that do not contradict each other, but the log."""


@pytest.mark.parametrize("late", [False, True], ids=["of the checkpoint", "of a later version"])
@pytest.mark.parametrize("field", LIES)
@pytest.mark.conformance("CRC-03")
def test_a_lie_about_a_v2_checkpoint_is_not_repeated(field: str, late: bool) -> None:
    table = begun()
    if late:
        table.commit([commit_info(), add("e", size=5)])
    checksummed(table)
    assert agrees(table)
    path = f"{LOG}/{checksum_name(table.version)}"
    said = json.loads(table.store.read(path))
    for name in ("fileSizeHistogram", "deletedRecordCountsHistogramOpt", "allFiles"):
        said.pop(name, None)
    for name, value in LIES[field].items():
        said[name] = said[name] | value if isinstance(value, dict) else value
    assert is_consistent(parse_checksum(json.dumps(said).encode()))
    table.store.put(path, json.dumps(said).encode())
    assert summarize(table.store) is None


PLAUSIBLE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "numFiles": lambda said: said | {"numFiles": 1},
    "tableSizeBytes": lambda said: said | {"tableSizeBytes": 1},
    "numDeletedRecordsOpt": lambda said: said | {"numDeletedRecordsOpt": 13},
    "numDeletionVectorsOpt": lambda said: said | {"numDeletionVectorsOpt": 2},
    "setTransactions": lambda said: said | {"setTransactions": []},
    "domainMetadata": lambda said: said | {"domainMetadata": []},
    "metadata": lambda said: (
        said | {"metadata": said["metadata"] | {"configuration": {"delta.appendOnly": "true"}}}
    ),
    "protocol": lambda said: said | {"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}},
    "fileSizeHistogram": lambda said: (
        said
        | {
            "fileSizeHistogram": {
                "sortedBinBoundaries": [0],
                "fileCounts": [2],
                "totalBytes": [9001],
            },
            "numFiles": 2,
        }
    ),
    "deletedRecordCountsHistogramOpt": lambda said: (
        said | {"deletedRecordCountsHistogramOpt": {"deletedRecordCounts": [0, 1, 1] + [0] * 7}}
    ),
    "allFiles": lambda said: said | {"allFiles": said["allFiles"][:1]},
    "txnId": lambda said: said | {"txnId": "another"},
    "everything": lambda _: [],
}


COMPARED = {
    *("numFiles", "tableSizeBytes", "numDeletedRecordsOpt", "numDeletionVectorsOpt"),
    *("setTransactions", "domainMetadata", "metadata", "protocol"),
}
"""The fields that stop operations if they differ from the log."""


@pytest.mark.parametrize("field", PLAUSIBLE)
@pytest.mark.conformance("CRC-02", "CRC-03")
def test_no_operation_decides_by_a_checksum(field: str) -> None:
    table = checksummed(begun())
    path = f"{LOG}/{checksum_name(table.version)}"
    before = decisions(table)
    data = json.loads(table.store.read(path))
    table.store.put(path, json.dumps(PLAUSIBLE[field](data)).encode())
    if field in COMPARED:
        with pytest.raises(CorruptTableError, match="contradicts the log"):
            decisions(table)
    else:
        assert decisions(table) == before
    found = {
        finding.kind for finding in fsck.plan(table.open(), context=RunContext.at(NOW)).findings
    }
    # Each bin of a coarser histogram, and the name of a transaction, are not compared.
    if field not in ("fileSizeHistogram", "txnId"):
        assert found & {"checksum-differs", "unreadable-checksum"}


def decisions(table: TableBuilder) -> list[Any]:
    """Returns the plans of operations that delete or write, without times."""
    snapshot = table.open().snapshot()
    return [
        snapshot.counts,
        snapshot.protocol,
        snapshot.metadata,
        snapshot.txns,
        checkpoint.plan(snapshot, context=RunContext.at(NOW)),
        clean_log.plan(snapshot, context=RunContext.at(NOW)),
        vacuum.plan(
            snapshot, vacuum.VacuumOptions(ignore_missing_files=True), context=RunContext.at(NOW)
        ),
    ]
