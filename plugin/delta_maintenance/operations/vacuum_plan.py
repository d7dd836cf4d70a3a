"""What a vacuum would delete: the options, the plan, and the survey of the folder that makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AwareDatetime

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError, RefusedError
from delta_maintenance.operations.record import Record
from delta_maintenance.protocol.features import Operation, require_supported
from delta_maintenance.protocol.vacuum_rules import Reason, VisibilityRules
from delta_maintenance.storage.tree import EntryKind, tree_of
from delta_maintenance.table.commit_gates import OtherWriters
from delta_maintenance.table.data_deletion import require_deletable_root
from delta_maintenance.table.dead_files import (
    DeadFiles,
    Search,
    find_dead_files,
    list_folder,
    require_no_missing,
)
from delta_maintenance.table.file_inventory import read_inventory
from delta_maintenance.table.file_references import FileReferences, read_references
from delta_maintenance.table.log_age import file_times, newest_commit_not_after
from delta_maintenance.table.log_follower import advance
from delta_maintenance.table.log_segment import LogListing, list_log
from delta_maintenance.table.removed_files import LogWindow, removed_paths, window_to
from delta_maintenance.table.snapshot import Snapshot
from delta_maintenance.table.table import Table

LEAST_RETENTION = timedelta(days=7)
"""A writer may have been at work for so long before it commits what it wrote."""
_LARGE = 1000
_SAMPLES = 5

Mode = Literal["full", "lite", "inventory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOptions(Record):
    """What may go, and how it is found."""

    mode: Mode = "full"
    """`full` lists the table's folder; `lite` takes the log's word for what was removed, and finds
    nothing that never was in the table; `inventory` takes a list of the folder from elsewhere."""
    retention: timedelta | None = None
    """For how long removed files stay; by default the table's `delta.deletedFileRetentionDuration`,
    but a week at least. Shorter takes both flags."""
    allow_short_retention: bool = False
    """First flag: files that the table's retention, or the last week, covers may go."""
    no_other_writers: bool = False
    """Second flag: nobody writes to the table or reads older versions of it meanwhile."""
    keep_versions: tuple[int, ...] = ()
    """Versions of which every file stays, whatever their age."""
    inventory: str | None = None
    """For that mode: a Parquet file, a folder of them or a Delta table, with the columns `path`,
    `length`, `isDir` and `modificationTime`."""
    foreign_files: bool = False
    """Whether files go too whose names are not those of Delta's files."""
    allow_large_delete: bool = False
    """Whether more than 1,000 files may go that are more than half of all files, or bytes."""
    ignore_missing_files: bool = False
    """Whether to go on where files of the table are not there."""
    log_commits: bool | None = None
    """Whether VACUUM START and VACUUM END are committed. By default as Delta Spark has it:
    everywhere but on S3."""
    other_writers: OtherWriters | None = None
    """On S3, if these are committed: who else commits to the table."""
    engine: Literal["auto", "local", "spark"] = "auto"
    auto_spark_bytes: int = 4 << 30
    """From so many bytes of log on, `auto` takes Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFile(Record):
    """One file that will go."""

    path: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup(Record):
    """Files that will go for one reason."""

    reason: str
    count: int
    bytes: int
    samples: tuple[SampleFile, ...]
    """A few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGroup(Record):
    """Files that stay for one reason."""

    why: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumPlan(Record):
    """What `apply` will delete, why, and what stays. The exact list is the survey's."""

    table: str
    version: int
    """The latest version when the plan was made."""
    planned_at: AwareDatetime
    options: VacuumOptions
    engine: Literal["local", "spark"]
    retention: timedelta
    delete_before: AwareDatetime
    """Tombstones and files of this instant or later stay."""
    files: int
    """How many will go."""
    bytes: int
    groups: tuple[DeadGroup, ...]
    kept: tuple[KeptGroup, ...]
    listed: int
    """Files that were looked at."""
    live_files: int
    """Data files of the version."""
    directories: int
    """Directories that will go once they are empty."""
    sample_directories: tuple[str, ...]
    large: str | None
    """Why `allow_large_delete` is needed, as one clause."""
    logs_commits: bool
    """Whether VACUUM START and VACUUM END will be committed."""
    first_commit: int | None = None
    """Of a plan by the log: the first commit whose removes were read."""
    last_commit: int | None = None
    reason: str
    """One sentence: how it was found, or why nothing goes."""
    notes: tuple[str, ...] = ()

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would delete nothing."""
        return not self.files and not self.directories


@dataclass(frozen=True, slots=True)
class Survey:
    """A plan with the exact list behind it."""

    plan: VacuumPlan
    dead: DeadFiles
    latest: Snapshot
    """The version up to which the log was read."""


def survey(
    snapshot: Snapshot,
    options: VacuumOptions | None = None,
    *,
    now: datetime,
    storage_options: Mapping[str, str] | None = None,
) -> Survey:
    """What a vacuum at an instant would delete. Deletes nothing.

    `now` is to be read before the snapshot is opened; `storage_options` are for an inventory. Lists
    the folder first and reads the log's newest commits last, so that nothing is taken for dead that
    came into use in between. Errors:
    `UnsupportedFeatureError` and `RefusedError` where the table must not be vacuumed so,
    `CorruptTableError` where its files are not there.
    """
    options = VacuumOptions.from_json(asdict(options or VacuumOptions()))
    try:
        return _Surveying(snapshot, options, now, storage_options).run()
    except DeltaMaintenanceError as error:
        raise error.located(table=snapshot.table, version=snapshot.version) from error.__cause__


@dataclass(frozen=True, slots=True)
class Settings:
    """What of a table's metadata decides what may go."""

    retention: timedelta
    rules: VisibilityRules

    @classmethod
    def of(cls, snapshot: Snapshot) -> Settings:
        """Those of a version."""
        metadata, properties = snapshot.metadata, snapshot.properties
        columns = dict.fromkeys((*metadata.partition_columns, *snapshot.physical_partition_columns))
        formats = metadata.configuration.get("delta.universalFormat.enabledFormats") or ""
        compatible = (
            properties.enable_iceberg_compat_v1,
            properties.enable_iceberg_compat_v2,
            properties.enable_iceberg_compat_v3,
        )
        return cls(
            properties.deleted_file_retention,
            VisibilityRules(
                partition_columns=tuple(columns),
                iceberg="iceberg" in formats.lower() or any(compatible),
            ),
        )


def require_vacuumable(snapshot: Snapshot) -> None:
    """`UnsupportedFeatureError` or `RefusedError` where files of the table must not be deleted."""
    require_supported(
        snapshot.protocol, Operation.VACUUM, table=snapshot.table, version=snapshot.version
    )
    unread = [p for p in snapshot.properties.problems if "deletedFileRetention" in p]
    if unread:
        raise _refused(snapshot, f"a property cannot be read: {unread[0]}", "correct the property")


class _Surveying:
    """One look at a table's folder and its log."""

    def __init__(
        self,
        snapshot: Snapshot,
        options: VacuumOptions,
        now: datetime,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        self.storage_options = storage_options
        self.snapshot = snapshot
        self.store = snapshot.store
        self.options = options
        self.now = now
        self.notes = list(snapshot.warnings)
        self.settings = Settings.of(snapshot)

    def run(self) -> Survey:
        snapshot, options = self.snapshot, self.options
        require_vacuumable(snapshot)
        require_deletable_root(self.store)
        if (options.mode == "inventory") != (options.inventory is not None):
            raise InvalidRequestError(
                "the mode inventory and the address of an inventory go together",
                remedy="give both or none",
            )
        engine = self._engine()
        self.retention = self._retention()
        self.before = self._delete_before()
        self.before_ms = epoch_millis(self.before)
        kept = [Table(self.store).snapshot(version=v) for v in sorted(set(options.keep_versions))]
        self.search = Search(
            rules=self.settings.rules,
            modified_before_ms=self.before_ms,
            foreign_files=options.foreign_files,
        )
        window, entries = self._entries()
        references, problem = read_references(
            snapshot, deleted_before_ms=self.before_ms, kept_versions=kept
        )
        if problem is not None:
            raise _refused(snapshot, problem, "repair the log first: readers disagree about it")
        if self.retention > self.settings.retention:
            self._protect_removed_since(references)
        latest = self._catch_up(references)
        if options.mode == "full" and not options.ignore_missing_files:
            require_no_missing(self.store, references, entries)
        dead = find_dead_files(self.store, entries, references, self.search)
        if references.ageless_tombstones:
            self.notes.append(
                f"{references.ageless_tombstones} tombstones do not say how old they are, so they "
                "protect their files"
            )
        plan = self._plan(engine, dead, references, window, latest)
        return Survey(plan, dead, latest)

    def _entries(self) -> tuple[LogWindow | None, list[pa.Table]]:
        """What may be there, and the commits that say so, if it is they who do."""
        options = self.options
        if options.mode == "full":
            return None, list_folder(self.store, self.settings.rules)
        if options.inventory is not None:
            self.notes.append("files that are not in the inventory are not found")
            listed = read_inventory(
                options.inventory,
                roots=self.store.addresses,
                storage_options=self.storage_options,
            )
            return None, [listed]
        self.notes.append(
            "only what the retained log says was removed is found: no file that never was in the "
            "table, and no empty directory"
        )
        listing = list_log(self.store)
        last = self._newest_before(listing)
        if last is None:
            return LogWindow(0, -1), []
        window = window_to(self.store, listing, last)
        commits = [listing.commits[v] for v in sorted(listing.commits)]
        within = [e for e in commits if window.first <= (e.file.version or 0) <= window.last]
        paths = removed_paths(self.store, within)
        return window, [tree_of(paths, EntryKind.FILE)]

    def _newest_before(self, listing: LogListing) -> int | None:
        times = file_times(listing, now_ms=epoch_millis(self.now))
        return newest_commit_not_after(self.snapshot, listing, times, instant_ms=self.before_ms - 1)

    def _protect_removed_since(self, references: FileReferences) -> None:
        """Checkpoints drop tombstones after the table's retention; only commits know longer."""
        listing = list_log(self.store)
        last = self._newest_before(listing)
        earliest = min(listing.commits, default=0)
        if last is None and earliest > 0:
            raise _refused(
                self.snapshot,
                f"the log does not go back for {self.retention}, so that what was removed within "
                "that time is not known",
                "take a shorter retention, or keep the log for longer",
            )
        since = -1 if last is None else last
        entries = [listing.commits[v] for v in sorted(listing.commits) if v > since]
        references.in_use.offer(pa.table({"path": removed_paths(self.store, entries)}))

    def _catch_up(self, references: FileReferences) -> Snapshot:
        """Protects what was committed while the folder was listed and the log was read."""
        advanced = advance(self.snapshot)
        for commit in advanced.commits:
            references.in_use.offer(commit.adds)
            references.in_use.offer(commit.removes)
        if advanced.commits:
            require_vacuumable(advanced.snapshot)
            require_same_settings(self.settings, advanced.snapshot)
        return advanced.snapshot

    def _retention(self) -> timedelta:
        own = self.settings.retention
        least = max(own, LEAST_RETENTION)
        wanted = self.options.retention
        flags = self.options.allow_short_retention and self.options.no_other_writers
        if wanted is None:
            if own < least and not flags:
                self.notes.append(
                    f"delta.deletedFileRetentionDuration is {own}; what is younger than {least} "
                    "stays all the same"
                )
            return own if flags else least
        if wanted < timedelta():
            raise InvalidRequestError(
                f"a retention of {wanted} is negative", remedy="give zero or more"
            )
        if wanted < least and not flags:
            raise _refused(
                self.snapshot,
                f"a retention of {wanted} is shorter than {least}",
                "keep the longer one, or give both flags that allow a short retention",
            )
        return wanted

    def _delete_before(self) -> datetime:
        try:
            return self.now.astimezone(UTC) - self.retention
        except OverflowError:
            # Some ask for more years than the calendar has, to keep everything.
            return datetime.fromtimestamp(0, UTC)

    def _engine(self) -> Literal["local", "spark"]:
        options = self.options
        if options.mode == "lite" or options.engine == "local":
            return "local"
        if options.engine == "spark":
            return "spark"
        segment = self.snapshot.segment
        size = sum(entry.status.size for entry in segment.tail)
        if self.snapshot.checkpoint is not None:
            size += sum(e.status.size for e in self.snapshot.checkpoint.files.entries)
            size += sum(s.size_in_bytes for s in self.snapshot.checkpoint.sidecars)
        return "spark" if size >= options.auto_spark_bytes else "local"

    def _plan(
        self,
        engine: Literal["local", "spark"],
        dead: DeadFiles,
        references: FileReferences,
        window: LogWindow | None,
        latest: Snapshot,
    ) -> VacuumPlan:
        files = dead.files
        size = pc.sum(files["size"]).as_py() or 0
        logs = self.options.log_commits
        swept = window is not None and not window.is_empty
        return VacuumPlan(
            table=self.snapshot.table,
            version=latest.version,
            planned_at=self.now,
            options=self.options,
            engine=engine,
            retention=self.retention,
            delete_before=self.before,
            files=files.num_rows,
            bytes=size,
            groups=_groups(files),
            kept=tuple(KeptGroup(why=why, count=n) for why, n in sorted(dead.kept.items()) if n),
            listed=dead.listed,
            live_files=references.num_live,
            directories=len(dead.directories),
            sample_directories=tuple(sorted(dead.directories)[:_SAMPLES]),
            large=_large(files.num_rows, size, references),
            logs_commits=logs if logs is not None else not self.store.root.startswith("s3"),
            first_commit=window.first if window is not None and swept else None,
            last_commit=window.last if window is not None and swept else None,
            reason=self._reason(files.num_rows, window),
            notes=tuple(self.notes),
        )

    def _reason(self, files: int, window: LogWindow | None) -> str:
        since = f"{self.before:%Y-%m-%dT%H:%M:%SZ}"
        if window is not None and window.is_empty:
            return f"no commit from before {since} is left that no vacuum went through"
        if window is not None:
            return f"of what commits {window.first} to {window.last} removed, this is still there"
        if not files:
            return f"nothing from before {since} is out of use"
        return f"no version and no tombstone since {since} needs these files"


def require_same_settings(settings: Settings, snapshot: Snapshot) -> None:
    """`RefusedError` where a newer version of the table decides otherwise about its files."""
    if Settings.of(snapshot) != settings:
        raise _refused(
            snapshot,
            "the table's retention, its partitioning or its use by Iceberg has just changed",
            "plan again",
        )


def _groups(files: pa.Table) -> tuple[DeadGroup, ...]:
    groups = []
    for reason in Reason:
        found = files.filter(pc.equal(files["reason"], int(reason)))
        if found.num_rows:
            first = found.slice(0, _SAMPLES).select(["path", "size"]).to_pylist()
            groups.append(
                DeadGroup(
                    reason=reason.label,
                    count=found.num_rows,
                    bytes=pc.sum(found["size"]).as_py() or 0,
                    samples=tuple(SampleFile(**row) for row in first),
                )
            )
    return tuple(groups)


def _large(files: int, size: int, references: FileReferences) -> str | None:
    if files <= _LARGE:
        return None
    if files > references.num_live:
        return f"{files} files are to go, and {references.num_live} are live"
    if size > references.live_bytes:
        return f"{size} bytes are to go, and {references.live_bytes} are live"
    return None


def _refused(snapshot: Snapshot, problem: str, remedy: str) -> RefusedError:
    return RefusedError(problem, table=snapshot.table, version=snapshot.version, remedy=remedy)
