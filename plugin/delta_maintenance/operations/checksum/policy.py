"""The policy rule for version checksums."""

from __future__ import annotations

from delta_maintenance.operations import checksum
from delta_maintenance.operations.checksum import ChecksumOptions
from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.evaluation import EvaluationContext, not_due


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due while the latest version, or one with a checkpoint, has no checksum."""
    if not context.rule("checksum", bool):
        return None
    options = ChecksumOptions()
    plan = checksum.plan(context.snapshot, options, context=RunContext.at(context.now))
    if plan.is_noop:
        return not_due("checksum", plan.reason)
    return AssessedOperation(
        operation="checksum",
        status="due",
        reason=plan.reason,
        engine="local",
        options=options,
        bytes_to_read=plan.log_bytes * len(plan.versions),
        requests=context.health.files_to_open + len(plan.versions),
    )
