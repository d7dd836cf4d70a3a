"""Parallel work on the items of a stream, a few at a time, with results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import TypeVar

from delta_maintenance.storage.core.streaming_pool import StreamingPool

Item = TypeVar("Item")
Made = TypeVar("Made")

_THREADS = 2


def in_parallel(
    work: Callable[[Item], Made], items: Iterable[Item], *, threads: int = _THREADS
) -> Iterator[Made]:
    """Yields the results of `work` in order; the next two items are processed in advance.

    Two are enough, because Arrow and NumPy use the other cores within an item, and items are large.
    Callers with much Python code of their own should pass fewer `threads`, because of the GIL.
    """
    with StreamingPool(threads) as pool:
        under_way: deque[Future[Made]] = deque()
        for item in items:
            under_way.append(pool.submit(work, item))
            if len(under_way) > threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def in_advance(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yields the items; a thread produces the next one meanwhile.

    For producers that leave the GIL to others most of the time.
    """
    with StreamingPool(1) as pool:
        following = pool.submit(_next, items)
        while found := following.result():
            following = pool.submit(_next, items)
            yield from found


def _next(items: Iterator[Item]) -> list[Item]:
    """Returns the next item in a list, which is empty at the end."""
    return list(islice(items, 1))
