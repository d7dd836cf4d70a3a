"""Writing log compactions: reconciled line by line, staged, read back, published only if absent.

Implements "Log Compaction Files" for writers. Readers trust such a file in place of its commits, so
nothing becomes visible before it has been read back and found to do to any state what its commits
do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO
from zlib import crc32

from delta_maintenance.errors import CorruptTableError, RefusedError, VerificationError
from delta_maintenance.protocol.file_action_lines import (
    FileActionLines,
    LogText,
    SingleLines,
    read_lines,
)
from delta_maintenance.protocol.log_compaction import RangeContent, RangeReplay
from delta_maintenance.storage.base import Store
from delta_maintenance.table.log_reader import read_ahead
from delta_maintenance.table.log_segment import LOG_DIRECTORY, LogEntry
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.staging import Staging, publish, staging

_BATCH_BYTES = 1 << 20
"""Read at a time: what is small enough for the processor's cache needs little memory, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCompaction:
    """A published compaction."""

    size: int
    """Bytes."""
    content: RangeContent


def write_compaction(
    store: Store, commits: Sequence[LogEntry], name: str
) -> WrittenCompaction | None:
    """Writes the compaction `name` of some commits, given by ascending version.

    None where no action of theirs stands: readers take an empty file for a damaged one.
    `FileExistsError` where somebody else's file is there: it was not touched. `FileNotFoundError`
    where a commit is gone. `RefusedError` and `CorruptTableError` where a commit cannot be
    reconciled without a doubt; `VerificationError` where the result does not read back. In all
    these cases nothing was published.
    """
    with staging() as staged:
        replay, checksum = _stage(store, commits, staged, name)
        if not replay.content.actions:
            return None
        _verify(staged, name, replay, checksum)
        status = publish(staged, store, name)
    return WrittenCompaction(size=status.size, content=replay.content)


def compare_compaction(store: Store, commits: Sequence[LogEntry], name: str) -> str | None:
    """Why the compaction that is there does not do what its commits do; None where it does."""
    expected = RangeReplay()
    for batch, lines, singles in _parsed(_commit_batches(store, commits)):
        expected.offer(batch, lines, singles)
    path = f"{LOG_DIRECTORY}/{name}"
    try:
        with store.open(path) as file:
            found, _ = _read_back(file, path)
    except (CorruptTableError, RefusedError) as error:
        return error.problem
    return _difference(found, expected)


def _stage(
    store: Store, commits: Sequence[LogEntry], staged: Staging, name: str
) -> tuple[RangeReplay, int]:
    replay, checksum = RangeReplay(), 0
    with staged.path(name).open("wb") as file:
        for batch, lines, singles in _parsed(_commit_batches(store, commits)):
            text = replay.offer(batch, lines, singles).text()
            file.write(text)
            checksum = crc32(text, checksum)
        others = replay.single_text()
        file.write(others)
    return replay, crc32(others, checksum)


def _verify(staged: Staging, name: str, expected: RangeReplay, checksum: int) -> None:
    path = f"{LOG_DIRECTORY}/{name}"
    try:
        with staged.path(name).open("rb") as file:
            # Lines that were parsed are parsed again; the plain ones need not be recognised twice.
            found, found_checksum = _read_back(file, path, plain=expected.plain)
        problem = _difference(found, expected)
        if problem is None and found_checksum != checksum:
            problem = "its bytes are not those that were written"
    except (CorruptTableError, RefusedError) as error:
        problem = error.problem
    if problem is not None:
        raise VerificationError(
            f"what was written reads back differently: {problem}",
            file=path,
            remedy="report this with the table's log: nothing was published",
        )


def _difference(found: RangeReplay, expected: RangeReplay) -> str | None:
    if found.superseded:
        return "it holds two actions for one logical file"
    theirs, ours = found.content, expected.content
    if (theirs.adds, theirs.removes) != (ours.adds, ours.removes):
        return (
            f"it has {theirs.adds} adds and {theirs.removes} removes, "
            f"its commits come to {ours.adds} and {ours.removes}"
        )
    if theirs.keys != ours.keys:
        return "its adds and removes are of other files than its commits'"
    if theirs.singles != ours.singles:
        keys = {*theirs.singles, *ours.singles}
        names = sorted(
            " ".join(key).strip()
            for key in keys
            if theirs.singles.get(key) != ours.singles.get(key)
        )
        return f"it differs from its commits in {', '.join(names)}"
    return None


def _read_back(file: BinaryIO, path: str, *, plain: bool = False) -> tuple[RangeReplay, int]:
    replay = RangeReplay()
    source = _Blocks(file, path)
    for batch, lines, singles in _parsed(source, plain=plain):
        replay.offer(batch, lines, singles)
    return replay, source.checksum


class _Blocks:
    """A file in pieces of whole lines, and the checksum of what has been read of it."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path
        self.checksum = 0

    def __iter__(self) -> Iterator[list[LogText]]:
        rest = b""
        while block := self._file.read(_BATCH_BYTES):
            self.checksum = crc32(block, self.checksum)
            lines, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                yield [LogText(self._path, lines + newline)]
        if rest:
            yield [LogText(self._path, rest)]


def _parsed(
    batches: Iterable[list[LogText]], *, plain: bool = False
) -> Iterator[tuple[list[LogText], FileActionLines, list[SingleLines]]]:
    return in_parallel(lambda batch: (batch, *read_lines(batch, plain=plain)), batches)


def _commit_batches(store: Store, commits: Sequence[LogEntry]) -> Iterator[list[LogText]]:
    batch: list[LogText] = []
    size = 0
    for entry, data in read_ahead(
        commits, lambda entry: store.read(entry.path), store.parallel_reads
    ):
        batch.append(LogText(entry.path, data))
        size += len(data)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
