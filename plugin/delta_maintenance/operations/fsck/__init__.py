"""Checks the integrity of a table, and repairs damage that can be repaired without data loss."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Document, Plan, Result
from delta_maintenance.operations.core.facts import Facts, Grid, count_text
from delta_maintenance.operations.core.flags import option, policy_option
from delta_maintenance.operations.core.operation import (
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Bounds, Instant, Positive, Record
from delta_maintenance.table.commit.other_writers import OtherWriters

if TYPE_CHECKING:
    from delta_maintenance.operations.fsck.operation import FsckSurvey, apply, plan, survey


Severity = Literal["corrupt", "warning", "note"]
"""`corrupt`: readers fail, or may read other data than was committed. `warning`: a rule is
violated, or a reader is slower or may be misled. `note`: harmless information.
"""
Status = Literal["sound", "warnings", "corrupt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem of a table."""

    kind: str
    severity: Severity
    version: int | None
    """The version at which the table is wrong, if it is a particular one."""
    path: str | None
    """A file relative to the table root; for a data file, the path in the log."""
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckOptions(Record):
    """The depth of the check, and the permitted repairs."""

    deep: bool = policy_option(
        False,
        "open the footer of every data file, and every deletion vector; from 100,000 of them on by "
        "a Spark job, unless another engine is chosen",
        group="common",
    )
    engine: flags.Engine = "auto"
    auto_spark_files: Annotated[int, Bounds(0)] = 100_000
    """With `engine="auto"`: the number of data files and deletion vectors from which on Spark is
    used.
    """
    sample: Positive | None = policy_option(
        None,
        "for a deep check: the number of data files to open; each day others, until all were "
        "opened",
        group="common",
    )
    repair: bool = option(
        False,
        "make the repairs that cannot lose data, of checkpoints, checksums, `_last_checkpoint`, "
        "manifests and names of data files",
        group="common",
    )
    remove_missing_files: bool = option(
        False,
        "commit removes of the entries whose data files do not exist; the table then "
        "lacks their rows",
        group="common",
    )
    """The change data feed of the table shows these rows as deleted."""
    remove_doubled_files: bool = option(
        False,
        "commit the missing removes of files that another writer removed under another key, so "
        "that their rows are still read",
        group="common",
    )
    allow_append_only: bool = option(
        False,
        "also remove files from an append-only table; `delta.appendOnly` is set to false in that "
        "commit, and to true in the next one",
        group="safety",
    )
    other_writers: OtherWriters | None = option(
        None,
        "the other writers of a table on S3, required before entries are removed: writers "
        "with conditional puts (delta-rs, Trino and others), Delta Spark, or none",
        group="commits and other writers",
    )
    quiet: flags.QuietField = None
    forget_overwritten_commits: bool = option(
        False,
        "delete the copies of commits that Delta Spark overwrote, once their loss was dealt with; "
        "until then, the table is corrupt",
        group="safety",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCount(Record):
    """The number of findings of one kind."""

    kind: str
    severity: Severity
    count: int


RepairAction = Literal[
    "rewrite-hint",
    "remove-hint",
    "remove-checksums",
    "replace-checkpoint",
    "fill-empty-checkpoint",
    "remove-empty-checkpoint",
    "copy-misnamed-files",
    "write-manifests",
    "forget-overwritten-commits",
    "remove-missing-files",
    "remove-doubled-files",
    "restore-append-only",
]
"""`remove-hint` if no checkpoint exists; `restore-append-only` if an earlier repair ended before
its second commit.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Record):
    """A repair that `apply` makes."""

    action: RepairAction
    path: str | None = None
    """The file that is replaced, relative to the table root."""
    version: int | None = None
    reason: str
    """The change, and why it cannot lose data, in a sentence."""
    paths: tuple[str, ...] = ()
    """The entries to remove, or whose files are copied, as in the log; or checksums."""

    def __str__(self) -> str:
        return ": ".join([self.action, *filter(None, [self.path]), self.reason])


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckPlan(Plan):
    """The findings of a check, and the repairs that `apply` would make."""

    planned_at: Instant
    options: FsckOptions
    engine: Literal["local", "spark"] = "local"
    """The engine that opens the files. A note says if they were not opened for the plan."""
    findings: tuple[Finding, ...]
    """The first findings of each kind, ordered by severity."""
    counts: tuple[FindingCount, ...]
    """The number of all findings, by kind."""
    report: str | None = None
    """The address of a Parquet file with all findings."""
    repairs: tuple[Repair, ...] = ()
    reason: str
    """The findings and the planned repairs, in a sentence."""
    checked: tuple[str, ...] = ()
    """What was checked: the files of the log by kind, and the data files."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would change nothing."""
        return not self.repairs

    @property
    def status(self) -> Status:
        """The status of the worst finding; a table with only notes is sound."""
        return status_of(self.counts)

    @property
    def num_corrupt(self) -> int:
        """The number of findings of corruption."""
        return _num_corrupt(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOutcome(Record):
    """The outcome of a repair."""

    action: RepairAction
    path: str | None
    status: Literal["done", "already-done", "refused", "failed"]
    """`already-done` if nothing was left to repair."""
    version: int | None = None
    """The commit that was made, or the version of the checkpoint that was written."""
    count: int = 0
    """The number of removed entries or checksums, or of copied files, or of written manifests."""
    reason: str | None = None

    def __str__(self) -> str:
        told = [self.action, *filter(None, [self.path]), self.status]
        told += [count_text(self.count, "file")] if self.count else []
        return ": ".join([*told, *filter(None, [self.reason])])


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckResult(Result):
    """The findings of a table after its repairs."""

    status: Status
    """The status of the worst remaining finding; a table with only notes is sound."""
    findings: tuple[Finding, ...] = ()
    """The first findings of each kind, ordered by severity."""
    counts: tuple[FindingCount, ...] = ()
    report: str | None = None
    """The address of a Parquet file with all findings."""
    repairs: tuple[RepairOutcome, ...] = ()
    checked: tuple[str, ...] = ()
    """What was checked: the files of the log by kind, and the data files."""

    @property
    def num_corrupt(self) -> int:
        """The number of findings of corruption."""
        return _num_corrupt(self.counts)


def status_of(counts: Iterable[FindingCount]) -> Status:
    """Returns the status of the worst of the findings."""
    severities = {count.severity for count in counts}
    if "corrupt" in severities:
        return "corrupt"
    return "warnings" if "warning" in severities else "sound"


def _num_corrupt(counts: Iterable[FindingCount]) -> int:
    return sum(count.count for count in counts if count.severity == "corrupt")


def facts(document: FsckPlan | FsckResult) -> Facts:
    """The findings, their numbers and the repairs."""
    return {
        "status": document.status,
        "checked": document.checked,
        "findings": [f"{c.kind}: {c.count:,} ({c.severity})" for c in document.counts],
        "repairs": [str(repair) for repair in document.repairs],
        "report": document.report,
        "notes": document.notes,
        "remedies": list(dict.fromkeys(f"{f.kind}: {f.remedy}" for f in document.findings)),
        "details": Grid(
            ("kind", "version", "problem", "path"),
            [(f.kind, f.version, f.problem, f.path) for f in document.findings],
        ),
    }


def conclusion_of_plan(plan: FsckPlan) -> Conclusion:
    """A corrupt table is an error even if only a plan was requested."""
    return conclusion(plan, Outcome.CORRUPT if plan.num_corrupt else Outcome.PLANNED)


def conclusion(document: FsckPlan | FsckResult, outcome: Outcome) -> Conclusion:
    """Counts the findings of corruption."""
    if not document.num_corrupt:
        return Conclusion(outcome=outcome)
    counts = ", ".join(f"{c.count} {c.kind}" for c in document.counts if c.severity == "corrupt")
    # Findings are ordered by severity. Documents of other writers may have only their numbers.
    first_finding = next(iter(document.findings), None)
    others = "; each of the other findings names its own remedy" if document.num_corrupt > 1 else ""
    return Conclusion(
        outcome=outcome,
        problem=f"{count_text(document.num_corrupt, 'finding')} of corruption: {counts}",
        file=None if first_finding is None else first_finding.path,
        remedy=None if first_finding is None else f"{first_finding.remedy}{others}",
    )


RECORD = OperationRecord(
    name="fsck",
    title="Examine the table",
    purpose="repair",
    summary="check a table, and report and repair its problems",
    description=(
        "Compare commits with the rules of the protocol; checkpoints, compactions and checksums "
        "with the commits; and the log with the existing files. Changes nothing unless a repair "
        "is requested."
    ),
    prints=(
        "Prints every finding with its remedy; the exit status is 5 if the table is corrupt, "
        "also after the repairs."
    ),
    options=FsckOptions,
    plan=FsckPlan,
    result=FsckResult,
    code="delta_maintenance.operations.fsck.operation",
    outcomes={"sound": Outcome.DONE, "warnings": Outcome.DONE, "corrupt": Outcome.CORRUPT},
    effects=Effects(commits=True, adds_files=True),
    runs_on_corrupt=True,
    only_reads=lambda options: (
        not (
            options.repair
            or options.remove_missing_files
            or options.remove_doubled_files
            or options.forget_overwritten_commits
        )
    ),
    spark=SparkPart(
        engine="delta_maintenance.spark.fsck:SparkContents",
        # A plan in this process would read the log twice.
        skips_plan=lambda options: options.deep,
        # Also if no repair is planned, because the files have not been opened yet.
        needs_job=lambda plan: plan.engine == "spark",
    ),
    policy=PolicyPart(
        key="fsck",
        rule="delta_maintenance.operations.fsck.policy:FsckRule",
        description="Integrity checks of the table.",
        due="delta_maintenance.operations.fsck.policy:due",
    ),
    takes="table",
    report="every finding",
    decisive=("repairs",),
    asks_for_approval=lambda plan: bool(plan.repairs),
    plan_facts=facts,
    result_facts=facts,
    totals=lambda document: {"num_corrupt": document.num_corrupt},
    conclusion_of_plan=conclusion_of_plan,
    conclusion_of_result=conclusion,
    wrote=lambda result: any(repair.status == "done" for repair in result.repairs),
)

__getattr__, __dir__ = lazy_names(__name__, operation="FsckSurvey apply plan survey")
