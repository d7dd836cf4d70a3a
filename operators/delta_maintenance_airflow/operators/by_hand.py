"""Operators for one operation that somebody asks for: planned, approved, carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator

from delta_maintenance.operations import core
from delta_maintenance_airflow.compat import AirflowException, AirflowSkipException
from delta_maintenance_airflow.hooks.policy import PolicyHook
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator, task_key
from delta_maintenance_airflow.policy_work import PolicyWork, submitter
from delta_maintenance_airflow.progress import LoggedProgress
from delta_maintenance_airflow.template_values import as_flag

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.errors import BusyError
    from delta_maintenance.policies.assessments import AssessmentEntry
    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.models import OperationOutcome, RunResult

_PLAN_LENGTH = 4_000


class DeltaManualOperator(DeltaPolicyRunOperator):
    """One operation on one table because somebody asks for it, due or not.

    It is set up as the table's policy sets it up, with `options` over that. With `plan_only` the
    result has `needs_approval`, which is true where something would be deleted or repaired, the
    protocol raised or a feature taken out of it, or where the policy asks for it; `plan_text` for
    people; and `plan`, to be handed to the task that carries it out. That task plans anew, and
    fails where the table has moved in a way that changes the plan.

    A table without a policy has the defaults. No policy asks for `drop-feature` and
    `add-constraint`, so that these need options: the `feature`; `name` and `expression`. Where a
    feature is switched off, but cannot be dropped yet, the task succeeds with the status
    `incomplete`, and `problem` says from when on another run can.

    :param operation: the verb of the command line: one of those that a policy knows, `drop-feature`
        or `add-constraint`. (templated)
    :param options: fields of the operation's Options, over those of the policy. Empty values stand
        for what the policy says. (templated)
    :param plan: what the planning task returned. (templated)
    :param approval: what the approving task returned. (templated)
    :param stop_after_plan: with `plan_only`: tell the tasks behind that the plan is all that was
        asked for. (templated)
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

    def __init__(
        self,
        *,
        operation: str,
        options: Mapping[str, Any] | None = None,
        plan: Mapping[str, Any] | None = None,
        approval: Mapping[str, Any] | None = None,
        stop_after_plan: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.operation = operation
        self.options = options
        self.plan = plan
        self.approval = approval
        self.stop_after_plan = stop_after_plan

    def execute(self, context: Context) -> dict[str, Any]:
        if self.plan is not None:
            if self.plan.get("only_planned"):
                raise AirflowSkipException("only a plan was asked for")
            chosen = (self.approval or {}).get("chosen_options")
            if self.plan["needs_approval"] and chosen != [ApprovalOperator.APPROVE]:
                raise AirflowSkipException("this plan was not approved")
        return super().execute(context)

    def policy_work(self) -> PolicyWork:
        return PolicyWork(self.policy, may_lack=True)

    def busy(self, error: BusyError) -> Exception:
        # Somebody waits for it: it is tried again.
        return AirflowException(str(error))

    def work(
        self, table: PolicyTable, context: Context, known: AssessmentEntry | None
    ) -> RunResult:
        from delta_maintenance.policies.approval import ApprovedPlan
        from delta_maintenance.policies.on_demand import run_operation

        self._table = table
        given = {name: value for name, value in (self.options or {}).items() if value not in _EMPTY}
        approved = (self.plan or {}).get("plan")
        return run_operation(
            PolicyHook(table.rules.storage).open_table(table.uri),
            table,
            self.operation,
            options=given,
            last_runs=known.last_runs if known is not None else (),
            plan_only=self.plans,
            approved=ApprovedPlan.from_json(approved) if approved else None,
            submit=submitter(context, task_key(self, context), self._submissions.append),
            progress=LoggedProgress(self.log),
        )

    @property
    def plans(self) -> bool:
        """Whether this task only plans."""
        return as_flag(self.plan_only)

    def facts(self, result: RunResult) -> Mapping[str, Any]:
        if not self.plans or not result.outcomes:
            return {}
        return {
            "needs_approval": self._needs_approval(result),
            "only_planned": as_flag(self.stop_after_plan),
        }

    def _ended(self, context: Context, result: RunResult) -> dict[str, Any]:
        told = super()._ended(context, result)
        if not self.plans or not result.outcomes:
            return told
        from delta_maintenance.policies.approval import ApprovedPlan

        outcome = result.outcomes[-1]
        plan = outcome.result
        if plan is not None:
            approved = ApprovedPlan.of(
                outcome.operation, plan, planned_at=outcome.started_at
            ).to_json()
            told["plan"] = approved
        told["plan_text"] = _text(outcome)
        self.log.info("%s", told["plan_text"])
        return told

    def _needs_approval(self, result: RunResult) -> bool:
        from delta_maintenance.policies.approval import asks_for_approval

        outcome = result.outcomes[-1]
        if outcome.operation in self._table.rules.approval or outcome.result is None:
            return outcome.result is not None or core.find(outcome.operation).effects.deletes
        return asks_for_approval(outcome.operation, outcome.result)


class DeltaApprovalOperator(ApprovalOperator):
    """Shows somebody the plan, and waits for a yes. Where nothing needs one, it goes on at once.

    Without an answer in time it is a no, and nothing is carried out.

    :param plan: what the planning `DeltaManualOperator` returned. (templated)
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
            self.log.info("nothing of this plan needs an approval")
            return {"chosen_options": [self.APPROVE], "params_input": {}}
        operation = self.plan["operations"][0].partition(":")[0]
        self.subject = f"{operation} of {self.plan['uri']}"
        self.body = self.plan["plan_text"]
        return super().execute(context)


_EMPTY = (None, "")


def _text(outcome: OperationOutcome) -> str:
    """A plan for people, in Markdown."""
    record, lines = core.find(outcome.operation), [outcome.reason]
    if outcome.result is None:
        return outcome.reason
    plan = record.plan.from_json(outcome.result)
    facts = {
        name: value for name, value in core.shown(record.plan_facts(plan)) if name not in _TOLD
    }
    if plan.reason:
        lines.append(plan.reason)
    told = [f"* {name}: `{_plain(line)}`" for name, v in facts.items() for line in _some(v)]
    text = "\n\n".join(lines) + "\n\n" + "\n".join(told)
    return text if len(text) <= _PLAN_LENGTH else f"{text[: _PLAN_LENGTH - 1]}…"


_TOLD = ("table", "reason")
"""What stands above the facts, or in the subject."""
_SHOWN = 10


def _some(value: object) -> list[str]:
    """The first lines of a fact, and how many more there are."""
    lines = core.fact_lines(value)
    more = len(lines) - _SHOWN
    return lines if more <= 0 else [*lines[:_SHOWN], f"and {more:,} more"]


def _plain(value: Any) -> str:
    # Names of files may hold anything; here they are shown, and nothing else.
    return str(value).replace("`", "'").replace("\n", " ")
