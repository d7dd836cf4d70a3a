"""Groups the log files that expire with a boundary checkpoint, and the files that are kept.

The groups contain only files whose names the parser recognises. All other files are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from delta_maintenance.operations.clean_log import CleanLogPlan, FileGroup, GroupKind
from delta_maintenance.operations.core.parquet_report import write_rows
from delta_maintenance.protocol.delta_log.file_names import LogFileKind
from delta_maintenance.protocol.delta_log.retention import checksummed_file, is_expired
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_file import LogEntry
from delta_maintenance.table.read.log_inventory import LogInventory


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFileAges:
    """Files without a version are kept if they are younger than this instant, in milliseconds since
    1970 UTC.
    """

    temporary_ms: int
    sidecar_ms: int


def outdated_groups(
    inventory: LogInventory,
    cut_off: int,
    *,
    ages: LogFileAges,
    referenced: Callable[[], frozenset[str] | None],
) -> tuple[FileGroup, ...]:
    """The files to delete if the history before the checkpoint of version `cut_off` is deleted.

    `referenced` returns the sidecars in use, or None if they cannot be determined; it is called
    only if a sidecar could be deleted.
    """
    entries = inventory.entries
    groups = [
        _by_version(kind, [entry for entry in entries if entry.file.kind in kinds], cut_off)
        for kind, kinds in _KINDS.items()
    ]
    deleted = {name for group in groups if group is not None for name in group.names}
    groups.append(_hadoop_checksums(entries, cut_off, deleted))
    groups.append(_temporary_files(entries, ages.temporary_ms))
    groups.append(
        _by_age(
            "guarded-commits",
            [entry for entry in entries if entry.file.kind in _GUARDED],
            ages.temporary_ms,
            "Delta Spark cannot overwrite their commits any more",
            "Delta Spark may still overwrite its commit",
        )
    )
    groups.append(_sidecars(entries, ages.sidecar_ms, referenced))
    return tuple(group for group in groups if group is not None)


def unknown_names(inventory: LogInventory) -> list[str]:
    """Returns the unknown names, which are kept."""
    return sorted(
        entry.file.name for entry in inventory.entries if entry.file.kind is LogFileKind.UNKNOWN
    )


_KINDS: dict[GroupKind, tuple[LogFileKind, ...]] = {
    "compactions": (LogFileKind.COMPACTION,),
    "commits": (LogFileKind.COMMIT,),
    "checksums": (LogFileKind.CHECKSUM,),
    "checkpoints": (
        LogFileKind.CLASSIC_CHECKPOINT,
        LogFileKind.MULTIPART_CHECKPOINT,
        LogFileKind.UUID_CHECKPOINT,
    ),
    "staged-commits": (LogFileKind.STAGED_COMMIT,),
}
_GUARDED = (LogFileKind.GUARDED_COPY, LogFileKind.GUARDED_MARK)
_BECAUSE: dict[GroupKind, tuple[str, str]] = {
    "compactions": (
        "they begin at or before the cut-off checkpoint, after which readers start",
        "it begins after the cut-off checkpoint",
    ),
    "commits": (
        "the cut-off checkpoint replaces all earlier ones",
        "it belongs to the cut-off checkpoint, and readers open both",
    ),
    "checksums": ("their versions are deleted", "its version is kept"),
    "checkpoints": (
        "no retained version needs them",
        "it is the cut-off checkpoint or a newer one",
    ),
    "staged-commits": (
        "they were published long ago, or never will be",
        "it is newer than the cut-off checkpoint",
    ),
}


def _by_version(kind: GroupKind, entries: Sequence[LogEntry], cut_off: int) -> FileGroup | None:
    in_order = sorted(entries, key=lambda entry: (entry.file.version or 0, entry.file.name))
    expired = [entry for entry in in_order if is_expired(entry.file, cut_off)]
    retained = [entry for entry in in_order if not is_expired(entry.file, cut_off)]
    because, kept_because = _BECAUSE[kind]
    return group_of(kind, expired, because, retained[:1], kept_because)


def _hadoop_checksums(
    entries: Iterable[LogEntry], cut_off: int, deleted: set[str]
) -> FileGroup | None:
    expired: list[LogEntry] = []
    retained: list[LogEntry] = []
    for entry in entries:
        file = checksummed_file(entry.file)
        if file is None:
            continue
        # If the file no longer exists, its checksum could only damage a later file of the same
        # name.
        (expired if file.name in deleted or is_expired(file, cut_off) else retained).append(entry)
    return group_of(
        "hadoop-checksums",
        expired,
        "Hadoop's checksums of files that are deleted or no longer exist",
        retained[:1],
        "its file is kept",
    )


def _temporary_files(entries: Iterable[LogEntry], young_ms: int) -> FileGroup | None:
    return _by_age(
        "temporary-files",
        [entry for entry in entries if entry.file.kind is LogFileKind.TEMPORARY],
        young_ms,
        "their writers ended more than a day ago",
        "its writer may still be running",
    )


def _sidecars(
    entries: Iterable[LogEntry], young_ms: int, referenced: Callable[[], frozenset[str] | None]
) -> FileGroup | None:
    sidecars = [entry for entry in entries if entry.file.kind is LogFileKind.SIDECAR]
    if not any(_is_older(entry, young_ms) for entry in sidecars):
        return None
    in_use = referenced()
    if in_use is None:
        return None
    return _by_age(
        "sidecars",
        [entry for entry in sidecars if entry.path not in in_use],
        young_ms,
        "no retained checkpoint refers to them, and no writer can still be about to",
        "the checkpoint that will refer to it may still be in progress",
    )


def _by_age(
    kind: GroupKind, entries: Iterable[LogEntry], young_ms: int, because: str, kept_because: str
) -> FileGroup | None:
    in_order = sorted(entries, key=lambda entry: (entry.status.modified_ms, entry.file.name))
    expired = [entry for entry in in_order if _is_older(entry, young_ms)]
    retained = [entry for entry in in_order if not _is_older(entry, young_ms)]
    return group_of(kind, expired, because, retained[:1], kept_because)


def _is_older(entry: LogEntry, young_ms: int) -> bool:
    # An impossible time is no evidence of the age.
    return 0 < entry.status.modified_ms < young_ms


def group_of(
    kind: GroupKind,
    expired: Sequence[LogEntry],
    because: str,
    retained: Sequence[LogEntry] = (),
    kept_because: str = "",
) -> FileGroup | None:
    """Returns the group of these files; None if there is none."""
    if not expired:
        return None
    return FileGroup(
        kind=kind,
        count=len(expired),
        bytes=sum(entry.status.size for entry in expired),
        first=expired[0].file.name,
        last=expired[-1].file.name,
        because=because,
        kept=retained[0].file.name if retained else None,
        kept_because=kept_because if retained else None,
        names=tuple(entry.file.name for entry in expired),
    )


def write_report(
    plan: CleanLogPlan,
    address: str,
    *,
    table: Store,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Writes the files that a plan deletes, in order of deletion, to a new Parquet file.

    Its columns are `kind`, as in the groups of the plan, and `name`, relative to `_delta_log`.
    `RefusedError` as in `write_rows`.
    """
    schema = pa.schema({"kind": pa.string(), "name": pa.string()})
    parts = [
        pa.table([pa.repeat(pa.scalar(group.kind), len(group.names)), group.names], schema=schema)
        for group in plan.groups
    ]
    rows = pa.concat_tables([schema.empty_table(), *parts])
    write_rows(rows, address, table=table, storage_options=storage_options)
