"""Writing log compactions: reconciled line by line, staged, read back, published only if absent.

Implements "Log Compaction Files" for writers. Readers trust such a file in place of its commits, so
nothing becomes visible before it has been read back and found to do to any state what its commits
do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO
from zlib import crc32

from delta_maintenance.errors import CorruptTableError, RefusedError, VerificationError
from delta_maintenance.protocol.file_action_lines import (
    FileActionLines,
    LogTexts,
    SingleLines,
    read_lines,
)
from delta_maintenance.protocol.log_compaction import RangeContent, RangeReplay, content_of
from delta_maintenance.storage.base import Store
from delta_maintenance.table.log_segment import LOG_DIRECTORY, LogEntry
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read_ahead import read_ahead
from delta_maintenance.table.staging import Staging, publish, staging

_BATCH_BYTES = 3_000_000
"""Read at a time. Less of it, and threads are handed more than they do; more needs more memory."""


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
        content, checksum = _stage(store, commits, staged, name)
        if not content.actions:
            return None
        _verify(staged, name, checksum)
        status = publish(staged, store, name)
    return WrittenCompaction(size=status.size, content=content)


def compare_compaction(store: Store, commits: Sequence[LogEntry], name: str) -> str | None:
    """Why the compaction that is there does not do what its commits do; None where it does."""
    expected = _replayed(_commit_batches(store, commits))
    path = f"{LOG_DIRECTORY}/{name}"
    try:
        with store.open(path) as file:
            found = _replayed(_blocks(file, path))
    except (CorruptTableError, RefusedError) as error:
        return error.problem
    if found.superseded:
        return "it holds two actions for one logical file"
    return _difference(found.content, expected.content)


def _stage(
    store: Store, commits: Sequence[LogEntry], staged: Staging, name: str
) -> tuple[RangeContent, int]:
    """What the commits come to, and the checksum of the file that says the same."""
    replay, written, checksum = RangeReplay(), RangeContent(), 0
    path = f"{LOG_DIRECTORY}/{name}"
    standing = (replay.offer(*parsed) for parsed in _parsed(_commit_batches(store, commits)))
    with staged.path(name).open("wb") as file:

        def write(text: bytes, content: RangeContent) -> None:
            nonlocal checksum
            file.write(text)
            checksum = crc32(text, checksum)
            written.add(content)

        for text, content in map(partial(_rendered, path), standing):
            write(text, content)
        others = replay.single_text()
        write(others, content_of(path, others, plain=True))
    problem = _difference(written, replay.content)
    if problem is not None:
        raise _unverified(path, problem)
    return replay.content, checksum


def _rendered(path: str, lines: FileActionLines) -> tuple[bytes, RangeContent]:
    """Lines as text, and what this text comes to, read anew. Lines that were parsed are parsed
    again; the plain ones need not be recognised twice."""
    text = lines.text()
    return text, content_of(path, text, plain=lines.plain)


def _verify(staged: Staging, name: str, checksum: int) -> None:
    found = 0
    with staged.path(name).open("rb") as file:
        while block := file.read(_BATCH_BYTES):
            found = crc32(block, found)
    if found != checksum:
        raise _unverified(f"{LOG_DIRECTORY}/{name}", "its bytes are not those that were written")


def _unverified(path: str, problem: str) -> VerificationError:
    return VerificationError(
        f"what was written reads back differently: {problem}",
        file=path,
        remedy="report this with the table's log: nothing was published",
    )


def _difference(theirs: RangeContent, ours: RangeContent) -> str | None:
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


def _replayed(batches: Iterable[LogTexts]) -> RangeReplay:
    replay = RangeReplay()
    for parsed in _parsed(batches):
        replay.offer(*parsed)
    return replay


def _blocks(file: BinaryIO, path: str) -> Iterator[LogTexts]:
    """A file in pieces of whole lines."""
    rest = b""
    while block := file.read(_BATCH_BYTES):
        lines, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield LogTexts.of((path, lines + newline))
    if rest:
        yield LogTexts.of((path, rest))


def _parsed(
    batches: Iterable[LogTexts],
) -> Iterator[tuple[tuple[str, ...], FileActionLines, list[SingleLines]]]:
    # One thread: what is parsed makes the caller as much work again.
    return in_parallel(lambda batch: (batch.names, *read_lines(batch)), batches, threads=1)


def _commit_batches(store: Store, commits: Sequence[LogEntry]) -> Iterator[LogTexts]:
    batch: list[tuple[str, bytes]] = []
    size = 0
    for entry, data in read_ahead(store, commits, lambda entry: store.read(entry.path)):
        batch.append((entry.path, data))
        size += len(data)
        if size >= _BATCH_BYTES:
            joined = LogTexts.of(*batch)
            batch, size = [], 0
            yield joined
    if batch:
        yield LogTexts.of(*batch)
