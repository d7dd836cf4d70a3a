"""The record of the operation `checksum`."""

from __future__ import annotations

from delta_maintenance.operations.checksum.options import (
    ChecksumOptions,
    ChecksumPlan,
    ChecksumResult,
)
from delta_maintenance.operations.core.operation import Effects, OperationRecord, PolicyPart
from delta_maintenance.operations.core.outcome import Outcome

RECORD = OperationRecord(
    name="checksum",
    title="Write version checksums",
    summary="write missing version checksums, so that readers get counts without the log",
    description=(
        "Write the version checksum of the latest version and of each version with a checkpoint "
        "that has none. Adds no version, deletes nothing, and never changes an existing "
        "checksum."
    ),
    options=ChecksumOptions,
    plan=ChecksumPlan,
    result=ChecksumResult,
    code="delta_maintenance.operations.checksum.operation",
    outcomes={
        "written": Outcome.DONE,
        "already-there": Outcome.DONE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(adds_files=True),
    requires=("checkpoint",),
    policy=PolicyPart(
        key="checksum",
        rule="bool",
        description="Version checksums for readers, if writers write none.",
        due="delta_maintenance.operations.checksum.policy:due",
    ),
    reuses_snapshot=True,
    wrote=lambda result: result.status == "written",
)
