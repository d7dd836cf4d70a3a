"""Bytes that were deleted count as freed only if the store says so."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance import open_table
from delta_maintenance.cli.main import main
from delta_maintenance.errors import StorageError
from delta_maintenance.ledger import LedgerTable
from delta_maintenance.ledger.rows import Origin, rows_of
from delta_maintenance.operations.core import Freed, freed_bytes, unfreed_texts
from delta_maintenance.policies import OperationOutcome, RunEnvironment, RunResult, assess_table
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.run import run
from delta_maintenance.storage import open_store
from delta_maintenance.storage.core import DeletedBytes
from delta_maintenance.table.read import Table
from tests.support.emulators.gcs_server import GCSServer
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
VACUUM = {"vacuum": {"every": "1 day"}}
DEAD = {"daily": 40, "weekly": 41}


@pytest.fixture
def table(gcs_server: GCSServer, gcs_bucket: str) -> Iterator[Table]:
    """A table on Google Cloud Storage with two files that have been dead for long."""
    root = f"gs://{gcs_bucket}/t"
    opened = open_table(root, gcs_server.storage_options)
    builder = TableBuilder(opened.store)
    builder.commit([protocol(), metadata()])
    builder.commit([add(f"{name}.parquet", size=size) for name, size in DEAD.items()])
    then = int((datetime.now(UTC) - timedelta(days=40)).timestamp() * 1000)
    builder.commit([remove(f"{each}.parquet", deletionTimestamp=then, size=9) for each in DEAD])
    builder.checkpoint()
    for name, size in DEAD.items():
        opened.store.put(f"{name}.parquet", bytes(size))
    for each in gcs_server.buckets[gcs_bucket].values():
        each.updated -= timedelta(days=41)
    yield opened
    opened.store.close()


def policy_of(table: Table, **rules: object) -> PolicyTable:
    entry = {"name": "t", "uri": table.uri, **VACUUM, **rules}
    (found,) = Policy.model_validate({"version": 1, "tables": [entry]}).named_tables
    return found


def vacuumed(result: RunResult) -> OperationOutcome:
    (found,) = [each for each in result.outcomes if each.operation == "vacuum"]
    assert found.status == "done", found.reason
    return found


def row_of(result: RunResult) -> dict[str, Any]:
    rows = rows_of(result, Origin(done_by="cli", run_id="r")).to_pylist()
    (found,) = [row for row in rows if row["operation"] == "vacuum"]
    return {name: found[name] for name in ("bytes_deleted", "bytes_freed", "freed")}


def test_operations_on_a_bucket_that_keeps_nothing_free_what_they_delete(
    gcs_server: GCSServer, gcs_bucket: str, table: Table
) -> None:
    gcs_server.requests.clear()
    result = run(table, policy_of(table, clean_log=True))
    assert len([each for each in gcs_server.requests if f"/b/{gcs_bucket}?" in each]) == 1
    (cleaned,) = [each.freed for each in result.outcomes if each.operation == "clean-log"]
    assert cleaned is not None and cleaned.state == "freed" and cleaned.deleted_bytes > 500
    freed = vacuumed(result).freed
    assert freed is not None and (freed.deleted_bytes, freed.state) == (81, "freed")
    assert row_of(result) == {"bytes_deleted": 81, "bytes_freed": 81, "freed": "freed"}
    assert result.after is not None and not result.after.notes


def test_a_vacuum_of_a_bucket_that_keeps_versions_frees_nothing(
    gcs_server: GCSServer, gcs_bucket: str, table: Table
) -> None:
    gcs_server.settings[gcs_bucket] = {"versioning": {"enabled": True}}
    result = run(table, policy_of(table))
    assert row_of(result) == {"bytes_deleted": 81, "bytes_freed": 0, "freed": "never"}
    (told,) = unfreed_texts([each for o in result.outcomes if (each := o.freed)], NOW)
    assert told.startswith("81 B deleted, which frees nothing: the bucket keeps versions")
    assert result.after is not None
    (note,) = result.after.notes
    assert note.startswith("deletes free nothing: vacuum deleted 81 B, but the bucket keeps")
    # Later assessments know it from the last run, also if one has deleted nothing in between.
    gcs_server.requests.clear()
    tomorrow = RunEnvironment(now=lambda: datetime.now(UTC) + timedelta(days=2))
    later = run(table, policy_of(table), last_runs=result.last_runs, environment=tomorrow)
    assert [(each.operation, each.status) for each in later.outcomes] == [
        ("vacuum", "nothing-to-do")
    ]
    again = assess_table(table, policy_of(table), now=datetime.now(UTC), last_runs=later.last_runs)
    assert again.notes == (note,)
    assert not [each for each in gcs_server.requests if f"/b/{gcs_bucket}?" in each]


def test_soft_deleted_files_are_freed_when_their_time_ends(
    gcs_server: GCSServer, gcs_bucket: str, table: Table
) -> None:
    days = {"retentionDurationSeconds": str(7 * 86400)}
    gcs_server.settings[gcs_bucket] = {"softDeletePolicy": days}
    result = run(table, policy_of(table))
    outcome = vacuumed(result)
    freed = outcome.freed
    assert freed is not None and freed.at is not None
    assert timedelta() <= freed.at - outcome.started_at - timedelta(days=7) < timedelta(minutes=5)
    assert row_of(result) == {"bytes_deleted": 81, "bytes_freed": 0, "freed": "later"}
    assert freed_bytes([freed], freed.at - timedelta(seconds=1)) == 0
    assert freed_bytes([freed], freed.at) == 81


def test_unreadable_settings_leave_a_run_as_it_is(gcs_server: GCSServer, table: Table) -> None:
    gcs_server.hides_settings = True
    result = run(table, policy_of(table))
    assert row_of(result) == {"bytes_deleted": 81, "bytes_freed": None, "freed": "unknown"}
    assert "storage.buckets.get" in str(vacuumed(result).freed)


def test_a_store_that_is_down_is_a_reason_and_no_failure() -> None:
    def ask() -> DeletedBytes:
        raise StorageError("the store is down", remedy="wait")

    freed = Freed.of(5, ask, ended=NOW)
    assert freed.state == "unknown" and "the store is down; wait" in freed.why
    assert Freed.from_json(freed.to_json()) == freed


def test_the_command_line_says_that_a_deletion_frees_nothing(
    capsys: pytest.CaptureFixture[str],
    gcs_server: GCSServer,
    gcs_bucket: str,
    table: Table,
    tmp_path: Path,
) -> None:
    gcs_server.settings[gcs_bucket] = {"versioning": {"enabled": True}}
    given = [f"--storage-option=endpoint_url={gcs_server.url}"]
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump({"version": 1, "tables": [{"uri": table.uri, **VACUUM}]}))
    assert main(["run", str(policy), *given]) == 0
    out = capsys.readouterr().out
    assert "81 B deleted, which frees nothing: the bucket keeps versions" in out
    assert "of files were deleted" not in out


def test_a_verb_records_what_its_deletions_free(
    gcs_server: GCSServer, gcs_bucket: str, table: Table
) -> None:
    gcs_server.settings[gcs_bucket] = {"versioning": {"enabled": True}}
    given = [f"--storage-option=endpoint_url={gcs_server.url}"]
    ledger = f"gs://{gcs_bucket}/ledger"
    assert main(["vacuum", table.uri, *given, "--ledger", ledger]) == 0
    store = open_store(ledger, gcs_server.storage_options)
    (row,) = LedgerTable(store).read(("freed", "bytes_deleted", "bytes_freed")).to_pylist()
    assert row == {"freed": "never", "bytes_deleted": 81, "bytes_freed": 0}
    store.close()
