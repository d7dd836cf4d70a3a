"""The Spark engine of vacuum: executors list folders, find unreferenced files and delete them.

The driver holds the names of the log's files, the folders that are distributed to tasks, and a
tally per bucket, so its memory does not grow with the number of files. Only DataFrame operations
are used, so that the engine also runs on Spark Connect.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.vacuum.candidates import (
    GROUPS,
    ReasonTally,
    Sum,
    combined_digest,
    emptied_directories,
)
from delta_maintenance.operations.vacuum.deletion import Deletion, Watch
from delta_maintenance.operations.vacuum.engine import Found, Request
from delta_maintenance.operations.vacuum.references import REFERENCE_FIELDS, FileReferences
from delta_maintenance.protocol.delta_log.checkpoint_rows import FileActionLayout
from delta_maintenance.protocol.vacuum import ProtectedPaths, Reason
from delta_maintenance.spark import log_shares
from delta_maintenance.spark.log_shares import LogReading, by_label, log_parts, small_batches
from delta_maintenance.spark.session import JobSession, SparkEngine, executor_options
from delta_maintenance.spark.share_writer import gravest
from delta_maintenance.spark.vacuum_tasks import (
    BucketDeletion,
    BucketSearch,
    BucketTally,
    CoveredFile,
    FolderListing,
    ShareReferences,
    expired_rows,
    group_digests,
    paths_by_group,
)
from delta_maintenance.storage.core.listing import EntryKind, unclean
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.sidecar_writer import commit_times

_BYTES_PER_BUCKET = 64 << 20
"""Bytes of the log per bucket. An action for a file has some hundred bytes."""
_LEAST_BUCKETS = 2
_FOLDERS_PER_TASK = 4
_DEPTH = 2
"""The number of folder levels that are distributed to tasks one by one."""
_SAMPLES = 5


class SparkVacuum(SparkEngine):
    """A `VacuumEngine` on a Spark session."""

    def __init__(self, job: JobSession, *, log_bytes_per_bucket: int = _BYTES_PER_BUCKET) -> None:
        super().__init__(job)
        self._log_bytes_per_bucket = log_bytes_per_bucket

    def find(self, request: Request) -> Found:
        """See `VacuumEngine`. The list of files stays on the cluster until the session ends."""
        while True:
            try:
                return self._find(request)
            except UnusableCheckpointError as error:
                request = replace(request, snapshot=request.snapshot.avoiding(error))

    def _find(self, request: Request) -> Found:
        snapshot = request.snapshot
        buckets = max(_LEAST_BUCKETS, -(-snapshot.log.size_bytes // self._log_bytes_per_bucket))
        listing = self._listing(request, buckets).persist()
        with small_batches(self._spark):
            # Run the listing now, because it must be older than the log that is read.
            listing.groupBy("kind").count().collect()
        came = FileReferences.none(snapshot.log.store.addresses)
        latest = request.complete(came)
        rows = listing
        rows = rows.unionAll(self._share_recorded(came, buckets))
        rows = rows.unionAll(self._references(request, snapshot, buckets))
        for held in request.held:
            if held.version is not None:
                rows = rows.unionAll(
                    self._references(request, held.version, buckets, holder=held.holder)
                )
        search = BucketSearch(
            address=self._address,
            search=request.search,
            roots=snapshot.log.store.addresses,
            requires_all=request.requires_all,
            has_directories=isinstance(snapshot.log.store, LocalStore),
            in_use=came.in_use,
            in_retention=came.in_retention,
            held={held.holder: held.paths for held in request.held},
        )
        bucket_rows = by_label(rows, buckets).mapInArrow(search.find, log_shares.SCHEMA).persist()
        with small_batches(self._spark):
            tally_rows = bucket_rows.filter("kind <> 'dead'").collect()
        listing.unpersist()
        errors = [pickle.loads(row.payload) for row in tally_rows if row.kind == "error"]
        if errors:
            raise gravest(errors)
        tallies: list[BucketTally] = [pickle.loads(row.payload) for row in tally_rows]
        digest = self._digest(bucket_rows.filter("kind = 'dead'"), tasks=min(buckets, GROUPS))
        return self._found(bucket_rows, tallies, latest, snapshot, digest)

    def _found(
        self,
        bucket_rows: DataFrame,
        tallies: Sequence[BucketTally],
        latest: Snapshot,
        snapshot: Snapshot,
        digest: str,
    ) -> Found:
        references = [share for tally in tallies for share in tally.references]
        kept_counts: Counter[str] = Counter()
        held_back: dict[str, Sum] = {}
        archived: dict[str, Sum] = {}
        for tally in tallies:
            kept_counts.update(tally.kept)
            for sums, tally_sums in ((held_back, tally.held), (archived, tally.archived)):
                for name, files in tally_sums.items():
                    sums[name] = sums.get(name, Sum()) + files
        old_directories = set[str]().union(*(tally.old_directories for tally in tallies))
        held = set[str]().union(*(tally.held_directories for tally in tallies))
        dead = bucket_rows.filter("kind = 'dead'")
        return Found(
            latest=latest,
            problem=next((share.problem for share in references if share.problem), None),
            tallies=_together(tallies),
            paths_digest=digest,
            kept=dict(kept_counts),
            held=held_back,
            archived=archived,
            listed=sum(tally.listed for tally in tallies),
            directories=emptied_directories(old_directories, held),
            live_files=sum(share.live_files for share in references),
            live_bytes=sum(share.live_bytes for share in references),
            ageless_tombstones=sum(share.ageless_tombstones for share in references),
            batches=lambda: self._batches(dead),
            first_of=lambda protected: self._first_of(dead, protected),
            deletion=lambda watch: self._delete(dead, snapshot, watch),
        )

    def _listing(self, request: Request, buckets: int) -> DataFrame:
        task = FolderListing(address=self._address, search=request.search, buckets=buckets)
        folder_parts = self._folders(request)
        self._progress("folders listed", 0, len(folder_parts))
        folders = self._spark.createDataFrame(folder_parts, "directory string, deep boolean")
        tasks = max(1, len(folder_parts) // _FOLDERS_PER_TASK)
        return folders.repartition(tasks).mapInArrow(task.read, log_shares.SCHEMA)

    def _folders(self, request: Request) -> list[tuple[str, bool]]:
        """Returns the folders to list, each recursively or only its direct contents.

        Together, they cover the whole table.
        """
        store, rules = request.snapshot.log.store, request.search.rules
        done: list[tuple[str, bool]] = []
        level = [""]
        for _ in range(_DEPTH):
            below: list[str] = []
            for directory in level:
                entries = store.list_level(directory)
                if entries is None:
                    return [("", True)]
                done.append((directory, False))
                is_directory = pc.equal(entries["kind"], int(EntryKind.DIRECTORY))
                paths = entries["path"].filter(is_directory).combine_chunks()
                # No file with a name that the stores refuse is ever deleted.
                clean = paths.filter(pc.invert(unclean(paths)))
                below += [p for p in clean.to_pylist() if p != directory]
            level = [path for path in below if not rules.is_hidden_directory(path)]
            if len(level) > _FOLDERS_PER_TASK * _LEAST_BUCKETS:
                break
        return [*done, *((path, True) for path in level)]

    def _references(
        self, request: Request, snapshot: Snapshot, buckets: int, *, holder: str | None = None
    ) -> DataFrame:
        """Returns the references of a version as rows for buckets."""
        snapshot_parts, checkpoint_age = log_parts(snapshot)
        labels = tuple(range(buckets))
        reading = LogReading(
            address=self._address,
            parts=tuple(pickle.dumps(log_part) for log_part in snapshot_parts),
            labels=labels,
            partition_columns=frozenset(snapshot.log.physical_partition_columns),
            layout=FileActionLayout(stats_as_json=False, statistics_type=None),
            fields=REFERENCE_FIELDS,
        )
        task = ShareReferences(
            roots=snapshot.log.store.addresses,
            deleted_before_ms=request.deleted_before_ms,
            commit_times=commit_times(snapshot),
            checkpoint_age=checkpoint_age,
            holder=holder,
            buckets=buckets,
        )
        rows = self._spark.range(0, len(snapshot_parts), 1, len(snapshot_parts))
        shares = rows.mapInArrow(reading.read, log_shares.SCHEMA)
        return by_label(shares, buckets).mapInArrow(task.find, log_shares.SCHEMA)

    def _share_recorded(self, came: FileReferences, buckets: int) -> DataFrame:
        """Returns the files with unusual names that commits removed as rows for buckets."""
        rows = [row for locations in came.expired for row in expired_rows(locations, buckets)]
        return self._spark.createDataFrame(list(map(astuple, rows)), log_shares.SCHEMA)

    def _digest(self, dead: DataFrame, *, tasks: int) -> str:
        """Computes the digest of all paths, from one digest per group.

        A task holds one group at a time.
        """
        with small_batches(self._spark):
            rows = (
                by_label(dead.mapInArrow(paths_by_group, log_shares.SCHEMA), tasks)
                .mapInArrow(group_digests, log_shares.SCHEMA)
                .collect()
            )
        return combined_digest({row.label: bytes(row.payload) for row in rows})

    def _first_of(self, dead: DataFrame, protected: ProtectedPaths) -> str | None:
        search = CoveredFile(protected=protected)
        with small_batches(self._spark):
            rows = dead.mapInArrow(search.find, log_shares.SCHEMA).collect()
        return min((bytes(row.payload).decode() for row in rows), default=None)

    def _batches(self, dead: DataFrame) -> Iterator[pa.Table]:
        with small_batches(self._spark):
            for row in dead.select("payload").toLocalIterator():
                yield pa.ipc.open_stream(row.payload).read_all()

    def _delete(self, dead: DataFrame, snapshot: Snapshot, watch: Watch) -> Iterator[Deletion]:
        task = BucketDeletion(
            address=self._address,
            version=snapshot.version,
            partition_columns=frozenset(snapshot.log.physical_partition_columns),
            kept=watch.kept,
            clones=tuple(
                replace(
                    clone, storage_options=executor_options(clone.address, clone.storage_options)
                )
                for clone in watch.clones
            ),
        )
        with small_batches(self._spark):
            deletion_rows = dead.mapInArrow(task.run, log_shares.SCHEMA).collect()
        done = Deletion()
        errors: list[DeltaMaintenanceError] = []
        for row in deletion_rows:
            deletion, error = pickle.loads(row.payload)
            done.take(deletion)
            errors += [error] if error is not None else []
        yield done
        if errors:
            raise gravest(errors)


def _together(tallies: Sequence[BucketTally]) -> tuple[ReasonTally, ...]:
    together = []
    for reason in Reason:
        reason_tallies = [
            bucket_tally
            for tally in tallies
            for bucket_tally in tally.tallies
            if bucket_tally.reason is reason
        ]
        if reason_tallies:
            samples = sorted(
                sample for bucket_tally in reason_tallies for sample in bucket_tally.samples
            )[:_SAMPLES]
            count, size = (
                sum(bucket_tally.count for bucket_tally in reason_tallies),
                sum(bucket_tally.bytes for bucket_tally in reason_tallies),
            )
            together.append(ReasonTally(reason, count, size, tuple(samples)))
    return tuple(together)
