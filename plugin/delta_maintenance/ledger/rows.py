"""The columns of the ledger, its schema and documentation, and rows from the results of runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

from delta_maintenance import __version__
from delta_maintenance.operations.core.documents import printable
from delta_maintenance.operations.core.freed import freed_bytes
from delta_maintenance.policies.measuring import ExpectedCost
from delta_maintenance.policies.models import Assessment, OperationOutcome, RunResult
from delta_maintenance.redaction import redact

ColumnType = Literal["string", "long", "double", "timestamp", "boolean", "metrics"]


@dataclass(frozen=True, slots=True)
class LedgerColumn:
    """A column of the ledger; null if a row has no value for it."""

    name: str
    kind: ColumnType
    comment: str

    def to_json(self) -> dict[str, Any]:
        """The column in the schema of a Delta table."""
        return {
            "name": self.name,
            "type": _METRICS if self.kind == "metrics" else self.kind,
            "nullable": True,
            "metadata": {"comment": self.comment},
        }


_METRICS = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
PARTITION = "month"
COLUMNS = (
    LedgerColumn(
        PARTITION, "string", "The month in which the operation began, such as 2026-11, in UTC."
    ),
    LedgerColumn("row_id", "string", "Unique to the row: the ID of the run, and a number."),
    LedgerColumn("run_id", "string", "The run on one table to which the row belongs."),
    LedgerColumn("started_at", "timestamp", "When the operation began."),
    LedgerColumn("ended_at", "timestamp", "When it ended."),
    LedgerColumn(
        "done_by",
        "string",
        "What ran it: cli, airflow, dagster, python or spark; other for maintenance by other "
        "engines, found in the log of the table.",
    ),
    LedgerColumn("engine", "string", "Where the work was done: local or spark."),
    LedgerColumn(
        "engine_info", "string", "The program and its version, as in the log of the table."
    ),
    LedgerColumn("table_uri", "string", "The address of the table."),
    LedgerColumn("table_name", "string", "Its name in the policy, or in its catalog."),
    LedgerColumn("table_id", "string", "The ID in the metadata of the table."),
    LedgerColumn("owner", "string", "The owner of the table by the policy or the catalog."),
    LedgerColumn("operation", "string", "The operation, such as optimize."),
    LedgerColumn("reason", "string", "Why it was done, or why it was not, in one line."),
    LedgerColumn(
        "outcome",
        "string",
        "done, nothing-to-do, planned, incomplete, failed, stopped or needs-approval; deferred for "
        "an operation that waits because of the budget, and chosen for one that `run --shadow` "
        "would have run.",
    ),
    LedgerColumn("error", "string", "What went wrong, in one line."),
    LedgerColumn(
        "approved_by",
        "string",
        "The person who approved the plan; the run that approved it if nobody is known.",
    ),
    LedgerColumn("link", "string", "The page of the run."),
    LedgerColumn("planned_files", "long", "The files that the plan deletes."),
    LedgerColumn("planned_bytes", "long", "Their bytes."),
    LedgerColumn("bytes_deleted", "long", "Bytes of files that were deleted."),
    LedgerColumn("bytes_freed", "long", "Those of them whose storage is no longer paid for."),
    LedgerColumn("freed_at", "timestamp", "When the store ends the rest, if it says so."),
    LedgerColumn("freed", "string", "freed, later, never or unknown; null if nothing was deleted."),
    LedgerColumn("versions", "long", "The versions that the operation added to the table."),
    LedgerColumn("version_before", "long", "The version of the table before the operation."),
    LedgerColumn("version_after", "long", "The version after it."),
    LedgerColumn("files_before", "long", "Live files before."),
    LedgerColumn("files_after", "long", "Live files after."),
    LedgerColumn("bytes_before", "long", "Bytes of live files before."),
    LedgerColumn("bytes_after", "long", "Bytes of live files after."),
    LedgerColumn("small_share_before", "double", "The share of small files among them, before."),
    LedgerColumn("small_share_after", "double", "The same, after."),
    LedgerColumn("replay_bytes_before", "long", "Bytes of log that a reader opened before."),
    LedgerColumn("replay_bytes_after", "long", "The same, after."),
    LedgerColumn("seconds", "double", "The duration."),
    LedgerColumn("cpu_seconds", "double", "CPU time of the process, without Spark."),
    LedgerColumn("peak_memory_bytes", "long", "The most memory that the process had so far."),
    LedgerColumn(
        "spark_task_seconds",
        "double",
        "Time of all tasks of its Spark jobs; null without a job, with Spark Connect, and after a "
        "job that failed.",
    ),
    LedgerColumn("requests_read", "long", "Requests for contents of files, or parts of them."),
    LedgerColumn("requests_write", "long", "Requests that write files."),
    LedgerColumn("requests_list", "long", "Requests for listings."),
    LedgerColumn("requests_delete", "long", "Requests that delete files."),
    LedgerColumn(
        "requests_other", "long", "Other requests, such as those for the status of a file."
    ),
    LedgerColumn("bytes_read", "long", "Bytes that were received from the store."),
    LedgerColumn("bytes_written", "long", "Bytes that were sent to it."),
    LedgerColumn("metrics", "metrics", "The numbers in the result of the operation."),
    LedgerColumn("expected_bytes", "long", "Bytes that the operation would read, as assessed."),
    LedgerColumn("expected_requests", "long", "Its requests, as assessed."),
    LedgerColumn("expected_seconds", "double", "The duration that was expected of it."),
    LedgerColumn("expected_cpu_seconds", "double", "The CPU time, with that of Spark's tasks."),
    LedgerColumn("expected_copied", "long", "Of the bytes, those to copy without decoding them."),
)
"""In the order of the table. Names are never reused; new columns come last."""
SCHEMA_STRING = json.dumps(
    {"type": "struct", "fields": [column.to_json() for column in COLUMNS]}, separators=(",", ":")
)


DoneBy = Literal["cli", "airflow", "dagster", "python", "spark", "other"]
_LONGEST = 500
"""The most characters of a text."""
_TYPES: Mapping[ColumnType, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "boolean": pa.bool_(),
    "metrics": pa.map_(pa.string(), pa.int64()),
}
SCHEMA = pa.schema([(column.name, _TYPES[column.kind]) for column in COLUMNS])
_PROBLEMS = ("failed", "stopped", "incomplete")
_QUOTATION = re.compile(r"""(?<!\w)(["'`])(?:\\.|(?!\1).)*\1(?!\w)""", re.DOTALL)
_PARTITION = re.compile(r"(?<![^\s/])([^\s/=]+)=[^/;]*(?=/)")
_REFUSED = re.compile(r"(the condition '…' cannot be used): [^;]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who ran something, as far as the result does not say."""

    done_by: DoneBy
    run_id: str
    link: str | None = None


def rows_of(result: RunResult, origin: Origin) -> pa.Table:
    """Returns a row for each operation of a run, with the columns of the ledger.

    A table that could not be read has one row without an operation. A run that found nothing to do
    has none. Neither secrets nor values of the table's rows are taken over.
    """
    rows = [_row(result, outcome, origin) for outcome in result.outcomes]
    if not rows and result.status == "failed":
        rows.append(
            {**_common(result, result.before, origin, result.started_at), **_unread(result)}
        )
    for number, row in enumerate(rows):
        row["row_id"] = f"{origin.run_id}-{number}"
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def rows_of_choice(
    assessments: Iterable[Assessment], origin: Origin, *, chosen: bool = False
) -> pa.Table:
    """Returns a row for each operation that waits because of the budget; with `chosen`, also for
    each that would have run.
    """
    outcomes = {"deferred": "deferred", **({"due": "chosen"} if chosen else {})}
    rows = [
        {
            **_common(assessment, assessment, origin, assessment.assessed_at),
            "row_id": f"{origin.run_id}-{number}-{place}",
            "operation": operation.operation,
            "outcome": outcomes[operation.status],
            "reason": _without_quotations(operation.reason),
        }
        for number, assessment in enumerate(assessments)
        for place, operation in enumerate(assessment.operations)
        if operation.status in outcomes
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _common(
    result: RunResult | Assessment, before: Assessment | None, origin: Origin, started: datetime
) -> dict[str, Any]:
    return {
        PARTITION: f"{started:%Y-%m}",
        "run_id": origin.run_id,
        "started_at": started,
        "done_by": origin.done_by,
        "engine_info": f"delta-maintenance/{__version__}",
        "table_uri": one_line(result.uri),
        "table_name": one_line(result.name),
        "table_id": before.health.table_id if before and before.health else None,
        "owner": one_line(before.owner) if before else None,
        "link": one_line(origin.link),
    }


def _unread(result: RunResult) -> dict[str, Any]:
    return {
        "ended_at": result.ended_at,
        "outcome": "failed",
        "error": _without_quotations(result.problem),
        "seconds": (result.ended_at - result.started_at).total_seconds(),
    }


def _row(result: RunResult, outcome: OperationOutcome, origin: Origin) -> dict[str, Any]:
    planned, done = outcome.amounts
    row = {
        **_common(result, result.before, origin, outcome.started_at),
        "ended_at": outcome.started_at + timedelta(seconds=outcome.seconds),
        "engine": outcome.engine,
        "operation": outcome.operation,
        "reason": _without_quotations(outcome.reason),
        "outcome": outcome.status,
        "error": _without_quotations(outcome.reason) if outcome.status in _PROBLEMS else None,
        "approved_by": one_line(outcome.approved_by),
        "planned_files": planned.deleted_files,
        "planned_bytes": planned.deleted_bytes,
        "bytes_deleted": done.deleted_bytes,
        "versions": outcome.commits,
        "seconds": outcome.seconds,
        "metrics": [*_metrics(outcome.result or {})],
    }
    for name, state in (("before", outcome.before), ("after", outcome.after)):
        if state is not None:
            row |= {
                f"version_{name}": state.version,
                f"files_{name}": state.files,
                f"bytes_{name}": state.bytes,
                f"small_share_{name}": state.small_file_share,
                f"replay_bytes_{name}": state.replay_bytes,
            }
    freed, ended = outcome.freed, row["ended_at"]
    if freed is not None:
        row |= {
            "bytes_freed": None if freed.state == "unknown" else freed_bytes([freed], ended),
            "freed_at": freed.at,
            "freed": freed.state,
        }
    row |= _expected(outcome.expected)
    return row | (outcome.cost.to_json() if outcome.cost is not None else {})


def _expected(expected: ExpectedCost | None) -> dict[str, Any]:
    if expected is None:
        return {}
    return {
        "expected_bytes": expected.bytes_to_read,
        "expected_requests": expected.requests,
        "expected_seconds": expected.costs["seconds"],
        "expected_cpu_seconds": expected.costs["cpu_seconds"],
        "expected_copied": expected.bytes_to_copy,
    }


def _metrics(result: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in result.items():
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
            yield name, value


def _without_quotations(value: str | None) -> str | None:
    """Returns a text on one line, without what it quotes and without the values in the folders of
    partitions: a condition that was refused may contain the very values that are to be erased.
    """
    if value is None:
        return None
    text = _PARTITION.sub(r"\1=…", _QUOTATION.sub("'…'", value))
    return one_line(_REFUSED.sub(r"\1", text))


def one_line(value: str | None) -> str | None:
    """Returns a text on one line, without credentials in addresses."""
    if value is None:
        return None
    line = printable(redact(" ".join(value.split())))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
