"""Tables that count requests, commits, and running triggers, for tests of watchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import add, commit_info, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

WRITE = [commit_info("WRITE"), add("d")]
MERGE = [commit_info("MERGE"), remove("a"), add("c")]
OPTIMIZE = [commit_info("OPTIMIZE"), remove("a", dataChange=False), add("b", dataChange=False)]


def watched_table(store: CountingStore) -> TableBuilder:
    """Returns a table at version 9 with a classic checkpoint of version 4 and its hint; requests
    are counted from now on.
    """
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    for number in range(9):
        table.commit([add(f"{number}.parquet")])
    table.checkpoint(4)
    table.hint(4)
    store.requests.clear()
    return table


async def eventually(condition: Callable[[], bool], *, seconds: float = 300) -> None:
    """Waits for a condition that other tasks establish."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(events: AsyncIterator[Any]) -> AsyncIterator[list[Any]]:
    """Runs a trigger like a triggerer. Yields the payloads of its events so far."""
    payloads: list[Any] = []

    async def run() -> None:
        async for event in events:
            payloads.append(event.payload)

    task = asyncio.create_task(run())
    try:
        yield payloads
        if task.done():
            task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class State:
    """The state of one asset, as Airflow 3.3 stores it."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.fails = False

    async def aget(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        if self.fails:
            raise RuntimeError("the database is down")
        self.values[key] = value


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    """Runs a scenario to its end and cleans up its tasks."""
    return asyncio.run(scenario)
