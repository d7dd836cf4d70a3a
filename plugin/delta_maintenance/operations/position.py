"""The position of a watcher in the log of a table, and the pauses between its events.

It imports nothing of the library, because definitions of Dags and of Dagster must load fast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a watcher in the log of its table. To be stored, so that it survives.

    Each commit up to `version` is in exactly one place: it is not to be read any more, because it
    was counted, does not match or belongs to an event; or it is in `unread`.
    """

    version: int
    """The newest version that was listed."""
    announced: int = -1
    """The version of the last event."""
    counted: int = 0
    """The number of matching commits since then."""
    unread: tuple[tuple[int, int], ...] = ()
    """Ranges of commits, ends included, that may match and were not read yet. Ranges, because a
    misnamed file can make any number of versions look new.
    """
    half_read: int | None = None
    """A commit among these whose first bytes did not decide."""
    trouble: str | None = None
    """The error that was reported and still persists."""
    maintained: int | None = None
    """The version before the first announced commit with which no run has dealt; None if there is
    none, or if nobody looks after that."""

    def after_listing(self, newest: int) -> Self:
        """Returns the position once all commits up to `newest` are known."""
        if newest <= self.version:
            return self
        return replace(self, version=newest, unread=(*self.unread, (self.version + 1, newest)))

    def next_unread(self, *, oldest_first: bool) -> int:
        """Returns the commit to read next."""
        if self.half_read is not None:
            return self.half_read
        return self.unread[0][0] if oldest_first else self.unread[-1][1]

    def after_reading(self, version: int, *, matches: bool) -> Self:
        """Returns the position without a commit that was read."""
        parts = (
            part
            for low, high in self.unread
            for part in ((low, min(high, version - 1)), (max(low, version + 1), high))
            if part[0] <= part[1]
        )
        counted = self.counted + matches
        return replace(self, counted=counted, unread=tuple(parts), half_read=None)

    def after_event(self) -> Position:
        """Returns the position once an event tells of all commits."""
        return Position(version=self.version, announced=self.version)


def repeat_after(waited: timedelta) -> timedelta:
    """Returns the pause before a version is announced again that has waited for so long.

    The pauses grow up to an hour, because each announcement costs a run.
    """
    return min(timedelta(hours=1), max(timedelta(minutes=1), waited / 2))
