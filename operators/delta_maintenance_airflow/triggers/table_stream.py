"""One poll loop for all watchers of a table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from delta_maintenance.errors import DeltaMaintenanceError, StorageError
from delta_maintenance_airflow.compat import AirflowException
from delta_maintenance_airflow.triggers.polling import CATCH_UP, Pace, TablePolls, Way

if TYPE_CHECKING:
    from delta_maintenance.operations.watch import CommitCount, LogWatch

_log = logging.getLogger(__name__)

_IN_TROUBLE = 300.0
"""The minimum number of seconds between polls of a table that does not exist or is not
accessible.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """The result of a poll, for every watcher."""

    stream: TableStream
    version: int = -1
    """The newest version; undefined if there is an error."""
    trouble: Exception | None = None
    """An error that only a person can correct: no table, no permission, a wrong address."""


class TableStream:
    """The poll loop of one table. Commits are read once, whatever the number of watchers."""

    def __init__(self, *, table_uri: str, hook: Way, poll_interval: float) -> None:
        self._table_uri = table_uri
        self._polls = TablePolls(hook, table_uri)
        self._interval = poll_interval
        self._watch: LogWatch | None = None
        # Only one task at a time may use the watch.
        self._turn = asyncio.Lock()

    async def news(self) -> AsyncGenerator[News, None]:
        """The results of all polls, without end. An unavailable store is polled less often."""
        pace = Pace(self._interval, self._table_uri)
        while True:
            try:
                if self._watch is None:
                    store = await self._polls.open()
                    # Already imported by a thread: importing it would block the event loop.
                    from delta_maintenance.operations.watch import LogWatch

                    self._watch = LogWatch(store)
                async with self._turn:
                    seen = await self._polls.ask(self._watch, self._watch.look)
            except (DeltaMaintenanceError, AirflowException) as error:
                if isinstance(error, StorageError) and error.retryable:
                    _log.warning("%s", error)
                    await pace.back_off()
                    continue
                yield News(stream=self, trouble=error)
                # Started again, with the current connection and the current log.
                self._watch = None
                await asyncio.sleep(max(self._interval, _IN_TROUBLE))
                continue
            if seen.more:
                await asyncio.sleep(CATCH_UP)
                continue
            yield News(stream=self, version=seen.version)
            await pace.rest()

    async def count(self, commits: CommitCount, *, newest: int, enough: int) -> None:
        """Lets a watcher process the commits up to `newest`, until `enough` are found.

        Commits for which the poll has no requests left are read by further polls, soon.
        """
        everything = False
        while not everything:
            async with self._turn:
                if (watch := self._watch) is None:
                    return
                count = partial(commits.count, watch, newest=newest, enough=enough)
                everything = await self._polls.ask(watch, count)
                if not everything:
                    await asyncio.sleep(CATCH_UP)
                    watch.poll_again()
