"""The document that `inspect --json` prints: a snapshot and its log as plain values."""

from __future__ import annotations

from typing import Any

from delta_maintenance.protocol.delta_log.file_names import (
    LogFileKind,
    parse_log_file_name,
    version_prefix,
)
from delta_maintenance.table.read.segment import LOG_DIRECTORY
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.summary import CheckpointSummary, TableSummary


def describe(snapshot: Snapshot | TableSummary) -> dict[str, Any]:
    """Returns the document described in docs/reference/cli/inspect.md; all keys are always
    present.
    """
    protocol, metadata, counts = snapshot.protocol, snapshot.metadata, snapshot.counts
    return {
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


def _log(snapshot: Snapshot | TableSummary) -> dict[str, Any]:
    segment, checkpoint = snapshot.segment, _checkpoint(snapshot)
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


def _checkpoint(snapshot: Snapshot | TableSummary) -> dict[str, Any] | None:
    files, found = snapshot.segment.checkpoint, snapshot.checkpoint
    if files is None or found is None:
        return None
    summary = found if isinstance(found, CheckpointSummary) else CheckpointSummary.of(found)
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
    for status in snapshot.store.list_from(LOG_DIRECTORY, version_prefix(0)):
        file = parse_log_file_name(status.path.removeprefix(f"{LOG_DIRECTORY}/"))
        if file.kind is LogFileKind.COMMIT:
            return file.version
    return None


def _list_or_none(features: tuple[str, ...] | None) -> list[str] | None:
    return None if features is None else list(features)
