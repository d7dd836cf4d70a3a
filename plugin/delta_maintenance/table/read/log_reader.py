"""Reading the commits and compactions of a log segment, in parallel and newest first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, OversizedFileError
from delta_maintenance.limits import ReadLimits
from delta_maintenance.protocol.actions.file_columns import COMMIT_VERSION, logical_file_keys
from delta_maintenance.protocol.columns import integers
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import (
    CommitText,
    FileBlock,
    parse_other_lines,
    require_no_single_actions,
    split,
    split_pieces,
)
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.log_file import LogEntry, read_ahead, read_listed

_PIECE_BYTES = 4 << 20
# Small enough for the allocator to reuse the same memory for each batch.
_BATCH_BYTES = 12 << 20
# Batches of a few fields are short-lived; smaller ones need less memory.
_NARROW_BATCH_BYTES = 4 << 20
_THOROUGH_BYTES = 32 << 20
"""A longer tail is only searched for several actions on a line when its file actions are parsed."""
_KEPT_BYTES = 4 << 20
"""A tail of up to this number of bytes is read once and kept in memory with its snapshot."""


@dataclass(frozen=True, slots=True)
class TailBatch:
    """File actions of some adjacent commits as columns, with the version of each."""

    adds: pa.Table
    removes: pa.Table
    add_order: np.ndarray
    """The version of each add, ascending from the newest commit of the batch to its oldest."""
    remove_order: np.ndarray


class LogTail:
    """The commits and compactions of a log segment, to be read from the newest to the oldest.

    A second reading is faster: a short tail is kept in memory, and for a long one the positions of
    the file actions are kept.
    """

    def __init__(self, store: Store, entries: Sequence[LogEntry]) -> None:
        self.store = store
        self.entries = tuple(entries)
        self._listed = {entry.path: entry.status for entry in self.entries}
        size = sum(entry.status.size for entry in entries)
        self._thorough = size <= _THOROUGH_BYTES
        self._keeps = self._thorough and size <= _KEPT_BYTES
        self._kept: dict[str, CommitText] = {}
        self._blocks: dict[str, FileBlock] = {}
        self._searched: set[str] = set()
        """The files whose lines are known to contain one action each."""

    def followed_by(self, newer: LogTail) -> LogTail:
        """Concatenates two tails, with everything that either has kept."""
        joined = LogTail(self.store, (*self.entries, *newer.entries))
        if joined._keeps:
            joined._kept = {**self._kept, **newer._kept}
        joined._blocks = {**self._blocks, **newer._blocks}
        joined._searched = self._searched | newer._searched
        return joined

    def text_of(self, entry: LogEntry) -> CommitText:
        """Reads a file of the log, split into lines. Faster for a file that was already read as
        part of this tail, if it is still listed as it was then. Raises the errors of `texts`.
        """
        is_known = self._listed.get(entry.path) == entry.status
        tail = self if is_known else LogTail(self.store, (entry,))
        return tail._read(entry)

    def texts(self) -> Iterator[tuple[LogEntry, CommitText]]:
        """Yields every file, split into lines; the next files are read in advance.

        Raises `CorruptTableError`, which names the file, and `FileNotFoundError` for a file that
        was deleted after the listing, so that the caller lists again.
        """
        return self._texts(self._read)

    def without_files(self) -> Iterator[tuple[LogEntry, CommitText]]:
        """Like `texts`, for callers that ignore file actions: large files come without these lines,
        so that no large file is held in memory.
        """
        return self._texts(self._read_without_files)

    def _texts(
        self, read: Callable[[LogEntry], CommitText]
    ) -> Iterator[tuple[LogEntry, CommitText]]:
        if self.entries and len(self._kept) == len(self.entries):
            for entry in reversed(self.entries):
                yield entry, self._kept[entry.path]
            return
        for entry, text in read_ahead(self.store, self.entries, read):
            if self._keeps and entry.status.size <= _PIECE_BYTES:
                self._kept[entry.path] = text
            if text.block is not None:
                self._blocks[entry.path] = text.block
            yield entry, text

    def _read(self, entry: LogEntry, *, thorough: bool = True) -> CommitText:
        data = read_listed(self.store, entry.status)
        path, block = entry.path, self._blocks.get(entry.path)
        try:
            text = split(path, data, thorough=thorough and path not in self._searched, block=block)
            if text.block is None and block is not None:
                # The state of the version was read without these lines.
                require_no_single_actions(text)
            elif thorough:
                self._searched.add(path)
            return text
        except CorruptTableError as error:
            raise error.locate(version=entry.file.version) from None

    def _read_without_files(self, entry: LogEntry) -> CommitText:
        if entry.status.size <= _PIECE_BYTES:
            return self._read(entry, thorough=self._thorough)
        return read_without_files(self.store, entry)

    def batches(
        self, *, keys: MapKeys, fields: Mapping[str, Collection[str]] | None = None
    ) -> Iterator[TailBatch]:
        """Yields the file actions in batches of bounded size; the next batches are parsed in
        advance.
        """
        # A key found in one batch may reach the next batch too late; it is then found there again.
        batch_bytes = _BATCH_BYTES if fields is None else _NARROW_BATCH_BYTES
        return in_parallel(lambda lines: _parse(*lines, keys, fields), self._sources(batch_bytes))

    def _sources(self, batch_bytes: int) -> Iterator[tuple[list[FileLines], list[int]]]:
        sources: list[FileLines] = []
        versions: list[int] = []
        size = 0
        for entry, text in self.texts():
            _, beside = parse_other_lines(text)
            lines = FileLines.of(text, beside)
            if not lines.runs:
                continue
            sources.append(lines)
            versions.append(entry.file.end_version or entry.file.version or 0)
            size += lines.size
            if size >= batch_bytes:
                yield sources, versions
                sources, versions, size = [], [], 0
        if sources:
            yield sources, versions


def read_without_files(store: Store, entry: LogEntry) -> CommitText:
    """Reads the actions of a commit except file actions, in pieces of bounded size.

    Raises `CorruptTableError`, which names the file, and `FileNotFoundError` if it no longer
    exists.
    """
    try:
        if entry.status.size <= _PIECE_BYTES:
            return split(entry.path, read_listed(store, entry.status))
        with store.open(entry.path) as file:
            pieces = iter(partial(file.read, _PIECE_BYTES), b"")
            limits = ReadLimits.of(store)
            return split_pieces(entry.path, pieces, longest=limits.text_bytes)
    except OversizedFileError as error:
        raise OversizedFileError(
            error.problem,
            file=entry.path,
            version=entry.file.version,
            remedy=ReadLimits.of(store).remedy(),
        ) from None
    except CorruptTableError as error:
        raise error.locate(version=entry.file.version) from None


def _parse(
    sources: list[FileLines],
    versions: list[int],
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None,
) -> TailBatch:
    parsed = parse_file_actions(sources, keys=keys, fields=fields)
    of_source = np.array(versions, np.int64)
    of_add, of_remove = of_source[parsed.add_source], of_source[parsed.remove_source]
    return TailBatch(
        parsed.adds.append_column(COMMIT_VERSION, integers(of_add)),
        parsed.removes.append_column(COMMIT_VERSION, integers(of_remove)),
        parsed.add_source,
        parsed.remove_source,
    )


def compaction_problem(data: bytes, name: str) -> str | None:
    """Returns why a log compaction must not be used: it has two actions for one logical file."""
    text = split(name, data)
    actions, beside = parse_other_lines(text)
    if actions.repeated:
        return f"it has two actions for {min(actions.repeated)}"
    fields = ("path", "deletionVector")
    parsed = parse_file_actions(
        [FileLines.of(text, beside)],
        keys=MapKeys(partition_columns=frozenset()),
        fields={"add": fields, "remove": fields},
    )
    keys = [*logical_file_keys(parsed.adds).chunks, *logical_file_keys(parsed.removes).chunks]
    files = pa.chunked_array(keys, pa.string())
    if pc.count_distinct(files).as_py() < len(files):
        return "it has two actions for one logical file"
    return None
