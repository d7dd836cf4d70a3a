"""Reads the sources of a bin, small ones ahead, with errors that tell which must be left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    StorageError,
    VerificationError,
)
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.bins import Bin
from delta_maintenance.table.data.data_file_reader import DataFileReader, FileRows, SourceFile

_READ_AHEAD = 4
"""The number of small files that are read ahead from a store with slow requests."""


class SourceError(Exception):
    """A source that must be left out of the bin."""

    def __init__(self, source: int, problem: str, *, damaged: bool) -> None:
        self.source = source
        self.problem = problem
        self.damaged = damaged


def source_rows(
    reader: DataFileReader,
    work: Bin,
    number: int,
    *,
    data: bytes | None = None,
    groups: Sequence[int] | None = None,
) -> Iterator[FileRows]:
    """Yields the rows of a source of the bin, or of some of its row groups.

    `data` is the content of the file, if it was read before. Raises `SourceError` if the source
    cannot be read exactly, and `StorageError`.
    """
    batches = reader.read(work.sources[number], data=data, groups=groups)
    while True:
        try:
            found = next(batches, None)
        except StorageError:
            raise
        except DeltaMaintenanceError as error:
            damaged = isinstance(error, CorruptTableError)
            raise SourceError(number, str(error), damaged=damaged) from None
        if found is None:
            return
        yield found


def fetched(
    store: Store, reader: DataFileReader, sources: Sequence[SourceFile]
) -> Iterator[bytes | None]:
    """Yields the content of each source, or None to read it later.

    Only small files of a remote store are read ahead.
    """
    if store.is_near or len(sources) < 2:
        yield from (None for _ in sources)
        return
    with ThreadPoolExecutor(_READ_AHEAD) as pool:
        waiting: deque[Future[bytes | None]] = deque()
        upcoming = iter(sources)
        for source in upcoming:
            waiting.append(pool.submit(reader.fetch, source))
            if len(waiting) > _READ_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def require_rows(work: Bin, written: int) -> None:
    """Raises `VerificationError` if the log states another number of live rows for the bin."""
    stated = [source.num_records for source in work.sources]
    deleted = sum(source.deleted_rows for source in work.sources)
    counted = [count for count in stated if count is not None]
    if len(counted) == len(stated) and written != sum(counted) - deleted:
        raise VerificationError(
            f"{written} rows were written where the log has {sum(counted) - deleted}",
            file=work.sources[0].path,
        )
