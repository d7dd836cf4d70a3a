"""The `clean-staged` operation: deletes staged files that a catalog-managed table no longer needs.

"Metadata Cleanup" has the sentence that permits it: "Also delete all the staged commit files having
version <= `cutOffCheckpoint`'s version". As a part of that clean-up it needs the permission of the
catalog ("Maintenance Operations on Catalog-managed Tables"). A copy of a published commit goes
before the cut-off checkpoint exists; other files stay until the newest checkpoint has their
versions.

No file above the latest version, and none of a version that the catalog still lists, is touched:
the catalog lists a version until it is reported as published. Nor is one that was reported less
than a day ago: readers that asked the catalog before still read the staged file, and a writer that
is not told the end of its commit sends it again for some minutes, which the catalog then compares
with the published one. The time of a report is not known. But the catalog refuses a commit while
`MOST_UNREPORTED` others are not reported, so a commit that was published a day ago proves that the
versions so many below it were reported before.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import locating
from delta_maintenance.operations.clean_log import LEAST_RETENTION, CleanedGroup
from delta_maintenance.operations.clean_log.expired_files import group_of
from delta_maintenance.operations.clean_staged import (
    CleanStagedOptions,
    CleanStagedPlan,
    CleanStagedResult,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.health.models import MOST_UNREPORTED
from delta_maintenance.protocol.delta_log.file_names import STAGED_COMMIT_DIRECTORY, LogFileKind
from delta_maintenance.protocol.delta_log.retention import minute_before
from delta_maintenance.protocol.features.registry import Operation
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_file import LogEntry
from delta_maintenance.table.read.managed_log import ManagedStore
from delta_maintenance.table.read.segment import list_entries, list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.store_clock import passed_time
from delta_maintenance.table.writable import require_writable
from delta_maintenance.table.write.log_deletion import delete_in_batches

_LEAST_AGE = timedelta(days=1)
_SHOWN_FAILURES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _StagedFile:
    """A staged file of a version that was published and reported more than a day ago."""

    entry: LogEntry
    published: LogEntry
    is_past_retention: bool

    @property
    def has_size_of_commit(self) -> bool:
        return self.entry.status.size == self.published.status.size


def plan(
    snapshot: Snapshot, options: CleanStagedOptions | None = None, context: RunContext | None = None
) -> CleanStagedPlan:
    """Plans which staged files to delete. Lists the log and the staged files, and reads none.

    Ages are counted up to the newest file of the log, so a wrong clock of this machine deletes
    nothing too early.

    Raises `UnsupportedFeatureError` if the catalog does not permit it.
    """
    context = context or RunContext()
    options = (options or CleanStagedOptions()).validated()
    now = context.started if options.as_of is None else min(options.as_of, context.started)
    staged = _find_old_files(snapshot, now)
    copies = [file.entry for file in staged if file.has_size_of_commit]
    rejected = [file.entry for file in staged if not file.has_size_of_commit]
    groups = (
        group_of("staged-commits", copies, "their commits were reported more than a day ago"),
        group_of("rejected-commits", rejected, "other commits of their versions are published"),
    )
    return CleanStagedPlan(
        table=snapshot.table,
        version=snapshot.version,
        planned_at=now,
        options=options,
        groups=tuple(group for group in groups if group is not None),
        reason=_reason(snapshot, staged),
        notes=snapshot.warnings,
    )


def apply(
    table: Table, plan: CleanStagedPlan, context: RunContext | None = None
) -> CleanStagedResult:
    """Deletes the planned files that a new plan would also delete, and that are copies of their
    published commits or older than the log retention. Concurrent runs do no harm.
    """
    if plan.is_noop:
        return CleanStagedResult(
            table=plan.table,
            version=plan.version,
            status="nothing-to-do",
            notes=(plan.reason, *plan.notes),
        )
    with locating(table=table.uri):
        staged = {
            file.entry.file.name: file
            for file in _find_old_files(table.snapshot(), plan.planned_at)
        }
        groups: list[CleanedGroup] = []
        failures: dict[str, str] = {}
        for group in plan.groups:
            files = [staged[name] for name in group.names if name in staged]
            names = _deletable_names(table.store, files)
            deleted = 0
            for count, errors in delete_in_batches(table.store, names):
                deleted += count
                failures |= {path: error.problem for path, error in errors.items()}
                if errors:
                    break
            size = group.bytes if deleted == group.count else 0
            groups.append(
                CleanedGroup(kind=group.kind, planned=group.count, deleted=deleted, bytes=size)
            )
            if failures:
                break
    return CleanStagedResult(
        table=plan.table,
        version=plan.version,
        status="partly" if failures else "cleaned",
        groups=tuple(groups),
        failures=tuple(f"{path}: {why}" for path, why in failures.items())[:_SHOWN_FAILURES],
        failed=len(failures),
        notes=plan.notes,
    )


def _find_old_files(snapshot: Snapshot, now: datetime) -> list[_StagedFile]:
    """Returns the staged files of versions that were published and reported more than a day ago. A
    file whose size shows that it is no copy must also be older than the log retention, and not
    above the checkpoint.

    The catalog was asked when the snapshot was opened. A version that it did not list then was
    reported earlier.
    """
    require_writable(snapshot, Operation.CLEAN_STAGED)
    if not isinstance(snapshot.log.store, ManagedStore):
        return []
    store, passed = snapshot.log.store.at_last_listing(), passed_time(snapshot, now)
    staged = [*list_entries(store, STAGED_COMMIT_DIRECTORY)]
    commits, state = list_log(store).commits, store.state
    listed_versions = {commit.version for commit in state.commits}
    retention = max(snapshot.properties.log_retention, LEAST_RETENTION)
    before = minute_before(passed, retention)
    is_unreadable = any("logRetention" in problem for problem in snapshot.properties.problems)
    retention_ms = 0 if before is None or is_unreadable else epoch_millis(before)
    old_ms = epoch_millis(passed - _LEAST_AGE)
    old_versions = [
        version
        for version, commit in commits.items()
        if version not in listed_versions and 0 < commit.status.modified_ms < old_ms
    ]
    # The catalog has listed no version up to this one since then.
    newest_version = max(old_versions, default=-1) - MOST_UNREPORTED
    checkpoint = snapshot.log.segment.checkpoint
    # A published commit that was damaged may have its only good copy among the rejected ones.
    cut_off = -1 if checkpoint is None else checkpoint.version
    old_files = []
    for entry in staged:
        version = entry.file.version
        if entry.file.kind is not LogFileKind.STAGED_COMMIT or version is None:
            continue
        if version not in commits or version > newest_version:
            continue
        times = (entry.status.modified_ms, commits[version].status.modified_ms)
        file = _StagedFile(
            entry=entry,
            published=commits[version],
            is_past_retention=version <= cut_off and 0 < min(times) <= max(times) < retention_ms,
        )
        if file.is_past_retention or file.has_size_of_commit:
            old_files.append(file)
    return old_files


def _deletable_names(store: Store, files: Sequence[_StagedFile]) -> list[str]:
    """Returns the names of the files that are past the log retention, or copies of their published
    commits.
    """

    def is_deletable(file: _StagedFile) -> bool:
        if file.is_past_retention:
            return True
        try:
            return _digest(store, file.entry.path) == _digest(store, file.published.path)
        except FileNotFoundError:
            # Another process has deleted one of them.
            return False

    with ThreadPoolExecutor(store.parallel_reads) as pool:
        checked = zip(files, pool.map(is_deletable, files), strict=True)
        return [file.entry.file.name for file, deletable in checked if deletable]


def _digest(store: Store, path: str) -> bytes:
    digest = sha256()
    with store.open(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.digest()


def _reason(snapshot: Snapshot, staged: Sequence[_StagedFile]) -> str:
    if not isinstance(snapshot.log.store, ManagedStore):
        return (
            "the commits of the table do not go through a catalog; clean-log deletes staged files"
        )
    if not staged:
        return f"no staged file below the newest {MOST_UNREPORTED} published versions is old enough"
    return "their versions were published and reported to the catalog more than a day ago"
