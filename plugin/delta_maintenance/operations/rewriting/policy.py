"""The rules of a policy for rewriting data files: merging, purging and sorting them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import Field

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import cluster, optimize, purge
from delta_maintenance.operations.cluster import ClusterOptions, ClusterPlan
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    WorkPart,
    not_due,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.flags import has_field
from delta_maintenance.operations.core.policy_values import Duration, Share
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.optimize import OptimizeOptions, OptimizePlan
from delta_maintenance.operations.purge import PurgeOptions, PurgePlan
from delta_maintenance.operations.rewriting.models import DELETED_ROWS, RewritePlan

_MOST_PARTS = 8
"""The most parts into which a budget divides a run."""


class RewriteRule(Rule):
    """When data files are rewritten."""

    every: Duration
    """The shortest time between two runs."""


class NewFileRule(RewriteRule):
    """When data files are rewritten as fewer files."""

    min_files_saved: Annotated[int, Field(ge=1)] = 10
    """Due if a run would reduce the number of files by this number."""


def _spark_from(context: EvaluationContext) -> dict[str, Any]:
    return {"auto_spark_bytes": context.rules.engine.spark_data_bytes}


def files_saved(rule: NewFileRule, plan: RewritePlan) -> tuple[bool, str]:
    """Returns whether a run saves as many files as the rule asks for, and why not."""
    saved = plan.files - plan.files_after
    least = count_text(rule.min_files_saved, "file")
    why_not = f"a run would save {count_text(saved, 'file')}, and is due from {least} on"
    return saved >= rule.min_files_saved, why_not


AnyRule = TypeVar("AnyRule", bound=RewriteRule)
Plan = TypeVar("Plan", bound=RewritePlan)


def due_rewrite(
    name: str,
    context: EvaluationContext,
    rule_type: type[AnyRule],
    planned: Callable[[AnyRule, EvaluationContext], Plan],
    judged: Callable[[AnyRule, Plan], tuple[bool, str]],
) -> AssessedOperation | None:
    """Assesses whether the operation `name` is due; None if the policy does not request it.

    `planned` returns a plan for the latest version. `judged` returns whether the plan is worth a
    run, and why.
    """
    rule = context.rule(name, rule_type)
    if rule is None:
        return None
    calendar_reason, due_at = context.since_last_run(name, rule.every)
    if due_at is not None:
        return not_due(name, calendar_reason, due_at)
    plan = planned(rule, context)
    is_due, reason = judged(rule, plan)
    if not is_due:
        return not_due(name, reason)
    return AssessedOperation(
        operation=name,
        status="due",
        reason=reason,
        engine=plan.engine,
        options=plan.options,
        bytes_to_read=plan.bytes,
        bytes_to_copy=plan.bytes_to_copy,
        requests=2 * plan.files + 3 * plan.files_after,
        saves_files=max(0, plan.files - plan.files_after),
        parts=parts_of(plan),
    )


def parts_of(plan: RewritePlan) -> tuple[WorkPart, ...]:
    """Returns the parts that runs limited by `max_bytes` do one after the other, as far as the
    plan shows them: the bins that save the most files for their bytes come first.
    """
    count = min(plan.bins, _MOST_PARTS)
    if count < 2 or not has_field(plan.options, "max_bytes"):
        return ()
    # Imported here, because rules are read without it.
    import numpy as np

    sizes = [(each.bytes, each.files - each.files_after) for each in plan.partitions]
    sizes.sort(key=lambda size: -size[1] / max(1, size[0]))
    rest = plan.bytes - sum(size for size, _ in sizes)
    if rest > 0:
        saved = plan.files - plan.files_after - sum(saved for _, saved in sizes)
        sizes.append((rest, saved))
    read, saved_files = np.cumsum([(0, 0), *sizes], axis=0).T
    ends = np.linspace(0, read[-1], count + 1)
    saved_until = np.interp(ends, read, saved_files)
    pairs = zip(np.diff(ends.round()).tolist(), np.diff(saved_until.round()).tolist(), strict=True)
    return tuple(WorkPart(bytes=int(size), saves_files=max(0, int(saved))) for size, saved in pairs)


class ClusterRule(NewFileRule):
    """When the rows of data files are sorted."""

    every: Duration = Field(default="1 day", validate_default=True)
    """The shortest time between two runs."""
    above_depth: Annotated[float, Field(ge=1)] = 4.0
    """Also due if a reader of one value of each clustering column opens more files on average,
    according to the log."""
    above_share: Share = 0.1
    """Also due if a larger share of the bytes of the table is in files that are not clustered."""


def due_cluster(context: EvaluationContext) -> AssessedOperation | None:
    """Due if there are files to sort, and these are many, large or spread over all values."""
    rule = context.rule("cluster", ClusterRule)
    if rule is not None and not _cluster_options(rule, context).by and not _is_clustered(context):
        return not_due("cluster", "the table has no clustering columns, and the rule names none")
    return due_rewrite(
        "cluster", context, ClusterRule, _planned_cluster, partial(_judged_cluster, context)
    )


def sorts(context: EvaluationContext) -> bool:
    """Returns whether the policy has the rows of the table sorted."""
    rule = context.rule("cluster", ClusterRule)
    if rule is None:
        return False
    # Imported here, because rules are read without Arrow.
    from delta_maintenance.operations.rewriting.cluster_planning import order_of

    try:
        order_of(context.snapshot, _cluster_options(rule, context))
    except DeltaMaintenanceError:
        return False
    return True


def _is_clustered(context: EvaluationContext) -> bool:
    return bool(context.health.clustering_columns)


def _cluster_options(rule: ClusterRule, context: EvaluationContext) -> ClusterOptions:
    options = context.options(ClusterOptions, rule, **_spark_from(context))
    return replace(options, by=()) if _is_clustered(context) else options


def _planned_cluster(rule: ClusterRule, context: EvaluationContext) -> ClusterPlan:
    options = _cluster_options(rule, context)
    return cluster.plan(context.snapshot, options, context=RunContext.at(context.now))


def _judged_cluster(
    context: EvaluationContext, rule: ClusterRule, plan: ClusterPlan
) -> tuple[bool, str]:
    if plan.is_noop:
        return False, plan.reason
    enough, why_not = files_saved(rule, plan)
    if enough:
        return True, plan.reason
    from delta_maintenance.operations.rewriting.cluster_choice import NOT_CLUSTERED

    fresh = sum(count.bytes for count in plan.reasons if count.reason == NOT_CLUSTERED)
    share = fresh / context.health.total_bytes if context.health.total_bytes else 0.0
    if share > rule.above_share:
        return True, f"{share:.1%} of the bytes are not clustered; {plan.reason}"
    from delta_maintenance.operations.layout.operation import depth_by
    from delta_maintenance.operations.rewriting.cluster_planning import order_of

    order = order_of(context.snapshot, plan.options)
    depth = depth_by(context.snapshot, [column.path for column in order.columns])
    if depth is not None and depth > rule.above_depth:
        return True, f"a reader of one value opens {depth:.1f} files; {plan.reason}"
    opens = "" if depth is None else f", and a reader of one value opens {depth:.1f} files"
    return False, f"{why_not}; {share:.1%} of the bytes are not clustered{opens}"


class OptimizeRule(NewFileRule):
    """When small data files are merged. Also due if a file has more deleted rows than
    `deleted_percent` allows.
    """

    every: Duration = Field(default="1 day", validate_default=True)
    """The shortest time between two runs."""


def due_optimize(context: EvaluationContext) -> AssessedOperation | None:
    """Due if a run would save enough files, or if a file has too many deleted rows.

    Never due where the policy has the rows sorted: `cluster` writes the same files larger.
    """
    if context.rule("optimize", OptimizeRule) is not None and sorts(context):
        return not_due("optimize", "the rule for cluster also merges the small files of the table")
    return due_rewrite("optimize", context, OptimizeRule, _planned_optimize, _judged_optimize)


def _planned_optimize(rule: OptimizeRule, context: EvaluationContext) -> OptimizePlan:
    options = context.options(OptimizeOptions, rule, **_spark_from(context))
    return optimize.plan(context.snapshot, options, context=RunContext.at(context.now))


def _judged_optimize(rule: OptimizeRule, plan: OptimizePlan) -> tuple[bool, str]:
    enough, why_not = files_saved(rule, plan)
    deleted = any(count.reason == DELETED_ROWS for count in plan.reasons)
    return (True, plan.reason) if enough or deleted else (False, why_not)


class PurgeRule(RewriteRule):
    """When files with deleted rows are rewritten without them."""

    every: Duration = Field(default="7 days", validate_default=True)
    """The shortest time between two runs."""


def due_purge(context: EvaluationContext) -> AssessedOperation | None:
    """Due if a live file has deleted rows or values of dropped columns."""
    return due_rewrite("purge", context, PurgeRule, _planned_purge, _judged_purge)


def _planned_purge(rule: PurgeRule, context: EvaluationContext) -> PurgePlan:
    options = context.options(PurgeOptions, rule, **_spark_from(context))
    return purge.plan(context.snapshot, options, context=RunContext.at(context.now))


def _judged_purge(_: PurgeRule, plan: PurgePlan) -> tuple[bool, str]:
    return not plan.is_noop, plan.reason
