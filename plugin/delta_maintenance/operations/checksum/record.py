"""The record of the operation `checksum`."""

from __future__ import annotations

from delta_maintenance.operations.checksum.options import (
    ChecksumOptions,
    ChecksumPlan,
    ChecksumResult,
)
from delta_maintenance.operations.core.facts import Facts, Grid, size_text
from delta_maintenance.operations.core.operation import Effects, OperationRecord, PolicyPart
from delta_maintenance.operations.core.outcome import Outcome


def plan_facts(plan: ChecksumPlan) -> Facts:
    """The versions that get a checksum."""
    return {
        "table": plan.table,
        "version": plan.version,
        "versions": ", ".join(f"{version:,}" for version in plan.versions),
        "reason": plan.reason,
        "log": f"{size_text(plan.log_bytes)}, read once for each checksum",
        "notes": plan.notes,
    }


def result_facts(result: ChecksumResult) -> Facts:
    """The written checksums, with what they count."""
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "checksums": Grid(
            ("version", "status", "live files", "size"),
            [
                (each.version, each.status, each.num_files, size_text(each.total_size))
                if each.path is not None
                else (each.version, each.status, "", "")
                for each in result.versions
            ],
        ),
        "notes": result.notes,
    }


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
    plan_facts=plan_facts,
    result_facts=result_facts,
    reuses_snapshot=True,
    wrote=lambda result: result.status == "written",
)
