"""The record of the operation `recompute-stats`."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import Facts, Grid, size_text
from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.recompute_stats.options import (
    RecomputeStatsOptions,
    RecomputeStatsPlan,
    RecomputeStatsResult,
)

_SHOWN = 10
"""The number of columns and files shown; the JSON contains more."""


def plan_facts(plan: RecomputeStatsPlan) -> Facts:
    """The defects, and the bytes that queries read for nothing."""
    facts: dict[str, object] = {"table": plan.table, "version": plan.version}
    if not plan.is_noop:
        facts |= {
            "files": plan.num_files,
            "files to open": plan.files,
            "engine": plan.engine,
            "commits": plan.commits,
            "defects": Grid(
                ("defect", "files", "bytes"),
                [(each.reason, each.files, size_text(each.bytes)) for each in plan.defects],
            ),
            "columns": Grid(
                ("column", "files without bounds", "bytes of these", "files without null count"),
                [
                    (
                        each.column,
                        each.files_without_bounds,
                        size_text(each.bytes_without_bounds),
                        each.files_without_null_count,
                    )
                    for each in plan.columns[:_SHOWN]
                ],
            ),
        }
    return facts | {"reason": plan.reason, "notes": plan.notes}


def result_facts(result: RecomputeStatsResult) -> Facts:
    """The completed work, and the files that cannot be read."""
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "commits": result.num_commits,
        "files recomputed": result.files_recomputed,
        "files decoded": result.files_decoded or None,
        "files confirmed": result.files_confirmed or None,
        "skipped": [file.problem for file in result.skipped[:_SHOWN]],
        # The problem of a skipped file is shown once.
        "problem": None if result.status == "failed" else result.problem,
        "notes": result.notes,
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
    summary="recompute statistics that are missing, damaged or wrong",
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
    spark=SparkPart(engine="delta_maintenance.spark.statistics:SparkStatistics.of_job"),
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
