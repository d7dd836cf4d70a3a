"""Operators that ask for the approval of all plans of a run in one task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import BaseOperator, Param

from delta_maintenance import clock
from delta_maintenance_airflow.compat import AirflowException, AirflowSkipException
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from delta_maintenance_airflow.operators.questions import (
    close_question,
    name_of,
    open_question,
    plans_text,
    require_valid_approval,
)
from delta_maintenance_airflow.settings import assessment_store
from delta_maintenance_airflow.tasks import (
    as_flag,
    retrying_only_what_may_pass,
    returned_rows,
    returned_values,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.policies.approval import PendingPlan
    from delta_maintenance.policies.assessments import AssessmentEntry, AssessmentStore
    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.models import RunResult

APPROVE, REJECT, SNOOZE, LATER = "Approve", "Reject", "Snooze", "Ask again later"
ALL = "all of them"
_PUT_OFF = timedelta(days=7)
_WAITING = "needs-approval"
_OPEN = ("awaiting_input", "deferred")
_READS_AT_ONCE = 16


class DeltaPendingPlansOperator(BaseOperator):
    """Collects the plans that wait for an approval after a run over the tables of a policy.

    Returns them as `PendingPlan` in JSON, the plans that have waited longest first. The task and
    the tasks after it are skipped if there are no such plans, or while an earlier run of the Dag
    has its question open. A later run then asks about the plans.

    :param assess_task: the mapped task of `DeltaAssessOperator`.
    :param run_task: the mapped task of `DeltaPolicyRunOperator`.
    :param approve_task: the task of `DeltaApprovalsOperator`.
    :param most: the most plans in one question.
    :param plan_only: whether the run only plans, so that no approval is needed. (templated)
    """

    template_fields: Sequence[str] = ("plan_only",)
    ui_color = "#00add4"

    def __init__(
        self,
        *,
        assess_task: str,
        run_task: str,
        approve_task: str,
        most: int = 100,
        plan_only: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.assess_task = assess_task
        self.run_task = run_task
        self.approve_task = approve_task
        self.most = most
        self.plan_only = plan_only

    def execute(self, context: Context) -> list[dict[str, Any]]:
        if as_flag(self.plan_only, "plan_only"):
            raise AirflowSkipException("this run only plans")
        ti = context["ti"]
        tables = [
            *(
                (row["uri"], row["name"])
                for rows in returned_values(ti, self.assess_task)
                for row in rows
                if row["waits"]
            ),
            *(
                (each["uri"], each["name"])
                for each in returned_rows(ti, self.run_task)
                if _is_waiting(each)
            ),
        ]
        if not tables:
            raise AirflowSkipException("no plan waits for an approval")
        open_questions = ti.get_ti_count(
            dag_id=ti.dag_id, task_ids=[self.approve_task], states=list(_OPEN)
        )
        if open_questions:
            raise AirflowSkipException("an earlier run is already waiting for its approvals")
        with retrying_only_what_may_pass():
            store = assessment_store()
            pending = _pending(store, dict.fromkeys(tables), now=clock.now())
            chosen = pending[: self.most]
            if len(pending) > len(chosen):
                self.log.info(
                    "%d more plans will be part of later questions", len(pending) - len(chosen)
                )
        if not chosen:
            raise AirflowSkipException("no plan waits for an approval")
        return [plan.to_json() for plan in chosen]


class DeltaApprovalsOperator(HITLOperator):
    """Asks once about all waiting plans, and returns those that were approved.

    The question shows the plans as a table and offers them as a list. The answer applies to the
    chosen plans: *Approve*, *Reject* (no question for a week) or *Snooze* (until the given date, or
    for a week). The other plans keep waiting, and so do all of them without an answer in time.

    Returns, for `DeltaApprovedRunOperator`, an object with `table`, `plans` and `approved_by` for
    each table. If
    `[delta_maintenance] separate_approver` is set, the person who triggered the run cannot approve.

    :param plans: the return value of `DeltaPendingPlansOperator`. (templated)
    """

    template_fields: Sequence[str] = (*HITLOperator.template_fields, "plans")
    ui_color = "#00add4"

    def __init__(
        self,
        *,
        plans: Sequence[Mapping[str, Any]],
        response_timeout: timedelta | None = timedelta(hours=24),
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("subject", "Delta tables: plans wait for your approval")
        # Airflow adds the parameters of the Dag, which are not part of the question.
        kwargs["params"] = {"plans": _choice([]), "snooze_until": _date()}
        super().__init__(
            options=[APPROVE, REJECT, SNOOZE, LATER],
            defaults=LATER,
            response_timeout=response_timeout,
            **kwargs,
        )
        self.plans = plans

    def execute(self, context: Context) -> Any:
        pending = self._pending
        self.body = plans_text(pending)
        self.params["plans"] = _choice([ALL, *(plan.label for plan in pending)])
        open_question(context, pending, self.response_timeout)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> list[dict[str, Any]]:
        if "error" in event:
            self.process_trigger_event_error(event)
        params = event.get("params_input") or {}
        chosen = self._chosen(params.get("plans") or ())
        answer = (event.get("chosen_options") or [LATER])[0]
        by = name_of(event.get("responded_by_user"))
        self.log.info("%s, by %s: %s", answer, by or "nobody", [plan.label for plan in chosen])
        if answer == APPROVE:
            require_valid_approval(context, event, chosen)
        approved = {plan.label for plan in chosen} if answer == APPROVE else set()
        close_question(self._pending, approved=approved)
        if answer == APPROVE:
            return _by_table(chosen, by)
        if answer in (REJECT, SNOOZE):
            until = _until(params.get("snooze_until") if answer == SNOOZE else None)
            self._put_off(chosen, "snoozed" if answer == SNOOZE else "rejected", until, by)
        return []

    @property
    def _pending(self) -> list[PendingPlan]:
        from delta_maintenance.policies.approval import PendingPlan

        return [PendingPlan.from_json(plan) for plan in self.plans]

    def _chosen(self, labels: Iterable[str]) -> list[PendingPlan]:
        pending, selected = self._pending, set(labels)
        if ALL in selected:
            return pending
        unknown = selected - {plan.label for plan in pending}
        if unknown:
            raise AirflowException(
                f"these plans were not part of the question: {sorted(unknown)[:3]}"
            )
        return [plan for plan in pending if plan.label in selected]

    def _put_off(
        self, plans: Iterable[PendingPlan], answer: Any, until: datetime, by: str | None
    ) -> None:
        from delta_maintenance.policies.approval import PutOff

        store = assessment_store()
        for plan in plans:
            put_off = PutOff(
                operation=plan.operation, answer=answer, until=until, at=clock.now(), by=by
            )
            store.put_off(plan, put_off)


class DeltaApprovedRunOperator(DeltaPolicyRunOperator):
    """Runs approved plans of one table, in order, each exactly as it was shown.

    An operation is planned again as of the time of the approved plan. If the new plan has another
    effect, because the table has changed, the task fails and changes nothing. The limits of the
    policy apply; its hours do not, because a person has just approved.

    Takes the parameters of `DeltaPolicyRunOperator`, of which `table` is not templated here, and:

    :param plans: the approved plans in JSON.
    :param approved_by: the name of the person who approved them, if known.
    """

    # Airflow renders objects that `expand_kwargs` passes as templates, here without a sandbox. They
    # contain addresses, and a folder with the name of a template would run code on the worker.
    template_fields: Sequence[str] = tuple(
        field for field in DeltaPolicyRunOperator.template_fields if field != "table"
    )

    # A person has approved.
    is_scheduled = False

    def __init__(
        self, *, plans: Sequence[Mapping[str, Any]], approved_by: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.plans = plans
        self.approved_by = approved_by

    def runner(self, table: PolicyTable, known: AssessmentEntry | None) -> Callable[..., RunResult]:
        from delta_maintenance.policies.approval import ApprovedPlan
        from delta_maintenance.policies.on_demand import run_plans

        plans = [ApprovedPlan.from_json(plan) for plan in self.plans]
        return partial(run_plans, plans=plans, approved_by=self.approved_by)


def _pending(
    store: AssessmentStore, tables: Iterable[tuple[str, str]], *, now: datetime
) -> list[PendingPlan]:
    """Returns the plans of these tables, given by address and name, that are not snoozed, those
    that have waited longest first.
    """
    from delta_maintenance.policies.approval import put_off_operations

    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        entries = [e for e in pool.map(lambda table: store.entry_of(*table), tables) if e]
    waiting = [
        plan
        for entry in entries
        for plan in entry.pending
        if plan.is_fresh(now)
        and plan.approved_at is None
        and plan.operation not in put_off_operations(entry.put_off, now=now)
    ]
    return sorted(waiting, key=lambda plan: (plan.due_since, plan.name))


def _by_table(plans: Iterable[PendingPlan], by: str | None) -> list[dict[str, Any]]:
    rows_by_table: dict[str, dict[str, Any]] = {}
    for plan in plans:
        table = {"name": plan.name, "uri": plan.uri}
        row = rows_by_table.setdefault(plan.name, {"table": table, "plans": [], "approved_by": by})
        row["plans"].append(plan.plan.to_json())
    return list(rows_by_table.values())


def _is_waiting(outcome: Mapping[str, Any]) -> bool:
    return any(text.endswith(f": {_WAITING}") for text in outcome.get("operations") or ())


def _choice(labels: Sequence[str]) -> Param:
    return Param(
        [],
        type="array",
        source="task",
        items={"type": "string"},
        examples=list(labels),
        title="Plans",
        description="The plans to which the answer applies.",
    )


def _date() -> Param:
    return Param(
        None,
        source="task",
        type=["string", "null"],
        format="date",
        title="Snooze until",
        description="For Snooze: ask again on this day. By default in a week.",
    )


def _until(text: str | None) -> datetime:
    if not text:
        return clock.now() + _PUT_OFF
    try:
        day = date.fromisoformat(text[:10])
    except ValueError:
        raise AirflowException(
            f"{text[:40]!r} is not a date; give one such as 2026-12-31"
        ) from None
    return datetime.combine(day, time(), UTC)
