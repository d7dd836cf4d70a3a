"""The events that follow from the polls of tables, and those with which no run has dealt yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from delta_maintenance import clock
from delta_maintenance.errors import CatalogError, StorageError
from delta_maintenance.operations.position import Position
from delta_maintenance_airflow.settings import assessment_store, leases

if TYPE_CHECKING:
    from delta_maintenance.operations.watch import CommitCount
    from delta_maintenance_airflow.triggers.polling import PollResult

_log = logging.getLogger(__name__)

_BETWEEN_REVIEWS = timedelta(seconds=15)
_MOST_AT_ONCE = 200
"""The maximum number of tables in one review."""


@dataclass(frozen=True, slots=True)
class Notice:
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

    async def take(self, result: PollResult) -> Notice | None:
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
            return Notice(position)
        self._position = count.position = position.after_event()
        versions = {"from_version": position.announced, "to_version": position.version}
        return Notice(self._position, self._event("changed", **versions))

    def recall_event(self) -> Notice | None:
        """Returns the event, sent before a restart, with whose version no run has dealt."""
        position = self._position
        if position is None or position.maintained is None:
            return None
        versions = {"from_version": position.maintained, "to_version": position.announced}
        return Notice(position, self._event("changed", **versions))

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

    def _in_trouble(self, trouble: Exception) -> Notice | None:
        name = type(trouble).__name__
        if self._position is not None and self._position.trouble == name:
            return None
        _log.error("%s", trouble)
        self._position = replace(self._position or Position(version=-1), trouble=name)
        return Notice(self._position, self._event("error", error=name, message=str(trouble)))

    def _event(self, status: str, **facts: Any) -> dict[str, Any]:
        return {"status": status, **self._facts, **facts}


@dataclass(slots=True, kw_only=True)
class _Announcement:
    event: dict[str, Any]
    position: Position
    """The position of the watcher; its `announced` is the announced version."""
    first_at: datetime
    last_at: datetime
    review_at: datetime
    is_polled: bool = False
    """Whether the table was polled since the last event."""


class Announcements:
    """The announced versions of tables, until runs have dealt with them.

    An event is not work: Airflow drops an event that arrives while an earlier one waits for a run
    (apache/airflow#56050), and a task leaves a table alone that another task changes. Runs state in
    the folder of assessments with which version they have dealt. Any later version is announced
    again: a minute after the last task wrote to that folder, and otherwise after growing pauses.
    """

    def __init__(self, now: Callable[[], datetime] = clock.now) -> None:
        self._now = now
        self._open: dict[str, _Announcement] = {}

    def record(self, name: str, poll: Notice) -> Position:
        """Notes the result of a poll of a table, or the event that was sent. Returns the position
        to store.
        """
        now, event, announced = self._now(), poll.event, self._open.get(name)
        if event is not None and event["status"] == "changed":
            if announced is not None and announced.position.announced == poll.position.announced:
                announced.last_at, announced.is_polled = now, False
            else:
                # Another table at the address begins with lower versions.
                if announced is not None and announced.position.announced < poll.position.announced:
                    event = {**event, "from_version": announced.event["from_version"]}
                announced = self._open[name] = _Announcement(
                    event=event,
                    position=poll.position,
                    first_at=now,
                    last_at=now,
                    review_at=now + _BETWEEN_REVIEWS,
                )
        if announced is None:
            return replace(poll.position, maintained=None)
        announced.is_polled |= event is None
        announced.position = poll.position
        return replace(poll.position, maintained=announced.event["from_version"])

    async def overdue(self, uris: Mapping[str, str]) -> dict[str, Notice]:
        """Returns the events to send again, by the name of the table.

        `uris` are the addresses of the watched tables; others are forgotten. Raises errors of the
        folder of assessments.
        """
        now = self._now()
        self._open = {name: each for name, each in self._open.items() if name in uris}
        by_review = sorted(self._open.items(), key=lambda announcement: announcement[1].review_at)
        some = dict(
            announcement
            for announcement in by_review[:_MOST_AT_ONCE]
            if announcement[1].review_at <= now
        )
        for announced in some.values():
            announced.review_at = now + _BETWEEN_REVIEWS
        if not some:
            return {}
        # In a thread of asgiref: Airflow serves connections to no other threads.
        review = sync_to_async(_review, thread_sensitive=False)
        maintained, repeated = await review(some, uris, now)
        # A later version may have been announced in the meantime.
        current = {name for name, each in some.items() if self._open.get(name) is each}
        for name in current & maintained:
            del self._open[name]
        return {name: Notice(some[name].position, some[name].event) for name in current & repeated}


def _review(
    announcements: Mapping[str, _Announcement], uris: Mapping[str, str], now: datetime
) -> tuple[set[str], set[str]]:
    """Returns the tables with whose versions runs have dealt, and those to announce again."""
    # Imported here because both load PyArrow, which would slow down Dag parsing.
    from delta_maintenance.operations.position import repeat_after

    maintained, repeated = set[str](), set[str]()
    store = assessment_store()
    try:
        written_at = store.last_written_at()
        if written_at is None:
            # The tasks use another folder, which the triggerer cannot reach, so nothing is known.
            return maintained, repeated
        is_quiet = now - written_at >= repeat_after(timedelta())
        for name, announced in announcements.items():
            entry = store.entry_of(uris[name], name)
            run = entry.maintained if entry is not None else None
            position = announced.position
            if run is not None and run.covers(
                position.announced, newest=position.version, announced_at=announced.first_at
            ):
                maintained.add(name)
                continue
            pause = now - announced.last_at
            ripe = pause >= repeat_after(now - announced.first_at)
            ripe |= is_quiet and announced.last_at <= written_at
            if ripe and announced.is_polled and not leases(store).is_held(uris[name]):
                repeated.add(name)
    finally:
        store.close()
    return maintained, repeated
