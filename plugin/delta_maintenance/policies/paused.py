"""Runs that are paused while a Spark job works for them, and continued by another process.

A `SubmitToSpark` raises `JobLeftRunningError` if its job runs on without this process. The error
carries the state of the run. `RunEnvironment.paused` continues from it, once the job has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.policies.models import (
    AssessedOperation,
    Assessment,
    LastRun,
    OperationOutcome,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedOperation(Record):
    """The operation whose job runs on."""

    due: AssessedOperation
    begun_at: Instant
    applies: bool
    """Whether the job carries the operation out, so that its end is the end of the operation.
    Otherwise it only plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedRun(Record):
    """The state of a run between two operations, and the operation that is under way."""

    started_at: Instant
    before: Assessment
    """The assessment at the start of the run."""
    operation: PausedOperation
    outcomes: tuple[OperationOutcome, ...] = ()
    """The outcomes of the operations before."""
    versions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The versions of the table on which each operation has run."""
    last_runs: tuple[LastRun, ...] = ()


class JobLeftRunningError(BaseException):
    """Ends a run whose Spark job runs on without this process.

    Not an `Exception`, because it is no failure, and nothing may treat it as one. The lease of the
    table is kept.
    """

    operation: PausedOperation | None = None
    run: PausedRun | None = None
