"""`approve`: shows the plans that wait for an approval, asks, and applies the approved ones."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_spark
from delta_maintenance.cli.output import ProgressLine, print_json, warn
from delta_maintenance.cli.policy_tables import PolicyTables, add_policy_verb, user_name
from delta_maintenance.cli.run_report import report_failures
from delta_maintenance.cli.verbs.run import TableWork, run_on_tables
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.documents import printable
from delta_maintenance.operations.core.facts import count_text, size_text

if TYPE_CHECKING:
    from delta_maintenance.policies.approval import PendingPlan
    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.models import RunResult

_INDENT = " " * 4
_QUESTION = "Apply them? Type yes, no, or the numbers of some, such as 1,3 [no]: "


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_policy_verb(
        verbs,
        "approve",
        summary="show the plans that wait for approval, and apply some",
        description=(
            "Show the plans that wait for an approval on the tables of a policy, ask which of them "
            "to apply, and apply these exactly as shown: a plan that the table has outgrown is "
            "refused. With --state, the plans are those that runs have shown within the last day, "
            "also runs of Airflow; other tables are planned now. Without a terminal, --plan "
            "approves a plan of an earlier list, and --yes all that wait."
        ),
        json_help="print what waits as one JSON document, a list, and with --yes the RunResults",
        example="approve delta_maintenance.yaml sales/orders --state state/",
    )
    parser.add_argument(
        "more_names",
        metavar="TABLE",
        nargs="*",
        help="only these tables of the policy, by name or address",
    )
    parser.add_argument(
        "--yes", action="store_true", help="approve all plans that wait, without a question"
    )
    parser.add_argument(
        "--plan",
        dest="ids",
        metavar="ID",
        action="append",
        help="with --state, approve the plan that an earlier list shows with this ID; repeatable",
    )
    parser.add_argument(
        "--reasons", action="store_true", help="a line for each operation, with its reason"
    )
    add_spark(parser)
    parser.set_defaults(run=run, dry_run=False)


def run(arguments: argparse.Namespace) -> int:
    """Shows what waits, asks, and applies."""
    from delta_maintenance.policies.lanes import work_side_by_side
    from delta_maintenance.policies.on_demand import run_plans

    arguments.names += arguments.more_names
    tables = PolicyTables(arguments)
    warn(tables.found.warnings())
    with ProgressLine() as progress:
        work = TableWork(tables, arguments, progress)
        waiting = work_side_by_side(partial(_waiting_plans, tables, work), tables.tables)
    plans = [plan for plans_of_table, _ in waiting for plan in plans_of_table]
    failed = [result for _, result in waiting if result is not None and result.exit_status]
    status = report_failures(
        (result.name, result.uri, result.problem, result.exit_status) for result in failed
    )
    answers = arguments.yes or arguments.ids is not None
    if arguments.json and not answers:
        print_json([{"id": plan.id, **plan.to_json()} for plan in plans])
        return status
    if arguments.ids is not None:
        plans = _with_ids(plans, arguments.ids)
    if not arguments.json:
        _print(plans, with_ids=arguments.state is not None)
    approved = plans if answers else _ask(plans)
    tables.tables = [table for table in tables.tables if _plans_for(table, approved)]
    if not tables.tables:
        if arguments.json:
            print_json([])
        return status

    def runner(table: PolicyTable) -> Callable[..., RunResult]:
        bound = [plan.plan for plan in _plans_for(table, approved)]
        return partial(run_plans, plans=bound, approved_by=user_name())

    # A person who chose plans did not choose the tables that failed.
    return run_on_tables(tables, arguments, runner) or (status if arguments.yes else 0)


def _waiting_plans(
    tables: PolicyTables, work: TableWork, table: PolicyTable
) -> tuple[Sequence[PendingPlan], RunResult | None]:
    """Returns the plans of a table that wait: those that a run has shown within the last day, or
    else new ones of what is due; with them the last result, which may be a failure.
    """
    from delta_maintenance.errors import failure_of
    from delta_maintenance.policies.approval import plan_to_approve, put_off_operations
    from delta_maintenance.policies.assess import assess_table
    from delta_maintenance.policies.on_demand import run_operation
    from delta_maintenance.policies.run import failed_run, result_without_run

    plans: list[PendingPlan] = []
    result, now = None, clock.now()
    try:
        entry = tables.entry_of(table.uri, table.name)
        snoozed = put_off_operations(entry.put_off, now=now) if entry is not None else set()
        shown = [plan for plan in entry.pending if plan.is_fresh(now)] if entry is not None else []
        if shown:
            waiting = (plan for plan in shown if plan.operation not in snoozed)
            return [plan for plan in waiting if plan.approved_at is None], None
        last_runs = tables.last_runs(table)
        with tables.open(table) as opened:
            assessment = assess_table(opened, table, now=now, last_runs=last_runs)
            if assessment.status == "failed":
                return (), result_without_run(assessment)
            for due in assessment.due:
                if not due.needs_approval or due.operation in snoozed:
                    continue
                result = run_operation(
                    opened,
                    table,
                    due.operation,
                    last_runs=last_runs,
                    plan_only=True,
                    environment=work.environment(table),
                )
                for outcome in result.outcomes:
                    if outcome.status == "planned" and not outcome.is_idle:
                        outcome = replace(outcome, reason=due.reason)
                        plans.append(plan_to_approve(outcome, name=table.name, uri=table.uri))
    except Exception as error:
        return plans, failed_run(table, failure_of(error, where=table.name), now=now)
    return plans, result


def _print(plans: Sequence[PendingPlan], *, with_ids: bool) -> None:
    if not plans:
        print("no plan waits for an approval")
    for number, plan in enumerate(plans, start=1):
        since = None if plan.oldest is None else f"oldest {plan.oldest:%Y-%m-%d}"
        amounts = (count_text(plan.files, "file"), size_text(plan.bytes), since)
        described = (plan.label, *(amounts if plan.files else ()), plan.id if with_ids else None)
        print(f"{number:>2}  {', '.join(filter(None, described))}")
        evidence = [f"due: {plan.reason}", *plan.facts.get("reason", ())]
        evidence += [f"held by {held_files}" for held_files in plan.held]
        for line in evidence:
            print(fill(printable(line), 79, initial_indent=_INDENT, subsequent_indent=_INDENT))


def _with_ids(plans: Sequence[PendingPlan], ids: Sequence[str]) -> list[PendingPlan]:
    chosen = [plan for plan in plans if plan.id in ids]
    unknown = [*dict.fromkeys(ids).keys() - {plan.id for plan in chosen}]
    if unknown:
        raise InvalidRequestError(
            f"no plan {', '.join(sorted(unknown))} waits: it was applied or planned again",
            remedy="list the plans that wait with approve, and give the ID of one",
        )
    return chosen


def _ask(plans: Sequence[PendingPlan]) -> Sequence[PendingPlan]:
    """Returns the plans that a person chooses; none without a terminal."""
    if not plans:
        return ()
    if not is_interactive():
        print("apply them with --yes, or one with --plan and its ID")
        return ()
    with suppress(EOFError):
        while answer := input(_QUESTION).strip().lower():
            if answer in ("yes", "y"):
                return plans
            if answer in ("no", "n"):
                break
            numbers = [int(number) for number in re.findall(r"\d+", answer)]
            if re.fullmatch(r"[\d, ]+", answer) and all(0 < n <= len(plans) for n in numbers):
                return [plans[number - 1] for number in dict.fromkeys(numbers)]
    return ()


def is_interactive() -> bool:
    """Whether a person can read the question and answer it."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _plans_for(table: PolicyTable, plans: Sequence[PendingPlan]) -> list[PendingPlan]:
    return [plan for plan in plans if (plan.name, plan.uri) == (table.name, table.uri)]
