"""`history`: the commits that the log retains, newest first."""

from __future__ import annotations

import argparse
from functools import partial

from delta_maintenance.cli.arguments import Verbs, add_verb, at_least, open_table
from delta_maintenance.cli.output import instant_text, print_json, print_table


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "history",
        summary="list the retained commits, newest first",
        description=(
            "List the commits that the log retains, newest first, each with its version, even if "
            "it\ncontains no commitInfo. Reads only."
        ),
        json_help="print one JSON document, a list, instead of text",
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        type=partial(at_least, 1),
        help="only the newest N commits, by default all",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Prints the history."""
    entries = open_table(arguments).history(limit=arguments.limit)
    if arguments.json:
        print_json([entry.to_json() for entry in entries])
        return
    print_table(
        ("version", "time", "operation", "by"),
        [
            (
                entry.version,
                instant_text(entry.timestamp_ms),
                entry.operation,
                entry.commit_info.get("engineInfo"),
            )
            for entry in entries
        ],
    )
