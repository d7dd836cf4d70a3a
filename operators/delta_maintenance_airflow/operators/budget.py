"""The budget of a policy in the tasks of a Dag: the choice of a run, and the part of each table."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import failure_of
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance_airflow.ledger import record_choice
from delta_maintenance_airflow.operators.batches import expected_work

if TYPE_CHECKING:
    from delta_maintenance.policies.assessments import AssessmentStore
    from delta_maintenance.policies.budget.account import BudgetAccount
    from delta_maintenance.policies.budget.selection import Selection, TableBudget
    from delta_maintenance.policies.definition.budget import BudgetRule
    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.models import Assessment
    from delta_maintenance_airflow.policy_work import PolicyWork

_log = logging.getLogger(__name__)
_SHOWN = 20
"""The most operations that the log names, of those that run and of those that wait."""


def table_budget(
    work: PolicyWork, table: PolicyTable, row: Mapping[str, Any], store: AssessmentStore, ti: Any
) -> TableBudget | None:
    """Returns the budget of the run on one table; None if the policy has none.

    `row` is what `choose_rows` returned for the table; without an allotment in it, the account
    alone decides.
    """
    from delta_maintenance.policies.budget.selection import Allotment, TableBudget

    if work.policy.budget is None:
        return None
    return TableBudget(
        table=table,
        account=_account(work.policy.budget, store, ti),
        history=work.costs[0],
        allotment=Allotment.from_json(row.get("allotment") or {}),
    )


def choose_rows(
    work: PolicyWork,
    rule: BudgetRule,
    store: AssessmentStore,
    rows: Sequence[Mapping[str, Any]],
    *,
    ti: Any,
    link: str,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Chooses within the budget among the operations that are due on tables.

    Returns the rows of tables with work, in the order of the choice, each with its `allotment`, and
    how many `operations` of other tables wait, `until` when. What waits is stored for the health
    page and recorded in the ledger. Tables without a usable assessment are not part of the choice:
    they come last, and the account decides about them.
    """
    from delta_maintenance.policies.budget.selection import Allotment, select_work
    from delta_maintenance.policies.lanes import work_side_by_side

    history, problem = work.costs
    if problem is not None:
        _log.warning("%s", problem)
    known = work_side_by_side(partial(_assessed, work, store), rows)
    selection = select_work(
        [
            (_to_run(assessed[0], row), assessed[1])
            for row, assessed in zip(rows, known, strict=True)
            if assessed is not None
        ],
        _account(rule, store, ti),
        history,
        ranked=problem is None,
        now=clock.now(),
    )
    chosen: list[dict[str, Any]] = []
    deferred: list[tuple[Assessment, Allotment]] = []
    waiting = 0
    for row, assessed in zip(rows, known, strict=True):
        if assessed is None:
            chosen.append(dict(row))
            continue
        allotment = selection.allotments.get(row["name"], Allotment())
        newest = allotment.defer(assessed[0])
        if allotment.deferred and newest != assessed[0]:
            deferred.append((newest, allotment))
        due = [operation for operation in row["due"] if operation not in allotment.deferred]
        if due:
            limited = allotment.deferred or allotment.max_bytes
            part = {"allotment": allotment.to_json()} if limited else {}
            amounts = {**expected_work(newest, None, due), "seconds": row["seconds"]}
            chosen.append({**row, **amounts, "due": due, **part})
        else:
            waiting += len(allotment.deferred)
    work_side_by_side(
        lambda waits: store.revise(waits[0].uri, waits[0].name, waits[1].defer), deferred
    )
    record_choice(work.policy.ledger, store, [newest for newest, _ in deferred], link=link)
    for line in _lines(selection):
        _log.info("%s", line)
    places = selection.places
    chosen.sort(key=lambda row: places.get(row["name"], len(places)))
    until = None if selection.until is None else clock.text(selection.until)
    return chosen, {"operations": waiting, "until": until}


def _account(rule: BudgetRule, store: AssessmentStore, ti: Any) -> BudgetAccount:
    from delta_maintenance.policies.budget.account import BudgetAccount

    # The same for all tasks of a Dag run, in every try.
    return BudgetAccount(rule=rule, run_id=f"{ti.dag_id}/{ti.run_id}", store=store.store)


def _assessed(
    work: PolicyWork, store: AssessmentStore, row: Mapping[str, Any]
) -> tuple[Assessment, PolicyTable] | None:
    """Returns a table with its stored assessment, without the commits of its health, which take
    most of its memory.
    """
    entry = store.entry_of(row["uri"], row["name"])
    if entry is None or entry.health is None:
        return None
    try:
        table = work.rules_of(row["name"], row["uri"])
    except Exception as error:
        # For example a catalog that does not answer: the task of the table reports it.
        _log.warning("%s is not ranked: %s", row["name"], failure_of(error, where=row["name"]))
        return None
    return replace(entry.assessment, health=replace(entry.health, commits=())), table


def _to_run(assessment: Assessment, row: Mapping[str, Any]) -> Assessment:
    """Returns what of an assessment is to be run: plans that wait for an approval are not, and what
    another run, or an earlier try of the task, has deferred may be.
    """
    operations = tuple(
        replace(operation, status="due") if operation.status == "deferred" else operation
        for operation in assessment.operations
        if operation.operation in row["due"]
    )
    return replace(assessment, name=row["name"], operations=operations)


def _lines(selection: Selection) -> Iterator[str]:
    """Yields what the log says: the order, the cut-off, and why operations wait."""
    from delta_maintenance.policies.budget.selection import (
        NO_DEADLINES,
        UNIT_NAMES,
        choice_text,
        spared_text,
        until_text,
    )

    choice = selection.choice
    order = [
        f"{number}. {item.work.table}: {item.work.operation}: {choice_text(item)}"
        for number, item in enumerate(choice.chosen, 1)
    ]
    waiting = [
        f"{work.table}: {work.operation} waits: "
        f"{selection.allotments[work.table].deferred[work.operation]}"
        for work in (item.work for item in choice.deferred)
    ]
    for lines, what in ((order, "to run"), (waiting, f"deferred {until_text(selection.until)}")):
        if lines:
            yield f"{count_text(len(lines), 'operation')} {what}"
        yield from lines[:_SHOWN]
        if len(lines) > _SHOWN:
            yield f"and {len(lines) - _SHOWN:,} more"
    if choice.spent:
        yield spared_text(choice.spared)
    for unit, spent in choice.spent.items():
        share = spent / selection.limits[unit]
        yield f"{share:.0%} of what is left of the {UNIT_NAMES[unit]} is expected to be taken"
    if not choice.keeps_deadlines:
        yield NO_DEADLINES
