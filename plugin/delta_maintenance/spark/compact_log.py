"""Reconciles a range of commits on a cluster, for one log compaction.

Uses plain PySpark with Python workers, as for sidecars. Each reading task reconciles some of the
commits and divides the remaining actions into shares by logical file; one task reconciles each
share. The driver appends the shares to the file, and holds one share at a time. Lines are sent
unchanged, as in the local engine, so that no field and no digit is lost.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.protocol.columns import booleans, hash_texts, to_bools
from delta_maintenance.protocol.delta_log.compaction import RangeContent, RangeReplay, single_value
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.ndjson.line_buffers import line_ends, texts_of
from delta_maintenance.protocol.ndjson.raw_lines import FileActionLines
from delta_maintenance.spark.log_shares import (
    LOG_BYTES_PER_TASK,
    ShareRow,
    TableAddress,
    adjacent_parts,
    gone,
    in_batches,
    share_labels,
    share_rows,
    shared_out,
    shares,
    small_batches,
)
from delta_maintenance.spark.session import JobSession, SparkEngine
from delta_maintenance.spark.share_writer import gravest
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_file import LogEntry
from delta_maintenance.table.write.log_compactor import RangeWriter, ReconciledRange, commit_lines

SCHEMA = "piece binary"
"""A packed `RangePiece`, or the error that occurred instead."""

_ARROW_SCHEMA = pa.schema([("piece", pa.binary())])
_PLAIN, _OTHERS, _SINGLES, _NOTICE = "plain", "others", "singles", "notice"
"""The kinds of rows: lines in plain form, other lines, single actions, and an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangePiece:
    """Some lines of a compaction."""

    text: bytes
    content: RangeContent
    """The result of reconciling them."""
    plain: bool
    """Whether all file actions are in plain form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReading:
    """The inputs of a task that reads a part of the commits; they are sent to executors."""

    address: TableAddress
    parts: tuple[bytes, ...]
    """Adjacent commits by ascending version, the newest part first; pickled separately, because a
    task needs only one part.
    """
    labels: tuple[int, ...]
    """The label of each share."""

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Converts the numbers of parts to rows of `log_shares.SCHEMA`.

        Temporary errors are raised, so that Spark retries the task; other errors are sent to the
        first share.
        """
        with self.address.store() as store:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from in_batches(self._rows(store, number))

    def _rows(self, store: Store, number: int) -> Iterator[ShareRow]:
        replay = RangeReplay()
        try:
            for lines in commit_lines(store, pickle.loads(self.parts[number])):
                yield from self._shares(replay.surviving(lines), number)
        except DeltaMaintenanceError as error:
            if error.retryable:
                raise
            yield self._notice(error, number)
        except FileNotFoundError as error:
            yield self._notice(gone(error), number)
        singles = pickle.dumps(replay.single_texts)
        yield ShareRow(self.labels[0], number, _SINGLES, singles)

    def _shares(self, standing: FileActionLines, number: int) -> Iterator[ShareRow]:
        text = b"".join(standing.texts())
        if not text:
            return
        keys = standing.keys.array()
        lines = texts_of(text, np.append(0, line_ends(text)))
        batch = pa.table({"line": lines, "key": keys, "is_remove": booleans(standing.is_remove)})
        kind = _PLAIN if standing.plain else _OTHERS
        yield from shared_out(batch, hash_texts(keys), self.labels, kind=kind, age=number)

    def _notice(self, error: DeltaMaintenanceError, number: int) -> ShareRow:
        # Sorted before all other rows of the share.
        return ShareRow(self.labels[0], number - len(self.parts), _NOTICE, pickle.dumps(error))


def reconcile_shares(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reconciles rows of `log_shares.SCHEMA`, sorted by label and age, to rows of `SCHEMA`."""
    for _, share in groupby(share_rows(batches), key=lambda row: row.label):
        for piece in _pieces(share):
            yield pa.RecordBatch.from_arrays([pa.array([_pack(piece)])], schema=_ARROW_SCHEMA)


def unpack(row: bytes) -> RangePiece | DeltaMaintenanceError:
    """Unpacks a row of `SCHEMA`."""
    piece: RangePiece | DeltaMaintenanceError
    with pa.input_stream(pa.py_buffer(row), compression="zstd") as stream:
        piece = pickle.loads(stream.read())
    return piece


def _pack(piece: RangePiece | DeltaMaintenanceError) -> bytes:
    # Compressed, because the JVM of the driver holds all pieces of a share, some of them twice.
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(pickle.dumps(piece))
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _pieces(share: Iterator[ShareRow]) -> Iterator[RangePiece | DeltaMaintenanceError]:
    replay = FileReplay()
    singles: dict[tuple[str, str], bytes] = {}
    for row in share:
        if row.kind == _NOTICE:
            yield pickle.loads(row.payload)
        elif row.kind == _SINGLES:
            singles = pickle.loads(row.payload) | singles
        else:
            yield from _standing(row, replay)
    if singles:
        content = RangeContent(singles={key: single_value(line) for key, line in singles.items()})
        yield RangePiece(text=b"".join(singles.values()), content=content, plain=True)


def _standing(row: ShareRow, replay: FileReplay) -> Iterator[RangePiece]:
    batch = pa.ipc.open_stream(row.payload).read_all().combine_chunks()
    keys, is_remove = batch["key"].chunk(0), to_bools(batch["is_remove"].chunk(0))
    hashes = hash_texts(keys)
    stands = np.zeros(len(keys), bool)
    stands[replay.surviving(keys, order=np.arange(len(keys)), hashes=hashes)] = True
    if not stands.any():
        return
    content = RangeContent()
    content.count(hashes[stands], is_remove[stands])
    lines = batch["line"].chunk(0).filter(booleans(stands))
    text = b"".join(lines.cast(pa.large_binary()).to_pylist())
    yield RangePiece(text=text, content=content, plain=row.kind == _PLAIN)


_TOLD_ACTIONS = 100_000
"""The number of actions between two progress lines."""


class SparkRange(SparkEngine):
    """A `RangeEngine` on a Spark session."""

    def __init__(self, job: JobSession, *, log_bytes_per_task: int = LOG_BYTES_PER_TASK) -> None:
        super().__init__(job)
        self._log_bytes_per_task = log_bytes_per_task

    def write_range(self, commits: Sequence[LogEntry], file: BinaryIO) -> ReconciledRange:
        """See `RangeEngine`."""
        commit_parts = adjacent_parts(commits, self._log_bytes_per_task)
        size = sum(entry.status.size for entry in commits)
        # Writing tasks get about as many bytes as reading tasks.
        count = min(len(commit_parts), max(1, math.ceil(size / self._log_bytes_per_task)))
        reading = RangeReading(
            address=self._address,
            parts=tuple(pickle.dumps(commit_part) for commit_part in commit_parts),
            labels=share_labels(self._spark, count),
        )
        writer, content, plain = RangeWriter(file), RangeContent(), True
        errors: list[DeltaMaintenanceError] = []
        reported_actions = 0
        for piece in self._pieces(reading):
            if isinstance(piece, DeltaMaintenanceError):
                errors.append(piece)
                continue
            writer.write(piece.text)
            content.add(piece.content)
            plain &= piece.plain
            if content.actions >= reported_actions + _TOLD_ACTIONS:
                reported_actions = content.actions
                self._progress("actions", reported_actions, None)
        if errors:
            raise gravest(errors)
        return writer.written(content, plain=plain)

    def _pieces(self, reading: RangeReading) -> Iterator[RangePiece | DeltaMaintenanceError]:
        with small_batches(self._spark):
            divided = shares(
                self._spark, reading.read, parts=len(reading.parts), labels=reading.labels
            )
            for row in divided.mapInArrow(reconcile_shares, SCHEMA).toLocalIterator():
                yield unpack(row.piece)
