"""Sums over the files of a snapshot: sizes, deletion vectors, and expired tombstones.

One pass over the file actions in columns. In addition to one batch, it keeps 25 bytes in memory for
each tombstone and, if deletion vectors are supported, 8 for each live file.

`SumMemory` keeps sums that outlast a snapshot and follow usual commits. As in `file_changes`, a
commit of an operation that may repeat files is not followed, and the caller replays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    REMOVE_TYPES,
    ROW_COUNT,
    empty,
)
from delta_maintenance.protocol.columns import Hashes, hash_texts
from delta_maintenance.protocol.delta_log.file_sample import FIELDS, FileSample
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.delta_log.sidecars import stated_summary
from delta_maintenance.protocol.delta_log.version_checksum import FileSizeHistogram
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.ndjson.parse import MapKeys, parse_file_actions
from delta_maintenance.protocol.statistics.stats import stated_row_counts
from delta_maintenance.table.read.active_files import ActiveFiles, active_files, record_counts
from delta_maintenance.table.read.checkpoint_reader import Checkpoint, UnusableCheckpointError
from delta_maintenance.table.read.file_changes import MOST_TAIL_BYTES, FileChanges, RolledCommits
from delta_maintenance.table.read.log_file import LogEntry
from delta_maintenance.table.read.log_view import LogView
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.summary import stated_sizes
from delta_maintenance.table.read.tombstones import NEVER, Counts, OldFilesDay, Tombstones, integers

_SAMPLED_ROWS = 1 << 14
"""The number of rows of a checkpoint whose decoding takes about 2 ms."""
BUCKETS = 65
"""One bucket for empty files, then one for each power of two."""
REMOVE_FIELDS = ("path", "deletionVector", "size", "deletionTimestamp", "extendedFileMetadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSums:
    """The sums of one snapshot."""

    files_by_size: tuple[int, ...]
    """The number of live files by size: empty files, then from 1, 2, 4… bytes to less than twice
    that size.
    """
    bytes_by_size: tuple[int, ...]
    small_files: int
    with_deletion_vector: int
    deleted_rows: int
    rows: int | None
    """Physical rows; None if a file has no row count, or if they were not requested."""
    tombstones: int
    expired_tombstones: int
    reclaimable_files: int
    """Files that only expired tombstones name, each counted once."""
    reclaimable_bytes: int
    """Bytes of those files whose tombstones state a reliable size."""
    old_files: tuple[OldFilesDay, ...] = ()
    """Files that only older versions need, by the day on which they may be vacuumed."""
    checksum_version: int | None = None
    """The version of the checksum from which the live files were computed; None if they were
    counted.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Instants:
    """The times by which tombstones are classified, in milliseconds since 1970-01-01 UTC."""

    now: int
    expired_before: int
    """Tombstones from before this time are expired."""
    reclaimable_before: int
    """Files of tombstones from before this time may be vacuumed."""
    reclaimed_before: int
    """Files of tombstones from before this time have been vacuumed."""


def sum_files(
    snapshot: Snapshot,
    *,
    small_bytes: int,
    instants: Instants,
    checksums: Iterable[LogEntry] = (),
    memory: SumMemory | None = None,
    sample: FileSample | None = None,
) -> FileSums:
    """The sums over all file actions in effect. Counts rows only if deletion vectors are supported.

    `small_bytes` is a power of two. Rows require the statistics, which are most of a checkpoint,
    and nothing else does. If `memory` has the sums of an earlier version, and the commits since are
    usual ones, only these are read. Otherwise, if one of `checksums` states the sizes of the live
    files, and the log confirms it, only tombstones are read: see `stated_sizes`. `sample` takes the
    live files that are read.
    """
    for known_sums in _known(snapshot, checksums, small_bytes, memory, sample):
        sums = None if known_sums is None else _at(known_sums, small_bytes, instants)
        if sums is not None:
            break
    assert sums is not None
    if memory is not None:
        memory.known = known_sums
    return sums


@dataclass(frozen=True, slots=True)
class SizeBuckets:
    """The number and the bytes of files by size, in buckets of powers of two."""

    files: Counts
    bytes: Counts

    @classmethod
    def of(cls, sizes: Counts) -> Self:
        """Sorts files into the buckets."""
        # The exponent of 0 is 0, and that of 2^n is n + 1.
        buckets = np.frexp(sizes.astype(np.float64))[1].clip(0, BUCKETS - 1)
        totals = np.zeros(BUCKETS, np.int64)
        np.add.at(totals, buckets, sizes)
        return cls(np.bincount(buckets, minlength=BUCKETS), totals)

    def apply_changes(self, *, added: Counts, removed: Counts) -> SizeBuckets:
        """Returns the buckets after files with these sizes, in bytes, were added and removed."""
        plus, minus = SizeBuckets.of(added), SizeBuckets.of(removed)
        return SizeBuckets(
            self.files + plus.files - minus.files, self.bytes + plus.bytes - minus.bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSums:
    """The sums over the files of one version, and what is needed to follow later commits.

    Takes 25 bytes of memory for each tombstone and, if deletion vectors are supported, 8 for each
    live file.
    """

    table_id: str | None
    version: int
    commit: LogEntry | None
    """The commit of the version. A table that was replaced by a copy of an earlier state has the
    same ID, but other commits.
    """
    with_vectors: bool
    """Whether the table supports deletion vectors."""
    live: SizeBuckets
    live_paths: Hashes | None
    """The paths of live files, if deletion vectors are supported, because tombstones with another
    vector can have them; None if they were not read."""
    vectors: int
    deleted_rows: int
    rows: int | None
    tombstones: Tombstones
    checksum_version: int | None

    def at(self, snapshot: Snapshot) -> KnownSums | None:
        """Returns the sums at a later version, from the commits since; None if uncertain."""
        segment = snapshot.log.segment
        newer = [entry for entry in segment.tail if (entry.file.version or 0) > self.version]
        if (
            snapshot.metadata.id != self.table_id
            or supports(snapshot.protocol, "deletionVectors") is not self.with_vectors
            or self.commit is None
            or self.commit not in (segment.base_commit, *segment.commits)
            or any(entry.file.end_version is not None for entry in segment.tail)
            or sum(entry.status.size for entry in newer) > MOST_TAIL_BYTES
        ):
            return None
        rolled = RolledCommits.of(
            text for text in snapshot.log.tail.texts() if (text[0].file.version or 0) > self.version
        )
        changes = rolled.changes()
        if changes is None:
            return None
        followed = self._follow_commits(rolled, changes) if rolled.lines else self
        if followed is None or not _is_checkpointed(snapshot, self):
            return None
        return replace(followed, version=segment.version, commit=segment.last_commit)

    def _follow_commits(self, rolled: RolledCommits, changes: FileChanges) -> KnownSums | None:
        if self.with_vectors or self.vectors or changes.vectors or changes.deleted_rows:
            # Removes need not state the number of rows that their files had.
            return None
        live = self.live.apply_changes(added=changes.added, removed=changes.removed)
        if min(live.files.min(), live.bytes.min()) < 0:
            return None
        removes = parse_file_actions(
            list(rolled.lines),
            keys=MapKeys(partition_columns=frozenset()),
            fields={"add": ("path", "deletionVector"), "remove": REMOVE_FIELDS},
        ).removes
        gone = Tombstones.join([self.tombstones, Tombstones.of(removes)])
        return replace(self, live=live, tombstones=gone)


@dataclass(slots=True)
class SumMemory:
    """Keeps the sums of the last look at a table for the next look of the same process."""

    known: KnownSums | None = None

    def at(self, snapshot: Snapshot) -> KnownSums | None:
        """Returns the sums of the files of a snapshot, if they follow from those of the last look.

        Raises `FileNotFoundError` for a commit that was deleted after the snapshot was opened.
        """
        return None if self.known is None else self.known.at(snapshot)


def _known(
    snapshot: Snapshot,
    checksums: Iterable[LogEntry],
    small_bytes: int,
    memory: SumMemory | None,
    sample: FileSample | None,
) -> Iterator[KnownSums | None]:
    """Yields the sums by one way after the other, the cheapest first. None if a way has no result;
    the last one always has.
    """
    if memory is not None:
        yield _remembered_sums(snapshot, memory)
    yield _by_checksum(snapshot, checksums, small_bytes, sample)
    yield _replay_sums(snapshot, sample)


def _remembered_sums(snapshot: Snapshot, memory: SumMemory) -> KnownSums | None:
    try:
        return memory.at(snapshot)
    except FileNotFoundError:
        # A commit was deleted after the snapshot was opened; a replay opens the table again.
        return None


def _by_checksum(
    snapshot: Snapshot, checksums: Iterable[LogEntry], small_bytes: int, sample: FileSample | None
) -> KnownSums | None:
    """Computes the sums without reading live files; None if they have to be read."""
    gathered = _Gathered(supports(snapshot.protocol, "deletionVectors"))
    try:
        stated = stated_sizes(snapshot, checksums)
        if stated is None or stated.vectors:
            # The share of deleted rows needs the number of rows, which only the statistics of files
            # contain. Paths of live files with a vector can be those of tombstones, too.
            return None
        buckets = _buckets(stated.sizes, small_bytes)
        if buckets is None:
            return None
        replay, files = FileReplay(), int(buckets.files.sum())
        for batch in snapshot.log.scan_tail(replay, fields=_FIELDS):
            gathered.take_tombstones(batch.tombstones)
            files -= batch.adds.num_rows
            if sample is not None:
                sample.take(batch.adds)
        only = _with_tombstones(snapshot.log.checkpoint)
        for batch in snapshot.log.scan_checkpoint(
            replay, fields=_FIELDS, only=only, actions=("remove",)
        ):
            gathered.take_tombstones(batch.tombstones)
        if sample is not None:
            _sample_checkpoint(sample, snapshot.log, replay, total=files)
    except (UnusableCheckpointError, FileNotFoundError):
        # The replay reports the failure, or finds another base.
        return None
    gathered.live, gathered.rows, gathered.live_paths = buckets, None, None
    return gathered.known(snapshot, checksum_version=stated.checksum_version)


def _sample_checkpoint(sample: FileSample, log: LogView, replay: FileReplay, *, total: int) -> None:
    """Adds a row group of the checkpoint to the sample, in place of `total` files.

    A large row group is read so often that `_SAMPLED_ROWS` rows are read on average. `replay` has
    seen the newer commits.
    """
    assert log.checkpoint is not None
    batches = log.checkpoint.random_adds(
        sample.random, keys=log.map_keys(), fields=FIELDS, most_rows=_SAMPLED_ROWS
    )
    part = FileSample(seed=int(sample.random.integers(1 << 32)))
    for batch in batches:
        part.take(batch.adds)
    schema = pa.schema([(name, ADD_TYPES[name]) for name in FIELDS])
    drawn = pa.Table.from_pylist(part.files(), schema)
    # Only these are compared with the commits, because hashing all paths costs more than decoding.
    sample.take(active_files(drawn, empty(REMOVE_TYPES), replay, remember=False).adds, total=total)


def _replay_sums(snapshot: Snapshot, sample: FileSample | None) -> KnownSums:
    while True:
        gathered = _Gathered(supports(snapshot.protocol, "deletionVectors"))
        if sample is not None:
            sample.restart()
        fields = _FIELDS_WITH_ROWS if gathered.with_vectors else _FIELDS
        try:
            for batch in snapshot.log.scan(fields=fields):
                gathered.take(batch)
                if sample is not None:
                    sample.take(batch.adds)
            return gathered.known(snapshot)
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)


def _at(known_sums: KnownSums, small_bytes: int, instants: Instants) -> FileSums | None:
    """Returns the sums at some instants; None if a live file may be that of a tombstone."""
    tombstones = known_sums.tombstones
    waiting = tombstones.between(instants.reclaimed_before, instants.reclaimable_before)
    if known_sums.live_paths is None and waiting.with_vector.any():
        return None
    dead = waiting.of_dead_files(known_sums.live_paths)
    needed = tombstones.between(instants.reclaimable_before, NEVER).of_dead_files(
        known_sums.live_paths
    )
    return FileSums(
        files_by_size=tuple(known_sums.live.files.tolist()),
        bytes_by_size=tuple(known_sums.live.bytes.tolist()),
        small_files=int(known_sums.live.files[: small_bytes.bit_length()].sum()),
        with_deletion_vector=known_sums.vectors,
        deleted_rows=known_sums.deleted_rows,
        rows=known_sums.rows,
        tombstones=len(tombstones.paths),
        expired_tombstones=tombstones.count_expired(instants.expired_before),
        reclaimable_files=len(dead.paths),
        reclaimable_bytes=int(dead.sizes.sum()),
        old_files=needed.by_day(
            now_ms=instants.now, kept_ms=instants.now - instants.reclaimable_before
        ),
        checksum_version=known_sums.checksum_version,
    )


def _with_tombstones(checkpoint: Checkpoint | None) -> frozenset[str] | None:
    """Returns the sidecars that may contain tombstones, by their summaries; None without
    sidecars.
    """
    if checkpoint is None or not checkpoint.sidecars:
        return None
    summaries = map(stated_summary, checkpoint.sidecars)
    return frozenset(
        path
        for path, summary in zip(checkpoint.sidecar_paths, summaries, strict=True)
        if summary is None or summary.tally.tombstones
    )


_FIELDS: Mapping[str, tuple[str, ...]] = {
    "add": ("path", "deletionVector", "size"),
    "remove": REMOVE_FIELDS,
}
_FIELDS_WITH_ROWS: Mapping[str, tuple[str, ...]] = {
    "add": ("path", "deletionVector", "size", ROW_COUNT),
    "remove": REMOVE_FIELDS,
}


def _buckets(sizes: FileSizeHistogram, small_bytes: int) -> SizeBuckets | None:
    """Returns the sizes of all live files; None if the bins of the histogram are too coarse."""
    size_buckets = SizeBuckets.of(np.empty(0, np.int64))
    ends = (*sizes.boundaries[1:], 2**63)
    if small_bytes not in sizes.boundaries:
        return None
    bins = zip(sizes.boundaries, ends, sizes.file_counts, sizes.total_bytes, strict=True)
    for start, end, files, size in bins:
        # Files smaller than the first boundary are in one bucket.
        power = start.bit_length()
        if files and start and (end - 1).bit_length() != power:
            return None
        if files:
            size_buckets.files[power] += files
            size_buckets.bytes[power] += size
    return size_buckets


@dataclass
class _Gathered:
    """The sums of the batches so far."""

    with_vectors: bool
    live: SizeBuckets = field(default_factory=lambda: SizeBuckets.of(np.empty(0, np.int64)))
    vectors: int = 0
    deleted_rows: int = 0
    rows: int | None = 0
    live_paths: list[Hashes] | None = field(default_factory=list)
    tombstones: list[Tombstones] = field(default_factory=list)

    def take(self, batch: ActiveFiles) -> None:
        self._take_adds(batch.adds)
        self.take_tombstones(batch.tombstones)

    def take_tombstones(self, removes: pa.Table) -> None:
        if removes.num_rows:
            self.tombstones.append(Tombstones.of(removes))

    def known(self, snapshot: Snapshot, *, checksum_version: int | None = None) -> KnownSums:
        paths = self.live_paths
        return KnownSums(
            table_id=snapshot.metadata.id,
            version=snapshot.version,
            commit=snapshot.log.segment.last_commit,
            with_vectors=self.with_vectors,
            live=self.live,
            live_paths=None if paths is None else np.concatenate([np.empty(0, np.uint64), *paths]),
            vectors=self.vectors,
            deleted_rows=self.deleted_rows,
            rows=self.rows if self.with_vectors else None,
            tombstones=Tombstones.join(self.tombstones),
            checksum_version=checksum_version,
        )

    def _take_adds(self, adds: pa.Table) -> None:
        if not adds.num_rows:
            return
        none = np.empty(0, np.int64)
        self.live = self.live.apply_changes(added=integers(adds, "size"), removed=none)
        if "deletionVector" in adds.column_names:
            vectors = adds["deletionVector"]
            self.vectors += len(vectors) - vectors.null_count
            for chunk in vectors.chunks:
                self.deleted_rows += pc.sum(pc.struct_field(chunk, "cardinality")).as_py() or 0
        if self.with_vectors:
            assert self.live_paths is not None
            self.live_paths.extend(hash_texts(chunk) for chunk in adds["path"].chunks)
            counts = record_counts(adds, stated=stated_row_counts)
            rows = None if counts.null_count else pc.sum(counts).as_py() or 0
            self.rows = None if self.rows is None or rows is None else self.rows + rows


def _is_checkpointed(snapshot: Snapshot, known_sums: KnownSums) -> bool:
    """Whether a checkpoint of the known version, if there is one, states the same totals."""
    checkpoint = snapshot.log.checkpoint
    if checkpoint is None or snapshot.log.segment.base_version != known_sums.version:
        return True
    adds, size = checkpoint.stated_adds
    live_totals = (int(known_sums.live.files.sum()), int(known_sums.live.bytes.sum()))
    return adds in (None, live_totals[0]) and size in (None, live_totals[1])
