"""Writes log compactions: reconcile lines, stage, verify, publish if absent.

Implements "Log Compaction Files" for writers. Readers use such a file instead of its commits.
Therefore it becomes visible only after it has been read back and has the same effect on any state
as its commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import RawIOBase
from typing import BinaryIO, Protocol, cast

from delta_maintenance.checksums import crc32
from delta_maintenance.errors import CorruptTableError, RefusedError, VerificationError
from delta_maintenance.protocol.delta_log.compaction import RangeContent, RangeReplay, content_of
from delta_maintenance.protocol.ndjson.line_buffers import (
    PADDING,
    BufferedFiles,
    LogBuffer,
    TextLines,
    split_lines,
    split_plain_lines,
)
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry, read_ahead, read_listed
from delta_maintenance.table.write.staging import require_whole

_BATCH_BYTES = 3_000_000
"""Bytes that are read at a time. Smaller blocks waste time on threads; larger ones need memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCompaction:
    """A published compaction."""

    size: int
    """Bytes."""
    content: RangeContent


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciledRange:
    """The lines that were written for a range, for the process that reads them back."""

    content: RangeContent
    """The combined effect of the commits, which the file must have."""
    size: int
    """Bytes."""
    checksum: int
    """The checksum of these bytes."""
    plain: bool
    """Whether all file actions are in the plain form, so that parsing can skip the other forms."""


class RangeEngine(Protocol):
    """Reconciles the commits of a range and writes the remaining actions."""

    def write_range(self, commits: Sequence[LogEntry], file: BinaryIO) -> ReconciledRange:
        """Reads commits, given by ascending version, and writes lines in any order.

        Raises the errors of `write_compaction`.
        """


def write_compaction(
    store: Store, commits: Sequence[LogEntry], name: str, *, engine: RangeEngine | None = None
) -> WrittenCompaction | None:
    """Writes the compaction `name` of some commits, given by ascending version.

    `engine` reads and reconciles the commits instead of this process, which reads the result back.
    Returns None if no action of the commits remains, because readers treat an empty file as
    damaged. Raises `FileExistsError` if another writer's file exists, which is not changed;
    `FileNotFoundError` if a commit was deleted; `RefusedError` or `CorruptTableError` if a commit
    cannot be reconciled with certainty; and `VerificationError` if the result does not read back.
    In all these cases nothing was published.
    """
    path = f"{LOG_DIRECTORY}/{name}"
    try:
        with store.create(path) as file:
            engine = engine or _ThisProcess(store)
            written = engine.write_range(commits, file)
            if not written.content.actions:
                raise _NothingRemainsError
            problem = _difference_of_copy(file, path, written)
            if problem is not None:
                raise VerificationError(
                    f"the file reads back differently: {problem}",
                    file=path,
                    remedy="report this with the table's log: nothing was published",
                )
    except _NothingRemainsError:
        return None
    status = require_whole(store, path, size=written.size)
    return WrittenCompaction(size=status.size, content=written.content)


def compare_compaction(store: Store, commits: Sequence[LogEntry], name: str) -> str | None:
    """Returns how an existing compaction differs in effect from its commits; None if it
    does not.
    """
    expected, compacted = RangeReplay(), RangeReplay()
    for lines in commit_lines(store, commits):
        expected.surviving(lines)
    path = f"{LOG_DIRECTORY}/{name}"
    try:
        with store.open(path) as file:
            for block in _blocks(file, path):
                compacted.surviving(split_lines(block))
    except (CorruptTableError, RefusedError) as error:
        return error.problem
    if compacted.superseded:
        return "it has two actions for one logical file"
    return _difference(compacted.content, expected.content)


def commit_lines(store: Store, commits: Sequence[LogEntry]) -> Iterator[TextLines]:
    """Yields the lines of commits from the newest to the oldest, some commits at a time.

    A batch is invalid once the next one is requested.
    """
    buffers: list[LogBuffer] = []
    batches = in_parallel(
        lambda buffer: (buffer, split_lines(buffer.files())), _fill_buffers(store, commits, buffers)
    )
    for buffer, lines in batches:
        yield lines
        buffer.clear()
        buffers.append(buffer)


class RangeWriter:
    """Writes the lines of a range, and computes their digest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._checksum = 0

    def write(self, text: bytes) -> None:
        """Writes some complete lines."""
        self._file.write(text)
        self._checksum = crc32(text, self._checksum)

    def written(self, content: RangeContent, *, plain: bool) -> ReconciledRange:
        """Returns the result; `content` is the combined effect of all lines."""
        return ReconciledRange(
            content=content, size=self._file.tell(), checksum=self._checksum, plain=plain
        )


class _NothingRemainsError(Exception):
    """Prevents an empty file from being published."""


@dataclass(frozen=True, slots=True)
class _ThisProcess:
    store: Store

    def write_range(self, commits: Sequence[LogEntry], file: BinaryIO) -> ReconciledRange:
        replay, writer, plain = RangeReplay(), RangeWriter(file), True
        for lines in commit_lines(self.store, commits):
            surviving = replay.surviving(lines)
            plain &= surviving.plain
            for text in surviving.texts():
                writer.write(text)
        for text in replay.single_texts.values():
            writer.write(text)
        return writer.written(replay.content, plain=plain)


def _difference_of_copy(file: BinaryIO, path: str, written: ReconciledRange) -> str | None:
    content, checksum = RangeContent(), 0
    file.seek(0)
    for block in _blocks(file, path):
        checksum = crc32(block.data[: -len(PADDING)], checksum)
        try:
            content.add(
                content_of(split_plain_lines(block) if written.plain else split_lines(block))
            )
        except CorruptTableError as error:
            return error.problem
    if checksum != written.checksum:
        return "its bytes differ from those that were written"
    return _difference(content, written.content)


def _difference(theirs: RangeContent, ours: RangeContent) -> str | None:
    if (theirs.adds, theirs.removes) != (ours.adds, ours.removes):
        return (
            f"it has {theirs.adds} adds and {theirs.removes} removes, "
            f"its commits have {ours.adds} and {ours.removes} in effect"
        )
    if theirs.keys != ours.keys:
        return "its adds and removes name other files than its commits"
    if theirs.singles != ours.singles:
        keys = {*theirs.singles, *ours.singles}
        names = sorted(
            " ".join(key).strip()
            for key in keys
            if theirs.singles.get(key) != ours.singles.get(key)
        )
        return f"it differs from its commits in {', '.join(names)}"
    return None


def _blocks(file: BinaryIO, path: str) -> Iterator[BufferedFiles]:
    """Yields a file in pieces of complete lines. Each piece is valid until the next one is
    requested.
    """
    buffer, partial_line = bytearray(_BATCH_BYTES + len(PADDING)), b""
    while True:
        if 2 * len(partial_line) >= len(buffer) - len(PADDING):
            # The line does not fit into the buffer.
            buffer = bytearray(4 * len(partial_line) + len(PADDING))
        filled = len(partial_line)
        buffer[:filled] = partial_line
        # The buffer is reused, because allocating new memory is slower than copying the rest.
        with memoryview(buffer) as view:
            filled += cast("RawIOBase", file).readinto(view[filled : -len(PADDING)]) or 0
        if filled == len(partial_line):
            break
        end = buffer.rfind(b"\n", 0, filled) + 1
        partial_line = bytes(buffer[end:filled])
        if end:
            yield _piece(buffer, end, path)
    if partial_line:
        yield BufferedFiles.of((path, partial_line))


def _piece(buffer: bytearray, end: int, path: str) -> BufferedFiles:
    buffer[end : end + len(PADDING)] = PADDING
    return BufferedFiles((path,), (end,), memoryview(buffer)[: end + len(PADDING)])


def _fill_buffers(
    store: Store, commits: Sequence[LogEntry], buffers: list[LogBuffer]
) -> Iterator[LogBuffer]:
    """Yields buffers filled with commits; taken from `buffers`, or new if all are in use."""
    buffer = LogBuffer(_BATCH_BYTES)
    for entry, data in read_ahead(store, commits, lambda entry: read_listed(store, entry.status)):
        if not buffer.add(entry.path, data):
            yield buffer
            buffer = buffers.pop() if buffers else LogBuffer(_BATCH_BYTES)
            buffer.add(entry.path, data)
    yield buffer
