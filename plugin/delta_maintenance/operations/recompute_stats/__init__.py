"""Recomputes statistics of data files that are missing or wrong."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts, Grid, size_text
from delta_maintenance.operations.core.flags import option, policy_option
from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Bounds, Positive, Record
from delta_maintenance.operations.rewriting.models import ReasonCount, RefusedFile

if TYPE_CHECKING:
    from delta_maintenance.operations.recompute_stats.operation import apply, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeStatsOptions(Record):
    """Options of a run."""

    check_writers: bool = policy_option(
        False,
        "also open files with bounds of floating-point numbers and long decimals, and "
        "recompute them unless their writer is known to handle NaN",
        group="common",
    )
    """The log does not show whether their writer ignored NaN or rounded decimals."""
    check_files: bool = policy_option(
        False,
        "also open all other files, and recompute the statistics that their footers, or "
        "the rows where these do not decide, contradict",
        group="common",
    )
    all_files: bool = option(
        False,
        "recompute the statistics of all files, not only wrong ones",
        name="--all",
        group="common",
    )
    cluster_by: tuple[str, ...] = option(
        (), "the columns by which the table is to be clustered", metavar="COLUMN"
    )
    files_per_commit: Positive = option(
        22_000,
        "files that one commit adds again, by default {default}",
        group="commits and other writers",
    )
    workers: Positive | None = option(
        None, "files that are decoded at the same time; by default one for each processor"
    )
    """At most 8 in this process and one for each core on Spark."""
    engine: flags.Engine = "auto"
    auto_spark_files: Annotated[int, Bounds(0)] = 100_000
    """With `engine="auto"`: the number of files to open from which on Spark is used."""
    other_writers: flags.OtherWritersField = None
    quiet: flags.QuietField = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnAudit(Record):
    """The files that lack statistics of one column."""

    column: str
    """The logical name; the fields of structs are separated by dots."""
    clustered: bool
    files_without_null_count: int
    files_without_bounds: int
    bytes_without_bounds: int
    """The size of these files: a query that filters by the column reads them for nothing if none of
    their rows qualify."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeStatsPlan(Plan):
    """The audit of the statistics in the log, and the planned work.

    `apply` examines the version that it finds again, by the same rules.
    """

    planned_at: datetime
    is_noop: bool
    """Whether `apply` would commit nothing."""
    reason: str
    """One sentence: the planned work, or the reason why there is none."""
    options: RecomputeStatsOptions
    num_files: int = 0
    """Live files."""
    total_bytes: int = 0
    """The size of the live files."""
    files: int = 0
    """Files to open, whose statistics are recomputed as far as necessary."""
    bytes: int = 0
    """The size of these files. Far fewer bytes are read if footers are sufficient."""
    files_without_bounds: int = 0
    """Files that lack the bounds of any column."""
    bytes_without_bounds: int = 0
    defects: tuple[ReasonCount, ...] = ()
    """Files by defect; a file can have several."""
    columns: tuple[ColumnAudit, ...] = ()
    """Columns whose statistics are missing in any file, at most 100, those with the most bytes
    first."""
    commits: int = 0
    """The estimated number of commits."""
    engine: Literal["local", "spark"] = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeStatsResult(Result):
    """The completed work."""

    status: Literal["recomputed", "partly", "failed", "nothing-to-do"]
    """`partly`: the run ended early, see `problem`; another run continues. `failed`: files are
    damaged, see `skipped`; the statistics of all others are committed."""
    num_commits: int = 0
    files_recomputed: int = 0
    """Files with new statistics."""
    files_decoded: int = 0
    """Those of them whose footers were not sufficient."""
    files_confirmed: int = 0
    """Files that were opened because of their writer or for a comparison, and left unchanged."""
    files_overtaken: int = 0
    """Files that other writers changed during the run."""
    skipped: tuple[RefusedFile, ...] = ()
    """Files that cannot be read, at most 100. Their statistics are unchanged."""
    num_skipped: int = 0
    problem: str | None = None


_SHOWN = 10
"""The number of columns and files shown; the JSON contains more."""


def plan_facts(plan: RecomputeStatsPlan) -> Facts:
    """The defects, and the bytes that queries read for nothing."""
    facts: dict[str, object] = {}
    if not plan.is_noop:
        facts |= {
            "files": plan.num_files,
            "files to open": plan.files,
            "engine": plan.engine,
            "commits": plan.commits,
            "defects": Grid(
                ("defect", "files", "bytes"),
                [(defect.reason, defect.files, size_text(defect.bytes)) for defect in plan.defects],
            ),
            "columns": Grid(
                ("column", "files without bounds", "bytes of these", "files without null count"),
                [
                    (
                        defect.column,
                        defect.files_without_bounds,
                        size_text(defect.bytes_without_bounds),
                        defect.files_without_null_count,
                    )
                    for defect in plan.columns[:_SHOWN]
                ],
            ),
        }
    return facts | {"reason": plan.reason}


def result_facts(result: RecomputeStatsResult) -> Facts:
    """The completed work, and the files that cannot be read."""
    return {
        "commits": result.num_commits,
        "files recomputed": result.files_recomputed,
        "files decoded": result.files_decoded or None,
        "files confirmed": result.files_confirmed or None,
        "skipped": [file.problem for file in result.skipped[:_SHOWN]],
        # The problem of a skipped file is shown once.
        "problem": None if result.status == "failed" else result.problem,
    }


def conclusion(result: RecomputeStatsResult, outcome: Outcome) -> Conclusion:
    """The conclusion of a run, with the remedy if files are left."""
    remedies = {
        "partly": "run again to continue",
        "failed": "restore the file, or see with fsck --deep what else is wrong; the statistics of "
        "all other files are committed",
    }
    remedy = remedies.get(result.status)
    if remedy is None:
        return Conclusion(outcome=outcome)
    return Conclusion(outcome=outcome, problem=result.problem, remedy=remedy)


RECORD = OperationRecord(
    name="recompute-stats",
    title="Recompute statistics",
    purpose="repair",
    summary="recompute statistics that are missing or wrong",
    description=(
        "Examine the statistics of all files in the log, compute those that are missing or wrong "
        "from footers or, where these are not safe, from rows, and commit them in batches. Other "
        "writers may commit in the meantime. A dry run is an audit: it names the files, columns "
        "and bytes without statistics, and opens no data file."
    ),
    options=RecomputeStatsOptions,
    plan=RecomputeStatsPlan,
    result=RecomputeStatsResult,
    code="delta_maintenance.operations.recompute_stats.operation",
    outcomes={
        "recomputed": Outcome.DONE,
        "partly": Outcome.INCOMPLETE,
        "failed": Outcome.FAILED,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(commits=True),
    runs_on_corrupt=True,
    requires=("commit",),
    spark=SparkPart(engine="delta_maintenance.spark.statistics:SparkStatistics"),
    policy=PolicyPart(
        key="statistics",
        rule="delta_maintenance.operations.recompute_stats.policy:StatisticsRule",
        description="Statistics of data files that are missing or wrong.",
        due="delta_maintenance.operations.recompute_stats.policy:due",
    ),
    report="every file with a defect, its size, defects and columns",
    decisive=("files", "bytes"),
    planned_amounts=lambda plan: Amounts(commits=plan.commits),
    done_amounts=lambda result: Amounts(commits=result.num_commits),
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
    wrote=lambda result: result.num_commits > 0,
)

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
