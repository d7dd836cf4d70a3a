"""The `clean-log` operation: deletes history that the retention of the table no longer requires.

Implements "Metadata Cleanup", and keeps more files where Delta Spark does. History is deleted
before one boundary checkpoint, which is read completely first. The oldest commits are deleted first
and the files that they depend on after them, so that every retained version can be opened whenever
the clean-up stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from delta_maintenance import clock
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import (
    CorruptTableError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
    VersionNotFoundError,
    locating,
)
from delta_maintenance.operations.clean_log import (
    LEAST_RETENTION,
    CleanedGroup,
    CleanLogOptions,
    CleanLogPlan,
    CleanLogResult,
    FileGroup,
)
from delta_maintenance.operations.clean_log.compatible_checkpoint import (
    lacks_classic_name,
    write_compatible_checkpoint,
)
from delta_maintenance.operations.clean_log.expired_files import (
    LogFileAges,
    outdated_groups,
    unknown_names,
    write_report,
)
from delta_maintenance.operations.core.context import Prepared, RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.holds.find import find_holds
from delta_maintenance.operations.holds.hold import Holds, StorageOptions
from delta_maintenance.operations.holds.kept_versions import require_no_new_keep
from delta_maintenance.operations.holds.models import HeldBack
from delta_maintenance.protocol.actions.file_columns import REMOVE_TYPES, empty
from delta_maintenance.protocol.delta_log.retention import midnight_before, minute_before
from delta_maintenance.protocol.delta_log.version_checksum import Tally
from delta_maintenance.protocol.features.registry import Operation
from delta_maintenance.quantities import duration_text
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.history import file_times, newest_commit_not_after, recorded_time
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.log_inventory import (
    LogInventory,
    SoundCheckpoint,
    newest_sound_checkpoint,
    referenced_sidecars,
    require_every_commit,
    take_inventory,
)
from delta_maintenance.table.read.segment import (
    CheckpointFiles,
    LogListing,
    hinted_version,
    list_log,
)
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.store_clock import require_same_clock
from delta_maintenance.table.writable import require_writable
from delta_maintenance.table.write.log_deletion import delete_in_batches, lead_hint_to

_YOUNG = timedelta(days=1)
_PLAN_LIFE = timedelta(hours=1)
_SHOWN_FAILURES = 20


def plan(
    snapshot: Snapshot, options: CleanLogOptions | None = None, context: RunContext | None = None
) -> CleanLogPlan:
    """Plans the clean-up of the log of the latest snapshot. Reads the boundary checkpoint, deletes
    nothing.

    Raises `UnsupportedFeatureError` or `RefusedError` if the log must not be cleaned up, and
    `CorruptTableError` if retained commits are missing.
    """
    context = context or RunContext()
    options = (options or CleanLogOptions()).validated()
    return _Decision(snapshot, options, context.started, context.storage_options).plan()


def apply(table: Table, plan: CleanLogPlan, context: RunContext | None = None) -> CleanLogResult:
    """Deletes the planned files that a new plan would also delete. Concurrent runs do no harm.

    A plan is valid for an hour. Raises `RefusedError`, before anything is deleted, if the plan is
    older, if the log was replaced, or if the clocks of this machine and of the store differ.
    """
    context = context or RunContext()
    if plan.is_noop:
        return CleanLogResult(
            table=plan.table,
            version=plan.version,
            status="nothing-to-do",
            oldest_version=plan.oldest_version,
            held=plan.held,
            notes=(plan.reason, *plan.notes),
        )
    with locating(table=table.uri):
        return _CleanupRun(table, plan, context).run()


def prepare(
    table: Table, options: CleanLogOptions, context: RunContext
) -> Prepared[CleanLogPlan, CleanLogResult]:
    """Plans, and writes the report that the context requests."""
    planned = plan(context.snapshot_of(table), options, context)
    if context.report is not None:
        write_report(
            planned,
            context.report,
            table=table.store,
            storage_options=context.storage_options(context.report),
        )
    return Prepared(plan=planned, apply=partial(apply, table, planned, context))


class _Decision:
    """The survey of a log, and the resulting plan."""

    def __init__(
        self,
        snapshot: Snapshot,
        options: CleanLogOptions,
        now: datetime,
        storage_options: StorageOptions,
    ) -> None:
        self.storage_options = storage_options
        self.snapshot = snapshot
        self.options = options
        self.now = now
        self.as_of = min(now, options.as_of) if options.as_of is not None else now
        self.notes: list[str] = []
        self.instant: datetime | None = None
        self.commit: int | None = None
        self.found: SoundCheckpoint | None = None
        """The cut-off checkpoint."""
        self.holds = Holds()
        self.held: tuple[HeldBack, ...] = ()

    def plan(self) -> CleanLogPlan:
        snapshot = self.snapshot
        _require_cleanable(snapshot)
        if not snapshot.properties.enable_expired_log_cleanup:
            return self._nothing("the table sets delta.enableExpiredLogCleanup to false")
        rounded = minute_before if self.options.to_the_minute else midnight_before
        self.instant = rounded(self.as_of, self._retention())
        if self.instant is None:
            return self._nothing("the retention exceeds the range of the calendar")
        inventory = take_inventory(snapshot.log.store)
        listing = inventory.listing
        times = file_times(listing, now_ms=epoch_millis(self.now))
        self.commit = newest_commit_not_after(
            snapshot, listing, times, instant_ms=epoch_millis(self.instant)
        )
        if self.commit is None:
            self._note_oldest(times, listing)
            return self._nothing(f"no commit is as old as {clock.text(self.instant)}")
        self._stop_at_holds(inventory, self.commit)
        checkpoint, passed_over = newest_sound_checkpoint(
            snapshot.log.store, listing, version=self.commit
        )
        self.notes.extend(passed_over)
        self.found = checkpoint
        if checkpoint is None:
            return self._nothing(
                f"no checkpoint up to version {self.commit}, which "
                f"{'is held' if self.held else f'was current at {clock.text(self.instant)}'}, is "
                "complete and readable"
            )
        cut_off = checkpoint.checkpoint.files
        protected = snapshot.properties.require_checkpoint_protection_before_version
        if cut_off.version < protected:
            return self._nothing(
                f"checkpoints before version {protected} are protected, and the history before it "
                f"may only be deleted as a whole; the cut-off checkpoint is that of version "
                f"{cut_off.version}"
            )
        require_every_commit(listing, cut_off.version, snapshot.version)
        groups = outdated_groups(
            inventory,
            cut_off.version,
            ages=self._ages(),
            referenced=lambda: self._sidecars_in_use(listing, cut_off.version),
        )
        if unknown := unknown_names(inventory):
            self.notes.append(
                f"{count_text(len(unknown), 'file')} with unknown names kept, such as {unknown[0]}"
            )
        if not groups:
            return self._nothing(f"no file is older than {cut_off.name}", cut_off)
        ends_history = any(group.kind in ("commits", "checkpoints") for group in groups)
        if ends_history:
            self._compare(checkpoint)
        hint = hinted_version(snapshot.log.store)
        current = f"was current at {clock.text(self.instant)}"
        return self._plan(
            f"{cut_off.name} is the newest complete and readable checkpoint up to version "
            f"{self.commit}, which {'is held' if self.held else current}",
            cut_off,
            groups=groups,
            needs_classic_name=ends_history and lacks_classic_name(cut_off, listing),
            stale_hint=hint if hint is not None and hint < cut_off.version else None,
        )

    def _stop_at_holds(self, inventory: LogInventory, commit: int) -> None:
        """Keeps the log from the oldest held version on."""
        options = self.options
        self.holds = find_holds(
            self.snapshot,
            options.holders.and_reading(options.streams, options.last_read),
            now=self.as_of,
            storage_options=self.storage_options,
        )
        self.notes.extend(self.holds.notes)
        holding = [hold for hold in self.holds.holds if hold.first < commit]
        if not holding:
            return
        sizes = [
            (entry.file.version, entry.status.size)
            for entry in inventory.entries
            if entry.file.version is not None and entry.file.version < commit
        ]
        for hold in holding:
            held = [size for version, size in sizes if version >= hold.first]
            self.held += (HeldBack.by(hold, files=len(held), size=sum(held)),)
        self.commit = min(hold.first for hold in holding)

    def _compare(self, checkpoint: SoundCheckpoint) -> None:
        """Compares the cut-off checkpoint with the files that the history before it leaves.

        Nothing could show a difference after that history is deleted.
        """
        cut_off, store = checkpoint.checkpoint.files, self.snapshot.log.store
        try:
            other = Table(store).snapshot_without(cut_off.name, version=cut_off.version)
            left = other.avoiding_damage(_live)
        except (CorruptTableError, UnsupportedFeatureError, VersionNotFoundError) as error:
            self.notes.append(
                f"{cut_off.name} was not compared with the history before it: {error.problem}"
            )
            return
        if left != checkpoint.live:
            raise CorruptTableError(
                f"the checkpoint has {count_text(checkpoint.live.adds, 'file')} "
                f"of {checkpoint.live.size} "
                f"bytes, and the history before it leaves "
                + (
                    "other ones"
                    if (left.adds, left.size) == (checkpoint.live.adds, checkpoint.live.size)
                    else f"{count_text(left.adds, 'file')} of {left.size} bytes"
                ),
                table=self.snapshot.table,
                version=cut_off.version,
                file=f"{LOG_DIRECTORY}/{cut_off.name}",
                remedy="run fsck, which names the files; until then the log is kept",
            )

    def _retention(self) -> timedelta:
        of_table = self.snapshot.properties.log_retention
        least = max(of_table, LEAST_RETENTION)
        if of_table < least:
            self.notes.append(
                f"delta.logRetentionDuration is {duration_text(of_table)}; files younger than "
                f"{duration_text(least)} are kept nevertheless"
            )
        requested = self.options.log_retention
        if requested is None:
            return least
        if requested < least and not (
            self.options.allow_short_retention and self.options.no_other_writers
        ):
            raise self.snapshot.refusal(
                f"a log retention of {duration_text(requested)} is shorter than "
                f"{duration_text(least)}",
                "keep the longer one, or give --allow-short-retention --no-other-writers",
            )
        return requested

    def _note_oldest(self, times: Mapping[int, int], listing: LogListing) -> None:
        """Says which time of the oldest commit keeps it."""
        if not times:
            return
        oldest = min(times)
        file_time = f"the file of the oldest commit, {oldest}, is from {_time_text(times[oldest])}"
        recorded = recorded_time(self.snapshot.log.store, listing.commits[oldest])
        if recorded is not None and recorded > times[oldest]:
            self.notes.append(
                f"{file_time}, and the commit itself states {_time_text(recorded)}: the later time "
                "counts"
            )
        else:
            self.notes.append(
                f"{file_time}; the files of a copied table are only as old as the copy"
            )

    def _ages(self) -> LogFileAges:
        midnight = midnight_before(self.as_of, _YOUNG)
        return LogFileAges(
            temporary_ms=epoch_millis(self.as_of - _YOUNG),
            sidecar_ms=epoch_millis(midnight) if midnight is not None else 0,
        )

    def _sidecars_in_use(self, listing: LogListing, cut_off: int) -> frozenset[str] | None:
        try:
            return referenced_sidecars(self.snapshot.log.store, listing, oldest=cut_off)
        except UnusableCheckpointError as error:
            self.notes.append(
                f"no sidecar is deleted: {error.file} cannot be read: {error.problem}"
            )
            return None

    def _nothing(self, reason: str, cut_off: CheckpointFiles | None = None) -> CleanLogPlan:
        return self._plan(reason, cut_off, groups=())

    def _plan(
        self,
        reason: str,
        cut_off: CheckpointFiles | None,
        *,
        groups: tuple[FileGroup, ...],
        needs_classic_name: bool = False,
        stale_hint: int | None = None,
    ) -> CleanLogPlan:
        return CleanLogPlan(
            table=self.snapshot.table,
            version=self.snapshot.version,
            planned_at=self.now,
            options=self.options,
            cut_off_instant=self.instant,
            cut_off_commit=self.commit,
            oldest_version=cut_off.version if cut_off is not None else None,
            cut_off_checkpoint=cut_off.name if cut_off is not None else None,
            held=self.held,
            groups=groups,
            needs_classic_name=needs_classic_name,
            stale_hint=stale_hint,
            reason=reason,
            notes=tuple(self.notes),
        )


class _CleanupRun:
    """One execution of a plan."""

    def __init__(self, table: Table, plan: CleanLogPlan, context: RunContext) -> None:
        self.table = table
        self.planned = plan
        self.now = context.now()
        self.new_id = context.new_id
        self.progress = context.progress
        self.storage_options = context.storage_options
        self.kept: frozenset[str] = frozenset()
        """The names of the kept versions in the log that are known."""
        self.groups: list[CleanedGroup] = []
        self.failures: dict[str, StorageError] = {}
        self.notes = list(plan.notes)

    def run(self) -> CleanLogResult:
        planned, store = self.planned, self.table.store
        self._require_young()
        # A reader that has moved on since does not change the cut-off.
        holders = planned.options.holders.as_planned(HeldBack.versions(planned.held))
        options = replace(planned.options, holders=holders)
        decision = _Decision(
            self.table.snapshot(), options, planned.planned_at, self.storage_options
        )
        again = decision.plan()
        self.kept = decision.holds.stored
        if decision.found is None or again.cut_off_checkpoint != planned.cut_off_checkpoint:
            raise RefusedError(
                f"the log would now be cut off at {again.cut_off_checkpoint or 'no checkpoint'}, "
                f"not at {planned.cut_off_checkpoint} as planned",
                remedy="plan again",
            )
        require_same_clock(store, self.now, new_id=self.new_id, planned_at=planned.planned_at)
        compatible = None
        if again.needs_classic_name:
            snapshot = self.table.snapshot(version=again.oldest_version)
            compatible = write_compatible_checkpoint(snapshot, new_id=self.new_id)
        hint_updated = lead_hint_to(store, decision.found)
        still = {group.kind: set(group.names) for group in again.groups}
        for group in planned.groups:
            names = [name for name in group.names if name in still.get(group.kind, ())]
            if group.kind == "sidecars":
                names = self._unused_sidecars(names, decision.found.checkpoint.files.version)
            if not self._delete(group, names):
                break
        return CleanLogResult(
            table=planned.table,
            version=planned.version,
            status="partly" if self.failures else "cleaned",
            oldest_version=planned.oldest_version,
            held=planned.held,
            groups=tuple(self.groups),
            failures=tuple(f"{path}: {error.problem}" for path, error in self.failures.items())[
                :_SHOWN_FAILURES
            ],
            failed=len(self.failures),
            compatible_checkpoint=compatible,
            hint_updated=hint_updated,
            notes=tuple(self.notes),
        )

    def _require_young(self) -> None:
        age = self.now - self.planned.planned_at
        if not -_PLAN_LIFE < age <= _PLAN_LIFE:
            raise RefusedError(
                f"the plan was made {abs(age)} {'ago' if age > timedelta() else 'from now'}",
                remedy="plan again: a plan is valid for an hour",
            )

    def _delete(self, group: FileGroup, names: list[str]) -> bool:
        """Returns whether all of them were deleted."""
        deleted = 0
        require_no_new_keep(self.table.store, self.kept)
        for removed, kept in delete_in_batches(self.table.store, names):
            deleted += removed
            self.failures.update(kept)
            if self.progress is not None:
                self.progress(group.kind, deleted, len(names))
            if kept:
                break
        size = group.bytes if deleted == group.count else 0
        self.groups.append(
            CleanedGroup(kind=group.kind, planned=group.count, deleted=deleted, bytes=size)
        )
        return not self.failures

    def _unused_sidecars(self, names: list[str], cut_off: int) -> list[str]:
        """Returns the sidecars that may still be deleted, given checkpoints newer than the plan."""
        try:
            listing = list_log(self.table.store)
            in_use = referenced_sidecars(self.table.store, listing, oldest=cut_off)
        except UnusableCheckpointError as error:
            self.notes.append(
                f"no sidecar was deleted: {error.file} cannot be read: {error.problem}"
            )
            return []
        return [name for name in names if f"{LOG_DIRECTORY}/{name}" not in in_use]


def _time_text(epoch_ms: int) -> str:
    return clock.text(clock.instant(epoch_ms))


def _live(snapshot: Snapshot) -> Tally:
    fields = {"add": ("path", "deletionVector", "size"), "remove": ("path", "deletionVector")}
    batches = snapshot.log.scan(fields=fields)
    return Tally.total(Tally.of(batch.adds, empty(REMOVE_TYPES)) for batch in batches)


def _require_cleanable(snapshot: Snapshot) -> None:
    require_writable(snapshot, Operation.CLEAN_LOG)
    properties = snapshot.properties
    unread = [problem for problem in properties.problems if problem.startswith(_STEERING)]
    if unread:
        raise snapshot.refusal(f"a property cannot be read: {unread[0]}", "correct the property")
    if properties.log_retention < properties.deleted_file_retention:
        raise snapshot.refusal(
            f"delta.logRetentionDuration is {duration_text(properties.log_retention)}, which is "
            "shorter than delta.deletedFileRetentionDuration, "
            f"{duration_text(properties.deleted_file_retention)}",
            "set the former to at least the latter",
        )
    if snapshot.log.state.unknown_actions:
        names = ", ".join(sorted(snapshot.log.state.unknown_actions))
        raise snapshot.refusal(
            f"the log contains unknown actions, which no checkpoint contains: {names}",
            "clean up with the writer of these actions",
        )


_STEERING = (
    "delta.logRetentionDuration",
    "delta.deletedFileRetentionDuration",
    "delta.enableExpiredLogCleanup",
    "delta.requireCheckpointProtectionBeforeVersion",
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementVersion",
)
