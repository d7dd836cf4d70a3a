"""The processes of a race that are not Delta Spark: our verbs, and `deltalake`.

A fork server imports this module once, so that a process starts in milliseconds.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from delta_maintenance.cli.main import main
from delta_maintenance.errors import CommitUnknownError, DeltaMaintenanceError
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.commit.transaction import Transaction
from tests.support.store_races.accounts import Account

BLOCK = 20
"""The number of rows of an append; they share a partition."""
PARTITIONS = 4
PAUSE_SECONDS = 1.0
EXPIRED_IDS = 10**12
"""Rows with this ID or a greater one have an old date, so `expire` removes them."""
NEW, OLD = "2026-01-01", "2001-01-01"
_OPERATIONS = (
    *(
        "backfill_row_ids.operation",
        "checkpoint.operation",
        "expire.operation",
        "optimize",
        "purge",
    ),
    *("recompute_stats.operation", "table_change.operation", "vacuum.operation"),
)
PRELOADED = (
    *(__name__, "delta_maintenance.storage.s3", "s3fs", "aiobotocore.session", "pyarrow.parquet"),
    *(f"delta_maintenance.operations.{operation}" for operation in _OPERATIONS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The table of a race, and the folder with the accounts of its writers."""

    table: str
    folder: Path
    storage_options: Mapping[str, str]

    def options_of(self, writer: str) -> dict[str, str]:
        """The storage options with which the proxy recognises a writer."""
        return {**self.storage_options, "AWS_ACCESS_KEY_ID": writer}


def start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Starts a process."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(list(PRELOADED))
    process = forking.Process(target=target, args=arguments)
    process.start()
    return process


def run_verb(place: Place, writer: str, words: Sequence[str]) -> None:
    """Runs a command line. Its output goes to files, and its commits to its account."""
    for descriptor, suffix in ((1, "json"), (2, "log")):
        with (place.folder / f"{writer}.{suffix}").open("wb") as output:
            os.dup2(output.fileno(), descriptor)
    account, commit = Account(place.folder, writer), Transaction.commit

    def commit_with_account(transaction: Transaction, **options: Any) -> Any:
        provenance = transaction._provenance
        mark = provenance.txn_id
        account.begin(transaction._operation, mark)
        try:
            outcome = commit(transaction, **options)
        except CommitUnknownError as error:
            account.end(mark, "unknown", problem=str(error))
            raise
        except DeltaMaintenanceError as error:
            account.end(mark, "failed", problem=str(error))
            raise
        if isinstance(outcome, Landed):
            account.end(mark, "committed", version=outcome.version)
        else:
            account.end(mark, "failed", problem=str(outcome))
        return outcome

    Transaction.commit = commit_with_account  # type: ignore[method-assign]  # only in this process
    options = [f"{name}={value}" for name, value in place.options_of(writer).items()]
    stored = [word for option in options for word in ("--storage-option", option)]
    sys.exit(main([words[0], place.table, *words[1:], *stored, "--json"]))


def append_by_deltalake(place: Place, writer: str, first_id: int) -> None:
    """Appends blocks of rows until the race ends, each fourth of them with an old date."""
    account = Account(place.folder, writer)
    options, number = place.options_of(writer), 0
    while not (place.folder / "ended").exists():
        is_expired = number % 4 == 3
        row = first_id + number * BLOCK + (EXPIRED_IDS if is_expired else 0)
        number += 1
        ids, mark = range(row, row + BLOCK), f"deltalake-{uuid.uuid4()}"
        date = datetime.fromisoformat(OLD if is_expired else NEW).replace(tzinfo=UTC)
        rows = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "v": pa.array([0] * BLOCK, pa.int64()),
                "p": [partition_of(row)] * BLOCK,
                "at": pa.array([date] * BLOCK, pa.timestamp("us", tz="UTC")),
            }
        )
        account.begin("append", mark, dict.fromkeys(ids, 0))
        properties = deltalake.CommitProperties(custom_metadata={"mark": mark})
        try:
            deltalake.write_deltalake(
                place.table,
                rows,
                mode="append",
                storage_options=options,
                commit_properties=properties,
            )
        except Exception as error:
            account.end(mark, "unknown", problem=f"{type(error).__name__}: {error}")
            if "Unsupported table features" in str(error):
                # After backfill-row-ids. It goes on as a reader.
                return
        else:
            account.end(mark, "committed")
        # Delta Spark must read all that was committed meanwhile before it can commit.
        time.sleep(PAUSE_SECONDS)


def read_by_deltalake(place: Place) -> None:
    """Writes the versions and the rows of the table to the file `deltalake.json`."""
    table = deltalake.DeltaTable(place.table, storage_options=place.options_of("reader"))
    query = deltalake.QueryBuilder().register("t", table).execute("SELECT id, v FROM t")
    rows = pa.table(query.read_all()).to_pylist()
    answer = {
        "history": [[commit["version"], commit["operation"]] for commit in table.history()],
        "rows": sorted([row["id"], row["v"]] for row in rows),
    }
    (place.folder / "deltalake.json").write_text(json.dumps(answer))


def partition_of(row: int) -> str:
    """The partition of a row."""
    return str(row // BLOCK % PARTITIONS)
