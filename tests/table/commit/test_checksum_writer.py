"""The version checksum after a commit is complete and correct, or absent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.protocol.commit import removes_of
from delta_maintenance.protocol.delta_log import (
    VersionChecksum,
    checksum_name,
    differences,
    parse_checksum,
    render_checksum,
)
from delta_maintenance.storage.core import Store
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.commit.transaction import Transaction, Writer
from delta_maintenance.table.read import Snapshot, Table
from tests.support.faults.fault_store import FaultStore, SimulatedCrash, faults
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import checksum_of
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(hours=1)
VECTORS = log.features("deletionVectors", writer_only=["domainMetadata", "inCommitTimestamp"])
TIMED = {"delta.enableInCommitTimestamps": "true"}
STATS = '{"numRecords":100}'
OLD = log.deletion_vector(cardinality=2)
NEW = log.deletion_vector("0b^-aqEH.-t@S}K{vb[*k^", cardinality=15)


def computed(snapshot: Snapshot) -> VersionChecksum:
    """The checksum of a snapshot without its list of files, computed by a scan of all files."""
    return replace(checksum_of(snapshot), all_files=None)


def table(
    *more: log.Action, protocol: log.Action = VECTORS, configuration: Mapping[str, str] = TIMED
) -> TableBuilder:
    """A table of one version with a correct checksum."""
    builder = TableBuilder()
    info = log.commit_info("CREATE TABLE", txnId="t-0", inCommitTimestamp=EPOCH_MS)
    files = [
        log.add("a", size=10, stats=STATS),
        log.add("b", size=9000, stats=STATS, dv=OLD),
        log.add("c", size=70_000, stats=STATS),
    ]
    builder.commit([info, protocol, log.metadata(configuration=configuration), *files, *more])
    builder.checksum(0, render_checksum(computed(builder.open().snapshot())))
    return builder


def live(snapshot: Snapshot, *paths: str) -> pa.Table:
    files = pa.concat_tables([batch.adds for batch in snapshot.log.scan()])
    return files.filter(pa.array([path in paths for path in files["path"].to_pylist()]))


def begin(snapshot: Snapshot, **options: Any) -> Transaction:
    ids = iter(f"id-{number}" for number in range(10))
    writer = Writer(now=lambda: NOW, new_id=lambda: next(ids), **options)
    return Transaction(snapshot, "TEST", writer=writer)


def remove(transaction: Transaction, rows: pa.Table) -> Transaction:
    transaction.read_files(rows)
    transaction.stage_removes(removes_of(rows, data_change=True))
    return transaction


def checksum(builder: TableBuilder, version: int = 1) -> VersionChecksum | None:
    with suppress(FileNotFoundError):
        return parse_checksum(builder.read(checksum_name(version)))
    return None


def require_true(builder: TableBuilder, *absent: str) -> VersionChecksum:
    """The checksum of version 1, which must agree with the log in all fields except `absent`."""
    written = checksum(builder)
    assert written is not None
    expected = computed(builder.open().snapshot())
    unsaid: dict[str, Any] = dict.fromkeys(absent)
    assert written == replace(expected, **unsaid)
    assert not list(differences(written, expected))
    return written


def test_the_checksum_of_the_test_table_is_correct() -> None:
    stated = checksum(table(), 0)

    assert stated is not None
    assert (stated.num_files, stated.table_size, stated.num_deleted_records) == (3, 79_010, 2)


@pytest.mark.conformance("CRC-04", "CRC-05", "CRC-06")
def test_a_commit_without_files_keeps_the_numbers() -> None:
    builder = table(log.txn("app", 1), log.domain("x", "1"), log.domain("y", "2"))
    snapshot = builder.open().snapshot()
    transaction = begin(snapshot)
    transaction.stage_metadata(replace(snapshot.metadata, name="renamed"))
    transaction.stage_txn("app", 2)
    transaction.remove_domain("x")

    assert isinstance(transaction.commit(), Landed)

    written = require_true(builder)
    assert written.metadata is not None
    assert written.metadata.name == "renamed"
    assert [txn.version for txn in written.txns or ()] == [2]
    assert [domain.domain for domain in written.domains or ()] == ["y"]
    assert (written.num_metadata, written.num_protocol) == (1, 1)


@pytest.mark.conformance("CRC-06")
def test_no_timestamp_without_in_commit_timestamps() -> None:
    builder = table(protocol=log.features("deletionVectors"), configuration={})
    begin(builder.open().snapshot()).commit()

    assert require_true(builder, "in_commit_timestamp").in_commit_timestamp is None


@pytest.mark.conformance("CRC-05", "CRC-07")
def test_removed_files_are_subtracted() -> None:
    builder = table()
    snapshot = builder.open().snapshot()
    remove(begin(snapshot), live(snapshot, "b")).commit()

    written = require_true(builder)
    assert (written.num_files, written.num_deletion_vectors) == (2, 0)


@pytest.mark.conformance("CRC-05", "CRC-07")
def test_a_changed_deletion_vector_is_counted() -> None:
    builder = table()
    snapshot = builder.open().snapshot()
    transaction = remove(begin(snapshot), live(snapshot, "b"))
    again = log.add("b", size=9000, stats=STATS, dv=NEW, dataChange=True)["add"]
    transaction.stage_adds([again])

    transaction.commit()

    assert require_true(builder).num_deleted_records == 15


@pytest.mark.conformance("CRC-05")
def test_re_added_files_count_once() -> None:
    builder = table()
    snapshot = builder.open().snapshot()
    rows = live(snapshot, "a", "b")
    transaction = begin(snapshot)
    transaction.read_files(rows)
    flags = pa.chunked_array([pa.array([False, False])])
    at = rows.column_names.index("dataChange")
    transaction.stage_adds(rows.set_column(at, "dataChange", flags))

    transaction.commit()

    assert require_true(builder).num_files == 3


@pytest.mark.conformance("CRC-05")
def test_computed_counts_of_the_snapshot_are_used() -> None:
    builder = table()
    builder.drop(checksum_name(0))
    snapshot = builder.open().snapshot()
    assert snapshot.counts.num_files == 3

    remove(begin(snapshot), live(snapshot, "b")).commit()

    require_true(builder, "file_sizes", "deleted_record_counts")


def _lie(builder: TableBuilder, **fields: Any) -> None:
    stated = json.loads(builder.read(checksum_name(0)))
    builder.checksum(0, {name: v for name, v in (stated | fields).items() if v is not None})


@pytest.mark.conformance("CRC-03", "CRC-05")
@pytest.mark.parametrize(
    "fields",
    [
        {"txnId": "another writer's"},
        {"txnId": None},
        {"numFiles": None},
        {"tableSizeBytes": None},
        {"protocol": None},
        {"metadata": None},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"setTransactions": [{"appId": "app", "version": 1}]},
        {"numMetadata": 2},
        {"numFiles": "3"},
    ],
)
def test_a_wrong_previous_checksum_is_not_used(fields: dict[str, Any]) -> None:
    builder = table()
    _lie(builder, **fields)

    assert isinstance(begin(builder.open().snapshot()).commit(), Landed)
    assert checksum(builder) is None


@pytest.mark.conformance("CRC-05")
def test_no_checksum_without_a_previous_one() -> None:
    builder = table()
    builder.drop(checksum_name(0))

    assert isinstance(begin(builder.open().snapshot()).commit(), Landed)
    assert checksum(builder) is None


@pytest.mark.conformance("CRC-05")
@pytest.mark.parametrize("read", ["nothing", "other files", "files without sizes"])
def test_no_checksum_if_a_removed_file_may_not_be_live(read: str) -> None:
    builder = table()
    snapshot = builder.open().snapshot()
    transaction = begin(snapshot)
    transaction.stage_removes(removes_of(live(snapshot, "a"), data_change=True))
    if read == "other files":
        transaction.read_files(live(snapshot, "c"))
    elif read == "files without sizes":
        transaction.read_files(live(snapshot, "a").select(["path", "deletionVector"]))

    assert isinstance(transaction.commit(), Landed)
    assert checksum(builder) is None


@pytest.mark.conformance("CRC-05")
def test_no_checksum_if_an_added_file_may_be_live() -> None:
    builder = table()
    snapshot = builder.open().snapshot()
    transaction = remove(begin(snapshot), live(snapshot, "a"))
    transaction.stage_adds([log.add("c", size=70_000, stats=STATS)["add"]])

    assert isinstance(transaction.commit(), Landed)
    assert checksum(builder) is None


@pytest.mark.conformance("CRC-05")
def test_no_checksum_after_a_concurrent_commit() -> None:
    builder = table()
    snapshot = builder.open().snapshot()
    builder.commit([log.commit_info(txnId="w"), log.add("w", stats=STATS)])

    outcome = begin(snapshot).commit()

    assert isinstance(outcome, Landed)
    assert outcome.version == 2
    assert checksum(builder, 2) is None


@pytest.mark.conformance("CRC-04", "LOG-09")
def test_an_existing_checksum_is_not_overwritten() -> None:
    builder = table()
    builder.checksum(1, b"another writer's")

    assert isinstance(begin(builder.open().snapshot()).commit(), Landed)
    assert builder.read(checksum_name(1)) == b"another writer's"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ([log.txn(f"app-{number}", 1) for number in range(101)], "txns"),
        ([log.domain(f"d-{number}") for number in range(11)], "domains"),
    ],
)
def test_long_lists_are_omitted(more: Sequence[log.Action], field: str) -> None:
    builder = table(*more)
    begin(builder.open().snapshot()).commit()

    assert getattr(require_true(builder, field), field) is None


def test_transactions_that_may_expire_are_omitted() -> None:
    retention = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    builder = table(log.txn("app", 1), configuration=TIMED | retention)
    begin(builder.open().snapshot()).commit()

    assert require_true(builder).txns is None


def test_the_checksum_is_optional() -> None:
    builder = table()
    store = FaultStore(builder.store)
    snapshot = Table(store).snapshot()
    at = len(store.trace)

    begin(snapshot, checksum=False).commit()

    assert checksum(builder) is None
    assert [step.kind for step in store.trace[at:]] == ["put_if_absent", "list_from"]


def test_requests_of_a_commit_with_a_checksum() -> None:
    builder = table()
    store = FaultStore(builder.store)
    snapshot = Table(store).snapshot()
    at = len(store.trace)

    begin(snapshot).commit()

    kinds = [step.kind for step in store.trace[at:]]
    assert kinds == ["put_if_absent", "list_from", "read", "put_if_absent"]
    require_true(builder)


def _commit(store: Store) -> object:
    return begin(Table(store).snapshot()).commit()


@pytest.mark.conformance("CRC-04")
def test_a_fault_at_any_step_leaves_a_correct_checksum_or_none() -> None:
    recorded = FaultStore(table().store)
    _commit(recorded)
    seen = set()

    for at, fault in faults(recorded.trace):
        builder = table()
        outcome: object = None
        with suppress(SimulatedCrash, DeltaMaintenanceError):
            outcome = _commit(FaultStore(builder.store, at=at, fault=fault))
        landed = builder.open().latest_version() == 1
        written = checksum(builder)
        assert landed or written is None
        if written is not None:
            require_true(builder)
        if recorded.trace[at].path.endswith(".crc") and "crash" not in fault.value:
            # A fault while the checksum is written does not make the commit fail.
            assert isinstance(outcome, Landed)
        seen.add((landed, written is not None))

    assert seen == {(False, False), (True, False), (True, True)}
