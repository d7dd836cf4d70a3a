"""The columns of the ledger, which are the schema of its table and its documentation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

ColumnType = Literal["string", "long", "double", "timestamp", "boolean", "metrics"]


@dataclass(frozen=True, slots=True)
class Column:
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


_METRICS = {
    "type": "map",
    "keyType": "string",
    "valueType": "long",
    "valueContainsNull": True,
}
PARTITION = "month"
COLUMNS = (
    Column(PARTITION, "string", "The month in which the operation began, such as 2026-11, in UTC."),
    Column("row_id", "string", "Unique to the row: the ID of the run, and a number."),
    Column("run_id", "string", "The run on one table to which the row belongs."),
    Column("started_at", "timestamp", "When the operation began."),
    Column("ended_at", "timestamp", "When it ended."),
    Column(
        "done_by",
        "string",
        "What ran it: cli, airflow, dagster, python or spark; other for maintenance by other "
        "engines, found in the log of the table.",
    ),
    Column("engine", "string", "Where the work was done: local or spark."),
    Column("engine_info", "string", "The program and its version, as in the log of the table."),
    Column("table_uri", "string", "The address of the table."),
    Column("table_name", "string", "Its name in the policy, or in its catalog."),
    Column("table_id", "string", "The ID in the metadata of the table."),
    Column("owner", "string", "The owner of the table by the policy or the catalog."),
    Column("operation", "string", "The operation, such as optimize."),
    Column("reason", "string", "Why it was done, or why it was not, in one line."),
    Column(
        "outcome",
        "string",
        "done, nothing-to-do, planned, incomplete, failed, stopped or needs-approval.",
    ),
    Column("error", "string", "What went wrong, in one line."),
    Column(
        "approved_by",
        "string",
        "The person who approved the plan; the run that approved it if nobody is known.",
    ),
    Column("link", "string", "The page of the run."),
    Column("planned_files", "long", "The files that the plan deletes."),
    Column("planned_bytes", "long", "Their bytes."),
    Column("bytes_deleted", "long", "Bytes of files that were deleted."),
    Column("bytes_freed", "long", "Those of them whose storage is no longer paid for."),
    Column("freed_at", "timestamp", "When the store ends the rest, if it says so."),
    Column("freed", "string", "freed, later, never or unknown; null if nothing was deleted."),
    Column("versions", "long", "The versions that the operation added to the table."),
    Column("version_before", "long", "The version of the table before the operation."),
    Column("version_after", "long", "The version after it."),
    Column("files_before", "long", "Live files before."),
    Column("files_after", "long", "Live files after."),
    Column("bytes_before", "long", "Bytes of live files before."),
    Column("bytes_after", "long", "Bytes of live files after."),
    Column("small_share_before", "double", "The share of small files among them, before."),
    Column("small_share_after", "double", "The same, after."),
    Column("replay_bytes_before", "long", "Bytes of log that a reader opened before."),
    Column("replay_bytes_after", "long", "The same, after."),
    Column("seconds", "double", "The duration."),
    Column("cpu_seconds", "double", "CPU time of the process, without Spark."),
    Column("peak_memory_bytes", "long", "The most memory that the process had so far."),
    Column(
        "spark_task_seconds",
        "double",
        "Time of all tasks of its Spark jobs; null without a job, with Spark Connect, and after a "
        "job that failed.",
    ),
    Column("requests_read", "long", "Requests for contents of files, or parts of them."),
    Column("requests_write", "long", "Requests that write files."),
    Column("requests_list", "long", "Requests for listings."),
    Column("requests_delete", "long", "Requests that delete files."),
    Column("requests_other", "long", "Other requests, such as those for the status of a file."),
    Column("bytes_read", "long", "Bytes that were received from the store."),
    Column("bytes_written", "long", "Bytes that were sent to it."),
    Column("metrics", "metrics", "The numbers in the result of the operation."),
)
"""In the order of the table. Names are never reused; new columns come last."""
SCHEMA_STRING = json.dumps(
    {"type": "struct", "fields": [column.to_json() for column in COLUMNS]}, separators=(",", ":")
)
