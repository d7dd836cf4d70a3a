"""`files`: the live files of a version, one JSON object per line."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from delta_maintenance.cli.arguments import Verbs, add_time_travel, add_verb, open_snapshot
from delta_maintenance.cli.output import warn

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 4096
"""The number of rows that are Python objects at one time."""


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "files",
        summary="list the live files of a version, as JSON lines",
        description=(
            "List the live logical files of one version, one JSON object per line, in no "
            "particular\norder: path (as written in the log), dv (unique id of its deletion "
            "vector or null), size,\npartition_values, num_records, base_row_id, "
            "default_row_commit_version. Reads only. The list\nis streamed: after an error, the "
            "earlier lines have been printed, and the exit status is not\n0."
        ),
        json_help="accepted for uniformity: the output is JSON lines always",
    )
    add_time_travel(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Prints the files as they are read."""
    snapshot = open_snapshot(arguments)
    warn(snapshot.warnings)
    for table in snapshot.live_file_batches():
        for batch in table.to_batches(max_chunksize=_ROWS):
            sys.stdout.write(_json_lines(batch))


def _json_lines(batch: pa.RecordBatch) -> str:
    lines = []
    for row in batch.to_pylist():
        # Arrow returns a map as a list of pairs.
        values = row["partition_values"]
        row["partition_values"] = None if values is None else dict(values)
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)
