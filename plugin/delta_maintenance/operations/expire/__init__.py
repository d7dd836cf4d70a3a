"""Removes rows that are older than a limit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts, count_text, instant_text, size_text
from delta_maintenance.operations.core.flags import Flag, option, policy_option
from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Instant, Positive, Record
from delta_maintenance.operations.holds.models import Holders
from delta_maintenance.operations.rewriting.models import RefusedFile

if TYPE_CHECKING:
    from delta_maintenance.operations.expire.operation import apply, plan


Mixed = Literal["leave", "deletion-vectors", "rewrite"]
Unit = Literal["s", "ms", "us"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOptions(Record):
    """The rows that expire, and what happens to files that also have other rows."""

    column: Annotated[
        str,
        Flag(
            "the column that says how old a row is: a date or a timestamp, or an integer "
            "with a `unit`",
            positional=True,
            example="event_time",
            in_policy=True,
        ),
    ]
    """Dots separate the names of nested columns. Rows with null never expire."""
    older_than: Annotated[
        timedelta,
        Flag(
            "rows expire that are older than this at the start of the run, such as '400 days'",
            example="400 days",
            in_policy=True,
        ),
    ]
    mixed: Mixed = policy_option(
        "leave",
        "files that also have other rows: `leave` them, the default; mark their expired rows by "
        "`deletion-vectors`; or `rewrite` them without these rows",
        group="common",
    )
    unit: Unit | None = policy_option(
        None, "the unit of a column of integers, which count from 1970-01-01 UTC", group="common"
    )
    time_zone: str | None = policy_option(
        None,
        "the time zone of dates and of timestamps without a zone, such as Europe/Berlin; "
        "by default rows stay until they are old enough in every zone",
        metavar="ZONE",
    )
    allow_large_delete: bool = option(
        False,
        "allow removing more than half of the files of the table, or of their bytes",
        group="safety",
    )
    as_of: Instant | None = None
    """The instant as of which ages are computed, if it is earlier than the start of the run. Used
    to apply a plan that was approved some time ago."""
    holders: Holders = Holders()
    """What keeps older versions, which still have the expired rows. The kept versions in the log
    of the table always count."""
    workers: Positive | None = option(
        None,
        "files that are read or rewritten at the same time; by default one for each "
        "processor, at most 8",
    )
    other_writers: flags.OtherWritersField = None
    quiet: flags.QuietField = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirePlan(Plan):
    """The files that go as a whole, and those that also have other rows.

    `apply` examines the version that it finds by the same limit.
    """

    planned_at: Instant
    options: ExpireOptions
    delete_before: Instant
    """Rows with an earlier time expire."""
    predicate: str
    """The condition for expired rows in Spark SQL, with the limit in the type of the column."""
    live_files: int
    """The number of data files of the version."""
    files: int
    """The number of files all of whose rows have expired. They are removed without being read."""
    bytes: int
    """The size of these files."""
    rows: int | None
    """The rows of these files; None if the log does not state the rows of all of them."""
    mixed_files: int
    """The number of files whose bounds admit expired rows and other rows."""
    mixed_bytes: int
    unknown_files: int
    """The number of files for which the log does not prove whether they have expired rows."""
    unknown_bytes: int
    paths_digest: str
    """A digest of the paths of all files that may change, by which an approval covers exactly these
    files."""
    commits: int
    """The estimated number of commits."""
    large: str | None = None
    """Why `allow_large_delete` is needed, as one clause."""

    @property
    def files_to_read(self) -> int:
        """The number of files that are read because they may have other rows."""
        return 0 if self.options.mixed == "leave" else self.mixed_files + self.unknown_files

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would commit nothing."""
        return not self.files and not self.files_to_read


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireResult(Result):
    """The removed rows."""

    status: Literal["expired", "partly", "nothing-to-do"]
    """`partly`: some files could not be read, or the run ended early; see `problem`. Another run
    continues."""
    num_commits: int = 0
    files: int = 0
    """Files that were removed because all of their rows had expired."""
    bytes: int = 0
    """The size of these files."""
    files_marked: int = 0
    """Files whose expired rows were marked by deletion vectors."""
    files_rewritten: int = 0
    """Files that were rewritten without their expired rows."""
    rows: int | None = 0
    """Removed rows; None if the log does not state the rows of all removed files."""
    files_left: int = 0
    """Files that may have expired rows and were left, as the options ask."""
    files_overtaken: int = 0
    """Files that other writers changed during each attempt; the next run takes them."""
    skipped: tuple[RefusedFile, ...] = ()
    """Files that cannot be read or rewritten, at most 100. They are unchanged."""
    num_skipped: int = 0
    problem: str | None = None


_SHOWN = 10
"""The number of files shown; the JSON contains more."""
_FATES = {
    "leave": "left",
    "deletion-vectors": "read, and get deletion vectors",
    "rewrite": "read, and rewritten",
}


def plan_facts(plan: ExpirePlan) -> Facts:
    """Returns the facts of a plan: the limit, and the files by what is known of their rows."""
    mixed = plan.mixed_files + plan.unknown_files
    return {
        "expired": plan.predicate,
        "older than": instant_text(plan.delete_before),
        "files to remove": f"{plan.files:,} of {plan.live_files:,} ({size_text(plan.bytes)})",
        "rows to remove": plan.rows,
        "files with other rows": _files(plan.mixed_files, plan.mixed_bytes),
        "files without proof": _files(plan.unknown_files, plan.unknown_bytes),
        "files with other rows are": _FATES[plan.options.mixed] if mixed else None,
        "reason": plan.reason,
        "needs --allow-large-delete": None if plan.options.allow_large_delete else plan.large,
    }


def result_facts(result: ExpireResult) -> Facts:
    """Returns the facts of a result: the removed rows, and the files that were left."""
    return {
        "commits": result.num_commits or None,
        "removed files": _files(result.files, result.bytes),
        "files with deletion vectors": result.files_marked or None,
        "rewritten files": result.files_rewritten or None,
        "removed rows": result.rows or None,
        "files left": result.files_left or None,
        "changed by other writers": result.files_overtaken or None,
        "skipped": [
            f"{skipped_file.path}: {skipped_file.problem}"
            for skipped_file in result.skipped[:_SHOWN]
        ],
        # The problem of a skipped file is shown once.
        "problem": None if result.skipped else result.problem,
    }


def conclusion(result: ExpireResult, outcome: Outcome) -> Conclusion:
    """The conclusion of a run, with the remedy if expired rows are left."""
    if result.status != "partly":
        return Conclusion(outcome=outcome)
    damaged = next((skipped_file for skipped_file in result.skipped if skipped_file.damaged), None)
    if damaged is not None:
        return Conclusion(
            outcome=outcome,
            problem=damaged.problem,
            file=damaged.path,
            remedy="restore the file, or see with fsck --deep what else is wrong; the other files "
            "are done",
        )
    return Conclusion(outcome=outcome, problem=result.problem, remedy="run again to continue")


def _files(files: int, size: int) -> str | None:
    return f"{count_text(files, 'file')} ({size_text(size)})" if files else None


RECORD = OperationRecord(
    name="expire",
    title="Expire old rows",
    purpose="files",
    summary="remove rows that are older than a limit",
    description=(
        "Remove rows from the newest version whose date or timestamp is older than a limit. Files "
        "all of whose rows are older, as partition values or bounds prove, are removed without "
        "being read. Files that also have other rows are left, get deletion vectors, or are "
        "rewritten. Rows with null stay. Older versions keep the rows until a vacuum."
    ),
    options=ExpireOptions,
    plan=ExpirePlan,
    result=ExpireResult,
    code="delta_maintenance.operations.expire.operation",
    outcomes={
        "expired": Outcome.DONE,
        "partly": Outcome.INCOMPLETE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(commits=True, deletes=True),
    requires=("rewrite-data",),
    subjects=("column", "older_than"),
    policy=PolicyPart(
        key="expire",
        rule="delta_maintenance.operations.expire.policy:ExpireRule",
        description="Removal of rows that are older than a limit.",
        due="delta_maintenance.operations.expire.policy:due",
    ),
    decisive=("delete_before", "files", "bytes", "mixed_files", "unknown_files", "paths_digest"),
    asks_for_approval=lambda plan: not plan.is_noop,
    planned_amounts=lambda plan: Amounts(
        commits=plan.commits,
        deleted_files=plan.files,
        deleted_bytes=plan.bytes,
        looked_at=plan.live_files,
    ),
    # The files stay until a vacuum.
    done_amounts=lambda result: Amounts(commits=result.num_commits),
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
    wrote=lambda result: result.num_commits > 0,
)

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
