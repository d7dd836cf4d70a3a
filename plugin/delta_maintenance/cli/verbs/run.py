"""`run`: the operations that are due on the tables of a policy, which take turns."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_spark, open_table
from delta_maintenance.cli.output import ProgressLine, print_json, warn
from delta_maintenance.cli.policy_tables import PolicyTables, add_policy_verb, user_name
from delta_maintenance.cli.run_budget import RunBudget, print_choice
from delta_maintenance.cli.run_report import print_results, report_failures
from delta_maintenance.cli.spark_launcher import ended_by_sigterm, run_spark_job
from delta_maintenance.cli.starter_policy import policy_for
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError, NotADeltaTableError
from delta_maintenance.operations.core.given_options import require_use_of_quiet
from delta_maintenance.operations.core.registry import policy_operations
from delta_maintenance.quantities import parse_duration
from delta_maintenance.table.commit.other_writers import OtherWriters

if TYPE_CHECKING:
    from delta_maintenance.policies.approval import ApprovedPlan
    from delta_maintenance.policies.definition.policy import Policy, PolicyTable
    from delta_maintenance.policies.execute import RunEnvironment
    from delta_maintenance.policies.models import AssessedOperation, Assessment, LastRun, RunResult


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_policy_verb(
        verbs,
        "run",
        summary="run the maintenance that is due on the tables",
        description=(
            "Run the operations that are due on each table according to the policy, in order, "
            "within its limits and its hours. A table that fails or is slow holds up no other. It "
            "is not a failure if nothing is due. Prints the outcomes; --dry-run prints the plans "
            "for the current tables."
        ),
        json_help="print the RunResults as one JSON document, a list; with --shadow the Selection",
        example="run delta_maintenance.yaml --state state/ --dry-run",
        may_omit_policy=True,
    )
    parser.add_argument(
        "--all-due",
        dest="table",
        metavar="TABLE",
        help="instead of a policy: the address of one table, or its name in a catalog, on which "
        "the policy that `init` writes applies",
    )
    writers = parser.group("commits and other writers")
    writers.add_argument(
        "--other-writers",
        choices=get_args(OtherWriters),
        help="with --all-due, the other writers of a table on S3",
    )
    writers.add_argument(
        "--quiet", metavar="DURATION", help="with --all-due, the quiet window of a table on S3"
    )
    parser.add_argument(
        "--approve",
        metavar="OPERATION",
        action="append",
        default=[],
        choices=[record.name for record in policy_operations()],
        help="approve this operation, whatever its plan; repeatable",
    )
    parser.add_argument(
        "--reasons", action="store_true", help="a line for each operation, with its reason"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only plan what is due, and change nothing"
    )
    parser.add_argument(
        "--shadow",
        action="store_true",
        help="only choose within the budget, and record the choice in the ledger",
    )
    add_spark(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs, and prints the outcomes."""
    from delta_maintenance.policies.approval import Approvals
    from delta_maintenance.policies.run import run as run_policy

    tables = PolicyTables(arguments, _default_policy(arguments))
    warn(tables.found.warnings())
    budget = None
    if arguments.shadow or tables.session.policy.budget is not None:
        budget = RunBudget(tables)
        if arguments.shadow:
            print_choice(budget, as_json=arguments.json)
            tables.record_choice(budget.selected, chosen=True)
            failed = [a for a in budget.assessments if a.status == "failed"]
            return report_failures(
                ((a.name, a.uri, a.problem, a.exit_status) for a in failed),
                tables.acknowledgements([(a, None) for a in failed]),
            )
    approvals = Approvals(operations=arguments.approve, by=user_name())
    run_table = partial(run_policy, approvals=approvals, plan_only=arguments.dry_run)
    status = run_on_tables(tables, arguments, lambda _: run_table, budget)
    if arguments.state is None and not arguments.json:
        print("without --state, later runs do not know of a vacuum or fsck that left no commit")
    return status


def run_on_tables(
    tables: PolicyTables,
    arguments: argparse.Namespace,
    runner: Callable[[PolicyTable], Callable[..., RunResult]],
    budget: RunBudget | None = None,
) -> int:
    """Does what `runner` returns on each table, and prints the outcomes. Returns the status."""
    from delta_maintenance.policies.lanes import work_side_by_side

    with ProgressLine() as progress, ended_by_sigterm():
        table_work = TableWork(tables, arguments, progress, budget)
        results = work_side_by_side(
            lambda table: table_work.run(table, runner(table)), tables.tables
        )
    if budget is not None and not arguments.dry_run:
        newest = (result.newest_assessment for result in results)
        tables.record_choice([assessment for assessment in newest if assessment is not None])
    results += [_result_of_unlisted(assessment) for assessment in tables.unlisted]
    failed = [result for result in results if result.exit_status]
    acknowledged = tables.acknowledgements(
        [(result.newest_assessment, result) for result in failed]
    )
    if arguments.json:
        print_json([result.to_json() for result in results])
    else:
        with_reasons = arguments.reasons or len(results) == 1
        print_results(results, acknowledged, with_reasons=with_reasons)
        if any(result.waits for result in results):
            print(_approval_hint(arguments))
    return report_failures(
        ((result.name, result.uri, result.problem, result.exit_status) for result in failed),
        acknowledged,
    )


def _approval_hint(arguments: argparse.Namespace) -> str:
    if arguments.config is None:
        return "approve it with --approve and the name of the operation"
    state = "" if arguments.state is None else f" --state {arguments.state}"
    return f"see and approve them with: delta-maintenance approve {arguments.config}{state}"


def _default_policy(arguments: argparse.Namespace) -> Policy | None:
    if (arguments.config is None) == (arguments.table is None):
        raise InvalidRequestError(
            "a run is either for a policy or for --all-due TABLE", remedy="give one of them"
        )
    if arguments.table is None:
        if arguments.other_writers is not None or arguments.quiet is not None:
            raise InvalidRequestError(
                "--other-writers and --quiet belong to --all-due",
                remedy="set other_writers and quiet in the policy",
            )
        return None
    require_use_of_quiet(arguments)
    try:
        open_table(arguments).latest_version()
    except NotADeltaTableError:
        # The remedy will name the tables near the address.
        raise
    except DeltaMaintenanceError:
        pass  # The run reports it.
    quiet = None if arguments.quiet is None else parse_duration(arguments.quiet)
    return policy_for(arguments.table, other_writers=arguments.other_writers, quiet=quiet)


class TableWork:
    """The work of one command on the tables of a policy, for several threads."""

    def __init__(
        self,
        tables: PolicyTables,
        arguments: argparse.Namespace,
        progress: ProgressLine,
        budget: RunBudget | None = None,
    ) -> None:
        from delta_maintenance.policies.lanes import Turns

        self._tables = tables
        self._arguments = arguments
        self._progress = progress.of_tables(len(tables.tables))
        self._clones = tables.clones()
        self._budget = budget
        # Beside each other, operations that take more than expected would exceed the budget.
        self._turns = Turns() if budget is None else Turns(at_once=1)
        self._spark = threading.Lock()

    def run(self, table: PolicyTable, runner: Callable[..., RunResult]) -> RunResult:
        """Runs what is due on a table, and keeps and records it; errors are part of the result."""
        from delta_maintenance.errors import failure_of
        from delta_maintenance.metrics.runs import report
        from delta_maintenance.policies.run import failed_run

        tables, started = self._tables, clock.now()
        last_runs: Sequence[LastRun] = ()
        try:
            last_runs = tables.last_runs(table)
            idle = None if self._budget is None else self._budget.result_without_work(table)
            if idle is not None:
                result = replace(idle, last_runs=last_runs)
            else:
                with tables.open(table) as opened:
                    result = runner(
                        opened, table, last_runs=last_runs, environment=self.environment(table)
                    )
        except Exception as error:
            failure = failure_of(error, where=table.name)
            result = failed_run(table, failure, now=started, last_runs=last_runs)
        if not self._arguments.dry_run:
            if result.newest_assessment is not None:
                tables.keep(result.newest_assessment, result)
            tables.record(result)
            report(result)
        self._progress.end()
        return result

    def environment(self, table: PolicyTable) -> RunEnvironment:
        """Returns what a run on a table needs of this process."""
        from delta_maintenance.policies.execute import RunEnvironment

        entry = self._tables.entry_of(table.uri, table.name)
        return RunEnvironment(
            previous=entry.health if entry is not None else None,
            submit=self._submit,
            clones=self._clones,
            progress=self._progress.of(table.name),
            turns=self._turns,
            budget=None if self._budget is None else self._budget.of_table(table),
        )

    def _submit(
        self,
        table: PolicyTable,
        operation: AssessedOperation,
        *,
        plan_only: bool = False,
        approved: ApprovedPlan | None = None,
    ) -> Mapping[str, Any]:
        spark = table.rules.spark
        job = argparse.Namespace(
            table=table.uri,
            storage_options=list(
                self._tables.session.storage_options(table.rules.storage, table.uri).items()
            ),
            spark_conf=[*spark.conf.items(), *self._arguments.spark_conf],
            master=self._arguments.master or spark.master,
            verbose=self._arguments.verbose,
        )
        options = operation.options.to_json() if operation.options is not None else {}
        requested = {
            "options": options,
            "plan_only": plan_only,
            "approved": None if approved is None else approved.to_json(),
        }
        # Each job takes the memory of a driver, and the lines of two would be mixed.
        with self._spark:
            return run_spark_job(operation.operation, requested, job)


def _result_of_unlisted(pattern: Assessment) -> RunResult:
    from delta_maintenance.policies.run import result_without_run

    return result_without_run(pattern)
