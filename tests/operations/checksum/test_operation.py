"""Which version checksums are written, and that each says what the log says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import open_table
from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError, RefusedError
from delta_maintenance.operations import checksum, fsck
from delta_maintenance.operations.checksum import ChecksumOptions, ChecksumPlan, ChecksumResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import (
    VersionChecksum,
    checksum_name,
    differences,
    parse_checksum,
)
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.commit.checksums import computed_checksum
from delta_maintenance.table.read import Table
from tests.support.faults.fault_store import FaultStore, SimulatedCrash, faults
from tests.support.tables.actions import (
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

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)


def built() -> TableBuilder:
    """Three files, one of them with a deletion vector, and checkpoints of versions 1 and 2."""
    table = TableBuilder()
    supported = features("deletionVectors", "v2Checkpoint", "domainMetadata")
    table.commit([commit_info(txnId="a"), supported, metadata(), add("gone", size=7)])
    table.commit([commit_info(txnId="b"), add("f1", size=9000), txn("app", 3), domain("d", "{}")])
    table.checkpoint(1)
    vectored = add("f2", size=10, dv=deletion_vector(cardinality=12))
    table.commit([commit_info(txnId="c"), remove("gone"), vectored])
    table.checkpoint(2)
    table.commit([commit_info(txnId="d"), add("f3", size=10)])
    return table


def planned(table: TableBuilder, **options: Any) -> ChecksumPlan:
    return checksum.plan(
        table.open().snapshot(), ChecksumOptions(**options), context=RunContext.at(NOW)
    )


def run(table: TableBuilder, **options: Any) -> ChecksumResult:
    return checksum.apply(table.open(), planned(table, **options))


def stated(table: TableBuilder, version: int) -> VersionChecksum:
    return parse_checksum(table.store.read(f"{LOG}/{checksum_name(version)}"))


def findings(table: TableBuilder) -> set[str]:
    return {
        finding.kind for finding in fsck.plan(table.open(), context=RunContext.at(NOW)).findings
    }


@pytest.mark.conformance("CRC-01", "CRC-03", "CRC-08", "CRC-09")
def test_the_latest_version_and_each_checkpoint_get_one() -> None:
    table = built()
    result = run(table)
    assert (result.status, [one.version for one in result.versions]) == ("written", [1, 2, 3])
    found = stated(table, 2)
    assert (found.num_files, found.table_size, found.txn_id) == (2, 9010, "c")
    assert (found.num_deletion_vectors, found.num_deleted_records) == (1, 12)
    assert found.txns is not None and [each.app_id for each in found.txns] == ["app"]
    assert found.domains is not None and [each.domain for each in found.domains] == ["d"]
    assert found.file_sizes is not None and sum(found.file_sizes.file_counts) == 2
    assert found.deleted_record_counts == (1, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    assert "checksum-differs" not in findings(table)
    again = run(table)
    assert (again.status, again.versions) == ("nothing-to-do", ())


def test_only_the_latest_version_gets_one_if_requested() -> None:
    table = built()
    assert planned(table, checkpoints=False).versions == (3,)


@pytest.mark.conformance("CRC-02")
def test_a_checksum_that_is_there_is_never_touched() -> None:
    table = built()
    plan = planned(table)
    path = f"{LOG}/{checksum_name(3)}"
    table.store.put(path, b"another writer's")
    result = checksum.apply(table.open(), plan)
    assert [one.status for one in result.versions] == ["written", "written", "already-there"]
    assert table.store.read(path) == b"another writer's"


def test_a_version_without_its_log_is_skipped() -> None:
    table = built()
    plan = planned(table)
    for version in (0, 1):
        table.store.delete(f"{LOG}/{version:020}.json")
    table.store.delete(f"{LOG}/{1:020}.checkpoint.parquet")
    result = checksum.apply(table.open(), plan)
    assert [one.status for one in result.versions] == ["gone", "written", "written"]


@pytest.mark.parametrize(
    "doubtful",
    [
        [add("f1", size=1), add("f1", size=1, dv=deletion_vector())],
        [add("f1", size=-1)],
        [add("f1", dv={"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1})],
    ],
)
def test_an_uncertain_number_is_not_written(doubtful: list[Any]) -> None:
    table = TableBuilder()
    table.commit([features("deletionVectors"), metadata(), *doubtful])
    refusals = (CorruptTableError, RefusedError)
    with pytest.raises(refusals, match="would not be certain|two deletion vectors"):
        run(table)
    assert not [s for s in table.store.list_from(LOG) if s.path.endswith(".crc")]


def test_a_fault_at_any_step_leaves_whole_checksums_alone(
    count_cases: Callable[[str, int], None],
) -> None:
    original = built().store
    trial = FaultStore(copied(original))
    written(trial)
    cases = list(faults(trial.trace))
    for at, fault in cases:
        store = copied(original)
        with suppress(SimulatedCrash, DeltaMaintenanceError):
            written(FaultStore(store, at=at, fault=fault))
        written(store)
        for version in (1, 2, 3):
            found = parse_checksum(store.read(f"{LOG}/{checksum_name(version)}"))
            snapshot = Table(store).snapshot(version=version)
            assert not list(differences(found, computed_checksum(snapshot)))
    count_cases("faults while checksums are written", len(cases))


def copied(original: Store) -> MemoryStore:
    store = MemoryStore()
    for status in original.list_from(LOG):
        store.put(status.path, original.read(status.path))
    return store


def written(store: Store) -> ChecksumResult:
    table = Table(store)
    return checksum.apply(table, checksum.plan(table.snapshot(), context=RunContext.at(NOW)))


SYNTHETIC = {"kernelrs-crc-full"}
"""Checksums that were made up for the tests of a parser, beside a log without files."""


@pytest.mark.conformance("CRC-03", "CRC-08", "CRC-09")
def test_every_field_equals_that_of_delta_spark(corpus: Path) -> None:
    compared = 0
    for path in sorted(corpus.rglob("_delta_log/[0-9]*.crc")):
        table = path.parent.parent
        if table.name in SYNTHETIC:
            continue
        try:
            theirs = parse_checksum(path.read_bytes())
            snapshot = open_table(str(table)).snapshot(version=int(path.stem))
        except CorruptTableError:
            continue
        ours = computed_checksum(snapshot)
        assert not list(differences(theirs, ours)), path
        for name in VersionChecksum.__dataclass_fields__:
            said = getattr(theirs, name)
            if said is not None and name not in ("all_files", "extra"):
                assert getattr(ours, name) is not None, (path, name)
        if theirs.all_files is not None and ours.all_files is None:
            # The checkpoint has statistics as columns only; the list needs them as text.
            assert table.name.endswith("struct-stats-only"), path
        elif theirs.all_files is not None:
            assert in_order(ours.all_files or ()) == in_order(theirs.all_files), path
        assert theirs.txn_id in (None, ours.txn_id)
        compared += 1
    assert compared > 100


def in_order(files: tuple[Any, ...]) -> list[Any]:
    return sorted(files, key=lambda file: (file["path"], str(file.get("deletionVector"))))
