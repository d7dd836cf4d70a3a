"""`add-constraint`: add a CHECK constraint, after all rows were found to satisfy it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_spark, add_verb, open_table
from delta_maintenance.cli.output import print_fields, print_json, size_text, warn
from delta_maintenance.cli.spark_launcher import run_spark_job
from delta_maintenance.cli.table_change import (
    add_commit_options,
    options_of,
    plan_fields,
    raise_conflict,
)
from delta_maintenance.errors import RefusedError

if TYPE_CHECKING:
    from delta_maintenance.operations.add_constraint import AddConstraintPlan, AddConstraintResult


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "add-constraint",
        summary="add a CHECK constraint, after all rows were found to satisfy it",
        description="Add a CHECK constraint. A Spark job looks at every row first: where one does "
        "not satisfy it,\nnothing is committed, and the files with the most such rows are named. "
        "With --dry-run says\nwhat would be read, and who would be cut off. set-properties --unset "
        "delta.constraints.NAME\nremoves a constraint.",
        json_help="print the Result, with --dry-run the Plan, as one JSON document",
    )
    parser.add_argument("name", metavar="NAME", help="the name of the constraint, in any case")
    parser.add_argument(
        "expression",
        metavar="EXPRESSION",
        help="Spark SQL that must be true of every row, such as 'quantity > 0'; a row of which it "
        "is null violates it as well",
    )
    add_commit_options(parser)
    add_spark(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Plans, and unless this is a dry run applies."""
    # Loads pyarrow, which `--help` must not wait for.
    from delta_maintenance.operations import add_constraint

    options = add_constraint.AddConstraintOptions(
        **options_of(arguments, name=arguments.name, expression=arguments.expression)
    ).validated()
    table = open_table(arguments)
    snapshot = table.snapshot()
    warn(snapshot.warnings)
    plan = add_constraint.plan(snapshot, options, now=clock.now(), new_id=clock.new_id)
    if arguments.dry_run:
        _print_plan(plan, arguments)
        return
    if plan.is_noop:
        result = add_constraint.apply(table, plan)
    else:
        # An id of the plan's own cannot be older than the plan.
        began = plan.planned_at if options.operation_id is None else options.operation_since
        options = replace(options, operation_id=plan.operation_id, operation_since=began)
        job = {"options": options.to_json()}
        result = add_constraint.AddConstraintResult.from_json(
            run_spark_job("add-constraint", job, arguments)
        )
    _print_result(result, arguments)
    raise_conflict(result)
    if result.status == "violated":
        raise RefusedError(result.problem or "rows violate it", version=result.version)


def _print_plan(plan: AddConstraintPlan, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(plan.to_json())
        return
    fields = plan_fields(plan)
    if not plan.is_noop:
        fields |= {
            "files to read": plan.num_files,
            "of bytes": size_text(plan.total_size),
            "deletion vectors": plan.num_deletion_vectors or None,
            "engine": plan.engine,
        }
    print_fields("add-constraint, dry run", fields)


def _print_result(result: AddConstraintResult, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(result.to_json())
        return
    found = result.checked
    fields = {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "constraint": [f"{change.name}: {change.after}" for change in result.changes],
        "added features": result.added_features,
        "files": found.files or None,
        "rows": found.rows or None,
        "violations": found.violations or None,
        "in files": found.violating_files or None,
        "most of them": [
            f"{file.path}: {file.violations:,} of {file.rows:,} rows" for file in found.worst_files
        ],
        "problem": result.problem,
        "notes": result.notes,
    }
    print_fields("add-constraint", fields)
