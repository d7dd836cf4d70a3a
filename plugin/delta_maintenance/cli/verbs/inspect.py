"""`inspect`: one version of a table, and the cost of opening it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from delta_maintenance.cli.arguments import (
    Verbs,
    add_time_travel,
    add_verb,
    open_snapshot,
    open_table,
)
from delta_maintenance.cli.output import (
    count_text,
    instant_text,
    print_fields,
    print_json,
    size_text,
    warn,
)

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
    from delta_maintenance.cli.snapshot_document import describe

    snapshot = _summary(arguments) or open_snapshot(arguments)
    warn(snapshot.warnings)
    document = describe(snapshot)
    if arguments.json:
        print_json(document)
    else:
        print_fields(snapshot.table, _for_people(document))


def _summary(arguments: argparse.Namespace) -> TableSummary | None:
    """Returns the newest version from its version checksum, if that contains all values."""
    from delta_maintenance.table.read.summary import summarize

    if arguments.version is not None or arguments.timestamp is not None or arguments.replay:
        return None
    return summarize(open_table(arguments).store)


def _for_people(document: Mapping[str, Any]) -> dict[str, object]:
    protocol, metadata, log = document["protocol"], document["metadata"], document["log"]
    return {
        "version": f"{document['version']} ({instant_text(document['timestamp_ms']) or 'no time'})",
        "protocol": f"reader {protocol['minReaderVersion']}, writer {protocol['minWriterVersion']}",
        "reader features": ", ".join(protocol["readerFeatures"] or ()),
        "writer features": ", ".join(protocol["writerFeatures"] or ()),
        "id": metadata["id"],
        "name": metadata["name"],
        "partitioned by": ", ".join(metadata["partitionColumns"]),
        "properties": metadata["configuration"],
        "files": f"{document['num_files']:,} ({size_text(document['total_size'])})",
        "tombstones": document["num_tombstones"],
        "deletion vectors": document["num_deletion_vectors"],
        "deleted rows": document["num_deleted_rows"],
        "transactions": document["txns"],
        "domains": document["domain_metadata"],
        "checkpoint": _checkpoint_text(log["checkpoint"]),
        "commits since": log["commits_since_checkpoint"],
        "compactions used": log["compactions"],
        "oldest commit": log["oldest_commit"],
        "to open": f"{count_text(log['files_to_read'], 'file')} "
        f"({size_text(log['bytes_to_read'])})",
    }


def _checkpoint_text(checkpoint: Mapping[str, Any] | None) -> str:
    if checkpoint is None:
        return "none"
    sidecars = (
        f", of them {count_text(count, 'sidecar')}" if (count := checkpoint["sidecars"]) else ""
    )
    return (
        f"{checkpoint['version']}: {checkpoint['kind']}, "
        f"{count_text(checkpoint['files'], 'file')}{sidecars} "
        f"({size_text(checkpoint['bytes'])})"
    )
