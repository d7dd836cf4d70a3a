"""The budget of a policy in the tasks of a Dag: the choice of a run, and the part of each table."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import failure_of
from delta_maintenance_airflow.ledger import record_choice
from delta_maintenance_airflow.operators.batches import expected_work

if TYPE_CHECKING:
    from delta_maintenance.policies.assessments import AssessmentEntry, AssessmentStore
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
    from delta_maintenance.policies.budget.selection import select_work
    from delta_maintenance.policies.lanes import work_side_by_side

    history, problem = work.costs
    if problem is not None:
        _log.warning("%s", problem)
    entries = work_side_by_side(partial(_assessed, work, store), rows)
    selection = select_work(
        [(assessment, table) for _, assessment, table in filter(None, entries)],
        _account(rule, store, ti),
        history,
        ranked=problem is None,
        now=clock.now(),
    )
    chosen, waiting, deferred = [], 0, []
    for row, assessed in zip(rows, entries, strict=True):
        allotment = selection.allotments.get(row["name"])
        if assessed is None or allotment is None:
            chosen.append(dict(row))
            continue
        entry = assessed[0]
        due = [operation for operation in row["due"] if operation not in allotment.deferred]
        if allotment.deferred:
            deferred.append((allotment.defer(entry.assessment), entry.assessed_link))
        if not due:
            waiting += len(allotment.deferred)
            continue
        amounts = expected_work(entry.assessment, entry, due)
        limits = allotment.deferred or allotment.max_bytes
        chosen.append(
            {**row, **amounts, "due": due, **({"allotment": allotment.to_json()} if limits else {})}
        )
    work_side_by_side(lambda waits: store.keep(waits[0], link=waits[1]), deferred)
    record_choice(work.policy.ledger, store, [waits for waits, _ in deferred], link=link)
    for line in _lines(selection):
        _log.info("%s", line)
    places = {item.work.table: at for at, item in reversed([*enumerate(selection.choice.chosen)])}
    chosen.sort(key=lambda row: places.get(row["name"], len(places)))
    until = None if selection.until is None else clock.text(selection.until)
    return chosen, {"operations": waiting, "until": until}


def _account(rule: BudgetRule, store: AssessmentStore, ti: Any) -> BudgetAccount:
    from delta_maintenance.policies.budget.account import BudgetAccount

    # The same for all tasks of a Dag run, in every try.
    return BudgetAccount(rule=rule, run_id=f"{ti.dag_id}/{ti.run_id}", store=store.store)


def _assessed(
    work: PolicyWork, store: AssessmentStore, row: Mapping[str, Any]
) -> tuple[AssessmentEntry, Assessment, PolicyTable] | None:
    """Returns the stored assessment of a table, and what of it is to be run."""
    entry = None if row.get("alone") else store.entry_of(row["uri"], row["name"])
    if entry is None:
        return None
    try:
        table = work.rules_of(row["name"], row["uri"])
    except Exception as error:
        # For example a catalog that does not answer: the task of the table reports it.
        _log.warning("%s is not ranked: %s", row["name"], failure_of(error, where=row["name"]))
        return None
    # Operations whose plans wait for an approval are not run.
    operations = tuple(due for due in entry.assessment.operations if due.operation in row["due"])
    return entry, replace(entry.assessment, name=row["name"], operations=operations), table


def _lines(selection: Selection) -> Iterator[str]:
    """Yields what the log says: the order, the cut-off, and why operations wait."""
    from delta_maintenance.policies.budget.selection import UNIT_NAMES, WHY

    choice = selection.choice
    for number, item in enumerate(choice.chosen[:_SHOWN], 1):
        parts, all_parts = item.parts, len(item.work.parts)
        some = f", {parts} of {all_parts} parts" * (parts < all_parts)
        yield f"{number}. {item.work.table}: {item.work.operation}: {WHY[item.why]}{some}"
    if len(choice.chosen) > _SHOWN:
        yield f"and {len(choice.chosen) - _SHOWN} more operations to run"
    for unit, limit in selection.limits.items():
        yield f"{choice.spent.get(unit, 0.0) / limit:.0%} of the {UNIT_NAMES[unit]} that is left"
    places = {(item.work.table, item.work.operation): at for at, item in enumerate(choice.deferred)}
    waiting = [
        (places.get((table, operation), 0), f"{table}: {operation} waits: {why}")
        for table, allotment in selection.allotments.items()
        for operation, why in allotment.deferred.items()
    ]
    until = "to the next run" if selection.until is None else f"until {clock.text(selection.until)}"
    yield f"{len(waiting)} operations are deferred {until}"
    for _, line in sorted(waiting)[:_SHOWN]:
        yield line
    if len(waiting) > _SHOWN:
        yield f"and {len(waiting) - _SHOWN} more operations wait"
    if not choice.keeps_deadlines:
        yield "the budget does not suffice for every operation to run within `most_intervals`"
