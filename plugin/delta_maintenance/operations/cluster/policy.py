"""The rule of a policy for sorting the rows of data files."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import cluster
from delta_maintenance.operations.cluster import ClusterOptions, ClusterPlan
from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.evaluation import EvaluationContext, not_due
from delta_maintenance.operations.core.policy_values import Duration, Share
from delta_maintenance.operations.rewriting.policy import NewFileRule, due_rewrite, files_saved


class ClusterRule(NewFileRule):
    """When the rows of data files are sorted."""

    every: Duration = Field(default="1 day", validate_default=True)
    """The shortest time between two runs."""
    above_depth: Annotated[float, Field(ge=1)] = 4.0
    """Also due if a reader of one value of each clustering column opens more files on average,
    according to the log."""
    above_share: Share = 0.1
    """Also due if a larger share of the bytes of the table is in files that are not clustered."""
    by: tuple[str, ...] = ()
    """The columns by which rows are sorted in a table without clustering columns. Without them,
    such a table is left alone."""
    curve: Literal["hilbert", "z-order", "linear"] = "hilbert"
    """The order of rows by several columns: `hilbert` and `z-order` serve all columns alike,
    `linear` the first one best."""


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due if there are files to sort, and these are many, large or spread over all values."""
    rule = context.rule("cluster", ClusterRule)
    if rule is not None and not _options(rule, context).by and not _is_clustered(context):
        return not_due("cluster", "the table has no clustering columns, and the rule names none")
    return due_rewrite("cluster", context, ClusterRule, _planned, partial(_judged, context))


def sorts(context: EvaluationContext) -> bool:
    """Returns whether the policy has the rows of the table sorted."""
    rule = context.rule("cluster", ClusterRule)
    if rule is None:
        return False
    # Imported here, because rules are read without Arrow.
    from delta_maintenance.operations.cluster.planning import order_of

    try:
        order_of(context.snapshot, _options(rule, context))
    except DeltaMaintenanceError:
        return False
    return True


def _is_clustered(context: EvaluationContext) -> bool:
    return bool(context.health.clustering_columns)


def _options(rule: ClusterRule, context: EvaluationContext) -> ClusterOptions:
    by = () if _is_clustered(context) else rule.by
    return ClusterOptions(**rule.shared_options(context), by=by, curve=rule.curve)


def _planned(rule: ClusterRule, context: EvaluationContext) -> ClusterPlan:
    options = _options(rule, context)
    return cluster.plan(context.snapshot, options, context=RunContext.at(context.now))


def _judged(context: EvaluationContext, rule: ClusterRule, plan: ClusterPlan) -> tuple[bool, str]:
    if plan.is_noop:
        return False, plan.reason
    enough, why_not = files_saved(rule, plan)
    if enough:
        return True, plan.reason
    from delta_maintenance.operations.cluster.choice import NOT_CLUSTERED

    fresh = sum(each.bytes for each in plan.reasons if each.reason == NOT_CLUSTERED)
    share = fresh / context.health.total_bytes if context.health.total_bytes else 0.0
    if share > rule.above_share:
        return True, f"{share:.1%} of the bytes are not clustered; {plan.reason}"
    from delta_maintenance.operations.cluster.planning import order_of
    from delta_maintenance.operations.layout.operation import depth_by

    order = order_of(context.snapshot, plan.options)
    depth = depth_by(context.snapshot, [column.path for column in order.columns])
    if depth is not None and depth > rule.above_depth:
        return True, f"a reader of one value opens {depth:.1f} files; {plan.reason}"
    opens = "" if depth is None else f", and a reader of one value opens {depth:.1f} files"
    return False, f"{why_not}; {share:.1%} of the bytes are not clustered{opens}"
