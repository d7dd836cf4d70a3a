"""Sends asset events for the commits to all tables that a policy names in one store."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance_airflow.compat import asset_states
from delta_maintenance_airflow.hooks.delta import PolicyAccess
from delta_maintenance_airflow.triggers.commit_watcher import CommitWatcher, Seen
from delta_maintenance_airflow.triggers.cursor import CursorBoard, Position
from delta_maintenance_airflow.triggers.polling import TableStream, serialized, store_root

if TYPE_CHECKING:
    from delta_maintenance.policies.definition.policy import Policy

_MOST_PER_EVENT = 200
"""The maximum number of tables in one event; the next event contains the others."""
_UPKEEP = 5.0
"""The maximum number of seconds between two reads of the policy, and between two writes of
positions.
"""
_MESSAGE = 500
"""The maximum number of characters of an error in an event."""


class DeltaPolicyCommitTrigger(BaseEventTrigger):
    """Triggers Dags when rows of tables of a policy were added or removed. For an `AssetWatcher`.

    One trigger watches every table that the policy names by its address in one store, so the
    capacity of a triggerer limits stores and not tables. The policy is read again when its file
    changes; new tables are then watched from their newest version on.

    The payload of an event is `{"tables": [...]}` with one object for each table: `{"status":
    "changed", "table", "from_version", "to_version"}`, or `{"status": "error", "table", "error",
    "message"}`. Changes, positions and reported errors are defined as for
    `DeltaCommitEventTrigger`. A failing table does not delay the others.

    :param policy: the file of the policy, which the triggerer reads.
    :param store: the store of the tables: those with this scheme and bucket, such as `s3://lake`;
        `file:` for local tables.
    :param poll_interval: seconds between two polls of a table.
    :param min_commits: the number of such commits of a table that an event waits for.
    """

    settling_seconds: ClassVar[float] = 5.0
    """The time for which an event may take to reach the database. A position that is stored sooner
    could outlive an event that was lost with its triggerer."""
    gathering_seconds: ClassVar[float] = 1.0
    """The seconds for which the first change waits for others, to share an event."""

    def __init__(
        self, *, policy: str, store: str, poll_interval: float = 30.0, min_commits: int = 1
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped
        if poll_interval <= 0 or min_commits < 1:
            raise ValueError("poll_interval must be above 0 and min_commits 1 or more")
        self.policy = policy
        self.store = store
        self.poll_interval = float(poll_interval)
        self.min_commits = min_commits

    def serialize(self) -> tuple[str, dict[str, Any]]:
        # Airflow's database stores these arguments: they name the policy, without its contents.
        return serialized(self, "policy", "store", "poll_interval", "min_commits")

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        board = CursorBoard(asset_states(self), self._board_name())
        await board.load()
        watched = _Watched(self, board)
        try:
            while True:
                events = await watched.changes(self.gathering_seconds)
                for first in range(0, len(events), _MOST_PER_EVENT):
                    some = events[first : first + _MOST_PER_EVENT]
                    payload = {"tables": [seen.event for _, seen in some]}
                    yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # untyped
                    for uri, seen in some:
                        # Problems with the policy itself have no position.
                        if uri != self.policy:
                            board.put(uri, seen.position, after=self.settling_seconds)
        finally:
            await watched.stop()

    def _board_name(self) -> str:
        identity = f"{self.policy}\n{self.store}\n{self.min_commits}"
        return f"delta_policy_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


class _Watched:
    """The watched tables, each with its own task, and the results of these tasks."""

    def __init__(self, trigger: DeltaPolicyCommitTrigger, board: CursorBoard) -> None:
        self._trigger = trigger
        self._board = board
        self._file = _PolicyFile(trigger.policy)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._seen: asyncio.Queue[tuple[str, Seen]] = asyncio.Queue()
        self._problem: str | None = None
        self._next_upkeep = 0.0

    async def changes(self, gathering: float) -> list[tuple[str, Seen]]:
        """Waits for events. In the meantime, follows changes of the policy and stores positions."""
        found: list[tuple[str, Seen]] = []
        clock = asyncio.get_running_loop()
        while not found:
            if clock.time() >= self._next_upkeep:
                await self._follow_policy()
                await self._board.save()
                self._next_upkeep = clock.time() + min(_UPKEEP, self._trigger.poll_interval)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._next_upkeep):
                    self._sort(await self._seen.get(), found)
            # A timeout may interrupt `get` although there is something to get.
            self._sort_waiting(found)
            if found:
                await asyncio.sleep(gathering)
                self._sort_waiting(found)
        return found

    def _sort_waiting(self, events: list[tuple[str, Seen]]) -> None:
        while not self._seen.empty():
            self._sort(self._seen.get_nowait(), events)

    def _sort(self, one: tuple[str, Seen], events: list[tuple[str, Seen]]) -> None:
        uri, seen = one
        if seen.event is not None:
            events.append(one)
            return
        for number, (other, before) in reversed(list(enumerate(events))):
            if uri == other:
                # An event of the table has not been sent yet, so the position is stored with that
                # event.
                events[number] = (uri, Seen(seen.position, before.event))
                return
        self._board.put(uri, seen.position)

    async def stop(self) -> None:
        """Ends all tasks."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _follow_policy(self) -> None:
        """Starts and ends tasks, so that they match the current policy."""
        try:
            policy = await asyncio.to_thread(self._file.changed)
        except DeltaMaintenanceError as error:
            # Reported once; until it is corrected, the known tables are still watched.
            if str(error) != self._problem:
                self._problem = str(error)
                self._trigger.log.error("%s", error)
                name, path = type(error).__name__, self._trigger.policy
                told = {"status": "error", "table": path, "error": name, "message": str(error)}
                unknown = Position(version=-1, told=-1, trouble=name)
                self._seen.put_nowait((path, _shortened(Seen(unknown, told))))
            return
        self._problem = None
        if policy is None:
            return
        wanted = {
            table.uri
            for table in policy.named_tables
            if store_root(table.uri) == self._trigger.store
        }
        for uri in self._tasks.keys() - wanted:
            self._tasks.pop(uri).cancel()
        for uri in sorted(wanted - self._tasks.keys()):
            self._tasks[uri] = asyncio.create_task(self._watch(uri), name=f"watch {uri}")
        self._board.forget_others(wanted)

    async def _watch(self, uri: str) -> None:
        """Watches one table until it is cancelled."""
        watcher = CommitWatcher(
            uri, min_commits=self._trigger.min_commits, position=self._board.get(uri)
        )
        interval = self._trigger.poll_interval
        while True:
            stream = TableStream(
                table_uri=uri, hook=PolicyAccess(self._trigger.policy), poll_interval=interval
            )
            try:
                async with aclosing(stream.results()) as results:
                    async for result in results:
                        seen = await watcher.take(result)
                        if seen is not None:
                            self._seen.put_nowait((uri, _shortened(seen)))
            except Exception:
                # A defect with one table must not stop watching the others.
                self._trigger.log.exception("watching %s failed; it starts again", uri)
                await asyncio.sleep(max(60.0, interval))


class _PolicyFile:
    """A policy file that is read when it is new or has changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read: tuple[int, int] | None = None

    def changed(self) -> Policy | None:
        """Returns the policy if this state of the file was not read before; otherwise None."""
        # Imported here because it loads pydantic models, which would block the event loop.
        from delta_maintenance.policies.definition.policy import load_policy

        try:
            status = os.stat(self._path)
        except OSError:
            # Raises an error that states the problem.
            return load_policy(self._path)
        state = (status.st_mtime_ns, status.st_size)
        if state == self._read:
            return None
        policy = load_policy(self._path)
        self._read = state
        return policy


def _shortened(seen: Seen) -> Seen:
    event = seen.event
    if event is None or len(event.get("message", "")) <= _MESSAGE:
        return seen
    return Seen(seen.position, {**event, "message": f"{event['message'][:_MESSAGE]}…"})
