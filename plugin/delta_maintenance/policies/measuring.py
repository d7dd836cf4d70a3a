"""What an operation costs and frees, and the state of the table before and after it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.freed import Freed
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.core.registry import known
from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance.policies.definition.budget import Unit
from delta_maintenance.storage import Store
from delta_maintenance.storage.core.base import DeletedBytes

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState(Record):
    """The size of a table, and of the log that its readers open."""

    version: int
    files: int
    bytes: int
    small_file_share: float
    replay_bytes: int

    @classmethod
    def of(cls, health: TableHealth | None) -> TableState | None:
        """Returns the state that an assessment found."""
        if health is None:
            return None
        return cls(
            version=health.version,
            files=health.num_files,
            bytes=health.total_bytes,
            small_file_share=health.small_file_share,
            replay_bytes=health.bytes_to_open,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Record):
    """What an operation cost in this process, and in its Spark jobs.

    Other threads of the process count, too, and so do other jobs in a session that is shared.
    """

    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    """The most memory of the process until the end of the operation; None if unknown."""
    requests_read: int | None = None
    """Requests to the store of the table; None if the store does not count them."""
    requests_write: int | None = None
    requests_list: int | None = None
    requests_delete: int | None = None
    requests_other: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    spark_task_seconds: float | None = None
    """The time of all tasks; None without a job, or if Spark does not tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCost(Record):
    """What an operation is expected to take."""

    bytes_to_read: int
    bytes_to_copy: int = 0
    requests: int
    """What the assessment stated."""
    costs: dict[Unit, float]
    """By unit, corrected."""
    least: float
    """The lowest processor time of the runs behind the correction, divided by the expected one."""
    most: float
    """The highest processor time of these runs, divided by the expected one."""
    highest: dict[Unit, float] = field(default_factory=dict)
    """By unit, the highest cost of these runs; empty if there are fewer than two."""
    runs: int = 0
    """The number of these runs."""


class SparkTime:
    """The task time of Spark jobs."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def add(self, seconds: float | None) -> None:
        """Adds the time of a job, if it is known."""
        if seconds is not None:
            self._seconds = (self._seconds or 0.0) + seconds

    def taken(self) -> float | None:
        """Returns the time that was added since the last call; None if there was none."""
        seconds, self._seconds = self._seconds, None
        return seconds


class MeasuredBlock:
    """The cost of a block; complete after its end."""

    cost = Cost()


@contextmanager
def measure_block(store: Store, jobs: SparkTime) -> Iterator[MeasuredBlock]:
    """Measures the block, in which the time of jobs is added to `jobs`."""
    measuring, began, before = MeasuredBlock(), time.process_time(), store.usage
    try:
        yield measuring
    finally:
        cost = Cost(
            cpu_seconds=round(time.process_time() - began, 6),
            peak_memory_bytes=_peak_memory(),
            spark_task_seconds=jobs.taken(),
        )
        usage = store.usage
        if usage is not None and before is not None:
            used = usage.since(before)
            cost = replace(
                cost,
                requests_read=used.read,
                requests_write=used.write,
                requests_list=used.list,
                requests_delete=used.delete,
                requests_other=used.other,
                bytes_read=used.bytes_received,
                bytes_written=used.bytes_sent,
            )
        measuring.cost = cost


def freed_by(
    operation: str,
    result: Mapping[str, Any] | None,
    ask: Callable[[], DeletedBytes],
    *,
    now: datetime,
) -> Freed | None:
    """Returns what becomes of the files that an operation has deleted; None if it deleted none.

    `result` is its Result as JSON. Asks the store only if files were deleted.
    """
    record = known(operation)
    if record is None or result is None:
        return None
    try:
        amounts = record.done_amounts(record.result.from_json(result))
    except InvalidRequestError:
        # Of another release.
        return None
    if not amounts.deleted_files:
        return None
    return Freed.of(amounts.deleted_bytes, ask, ended=now)


def _peak_memory() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
