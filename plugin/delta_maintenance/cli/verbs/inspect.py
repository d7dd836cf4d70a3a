"""`inspect`: one version of a table, and the cost of opening it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from delta_maintenance.cli.arguments import (
    Verbs,
    add_time_travel,
    add_verb,
    open_snapshot,
    open_table,
)
from delta_maintenance.cli.output import print_facts, print_json, warn

if TYPE_CHECKING:
    from delta_maintenance.table.read.summary import TableSummary


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "inspect",
        summary="show a version: protocol, properties, files, and the state of its log",
        description=(
            "Show one version of a table: protocol, metadata, the totals of its files, and the "
            "files that\na reader opens to load it. Reads only."
        ),
        json_help="print one JSON document instead of text",
    )
    add_time_travel(parser)
    parser.add_argument(
        "--replay",
        action="store_true",
        help="count the files in the log, even if a version checksum states their number",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Prints the snapshot."""
    # Loads pyarrow, which `--help` does not need.
    from delta_maintenance.operations.health.inspection import describe

    snapshot = _summary(arguments) or open_snapshot(arguments)
    warn(snapshot.warnings)
    document = describe(snapshot)
    if arguments.json:
        print_json(document)
    else:
        print_facts(document.heading(), document.facts())


def _summary(arguments: argparse.Namespace) -> TableSummary | None:
    """Returns the newest version from its version checksum, if that contains all values."""
    from delta_maintenance.table.read.summary import summarize

    if arguments.version is not None or arguments.timestamp is not None or arguments.replay:
        return None
    return summarize(open_table(arguments).store)
