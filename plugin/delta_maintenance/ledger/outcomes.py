"""Outcomes of operations that ran without a policy."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from delta_maintenance.errors import failure_of
from delta_maintenance.operations.core.registry import AnyOperation
from delta_maintenance.policies.execute import STATUSES
from delta_maintenance.policies.measuring import Cost
from delta_maintenance.policies.models import OperationOutcome


def outcome_of_document(
    record: AnyOperation,
    document: Any,
    *,
    planned: bool,
    failure: Exception | None,
    started: datetime,
    seconds: float,
    cost: Cost | None,
) -> OperationOutcome:
    """Returns the outcome of an operation that ran without a policy.

    `document` is its Plan or its Result; None if it failed or was interrupted before it had one.
    """
    reason = "requested" if document is not None else "interrupted"
    blank = OperationOutcome(
        operation=record.name,
        status="failed",
        reason=str(failure_of(failure, where=record.name)) if failure is not None else reason,
        started_at=started,
        seconds=seconds,
        cost=cost,
    )
    if document is None:
        return blank
    engine: Literal["local", "spark"] = getattr(document, "engine", "local")
    blank = replace(blank, engine=engine, result=document.to_json())
    if planned:
        return replace(blank, status="planned", reason=document.reason)
    conclusion = record.conclusion(document)
    return replace(
        blank,
        status=STATUSES[conclusion.outcome],
        reason=str(conclusion) or blank.reason,
        commits=record.done_amounts(document).commits,
    )
