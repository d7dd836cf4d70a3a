"""The tasks of a vacuum on executors: list folders, collect references, find and delete files.

Listed paths and paths in the log are divided into buckets by the same hashes, so that each bucket
can be processed separately. Rows are those of `log_shares`: a label, an age by which
they are sorted, a kind, and a payload.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import DeltaMaintenanceError, RefusedError
from delta_maintenance.operations.holds.clones import Clone, CloneWatch
from delta_maintenance.operations.holds.kept_versions import require_no_new_keep
from delta_maintenance.operations.vacuum.candidates import (
    DeadFiles,
    ReasonTally,
    Search,
    Sum,
    directories_in,
    find_dead_files,
    group_digest,
    grouped,
    require_no_missing,
)
from delta_maintenance.operations.vacuum.deletion import Deletion, delete_data_files
from delta_maintenance.operations.vacuum.engine import first_covered
from delta_maintenance.operations.vacuum.references import FileReferences, take_references
from delta_maintenance.protocol.actions.paths import PathAudit, file_locations
from delta_maintenance.protocol.columns import Hashes, booleans, integers, rows_by_group, to_bools
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.vacuum import Mask, ProtectedPaths, checksum_owners, hash_paths
from delta_maintenance.spark.log_shares import (
    ShareRow,
    TableAddress,
    in_batches,
    share_rows,
    to_payload,
)
from delta_maintenance.spark.share_writer import gravest
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import STATUSES, TREE, EntryKind
from delta_maintenance.table.commit.concurrent_commits import read_concurrent_commit
from delta_maintenance.table.read.active_files import ActiveFiles, active_files
from delta_maintenance.table.read.segment import list_log

_ROWS_PER_PAYLOAD = 1 << 13
_REFERENCES, _LISTING = 0, 1
"""The order of rows: references of the log come before listed files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderListing:
    """Lists directories, each recursively or only its direct contents."""

    address: TableAddress
    search: Search
    buckets: int

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Lists directories, given as rows of `directory` and `deep`.

        Yields rows of `log_shares.SCHEMA`.
        """
        with self.address.store() as store:
            for batch in batches:
                for directory, deep in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                    yield from in_batches(self._rows(store, directory, deep))

    def _rows(self, store: Store, directory: str, deep: bool) -> Iterator[ShareRow]:
        if deep:
            levels = store.list_tree(directory, skip=self.search.rules.is_hidden_directory)
        else:
            levels = iter([self._level(store, directory)])
        for entries in levels:
            paths = pa.concat_arrays([pa.array([], pa.string()), *entries["path"].chunks])
            # A checksum file must be in the same bucket as its data file.
            for label, rows in _dealt(checksum_owners(paths), self.buckets):
                yield from _payloads(label, _LISTING, "listed", entries.take(integers(rows)))

    def _level(self, store: Store, directory: str) -> pa.Table:
        """Returns the contents of a directory, without directories that other tasks list."""
        level = store.list_level(directory)
        if level is None:
            return TREE.empty_table()
        is_directory = to_bools(pc.equal(level["kind"], int(EntryKind.DIRECTORY)).combine_chunks())
        names = level["path"].to_pylist()
        for row in np.flatnonzero(is_directory):
            hidden = self.search.rules.is_hidden_directory(names[row])
            is_directory[row] = not hidden and names[row] != directory
        return level.filter(booleans(~is_directory))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceTally:
    """The sums of a share of the log."""

    live_files: int
    live_bytes: int
    ageless_tombstones: int
    problem: str | None
    """The reason why no file may be deleted, as a clause; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareReferences:
    """The references of a share of the log after its replay."""

    roots: tuple[str, ...]
    deleted_before_ms: int
    commit_times: Mapping[int, int]
    checkpoint_age: int
    """The age of the actions of the checkpoint, which are the oldest ones."""
    holder: str | None
    """The holder that keeps the live files of the version; None for the version to vacuum."""
    buckets: int

    def find(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Converts rows of the log's shares, sorted by label and age, to rows for buckets."""
        for _, share in groupby(share_rows(batches), key=lambda row: row.label):
            yield from in_batches(self._rows(share))

    def _rows(self, share: Iterator[ShareRow]) -> Iterator[ShareRow]:
        references, audit = FileReferences.none(self.roots), PathAudit(self.roots[0])
        try:
            for files in self._standing(share):
                audit.add(files.adds, files.tombstones, key_hashes=files.add_hashes)
                if self.holder is not None:
                    files = ActiveFiles(files.adds, files.tombstones.slice(0, 0))
                take_references(
                    references,
                    files,
                    deleted_before_ms=self.deleted_before_ms,
                    commit_times=self.commit_times,
                )
                yield from self._protected_paths(files.adds)
            locations, names = references.in_use.hashes()
            in_retention = references.in_retention.hashes()
        except DeltaMaintenanceError as error:
            if error.retryable:
                raise
            payload = pickle.dumps(error)
            yield from (ShareRow(label, -1, "error", payload) for label in range(self.buckets))
            return
        if self.holder is not None:
            for label, *hashes in _hashes_by_bucket(locations, names, self.buckets):
                yield ShareRow(label, _REFERENCES, "held", pickle.dumps((self.holder, *hashes)))
            return
        for kind, paths, outside in (("in use", locations, names), ("in retention", *in_retention)):
            for label, *of_bucket in _hashes_by_bucket(paths, outside, self.buckets):
                yield ShareRow(label, _REFERENCES, kind, pickle.dumps(of_bucket))
        for expired in references.expired:
            yield from expired_rows(expired, self.buckets)
        tally = ReferenceTally(
            live_files=references.num_live,
            live_bytes=references.live_bytes,
            ageless_tombstones=references.ageless_tombstones,
            problem=audit.problem(),
        )
        yield ShareRow(0, _REFERENCES, "references", pickle.dumps(tally))

    def _standing(self, share: Iterator[ShareRow]) -> Iterator[ActiveFiles]:
        replay = FileReplay()
        errors = []
        for row in share:
            if row.is_notice:
                notice = row.notice()
                errors += [notice] if isinstance(notice, DeltaMaintenanceError) else []
                continue
            if errors:
                raise gravest(errors)
            files = row.files()
            remember = row.age < self.checkpoint_age
            yield active_files(files.adds, files.tombstones, replay, remember=remember)
        if errors:
            raise gravest(errors)

    def _protected_paths(self, adds: pa.Table) -> Iterator[ShareRow]:
        """Yields the live files, whose existence must be checked."""
        if self.holder is not None:
            return
        for paths in FileReferences.live_paths(adds):
            for label, rows in _dealt(file_locations(paths, root=self.roots[0]), self.buckets):
                table = pa.table({"path": paths.take(integers(rows))})
                yield from _payloads(label, _REFERENCES, "live", table)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTally:
    """The sums of a bucket, without lists of files."""

    tallies: tuple[ReasonTally, ...]
    kept: Mapping[str, int]
    held: Mapping[str, Sum]
    archived: Mapping[str, Sum]
    listed: int
    references: tuple[ReferenceTally, ...]
    old_directories: frozenset[str]
    held_directories: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSearch:
    """Finds the unreferenced files of a bucket."""

    address: TableAddress
    search: Search
    roots: tuple[str, ...]
    requires_all: bool
    has_directories: bool
    in_use: ProtectedPaths
    """Files that newer commits than the version that was read add."""
    in_retention: ProtectedPaths
    """Files that they, or commits within the retention, remove."""
    held: Mapping[str, ProtectedPaths | None]
    """The holders, with files beside those of their versions."""

    def find(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Converts rows for buckets, sorted by label and age, to rows of the kinds `dead` and
        `tally`.

        Temporary errors are raised, so that Spark retries the task; other errors become rows.
        """
        with self.address.store() as store:
            for label, rows in groupby(share_rows(batches), key=lambda row: row.label):
                yield from in_batches(self._rows(store, label, rows))

    def _rows(self, store: Store, label: int, rows: Iterator[ShareRow]) -> Iterator[ShareRow]:
        references = FileReferences.none(self.roots)
        entries: list[pa.Table] = []
        tallies: list[ReferenceTally] = []
        held = {holder: ProtectedPaths(self.roots) for holder in self.held}
        for row in rows:
            match row.kind:
                case "error":
                    yield ShareRow(label, 0, "error", bytes(row.payload))
                    return
                case "in use":
                    references.in_use.add_hashes(*pickle.loads(row.payload))
                case "in retention":
                    references.in_retention.add_hashes(*pickle.loads(row.payload))
                case "held":
                    holder, *hashes = pickle.loads(row.payload)
                    held[holder].add_hashes(*hashes)
                case "references":
                    tallies.append(pickle.loads(row.payload))
                case _:
                    table = pa.ipc.open_stream(row.payload).read_all()
                    if row.kind == "listed":
                        entries.append(table)
                    elif row.kind == "expired":
                        references.expired += table["location"].chunks
                    else:
                        references.live += table["path"].chunks
        references.in_use.update(self.in_use)
        references.in_retention.update(self.in_retention)
        for holder, paths in self.held.items():
            if paths is not None:
                held[holder].update(paths)
        references.held = list(held.items())
        try:
            if self.requires_all:
                require_no_missing(store, references, entries)
            dead = find_dead_files(store, entries, references, self.search)
        except DeltaMaintenanceError as error:
            if error.retryable:
                raise
            yield ShareRow(label, 0, "error", pickle.dumps(error))
            return
        yield from _payloads(label, 0, "dead", dead.files)
        yield ShareRow(label, 0, "tally", pickle.dumps(self._tally(dead, entries, tallies)))

    def _tally(
        self, dead: DeadFiles, entries: list[pa.Table], tallies: list[ReferenceTally]
    ) -> BucketTally:
        old_directories: set[str] = set()
        held: set[str] = set()
        if self.has_directories:
            old_directories, held = directories_in(entries, dead.files, self.search)
        return BucketTally(
            tallies=dead.tallies(),
            kept=dead.kept,
            held=dead.held,
            archived=dead.archived,
            listed=dead.listed,
            references=tuple(tallies),
            old_directories=frozenset(old_directories),
            held_directories=frozenset(held),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketDeletion:
    """Deletes the unreferenced files of a task, with the same guard as the local engine."""

    address: TableAddress
    version: int
    """Commits after this version are checked before every round."""
    partition_columns: frozenset[str]
    kept: frozenset[str]
    """The names of the kept versions in the log, which are compared before every round."""
    clones: tuple[Clone, ...]
    """The shallow clones, whose new commits are read before every round."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Deletes the files in rows of the kind `dead`.

        Yields one row of the kind `deletion` or `error`.
        """
        with self.address.store() as store:
            rows = list(share_rows(batches))
            if rows:
                yield from in_batches([self._delete(store, rows)])

    def _delete(self, store: Store, rows: list[ShareRow]) -> ShareRow:
        tables = [pa.ipc.open_stream(row.payload).read_all() for row in rows]
        files = pa.concat_tables(tables).select(STATUSES.names)
        done = Deletion()
        error: DeltaMaintenanceError | None = None
        try:
            for step in delete_data_files(store, files, watch=_CommitWatch(store, self)):
                done = step
        except DeltaMaintenanceError as raised:
            # Spark must not retry the task, because deleted files would be counted twice.
            error = raised
        return ShareRow(0, 0, "deletion", pickle.dumps((done, error)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveredFile:
    """Searches the unreferenced files of a task for one that is in a set."""

    protected: ProtectedPaths

    def find(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Converts rows of the kind `dead` to at most one row of the kind `covered`."""
        for row in share_rows(batches):
            path = first_covered(pa.ipc.open_stream(row.payload).read_all(), self.protected)
            if path is not None:
                yield from in_batches([ShareRow(0, 0, "covered", path.encode())])
                return


def expired_rows(locations: pa.BinaryArray, buckets: int) -> Iterator[ShareRow]:
    """Returns the rows of removed files for buckets."""
    for label, rows in _dealt(locations, buckets):
        table = pa.table({"location": locations.take(integers(rows))})
        yield from _payloads(label, _REFERENCES, "expired", table)


def paths_by_group(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Converts rows of the kind `dead` to rows of the kind `path`, labelled by the group."""
    yield from in_batches(
        row
        for batch in batches
        for dead in share_rows([batch])
        for row in _group_files(pa.ipc.open_stream(dead.payload).read_all())
    )


def _group_files(files: pa.Table) -> Iterator[ShareRow]:
    for group, rows in grouped(files["path"]):
        yield from _payloads(group, 0, "path", files.select(["path"]).take(integers(rows)))


def group_digests(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Converts rows of the kind `path`, sorted by label, to one row of kind `digest` per label."""
    for group, rows in groupby(share_rows(batches), key=lambda row: row.label):
        paths = [pa.ipc.open_stream(row.payload).read_all()["path"] for row in rows]
        yield from in_batches([ShareRow(group, 0, "digest", group_digest(paths))])


class _CommitWatch:
    """Follows the log without a snapshot. Any change of protocol or metadata ends the run."""

    def __init__(self, store: Store, deletion: BucketDeletion) -> None:
        self._store = store
        self._version = deletion.version
        self._columns = deletion.partition_columns
        self._came = ProtectedPaths(store.addresses)
        self.kept = deletion.kept
        self.clones = deletion.clones
        self._of_clones = CloneWatch(deletion.clones)

    def check(self) -> None:
        require_no_new_keep(self._store, self.kept)
        self._of_clones.take_new(self._came)
        listing = list_log(self._store, first_version=self._version + 1)
        for version in range(self._version + 1, max(listing.commits, default=self._version) + 1):
            entry = listing.commits.get(version)
            try:
                if entry is None:
                    raise FileNotFoundError
                commit = read_concurrent_commit(self._store, entry, partition_columns=self._columns)
            except FileNotFoundError:
                raise RefusedError(
                    "a commit made since the start of the vacuum no longer exists",
                    table=self._store.root,
                    version=version,
                    remedy="run again",
                ) from None
            self._came.add(commit.adds)
            self._came.add(commit.removes)
            self._version = version
            if commit.protocol is not None or commit.metadata is not None:
                raise RefusedError(
                    "the table's protocol or metadata has just changed",
                    table=self._store.root,
                    version=version,
                    remedy="run again",
                )

    def covers(self, paths: pa.StringArray) -> Mask:
        return self._came.covers(paths)


def _dealt(paths: pa.Array, buckets: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    return _by_bucket(hash_paths(paths), buckets)


def _by_bucket(
    hashes: npt.NDArray[np.uint64], buckets: int
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yields each bucket with its rows."""
    # The lowest bits select the shares of the log, so they are the same for all rows here.
    bucket = ((hashes >> np.uint64(20)) % np.uint64(buckets)).astype(np.int64)
    return rows_by_group(bucket, buckets)


def _hashes_by_bucket(
    locations: Hashes, names: Hashes, buckets: int
) -> Iterator[tuple[int, Hashes, Hashes]]:
    """Yields each bucket with the hashes of its locations; each gets all names."""
    none = np.empty(0, np.uint64)
    for label, rows in _by_bucket(locations, buckets):
        yield label, locations[rows], none
    if len(names):
        yield from ((label, none, names) for label in range(buckets))


def _payloads(label: int, age: int, kind: str, table: pa.Table) -> Iterator[ShareRow]:
    for start in range(0, table.num_rows, _ROWS_PER_PAYLOAD):
        yield ShareRow(label, age, kind, to_payload(table.slice(start, _ROWS_PER_PAYLOAD)))
