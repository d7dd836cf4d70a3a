"""The record of the operation `compact-log`."""

from __future__ import annotations

from delta_maintenance.operations.compact_log.options import (
    CompactLogOptions,
    CompactLogPlan,
    CompactLogResult,
)
from delta_maintenance.operations.core.facts import Facts, count_text, size_text
from delta_maintenance.operations.core.operation import (
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome


def plan_facts(plan: CompactLogPlan) -> Facts:
    """The windows, and the reason for them."""
    return {
        "table": plan.table,
        "version": plan.version,
        "windows": [f"{w.first_version} to {w.last_version}" for w in plan.windows],
        "reason": plan.reason,
        "to read": size_text(plan.log_bytes),
        "engine": plan.engine,
        "notes": plan.notes,
    }


def result_facts(result: CompactLogResult) -> Facts:
    """The result for each window."""
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "windows": [
            f"{w.first_version} to {w.last_version}: {w.status}"
            + (f", {w.reason}" if w.reason else "")
            for w in result.windows
        ],
        "written": size_text(result.bytes_written),
        "notes": result.notes,
    }


def conclusion(result: CompactLogResult, outcome: Outcome) -> Conclusion:
    """Names the first window that was not compacted."""
    if not result.failures:
        return Conclusion(outcome=outcome)
    first = result.failures[0]
    return Conclusion(
        outcome=outcome,
        problem=f"{count_text(len(result.failures), 'window')} could not be compacted, the first "
        f"from version {first.first_version} to {first.last_version}: {first.reason}",
        file=first.path,
        remedy="see the Result for each of them",
    )


RECORD = OperationRecord(
    name="compact-log",
    title="Compact the log",
    summary="combine the commits after a checkpoint into fewer files",
    description=(
        "Write log compactions, which readers may read in place of the commits they cover. Adds "
        "no version and deletes nothing. Each compaction is read back and compared before "
        "readers can see it."
    ),
    options=CompactLogOptions,
    plan=CompactLogPlan,
    result=CompactLogResult,
    code="delta_maintenance.operations.compact_log.operation",
    outcomes={
        "written": Outcome.DONE,
        "already-there": Outcome.DONE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
        "failed": Outcome.FAILED,
    },
    effects=Effects(adds_files=True),
    requires=("compact-log",),
    spark=SparkPart(
        engine="delta_maintenance.spark.compact_log:SparkRange.of_job", pins_version=True
    ),
    policy=PolicyPart(
        key="compact_log",
        rule="delta_maintenance.operations.compact_log.policy:CompactLogRule",
        description="Log compactions.",
        due="delta_maintenance.operations.compact_log.policy:due",
    ),
    reuses_snapshot=True,
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
    wrote=lambda result: result.status in ("written", "failed"),
)
