"""`assess`: the operations that are due on the tables of a policy, with reasons and costs."""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs
from delta_maintenance.cli.output import count_text, print_json, print_named, say, size_text, warn
from delta_maintenance.cli.policy_tables import PolicyTables, add_policy_verb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.models import AssessedOperation, Assessment

_PARALLEL = 8


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_policy_verb(
        verbs,
        "assess",
        summary="show which maintenance is due on the tables of a policy, and why",
        description=(
            "Compare each table with the policy: which operations are due, in which order, why, "
            "and their\ncost and benefit. Reads logs but no data, and changes nothing. A "
            "table or\na pattern that cannot be read does not prevent the assessment of the others."
        ),
        json_help="print the Assessments as one JSON document, a list",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the assessments."""
    tables = PolicyTables(arguments)
    warn(tables.found.warnings())
    look = partial(_assessed, tables)
    with ThreadPoolExecutor(_PARALLEL) as pool:
        assessments = [*pool.map(look, tables.tables), *tables.unlisted]
    if arguments.json:
        print_json([assessment.to_json() for assessment in assessments])
    else:
        print_named(
            ("table", "version", "operation", "status", "why", "brings"),
            [row for assessment in assessments for row in _rows(assessment)],
        )
    return worst(
        (each.name, each.problem, each.exit_status)
        for each in assessments
        if each.status == "failed"
    )


def worst(failures: Iterator[tuple[str, str | None, int]]) -> int:
    """Reports failed tables. Returns their common exit status, or 1 if they differ."""
    statuses = set()
    for name, problem, status in failures:
        say(f"{name}: {problem}")
        statuses.add(status)
    return 0 if not statuses else statuses.pop() if len(statuses) == 1 else 1


def _assessed(tables: PolicyTables, table: PolicyTable) -> Assessment:
    from delta_maintenance.errors import failure_of
    from delta_maintenance.policies.assess import assess_table, failed_assessment

    now = clock.now()
    try:
        last_runs, previous = tables.known(table)
        with tables.opened(table) as opened:
            assessment = assess_table(
                opened, table, now=now, last_runs=last_runs, previous=previous
            )
        tables.keep(assessment)
    except Exception as error:
        return failed_assessment(table, failure_of(error, where=table.name), now=now)
    return assessment


def _rows(assessment: Assessment) -> Iterator[tuple[object, ...]]:
    version = assessment.health.version if assessment.health is not None else None
    shown = [each for each in assessment.operations if each.status != "not-due"]
    for number, each in enumerate(shown):
        yield (
            assessment.name if number == 0 else "",
            version if number == 0 else None,
            each.operation,
            "needs approval" if each.needs_approval and each.status == "due" else each.status,
            each.reason,
            _gain(each),
        )
    if not shown:
        why = "" if assessment.next_due_at is None else f"until {assessment.next_due_at:%F %R} UTC"
        yield (
            assessment.name,
            version,
            "",
            assessment.status.replace("-", " "),
            # A problem has a line of its own below the table.
            "" if assessment.problem is not None else why,
            "",
        )
    for holder in assessment.held:
        yield "", None, "", "held", f"by {holder}", ""


def _gain(operation: AssessedOperation) -> str:
    if operation.commits_to_replay is not None:
        return f"{operation.commits_to_replay} → {operation.commits_to_replay_after} to replay"
    if operation.reclaims_files:
        files = count_text(operation.reclaims_files, "file")
        return f"{files}, {size_text(operation.reclaims_bytes)}"
    return ""
