"""The `keep-version` operation: keeps a version readable under a name.

The version is opened, and its data files are looked for, before its name is written and again
afterwards: a clean-up that ran meanwhile may not have seen the name.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from delta_maintenance import clock
from delta_maintenance.errors import CorruptTableError, InvalidRequestError, RefusedError
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.holds.kept_versions import (
    read_around_damage,
    read_kept_version,
    release_kept_version,
    write_kept_version,
)
from delta_maintenance.operations.holds.models import KeptVersion, checked_name
from delta_maintenance.operations.keep_version import (
    Action,
    KeepVersionOptions,
    KeepVersionPlan,
    KeepVersionResult,
    Status,
)
from delta_maintenance.operations.vacuum.candidates import require_no_missing
from delta_maintenance.operations.vacuum.references import FileReferences
from delta_maintenance.protocol.actions.paths import file_locations
from delta_maintenance.protocol.features.registry import Operation
from delta_maintenance.quantities import duration_text
from delta_maintenance.storage.core.base import Put
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.writable import require_writable

_TIME_TRAVEL = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
_ADDS = {"add": ("path", "deletionVector"), "remove": ()}


def plan(
    snapshot: Snapshot, options: KeepVersionOptions, context: RunContext | None = None
) -> KeepVersionPlan:
    """Plans to keep a version, or to release one. Opens the version and looks for its files.

    Raises `VersionNotFoundError` if the version is not in the log, and `RefusedError` if it lacks
    data files, or if the name is that of another version.
    """
    context = context or RunContext()
    options = options.validated()
    checked_name(options.name)
    require_writable(snapshot, Operation.CLEAN_LOG)
    # A version can be kept under another name before a damaged file is deleted.
    stored, problems = read_around_damage(snapshot.log.store, options.name)
    stored_version = stored.get(options.name)
    if options.release:
        if options.keep is not None or options.at is not None or options.until is not None:
            raise InvalidRequestError(
                "a name is released without a version and a time", remedy="leave out --version --at"
            )
        action: Action = "release" if stored_version is not None else "none"
        kept, only_here = stored_version or KeptVersion(name=options.name), 0
        notes: tuple[str, ...] = ()
        reason = (
            f"version {kept.version} was kept as {options.name}"
            if stored_version is not None
            else f"no version is kept as {options.name}"
        )
    else:
        opened = _open_version(snapshot, options, stored_version, context.started)
        kept = KeptVersion(
            name=options.name, version=opened.version, until=options.until, why=options.why
        )
        only_here = _files_only_here(snapshot, opened)
        if stored_version is not None and stored_version.version != kept.version:
            raise RefusedError(
                f"version {stored_version.version} is kept as {options.name}",
                table=snapshot.table,
                version=kept.version,
                remedy="choose another name, or release it first",
            )
        action = (
            "none" if stored_version == kept else "keep" if stored_version is None else "change"
        )
        reason = (
            f"version {kept.version} is kept as {options.name} already"
            if action == "none"
            else f"version {kept.version} can be opened, and all of its data files exist"
        )
        if action == "change" and stored_version is not None:
            reason = f"{reason}; before, {stored_version}"
        notes = _notes(snapshot, opened, options.until)
    return KeepVersionPlan(
        table=snapshot.table,
        version=snapshot.version,
        planned_at=context.started,
        options=options,
        action=action,
        kept=kept,
        others=tuple(kept_version for name, kept_version in stored.items() if name != options.name),
        only_here=only_here,
        reason=reason,
        notes=(*snapshot.warnings, *problems, *notes),
    )


def apply(
    table: Table, plan: KeepVersionPlan, context: RunContext | None = None
) -> KeepVersionResult:
    """Writes or removes the name. Repeated runs do no harm.

    Raises `RefusedError` if another process kept another version under the name, or if files of the
    version were deleted meanwhile; the name is then removed again.
    """
    context = context or RunContext()
    store, kept_version = table.store, plan.kept
    if plan.action == "none":
        return _result(plan, "nothing-to-do", plan.reason)
    if plan.action == "release":
        release_kept_version(store, kept_version.name)
        return _result(plan, "released")
    replaces = plan.action == "change"
    put = write_kept_version(store, kept_version, made_at=context.now(), replace=replaces)
    if put is Put.EXISTS:
        # A lost attempt of the same task may have written the name.
        if read_kept_version(store, kept_version.name) == kept_version:
            return _result(plan, "nothing-to-do")
        raise RefusedError(
            f"another process has just kept a version as {kept_version.name}",
            table=table.uri,
            version=kept_version.version,
            remedy="run again to see it, or choose another name",
        )
    if not replaces:
        try:
            _files_only_here(table.snapshot(), table.snapshot(version=kept_version.version))
        except (CorruptTableError, InvalidRequestError, RefusedError):
            release_kept_version(store, kept_version.name)
            raise
    return _result(plan, "kept")


def _result(plan: KeepVersionPlan, status: Status, *notes: str) -> KeepVersionResult:
    return KeepVersionResult(
        table=plan.table,
        version=plan.version,
        status=status,
        kept=plan.kept,
        notes=(*notes, *plan.notes),
    )


def _open_version(
    snapshot: Snapshot,
    options: KeepVersionOptions,
    stored_version: KeptVersion | None,
    now: datetime,
) -> Snapshot:
    """Opens the version to keep."""
    if options.until is not None and options.until <= now:
        raise InvalidRequestError(
            f"{options.until:%Y-%m-%dT%H:%M:%S%z} is in the past", remedy="give a later end"
        )
    version = options.keep
    if version is None and options.at is None and stored_version is not None:
        # Without a version, the end or the purpose of a kept version is changed.
        version = stored_version.version
    if version is None and options.at is None:
        return snapshot
    return Table(snapshot.log.store).snapshot(version=version, timestamp=options.at)


def _files_only_here(latest: Snapshot, kept_snapshot: Snapshot) -> int:
    """Returns the number of data files of a version that the latest version does not need.

    Raises `RefusedError` if one of them does not exist.
    """
    if latest.version == kept_snapshot.version:
        return 0
    store = latest.log.store

    def live(snapshot: Snapshot) -> FileReferences:
        references = FileReferences.none(store.addresses)
        for batch in snapshot.log.scan(fields=_ADDS):
            references.live += FileReferences.live_paths(batch.adds)
        return references

    now, then = latest.avoiding_damage(live), kept_snapshot.avoiding_damage(live)
    needed = [
        pa.table({"path": file_locations(paths, root=store.root).cast(pa.string())})
        for paths in now.live
    ]
    try:
        require_no_missing(store, then, needed)
    except CorruptTableError as error:
        raise RefusedError(
            f"data files of the version have been deleted: {error.problem}",
            table=latest.table,
            version=kept_snapshot.version,
            file=error.file,
            remedy="keep a newer version",
        ) from error
    return len(then.missing([chunk for each in needed for chunk in each["path"].chunks]))


def _notes(snapshot: Snapshot, kept_snapshot: Snapshot, until: datetime | None) -> tuple[str, ...]:
    """Says what other writers may delete, which do not know the names, and which readers refuse the
    version.
    """
    properties = snapshot.properties
    notes = []
    retention = duration_text(properties.deleted_file_retention)
    ends = (
        None
        if kept_snapshot.timestamp is None
        else kept_snapshot.timestamp + properties.deleted_file_retention
    )
    if ends is None or until is None or until > ends:
        since = "" if ends is None else f"this one from {clock.text(ends)} on, "
        notes.append(
            f"Delta Spark 4.4 refuses versions that are older than {retention} "
            f"(delta.deletedFileRetentionDuration), {since}although nothing of them is "
            f"missing: set {_TIME_TRAVEL} to false in its session, or a longer retention, with "
            "which vacuums keep the removed files of all versions as much longer; deltalake reads "
            "them"
        )
    if properties.enable_expired_log_cleanup:
        notes.append(
            "other writers, such as Delta Spark, delete the log of versions older than "
            f"{duration_text(properties.log_retention)} (delta.logRetentionDuration) without "
            "regard to kept versions; set a longer one, or delta.enableExpiredLogCleanup to false"
        )
    notes.append(
        "a vacuum by another engine deletes files that were removed more than "
        f"{retention} ago "
        "(delta.deletedFileRetentionDuration)"
    )
    return tuple(notes)
