"""The record of the operation `compact-log`."""

from __future__ import annotations

from delta_maintenance.operations.compact_log.facts import conclusion, plan_facts, result_facts
from delta_maintenance.operations.compact_log.options import (
    CompactLogOptions,
    CompactLogPlan,
    CompactLogResult,
)
from delta_maintenance.operations.core.operation import (
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Outcome

RECORD = OperationRecord(
    name="compact-log",
    title="Compact the log",
    summary="combine the commits after a checkpoint into fewer files",
    description=(
        "Write log compactions, which readers may read in place of the commits they cover. Adds "
        "no\nversion and deletes nothing. Each compaction is read back and compared before "
        "readers can\nsee it. Prints the result; --dry-run prints the plan and its reason."
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
