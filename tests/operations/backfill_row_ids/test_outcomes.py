"""The results and errors of a backfill, its checkpoints, and its cost."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from delta_maintenance.errors import (
    CorruptTableError,
    InvalidRequestError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations import backfill_row_ids, checkpoint
from delta_maintenance.operations.backfill_row_ids import BackfillRowIdsPlan, BackfillRowIdsResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.data.footers import RowCounts
from delta_maintenance.table.read import Table
from tests.support.faults.fault_store import FaultStore
from tests.support.operations.backfills import (
    NOW,
    SUPPORTED,
    apply,
    backfill,
    built,
    counting,
    latest,
    plan_of,
    races,
    stats,
)
from tests.support.operations.row_ids import append, check
from tests.support.tables import actions as log


def test_errors_before_the_first_commit_are_raised() -> None:
    table = built()
    plan = plan_of(table)
    table.commit([log.protocol(1, 7, writer_features=["unheardOf"])], version=1)
    with pytest.raises(UnsupportedFeatureError):
        apply(table, plan)


def test_an_error_after_a_commit_is_in_the_result() -> None:
    table = built()
    plan = plan_of(table)

    def fail() -> None:
        raise StorageError("the store is down")

    races(table, None, None, fail)
    result = apply(table, plan)
    assert (result.status, result.num_commits, result.files_backfilled) == ("incomplete", 2, 4)
    assert "the store is down" in str(result.problem)
    check(table.store, enabled=False)
    assert backfill(table).status == "enabled"
    check(table.store)


def test_a_plan_for_a_table_that_somebody_finished_commits_nothing() -> None:
    table = built()
    plan = plan_of(table)
    backfill(table)
    result = apply(table, plan)
    assert (result.status, result.num_commits) == ("enabled", 0)


def test_the_table_opens_from_a_checkpoint_behind_the_batches() -> None:
    table = built()
    result = backfill(table)
    assert result.checkpoint == f"_delta_log/{4:020}.checkpoint.parquet"
    snapshot = table.open().snapshot()
    assert snapshot.log.segment.base_version == 4 and len(snapshot.log.segment.commits) == 1
    assert backfill(built(), checkpoint=False).checkpoint is None


def test_a_checkpoint_that_cannot_be_written_is_a_note() -> None:
    none = {
        "delta.checkpoint.writeStatsAsJson": "false",
        "delta.checkpoint.writeStatsAsStruct": "false",
    }
    result = backfill(built(configuration=none))
    assert result.status == "enabled" and result.checkpoint is None
    assert "no checkpoint was written" in result.notes[-1]


def test_a_damaged_checkpoint_is_passed_over() -> None:
    table = built(*(log.add(f"f{n}", stats=stats(n)) for n in range(10)))
    table.checkpoint(rows_per_group=3)
    name = f"{0:020}.checkpoint.parquet"
    data = bytearray(table.read(name))
    at = data.index(b"f5")
    data[at - 40 : at + 40] = bytes(80)
    table.write(name, bytes(data))
    try:
        result = backfill(table)
    except CorruptTableError:
        pytest.skip("the damage shows before the checkpoint is chosen")
    assert result.status == "enabled"
    check(table.store)


def test_a_log_that_is_cleaned_up_concurrently_is_opened_again() -> None:
    table = built(*(log.add(f"f{n}") for n in range(10)))
    store, asked = table.store, []

    def count(paths: pa.StringArray) -> RowCounts:
        asked.append(paths.to_pylist())
        # Each batch is counted once before the first commit, and once for its own.
        if len(asked) == 3 + 2:
            after = latest(table)
            append(store, "n1")
            append(store, "n2")
            snapshot = table.open().snapshot()
            checkpoint.apply(table.open(), checkpoint.plan(snapshot, context=RunContext.at(NOW)))
            for version in range(after + 2):
                store.delete(f"_delta_log/{version:020}.json")
        return RowCounts(counts=pa.array([2] * len(paths), pa.int64()))

    result = apply(table, plan_of(table, checkpoint=False), engine=count)
    assert (result.status, result.files_backfilled, len(asked)) == ("enabled", 10, 7)
    live = table.open().snapshot().live_files()
    ids = sorted(live["base_row_id"].to_pylist())
    assert len(set(ids)) == 12 and live["base_row_id"].null_count == 0


def test_records_survive_their_json() -> None:
    table = built(log.add("none"), protocol=SUPPORTED)
    plan = plan_of(table, operation_id="x", other_writers="none")
    assert BackfillRowIdsPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    result = apply(table, plan, engine=counting({}))
    assert BackfillRowIdsResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    with pytest.raises(InvalidRequestError, match="files_per_commit"):
        plan_of(table, files_per_commit=0)


def test_progress_counts_files() -> None:
    table = built()
    told: list[tuple[str, int, int | None]] = []
    apply(table, plan_of(table), progress=lambda *step: told.append(step))
    assert told == [("files", 4, 10), ("files", 8, 10), ("files", 10, 10)]


def test_a_batch_costs_one_put_and_two_listings_regardless_of_the_log_length() -> None:
    table = built(*(log.add(f"f{n}", stats=stats(n)) for n in range(40)))
    plan = plan_of(table, checkpoint=False)
    store = FaultStore(table.store)
    backfill_row_ids.apply(Table(store), plan)
    kinds = [step.kind for step in store.trace]
    puts = [at for at, kind in enumerate(kinds) if kind == "put_if_absent"]
    assert len(puts) == 12
    # The requests between two batches: the check of the commit, the checksum to continue, and the
    # commits of others.
    between = [kinds[one + 1 : other] for one, other in zip(puts[1:10], puts[2:11], strict=True)]
    assert between == [["list_from", "read", "list_from"]] * 9
    assert not [step for step in store.trace[puts[1] :] if step.kind == "open"]


@pytest.mark.conformance("CRC-05")
def test_checksums_continue_from_batch_to_batch(tmp_path: Path) -> None:
    table = built(store=LocalStore(str(tmp_path)))
    rest = {"tableSizeBytes": 10, "numFiles": 10, "numMetadata": 1, "numProtocol": 1}
    info = log.commit_info(txnId="t")
    table.commit([info])
    snapshot = table.open().snapshot()
    state_after = {
        "txnId": "t",
        "protocol": snapshot.protocol.to_json(),
        "metadata": snapshot.metadata.to_json(),
    }
    table.checksum(1, {**rest, **state_after})
    assert backfill(table, checkpoint=False).version == 6
    for version in range(2, 7):
        told = json.loads(table.read(f"{version:020}.crc"))
        assert (told["numFiles"], told["tableSizeBytes"]) == (10, 10)
    (domain,) = told["domainMetadata"]
    assert json.loads(domain["configuration"]) == {"rowIdHighWaterMark": 44}
    assert told["metadata"]["configuration"]["delta.enableRowTracking"] == "true"
