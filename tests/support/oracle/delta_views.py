"""One version of a table as plain values, in the same shape from every reader."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from delta_maintenance.table.read import Snapshot

View = dict[str, Any]


def our_view(snapshot: Snapshot) -> View:
    """Returns a version as our own reader reads it."""
    protocol, metadata = snapshot.protocol, snapshot.metadata
    return {
        "version": snapshot.version,
        "protocol": _protocol(
            protocol.min_reader_version,
            protocol.min_writer_version,
            protocol.reader_features,
            protocol.writer_features,
        ),
        "metadata": {
            "id": metadata.id,
            "name": metadata.name,
            "description": metadata.description,
            "schema": json.loads(metadata.schema_string or "null"),
            "partition_columns": list(metadata.partition_columns),
            "configuration": dict(metadata.configuration),
            "created_time": metadata.created_time,
        },
        "txns": {
            app_id: (txn.version, txn.last_updated)
            for app_id, txn in snapshot.log.state.txns.items()
        },
        "domains": snapshot.domain_metadata,
        "files": _by_key(
            {**row, "partition_values": dict(row["partition_values"])}
            for row in snapshot.live_files().to_pylist()
        ),
        "tombstones": _by_key(
            {**row, "partition_values": _without_nulls(dict(row["partition_values"] or []))}
            for row in snapshot.tombstones().drop_columns(["num_records"]).to_pylist()
        ),
    }


def spark_view(version: int, actions: Iterable[dict[str, Any]]) -> View:
    """Returns a version as Delta Spark reads it, from the actions of its reconciled state."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for action in actions:
        for kind, fields in action.items():
            groups.setdefault(kind, []).append(fields)
    [protocol], [metadata] = groups["protocol"], groups["metaData"]
    return {
        "version": version,
        "protocol": _protocol(
            protocol["minReaderVersion"],
            protocol["minWriterVersion"],
            protocol.get("readerFeatures"),
            protocol.get("writerFeatures"),
        ),
        "metadata": {
            "id": metadata["id"],
            "name": metadata.get("name"),
            "description": metadata.get("description"),
            "schema": json.loads(metadata["schemaString"]),
            "partition_columns": metadata["partitionColumns"],
            "configuration": metadata["configuration"],
            "created_time": metadata.get("createdTime"),
        },
        "txns": {
            txn["appId"]: (txn["version"], txn.get("lastUpdated")) for txn in groups.get("txn", [])
        },
        "domains": {
            domain["domain"]: domain["configuration"] for domain in groups.get("domainMetadata", [])
        },
        "files": _by_key(
            {**_file(add), "num_records": json.loads(add.get("stats") or "{}").get("numRecords")}
            for add in groups.get("add", [])
        ),
        "tombstones": _by_key(
            {
                **_file(remove),
                "partition_values": _without_nulls(remove.get("partitionValues") or {}),
                "deletion_timestamp": remove.get("deletionTimestamp"),
            }
            for remove in groups.get("remove", [])
        ),
    }


def deltalake_view(table: Path, version: int | None = None) -> list[dict[str, Any]]:
    """Returns the live files of a version as deltalake reads them, with their statistics."""
    adds = pa.table(DeltaTable(str(table), version=version).get_add_actions(flatten=False))
    rows: list[dict[str, Any]] = [_comparable(row) for row in adds.to_pylist()]
    return sorted(rows, key=lambda row: row["path"])


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _comparable(field) for name, field in value.items()}
    # NaN is not equal to itself.
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _protocol(
    reader: int,
    writer: int,
    reader_features: Iterable[str] | None,
    writer_features: Iterable[str] | None,
) -> dict[str, Any]:
    return {
        "reader": reader,
        "writer": writer,
        "reader_features": None if reader_features is None else sorted(reader_features),
        "writer_features": None if writer_features is None else sorted(writer_features),
    }


def _file(action: dict[str, Any]) -> dict[str, Any]:
    vector = action.get("deletionVector")
    offset = f"@{vector['offset']}" if vector and "offset" in vector else ""
    return {
        "path": action["path"],
        "dv": f"{vector['storageType']}{vector['pathOrInlineDv']}{offset}" if vector else None,
        "size": action.get("size"),
        "partition_values": action.get("partitionValues") or {},
        "base_row_id": action.get("baseRowId"),
        "default_row_commit_version": action.get("defaultRowCommitVersion"),
    }


def _without_nulls(partition_values: dict[str, str | None]) -> dict[str, str]:
    # Delta Spark loses the null entries of removes, so they are not compared.
    return {name: value for name, value in partition_values.items() if value is not None}


def _by_key(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str | None], dict[str, Any]]:
    listed = [((row["path"], row["dv"]), row) for row in rows]
    keyed = dict(listed)
    assert len(keyed) == len(listed), "a logical file is listed twice"
    return keyed
