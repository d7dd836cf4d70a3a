"""`run`: the operations that are due on the tables of a policy, which take turns."""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from delta_maintenance import clock
from delta_maintenance.cli.arguments import ArgumentParser, Verbs, add_spark, open_table
from delta_maintenance.cli.output import ProgressLine, print_json, warn
from delta_maintenance.cli.policy_tables import PolicyTables, add_policy_verb, user_name
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
    from delta_maintenance.policies.models import (
        AssessedOperation,
        Assessment,
        LastRun,
        OperationOutcome,
        RunResult,
    )


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
        json_help="print the RunResults as one JSON document, a list",
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
    add_approvals(parser)
    parser.add_argument(
        "--reasons", action="store_true", help="a line for each operation, with its reason"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only plan what is due, and change nothing"
    )
    add_spark(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs, and prints the outcomes."""
    from delta_maintenance.policies.approval import Approvals
    from delta_maintenance.policies.run import run as run_policy

    file = arguments.approve_from
    plans_by_name = read_plans(file)
    tables = PolicyTables(arguments, _default_policy(arguments))
    warn(tables.found.warnings())
    plans = plans_by_table(plans_by_name, tables.tables, file=file)

    def runner(table: PolicyTable) -> Callable[..., RunResult]:
        approvals = Approvals(
            operations=arguments.approve, plans=plans.get(table.name, ()), by=user_name()
        )
        return partial(run_policy, approvals=approvals, plan_only=arguments.dry_run)

    status = run_on_tables(tables, arguments, runner)
    if arguments.state is None and not arguments.json:
        print("a vacuum or an fsck without a commit is not known to later runs; give them --state")
    return status


def run_on_tables(
    tables: PolicyTables,
    arguments: argparse.Namespace,
    runner: Callable[[PolicyTable], Callable[..., RunResult]],
) -> int:
    """Does what `runner` returns on each table, and prints the outcomes. Returns the status."""
    from delta_maintenance.policies.lanes import work_side_by_side

    with ProgressLine() as progress, ended_by_sigterm():
        table_work = TableWork(tables, arguments, progress)
        results = work_side_by_side(
            lambda table: table_work.run(table, runner(table)), tables.tables
        )
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
        self, tables: PolicyTables, arguments: argparse.Namespace, progress: ProgressLine
    ) -> None:
        from delta_maintenance.policies.lanes import Turns

        self._tables = tables
        self._arguments = arguments
        self._progress = progress.of_tables(len(tables.tables))
        self._clones = tables.clones()
        self._turns = Turns()
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

        return RunEnvironment(
            submit=self._submit,
            clones=self._clones,
            progress=self._progress.of(table.name),
            turns=self._turns,
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
    from delta_maintenance.policies.run import result_of_failure

    return result_of_failure(pattern)


_MOST_BYTES = 256 << 20
"""The maximum size of a file with plans; a table takes some kilobytes."""


def add_approvals(parser: ArgumentParser) -> None:
    """Adds the options to a verb."""
    parser.add_argument(
        "--approve",
        metavar="OPERATION",
        action="append",
        default=[],
        choices=[record.name for record in policy_operations()],
        help="approve this operation, whatever its plan; repeatable",
    )
    parser.add_argument(
        "--approve-from",
        metavar="FILE",
        help="approve the plans in this file, each for its table, its options and its effect: the "
        "output of --json, without the plans that are not approved",
    )


NamedPlans = Mapping[str, Sequence["ApprovedPlan"]]
"""Plans by the name of their table."""


def read_plans(file: str | None) -> NamedPlans:
    """Reads the plans of `--approve-from`.

    `InvalidRequestError` names the file if it is not a list of RunResults with plans.
    """
    from delta_maintenance.policies.approval import ApprovedPlan

    plans_by_table: dict[str, list[ApprovedPlan]] = {}
    for result in _results(file) if file is not None else ():
        try:
            plans = [ApprovedPlan.of(outcome) for outcome in result.outcomes if _has_plan(outcome)]
        except InvalidRequestError as error:
            raise _wrong(str(file), f"{result.name}: {error.problem}") from None
        plans_by_table.setdefault(result.name, []).extend(plans)
    return plans_by_table


def plans_by_table(
    plans: NamedPlans, tables: Sequence[PolicyTable], *, file: str | None
) -> NamedPlans:
    """Returns the plans for the tables of a run, by the name that each table has now.

    A plan for none of their addresses goes to the table of the same name, whose run states the
    difference. `InvalidRequestError` if no plan is for any of the tables.
    """
    plans_by_name: dict[str, list[ApprovedPlan]] = {}
    for name, approved_plans in plans.items():
        for plan in approved_plans:
            at = [table.name for table in tables if plan.is_for(table.uri)]
            for table in at or [table.name for table in tables if table.name == name]:
                plans_by_name.setdefault(table, []).append(plan)
    if any(plans.values()) and not plans_by_name:
        names = ", ".join([*plans][:3])
        raise _wrong(str(file), f"its plans are for {names}, which are no tables of this run")
    return plans_by_name


def _has_plan(outcome: OperationOutcome) -> bool:
    return outcome.status in ("needs-approval", "planned") and outcome.result is not None


def _results(file: str) -> list[RunResult]:
    from delta_maintenance.policies.models import RunResult

    try:
        if os.stat(file).st_size > _MOST_BYTES:
            raise _wrong(file, f"it is longer than {_MOST_BYTES:,} bytes")
        with open(file, "rb") as opened:
            values = json.load(opened)
    except OSError as error:
        raise _wrong(file, f"it cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise _wrong(file, "it is not JSON") from None
    if not isinstance(values, list):
        raise _wrong(file, "it is not a list")
    try:
        return [_read(RunResult, value) for value in values]
    except InvalidRequestError as error:
        raise _wrong(file, error.problem) from None


def _read(kind: type[RunResult], value: Any) -> RunResult:
    # The plans of a dry run are in the outcomes; the assessments are long and not needed.
    short = {**value, "before": None, "after": None} if isinstance(value, dict) else value
    return kind.from_json(short)


def _wrong(file: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"no plans can be approved from this file: {problem[:300]}",
        file=file,
        remedy="give what `delta-maintenance run CONFIG --dry-run --json` printed",
    )
