"""Runs that are paused while a Spark job works, and continued by another process.

A `SubmitToSpark` raises `JobLeftRunningError` if its job continues without this process. The error
contains the state of the run. After the job has ended, `RunEnvironment.paused` continues from it.
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
    """The operation whose job continues."""

    due: AssessedOperation
    begun_at: Instant
    applies: bool
    """Whether the job applies the operation, so that its end is the end of the operation. Otherwise
    it only plans.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedRun(Record):
    """The state of a run between two operations, and the current operation."""

    started_at: Instant
    before: Assessment
    """The assessment at the start of the run."""
    operation: PausedOperation
    outcomes: tuple[OperationOutcome, ...] = ()
    """The outcomes of the previous operations."""
    versions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The versions of the table on which each operation has run."""
    last_runs: tuple[LastRun, ...] = ()
