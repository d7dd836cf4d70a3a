"""Deletes files that no retained version of the table needs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts, count_text, size_text
from delta_maintenance.operations.core.flags import option, policy_option
from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Bounds, Instant, Record
from delta_maintenance.operations.holds.models import HeldBack, Holders, LastRead, Streams
from delta_maintenance.table.commit.other_writers import OtherWriters

if TYPE_CHECKING:
    from delta_maintenance.operations.vacuum.operation import apply, plan
    from delta_maintenance.operations.vacuum.planning import VacuumSurvey, engine_for, survey


LEAST_RETENTION = timedelta(days=7)
"""The minimum retention: a writer may need this long between writing its files and
committing them.
"""

Mode = Literal["full", "lite", "inventory"]
Version = Annotated[int, Bounds(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOptions(Record):
    """Options of a vacuum."""

    mode: Mode = option(
        "full",
        "`full`, the default, lists the table's folder; `lite` finds only files that the log "
        "records as removed; `inventory` reads a list made elsewhere",
        group="common",
    )
    retention: timedelta | None = option(
        None,
        "how long removed files are kept, such as '30 days'; by default the table's "
        "`delta.deletedFileRetentionDuration`, but at least a week. A shorter time requires "
        "`allow_short_retention` and `no_other_writers`",
        group="common",
    )
    allow_short_retention: bool = option(
        False,
        "allow deleting files within the table's own retention or of the last week",
        group="safety",
    )
    no_other_writers: bool = option(
        False,
        "confirm that no client writes to the table or reads older versions of it during the run",
        group="safety",
    )
    as_of: Instant | None = None
    """The instant as of which ages are computed: files whose retention ended later are kept. Used
    to apply a plan that was approved some time ago.
    """
    keep_versions: tuple[Version, ...] = option(
        (),
        "versions whose files are all kept, whatever their age",
        name="--keep-version",
        group="common",
    )
    streams: Streams = ()
    last_read: LastRead = ()
    clones: tuple[str, ...] = option(
        (),
        "shallow clones of this table, whose files are kept",
        name="--clone",
        metavar="URI",
        group="safety",
    )
    """In addition to those of `holders`."""
    holders: Holders = Holders()
    """What else holds versions and files: kept versions, readers and clones. The kept versions in
    the log of the table always count."""
    inventory: str | None = option(
        None,
        "for the mode `inventory`: a Parquet file, a folder of Parquet files or a Delta table, "
        "with the columns path, length, isDir and modificationTime",
        metavar="URI",
    )
    foreign_files: bool = option(
        False, "also delete files whose names are not those of Delta's files, such as a readme"
    )
    archived: Literal["keep", "delete"] = option(
        "keep",
        "whether unreferenced files in archive classes, such as GLACIER, are kept (the "
        "default) or deleted",
    )
    allow_large_delete: bool = option(
        False,
        "allow deleting more than half of all files; deleting up to 1,000 never needs it",
        group="common",
    )
    """The same holds for more than half of all bytes."""
    ignore_missing_files: bool = option(
        False, "continue if files of the table are missing", group="safety"
    )
    log_commits: bool | None = policy_option(
        None,
        "commit VACUUM START and VACUUM END; by default on all stores but S3",
        group="commits and other writers",
    )
    other_writers: OtherWriters | None = option(
        None,
        "the other writers of a table on S3, required if commits are logged there",
        group="commits and other writers",
    )
    quiet: flags.QuietField = None
    engine: flags.Engine = "auto"
    auto_spark_bytes: int = 4 << 30
    """With `auto`, the bytes of log from which on Spark is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFile(Record):
    """One file to be deleted."""

    path: str
    size: int
    """The size in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup(Record):
    """Files to be deleted for one reason."""

    reason: str
    count: int
    bytes: int
    samples: tuple[SampleFile, ...]
    """Some of these files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFolder(Record):
    """Files to be deleted from one folder, which is a partition in most tables."""

    folder: str
    """Its path below the root; empty for the root itself."""
    count: int
    bytes: int
    oldest: Instant | None = None
    """When the first of the files was modified; None if the listing does not tell."""
    newest: Instant | None = None

    def __str__(self) -> str:
        files = f"{count_text(self.count, 'file')} ({size_text(self.bytes)})"
        if self.oldest is None or self.newest is None:
            return files
        first, last = (f"{at:%Y-%m-%d}" for at in (self.oldest, self.newest))
        return f"{files} of {first}" + (f" to {last}" if first != last else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedGroup(Record):
    """Unreferenced files in a storage class from which no file can be read at once."""

    storage_class: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGroup(Record):
    """Files that are kept for one reason."""

    why: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumPlan(Plan):
    """The files to delete and to keep, with reasons. The survey contains the exact list."""

    planned_at: Instant
    options: VacuumOptions
    engine: Literal["local", "spark"]
    retention: timedelta
    delete_before: Instant
    """Tombstones and files of this instant or later are kept."""
    files: int
    """The number of files to delete."""
    bytes: int
    paths_digest: str
    """A digest of the paths of these files, by which an approval covers exactly these files."""
    groups: tuple[DeadGroup, ...]
    kept: tuple[KeptGroup, ...]
    oldest: Instant | None = None
    """When the first of the files was modified; None if the listing does not tell."""
    folders: tuple[DeadFolder, ...] = ()
    """The folders with the most bytes to delete; empty if Spark finds the files."""
    held: tuple[HeldBack, ...] = ()
    """The files that would be deleted if their holders did not keep them."""
    archived: tuple[ArchivedGroup, ...] = ()
    """Unreferenced files that cannot be read at once. They are deleted only if `options.archived`
    says so."""
    listed: int
    """The number of examined files."""
    live_files: int
    """The number of data files of the version."""
    directories: int
    """The number of directories to remove once they are empty."""
    sample_directories: tuple[str, ...]
    large: str | None
    """Why `allow_large_delete` is needed, as one clause."""
    logs_commits: bool
    """Whether VACUUM START and VACUUM END will be committed."""
    first_commit: int | None = None
    """With `lite`: the first commit whose removes were read."""
    last_commit: int | None = None
    """The last commit whose removed files are all deleted afterwards, with those of all older
    commits. The next `lite` vacuum begins after it."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would delete nothing."""
        return not self.files and not self.directories


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumResult(Result):
    """The deleted files."""

    status: Literal["vacuumed", "partly", "nothing-to-do"]
    """`partly`: some files could not be deleted, or should not have been deleted. See
    `failures`.
    """
    deleted: int = 0
    """Deleted files, including those that another process deleted first."""
    bytes: int = 0
    directories: int = 0
    """Removed empty directories."""
    spared: int = 0
    """Files that were referenced again after the plan was made."""
    failures: tuple[str, ...] = ()
    """The first files that may still exist, with reasons."""
    failed: int = 0
    """The number of files that may still exist."""
    held: tuple[HeldBack, ...] = ()
    """The files that would have been deleted if their holders did not keep them."""
    stopped: str | None = None
    """The reason why the run ended before all files were processed."""
    lost: tuple[str, ...] = ()
    """Files that another writer referred to again right after their deletion."""
    start_version: int | None = None
    """The version of the commit VACUUM START."""
    end_version: int | None = None
    """The version of the commit VACUUM END."""


def plan_facts(plan: VacuumPlan) -> Facts:
    """Returns the facts of a plan: the files to delete and the files to keep, with reasons."""
    facts: dict[str, object] = {
        "engine": plan.engine,
        "retention": plan.retention,
        "reason": plan.reason,
        "files": f"{plan.files:,} of {plan.listed:,} ({size_text(plan.bytes)})",
    }
    for group in plan.groups:
        facts[group.reason] = f"{count_text(group.count, 'file')} ({size_text(group.bytes)})"
    for folder in plan.folders:
        facts[f"in {folder.folder or 'the folder of the table'}"] = str(folder)
    if plan.folders and (others := plan.files - sum(folder.count for folder in plan.folders)):
        facts["in other folders"] = count_text(others, "file")
    facts["empty directories"] = plan.directories or None
    facts["archived"] = [
        f"{count_text(archived_files.count, 'file')} ({size_text(archived_files.bytes)}) in "
        f"{archived_files.storage_class}: "
        + ("deleted, too" if plan.options.archived == "delete" else "kept")
        for archived_files in plan.archived
    ]
    facts["held by"] = [str(held_files) for held_files in plan.held]
    facts["kept"] = [f"{group.count:,} {group.why}" for group in plan.kept]
    facts["needs --allow-large-delete"] = plan.large
    facts["commits"] = "VACUUM START and VACUUM END" if plan.logs_commits else None
    return facts


def result_facts(result: VacuumResult) -> Facts:
    """Returns the facts of a result: the deleted files, and those that were not deleted."""
    return {
        "deleted": f"{count_text(result.deleted, 'file')} ({size_text(result.bytes)})",
        "empty directories": result.directories or None,
        "referenced again before deletion": result.spared or None,
        "stopped": result.stopped,
        "failures": result.failures,
        "referenced again after deletion": result.lost,
        "held by": [str(holder) for holder in result.held],
        "VACUUM START": result.start_version,
        "VACUUM END": result.end_version,
    }


def planned_amounts(plan: VacuumPlan) -> Amounts:
    """The files to delete, as a share of these and the live files."""
    return Amounts(
        commits=2 * plan.logs_commits,
        deleted_files=plan.files,
        deleted_bytes=plan.bytes,
        looked_at=plan.files + plan.live_files,
        oldest=plan.oldest,
    )


def done_amounts(result: VacuumResult) -> Amounts:
    """The deleted files."""
    commits = (result.start_version, result.end_version)
    return Amounts(
        commits=sum(version is not None for version in commits),
        deleted_files=result.deleted,
        deleted_bytes=result.bytes,
    )


def conclusion(result: VacuumResult, outcome: Outcome) -> Conclusion:
    """The conclusion of a result, with files that were not deleted or should not have been
    deleted.
    """
    if result.lost:
        return Conclusion(
            outcome=Outcome.CORRUPT,
            problem=f"{count_text(len(result.lost), 'file')} referenced again after deletion",
            file=result.lost[0],
            remedy="restore them from a backup, or the table to a version without them",
        )
    if result.status != "partly":
        return Conclusion(outcome=outcome)
    problem = f"{count_text(result.failed, 'file')} could not be deleted"
    if result.stopped is not None:
        problem = f"{count_text(result.deleted, 'file')} deleted, then: {result.stopped}"
    elif result.failures:
        problem += f", first {result.failures[0]}"
    return Conclusion(outcome=outcome, problem=problem, remedy="see the Result, and run again")


RECORD = OperationRecord(
    name="vacuum",
    title="Vacuum",
    purpose="files",
    summary="delete files that no retained version needs",
    description=(
        "Delete data files, deletion vectors and change data files that no retained version of "
        "the table refers to, if they are older than the retention themselves. The log is read "
        "again before every few thousand deletions."
    ),
    prints=(
        "Prints the result; --dry-run prints the plan with the number of files for each reason "
        "and folder, and with --json or --report the exact list of files."
    ),
    options=VacuumOptions,
    plan=VacuumPlan,
    result=VacuumResult,
    code="delta_maintenance.operations.vacuum.operation",
    outcomes={
        "vacuumed": Outcome.DONE,
        "partly": Outcome.INCOMPLETE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(commits=True, deletes=True),
    commits_on_s3=lambda options: options.log_commits is True,
    requires=("vacuum",),
    spark=SparkPart(engine="delta_maintenance.spark.vacuum:SparkVacuum", plans_by_job=True),
    policy=PolicyPart(
        key="vacuum",
        rule="delta_maintenance.operations.vacuum.policy:VacuumRule",
        description="Deletion of data files.",
        due="delta_maintenance.operations.vacuum.policy:due",
        before="delta_maintenance.operations.vacuum.policy:before",
    ),
    report="every file with its size, its time and the reason",
    # The reasons are not compared: a checkpoint turns an expired tombstone into an unreferenced
    # file.
    decisive=("delete_before", "files", "bytes", "paths_digest"),
    asks_for_approval=lambda plan: bool(plan.files or plan.directories),
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)

__getattr__, __dir__ = lazy_names(
    __name__, operation="apply plan", planning="VacuumSurvey engine_for survey"
)
