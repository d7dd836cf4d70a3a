"""The description of a version: a snapshot and its log as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delta_maintenance import clock
from delta_maintenance.operations.core.documents import Shown
from delta_maintenance.operations.core.facts import Facts, count_text, instant_text, size_text
from delta_maintenance.protocol.delta_log.file_names import (
    LogFileKind,
    parse_log_file_name,
    version_prefix,
)
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.segment import LogSegment
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.summary import CheckpointSummary, TableSummary


class Description(Shown, dict[str, Any]):
    """The document that `inspect --json` prints, described in docs/reference/cli/inspect.md.

    All keys are always present.
    """

    def __init__(self, table: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._table = table

    def heading(self) -> str:
        return self._table

    def summary(self) -> str:
        return f"{self._table}, version {self['version']}"

    def facts(self) -> Facts:
        protocol, metadata, log = self["protocol"], self["metadata"], self["log"]
        return {
            "version": f"{self['version']} ({_time(self['timestamp_ms'])})",
            "protocol": f"reader {protocol['minReaderVersion']}, "
            f"writer {protocol['minWriterVersion']}",
            "reader features": ", ".join(protocol["readerFeatures"] or ()),
            "writer features": ", ".join(protocol["writerFeatures"] or ()),
            "id": metadata["id"],
            "name": metadata["name"],
            "partitioned by": ", ".join(metadata["partitionColumns"]),
            "properties": metadata["configuration"],
            "files": f"{self['num_files']:,} ({size_text(self['total_size'])})",
            "tombstones": self["num_tombstones"],
            "deletion vectors": self["num_deletion_vectors"],
            "deleted rows": self["num_deleted_rows"],
            "transactions": self["txns"],
            "domains": self["domain_metadata"],
            "checkpoint": _checkpoint_text(log["checkpoint"]),
            "commits since": log["commits_since_checkpoint"],
            "compactions used": log["compactions"],
            "oldest commit": log["oldest_commit"],
            "to open": f"{count_text(log['files_to_read'], 'file')} "
            f"({size_text(log['bytes_to_read'])})",
        }


def describe(snapshot: Snapshot | TableSummary) -> Description:
    """Returns the description of a version, and of the files that a reader opens to load it."""
    protocol, metadata, counts = snapshot.protocol, snapshot.metadata, snapshot.counts
    values = {
        "version": snapshot.version,
        "timestamp_ms": snapshot.timestamp_ms,
        "protocol": {
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
            "readerFeatures": _list_or_none(protocol.reader_features),
            "writerFeatures": _list_or_none(protocol.writer_features),
        },
        "metadata": {
            "id": metadata.id,
            "name": metadata.name,
            "partitionColumns": list(metadata.partition_columns),
            "configuration": dict(metadata.configuration),
        },
        "num_files": counts.num_files,
        "total_size": counts.total_size,
        "num_tombstones": counts.num_tombstones,
        "num_deletion_vectors": counts.num_deletion_vectors,
        "num_deleted_rows": counts.num_deleted_rows,
        "txns": snapshot.txns,
        "domain_metadata": snapshot.domain_metadata,
        "log": _log(snapshot),
    }
    return Description(snapshot.table, values)


def _log(snapshot: Snapshot | TableSummary) -> dict[str, Any]:
    segment, checkpoint = _segment(snapshot), _checkpoint(snapshot)
    tail_bytes = sum(entry.status.size for entry in segment.tail)
    return {
        "commits_since_checkpoint": len(segment.commits),
        "checkpoint": checkpoint,
        "compactions": sum(entry.file.end_version is not None for entry in segment.tail),
        "files_to_read": len(segment.tail) + (checkpoint["files"] if checkpoint else 0),
        "bytes_to_read": tail_bytes + (checkpoint["bytes"] if checkpoint else 0),
        "oldest_commit": _oldest_commit(snapshot),
        "warnings": list(snapshot.warnings),
    }


def _segment(snapshot: Snapshot | TableSummary) -> LogSegment:
    return snapshot.log.segment if isinstance(snapshot, Snapshot) else snapshot.segment


def _checkpoint(snapshot: Snapshot | TableSummary) -> dict[str, Any] | None:
    files = _segment(snapshot).checkpoint
    checkpoint = (snapshot.log if isinstance(snapshot, Snapshot) else snapshot).checkpoint
    if files is None or checkpoint is None:
        return None
    summary = (
        checkpoint
        if isinstance(checkpoint, CheckpointSummary)
        else CheckpointSummary.of(checkpoint)
    )
    return {
        "version": summary.version,
        "kind": summary.kind,
        "files": len(files.entries) + summary.sidecars,
        "sidecars": summary.sidecars,
        "bytes": sum(entry.status.size for entry in files.entries) + summary.sidecar_bytes,
    }


def _oldest_commit(snapshot: Snapshot | TableSummary) -> int | None:
    if isinstance(snapshot, TableSummary):
        return snapshot.oldest_commit
    # The listing is sorted by version, so its first page is enough.
    for status in snapshot.log.store.list_from(LOG_DIRECTORY, version_prefix(0)):
        file = parse_log_file_name(status.path.removeprefix(f"{LOG_DIRECTORY}/"))
        if file.kind is LogFileKind.COMMIT:
            return file.version
    return None


def _list_or_none(features: tuple[str, ...] | None) -> list[str] | None:
    return None if features is None else list(features)


def _time(milliseconds: int | None) -> str:
    instant = None if milliseconds is None else clock.instant(milliseconds)
    return instant_text(instant) or "no time"


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
