"""Polling of many tables from one event loop that never blocks on a store."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

from delta_maintenance.address import Address
from delta_maintenance.errors import StorageAccessError

if TYPE_CHECKING:
    from delta_maintenance.storage import Store

T = TypeVar("T")

CATCH_UP = 0.1
"""Seconds before the next poll where one did not get to the end of what there was."""
_THREADS = 8
"""For all tables of one store together: a poll takes milliseconds, and its interval seconds. Each
store has its own, so that one that does not answer holds up no other."""
_LONGEST = 600.0
"""Seconds between polls of a store that does not answer, at most."""


class Watching(Protocol):
    """Something that asks a store."""

    store: Store


class Way(Protocol):
    """How a table is reached."""

    async def aopen_watched(self, table_uri: str) -> Store:
        """Its store, with what is known of it by now."""


class TablePolls:
    """Asks one table in a thread of the pool, with the credentials of a connection or a policy."""

    def __init__(self, hook: Way, table_uri: str) -> None:
        self._hook = hook
        self._table_uri = table_uri

    async def open(self) -> Store:
        """The store of the table; nothing is asked yet."""
        return await self._hook.aopen_watched(self._table_uri)

    async def ask(self, watching: Watching, question: Callable[[], T]) -> T:
        """The answer to a question that `watching` asks its store.

        Where the store turns the caller away, once more with what the connection, or the policy,
        says now: keys expire and are replaced.
        """
        try:
            return await self._in_thread(question)
        except StorageAccessError:
            watching.store = await self.open()
            return await self._in_thread(question)

    async def _in_thread(self, question: Callable[[], T]) -> T:
        pool = _pool(store_root(self._table_uri))
        return await asyncio.get_running_loop().run_in_executor(pool, question)


class Pace:
    """When to poll next: after an interval in seconds, later where polls fail.

    The first rest is shorter, by the name of what is polled, so that tables which began to be
    watched together are not asked together for ever.
    """

    def __init__(self, interval: float, name: str) -> None:
        self._interval = interval
        self._first: float | None = interval * (zlib.crc32(name.encode()) / 2**32)
        self._failures = 0

    async def rest(self) -> None:
        """After an answer."""
        self._failures = 0
        first, self._first = self._first, None
        await asyncio.sleep(self._interval if first is None else first)

    async def back_off(self) -> float:
        """After a failure that may pass; returns how many seconds that was."""
        self._failures += 1
        longest = max(self._interval, _LONGEST)
        pause = min(self._interval * (1 << min(self._failures, 10)), longest)
        await asyncio.sleep(pause)
        return pause


def store_root(table_uri: str) -> str:
    """The store of a table, without its path: `s3://lake`; `file:` for all local tables."""
    address = Address.parse(table_uri)
    return "file:" if address.is_local else f"{address.scheme}://{address.authority}"


@cache
def _pool(root: str) -> ThreadPoolExecutor:
    # Not the loop's own, which grows with the machine and is everybody's.
    return ThreadPoolExecutor(_THREADS, thread_name_prefix=f"delta-watch-{root}")
