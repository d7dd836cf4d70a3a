"""Maintenance by other engines, from the history of a table, as rows of the ledger."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import NotADeltaTableError
from delta_maintenance.ledger.rows import PARTITION, SCHEMA, one_line
from delta_maintenance.ledger.table import Delivery, LedgerTable
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.table.read.history import CommitEntry
from delta_maintenance.table.read.table import Table

_OWN = re.compile(r"delta-maintenance/")
_OPERATIONS = {
    "OPTIMIZE": "optimize",
    "VACUUM END": "vacuum",
    "COMPUTE STATS": "recompute-stats",
    "REORG": "purge",
    "CLUSTER BY": "set-clustering",
    "FSCK": "fsck",
    "ROW TRACKING BACKFILL": "backfill-row-ids",
}
"""Our operations by the names that engines give to theirs. VACUUM START goes into VACUUM END."""
_METRICS = {
    "numRemovedFiles": "files_before",
    "numFilesRemoved": "files_before",
    "numAddedFiles": "files_after",
    "numFilesAdded": "files_after",
    "numRemovedBytes": "bytes_before",
    "numAddedBytes": "bytes_after",
    "numDeletedFiles": "deleted",
}
"""The metrics of our results by the names that Delta Spark and delta-rs give to theirs. Others keep
their names."""
_SORTED = ("zOrderBy", "clusterBy")
_DONE = ("COMPLETED", "SUCCEEDED", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a ledger has from the logs of tables."""

    since_version: int = -1
    """The version of the ledger that was read; -1 if it did not exist."""
    newest: Mapping[str, int] = field(default_factory=dict)
    """The newest version of each table, by the ID of the table."""


def imported_versions(ledger: LedgerTable) -> Imported:
    """Returns what the ledger has. Raises its errors; one that does not exist yet is empty."""
    version = ledger.version()
    try:
        rows = ledger.read(("table_id", "done_by", "version_after"))
    except NotADeltaTableError:
        return Imported()
    theirs = rows.filter(pc.equal(rows["done_by"], "other"))
    newest = theirs.group_by("table_id").aggregate([("version_after", "max")])
    columns = (newest[name].to_pylist() for name in newest.column_names)
    return Imported(since_version=version, newest=dict(zip(*columns, strict=True)))


def import_history(
    ledger: LedgerTable, table: Table, policy_table: PolicyTable, *, imported: Imported
) -> int:
    """Adds a row for each retained commit of maintenance by another engine that the ledger lacks.

    `imported` are the `imported_versions` of the ledger. Returns the number of rows. Two imports at
    the same time add each row once. Raises the errors of the table and of the ledger.
    """
    table_id = table.snapshot().metadata.id
    if table_id is None:
        return 0
    newest_imported = imported.newest.get(table_id, -1)
    commits = [commit for commit in table.history() if commit.version > newest_imported]
    rows = [
        {**row, "table_name": policy_table.name, "table_id": table_id, "table_uri": table.uri}
        for row in rows_of_history(commits)
    ]
    if not rows:
        return 0
    # Named by where the import begins: another import from there is the same one.
    run_id = f"log-{table_id}-{newest_imported + 1}"
    for row in rows:
        row |= {"run_id": run_id, "row_id": f"{run_id}-{row['version_after']}"}
        row |= {name: one_line(row[name]) for name in ("table_name", "table_uri")}
        row["owner"] = one_line(policy_table.owner)
    history_rows = pa.Table.from_pylist(rows, schema=SCHEMA)
    is_new = ledger.append(
        Delivery(run_id=run_id, rows=history_rows, since_version=imported.since_version)
    )
    return len(rows) if is_new else 0


def rows_of_history(commits: Sequence[CommitEntry]) -> Iterator[dict[str, Any]]:
    """Yields a row for each commit of maintenance by another engine, without what is said of the
    table. Numbers are those that the engine has recorded.
    """
    planned: Mapping[str, int] = {}
    for commit in sorted(commits, key=lambda each: each.version):
        info = commit.commit_info
        engine = info.get("engineInfo") or info.get("clientVersion")
        if isinstance(engine, str) and _OWN.match(engine):
            continue
        metrics = _metrics(info.get("operationMetrics"))
        if commit.operation == "VACUUM START":
            planned = metrics
            continue
        operation = _OPERATIONS.get(commit.operation or "")
        if operation is None:
            continue
        parameters = info.get("operationParameters")
        parameters = parameters if isinstance(parameters, Mapping) else {}
        if operation == "optimize" and any(_names(parameters.get(key)) for key in _SORTED):
            operation = "cluster"
        ended = parameters.get("status")
        is_done = ended in _DONE
        deleted = _deleted_bytes(metrics, planned) if operation == "vacuum" else None
        yield {
            PARTITION: f"{commit.timestamp:%Y-%m}",
            "started_at": commit.timestamp,
            "ended_at": commit.timestamp,
            "done_by": "other",
            "engine_info": one_line(engine) if isinstance(engine, str) else None,
            "operation": operation,
            "reason": f"{commit.operation} in the log of the table",
            "outcome": "done" if is_done else "failed",
            "error": None if is_done else one_line(str(ended)),
            "bytes_deleted": deleted,
            "versions": 1,
            "version_before": commit.version - 1,
            "version_after": commit.version,
            "metrics": [*metrics.items()],
        }
        planned = {}


def _metrics(value: Any) -> dict[str, int]:
    """Returns the whole numbers among the metrics of a commit; some engines write them as text."""
    if not isinstance(value, Mapping):
        return {}
    metrics = {}
    for name, metric in value.items():
        text = str(metric)
        if not isinstance(metric, bool) and re.fullmatch(r"-?\d{1,18}", text):
            metrics[_METRICS.get(str(name), str(name))] = int(text)
    return metrics


def _deleted_bytes(metrics: Mapping[str, int], planned: Mapping[str, int]) -> int | None:
    """Returns the bytes that a vacuum announced, if it deleted as many files as announced."""
    files = planned.get("numFilesToDelete")
    is_complete = files is not None and metrics.get("deleted") == files
    return planned.get("sizeOfDataToDelete") if is_complete else None


def _names(value: Any) -> bool:
    """Whether a parameter names columns."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return bool(value)
