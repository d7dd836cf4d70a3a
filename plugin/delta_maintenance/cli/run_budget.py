"""The budget of a policy for one command: what it lets each table have, and the report of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.output import print_json, print_lines, print_named, warn
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.facts import count_text

if TYPE_CHECKING:
    from delta_maintenance.cli.policy_tables import PolicyTables
    from delta_maintenance.policies.budget.choice import DueWork
    from delta_maintenance.policies.budget.selection import Selection, TableBudget
    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.models import RunResult


class RunBudget:
    """The choice among the due operations of all tables of a command.

    Assesses the tables. Raises `InvalidRequestError` if the policy has no budget.
    """

    def __init__(self, tables: PolicyTables) -> None:
        from delta_maintenance.ledger.costs import known_costs
        from delta_maintenance.policies.budget.account import BudgetAccount
        from delta_maintenance.policies.budget.selection import select_work

        policy, session = tables.session.policy, tables.session
        if policy.budget is None:
            raise InvalidRequestError(
                "the policy has no budget", remedy="add `budget`, as in docs/guides/budgets.md"
            )
        if session.state is None and policy.budget.day.amounts():
            warn(["without --state, the limits of a day count only the operations of this run"])
        now, self.owners = clock.now(), policy.budget.owners
        self.assessments = tables.assessments()
        self.history, problem = known_costs(
            None if tables.recorder is None else tables.recorder.open_ledger,
            now=now,
            prices=policy.prices,
        )
        warn([] if problem is None else [problem])
        self._account = BudgetAccount(
            rule=policy.budget, run_id=clock.new_id(), store=session.state
        )
        self.selection: Selection = select_work(
            # What could not be listed comes after the tables.
            list(zip(self.assessments, tables.tables, strict=False)),
            self._account,
            self.history,
            ranked=problem is None,
            now=now,
        )
        self.selected = [self.selection.defer(assessment) for assessment in self.assessments]
        self._places = self.selection.places
        # Those that are read first have their turn first.
        tables.tables.sort(key=lambda table: self._places.get(table.name, len(self._places)))
        self._by_name = {assessment.name: assessment for assessment in self.selected}

    def of_table(self, table: PolicyTable) -> TableBudget:
        """Returns the budget of the run on a table."""
        from delta_maintenance.policies.budget.selection import Allotment, TableBudget

        return TableBudget(
            table=table,
            account=self._account,
            history=self.history,
            allotment=self.selection.allotments.get(table.name, Allotment()),
            place=self._places.get(table.name, len(self._places)),
        )

    def result_without_work(self, table: PolicyTable) -> RunResult | None:
        """Returns the result for a table on which nothing is to be run; None for others."""
        from delta_maintenance.policies.run import result_without_run

        assessment = self._by_name[table.name]
        return None if assessment.due else result_without_run(assessment)


def print_choice(budget: RunBudget, *, as_json: bool) -> None:
    """Prints what the budget lets run, in order, and why the rest waits."""
    if as_json:
        print_json(budget.selection.to_json())
        return
    from delta_maintenance.policies.budget.selection import choice_text, left_text

    selection, rows = budget.selection, list[Sequence[str]]()
    for number, item in enumerate(selection.choice.chosen, 1):
        cells = _cells(item.work, item.parts, selection)
        rows.append((f"{number}", *cells, choice_text(item)))
    for waiting in selection.choice.deferred:
        work = waiting.work
        why = selection.allotments[work.table].deferred[work.operation]
        if selection.limits:
            better = f"{waiting.better} better, " * (waiting.better > 0)
            why = f"{better}{left_text(waiting, selection.limits, budget.owners)}"
        rows.append(("-", *_cells(work, len(work.parts), selection), why))
    columns = ("table", "operation", "spares", "takes", "share", "why")
    if sys.stdout.isatty():
        # The reason is not cut off.
        print_named(columns, [(f"{place} {table}", *cells) for place, table, *cells in rows])
    else:
        print_lines(("", *columns), rows)
    print(
        "spares: requests of readers a day; takes: processor time;\n"
        "share: of what is left; better: operations with more gain for their cost"
    )
    for line in _sums(selection):
        print(line)


def _short(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"


def _cells(work: DueWork, parts: int, selection: Selection) -> tuple[str, ...]:
    gain = sum(part.gain for part in work.parts[:parts])
    costs = {
        unit: sum(part.cost.get(unit, 0.0) for part in work.parts[:parts])
        for unit in ("cpu_seconds", *selection.limits)
    }
    share = max((costs[unit] / limit for unit, limit in selection.limits.items()), default=None)
    least, most = (_short(costs["cpu_seconds"] * factor) for factor in work.band)
    taken = f"{least} s" if least == most else f"{least}-{most} s"
    return (
        work.table,
        work.operation,
        f"{gain:,.0f}",
        taken,
        "" if share is None else f"{share:.0%}",
    )


def _sums(selection: Selection) -> Iterator[str]:
    from delta_maintenance.policies.budget.selection import (
        NO_DEADLINES,
        UNIT_NAMES,
        amount_text,
        spared_text,
        until_text,
    )

    choice = selection.choice
    chosen, deferred = len(choice.chosen), len(choice.deferred)
    waiting = f", {count_text(deferred, 'operation')} deferred {until_text(selection.until)}"
    yield f"{count_text(chosen, 'operation')} to run{waiting if deferred else ''}"
    if choice.spent:
        yield spared_text(choice.spared)
    for unit, limit in selection.limits.items():
        taken = f"{amount_text(unit, choice.spent[unit])} expected, of " if choice.spent else ""
        yield f"{UNIT_NAMES[unit]}: {taken}{amount_text(unit, limit)} left"
    if not choice.keeps_deadlines:
        yield NO_DEADLINES
