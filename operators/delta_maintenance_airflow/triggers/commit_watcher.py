"""The events and positions that follow from the polls of the watcher of one table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from delta_maintenance.errors import CatalogError, StorageError
from delta_maintenance.operations.position import Position

if TYPE_CHECKING:
    from delta_maintenance.operations.watch import CommitCount
    from delta_maintenance_airflow.triggers.polling import PollResult

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """The outcome of one poll."""

    position: Position
    """The position to store; if there is an event, only after the event is certain to be stored."""
    event: dict[str, Any] | None = None
    """The payload of the event: `status`, `table`, and the versions or the error."""


class CommitWatcher:
    """Counts the commits of one table that change data, and decides when to send an event.

    `facts` are in each event, besides `table`.
    """

    def __init__(
        self,
        table_uri: str,
        *,
        min_commits: int = 1,
        operations: Sequence[str] = (),
        position: Position | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._facts = {"table": table_uri, **(facts or {})}
        self._min_commits = min_commits
        self._operations = tuple(operations)
        self._position = position
        self._count: CommitCount[Position] | None = None

    async def take(self, result: PollResult) -> Seen | None:
        """Processes the result of a poll. Returns None if there is nothing to store."""
        trouble = result.trouble
        if trouble is None:
            count = self._counting(result.version)
            try:
                # Without a new version, no request is needed.
                if result.version > count.position.version or count.position.unread:
                    await result.stream.count(
                        count, newest=result.version, enough=self._min_commits
                    )
            except (StorageError, CatalogError) as error:
                if error.retryable:
                    _log.warning("%s", error)
                    return None
                trouble = error
        if trouble is not None:
            return self._in_trouble(trouble)
        position = count.position
        if position.unread:
            # The watch of the stream ended before they were read.
            return None
        if position.counted < self._min_commits:
            self._position = position
            return Seen(position)
        self._position = count.position = position.after_event()
        versions = {"from_version": position.announced, "to_version": position.version}
        return Seen(self._position, self._event("changed", **versions))

    def announced(self) -> Seen | None:
        """Returns the event, sent before a restart, with whose version no run has dealt."""
        position = self._position
        if position is None or position.maintained is None:
            return None
        versions = {"from_version": position.maintained, "to_version": position.announced}
        return Seen(position, self._event("changed", **versions))

    def _counting(self, newest: int) -> CommitCount[Position]:
        # Already imported by the thread that opened the table.
        from delta_maintenance.operations.watch import CommitCount, CommitFilter

        before = self._position or Position(version=newest, announced=newest)
        if self._count is not None:
            before = self._count.position
        if newest < before.version:
            # Another table replaced the known one: all its commits are new.
            before = Position(version=-1)
        elif self._count is not None:
            return self._count
        accepts = CommitFilter(data_changes_only=True, operations=self._operations)
        self._count = CommitCount(accepts, replace(before, trouble=None, maintained=None))
        return self._count

    def _in_trouble(self, trouble: Exception) -> Seen | None:
        name = type(trouble).__name__
        if self._position is not None and self._position.trouble == name:
            return None
        _log.error("%s", trouble)
        self._position = replace(self._position or Position(version=-1), trouble=name)
        return Seen(self._position, self._event("error", error=name, message=str(trouble)))

    def _event(self, status: str, **facts: Any) -> dict[str, Any]:
        return {"status": status, **self._facts, **facts}
