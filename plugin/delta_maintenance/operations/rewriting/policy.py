"""The policy rule of an operation that rewrites data files, and when the operation is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import Field

from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.operations.core.evaluation import EvaluationContext, given, not_due, since
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.policy_values import Bytes, Duration
from delta_maintenance.operations.core.rules import Rule
from delta_maintenance.operations.rewriting.models import Reader, RewritePlan


class RewriteRule(Rule):
    """The settings that the rules for all rewrites of data files share."""

    every: Duration
    """The shortest time between two runs."""
    where: str | None = None
    """A condition on partition columns; other partitions are left alone."""
    quiet_for: Duration | None = None
    """Partitions that were written to within this time are left alone."""
    max_bytes: Bytes | None = None
    """The most bytes of data files that one run reads."""
    max_duration: Duration | None = None
    """After this time a run begins no further work."""

    def shared_options(self, context: EvaluationContext) -> dict[str, Any]:
        """Returns the fields of `RewriteOptions` that the policy sets."""
        return given(
            where=self.where,
            quiet_for=self.quiet_for,
            max_bytes=self.max_bytes,
            max_duration=self.max_duration,
            other_writers=context.rules.other_writers,
            engine=context.rules.engine.prefer,
            auto_spark_bytes=context.rules.engine.spark_data_bytes,
        )


class NewFileRule(RewriteRule):
    """The settings of the rules that choose the form of new files."""

    min_files_saved: Annotated[int, Field(ge=1)] = 10
    """Due if a run would reduce the number of files by this number."""
    reader: Reader | None = None
    """The main reader of the table, for which the size and the row groups of new files are chosen;
    `target_bytes` and `row_group_rows` override the choice."""
    target_bytes: Bytes | None = None
    """The size of new files; by default the table's `delta.targetFileSize`, else 128 MiB to 1 GiB
    by the size of the table."""
    row_group_rows: Annotated[int, Field(ge=1)] | None = None
    """The rows of a row group in new files; fewer if these would take more than 256 MiB of memory.
    By default 1,048,576, or as many as take 32 MiB."""
    bloom: tuple[str, ...] = ()
    """The columns for which new files get bloom filters, besides those that the old files have."""

    def shared_options(self, context: EvaluationContext) -> dict[str, Any]:
        """Returns the fields of `NewFileOptions` that the policy sets."""
        return super().shared_options(context) | given(
            reader=self.reader,
            target_bytes=self.target_bytes,
            row_group_rows=self.row_group_rows,
            bloom=self.bloom,
        )


def files_saved(rule: NewFileRule, plan: RewritePlan) -> tuple[bool, str]:
    """Returns whether a run saves as many files as the rule asks for, and why not."""
    saved = plan.files - plan.files_after
    why_not = f"a run would save {count_text(saved, 'file')}, of {rule.min_files_saved} asked for"
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
    last = context.last_run(name)
    why, due_at = since(name, None if last is None else last.at, rule.every, context.now)
    if due_at is not None:
        return not_due(name, why, due_at)
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
        requests=2 * plan.files + 3 * plan.files_after,
    )
