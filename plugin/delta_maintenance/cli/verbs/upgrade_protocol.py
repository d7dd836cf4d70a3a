"""`upgrade-protocol`: let a table support more, and say who is cut off by that."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_verb, open_table
from delta_maintenance.cli.output import print_fields, print_json, warn
from delta_maintenance.cli.table_change import (
    add_commit_options,
    options_of,
    plan_fields,
    protocol_text,
    raise_conflict,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.upgrade_protocol import (
        UpgradeProtocolPlan,
        UpgradeProtocolResult,
    )


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "upgrade-protocol",
        summary="let the table support more table features",
        description="Add table features to the protocol of a table, with what they require, in "
        "one commit.\nEverything that the table supports stays supported, what its versions "
        "imply included, and\nno property changes: to put a feature to use, set its property with "
        "set-properties.\nPrints what was changed, with --dry-run what would be, and who would be "
        "cut off.",
        json_help="print the Result, with --dry-run the Plan, as one JSON document",
    )
    parser.add_argument(
        "--feature",
        dest="features",
        metavar="NAME",
        action="append",
        default=[],
        help="a table feature, by its name in the protocol; repeatable",
    )
    parser.add_argument(
        "--reader-version", metavar="N", type=int, help="support what reader version N implies"
    )
    parser.add_argument(
        "--writer-version", metavar="N", type=int, help="support what writer version N implies"
    )
    parser.add_argument(
        "--convert-draft",
        action="store_true",
        help="convert what is left of a draft of row tracking of 2023 to today's: the high-water "
        "mark moves into its domain, and maps that stand for the text of a domain become text",
    )
    add_commit_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Plans, and unless this is a dry run applies."""
    # Loads pyarrow, which `--help` must not wait for.
    from delta_maintenance.operations import upgrade_protocol

    options = upgrade_protocol.UpgradeProtocolOptions(
        **options_of(
            arguments,
            features=tuple(arguments.features),
            reader_version=arguments.reader_version,
            writer_version=arguments.writer_version,
            convert_draft=arguments.convert_draft,
        )
    ).validated()
    table = open_table(arguments)
    snapshot = table.snapshot()
    warn(snapshot.warnings)
    plan = upgrade_protocol.plan(snapshot, options, now=clock.now(), new_id=clock.new_id)
    if arguments.dry_run:
        _print_plan(plan, arguments)
        return
    result = upgrade_protocol.apply(table, plan)
    _print_result(result, arguments)
    raise_conflict(result)


def _print_plan(plan: UpgradeProtocolPlan, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(plan.to_json())
        return
    fields = plan_fields(plan) | {"converted domains": plan.converted_domains}
    print_fields("upgrade-protocol, dry run", fields)


def _print_result(result: UpgradeProtocolResult, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(result.to_json())
        return
    fields = {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "protocol": None if result.protocol is None else protocol_text(result.protocol),
        "added features": result.added_features,
        "converted domains": result.converted_domains,
        "problem": result.problem,
        "notes": result.notes,
    }
    print_fields("upgrade-protocol", fields)
