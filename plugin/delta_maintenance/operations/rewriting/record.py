"""The record of an operation that rewrites data files, built from its specific properties."""

from __future__ import annotations

from typing import TypeVar

from delta_maintenance.operations.core.facts import Facts, Grid, size_text
from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.rewriting.models import (
    ReasonCount,
    RewriteOptions,
    RewritePlan,
    RewriteResult,
)

_SHOWN = 10
"""The number of partitions, bins and files shown; the JSON contains more."""
_LANDED = ("committed", "remapped", "written-again")


def plan_facts(plan: RewritePlan) -> Facts:
    """Returns the files to rewrite, the reasons and the costs."""
    facts: dict[str, object] = {}
    if not plan.is_noop:
        facts |= {
            "files": plan.num_files,
            "files to rewrite": plan.files,
            "files afterwards": plan.num_files - plan.files + plan.files_after,
            "bytes to read": size_text(plan.bytes),
            "bytes to write": f"about {size_text(plan.bytes_after)}, beside the old files until a "
            "vacuum",
            "deleted rows": plan.deleted_rows or None,
            "size of new files": size_text(plan.target_bytes),
            "rows of a row group": f"at most {plan.row_group_rows:,}",
            "bloom filters": ", ".join(getattr(plan.options, "bloom", ())) or None,
            "bins": plan.bins,
            "commits": plan.commits,
            "engine": plan.engine,
            "workers": plan.workers,
            "memory": f"at most {size_text(plan.memory_bytes)}"
            + (" for each task" if plan.engine == "spark" else ""),
            "reasons": _reasons(plan.reasons),
            "partitions": Grid(
                ("partition", "files", "files after", "bytes"),
                [
                    (
                        partition_text(partition.values),
                        partition.files,
                        partition.files_after,
                        size_text(partition.bytes),
                    )
                    for partition in plan.partitions[:_SHOWN]
                    if partition.values
                ],
            ),
        }
    return facts | {"left alone": _reasons(plan.left_alone), "reason": plan.reason}


def result_facts(result: RewriteResult) -> Facts:
    """Returns the amounts before and after, and the bins that were not committed."""
    facts: dict[str, object] = {}
    lost = [bin_ for bin_ in result.bins if bin_.fate not in _LANDED][:_SHOWN]
    left_out = [file.problem for file in result.refused[:_SHOWN]]
    if result.num_bins:
        facts |= {
            "files before": result.files_before,
            "files after": result.files_after,
            "bytes before": size_text(result.bytes_before),
            "bytes after": size_text(result.bytes_after),
            "rows": result.rows,
            "commits": result.num_commits,
            "depth": _depth(result),
            "bins": ", ".join(f"{count:,} {fate}" for fate, count in (result.fates or {}).items()),
            "not committed": Grid(
                ("bin", "partition", "fate", "problem"),
                [
                    (bin_.number, partition_text(bin_.partition), bin_.fate, bin_.problem)
                    for bin_ in lost
                    # The problem of a refused file is shown once, and names the file.
                    if bin_.problem not in left_out
                ],
            ),
            "left out": left_out,
        }
    told = {*left_out, *(bin_.problem for bin_ in lost)}
    problem = None if result.problem in told else result.problem
    return facts | {"problem": problem}


def conclusion(result: RewriteResult, outcome: Outcome) -> Conclusion:
    """Returns the conclusion of a run: why some bins were not committed, and the remedy."""
    committed = "; the files of other bins are committed" if result.num_commits else ""
    remedies = {
        "failed": f"see the Result{committed}",
        "conflict": "run again, or give --quiet-for to skip partitions that are being written to",
        "partly": "run again to continue",
    }
    remedy = remedies.get(result.status)
    if remedy is None:
        return Conclusion(outcome=outcome)
    return Conclusion(outcome=outcome, problem=result.problem, remedy=remedy)


def planned_amounts(plan: RewritePlan) -> Amounts:
    """Returns the planned commits. A rewrite deletes no files from storage."""
    return Amounts(commits=plan.commits)


def done_amounts(result: RewriteResult) -> Amounts:
    """Returns the commits of a Result."""
    return Amounts(commits=result.num_commits)


def partition_text(values: dict[str, str | None]) -> str:
    """Formats partition values, for instance `day=2026-01-01, country=DE`."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _depth(result: RewriteResult) -> str | None:
    """Returns the average depth before and after, weighted by rows."""
    measured = [
        (bin_.rows, bin_.depth_before, bin_.depth_after)
        for bin_ in result.bins
        if bin_.fate in _LANDED and bin_.depth_before is not None and bin_.depth_after is not None
    ]
    rows = sum(count for count, _, _ in measured)
    if not rows:
        return None
    before, after = (sum(bin_[0] * bin_[at] for bin_ in measured) / rows for at in (1, 2))
    return f"{before:.1f} files for the values of a row before, {after:.1f} after"


def _reasons(counts: tuple[ReasonCount, ...]) -> Grid:
    return Grid(
        ("reason", "files", "bytes"),
        [(count.reason, count.files, size_text(count.bytes)) for count in counts],
    )


Options = TypeVar("Options", bound=RewriteOptions)
Plan = TypeVar("Plan", bound=RewritePlan)
Result = TypeVar("Result", bound=RewriteResult)

_OUTCOMES = {
    "rewritten": Outcome.DONE,
    "partly": Outcome.INCOMPLETE,
    "conflict": Outcome.CONFLICT,
    "failed": Outcome.FAILED,
    "nothing-to-do": Outcome.NOTHING_TO_DO,
}


def rewrite_record(
    name: str,
    *,
    title: str,
    summary: str,
    description: str,
    options: type[Options],
    plan: type[Plan],
    result: type[Result],
    policy: PolicyPart | None = None,
) -> OperationRecord[Options, Plan, Result]:
    """Returns the record of the operation `name`; its package in `operations` has the same name."""
    return OperationRecord(
        name=name,
        title=title,
        purpose="files",
        summary=summary,
        description=description,
        options=options,
        plan=plan,
        result=result,
        code=f"delta_maintenance.operations.rewriting.{name}",
        outcomes=_OUTCOMES,
        effects=Effects(commits=True),
        requires=("rewrite-data",),
        spark=SparkPart(engine="delta_maintenance.spark.rewriting:SparkRewriting"),
        policy=policy,
        decisive=("target_bytes",),
        bounds={"max_files": "files", "max_bytes": "bytes"},
        planned_amounts=planned_amounts,
        done_amounts=done_amounts,
        plan_facts=plan_facts,
        result_facts=result_facts,
        conclusion_of_result=conclusion,
        wrote=lambda result: result.num_commits > 0,
    )
