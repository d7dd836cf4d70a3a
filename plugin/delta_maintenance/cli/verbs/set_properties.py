"""`set-properties`: set and remove table properties, with the features they need."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_verb, key_value, open_table
from delta_maintenance.cli.output import print_fields, print_json, warn
from delta_maintenance.cli.table_change import (
    add_commit_options,
    options_of,
    plan_fields,
    raise_conflict,
)
from delta_maintenance.errors import InvalidRequestError

if TYPE_CHECKING:
    from delta_maintenance.operations.set_properties import SetPropertiesPlan, SetPropertiesResult


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "set-properties",
        summary="set and remove table properties, with the features they need",
        description="Set and remove properties of a table in one commit. Names and values are "
        "checked first. A\nproperty that activates a table feature brings the feature with it; "
        "any other one never\ntouches the protocol. Prints what was changed, with --dry-run what "
        "would be, and who would\nbe cut off.",
        json_help="print the Result, with --dry-run the Plan, as one JSON document",
    )
    parser.add_argument(
        "--set",
        dest="properties",
        metavar="K=V",
        action="append",
        default=[],
        type=key_value,
        help="a property and its value, such as delta.enableDeletionVectors=true; repeatable",
    )
    parser.add_argument(
        "--unset",
        dest="remove",
        metavar="K",
        action="append",
        default=[],
        help="a property to remove; one that is not there is no error; repeatable",
    )
    add_commit_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Plans, and unless this is a dry run applies."""
    # Loads pyarrow, which `--help` must not wait for.
    from delta_maintenance.operations import set_properties

    properties = dict(arguments.properties)
    if len(properties) < len(arguments.properties):
        raise InvalidRequestError("a property is set twice", remedy="give it one value")
    options = set_properties.SetPropertiesOptions(
        **options_of(arguments, properties=properties, remove=tuple(arguments.remove))
    ).validated()
    table = open_table(arguments)
    snapshot = table.snapshot()
    warn(snapshot.warnings)
    plan = set_properties.plan(snapshot, options, now=clock.now(), new_id=clock.new_id)
    if arguments.dry_run:
        _print_plan(plan, arguments)
        return
    result = set_properties.apply(table, plan)
    _print_result(result, arguments)
    raise_conflict(result)


def _print_plan(plan: SetPropertiesPlan, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(plan.to_json())
        return
    mapped = "every column gets an id and a physical name" if plan.maps_columns else None
    print_fields("set-properties, dry run", plan_fields(plan) | {"columns": mapped})


def _print_result(result: SetPropertiesResult, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(result.to_json())
        return
    fields = {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "properties": {
            change.name: change.after if change.after is not None else "(removed)"
            for change in result.changes
        },
        "added features": result.added_features,
        "problem": result.problem,
        "notes": result.notes,
    }
    print_fields("set-properties", fields)
