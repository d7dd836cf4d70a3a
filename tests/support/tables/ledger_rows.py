"""The rows of a ledger over the maintenance of imaginary tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.ledger import Delivery, LedgerTable
from delta_maintenance.ledger.rows import SCHEMA

OPERATIONS = ("checkpoint", "optimize", "vacuum", "clean-log", "recompute-stats")
_ERRORS = (
    "the store does not answer; try again later",
    "version 212 is missing from the log; restore the damaged files from a backup",
    "another writer committed 12 times in a row; let optimize give way, or run it at night",
)


def some_rows(
    tables: Sequence[tuple[str, str]], number: int, *, now: datetime, days: int = 90, seed: int = 0
) -> pa.Table:
    """That many operations on tables, given by name and address, until `now`.

    Small files and the log grow, and operations make them fewer.
    """
    random = np.random.default_rng(seed)
    table = random.integers(len(tables), size=number)
    back = np.sort(random.uniform(0, days * 86_400, number))[::-1]
    operation = random.choice(len(OPERATIONS), number, p=[0.5, 0.25, 0.1, 0.1, 0.05])
    failed = random.uniform(size=number) < 0.02
    share = back / (days * 86_400)
    size = 10 ** (2 + 3 * (table * 7919 % 997) / 997)
    files = (size * (0.7 + 0.5 * share + random.uniform(0, 0.15, number))).astype(int) + 2
    small = np.clip(0.25 + 0.5 * share + random.normal(0, 0.05, number), 0, 1)
    replay = (random.uniform(1, 40, number) * (1 << 20) * (0.4 + share)).astype(int)
    optimizes, checkpoints = operation == 1, operation == 0
    deletes = ((operation == 2) | (operation == 3)) & ~failed
    deleted = np.where(deletes, random.uniform(0.01, 3, number) * (1 << 30), 0).astype(int)
    frees = random.uniform(size=number) < 0.75
    seconds = random.exponential(9, number) + 0.2

    def nullable(values: Any, known: Any, kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind, mask=~known)

    def texts(choices: Sequence[str], at: Any) -> pa.Array:
        return pa.array(choices, pa.string()).take(pa.array(at))

    started = [now - timedelta(seconds=float(each)) for each in back]
    done = ~failed
    columns: dict[str, Any] = {
        "month": [f"{each:%Y-%m}" for each in started],
        "row_id": [f"r{seed}-{each}" for each in range(number)],
        "run_id": [f"r{seed}-{each}" for each in range(number)],
        "started_at": started,
        "ended_at": [
            each + timedelta(seconds=float(took))
            for each, took in zip(started, seconds, strict=True)
        ],
        "done_by": texts(("airflow", "cli"), (random.uniform(size=number) < 0.1).astype(int)),
        "table_name": texts([name for name, _ in tables], table),
        "table_uri": texts([uri for _, uri in tables], table),
        "operation": texts(OPERATIONS, operation),
        "reason": pa.repeat("more than the policy allows", number),
        "outcome": texts(("done", "failed"), failed.astype(int)),
        "error": pc.if_else(
            pa.array(failed), texts(_ERRORS, random.integers(len(_ERRORS), size=number)), None
        ),
        "link": [f"/dags/delta_maintenance/runs/r{each}" for each in range(number)],
        "bytes_deleted": nullable(deleted, deletes, pa.int64()),
        "bytes_freed": nullable(np.where(frees, deleted, 0), deletes, pa.int64()),
        "files_before": files,
        "files_after": nullable(np.where(optimizes, files // 2 + 1, files), done, pa.int64()),
        "small_share_before": small,
        "small_share_after": nullable(np.where(optimizes, small * 0.3, small), done, pa.float64()),
        "replay_bytes_before": replay,
        "replay_bytes_after": nullable(
            np.where(checkpoints, replay // 9, replay), done, pa.int64()
        ),
        "seconds": seconds,
        "cpu_seconds": seconds * 0.6,
        "requests_write": random.integers(1, 60, number),
        "requests_list": random.integers(1, 9, number),
        "requests_read": random.integers(1, 400, number),
    }
    rows = {
        field.name: pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(number, field.type)
        for field in SCHEMA
    }
    return pa.table(rows, schema=SCHEMA)


def append(ledger: LedgerTable, rows: pa.Table, *, deliveries: int = 1) -> None:
    """Appends the rows in that many commits."""
    size = -(-len(rows) // deliveries) or 1
    for start in range(0, len(rows), size):
        part = rows.slice(start, size)
        ledger.append(Delivery(run_id=part["run_id"][0].as_py(), rows=part, since_version=None))
