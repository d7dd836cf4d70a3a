"""The budget of a policy in a step: which due operations of its tables run, and which wait.

Each step is a process of its own. It compares its tables with the others of the policy as the
shared folder knows them, so that the steps of a run come to the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.address import identity_of
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance_dagster.table_run import FinishedRun, TableRun

if TYPE_CHECKING:
    from delta_maintenance.ledger.recording import Recorder
    from delta_maintenance.ledger.rows import Origin
    from delta_maintenance.policies.definition.policy import Policy, PolicyTable
    from delta_maintenance.policies.models import Assessment
    from delta_maintenance.storage import Store

_PATIENCE = 30.0
"""The seconds for which a choice waits for the store of a table."""
_RECENT = timedelta(days=2)
"""The age up to which assessments count: nothing maintains the tables of older ones."""


def within_budgets(runs: Sequence[TableRun]) -> list[TableRun]:
    """Returns the runs of a step, each with what the budget of its policy lets its table have."""
    limited: list[TableRun] = []
    for policy in {id(run.table.among): run.table.among for run in runs}.values():
        of_policy = [run for run in runs if run.table.among is policy]
        if policy is None or policy.budget is None:
            limited += of_policy
        else:
            limited += _within_budget(of_policy, policy)
    return limited


def record_choice(runs: Sequence[TableRun], ended: Sequence[FinishedRun]) -> None:
    """Records the operations that wait after a step, in the ledgers of its policies."""
    from delta_maintenance.ledger.rows import rows_of_choice

    for run in {id(run.table.among): run for run in runs if run.budget is not None}.values():
        results = [item.result for item in ended if item.table.among is run.table.among]
        newest = [latest for result in results if (latest := result.newest_assessment) is not None]

        def record(recorder: Recorder, origin: Origin, newest: Any = newest) -> list[str]:
            return recorder.record_rows(rows_of_choice(newest, origin), origin)

        if run.ledger is not None:
            run.ledger.deliver(record)


def _within_budget(runs: Sequence[TableRun], policy: Policy) -> Iterator[TableRun]:
    # Loads pyarrow, which loading definitions must not require.
    from delta_maintenance.ledger.costs import known_costs
    from delta_maintenance.policies.budget.account import BudgetAccount
    from delta_maintenance.policies.budget.selection import (
        NO_DEADLINES,
        Allotment,
        TableBudget,
        select_work,
    )
    from delta_maintenance.policies.lanes import Turns, start_jobs, wait_for

    assert policy.budget is not None
    now, context, ledger = clock.now(), runs[0].context, runs[0].ledger
    jobs = start_jobs(TableRun.assess, runs)
    # A table whose store is silent holds up no other: the choice does not know its operations.
    runs = [
        job.result() if wait_for(job, patience=_PATIENCE) else run
        for run, job in zip(runs, jobs, strict=True)
    ]
    state, stored = _shared_state(runs[0])
    history, problem = known_costs(
        None if ledger is None else lambda: ledger.open(state), now=now, prices=policy.prices
    )
    account = BudgetAccount(rule=policy.budget, run_id=context.run.run_id, store=state)
    assessed = [*_assessed(runs, policy, stored)]
    selection = select_work(assessed, account, history, ranked=problem is None, now=now)
    if problem is not None:
        context.log.warning(f"budget: {problem}")
    if not selection.choice.keeps_deadlines:
        context.log.warning(f"budget: {NO_DEADLINES}")
    # Beside each other, operations that take more than expected would exceed the budget.
    turns, places = Turns(at_once=1), selection.places
    for run in runs:
        budget = TableBudget(
            table=run.table.policy,
            account=account,
            history=history,
            allotment=selection.allotments.get(run.table.policy.name, Allotment()),
            place=places.get(run.table.policy.name, len(places)),
        )
        yield replace(run, turns=turns, budget=budget)


def _shared_state(run: TableRun) -> tuple[Store | None, Mapping[str | None, Assessment]]:
    """Returns the shared folder, and its assessments by the identities of addresses."""
    from delta_maintenance.policies.assessments import AssessmentEntry

    problem = "there is no `execution.state`"
    if run.outbox is not None:
        try:
            folder = run.outbox.open(run.context.resources)
            entries = [e for e in folder.load_all() if isinstance(e, AssessmentEntry)]
            return folder.store, {entry.identity: entry.assessment for entry in entries}
        except DeltaMaintenanceError as error:
            problem = str(error)
    run.context.log.warning(
        f"budget: this step compares only its own tables, and counts only what it does: {problem}"
    )
    return None, {}


def _assessed(
    runs: Sequence[TableRun], policy: Policy, stored: Mapping[str | None, Assessment]
) -> Iterator[tuple[Assessment, PolicyTable]]:
    """Yields the assessed tables of this step, and those of other steps as they were stored."""
    from delta_maintenance.policies.models import with_due_since

    own = {identity_of(run.table.uri): run for run in runs}
    for identity, run in own.items():
        if run.assessed is not None:
            yield with_due_since(run.assessed, stored.get(identity)), run.table.policy
    # The limit of a run is for its own tables: others would hold up a run of a few tables.
    is_of_run = policy.budget is not None and policy.budget.run.amounts()
    selected = runs[0].context.run.asset_selection if is_of_run else None
    for table in runs[0].resources.tables:
        identity = identity_of(table.uri)
        assessment = stored.get(identity)
        if assessment is None or assessment.health is None or identity in own:
            continue
        is_old = clock.now() - assessment.assessed_at > _RECENT
        is_selected = selected is None or table.maintenance_key in selected
        if table.among is policy and is_selected and not is_old:
            # What waited after its last run competes again.
            operations = tuple(
                replace(item, status="due") if item.status == "deferred" else item
                for item in assessment.operations
            )
            yield replace(assessment, name=table.policy.name, operations=operations), table.policy
