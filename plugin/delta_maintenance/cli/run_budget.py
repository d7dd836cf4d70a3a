"""The budget of a policy for one command: what it lets each table have, and the report of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.output import print_json, print_lines, warn
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.quantities import duration_text

if TYPE_CHECKING:
    from delta_maintenance.cli.policy_tables import PolicyTables
    from delta_maintenance.policies.budget.choice import DueWork
    from delta_maintenance.policies.budget.selection import Selection, TableBudget
    from delta_maintenance.policies.definition.budget import Unit
    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.models import RunResult


_LONGEST = 1e13
"""The seconds of the longest duration that is printed: a ledger may have rows with any numbers."""


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
        now = clock.now()
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
        self._by_name = {assessment.name: assessment for assessment in self.selected}

    def of_table(self, table: PolicyTable) -> TableBudget:
        """Returns the budget of the run on a table."""
        from delta_maintenance.policies.budget.selection import Allotment, TableBudget

        return TableBudget(
            table=table,
            account=self._account,
            history=self.history,
            allotment=self.selection.allotments.get(table.name, Allotment()),
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
    from delta_maintenance.policies.budget.selection import UNIT_NAMES, choice_text

    selection = budget.selection
    rows: list[Sequence[str]] = []
    for number, item in enumerate(selection.choice.chosen, 1):
        cells = _cells(item.work, item.parts, selection)
        rows.append((f"{number}", *cells, choice_text(item)))
    for waiting in selection.choice.deferred:
        unit = "" if waiting.unit is None else f"{UNIT_NAMES[waiting.unit]}: "
        why = f"{waiting.better} better, {unit}{waiting.left:.0%} left"
        cells = _cells(waiting.work, len(waiting.work.parts), selection)
        rows.append(("-", *cells, why if selection.limits else "spent or reserved"))
    print_lines(("", "table", "operation", "spares", "takes", "share", "why"), rows)
    print(
        "spares: requests of readers a day; takes: processor time; share: of what is left;\n"
        "better: operations with more gain for their cost"
    )
    for line in _sums(selection):
        print(line)


def _amount(unit: Unit, amount: float) -> str:
    if unit == "bytes_rewritten":
        return size_text(int(amount))
    if unit not in ("seconds", "cpu_seconds"):
        return f"{amount:,.2f}" if unit == "money" else f"{amount:,.0f}"
    whole = timedelta(seconds=round(min(amount, _LONGEST)))
    return f"{amount:.2f} s" if amount < 60 else duration_text(whole)


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
        spared_text,
        until_text,
    )

    choice = selection.choice
    chosen, deferred = len(choice.chosen), len(choice.deferred)
    waiting = f", {count_text(deferred, 'operation')} deferred {until_text(selection.until)}"
    yield f"{count_text(chosen, 'operation')} to run{waiting if deferred else ''}"
    if chosen:
        yield spared_text(choice.spared)
    for unit, limit in selection.limits.items():
        taken = _amount(unit, choice.spent.get(unit, 0.0))
        yield f"{UNIT_NAMES[unit]}: {taken} expected, of {_amount(unit, limit)} that are left"
    if not choice.keeps_deadlines:
        yield NO_DEADLINES
