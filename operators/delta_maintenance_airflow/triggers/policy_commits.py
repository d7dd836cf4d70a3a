"""Sends asset events for the commits to tables of a policy: those in one store or one catalog."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any, ClassVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.position import Position
from delta_maintenance_airflow.compat import asset_states
from delta_maintenance_airflow.triggers.announcements import Announcements, CommitWatcher, Notice
from delta_maintenance_airflow.triggers.cursor import CursorBoard
from delta_maintenance_airflow.triggers.policy_tables import (
    PolicySource,
    WatchedTable,
    WatchedTables,
)
from delta_maintenance_airflow.triggers.polling import TableStream, serialize_trigger

_MOST_PER_EVENT = 200
"""The maximum number of tables in one event; the next event contains the others."""
_UPKEEP = 5.0
"""The maximum number of seconds between two reads of the policy, and between two writes of
positions.
"""
_AT_ONCE = 0.5
"""The seconds for which events wait for the policy, or the list of a catalog, to be read."""
_MESSAGE = 500
"""The maximum number of characters of an error in an event."""


class DeltaPolicyCommitTrigger(BaseEventTrigger):
    """Triggers Dags when rows of tables of a policy were added or removed. For an `AssetWatcher`.

    One trigger watches every table that the policy names by its address in one store, or all tables
    that it takes from one catalog, so the capacity of a triggerer limits stores and catalogs, and
    not tables. The policy is read again when its file changes, and a catalog is listed again at
    intervals; new tables are then watched from their newest version on, and dropped ones no longer.
    While a catalog, or a schema of it, cannot be listed, its known tables are watched.

    The payload of an event is `{"tables": [...]}` with one object for each table: `{"status":
    "changed", "table", "from_version", "to_version"}`, or `{"status": "error", "table", "error",
    "message"}`. Changes, positions and reported errors are defined as for
    `DeltaCommitEventTrigger`. A failing table does not delay the others. A table of a catalog is
    given by its name there, with its address as `uri`. A catalog that refuses to be listed is an
    error whose `table` is `catalogs.KEY` or the name of the schema.

    An event is sent again, after growing pauses, until a run by the policy has dealt with its
    version, as the folder of assessments says.

    :param policy: the file of the policy, which the triggerer reads.
    :param store: the store of the tables: those with this scheme and bucket, such as `s3://lake`;
        `file:` for local tables.
    :param catalog: in place of a store, the key of a catalog in the policy.
    :param listing_interval: seconds between two lists of the catalog.
    :param poll_interval: seconds between two polls of a table.
    :param min_commits: the number of such commits of a table that an event waits for.
    """

    settling_seconds: ClassVar[float] = 5.0
    """The time for which an event may take to reach the database. A position that is stored sooner
    could outlive an event that was lost with its triggerer."""
    gathering_seconds: ClassVar[float] = 1.0
    """The seconds for which the first change waits for others, to share an event."""

    def __init__(
        self,
        *,
        policy: str,
        store: str | None = None,
        poll_interval: float = 30.0,
        min_commits: int = 1,
        catalog: str | None = None,
        listing_interval: float = 300.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped
        if (store is None) == (catalog is None):
            raise ValueError("give a store or a catalog")
        if poll_interval <= 0 or min_commits < 1:
            raise ValueError("poll_interval must be above 0 and min_commits 1 or more")
        self.policy = policy
        self.store = store
        self.poll_interval = float(poll_interval)
        self.min_commits = min_commits
        self.catalog = catalog
        self.listing_interval = float(listing_interval)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        # Airflow's database stores these arguments: they name the policy, without its contents.
        place = ("store",) if self.catalog is None else ("catalog", "listing_interval")
        return serialize_trigger(self, "policy", *place, "poll_interval", "min_commits")

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        board = CursorBoard(asset_states(self), self._board_name())
        await board.load()
        watched = _Watched(self, board)
        try:
            while True:
                events = await watched.changes(self.gathering_seconds)
                for start in range(0, len(events), _MOST_PER_EVENT):
                    event_batch = events[start : start + _MOST_PER_EVENT]
                    payload = {"tables": [poll.event for _, poll in event_batch]}
                    yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # untyped
                    for name, poll in event_batch:
                        watched.store(name, poll, after=self.settling_seconds)
        finally:
            await watched.stop()

    def _board_name(self) -> str:
        place = self.store if self.catalog is None else f"catalogs.{self.catalog}"
        identity = f"{self.policy}\n{place}\n{self.min_commits}"
        return f"delta_policy_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


class _Watched:
    """The watched tables, each with its own task, and the results of these tasks."""

    def __init__(self, trigger: DeltaPolicyCommitTrigger, board: CursorBoard) -> None:
        self._trigger = trigger
        self._board = board
        self._source = PolicySource(
            trigger.policy,
            store=trigger.store,
            catalog=trigger.catalog,
            interval=trigger.listing_interval,
        )
        self._reading: asyncio.Task[WatchedTables | None] | None = None
        self._tables: Mapping[str, WatchedTable] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._seen: asyncio.Queue[tuple[str, Notice]] = asyncio.Queue()
        self._reported: dict[str, str] = {}
        self._next_upkeep = 0.0
        self._announcements = Announcements()
        self._repeating = asyncio.create_task(self._repeat())

    def store(self, name: str, poll: Notice, *, after: float = 0.0) -> None:
        """Schedules the position after a poll or an event, in at least `after` seconds."""
        # Problems with the policy itself, or with a catalog, have no position.
        if name in self._tasks:
            self._board.put(name, self._announcements.record(name, poll), after=after)

    async def changes(self, gathering: float) -> list[tuple[str, Notice]]:
        """Waits for events. In the meantime, follows changes of the policy and stores positions."""
        polls: list[tuple[str, Notice]] = []
        clock = asyncio.get_running_loop()
        while not polls:
            if clock.time() >= self._next_upkeep:
                await self._follow_policy()
                await self._board.save()
                self._next_upkeep = clock.time() + min(_UPKEEP, self._trigger.poll_interval)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._next_upkeep):
                    self._sort(await self._seen.get(), polls)
            # A timeout may interrupt `get` although there is something to get.
            self._sort_waiting(polls)
            if polls:
                await asyncio.sleep(gathering)
                self._sort_waiting(polls)
        return polls

    def _sort_waiting(self, events: list[tuple[str, Notice]]) -> None:
        while not self._seen.empty():
            self._sort(self._seen.get_nowait(), events)

    def _sort(self, named_poll: tuple[str, Notice], events: list[tuple[str, Notice]]) -> None:
        uri, poll = named_poll
        if poll.event is not None:
            events.append(named_poll)
            return
        for number, (other_uri, before) in reversed(list(enumerate(events))):
            if uri == other_uri:
                # An event of the table has not been sent yet, so the position is stored with that
                # event.
                events[number] = (uri, Notice(poll.position, before.event))
                return
        self.store(uri, poll)

    async def stop(self) -> None:
        """Ends all tasks."""
        reading = [self._reading] if self._reading is not None else []
        tasks = [self._repeating, *self._tasks.values(), *reading]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow_policy(self) -> None:
        """Starts and ends tasks, so that they match the current policy and catalog."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._source.read_changes())
        await asyncio.wait({self._reading}, timeout=_AT_ONCE)
        if not self._reading.done():
            # A list of a catalog can take a minute, in which events are not to wait.
            return
        reading, self._reading = self._reading, None
        try:
            policy_tables = reading.result()
        except DeltaMaintenanceError as error:
            # Until it is corrected, the known tables are still watched.
            self._report({self._trigger.policy: error})
            return
        if policy_tables is None:
            self._reported.pop(self._trigger.policy, None)
            return
        self._report(policy_tables.problems)
        for name, table in self._tables.items():
            if policy_tables.tables.get(name) != table and name in self._tasks:
                self._tasks.pop(name).cancel()
        self._tables = policy_tables.tables
        for name in sorted(policy_tables.tables.keys() - self._tasks.keys()):
            watching = self._watch(name, policy_tables.tables[name])
            self._tasks[name] = asyncio.create_task(watching, name=f"watch {name}")
        if not policy_tables.problems:
            # A part that cannot be listed may have tables that are not known since a restart.
            self._board.forget_others(policy_tables.tables.keys())

    def _report(self, problems: Mapping[str, DeltaMaintenanceError]) -> None:
        """Reports each problem that only a person can correct, once."""
        lasting = {where: error for where, error in problems.items() if not error.retryable}
        for where, error in lasting.items():
            if str(error) != self._reported.get(where):
                self._trigger.log.error("%s", error)
                name = type(error).__name__
                report: dict[str, Any] = {
                    "status": "error",
                    "table": where,
                    "error": name,
                    "message": str(error),
                }
                if where != self._trigger.policy:
                    # A part of a catalog has no address.
                    report["uri"] = None
                unknown = Position(version=-1, announced=-1, trouble=name)
                self._seen.put_nowait((where, _with_short_message(Notice(unknown, report))))
        self._reported = {where: str(error) for where, error in lasting.items()}

    async def _repeat(self) -> None:
        """Sends events again with whose versions no run has dealt, until it is cancelled."""
        while True:
            await asyncio.sleep(min(_UPKEEP, self._trigger.poll_interval))
            try:
                uris = {name: table.uri for name, table in self._tables.items()}
                overdue = await self._announcements.overdue(uris)
            except Exception as error:
                # Of the folder of assessments, or of its connection. New commits do not need it.
                self._trigger.log.warning("no event is sent again: %s", error)
                continue
            for name, poll in overdue.items():
                self._seen.put_nowait((name, poll))

    async def _watch(self, name: str, table: WatchedTable) -> None:
        """Watches one table until it is cancelled."""
        watcher = CommitWatcher(
            name,
            min_commits=self._trigger.min_commits,
            position=self._board.get(name),
            facts={} if table.uri == name else {"uri": table.uri},
        )
        if (announced := watcher.recall_event()) is not None:
            self._announcements.record(name, announced)
        interval = self._trigger.poll_interval
        while True:
            stream = TableStream(
                table_uri=table.uri, hook=table.access(self._trigger.policy), poll_interval=interval
            )
            try:
                async with aclosing(stream.results()) as results:
                    async for result in results:
                        poll = await watcher.take(result)
                        if poll is not None:
                            self._seen.put_nowait((name, _with_short_message(poll)))
            except Exception:
                # A defect with one table must not stop watching the others.
                self._trigger.log.exception("watching %s failed; it starts again", name)
                await asyncio.sleep(max(60.0, interval))


def _with_short_message(poll: Notice) -> Notice:
    event = poll.event
    if event is None or len(event.get("message", "")) <= _MESSAGE:
        return poll
    return Notice(poll.position, {**event, "message": f"{event['message'][:_MESSAGE]}…"})
