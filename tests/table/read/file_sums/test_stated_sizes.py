"""Sums of files by a version checksum: those of a replay, or no use of the checksum at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from delta_maintenance.operations import checkpoint, checksum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.health import measure
from delta_maintenance.protocol.delta_log import checksum_name
from delta_maintenance.table.read import summary
from delta_maintenance.table.read.file_sums import FileSums, Instants, sum_files
from delta_maintenance.table.read.segment import list_entries
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import (
    Action,
    add,
    commit_info,
    deletion_vector,
    domain,
    features,
    metadata,
    remove,
    txn,
)
from tests.support.tables.table_builder import EPOCH_MS, LOG, TableBuilder

DAY_MS = 86_400_000
NOW = datetime.fromtimestamp((EPOCH_MS + 7 * DAY_MS) / 1000, UTC)
SMALL = 32 << 20
INSTANTS = Instants(
    now=EPOCH_MS + 7 * DAY_MS,
    expired_before=EPOCH_MS + 3 * DAY_MS,
    reclaimable_before=EPOCH_MS + 3 * DAY_MS,
    reclaimed_before=0,
)


@pytest.fixture(autouse=True)
def small_tables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "FEWEST_FILES", 1)


def gone(path: str, size: int, day: int = 1, **fields: Any) -> Action:
    return remove(
        path,
        size=size,
        deletionTimestamp=EPOCH_MS + day * DAY_MS,
        extendedFileMetadata=True,
        partitionValues={},
        **fields,
    )


STATE = [txn("app", 3), txn("idle", 1), domain("d", "{}"), domain("kept", "{}")]


def begun(
    store: CountingStore | None = None, *supported: str, kind: Any = "v2-json"
) -> TableBuilder:
    """Live files of every size, and tombstones of two ages; with a checkpoint and a checksum."""
    table = TableBuilder(store)
    sizes = {"a": 8192, "b": 1 << 20, "c": 40 << 20, "d": 3 << 30, "e": 9000, "f": 9000}
    files = [add(path, size=size) for path, size in sizes.items()]
    protocol = features("v2Checkpoint", *supported, writer_only=["domainMetadata"])
    table.commit([commit_info(), protocol, metadata(), *files, *STATE])
    table.commit([commit_info("DELETE"), gone("e", 9000, 1), gone("f", 9000, 9)])
    opened = table.open()
    options = checkpoint.CheckpointOptions(kind=kind, actions_per_sidecar=3)
    checkpoint.apply(
        opened, checkpoint.plan(opened.snapshot(), options, context=RunContext.at(NOW))
    )
    plan = checksum.plan(
        opened.snapshot(), checksum.ChecksumOptions(checkpoints=False), context=RunContext.at(NOW)
    )
    assert checksum.apply(opened, plan).status == "written"
    return table


LATER: list[list[Action]] = [
    [commit_info(), add("g", size=5 << 20), txn("app", 4)],
    [commit_info("DELETE"), gone("b", 1 << 20, 2)],
    [
        commit_info("MERGE"),
        gone("g", 5 << 20, 10),
        add("h", size=70 << 20),
        domain("d", removed=True),
    ],
    [commit_info("SET TBLPROPERTIES"), metadata(configuration={"x": "y"})],
]


def sums(table: TableBuilder, *, by_checksum: bool = True) -> FileSums:
    checksums = [*list_entries(table.store)] if by_checksum else ()
    snapshot = table.open().snapshot()
    return sum_files(snapshot, small_bytes=SMALL, instants=INSTANTS, checksums=checksums)


def agrees(table: TableBuilder) -> int | None:
    """The version of the checksum, or None; fails if the sums are not those of a replay."""
    found, expected = sums(table), sums(table, by_checksum=False)
    assert expected.checksum_version is None
    # Without the live paths, files whose tombstone has a vector may be live.
    least, most = (sum(each.files for each in one.old_files) for one in (found, expected))
    assert least <= most
    alike = {"checksum_version": None, "old_files": expected.old_files}
    assert replace(found, **alike) == expected
    return found.checksum_version


@pytest.mark.parametrize("kind", ["v2-json", "v2-parquet", "classic"])
@pytest.mark.parametrize("commits", range(len(LATER) + 1))
@pytest.mark.conformance("CRC-09")
def test_the_sums_are_those_of_a_replay(commits: int, kind: str) -> None:
    table = begun(kind=kind)
    for actions in LATER[:commits]:
        table.commit(actions)
    assert agrees(table) == 1


def test_only_tombstones_are_read() -> None:
    store = CountingStore()
    table = begun(store)
    opened = table.open().snapshot().log.checkpoint
    assert opened is not None and len(opened.sidecars) == 3
    store.requests.clear()
    assert agrees(table) == 1
    by_checksum, replayed = (
        {line.split()[-1] for line in part if "_sidecars" in line}
        for part in _halves(store.requests)
    )
    assert (len(by_checksum), len(replayed)) == (1, 3)


def _halves(requests: list[str]) -> tuple[list[str], list[str]]:
    """The requests of the first opening, and of the second one."""
    second = [n for n, line in enumerate(requests) if line == f"read {LOG}/_last_checkpoint"][1]
    return requests[:second], requests[second:]


@pytest.mark.parametrize(
    "actions",
    [
        [commit_info("RESTORE"), add("e", size=9000)],
        [add("unnamed", size=9000)],
        [commit_info(), add("x", size=9000), {"surprise": {}}],
        [commit_info(), remove("c")],
    ],
)
def test_commits_that_may_repeat_files_are_replayed(actions: list[Action]) -> None:
    table = begun()
    table.commit(actions)
    assert agrees(table) is None


def test_a_data_file_that_lives_on_with_a_vector_is_not_reclaimable() -> None:
    table = begun(None, "deletionVectors")
    changed = [gone("c", 40 << 20), add("c", size=40 << 20, dv=deletion_vector(cardinality=1))]
    table.commit([commit_info("DELETE"), *changed])
    assert agrees(table) is None
    assert sums(table).reclaimable_files == 1


@pytest.mark.parametrize("operation", ["OPTIMIZE", "REORG"])
def test_a_table_without_a_live_vector_is_not_replayed_for_supporting_them(operation: str) -> None:
    table = begun(None, "deletionVectors")
    assert agrees(table) == 1 and sums(table).reclaimable_files == 1
    vector = deletion_vector(cardinality=1)
    table.commit([commit_info("DELETE"), gone("c", 40 << 20), add("c", size=40 << 20, dv=vector)])
    table.commit([commit_info(operation), gone("c", 40 << 20, 9, dv=vector)])
    # The tombstone with the vector is too young to be reclaimed. The file of the other one could
    # live on without a vector, but then it would be the same logical file.
    assert agrees(table) == 1 and sums(table).reclaimable_files == 2
    table.commit([commit_info("DELETE"), gone("b", 1 << 20, 2, dv=vector)])
    assert agrees(table) is None


def test_sizes_below_the_first_boundary_are_one_bucket() -> None:
    table = begun()
    table.commit([commit_info(), add("x", size=1), add("y", size=100)])
    found, expected = sums(table), sums(table, by_checksum=False)
    assert found.checksum_version == 1
    assert found.files_by_size[0] == 2 and found.bytes_by_size[0] == 101
    assert sum(found.files_by_size) == sum(expected.files_by_size)
    assert found.small_files == expected.small_files


def test_small_tables_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "FEWEST_FILES", 5)
    assert agrees(begun()) is None


def _histogram(said: dict[str, Any], files: int, size: int) -> dict[str, Any]:
    """The checksum with other totals, which its histogram confirms."""
    sizes = said["fileSizeHistogram"]
    at = sizes["sortedBinBoundaries"].index(1 << 20)
    counts, total = list(sizes["fileCounts"]), list(sizes["totalBytes"])
    counts[at], total[at] = counts[at] + files, total[at] + size
    changed = sizes | {"fileCounts": counts, "totalBytes": total}
    return said | {
        "numFiles": said["numFiles"] + files,
        "tableSizeBytes": said["tableSizeBytes"] + size,
        "fileSizeHistogram": changed,
    }


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "numFiles": lambda said: said | {"numFiles": 3},
    "tableSizeBytes": lambda said: said | {"tableSizeBytes": 1},
    "numMetadata": lambda said: said | {"numMetadata": 2},
    "numProtocol": lambda said: said | {"numProtocol": 0},
    "setTransactions": lambda said: said | {"setTransactions": []},
    "domainMetadata": lambda said: said | {"domainMetadata": []},
    "metadata": lambda said: (
        said | {"metadata": said["metadata"] | {"configuration": {"delta.appendOnly": "true"}}}
    ),
    "protocol": lambda said: said | {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    "a file too many": lambda said: _histogram(said, 1, 1 << 20),
    "a byte too many": lambda said: _histogram(said, 0, 1),
    "allFiles": lambda said: said | {"allFiles": said["allFiles"][:1]},
    "not an object": lambda _: [],
}


@pytest.mark.parametrize("later", [0, 2])
@pytest.mark.parametrize("field", DAMAGE)
@pytest.mark.conformance("CRC-02", "CRC-03")
def test_a_wrong_checksum_is_not_used(field: str, later: int) -> None:
    table = begun()
    path = f"{LOG}/{checksum_name(table.version)}"
    said = json.loads(table.store.read(path))
    for actions in LATER[:later]:
        table.commit(actions)
    assert agrees(table) == 1
    table.store.put(path, json.dumps(DAMAGE[field](said)).encode())
    assert agrees(table) is None


@pytest.mark.conformance("CRC-02")
def test_health_reports_that_a_checksum_was_used() -> None:
    table = begun()
    snapshot = table.open().snapshot()
    assert measure(snapshot, now=NOW).checksum_version == 1
    table.store.delete(f"{LOG}/{checksum_name(1)}")
    assert measure(snapshot, now=NOW).checksum_version is None
