"""The known outcomes of a commit. An unknown outcome raises `CommitUnknownError`."""

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
    """Versions that were tried, including this one."""
    in_commit_timestamp: int | None
    """Milliseconds since 1970-01-01 UTC; None if the table does not have them."""
    num_adds: int
    """Added files, without those that concurrent commits made unnecessary."""
    num_removes: int
    domains: tuple[DomainMetadata, ...] = field(default=(), compare=False)
    """The domains that the commit wrote, including the row ID high-water mark."""
    commit_info: CommitInfo | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyDone:
    """An earlier run of the same task already committed; nothing was written."""

    version: int
    """The version of that commit; for an application's transaction, the version that was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """Concurrent commits made all changes of this commit unnecessary; nothing was written."""

    version: int
    """The version of the last concurrent commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicted:
    """A concurrent commit conflicts with this one; nothing was written."""

    version: int
    """The version that was tried."""
    attempts: int
    conflict: Conflict

    def as_error(self, table: str) -> CommitConflictError:
        """The conflict as an error, for callers that cannot continue without the commit."""
        return CommitConflictError(
            self.conflict.explanation,
            table=table,
            version=self.version,
            remedy=self.conflict.remedy,
        )


CommitOutcome = Landed | AlreadyDone | Superseded | Conflicted
