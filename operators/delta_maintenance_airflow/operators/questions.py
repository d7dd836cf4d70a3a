"""Questions to people: plans as Markdown, what is stored of a question, and who may answer."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import core
from delta_maintenance.operations.core.documents import Document, markdown_cell, markdown_row
from delta_maintenance_airflow.compat import AirflowException
from delta_maintenance_airflow.settings import assessment_store, separate_approver
from delta_maintenance_airflow.tasks import link_to, retrying_only_what_may_pass

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.policies.approval import PendingPlan

_log = logging.getLogger(__name__)
_MOST = 8_000
"""The maximum number of characters of a text, because it is stored in Airflow's database."""
_TOLD = ("table", "reason")
"""Facts that are shown above the others, or in the subject."""


def name_of(user: Mapping[str, Any] | None) -> str | None:
    """The name of the person who answered; None if the question timed out."""
    return None if user is None else str(user.get("name") or user.get("id") or "") or None


def require_valid_approval(
    context: Context, event: Mapping[str, Any], plans: Iterable[PendingPlan]
) -> None:
    """Fails this try of the task unless another person approved the plans of the question.

    The person who triggered the run cannot approve if `[delta_maintenance] separate_approver` is
    set. Runs that were started by a schedule or an asset have no such person.

    The page of approvals sends the IDs of the plans that it shows. The page may be older than the
    question: if tasks were cleared, the same task asks about new plans. Airflow's own form sends no
    IDs.
    """
    run, user = context["dag_run"], event.get("responded_by_user")
    requester = getattr(run, "triggering_user_name", None)
    is_manual = requester is not None or str(getattr(run, "run_type", "")) == "manual"
    if is_manual and separate_approver():
        approvers = {str(user[key]) for key in ("id", "name") if user.get(key)} if user else set()
        if requester is None or not approvers or requester in approvers:
            raise AirflowException(
                f"the run was triggered by {requester or 'a person whose name is unknown'}; the "
                "approval must be given by another person, so the question is asked again"
            )
    shown_ids = (event.get("params_input") or {}).get("shown")
    if shown_ids is not None and not {plan.id for plan in plans} <= set(shown_ids):
        raise AirflowException(
            "the operation was planned again after the page of approvals was loaded, and the "
            "approval is for the earlier plan; the question is asked again: reload the page"
        )


def open_question(
    context: Context, plans: Iterable[PendingPlan], timeout: timedelta | None
) -> None:
    """Stores that the task of a context asks about these plans."""
    with retrying_only_what_may_pass():
        store = assessment_store()
        for plan in plans:
            question = replace(
                plan,
                link=link_to(context),
                approved_at=None,
                asked_by=getattr(context["dag_run"], "triggering_user_name", None),
                expires_at=None if timeout is None else clock.now() + timeout,
            )
            store.open_question(question)


def close_question(plans: Iterable[PendingPlan], *, approved: Collection[str] = ()) -> None:
    """Stores that the question about these plans is closed; `approved` are labels.

    An answer must not be lost because the store is down: the page asks Airflow, too.
    """
    try:
        store = assessment_store()
        for plan in plans:
            at = clock.now() if plan.label in approved else None
            store.close_question(plan, approved_at=at)
    except (DeltaMaintenanceError, AirflowException) as error:
        _log.warning("the closed question cannot be stored: %s", error)


def plans_text(plans: Sequence[PendingPlan]) -> str:
    """Formats several plans as one table."""
    number = core.count_text(len(plans), "plan")
    tables = core.count_text(len({plan.name for plan in plans}), "table")
    files = core.count_text(sum(plan.files for plan in plans), "file")
    total = core.size_text(sum(plan.bytes for plan in plans))
    verb = "waits" if len(plans) == 1 else "wait"
    sentence = (
        f"{number} on {tables} {verb} for approval; together they delete {files} ({total}). "
        "Choose plans below, and an answer for them. The other plans will be asked about again."
    )
    rows = [
        (
            plan.name,
            plan.operation,
            f"{plan.files:,}",
            core.size_text(plan.bytes),
            f"{plan.share:.0%}" if plan.share is not None else "",
            clock.minute_text(plan.due_since),
            plan.reason,
        )
        for plan in plans
    ]
    columns = ("table", "operation", "deletes files", "bytes", "share", "waits since", "why")
    return _text_within_limit(f"{sentence}\n\n", columns, rows)


def plan_text(operation: str, reason: str, plan: Mapping[str, Any] | None) -> str:
    """Formats one plan: why it was made, its own reason, and a table of its facts."""
    read = None if plan is None else core.find(operation).plan.from_json(plan)
    return _document_text(operation, reason, read, () if read is None else [read.reason])


def result_text(operation: str, reason: str, result: Mapping[str, Any] | None) -> str:
    """Formats one result likewise."""
    read = None if result is None else core.find(operation).result.from_json(result)
    return _document_text(operation, reason, read, ())


def _document_text(
    operation: str, reason: str, document: Document | None, sentences: Iterable[str]
) -> str:
    first = f"{operation}: {markdown_cell(reason)}"
    if document is None:
        return first
    facts = core.brief_facts(document.facts())
    rows = [(name, line) for name, lines in facts.items() if name not in _TOLD for line in lines]
    text = "\n\n".join((first, *map(markdown_cell, filter(None, sentences))))
    return _text_within_limit(f"{text}\n\n", ("fact", "value"), rows)


def _text_within_limit(text: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [markdown_row(columns), markdown_row(["---"] * len(columns))]
    size = len(text) + sum(map(len, lines))
    for number, cells in enumerate(rows):
        line = markdown_row(map(markdown_cell, cells))
        if size + len(line) > _MOST:
            note = f"\n\nand {len(rows) - number} more, in the log of the task that planned"
            return text + "\n".join(lines) + note
        size += len(line) + 1
        lines.append(line)
    return text + "\n".join(lines)
