"""Reads many files of the log in order, with the next files fetched in advance.

Several files are requested from a remote store at a time. A local disk often answers from memory,
faster than a thread can be started, so small files of such a store are read in the calling thread,
until some reads had to wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from time import perf_counter, thread_time
from typing import TypeVar

from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.streaming_pool import StreamingPool
from delta_maintenance.table.read.segment import LogEntry

T = TypeVar("T")

_READ_AHEAD_BYTES = 8 << 20
_GROUPS_PER_THREAD = 32
_GROUP_BYTES = 1 << 20
_SMALL_BYTES = 256 << 10
"""Files larger than this are read in a thread."""
_LONG_WAIT = 0.0005
"""In seconds: about the time to pass a file to a thread and its contents back."""
_LONG_WAITS = 8


def read_ahead(
    store: Store, entries: Sequence[LogEntry], read: Callable[[LogEntry], T]
) -> Iterator[tuple[LogEntry, T]]:
    """Yields the results of `read` for the entries from the last to the first, some read in
    advance.

    Raises `FileNotFoundError`, which names the missing file.
    """
    left, waits = len(entries), 0
    while store.is_near and left and waits < _LONG_WAITS:
        entry = entries[left - 1]
        if entry.status.size > _SMALL_BYTES:
            break
        started, busy = perf_counter(), thread_time()
        made = _named(read, entry)
        waits += perf_counter() - started - (thread_time() - busy) > _LONG_WAIT
        yield entry, made
        left -= 1
    if left:
        yield from _by_threads(entries[:left], read, store.parallel_reads)


def _by_threads(
    entries: Sequence[LogEntry], read: Callable[[LogEntry], T], threads: int
) -> Iterator[tuple[LogEntry, T]]:
    def read_all(group: Sequence[LogEntry]) -> list[T]:
        return [_named(read, entry) for entry in group]

    waiting: deque[tuple[Sequence[LogEntry], int, Future[list[T]]]] = deque()
    ahead = 0
    upcoming = _groups(entries, threads)
    with StreamingPool(threads) as pool:
        while True:
            while len(waiting) < threads and ahead < _READ_AHEAD_BYTES:
                group = next(upcoming, None)
                if group is None:
                    break
                size = sum(entry.status.size for entry in group)
                waiting.append((group, size, pool.submit(read_all, group)))
                ahead += size
            if not waiting:
                return
            group, size, future = waiting.popleft()
            ahead -= size
            yield from zip(group, future.result(), strict=True)


def _groups(entries: Sequence[LogEntry], threads: int) -> Iterator[Sequence[LogEntry]]:
    """Yields the entries from the last to the first; small files of a long log in groups, because
    passing one to a thread takes as long as reading it.
    """
    most = 1 + len(entries) // (_GROUPS_PER_THREAD * threads)
    group: list[LogEntry] = []
    size = 0
    for entry in reversed(entries):
        if group and (len(group) == most or size + entry.status.size > _GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.status.size
    if group:
        yield group


def _named(read: Callable[[LogEntry], T], entry: LogEntry) -> T:
    try:
        return read(entry)
    except FileNotFoundError as error:
        # The error of a store may name the file without its folder.
        error.filename = entry.path
        raise
