"""`health`: the health of one table, from its log alone."""

from __future__ import annotations

import argparse

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_verb, open_table
from delta_maintenance.cli.output import print_facts, print_json, warn


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "health",
        summary="show the maintenance needs of a table: its log, files and protocol",
        description=(
            "Show the need for maintenance: the length of the log, the sizes of files, the bytes "
            "that a\nvacuum could reclaim, the requirements of the protocol, and the maintenance "
            "that the log\nrecords. Reads the log but no data."
        ),
        json_help="print the TableHealth as one JSON document",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Measures, and prints."""
    from delta_maintenance.operations.health import measure

    snapshot = open_table(arguments).snapshot()
    health = measure(snapshot, now=clock.now())
    warn(health.warnings)
    if arguments.json:
        print_json(health.to_json())
        return
    print_facts(health.heading(), health.facts())
