"""Operators that run one operation on demand: plan, approval, apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator

from delta_maintenance.address import is_catalog_name
from delta_maintenance.operations import core
from delta_maintenance.operations.core.documents import printable
from delta_maintenance.redaction import redact_address
from delta_maintenance_airflow.compat import AirflowFailException, AirflowSkipException
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from delta_maintenance_airflow.operators.questions import (
    close_question,
    name_of,
    open_question,
    plan_text,
    require_valid_approval,
    result_text,
)
from delta_maintenance_airflow.policy_work import PolicyWork
from delta_maintenance_airflow.settings import any_address
from delta_maintenance_airflow.tasks import as_flag, link_to

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.policies.approval import PendingPlan
    from delta_maintenance.policies.assessments import AssessmentEntry
    from delta_maintenance.policies.definition.policy import Policy, PolicyTable
    from delta_maintenance.policies.models import RunResult


class DeltaManualOperator(DeltaPolicyRunOperator):
    """Runs one operation on one table on demand, whether or not it is due.

    The options are those of the table's policy, overridden by `options`. With `plan_only`, the
    result has `is_idle`, which is true if there is nothing to do; `needs_approval`, which is true
    if the plan deletes or repairs something, raises the protocol or drops a feature, or if the
    policy requires an approval; `plan_text` for people; and
    `plan`, for the task that carries it out. That task plans again, and fails if the table has
    changed in a way that changes the plan. Without `plan_only`, the result has `result_text`.

    The table must be a table of the policy, unless `[delta_maintenance] any_address` is set; a
    table outside of the policy has the defaults. `drop-feature` and `add-constraint` cannot be part
    of a policy, so they need options: the `feature`; `name` and `expression`. If a feature is
    disabled but cannot be dropped yet, the task succeeds with the status `incomplete`, and
    `problem` states from when on another run can drop it.

    :param operation: the verb of the command line: an operation of policies, `drop-feature` or
        `add-constraint`. (templated)
    :param options: fields of the operation's Options, which override those of the policy. Empty
        values stand for those of the policy. (templated)
    :param plan: the return value of the planning task. (templated)
    :param approval: the return value of the approving task. (templated)
    :param stop_after_plan: with `plan_only`: skip the tasks after the plan. (templated)
    :param short_retention: whether `options` may shorten a retention, by `allow_short_retention`
        and `no_other_writers`.
    """

    template_fields: Sequence[str] = (
        *DeltaPolicyRunOperator.template_fields,
        "operation",
        "options",
        "plan",
        "approval",
        "stop_after_plan",
    )
    template_fields_renderers = {"options": "json", "plan": "json"}
    is_scheduled = False

    def __init__(
        self,
        *,
        operation: str,
        options: Mapping[str, Any] | None = None,
        plan: Mapping[str, Any] | None = None,
        approval: Mapping[str, Any] | None = None,
        stop_after_plan: bool | str = False,
        short_retention: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.operation = operation
        self.options = options
        self.plan = plan
        self.approval = approval
        self.stop_after_plan = stop_after_plan
        self.short_retention = short_retention

    def execute(self, context: Context) -> dict[str, Any]:
        if self.plan is not None:
            if self.plan.get("only_planned"):
                raise AirflowSkipException("only a plan was requested")
            chosen = (self.approval or {}).get("chosen_options")
            if self.plan["needs_approval"] and chosen != [ApprovalOperator.APPROVE]:
                raise AirflowSkipException("this plan was not approved")
            if self.plan["needs_approval"] and not self.plan.get("plan"):
                raise AirflowFailException("there is no plan that could have been approved")
        return super().execute(context)

    def policy_work(self) -> PolicyWork:
        require_allowed_options(self.options or {}, short_retention=self.short_retention)
        work = PolicyWork(self.policy, may_lack=True)
        if (uri := self.table.get("uri")) is not None:
            require_table_of_policy(work.policy, uri)
        return work

    def runner(self, table: PolicyTable, known: AssessmentEntry | None) -> Callable[..., RunResult]:
        from delta_maintenance.policies.approval import Approvals, ApprovedPlan
        from delta_maintenance.policies.on_demand import run_operation

        self._table = table
        approved = (self.plan or {}).get("plan")
        return partial(
            run_operation,
            operation=self.operation,
            options=self.options or {},
            plan_only=self.plans,
            approvals=Approvals(
                plans=(ApprovedPlan.from_json(approved),) if approved else (),
                by=name_of((self.approval or {}).get("responded_by_user")),
            ),
        )

    @property
    def plans(self) -> bool:
        """Whether this task only plans."""
        return as_flag(self.plan_only, "plan_only")

    def facts(self, result: RunResult) -> Mapping[str, Any]:
        if not self.plans or not result.outcomes:
            return {}
        outcome = result.outcomes[-1]
        only_reads = core.find(outcome.operation).effects.only_reads
        return {
            "is_idle": outcome.result is not None and outcome.is_idle and not only_reads,
            "needs_approval": self._needs_approval(result),
            "only_planned": as_flag(self.stop_after_plan, "stop_after_plan"),
        }

    def _facts_of_run(
        self, context: Context, result: RunResult, entry: AssessmentEntry | None
    ) -> tuple[dict[str, Any], Exception | None]:
        result_facts, failure = super()._facts_of_run(context, result, entry)
        if failure is not None or not result.outcomes:
            return result_facts, failure
        if not self.plans:
            done = result.outcomes[-1]
            result_facts["result_text"] = result_text(done.operation, done.reason, done.result)
            return result_facts, None
        from delta_maintenance.policies.approval import plan_to_approve

        outcome = result.outcomes[-1]
        plan = outcome.result
        if plan is not None:
            pending = plan_to_approve(outcome, name=result.name, uri=result.uri)
            result_facts["plan"] = pending.plan.to_json()
            result_facts["pending"] = replace(pending, requested=True).to_json()
        result_facts["plan_text"] = plan_text(outcome.operation, outcome.reason, plan)
        self.log.info("%s", result_facts["plan_text"])
        return result_facts, None

    def _needs_approval(self, result: RunResult) -> bool:
        from delta_maintenance.policies.approval import asks_for_approval

        outcome = result.outcomes[-1]
        if self._table.rules.needs_approval(outcome.operation) or outcome.result is None:
            return outcome.result is not None or core.find(outcome.operation).effects.deletes
        return asks_for_approval(outcome.operation, outcome.result)


class DeltaApprovalOperator(ApprovalOperator):
    """Shows the plan and waits for its approval. Continues at once if no approval is needed.

    Without an answer in time, the plan counts as rejected, and nothing is carried out. If
    `[delta_maintenance] separate_approver` is set, the person who triggered the run cannot approve.

    :param plan: the return value of the planning `DeltaManualOperator`. (templated)
    """

    template_fields: Sequence[str] = (*ApprovalOperator.template_fields, "plan")

    def __init__(
        self,
        *,
        plan: Mapping[str, Any],
        response_timeout: timedelta | None = timedelta(hours=24),
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("subject", "Delta table maintenance")
        kwargs.setdefault("defaults", ApprovalOperator.REJECT)
        super().__init__(response_timeout=response_timeout, **kwargs)
        self.plan = plan

    def execute(self, context: Context) -> Any:
        if self.plan.get("only_planned") or not self.plan["needs_approval"]:
            self.log.info("this plan needs no approval")
            return {"chosen_options": [self.APPROVE], "params_input": {}}
        operation = self.plan["operations"][0].partition(":")[0]
        self.subject = f"{operation} of {printable(self.plan['uri'])}"
        self.body = self.plan["plan_text"]
        open_question(context, self._pending, self.response_timeout)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        # Airflow knows the parameters of the Dag only, of which the question has none.
        if event.get("chosen_options") == [self.APPROVE]:
            require_valid_approval(context, event, self._pending)
        close_question(replace(plan, link=link_to(context)) for plan in self._pending)
        return super().execute_complete(context, {**event, "params_input": {}})

    @property
    def _pending(self) -> list[PendingPlan]:
        """The plan to approve; nothing if the planning task left none."""
        from delta_maintenance.policies.approval import PendingPlan

        pending = self.plan.get("pending")
        return [] if pending is None else [PendingPlan.from_json(pending)]


def require_allowed_options(options: Mapping[str, Any], *, short_retention: bool) -> None:
    """Fails the task for options that the Dag does not permit."""
    shorter = [name for name in SHORT_RETENTION if options.get(name)]
    if shorter and not short_retention:
        raise AirflowFailException(
            f"this Dag may not shorten a retention: leave out {' and '.join(shorter)}, or use the "
            "Dag that `DagIds(short_retention=...)` adds"
        )
    beside = next((name for name in ("inventory", "clones", "holders") if options.get(name)), None)
    if beside is not None and not any_address():
        raise AirflowFailException(
            f"{_BESIDE[beside]} outside of the policy: leave it out, or set "
            "[delta_maintenance] any_address in Airflow's configuration"
        )


def require_table_of_policy(policy: Policy, uri: str) -> None:
    """Fails the task for the address of a table that the policy neither names nor finds.

    With `[delta_maintenance] any_address`, all users who may trigger the Dag may use any address.
    """
    if any_address():
        return
    plain = uri.rstrip("/")
    if is_catalog_name(plain):
        # The policy and its catalog are asked for the table itself.
        return
    # In stores of objects, `..` would match a pattern as the name of a folder.
    leaves = any(segment in (".", "..") for segment in plain.split("/"))
    is_of_policy = policy.address_of(plain) is not None or policy.has_table_at(plain)
    if leaves or not is_of_policy:
        raise AirflowFailException(
            f"{redact_address(uri)[:300]} is not a table of the policy: add it there, or set "
            "[delta_maintenance] any_address in Airflow's configuration"
        )


_BESIDE = {
    "inventory": "an inventory is",
    "clones": "the address of a clone is",
    "holders": "the addresses of holders are",
}
"""Options with addresses that a task would read."""
SHORT_RETENTION = ("allow_short_retention", "no_other_writers")
"""Options by which an operation deletes files younger than the table's own retention."""
