"""The operation `compact-log`, as every surface knows it."""

from __future__ import annotations

from delta_maintenance.operations.compact_log.facts import ending, plan_facts, result_facts
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
    summary="put the commits after a checkpoint into fewer files",
    description="Write log compactions, each of which readers may read in place of the commits it "
    "covers.\nAdds no version and deletes nothing; each is read back and compared before any "
    "reader can see\nit. Prints what was written, with --dry-run what would be, and why.",
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
    ending_of_result=ending,
    wrote=lambda result: result.status in ("written", "failed"),
)
