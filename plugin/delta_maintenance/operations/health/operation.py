"""Measures the health of a table, from its snapshot and the listing of its log. Opens no data file.

The cost: three listings, one pass over the snapshot's file actions in columns, the `commitInfo` of
the newest commits that no earlier measurement contains, and one request for each file of a
`FileSample`. If a version checksum contains the sizes of the live files and the log confirms it,
only tombstones are read, and a small part of the checkpoint for the sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from delta_maintenance import clock
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
    UnsupportedFeatureError,
    locating,
)
from delta_maintenance.operations.clean_log import LEAST_RETENTION as LEAST_LOG_RETENTION
from delta_maintenance.operations.health.commit_history import commit_series, commits_a_day
from delta_maintenance.operations.health.models import (
    BACKLOG_COMMITS,
    MOST_UNREPORTED,
    LogFiles,
    LogFilesKind,
    MaintenanceSeen,
    OldFiles,
    Refusal,
    SizeBucket,
    TableHealth,
)
from delta_maintenance.operations.health.stored_files import check_files
from delta_maintenance.operations.holds.kept_versions import read_kept_versions
from delta_maintenance.operations.holds.models import KeptVersion
from delta_maintenance.operations.vacuum import LEAST_RETENTION
from delta_maintenance.protocol.delta_log.file_names import LogFileKind
from delta_maintenance.protocol.delta_log.file_sample import FileSample
from delta_maintenance.protocol.delta_log.retention import (
    is_expired,
    midnight_before,
    newest_not_after,
)
from delta_maintenance.protocol.features.registry import (
    Operation,
    require_supported,
    supported_features,
    supports,
)
from delta_maintenance.protocol.row_tracking.row_ids import row_tracking_state
from delta_maintenance.protocol.schema.clustering import clustering_columns
from delta_maintenance.protocol.statistics.clustering import current_columns
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.evidence.overwritten_commits import describe_loss, states_of
from delta_maintenance.table.read.file_sums import FileSums, Instants, SumMemory, sum_files
from delta_maintenance.table.read.history import file_times
from delta_maintenance.table.read.log_inventory import LogInventory, take_inventory
from delta_maintenance.table.read.managed_log import ManagedStore, as_last_listed
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.writable import require_permitted

SMALL_FILE_BYTES = 32 << 20
"""The size below which a data file is small: opening it takes longer than reading it."""
_DAY_MS = timedelta(days=1) // timedelta(milliseconds=1)
MAX_COMMITS = 200
"""The default length of the series of commits."""


def measure(
    snapshot: Snapshot,
    *,
    now: datetime,
    log_retention: timedelta | None = None,
    vacuum_retention: timedelta | None = None,
    vacuumed_at: datetime | None = None,
    previous: TableHealth | None = None,
    max_commits: int = MAX_COMMITS,
    memory: SumMemory | None = None,
) -> TableHealth:
    """Measures the health of the table at the latest version.

    Deletable files are counted for the given retentions, by default those of `clean-log` and
    `vacuum`. `vacuumed_at` is the time of the last vacuum known to the caller, because the log need
    not contain it. `previous` is an earlier measurement of the same table, whose commits are not
    read again. `max_commits` bounds the series; 0 means no series. `memory` keeps the sums of files
    for the next measurement in this process, which then reads only the commits since, and asks for
    no other files. `now` also decides which files are asked for.
    """
    properties = snapshot.properties
    log_retention = log_retention or max(properties.log_retention, LEAST_LOG_RETENTION)
    vacuum_retention = vacuum_retention or max(properties.deleted_file_retention, LEAST_RETENTION)
    if previous is not None and previous.table_id != snapshot.metadata.id:
        previous = None
    earlier = previous.file_check if previous is not None else None
    sample = None
    if memory is None or memory.known is None:
        # A table that was replaced by an older copy of itself begins anew.
        is_later = earlier is not None and earlier.version <= snapshot.version
        newer_than = earlier.version if earlier is not None and is_later else -1
        sample = FileSample(seed=epoch_millis(now), newer_than=newer_than)
    # The numbers belong to one state of the catalog, and cost it one request.
    store = as_last_listed(snapshot.log.store)
    with locating(table=snapshot.table, version=snapshot.version):
        inventory = take_inventory(store)
        series = commit_series(
            snapshot, inventory.listing, max_commits=max_commits, previous=previous
        )
        logged = last_vacuum(series.maintenance)
        vacuumed = max((at for at in (logged, vacuumed_at) if at is not None), default=None)
        sums = sum_files(
            snapshot,
            small_bytes=SMALL_FILE_BYTES,
            instants=Instants(
                now=epoch_millis(now),
                expired_before=_before(now, properties.deleted_file_retention),
                reclaimable_before=_before(now, vacuum_retention),
                reclaimed_before=0 if vacuumed is None else _before(vacuumed, vacuum_retention),
            ),
            checksums=inventory.entries,
            memory=memory,
            sample=sample,
        )
        file_check = check_files(snapshot, sample, earlier)
        backlog = _publication_backlog(store)
    kept_versions, unreadable = _kept_versions(store)
    return TableHealth(
        table=snapshot.table,
        table_id=snapshot.metadata.id,
        measured_at=now,
        version=snapshot.version,
        timestamp=snapshot.timestamp,
        **_log(snapshot, inventory),
        **_expired_log_files(snapshot, inventory, now, log_retention),
        **_files(sums),
        **_metadata(snapshot),
        commits=series.points,
        commits_a_day=commits_a_day(series.points, now=now),
        spark_commits=series.spark_commits,
        maintenance=series.maintenance,
        **backlog,
        kept_versions=kept_versions,
        file_check=file_check,
        warnings=(
            *snapshot.warnings,
            *properties.problems,
            *series.warnings,
            *unreadable,
            *_overwritten(store, inventory),
            *_unasked_clean_up(snapshot, inventory),
            *_backlog_warnings(backlog),
            *(file_check.warnings if file_check is not None else ()),
        ),
    )


def last_vacuum(maintenance: tuple[MaintenanceSeen, ...]) -> datetime | None:
    """The time of the last completed vacuum in the log."""
    return next(
        (
            operation.timestamp
            for operation in maintenance
            if operation.operation == "VACUUM END" and operation.result == "COMPLETED"
        ),
        None,
    )


def _kept_versions(store: Store) -> tuple[tuple[KeptVersion, ...], tuple[str, ...]]:
    """Returns the kept versions in the log. Also returns a warning if they cannot be read."""
    try:
        return read_kept_versions(store), ()
    except RefusedError as error:
        return (), (str(error),)


def _overwritten(store: Store, inventory: LogInventory) -> Iterator[str]:
    """Yields a warning for each guarded commit that Delta Spark overwrote."""
    listing = inventory.listing
    for guard, state in states_of(store, listing.guarded, listing.commits):
        if state == "overwritten":
            lost = describe_loss(store, guard)
            yield f"version {guard.version}: {lost.problem}; run fsck, which says what to do"


def _unasked_clean_up(snapshot: Snapshot, inventory: LogInventory) -> Iterator[str]:
    """Warns of a clean-up of the log that the catalog of the table does not permit."""
    store, oldest = snapshot.log.store, min(inventory.listing.commits, default=0)
    if not supports(snapshot.protocol, "catalogManaged") or oldest == 0:
        return
    permitted = "unless its catalog permitted that"
    if isinstance(store, ManagedStore):
        if "METADATA_CLEANUP" in store.state.allowed_maintenance:
            return
        permitted = "which its catalog does not permit at present"
    yield (
        f"another writer deleted the commits before version {oldest}, {permitted}; Delta Spark up "
        "to 4.4.0 cleans up the logs of catalog-managed tables after its checkpoints"
    )


def _publication_backlog(store: Store) -> dict[str, Any]:
    if not isinstance(store, ManagedStore):
        return {}
    commits = store.state.commits
    return {
        "unpublished_commits": store.count_unpublished(),
        "unreported_commits": len(commits),
        "oldest_unreported_commit": _instant(commits[0].timestamp_ms if commits else None),
    }


def _backlog_warnings(backlog: Mapping[str, Any]) -> Iterator[str]:
    unreported = backlog.get("unreported_commits", 0)
    if unreported >= BACKLOG_COMMITS:
        waiting = (
            "so it refuses further ones, and writers wait"
            if unreported >= MOST_UNREPORTED
            else f"and from {MOST_UNREPORTED} on it refuses further ones"
        )
        yield (
            f"{unreported} commits are not reported to the catalog as published, {waiting}: "
            "run publish"
        )


def _log(snapshot: Snapshot, inventory: LogInventory) -> dict[str, Any]:
    segment, chosen, opened = (
        snapshot.log.segment,
        snapshot.log.segment.checkpoint,
        snapshot.log.checkpoint,
    )
    entries = chosen.entries if chosen is not None else ()
    sidecars = opened.sidecars if opened is not None else ()
    checkpoint_bytes = sum(entry.status.size for entry in entries)
    checkpoint_bytes += sum(sidecar.size_in_bytes for sidecar in sidecars)
    files: Counter[LogFilesKind] = Counter()
    sizes: Counter[LogFilesKind] = Counter()
    for entry in inventory.entries:
        kind = _KINDS.get(entry.file.kind, "others")
        files[kind] += 1
        sizes[kind] += entry.status.size
    oldest = segment.commits[0].status.modified_ms if segment.commits else None
    written = max((entry.status.modified_ms for entry in entries), default=None)
    return {
        "commits_since_checkpoint": len(segment.commits),
        "bytes_since_checkpoint": sum(entry.status.size for entry in segment.commits),
        "oldest_commit_since_checkpoint": _instant(oldest),
        "checkpoint_version": chosen.version if chosen is not None else None,
        "checkpoint_kind": opened.kind if opened is not None else None,
        "checkpoint_at": _instant(written),
        "checkpoint_bytes": checkpoint_bytes,
        "files_to_open": len(segment.tail) + len(entries) + len(sidecars),
        "bytes_to_open": sum(entry.status.size for entry in segment.tail) + checkpoint_bytes,
        "oldest_version": min(inventory.listing.commits, default=None),
        "log_files": tuple(
            LogFiles(kind=kind, files=files[kind], bytes=sizes[kind])
            for kind in dict.fromkeys((*_KINDS.values(), "others"))
            if files[kind]
        ),
        "log_bytes": sum(sizes.values()),
    }


def _expired_log_files(
    snapshot: Snapshot, inventory: LogInventory, now: datetime, retention: timedelta
) -> dict[str, Any]:
    """Estimates the files that `clean-log` would delete, without reading its boundary
    checkpoint.
    """
    cut_off = _cut_off(snapshot, inventory, now, retention)
    going = (
        []
        if cut_off is None
        else [e.status.size for e in inventory.entries if is_expired(e.file, cut_off)]
    )
    return {"expired_log_files": len(going), "expired_log_bytes": sum(going)}


def _cut_off(
    snapshot: Snapshot, inventory: LogInventory, now: datetime, retention: timedelta
) -> int | None:
    properties, listing = snapshot.properties, inventory.listing
    instant = midnight_before(now, retention)
    if instant is None or not properties.enable_expired_log_cleanup:
        return None
    times = file_times(listing, now_ms=epoch_millis(now))
    newest = newest_not_after(times, epoch_millis(instant))
    if newest is None:
        return None
    candidates = (c.version for c in listing.checkpoints if c.version in listing.commits)
    cut_off = max((version for version in candidates if version <= newest), default=None)
    protected = properties.require_checkpoint_protection_before_version
    return None if cut_off is None or cut_off < protected else cut_off


def _files(sums: FileSums) -> dict[str, Any]:
    num_files = sum(sums.files_by_size)
    return {
        "num_files": num_files,
        "total_bytes": sum(sums.bytes_by_size),
        "small_files": sums.small_files,
        "small_file_bytes": SMALL_FILE_BYTES,
        "small_file_share": _share(sums.small_files, num_files),
        "file_sizes": tuple(
            SizeBucket(from_bytes=1 << power >> 1, files=files, bytes=size)
            for power, (files, size) in enumerate(
                zip(sums.files_by_size, sums.bytes_by_size, strict=True)
            )
            if files
        ),
        "tombstones": sums.tombstones,
        "expired_tombstones": sums.expired_tombstones,
        "reclaimable_files": sums.reclaimable_files,
        "reclaimable_bytes": sums.reclaimable_bytes,
        "old_files": tuple(
            OldFiles(
                day=f"{clock.instant(old_files.day * _DAY_MS):%Y-%m-%d}",
                is_last=old_files.is_last,
                files=old_files.files,
                bytes=old_files.bytes,
            )
            for old_files in sums.old_files
        ),
        "files_with_deletion_vector": sums.with_deletion_vector,
        "deletion_vector_share": _share(sums.with_deletion_vector, num_files),
        "deleted_rows": sums.deleted_rows,
        "rows": sums.rows,
        "deleted_rows_share": None if sums.rows is None else _share(sums.deleted_rows, sums.rows),
        "checksum_version": sums.checksum_version,
    }


def _metadata(snapshot: Snapshot) -> dict[str, Any]:
    protocol, metadata, properties = snapshot.protocol, snapshot.metadata, snapshot.properties
    return {
        "min_reader_version": protocol.min_reader_version,
        "min_writer_version": protocol.min_writer_version,
        "features": tuple(sorted(supported_features(protocol))),
        "refused": tuple(_refusals(snapshot)),
        "row_tracking": row_tracking_state(protocol, metadata.configuration).value,
        "partition_columns": tuple(metadata.partition_columns),
        "clustering_columns": _clustering_names(snapshot),
        "log_retention": properties.log_retention,
        "deleted_file_retention": properties.deleted_file_retention,
        # Configurations from Parquet can contain nulls, which count as absent.
        "properties": {
            key: value for key, value in sorted(metadata.configuration.items()) if value is not None
        },
    }


def _clustering_names(snapshot: Snapshot) -> tuple[str, ...]:
    """Returns the names of the clustering columns; the stored ones if the table lacks a column."""
    domains = snapshot.domain_metadata
    try:
        columns = current_columns(snapshot.protocol, snapshot.metadata, domains)
    except DeltaMaintenanceError:
        return tuple(".".join(path) for path in clustering_columns(domains) or ())
    return tuple(column.name for column in columns)


def _refusals(snapshot: Snapshot) -> Iterator[Refusal]:
    for operation in (
        Operation.CHECKPOINT,
        Operation.COMPACT_LOG,
        Operation.CLEAN_LOG,
        Operation.VACUUM,
        Operation.COMMIT,
        Operation.CHANGE_METADATA,
    ):
        try:
            require_permitted(snapshot, operation)
            require_supported(snapshot.protocol, operation)
        except (UnsupportedFeatureError, CorruptTableError) as error:
            yield Refusal(operation=operation.value, problem=str(error))


def _share(number: int, total: int) -> float:
    return number / total if total else 0.0


def _before(instant: datetime, age: timedelta) -> int:
    """Returns milliseconds since 1970 UTC; 0 before the range of the calendar."""
    try:
        return max(0, epoch_millis(instant.astimezone(UTC) - age))
    except OverflowError:
        return 0


def _instant(epoch_ms: int | None) -> datetime | None:
    if epoch_ms is None:
        return None
    return clock.instant(epoch_ms)


_KINDS: Mapping[LogFileKind, LogFilesKind] = {
    LogFileKind.COMMIT: "commits",
    LogFileKind.CLASSIC_CHECKPOINT: "checkpoints",
    LogFileKind.MULTIPART_CHECKPOINT: "checkpoints",
    LogFileKind.UUID_CHECKPOINT: "checkpoints",
    LogFileKind.SIDECAR: "sidecars",
    LogFileKind.COMPACTION: "compactions",
    LogFileKind.CHECKSUM: "checksums",
    LogFileKind.STAGED_COMMIT: "staged-commits",
    LogFileKind.LAST_CHECKPOINT: "hints",
    LogFileKind.LAST_VACUUM_INFO: "hints",
    LogFileKind.TEMPORARY: "temporary-files",
}
