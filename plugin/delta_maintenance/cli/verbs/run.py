"""`run`: the operations that are due on the tables of a policy, one table after the other."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.cli.approvals import add_approvals, plans_by_table, read_plans
from delta_maintenance.cli.arguments import Verbs, add_spark
from delta_maintenance.cli.output import Progress, print_json, print_table
from delta_maintenance.cli.policy_tables import PolicyTables, add_policy_verb
from delta_maintenance.cli.spark_launcher import run_spark_job
from delta_maintenance.cli.verbs.assess import worst

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from delta_maintenance.policies.approval import ApprovedPlan
    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.models import AssessedOperation, Assessment, LastRun, RunResult


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_policy_verb(
        verbs,
        "run",
        summary="run the maintenance that is due on the tables of a policy",
        description=(
            "Run the operations that are due on each table according to the policy, in order, "
            "within its\nlimits and its hours. A failure ends the run on its table only. It is "
            "not a failure if\nnothing is due. Prints the outcomes; --dry-run prints the plans "
            "for the current tables."
        ),
        json_help="print the RunResults as one JSON document, a list",
    )
    add_approvals(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="only plan what is due, and change nothing"
    )
    add_spark(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs, and prints the outcomes."""
    file = arguments.approve_from
    named = read_plans(file)
    tables = PolicyTables(arguments)
    plans = plans_by_table(named, tables.tables, file=file)
    with Progress() as progress:
        results = [
            _run(tables, table, arguments, plans.get(table.name, ()), progress)
            for table in tables.tables
        ]
    results += [_unlisted(assessment) for assessment in tables.unlisted]
    if arguments.json:
        print_json([result.to_json() for result in results])
    else:
        print_table(
            ("table", "operation", "status", "seconds", "why"),
            [row for result in results for row in _rows(result)],
        )
    return worst(
        (each.name, each.problem, each.exit_status) for each in results if each.exit_status
    )


def _run(
    tables: PolicyTables,
    table: PolicyTable,
    arguments: argparse.Namespace,
    plans: Sequence[ApprovedPlan],
    progress: Progress,
) -> RunResult:
    from delta_maintenance.policies.approval import Approvals
    from delta_maintenance.policies.environment import RunEnvironment
    from delta_maintenance.policies.failures import failure_of
    from delta_maintenance.policies.run import failed_run, run

    started = clock.now()
    last_runs: Sequence[LastRun] = ()
    try:
        last_runs, _ = tables.known(table)
        with tables.opened(table) as opened:
            result = run(
                opened,
                table,
                last_runs=last_runs,
                approvals=Approvals(operations=arguments.approve, plans=plans),
                plan_only=arguments.dry_run,
                environment=RunEnvironment(
                    submit=partial(_submit, tables, arguments), progress=progress
                ),
            )
        latest = result.after or result.before
        if latest is not None and not arguments.dry_run:
            tables.keep(latest, result)
    except Exception as error:
        failure = failure_of(error, where=table.name)
        return failed_run(table, failure, now=started, last_runs=last_runs)
    return result


def _unlisted(pattern: Assessment) -> RunResult:
    from delta_maintenance.policies.run import result_of_failure

    return result_of_failure(pattern)


def _submit(
    tables: PolicyTables,
    arguments: argparse.Namespace,
    table: PolicyTable,
    operation: AssessedOperation,
    *,
    plan_only: bool = False,
    approved: ApprovedPlan | None = None,
) -> Mapping[str, Any]:
    spark = table.rules.spark
    job = argparse.Namespace(
        table=table.uri,
        storage_options=list(tables.storage_options(table.rules.storage).items()),
        spark_conf=[*spark.conf.items(), *arguments.spark_conf],
        master=arguments.master or spark.master,
        verbose=arguments.verbose,
    )
    options = operation.options.to_json() if operation.options is not None else {}
    asked = {
        "options": options,
        "plan_only": plan_only,
        "approved": None if approved is None else approved.to_json(),
    }
    return run_spark_job(operation.operation, asked, job)


def _rows(result: RunResult) -> Iterator[tuple[object, ...]]:
    for number, outcome in enumerate(result.outcomes):
        yield (
            result.name if number == 0 else "",
            outcome.operation,
            outcome.status.replace("-", " "),
            f"{outcome.seconds:.1f}",
            outcome.reason,
        )
    if not result.outcomes:
        yield (
            result.name,
            "",
            result.status.replace("-", " "),
            "",
            result.problem or _waiting(result),
        )


def _waiting(result: RunResult) -> str:
    asked = result.before.operations if result.before is not None else ()
    return "; ".join(f"{e.operation}: {e.reason}" for e in asked if e.status == "blocked")
