"""The verbs that only read one table: `inspect`, `files`, `history` and `health`."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.cli.arguments import (
    Verbs,
    add_table,
    add_time_travel,
    add_verb,
    at_least,
    open_snapshot,
    open_table,
)
from delta_maintenance.cli.output import print_facts, print_json, print_table, warn
from delta_maintenance.operations.core.documents import printable
from delta_maintenance.operations.core.facts import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from delta_maintenance.operations.health import TableHealth
    from delta_maintenance.operations.health.inspection import Description
    from delta_maintenance.table.read.summary import TableSummary

_ROWS = 4096
"""The number of rows that are Python objects at one time."""


def add_parser(verbs: Verbs) -> None:
    """Adds the verbs to the command line."""
    for add in (_add_inspect, _add_files, _add_history, _add_health):
        add(verbs)


def _add_inspect(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "inspect",
        purpose="look",
        summary="a version: protocol, properties, files, log",
        description=(
            "Show one version of a table: protocol, metadata, the totals of its files, and the "
            "files that a reader opens to load it. Reads only."
        ),
        json_help="print one JSON document instead of text",
        example="inspect s3://lake/sales/orders",
    )
    add_table(parser)
    add_time_travel(parser)
    parser.add_argument(
        "--replay",
        action="store_true",
        help="count the files in the log, even if a version checksum states their number",
    )
    parser.set_defaults(run=_inspect)


def _inspect(arguments: argparse.Namespace) -> None:
    # Loads pyarrow, which `--help` does not need.
    from delta_maintenance.operations.health.inspection import describe

    snapshot = _summary(arguments) or open_snapshot(arguments)
    warn(snapshot.warnings)
    document = describe(snapshot)
    _print(arguments, document, lambda: document)


def _summary(arguments: argparse.Namespace) -> TableSummary | None:
    """Returns the newest version from its version checksum, if that contains all values."""
    from delta_maintenance.table.read.summary import summarize

    if arguments.version is not None or arguments.timestamp is not None or arguments.replay:
        return None
    return summarize(open_table(arguments).store)


def _add_files(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "files",
        purpose="look",
        summary="the live files of a version",
        description=(
            "List the live logical files of one version, in no particular order. A terminal shows "
            "size, rows and path of each, and `dv` if it has a deletion vector; a file or a pipe "
            "gets one JSON object per line: path (as written in the log), dv (unique id of its "
            "deletion vector or null), size, partition_values, num_records, base_row_id, "
            "default_row_commit_version. Reads only. The list is streamed: after an error, the "
            "earlier lines have been printed, and the exit status is not 0."
        ),
        json_help="print JSON lines on a terminal, too",
        example="files s3://lake/sales/orders --version 12",
    )
    add_table(parser)
    add_time_travel(parser)
    parser.set_defaults(run=_files)


def _files(arguments: argparse.Namespace) -> None:
    snapshot = open_snapshot(arguments)
    warn(snapshot.warnings)
    is_terminal = sys.stdout.isatty() and not arguments.json
    if is_terminal:
        print(_FILE_LINE.format("size", "rows", "", "path"))
    for table in snapshot.live_file_batches():
        for batch in table.to_batches(max_chunksize=_ROWS):
            sys.stdout.write(_aligned_lines(batch) if is_terminal else _json_lines(batch))


_FILE_LINE = "{:>10}  {:>13}  {:<2}  {}"


def _aligned_lines(batch: pa.RecordBatch) -> str:
    lines = []
    for row in batch.to_pylist():
        rows = "" if row["num_records"] is None else f"{row['num_records']:,}"
        vector = "" if row["dv"] is None else "dv"
        path = printable(row["path"])
        lines.append(f"{_FILE_LINE.format(size_text(row['size']), rows, vector, path)}\n")
    return "".join(lines)


def _json_lines(batch: pa.RecordBatch) -> str:
    lines = []
    for row in batch.to_pylist():
        # Arrow returns a map as a list of pairs.
        values = row["partition_values"]
        row["partition_values"] = None if values is None else dict(values)
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def _add_history(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "history",
        purpose="look",
        summary="the retained commits, newest first",
        description=(
            "List the commits that the log retains, newest first, each with its version, even if "
            "it contains no commitInfo. Versions without the commits or the checkpoint that open "
            "them are marked. Reads only."
        ),
        json_help="print one JSON document, a list, instead of text",
        example="history s3://lake/sales/orders --limit 20",
    )
    add_table(parser)
    parser.add_argument(
        "--limit",
        metavar="N",
        type=partial(at_least, 1),
        help="only the newest N commits, by default all",
    )
    parser.set_defaults(run=_history)


def _history(arguments: argparse.Namespace) -> None:
    entries = open_table(arguments).history(limit=arguments.limit)
    if arguments.json:
        print_json([entry.to_json() for entry in entries])
        return
    print_table(
        ("version", "time", "operation", "by"),
        [
            (
                entry.version if entry.is_readable else f"{entry.version} (cannot be opened)",
                clock.text(entry.timestamp),
                entry.operation,
                entry.commit_info.get("engineInfo"),
            )
            for entry in entries
        ],
    )


def _add_health(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "health",
        purpose="look",
        summary="the maintenance that a table needs, with numbers",
        description=(
            "Show the need for maintenance: the length of the log, the sizes of files, the bytes "
            "that a vacuum could reclaim, the requirements of the protocol, and the maintenance "
            "that the log records. Reads the log but no data."
        ),
        json_help="print the TableHealth as one JSON document",
        example="health s3://lake/sales/orders",
    )
    add_table(parser)
    parser.set_defaults(run=_health)


def _health(arguments: argparse.Namespace) -> None:
    from delta_maintenance.operations.health import measure

    snapshot = open_table(arguments).snapshot()
    health = measure(snapshot, now=clock.now())
    warn(health.warnings)
    _print(arguments, health, health.to_json)
    if health.damage is not None:
        raise health.damage


def _print(
    arguments: argparse.Namespace,
    document: Description | TableHealth,
    to_json: Callable[[], Mapping[str, Any]],
) -> None:
    name = arguments.catalog_name
    if arguments.json:
        print_json({**({} if name is None else {"catalog_name": name}), **to_json()})
    else:
        heading = document.heading()
        print_facts(heading if name is None else f"{name}, {heading}", document.facts())
