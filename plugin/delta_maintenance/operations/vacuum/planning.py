"""Plans a vacuum, from a survey of a table's folder and log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import pyarrow as pa

from delta_maintenance import clock
from delta_maintenance.address import StoreKind
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import CorruptTableError, InvalidRequestError, RefusedError, locating
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.holds.clones import Clone, read_clone
from delta_maintenance.operations.holds.find import find_holds, version_hold
from delta_maintenance.operations.holds.hold import Holds, StorageOptions
from delta_maintenance.operations.holds.models import HeldBack
from delta_maintenance.operations.vacuum import (
    LEAST_RETENTION,
    ArchivedGroup,
    DeadGroup,
    KeptGroup,
    SampleFile,
    VacuumOptions,
    VacuumPlan,
)
from delta_maintenance.operations.vacuum.candidates import HELD, ReasonTally, Search
from delta_maintenance.operations.vacuum.deletion import require_deletable_root
from delta_maintenance.operations.vacuum.engine import Found, LocalVacuum, Request, VacuumEngine
from delta_maintenance.operations.vacuum.held_files import HeldFiles, files_in_manifests, files_of
from delta_maintenance.operations.vacuum.inventory import read_inventory
from delta_maintenance.operations.vacuum.references import (
    FileReferences,
    LogWindow,
    Removals,
    removed_paths,
    window_to,
)
from delta_maintenance.protocol.features.registry import Operation
from delta_maintenance.protocol.vacuum import ProtectedPaths, VisibilityRules
from delta_maintenance.quantities import duration_text
from delta_maintenance.storage.core.listing import EntryKind, tree_of
from delta_maintenance.table.commit.concurrent_commits import advance
from delta_maintenance.table.evidence.contradictions import live_by_commits
from delta_maintenance.table.read.history import file_times, newest_commit_not_after
from delta_maintenance.table.read.log_file import relisting
from delta_maintenance.table.read.log_view import contradiction_error
from delta_maintenance.table.read.segment import LogListing, list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.writable import EXAMINE, require_writable

_LARGE = 1000
_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class VacuumSurvey:
    """A plan with the exact list of files."""

    plan: VacuumPlan
    found: Found
    stored: frozenset[str] = frozenset()
    """The names of the kept versions in the log."""
    clones: tuple[Clone, ...] = ()
    """The shallow clones whose files are kept."""


def survey(
    snapshot: Snapshot,
    options: VacuumOptions | None = None,
    *,
    now: datetime,
    engine: VacuumEngine | None = None,
    storage_options: StorageOptions = lambda _: None,
) -> VacuumSurvey:
    """Surveys the files that a vacuum at an instant would delete. Deletes nothing.

    `now` must be read before the snapshot is opened. `engine` is that of a plan for Spark; the
    local engine needs none. `storage_options` returns the options for the addresses of an
    inventory and of holders. The folder is listed first and
    the newest commits are read last, so that files added in between are not mistaken for
    unreferenced ones. Raises `UnsupportedFeatureError` or `RefusedError` if the table must not be
    vacuumed with these options, and `CorruptTableError` if its files are missing.
    """
    options = (options or VacuumOptions()).validated()
    with locating(table=snapshot.table, version=snapshot.version):
        return _SurveyRun(snapshot, options, now, engine, storage_options).run()


def engine_for(snapshot: Snapshot, options: VacuumOptions) -> Literal["local", "spark"]:
    """The engine that the options request, or that the size of the log requires."""
    if options.mode != "full" or options.engine == "local":
        return "local"
    if options.engine == "spark":
        return "spark"
    return "spark" if snapshot.log.size_bytes >= options.auto_spark_bytes else "local"


@dataclass(frozen=True, slots=True)
class Settings:
    """The metadata of a table that decides which files may be deleted."""

    retention: timedelta
    rules: VisibilityRules

    @classmethod
    def of(cls, snapshot: Snapshot) -> Settings:
        """Reads the settings of a version."""
        metadata, properties = snapshot.metadata, snapshot.properties
        columns = dict.fromkeys(
            (*metadata.partition_columns, *snapshot.log.physical_partition_columns)
        )
        compatible = (
            properties.enable_iceberg_compat_v1,
            properties.enable_iceberg_compat_v2,
            properties.enable_iceberg_compat_v3,
        )
        return cls(
            properties.deleted_file_retention,
            VisibilityRules(
                partition_columns=tuple(columns),
                iceberg="iceberg" in properties.universal_formats.lower() or any(compatible),
            ),
        )


def require_vacuumable(snapshot: Snapshot) -> None:
    """Raises `UnsupportedFeatureError` or `RefusedError` if the table's files must not be
    deleted.
    """
    require_writable(snapshot, Operation.VACUUM)
    unread = [p for p in snapshot.properties.problems if "deletedFileRetention" in p]
    if unread:
        raise snapshot.refusal(f"a property cannot be read: {unread[0]}", "correct the property")


class _SurveyRun:
    """One survey of a table's folder and its log."""

    def __init__(
        self,
        snapshot: Snapshot,
        options: VacuumOptions,
        now: datetime,
        engine: VacuumEngine | None,
        storage_options: StorageOptions,
    ) -> None:
        self.engine = engine
        self.storage_options = storage_options
        self.snapshot = snapshot
        self.store = snapshot.log.store
        self.options = options
        self.now = now
        self.notes = list(snapshot.warnings)
        self.settings = Settings.of(snapshot)
        self.clones: list[Clone] = []
        self.swept_to: int | None = None
        """The last commit such that no file is needed that it or an older one removed."""

    def run(self) -> VacuumSurvey:
        snapshot, options = self.snapshot, self.options
        require_vacuumable(snapshot)
        require_deletable_root(self.store)
        if (options.mode == "inventory") != (options.inventory is not None):
            raise InvalidRequestError(
                "--mode inventory requires --inventory, and no other mode accepts it",
                remedy="give both or neither",
            )
        self.retention = self._retention() + self._since()
        self.before = self._delete_before()
        self.before_ms = epoch_millis(self.before)
        self.holds = self._holds()
        needed = (*self._needed_by_clones(), *relisting(lambda: [*files_in_manifests(self.store)]))
        self.file_holders = [files.holder for files in needed]
        window, engine = self._chosen_engine()
        dead = engine.find(
            Request(
                snapshot=snapshot,
                search=Search(
                    rules=self.settings.rules,
                    modified_before_ms=self.before_ms,
                    foreign_files=options.foreign_files,
                    lists_folder=options.mode == "full",
                    archived=options.archived == "delete",
                ),
                deleted_before_ms=self.before_ms,
                held=(*files_of(self.store, self.holds.holds), *needed),
                requires_all=options.mode == "full" and not options.ignore_missing_files,
                complete=self._complete,
            )
        )
        if dead.problem is not None:
            raise CorruptTableError(
                dead.problem, table=snapshot.table, version=snapshot.version, remedy=EXAMINE
            )
        if dead.tallies:
            self._require_no_live_file(dead)
        if dead.ageless_tombstones:
            self.notes.append(
                f"{dead.ageless_tombstones} tombstones have no deletion time, so they protect "
                "their files"
            )
        if window is not None and not window.is_empty:
            self.swept_to = self._swept_to(window.last)
        if dead.archived and options.archived == "keep":
            self.swept_to = None
        if any(dead.held[name].files for name in self.file_holders if name in dead.held):
            self.swept_to = None
        return VacuumSurvey(self._plan(dead, window), dead, self.holds.stored, tuple(self.clones))

    def _require_no_live_file(self, dead: Found) -> None:
        """Raises `CorruptTableError` if a file to be deleted is live by the commits that are left,
        whatever the checkpoint says.
        """
        live, files = ProtectedPaths(self.store.addresses), 0
        for adds in live_by_commits(dead.latest):
            live.add(adds)
            files += adds.num_rows
        if files and (path := dead.first_of(live)) is not None:
            raise contradiction_error(f"no commit removes {path}, which its checkpoint lacks")

    def _holds(self) -> Holds:
        options = self.options
        holds = find_holds(
            self.snapshot,
            options.holders.and_reading(options.streams, options.last_read),
            now=self.now - self._since(),
            storage_options=self.storage_options,
        )
        self.notes += holds.notes
        asked = sorted(set(options.keep_versions))
        named = (version_hold(self.snapshot, v, holder=f"--keep-version {v}") for v in asked)
        return replace(holds, holds=(*holds.holds, *named))

    def _needed_by_clones(self) -> Iterator[HeldFiles]:
        """Reads the clones one after the other, before the folder is listed."""
        named = dict.fromkeys((*self.options.holders.clones, *self.options.clones))
        for address in named:
            clone, paths = read_clone(
                address,
                roots=self.store.addresses,
                now=self.now,
                storage_options=self.storage_options(address),
            )
            self.clones.append(clone)
            yield HeldFiles(holder=clone.holder, paths=paths)

    def _chosen_engine(self) -> tuple[LogWindow | None, VacuumEngine]:
        """The engine, and the commits that name the candidates, if the mode is `lite`."""
        if self.options.mode != "full":
            window, entries = self._entries()
            return window, LocalVacuum(entries)
        if engine_for(self.snapshot, self.options) == "local":
            return None, LocalVacuum()
        if self.engine is None:
            raise InvalidRequestError(
                "the plan is for Spark",
                remedy="submit it as a Spark job, or plan with --engine local",
            )
        return None, self.engine

    def _entries(self) -> tuple[LogWindow | None, list[pa.Table]]:
        """Returns the candidates from an inventory or from the log."""
        options = self.options
        if options.inventory is not None:
            self.notes.append("files that are not in the inventory are not found")
            listed = read_inventory(
                options.inventory,
                roots=self.store.addresses,
                storage_options=self.storage_options(options.inventory),
            )
            return None, [listed]
        self.notes.append(
            "only files that the retained log records as removed are found: no files that never "
            "were in the table, and no empty directories"
        )
        return relisting(self._removed_in_log)

    def _removed_in_log(self) -> tuple[LogWindow, list[pa.Table]]:
        listing = list_log(self.store)
        newest = self._newest_before(listing)
        if newest is None:
            return LogWindow(0, -1), []
        window = window_to(self.store, listing, newest)
        commits = [listing.commits[v] for v in sorted(listing.commits)]
        within = [e for e in commits if window.first <= (e.file.version or 0) <= window.last]
        paths = removed_paths(self.store, within)
        return window, [tree_of(paths, EntryKind.FILE)]

    def _newest_before(self, listing: LogListing) -> int | None:
        times = file_times(listing, now_ms=epoch_millis(self.now))
        return newest_commit_not_after(self.snapshot, listing, times, instant_ms=self.before_ms - 1)

    def _take_removals(self, references: FileReferences) -> None:
        """Protects files that retained commits removed within the retention, by any known time, and
        records the others.

        Checkpoints drop tombstones after the table's retention, judged by the clocks of their
        writers.
        """
        listing = list_log(self.store)
        times = file_times(listing, now_ms=epoch_millis(self.now))
        entries = [listing.commits[version] for version in sorted(listing.commits)]
        removed = Removals(self.snapshot.log.tail, entries, times, since_ms=self.before_ms)
        for actions, is_recent in removed.actions():
            if is_recent:
                references.in_retention.add(actions)
            else:
                references.record(actions, rules=self.settings.rules)
        if self.options.mode == "full" and removed.swept_to is not None:
            self.swept_to = self._swept_to(min(removed.swept_to, self.snapshot.version))
        longer = self.retention > self.settings.retention
        if removed.unreadable:
            if longer:
                raise removed.unreadable[0]
            self.notes.append(
                f"{count_text(len(removed.unreadable), 'commit')} before a checkpoint cannot be "
                "read; only "
                "the checkpoint contains the age of the files that they removed"
            )
        if longer and not removed.goes_back and min(listing.commits, default=0) > 0:
            raise self.snapshot.refusal(
                f"the log does not cover the last {duration_text(self.retention)}, so the files "
                "removed in that time are unknown",
                "use a shorter retention, or keep the log for longer",
            )

    def _swept_to(self, last: int) -> int:
        """Returns the last commit whose removed files are all deleted, at most the given one: a
        held version needs only files that were removed after it.
        """
        return min((last, *(hold.first for hold in self.holds.holds)))

    def _complete(self, references: FileReferences) -> Snapshot:
        """Protects files that were committed while the folder was listed and the log was read."""
        relisting(lambda: self._take_removals(references))
        advanced = advance(self.snapshot)
        for commit in advanced.commits:
            references.in_use.add(commit.adds)
            references.in_retention.add(commit.removes)
        if advanced.commits:
            require_vacuumable(advanced.snapshot)
            require_same_settings(self.settings, advanced.snapshot)
        return advanced.snapshot

    def _retention(self) -> timedelta:
        of_table = self.settings.retention
        least = max(of_table, LEAST_RETENTION)
        requested = self.options.retention
        flags = self.options.allow_short_retention and self.options.no_other_writers
        if requested is None:
            if of_table < least and not flags:
                self.notes.append(
                    "delta.deletedFileRetentionDuration is "
                    f"{duration_text(of_table)}; files younger "
                    f"than {duration_text(least)} are kept nevertheless"
                )
            return of_table if flags else least
        if requested < timedelta():
            raise InvalidRequestError(
                f"a retention of {duration_text(requested)} is negative", remedy="give zero or more"
            )
        if requested < least and not flags:
            raise self.snapshot.refusal(
                f"a retention of {duration_text(requested)} is shorter than {duration_text(least)}",
                "keep the longer one, or give --allow-short-retention --no-other-writers",
            )
        return requested

    def _since(self) -> timedelta:
        """Returns the age of the reference instant."""
        as_of = self.options.as_of
        return max(self.now - as_of, timedelta()) if as_of is not None else timedelta()

    def _delete_before(self) -> datetime:
        try:
            return self.now.astimezone(UTC) - self.retention
        except OverflowError:
            # Some tables set a retention of more years than the calendar has, to keep everything.
            return datetime.fromtimestamp(0, UTC)

    def _plan(self, dead: Found, window: LogWindow | None) -> VacuumPlan:
        files = sum(tally.count for tally in dead.tallies)
        size = sum(tally.bytes for tally in dead.tallies)
        logs = self.options.log_commits
        swept = window is not None and not window.is_empty
        return VacuumPlan(
            table=self.snapshot.table,
            version=dead.latest.version,
            planned_at=self.now,
            options=self.options,
            engine=engine_for(self.snapshot, self.options),
            retention=self.retention,
            delete_before=self.before,
            files=files,
            bytes=size,
            paths_digest=dead.paths_digest,
            groups=tuple(_group(tally) for tally in dead.tallies),
            kept=tuple(KeptGroup(why=why, count=n) for why, n in sorted(dead.kept.items()) if n),
            oldest=dead.oldest,
            folders=dead.folders,
            held=self._held(dead),
            archived=tuple(
                ArchivedGroup(storage_class=name, count=files.files, bytes=files.bytes)
                for name, files in sorted(dead.archived.items())
            ),
            listed=dead.listed,
            live_files=dead.live_files,
            directories=len(dead.directories),
            sample_directories=tuple(sorted(dead.directories)[:_SAMPLES]),
            large=_large(files, size, dead),
            logs_commits=logs if logs is not None else self.store.address.kind is not StoreKind.S3,
            first_commit=window.first if window is not None and swept else None,
            last_commit=self.swept_to,
            reason=self._reason(files, dead.kept.get(HELD, 0), window),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _held(self, dead: Found) -> tuple[HeldBack, ...]:
        by_holder = {
            holder: held_files for holder, held_files in dead.held.items() if held_files.files
        }
        versions = (
            HeldBack.by(hold, files=held_files.files, size=held_files.bytes)
            for hold in self.holds.holds
            if (held_files := by_holder.get(hold.holder)) is not None
        )
        files = (
            HeldBack.by_files(holder, files=held_files.files, size=held_files.bytes)
            for holder in self.file_holders
            if (held_files := by_holder.get(holder)) is not None
        )
        return (*versions, *files)

    def _reason(self, files: int, held: int, window: LogWindow | None) -> str:
        since = clock.text(self.before)
        if window is not None and window.is_empty:
            return f"no commit from before {since} is left that no vacuum went through"
        if window is not None:
            return (
                f"these files, which commits {window.first} to {window.last} removed, still exist"
            )
        if not files and held:
            kept = f"{count_text(held, 'unreferenced file')} from before {since}"
            return f"holders keep {kept}, and there are no others"
        if not files:
            return f"no file from before {since} is unreferenced"
        return f"no version and no tombstone since {since} needs these files"


def require_same_settings(settings: Settings, snapshot: Snapshot) -> None:
    """Raises `RefusedError` if a newer version has other settings for the deletion of files."""
    if Settings.of(snapshot) != settings:
        raise snapshot.refusal(
            "the table's retention, partitioning or Iceberg support has just changed", "plan again"
        )


def _group(tally: ReasonTally) -> DeadGroup:
    return DeadGroup(
        reason=tally.reason.label,
        count=tally.count,
        bytes=tally.bytes,
        samples=tuple(SampleFile(path=path, size=size) for path, size in tally.samples),
    )


def _large(files: int, size: int, dead: Found) -> str | None:
    if files <= _LARGE:
        return None
    if files > dead.live_files:
        return f"{count_text(files, 'file')} would be deleted, and {dead.live_files:,} are live"
    if size > dead.live_bytes:
        return f"{size_text(size)} would be deleted, and {size_text(dead.live_bytes)} are live"
    return None
