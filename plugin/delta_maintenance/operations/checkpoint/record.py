"""The record of the operation `checkpoint`."""

from __future__ import annotations

from delta_maintenance.operations.checkpoint.options import (
    CheckpointOptions,
    CheckpointPlan,
    CheckpointResult,
)
from delta_maintenance.operations.core.operation import (
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Outcome

RECORD = OperationRecord(
    name="checkpoint",
    title="Write a checkpoint",
    summary="write a checkpoint, so that the table opens fast",
    description=(
        "Write the state of a version as a checkpoint, so that readers need not replay its log. "
        "Adds no version and deletes nothing. The checkpoint is read back and compared before "
        "readers can see it."
    ),
    options=CheckpointOptions,
    plan=CheckpointPlan,
    result=CheckpointResult,
    code="delta_maintenance.operations.checkpoint.operation",
    outcomes={
        "written": Outcome.DONE,
        "already-there": Outcome.DONE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(adds_files=True),
    requires=("checkpoint",),
    spark=SparkPart(
        engine="delta_maintenance.spark.sidecars:SparkSidecars.of_job",
        pins_version=True,
        require="delta_maintenance.operations.checkpoint.operation:require_possible",
    ),
    policy=PolicyPart(
        key="checkpoint",
        rule="delta_maintenance.operations.checkpoint.policy:CheckpointRule",
        description="Checkpoints.",
        due="delta_maintenance.operations.checkpoint.policy:due",
    ),
    takes_version=True,
    reuses_snapshot=True,
    decisive=("kind",),
    wrote=lambda result: result.status == "written",
)
