"""The policy rule for row IDs."""

from __future__ import annotations

import math

from delta_maintenance.operations.backfill_row_ids import BackfillRowIdsOptions
from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.evaluation import EvaluationContext, blocked, given, not_due


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due until row tracking is enabled."""
    if not context.rule("row_tracking", bool):
        return None
    health, engine = context.health, context.rules.engine
    if health.row_tracking == "enabled":
        return not_due("backfill-row-ids", "row tracking is enabled")
    if health.row_tracking in ("suspended", "contradictory"):
        return blocked(
            "backfill-row-ids",
            f"row tracking is {health.row_tracking}; run backfill-row-ids manually with the "
            "option that changes this",
        )
    options = BackfillRowIdsOptions(
        **given(
            engine=engine.prefer,
            auto_spark_files=engine.spark_files,
            other_writers=context.rules.other_writers,
        )
    ).validated()
    commits = math.ceil(health.num_files / options.files_per_commit) + 2
    return AssessedOperation(
        operation="backfill-row-ids",
        status="due",
        reason=f"row tracking is {health.row_tracking}, and the policy requires it",
        engine="spark" if engine.prefer == "spark" else "local",
        options=options,
        bytes_to_read=health.bytes_to_open,
        requests=health.files_to_open + 3 * commits,
    )
