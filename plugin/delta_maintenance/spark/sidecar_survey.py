"""Determines on executors which sidecars an incremental checkpoint must rewrite, and checks these.

Each task reads a part of the commits and looks up the files in the filters of the sidecars.
Sidecars without a filter are read by separate tasks, path by path, and joined with the files by a
hash. The driver receives the numbers of sidecars and totals, but no file.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.protocol.actions.paths import written_locations
from delta_maintenance.protocol.columns import Hashes, hash_texts
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.delta_log.sidecars import (
    SidecarSummary,
    SummaryBuilder,
    stated_summary,
)
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.spark.log_shares import TableAddress, gone
from delta_maintenance.spark.share_writer import gravest
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.active_files import FirstActions, active_in_tail, key_hashes
from delta_maintenance.table.read.checkpoint_reader import (
    Checkpoint,
    CheckpointPart,
    FileActionBatch,
    read_part,
)
from delta_maintenance.table.read.log_file import LogEntry
from delta_maintenance.table.read.log_reader import LogTail, TailBatch
from delta_maintenance.table.read.sidecar_search import (
    SUMMARISED,
    NamedLocations,
    SearchedSidecar,
    may_name,
)
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec
from delta_maintenance.table.write.sidecar_reuse import (
    ReuseSurvey,
    contradicted_tags,
    require_expired,
    require_found,
    survey_sidecars,
    totals_of,
    with_expired,
)

SCHEMA = "number int, hash long, payload binary"
"""`number` identifies a sidecar; `hash` is that of a location; `payload` is pickled."""

_ARROW_SCHEMA = pa.schema([("number", pa.int32()), ("hash", pa.int64()), ("payload", pa.binary())])
_NO_SIDECAR = -1
_WHOLE = 1 << 62

_Rows = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class TailSearch:
    """The inputs of a task that reads commits. They contain no data per file."""

    address: TableAddress
    parts: tuple[bytes, ...]
    """Adjacent commits and compactions, pickled separately."""
    filtered: tuple[tuple[int, str, SidecarSummary], ...]
    """The number, the path and the summary of each sidecar that has a filter."""

    def find(self, batches: Iterable[pa.RecordBatch]) -> _Rows:
        """Converts numbers of parts to the numbers of sidecars that may contain one of their files.

        The payload has the numbers of adds and tombstones.
        """
        yield from _told(batches, self.address, self._found)

    def locations(self, batches: Iterable[pa.RecordBatch]) -> _Rows:
        """Converts numbers of parts to the hashes of the locations of their files."""
        yield from _told(batches, self.address, self._locations)

    def first_actions(self, batches: Iterable[pa.RecordBatch]) -> _Rows:
        """Converts numbers of parts, of which 0 is the newest, to the oldest action of each logical
        file: the number is odd for a remove, and greater for an older part.
        """
        yield from _told(batches, self.address, self._first_actions)

    def _first_actions(self, store: Store, number: int) -> _Rows:
        first_actions = FirstActions()
        for _ in first_actions.watching(self._batches(store, number)):
            pass
        hashes, is_remove = first_actions.oldest()
        yield _rows((2 * number + is_remove).astype(np.int32), hashes)

    def _found(self, store: Store, number: int) -> _Rows:
        locations, adds, tombstones = self._read(store, number)
        named_files = [
            sidecar
            for sidecar, path, summary in self.filtered
            # If the filter gives no answer, the sidecar is assumed to contain one of the files.
            if may_name(store, path, summary, locations) is not False
        ]
        yield _rows(np.array(named_files, np.int32))
        yield _payload(_NO_SIDECAR, (adds, tombstones))

    def _locations(self, store: Store, number: int) -> _Rows:
        locations, _, _ = self._read(store, number)
        hashes = np.unique(locations.hashes)
        yield _rows(np.full(len(hashes), _NO_SIDECAR, np.int32), hashes)

    def _read(self, store: Store, number: int) -> tuple[NamedLocations, int, int]:
        adds = tombstones = 0
        paths: list[pa.StringArray] = []
        for batch in active_in_tail(self._batches(store, number), FileReplay()):
            adds += batch.adds.num_rows
            tombstones += batch.tombstones.num_rows
            paths += [*batch.adds["path"].chunks, *batch.tombstones["path"].chunks]
        return NamedLocations.of(paths, root=self.address.uri), adds, tombstones

    def _batches(self, store: Store, number: int) -> Iterator[TailBatch]:
        entries: tuple[LogEntry, ...] = pickle.loads(self.parts[number])
        keys, fields = MapKeys(partition_columns=frozenset()), {"add": _KEY, "remove": _KEY}
        yield from LogTail(store, entries).batches(keys=keys, fields=fields)


_KEY = ("path", "deletionVector")


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarReading:
    """The inputs of a task that reads sidecars."""

    address: TableAddress
    sidecars: tuple[tuple[int, tuple[CheckpointPart, ...]], ...]
    """The number of each sidecar and the part to read; a task receives a position in this list."""
    deleted_after_ms: int | None = None

    def summaries(self, batches: Iterable[pa.RecordBatch]) -> _Rows:
        """Converts positions to summaries."""
        yield from _told(batches, self.address, self._summary)

    def locations(self, batches: Iterable[pa.RecordBatch]) -> _Rows:
        """Converts positions to the hashes of the locations of files."""
        yield from _told(batches, self.address, self._locations)

    def keys(self, batches: Iterable[pa.RecordBatch]) -> _Rows:
        """Converts positions to the hashes of the keys of logical files."""
        yield from _told(batches, self.address, self._keys)

    def find_expired(self, batches: Iterable[pa.RecordBatch]) -> _Rows:
        """Converts positions to the numbers of adds, tombstones and expired tombstones."""
        yield from _told(batches, self.address, self._find_expired)

    def _summary(self, store: Store, at: int) -> _Rows:
        contents = SummaryBuilder()
        for batch in self._batches(store, at):
            contents.include(batch.adds, batch.removes)
        yield _payload(self.sidecars[at][0], contents.summary(None))

    def _locations(self, store: Store, at: int) -> _Rows:
        for batch in self._batches(store, at):
            for paths in (*batch.adds["path"].chunks, *batch.removes["path"].chunks):
                hashes = hash_texts(written_locations(paths))
                yield _rows(np.full(len(hashes), self.sidecars[at][0], np.int32), hashes)

    def _keys(self, store: Store, at: int) -> _Rows:
        for batch in self._batches(store, at):
            for hashes in (key_hashes(batch.adds), key_hashes(batch.removes)):
                yield _rows(np.full(len(hashes), self.sidecars[at][0], np.int32), hashes)

    def _find_expired(self, store: Store, at: int) -> _Rows:
        assert self.deleted_after_ms is not None
        limit = self.deleted_after_ms
        yield _payload(self.sidecars[at][0], totals_of(self._batches(store, at), limit))

    def _batches(self, store: Store, at: int) -> Iterator[FileActionBatch]:
        for sidecar_part in self.sidecars[at][1]:
            keys = MapKeys(partition_columns=frozenset())
            yield from read_part(store, sidecar_part, keys=keys, fields=SUMMARISED)


def survey_on_spark(
    spark: SparkSession,
    snapshot: Snapshot,
    spec: CheckpointSpec,
    base: Checkpoint,
    *,
    address: TableAddress,
    tail: Sequence[tuple[LogEntry, ...]],
) -> ReuseSurvey:
    """Returns the same survey as `survey_reuse`, for a base that may be reused.

    `tail` has the commits since the base, in parts.

    Raises `UnusableCheckpointError` for a damaged base.
    """
    summaries = [stated_summary(sidecar) for sidecar in base.sidecars]
    search = TailSearch(
        address=address,
        parts=tuple(pickle.dumps(tail_part) for tail_part in tail),
        filtered=tuple(
            (number, base.sidecar_paths[number], summary)
            for number, summary in enumerate(summaries)
            if summary is not None and summary.filter is not None
        ),
    )
    hits = _tasks(spark, len(tail)).mapInArrow(search.find, SCHEMA)
    counts = _payloads(hits)
    named_sidecars = _numbers(hits)
    bare = set(range(len(summaries))) - {number for number, _, _ in search.filtered}
    if bare:
        reading = _reading(base, sorted(bare), address)
        tasks = _tasks(spark, len(bare))
        for number, summary in _payloads(tasks.mapInArrow(reading.summaries, SCHEMA)):
            summaries[number] = summary
        theirs = tasks.mapInArrow(reading.locations, SCHEMA).select("number", "hash")
        ours = _tasks(spark, len(tail)).mapInArrow(search.locations, SCHEMA).select("hash")
        named_sidecars |= _numbers(theirs.join(ours.distinct(), "hash"))
    affected_sidecars = [
        SearchedSidecar(sidecar, path, summary, number in named_sidecars)
        for number, (sidecar, path, summary) in enumerate(
            zip(base.sidecars, base.sidecar_paths, summaries, strict=True)
        )
        if summary is not None
    ]
    expiring = {
        base.sidecar_paths.index(each.path): each for each in with_expired(affected_sidecars, spec)
    }
    expired = {}
    if expiring:
        numbers = sorted(expiring)
        reading = _reading(base, numbers, address, deleted_after_ms=spec.deleted_after_ms)
        expired_payloads = _payloads(
            _tasks(spark, len(expiring)).mapInArrow(reading.find_expired, SCHEMA)
        )
        expired = {
            expiring[at].path: require_expired(expiring[at], *totals)
            for at, totals in expired_payloads
        }
    return survey_sidecars(
        base,
        affected_sidecars,
        spec,
        expired=expired,
        adds=sum(adds for _, (adds, _) in counts),
        tombstones=sum(tombstones for _, (_, tombstones) in counts),
    )


def require_rewritten(
    spark: SparkSession,
    reuse: ReuseSurvey,
    *,
    address: TableAddress,
    commits: Sequence[tuple[LogEntry, ...]],
) -> None:
    """Checks the sidecars that are rewritten like `LocalSidecars`, before they are written.

    `commits` are those since the base, in parts, without log compactions, which omit adds of files
    that their own commits remove. Raises `CorruptTableError` if a sidecar differs from its tags,
    and `NotReusableError` if a file that the commits remove is in none of these sidecars.
    """
    base, rewritten = reuse.base, {sidecar.path: sidecar for sidecar in reuse.rewritten}
    reading = _reading(base, [base.sidecar_paths.index(path) for path in rewritten], address)
    tasks = _tasks(spark, len(rewritten))
    for number, summary in _payloads(tasks.mapInArrow(reading.summaries, SCHEMA)):
        path = base.sidecar_paths[number]
        if summary.tally != rewritten[path].found.summary.tally:
            raise contradicted_tags(path)
    commit_parts = tuple(pickle.dumps(commit_part) for commit_part in commits)
    search = TailSearch(address=address, parts=commit_parts, filtered=())
    first_actions = _tasks(spark, len(commit_parts)).mapInArrow(search.first_actions, SCHEMA)
    oldest = functions.max("number").alias("number"), functions.max("payload").alias("payload")
    removed = (
        first_actions.groupBy("hash").agg(*oldest).where("number % 2 = 1 OR payload IS NOT NULL")
    )
    theirs = tasks.mapInArrow(reading.keys, SCHEMA).select("hash")
    missing = 0
    for row in removed.join(theirs, "hash", "left_anti").groupBy("payload").count().collect():
        if row.payload is not None:
            raise pickle.loads(row.payload)
        missing = row["count"]
    require_found(reuse, missing)


def _reading(
    base: Checkpoint,
    numbers: Sequence[int],
    address: TableAddress,
    *,
    deleted_after_ms: int | None = None,
) -> SidecarReading:
    paths = [base.sidecar_paths[number] for number in numbers]
    sidecar_parts = [tuple(base.parts(_WHOLE, only={path})) for path in paths]
    return SidecarReading(
        address=address,
        sidecars=tuple(zip(numbers, sidecar_parts, strict=True)),
        deleted_after_ms=deleted_after_ms,
    )


def _tasks(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, max(1, count))


def _numbers(rows: DataFrame) -> set[int]:
    numbers = rows.where("number >= 0 AND hash IS NOT NULL").select("number").distinct()
    return {row.number for row in numbers.collect()}


def _payloads(rows: DataFrame) -> list[tuple[int, Any]]:
    """Returns the payloads of all tasks; raises the error of a task."""
    payload_rows = rows.where("payload IS NOT NULL").select("number", "payload").collect()
    payloads = [(row.number, pickle.loads(row.payload)) for row in payload_rows]
    errors = [value for _, value in payloads if isinstance(value, DeltaMaintenanceError)]
    if errors:
        raise gravest(errors)
    return payloads


def _told(
    batches: Iterable[pa.RecordBatch], address: TableAddress, read: Callable[[Store, int], _Rows]
) -> _Rows:
    """Yields the results of `read` for each number.

    Temporary errors are raised, so that Spark retries the task; other errors are sent to the
    driver.
    """
    with address.store() as store:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    yield from read(store, number)
                except DeltaMaintenanceError as error:
                    if error.retryable:
                        raise
                    yield _payload(_NO_SIDECAR, error)
                except FileNotFoundError as error:
                    yield _payload(_NO_SIDECAR, gone(error))


def _rows(numbers: npt.NDArray[np.int32], hashes: Hashes | None = None) -> pa.RecordBatch:
    count = len(numbers)
    hash_column = np.zeros(count, np.int64) if hashes is None else hashes.view(np.int64)
    columns = [pa.array(numbers), pa.array(hash_column), pa.nulls(count, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA)


def _payload(number: int, value: object) -> pa.RecordBatch:
    columns = [[number], [None], [pickle.dumps(value)]]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, _ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)
