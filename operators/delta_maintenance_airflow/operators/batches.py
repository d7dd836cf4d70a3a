"""Small work in batches: which tables one task of the scheduled Dag maintains, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delta_maintenance.policies.assessments import AssessmentEntry
    from delta_maintenance.policies.models import Assessment

LEFT = "left-over"
"""The status of a table that was not begun because the time was over."""
_LAST_RUNS = 3
_UNKNOWN_SECONDS = 2.0
"""The expected time of a table that was never maintained."""
_WORTH_A_TASK = 30.0
"""The seconds of work that are worth the start of a task, which takes several seconds, and on a
machine with few cores slows down other tasks."""


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """How much work one task takes, if it takes more than one table."""

    tables: int = 25
    bytes: int = 256 << 20
    time: timedelta = timedelta(minutes=5)
    at_once: int = 8
    """The number of tasks that run at the same time: work for less time is divided among them."""


def expected_work(
    assessment: Assessment, entry: AssessmentEntry | None, due: Sequence[str]
) -> dict[str, Any]:
    """Returns the `bytes` that the due operations read, the `seconds` that the last runs took, and
    whether they use `spark`.
    """
    operations = [operation for operation in assessment.operations if operation.operation in due]
    history = entry.history[:_LAST_RUNS] if entry is not None else ()
    return {
        "bytes": sum(operation.bytes_to_read for operation in operations),
        "seconds": max((run.seconds for run in history), default=_UNKNOWN_SECONDS),
        "spark": any(operation.engine == "spark" for operation in operations),
    }


def row_alone(table: Mapping[str, str], *, seconds: float) -> dict[str, Any]:
    """Returns the row of a table that is assessed by a task of its own, because its assessment
    takes more than so many seconds.
    """
    return {
        "name": table.get("name") or table["uri"],
        "uri": table["uri"],
        "status": "due",
        "due": ["assessment"],
        "waits": [],
        "problem": None,
        "acknowledged": None,
        "bytes": 0,
        "seconds": seconds,
        "spark": False,
        "alone": True,
        "last_run_at": None,
        "retryable": False,
    }


def divide_into_batches(
    rows: Sequence[Mapping[str, Any]], limits: BatchLimits
) -> list[list[Mapping[str, Any]]]:
    """Divides the tables with work, in their order, into batches within the limits.

    A table whose work uses Spark or exceeds a limit, or that answers slowly, has a batch of its
    own.
    """
    small = [row for row in rows if not _is_alone(row)]
    share = sum(row["seconds"] for row in small) / max(1, limits.at_once)
    seconds = min(limits.time.total_seconds(), max(_WORTH_A_TASK, share))
    batches: list[list[Mapping[str, Any]]] = []
    open_batch: list[Mapping[str, Any]] = []
    for row in rows:
        if _is_alone(row):
            batches.append([row])
            continue
        whole = [*open_batch, row]
        if open_batch and (
            len(whole) > limits.tables
            or sum(row_of_batch["bytes"] for row_of_batch in whole) > limits.bytes
            or sum(row_of_batch["seconds"] for row_of_batch in whole) > seconds
        ):
            batches.append(open_batch)
            whole = [row]
        open_batch = whole
    return [*batches, *([open_batch] if open_batch else [])]


def _is_alone(row: Mapping[str, Any]) -> bool:
    return bool(row["spark"] or row.get("alone"))
