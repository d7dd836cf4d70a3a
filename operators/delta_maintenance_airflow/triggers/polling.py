"""Polling of many tables from one event loop that never blocks on a store."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from delta_maintenance.address import Address
from delta_maintenance.errors import (
    CatalogError,
    DeltaMaintenanceError,
    StorageAccessError,
    StorageError,
)
from delta_maintenance_airflow.compat import AirflowException

if TYPE_CHECKING:
    from delta_maintenance.operations.position import Position
    from delta_maintenance.operations.watch import (
        CommitCount,
        LogWatch,
        Sighting,
        Wait,
        WaitProgress,
    )
    from delta_maintenance.storage import Store

T = TypeVar("T")

_log = logging.getLogger(__name__)

CATCH_UP = 0.1
"""The number of seconds before the next poll if one did not reach the end of the log."""
_THREADS = 8
"""The number of threads for all tables of one store: a poll takes milliseconds, and its interval is
seconds. Each store has its own pool, so that an unresponsive store does not delay the others.
"""
_LONGEST = 600.0
"""The maximum number of seconds between polls of a store that does not answer."""


class TableAccess(Protocol):
    """Access to a table."""

    async def aopen_watched(self, table_uri: str) -> Store:
        """Opens the store of the table, with the current options."""


class Pace:
    """The time of the next poll: after an interval in seconds, later if polls fail.

    The first interval is shortened by an amount that depends on the name, so that tables which
    began to be watched together are not always polled together.
    """

    def __init__(self, interval: float, name: str) -> None:
        self._interval = interval
        self._first: float | None = interval * (zlib.crc32(name.encode()) / 2**32)
        self._failures = 0

    async def rest(self) -> None:
        """Waits after an answer."""
        self._failures = 0
        first_delay, self._first = self._first, None
        await asyncio.sleep(self._interval if first_delay is None else first_delay)

    async def back_off(self) -> float:
        """Waits after a temporary failure; returns the number of seconds."""
        self._failures += 1
        longest = max(self._interval, _LONGEST)
        pause = min(self._interval * (1 << min(self._failures, 10)), longest)
        await asyncio.sleep(pause)
        return pause


def serialize_trigger(trigger: object, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Returns a trigger as Airflow stores it: its class, and arguments from its attributes."""
    kind = type(trigger)
    return f"{kind.__module__}.{kind.__qualname__}", {
        name: getattr(trigger, name) for name in arguments
    }


def store_root(table_uri: str) -> str:
    """Returns the store of a table, without its path: `s3://lake`; `file:` for all local tables."""
    address = Address.parse(table_uri)
    return "file:" if address.is_local else f"{address.scheme}://{address.authority}"


async def in_thread(table_uri: str, question: Callable[[], T]) -> T:
    """Returns the result of `question`, in a thread of the pool of the table's store."""
    pool = _pool(store_root(table_uri))
    return await asyncio.get_running_loop().run_in_executor(pool, question)


@cache
def _pool(root: str) -> ThreadPoolExecutor:
    # Not the default pool of the event loop, whose size depends on the machine.
    return ThreadPoolExecutor(_THREADS, thread_name_prefix=f"delta-watch-{root}")


_IN_TROUBLE = 300.0
"""The minimum number of seconds between polls of a table that does not exist or is not
accessible.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """The result of a poll, for every watcher."""

    stream: TableStream
    version: int = -1
    """The newest version; undefined if there is an error."""
    poll: Sighting | WaitProgress | None = None
    trouble: Exception | None = None
    """An error that only a person can correct: no table, no permission, a wrong address."""


class TableStream:
    """The poll loop of one table, in threads of the pool, with the credentials of a connection or a
    policy. Commits are read once, whatever the number of watchers.

    `condition` is a condition to wait for, as JSON: `operations.watch.WaitCondition`.
    """

    def __init__(
        self,
        *,
        table_uri: str,
        hook: TableAccess,
        poll_interval: float,
        condition: Mapping[str, Any] | None = None,
    ) -> None:
        self._table_uri = table_uri
        self._hook = hook
        self._interval = poll_interval
        self._condition = condition
        self._watch: LogWatch | Wait | None = None
        # Only one task at a time may use the watch.
        self._turn = asyncio.Lock()

    async def results(self) -> AsyncGenerator[PollResult, None]:
        """The results of all polls, without end. An unavailable store is polled less often."""
        pace = Pace(self._interval, self._table_uri)
        while True:
            try:
                if self._watch is None:
                    self._watch = await self._open_watch()
                async with self._turn:
                    poll: Sighting | WaitProgress = await self.ask(self._watch, self._watch.poll)
            except (DeltaMaintenanceError, AirflowException) as error:
                if isinstance(error, (StorageError, CatalogError)) and error.retryable:
                    _log.warning("%s", error)
                    await pace.back_off()
                    continue
                yield PollResult(stream=self, trouble=error)
                # Started again, with the current connection and the current log.
                self._watch = None
                await asyncio.sleep(max(self._interval, _IN_TROUBLE))
                continue
            if poll.more:
                await asyncio.sleep(CATCH_UP)
                continue
            yield PollResult(stream=self, poll=poll, version=poll.version)
            await pace.rest()

    async def count(self, commits: CommitCount[Position], *, newest: int, enough: int) -> None:
        """Lets a watcher process the commits up to `newest`, until `enough` are found.

        Commits for which the poll has no requests left are read by further polls, soon.
        """
        everything = False
        while not everything:
            async with self._turn:
                if (watch := cast("LogWatch | None", self._watch)) is None:
                    return
                count = partial(commits.count, watch, newest=newest, enough=enough)
                everything = await self.ask(watch, count)
                if not everything:
                    await asyncio.sleep(CATCH_UP)
                    watch.poll_again()

    async def ask(self, watch: LogWatch | Wait, question: Callable[[], T]) -> T:
        """Returns the result of `question`, for which `watch` makes requests to its store.

        If the store rejects the credentials, it is called once more with the current ones of the
        connection or the policy, because keys expire and are replaced.
        """
        try:
            return await in_thread(self._table_uri, question)
        except StorageAccessError:
            watch.store = await self._hook.aopen_watched(self._table_uri)
            return await in_thread(self._table_uri, question)

    async def _open_watch(self) -> LogWatch | Wait:
        store = await self._hook.aopen_watched(self._table_uri)
        # Already imported by a thread: importing it would block the event loop.
        from delta_maintenance.operations.watch import LogWatch, Wait, WaitCondition

        if self._condition is None:
            return LogWatch(store)
        return Wait(store, WaitCondition.from_json(self._condition))
