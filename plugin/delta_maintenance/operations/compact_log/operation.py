"""The `compact-log` operation: reconciles the commits after a checkpoint into fewer files.

A compaction adds no version and replaces no commit: readers may read it in place of the commits it
covers, and every reader still needs those in the log. It is verified before any reader can see it,
so a failure at any point leaves the table as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    VersionNotFoundError,
)
from delta_maintenance.operations.compact_log import (
    FAILED,
    CompactedWindow,
    CompactionWindow,
    CompactLogOptions,
    CompactLogPlan,
    CompactLogResult,
    WindowStatus,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.core.published import note_unpublished, publish_up_to
from delta_maintenance.protocol.delta_log.file_names import compaction_name
from delta_maintenance.protocol.features.registry import Operation
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry
from delta_maintenance.table.read.managed_log import as_last_listed
from delta_maintenance.table.read.segment import LogListing, list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.writable import require_writable
from delta_maintenance.table.write.log_compactor import (
    RangeEngine,
    compare_compaction,
    write_compaction,
)


def plan(
    snapshot: Snapshot, options: CompactLogOptions | None = None, context: RunContext | None = None
) -> CompactLogPlan:
    """Plans the compactions of this snapshot's log. Lists the log and reads nothing.

    Windows are adjacent, aligned at the commit after the newest checkpoint, and never overlap an
    existing compaction. Raises `UnsupportedFeatureError` if the table must not be written to, and
    `VersionNotFoundError` if the options request commits that the log does not have.
    """
    context = context or RunContext()
    options = (options or CompactLogOptions()).validated()
    require_writable(snapshot, Operation.COMPACT_LOG)
    listing = list_log(as_last_listed(snapshot.log.store))
    first_version, last_version = _range(snapshot, listing, options)
    windows, notes = _windows(listing, options, first_version, last_version)
    chosen, engine_reason = _engine(options, windows)
    if windows:
        reason = (
            f"{count_text(len(windows), 'window')} of up to "
            f"{count_text(options.commits_per_file, 'commit')} can be compacted, from version "
            f"{first_version} on{engine_reason}"
        )
    else:
        reason = (
            f"from version {first_version} on, fewer than "
            f"{count_text(options.commits_per_file, 'adjacent commit')} are not compacted"
        )
    return CompactLogPlan(
        table=snapshot.table,
        version=snapshot.version,
        planned_at=context.started,
        windows=windows,
        reason=reason,
        log_bytes=sum(window.log_bytes for window in windows),
        engine=chosen,
        notes=(*notes, *snapshot.warnings, *note_unpublished(snapshot)),
    )


def apply(
    table: Table,
    plan: CompactLogPlan,
    context: RunContext | None = None,
    *,
    snapshot: Snapshot | None = None,
) -> CompactLogResult:
    """Writes the planned compactions. Repeated and concurrent runs do no harm.

    Versions of a catalog-managed table that are not published are published first.

    `engine` reads the commits of a plan for Spark; a plan for this process needs none. `snapshot`
    is the snapshot of the plan, if it is still in memory, which saves opening it again. A damaged
    commit ends the run. If all windows up to there are refused, the first error is raised;
    otherwise the errors are in the Result. Failures of the store are always raised.
    """
    context = context or RunContext()
    if plan.is_noop:
        return CompactLogResult(
            table=plan.table,
            version=plan.version,
            status="nothing-to-do",
            engine=plan.engine,
            notes=(plan.reason, *plan.notes),
        )
    context.require_engine(plan)
    require_writable(snapshot or table.snapshot(), Operation.COMPACT_LOG)
    publish_up_to(table, plan.windows[-1].last_version, context)
    commits = _commits(table, plan, snapshot)
    done: list[CompactedWindow] = []
    errors: list[DeltaMaintenanceError] = []
    for window in plan.windows:
        try:
            done.append(_compact(table, window, commits, context.engine))
        except (RefusedError, CorruptTableError) as error:
            errors.append(error)
            done.append(_outcome(window, "refused", reason=str(error)))
            if isinstance(error, CorruptTableError):
                break
        except DeltaMaintenanceError as error:
            raise error.locate(table=table.uri, version=window.last_version) from error.__cause__
        if context.progress is not None:
            context.progress("windows", len(done), len(plan.windows))
    if len(errors) == len(done):
        raise errors[0].locate(table=table.uri) from errors[0].__cause__
    return CompactLogResult(
        table=plan.table,
        version=plan.version,
        status=_status(done),
        windows=tuple(done),
        bytes_written=sum(window.bytes_written for window in done),
        engine=plan.engine,
        notes=plan.notes,
    )


def _commits(
    table: Table, plan: CompactLogPlan, snapshot: Snapshot | None
) -> Mapping[int, LogEntry]:
    opened = snapshot.log.segment.commits if snapshot is not None else ()
    commits = {entry.file.version: entry for entry in opened if entry.file.version is not None}
    ends = [version for w in plan.windows for version in (w.first_version, w.last_version)]
    # A deleted commit is noticed when it is read, because the commits of a segment are adjacent.
    return commits if commits.keys() >= set(ends) else list_log(table.store).commits


def _range(snapshot: Snapshot, listing: LogListing, options: CompactLogOptions) -> tuple[int, int]:
    first_version, last_version = options.first_version, options.last_version
    if first_version is None:
        first_version = snapshot.log.segment.base_version + 1
    if last_version is None:
        last_version = snapshot.version
    if last_version > snapshot.version:
        raise VersionNotFoundError(
            f"version {last_version} is not published",
            table=snapshot.table,
            version=snapshot.version,
            remedy=f"compact up to version {snapshot.version}",
        )
    if first_version > last_version + 1:
        raise InvalidRequestError(
            f"the range from version {first_version} to version {last_version} is empty",
            table=snapshot.table,
            remedy="give a first version that is not after the last one",
        )
    missing = next(
        (v for v in range(first_version, last_version + 1) if v not in listing.commits), None
    )
    if missing is not None:
        raise VersionNotFoundError(
            f"commit {missing} is not in the log",
            table=snapshot.table,
            remedy=(
                "request retained commits: a compaction covers existing commits, not deleted ones"
            ),
        )
    return first_version, last_version


def _windows(
    listing: LogListing, options: CompactLogOptions, first_version: int, last_version: int
) -> tuple[tuple[CompactionWindow, ...], tuple[str, ...]]:
    notes: list[str] = []
    windows = []
    for start, end in _free(listing, first_version, last_version, notes):
        for begin in range(start, end + 1, options.commits_per_file):
            until = min(begin + options.commits_per_file - 1, end)
            complete = until - begin + 1 == options.commits_per_file
            if complete or (options.partial and until == last_version and until > begin):
                size = sum(listing.commits[v].status.size for v in range(begin, until + 1))
                windows.append(
                    CompactionWindow(first_version=begin, last_version=until, log_bytes=size)
                )
            else:
                notes.append(
                    f"commits {begin} to {until} are too few for a window"
                    + (", so they wait for more" if until == last_version else "")
                )
    return tuple(windows), tuple(notes)


def _engine(
    options: CompactLogOptions, windows: Sequence[CompactionWindow]
) -> tuple[Literal["local", "spark"], str]:
    """The engine that reads the commits, and the reason for it."""
    largest = max((window.log_bytes for window in windows), default=0)
    if options.engine == "spark":
        return "spark", "; Spark was requested"
    if options.engine == "auto" and largest >= options.auto_spark_bytes:
        return (
            "spark",
            f"; {size_text(largest)} of commits are more than one process should reconcile",
        )
    return "local", ""


def _free(
    listing: LogListing, first_version: int, last_version: int, notes: list[str]
) -> Iterator[tuple[int, int]]:
    """Yields the ranges between existing compactions."""
    begin = first_version
    for entry in sorted(listing.compactions, key=lambda e: (e.file.version, e.file.end_version)):
        start, end = entry.file.version, entry.file.end_version
        assert start is not None and end is not None
        if end < first_version or start > last_version:
            continue
        notes.append(f"{entry.file.name} exists, so its commits are skipped")
        if begin < start:
            yield begin, start - 1
        begin = max(begin, end + 1)
    if begin <= last_version:
        yield begin, last_version


def _compact(
    table: Table,
    window: CompactionWindow,
    listed: Mapping[int, LogEntry],
    engine: RangeEngine | None,
) -> CompactedWindow:
    name = compaction_name(window.first_version, window.last_version)
    path = f"{LOG_DIRECTORY}/{name}"
    try:
        commits = [listed[v] for v in range(window.first_version, window.last_version + 1)]
        try:
            written = write_compaction(table.store, commits, name, engine=engine)
        except FileExistsError:
            problem = compare_compaction(table.store, commits, name)
            status: WindowStatus = "differs" if problem else "already-there"
            return _outcome(window, status, path=path, reason=problem)
    except (KeyError, FileNotFoundError):
        return _outcome(window, "gone")
    if written is None:
        return _outcome(window, "empty")
    return CompactedWindow(
        first_version=window.first_version,
        last_version=window.last_version,
        status="written",
        path=path,
        bytes_written=written.size,
        num_adds=written.content.adds,
        num_removes=written.content.removes,
    )


def _outcome(
    window: CompactionWindow,
    status: WindowStatus,
    *,
    path: str | None = None,
    reason: str | None = None,
) -> CompactedWindow:
    return CompactedWindow(
        first_version=window.first_version,
        last_version=window.last_version,
        status=status,
        path=path,
        reason=reason,
    )


def _status(
    done: Sequence[CompactedWindow],
) -> Literal["written", "already-there", "nothing-to-do", "failed"]:
    statuses = {window.status for window in done}
    if statuses.intersection(FAILED):
        return "failed"
    if "written" in statuses:
        return "written"
    return "already-there" if "already-there" in statuses else "nothing-to-do"
