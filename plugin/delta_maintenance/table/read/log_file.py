"""A file of the log, and reading such files as bytes, within `ReadLimits`.

An empty commit leads to repairs. Therefore, if a store returns fewer bytes than it lists, the file
is read again before the commit counts as damaged. Another process may delete files of the log
concurrently; `relisting` then reads the remaining ones.

`read_ahead` requests several files from a remote store at a time. A local disk often answers from
memory, faster than a thread can be started, so small files of such a store are read in the calling
thread, until some reads had to wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import TypeVar

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    OversizedFileError,
    StorageError,
)
from delta_maintenance.limits import ReadLimits
from delta_maintenance.protocol.delta_log.file_names import LogFile, checksum_name, commit_name
from delta_maintenance.protocol.delta_log.version_checksum import VersionChecksum, parse_checksum
from delta_maintenance.storage.core.base import FileStatus, Store
from delta_maintenance.storage.core.streams import StreamingPool

LOG_DIRECTORY = "_delta_log"

T = TypeVar("T")
_ATTEMPTS = 3

_READ_AHEAD_BYTES = 8 << 20
_GROUPS_PER_THREAD = 32
_GROUP_BYTES = 1 << 20
_SMALL_BYTES = 256 << 10
"""Files larger than this are read in a thread."""
_LONG_WAIT = 0.0005
"""In seconds: about the time to pass a file to a thread and its contents back."""
_LONG_WAITS = 8


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A file of the log: its parsed name, and its entry in the listing."""

    file: LogFile
    status: FileStatus

    @property
    def path(self) -> str:
        """Relative to the table root."""
        return self.status.path


def commit_path(version: int) -> str:
    """Returns the path of a commit, relative to the root of the table."""
    return f"{LOG_DIRECTORY}/{commit_name(version)}"


def read_listed(store: Store, listed: FileStatus) -> bytes:
    """Reads a JSON file of the log that was listed.

    Raises `OversizedFileError` before reading a file that is too large, `StorageError` if the store
    repeatedly returns fewer bytes than it lists, and `FileNotFoundError` if the file no longer
    exists.
    """
    limit = ReadLimits.of(store).text_bytes
    if listed.size > limit:
        raise _oversized_error(store, listed.path, str(listed.size), limit)
    data = store.read(listed.path)
    if data and len(data) >= listed.size:
        return data
    return _read_again(store, listed.path, data)


def read_text(store: Store, path: str, *, may_be_empty: bool = False) -> bytes:
    """Reads a text file of unknown size. Raises the errors of `read_listed`."""
    limit = ReadLimits.of(store).text_bytes
    data = store.read_head(path, limit + 1)
    if len(data) > limit:
        raise _oversized_error(store, path, f"more than {limit}", limit)
    return data if data or may_be_empty else _read_again(store, path, data)


def read_hint(store: Store, path: str) -> bytes:
    """Reads a small optional file: `_last_checkpoint`, a version checksum and similar ones.

    Returns no bytes, which is never valid, for a file that is too large. Raises `FileNotFoundError`
    if the file does not exist.
    """
    limit = ReadLimits.of(store).hint_bytes
    data = store.read_head(path, limit + 1)
    return data if len(data) <= limit else b""


def read_ahead(
    store: Store, entries: Sequence[LogEntry], read: Callable[[LogEntry], T]
) -> Iterator[tuple[LogEntry, T]]:
    """Yields the results of `read` for the entries from the last to the first, some read in
    advance.

    Raises `FileNotFoundError`, which names the missing file.
    """
    remaining, waits = len(entries), 0
    while store.is_near and remaining and waits < _LONG_WAITS:
        entry = entries[remaining - 1]
        if entry.status.size > _SMALL_BYTES:
            break
        started, busy = perf_counter(), thread_time()
        result = _with_file_name(read, entry)
        waits += perf_counter() - started - (thread_time() - busy) > _LONG_WAIT
        yield entry, result
        remaining -= 1
    if remaining:
        yield from _by_threads(entries[:remaining], read, store.parallel_reads)


def stated_checksum(store: Store, version: int) -> VersionChecksum | None:
    """Reads the checksum of a version with one request; None if it is missing or invalid."""
    try:
        return parse_checksum(store.read(f"{LOG_DIRECTORY}/{checksum_name(version)}"))
    except (FileNotFoundError, CorruptTableError):
        return None


def stated_files(store: Store, version: int) -> tuple[int, int] | None:
    """Returns the number of live files and their bytes, if the checksum of a version
    contains both.
    """
    stated = stated_checksum(store, version)
    if stated is None or stated.num_files is None or stated.table_size is None:
        return None
    return stated.num_files, stated.table_size


def _read_again(store: Store, path: str, data: bytes) -> bytes:
    status = store.stat(path)
    if status is None:
        raise FileNotFoundError(path)
    if status.size == len(data):
        return data
    data = store.read(path)
    if len(data) != status.size:
        raise StorageError(
            f"the store returned {len(data)} bytes of a file of {status.size}, twice",
            file=path,
            remedy="run again when the store works properly; the file may be intact",
        )
    return data


def _oversized_error(store: Store, path: str, size: str, limit: int) -> OversizedFileError:
    return OversizedFileError(
        f"the file has {size} bytes, of which at most {limit} may be read",
        table=store.root,
        file=path,
        remedy=ReadLimits.of(store).remedy(),
    )


def _run_again(error: FileNotFoundError) -> DeltaMaintenanceError:
    return StorageError(
        "a file of the log was deleted after it was listed", file=error.filename, remedy="run again"
    )


def relisting(
    read: Callable[[], T],
    *,
    vanished: Callable[[FileNotFoundError], DeltaMaintenanceError] = _run_again,
) -> T:
    """Returns the result of `read`, which lists the log and then reads files of the listing.

    A clean-up may delete a file in between; then `read` raises `FileNotFoundError` and is called
    again, with the remaining files. If that happens repeatedly, the error that `vanished` makes of
    the last one is raised, by default a `StorageError`.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return read()
        except FileNotFoundError as error:
            if attempt == _ATTEMPTS - 1:
                raise vanished(error) from error
    raise AssertionError("the last attempt returns or raises")


def _by_threads(
    entries: Sequence[LogEntry], read: Callable[[LogEntry], T], threads: int
) -> Iterator[tuple[LogEntry, T]]:
    def read_all(group: Sequence[LogEntry]) -> list[T]:
        return [_with_file_name(read, entry) for entry in group]

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
    group_size = 1 + len(entries) // (_GROUPS_PER_THREAD * threads)
    group: list[LogEntry] = []
    size = 0
    for entry in reversed(entries):
        if group and (len(group) == group_size or size + entry.status.size > _GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.status.size
    if group:
        yield group


def _with_file_name(read: Callable[[LogEntry], T], entry: LogEntry) -> T:
    try:
        return read(entry)
    except FileNotFoundError as error:
        # The error of a store may name the file without its folder.
        error.filename = entry.path
        raise
