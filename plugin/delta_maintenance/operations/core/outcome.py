"""The outcome of an operation, the same in every interface.

The `status` of a Result is specific to the operation; its record maps it to an `Outcome`. Exit
statuses, retries and the colours of pages follow from the outcome alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from delta_maintenance.errors import (
    CommitConflictError,
    CorruptTableError,
    DeltaMaintenanceError,
    IncompleteError,
    PartialFailureError,
    RefusedError,
)


class Outcome(Enum):
    """The outcome of an operation."""

    DONE = "done"
    NOTHING_TO_DO = "nothing-to-do"
    PLANNED = "planned"
    """Only a plan was requested."""
    WAITING = "waiting"
    """Partly done; the rest has to wait for an instant, not for a person. Not a failure."""
    INCOMPLETE = "incomplete"
    """Partly done; another run continues from there."""
    CONFLICT = "conflict"
    """Other writers committed first. Nothing was written."""
    REFUSED = "refused"
    """The table or its data do not permit the operation. Nothing was written."""
    FAILED = "failed"
    """A part failed, and a repetition does not help."""
    CORRUPT = "corrupt"
    """The table is damaged."""

    @property
    def error(self) -> type[DeltaMaintenanceError] | None:
        """The error that represents the outcome; None if the outcome is not a failure."""
        return _ERRORS.get(self)

    @property
    def exit_status(self) -> int:
        """The exit status of the command line."""
        return 0 if self.error is None else self.error.exit_status

    @property
    def retryable(self) -> bool:
        """Whether a repetition may succeed."""
        return self.error is not None and self.error.retryable

    @property
    def succeeded(self) -> bool:
        """Whether the request is fulfilled, at least as far as is possible now."""
        return self.error is None


_ERRORS = {
    Outcome.INCOMPLETE: IncompleteError,
    Outcome.CONFLICT: CommitConflictError,
    Outcome.REFUSED: RefusedError,
    Outcome.FAILED: PartialFailureError,
    Outcome.CORRUPT: CorruptTableError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """An outcome, with the problem and the remedy if it is not plain success."""

    outcome: Outcome
    problem: str | None = None
    """One clause."""
    remedy: str | None = None
    """One imperative clause."""
    file: str | None = None

    def error(self, *, table: str, version: int) -> DeltaMaintenanceError | None:
        """The error that corresponds to the conclusion; None if it is not a failure."""
        kind = self.outcome.error
        if kind is None:
            return None
        return kind(
            self.problem or f"the operation ended as {self.outcome.value}",
            table=table,
            version=version,
            file=self.file,
            remedy=self.remedy,
        )

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.problem, self.remedy)))
