"""How a commit ends when its outcome is known. An unknown one raises `CommitUnknownError`."""

from __future__ import annotations

from dataclasses import dataclass, field

from delta_maintenance.errors import CommitConflictError
from delta_maintenance.protocol.actions.model import CommitInfo, DomainMetadata
from delta_maintenance.protocol.commit.conflicts import Conflict


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """The commit is in the log."""

    version: int
    attempts: int
    """Versions tried, this one included."""
    in_commit_timestamp: int | None
    """Milliseconds since 1970-01-01 UTC; None where the table does not have them."""
    num_adds: int
    """Files added, those that winners made superfluous left out."""
    num_removes: int
    domains: tuple[DomainMetadata, ...] = field(default=(), compare=False)
    """The domains it wrote, the high-water mark of row IDs among them."""
    commit_info: CommitInfo | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyDone:
    """Somebody committed the same task before; nothing was written."""

    version: int
    """Where it stands in the log; for an application's transaction, the version it was seen at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """Others did everything that the commit was to do; nothing was written."""

    version: int
    """The last winner's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicted:
    """Others were quicker, and the commit cannot follow them; nothing was written."""

    version: int
    """The version that was tried."""
    attempts: int
    conflict: Conflict

    def as_error(self, table: str) -> CommitConflictError:
        """The same as an error, for callers that cannot go on without the commit."""
        return CommitConflictError(
            self.conflict.explanation,
            table=table,
            version=self.version,
            remedy=self.conflict.remedy,
        )


Outcome = Landed | AlreadyDone | Superseded | Conflicted
