"""Tables with real data files, for tests of code that reads, rewrites and moves rows.

The builder writes Parquet and JSON directly, without the tested code.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from delta_maintenance.protocol.actions import DeletionVectorDescriptor, encode_bitmap, z85_encode
from delta_maintenance.storage.core import Store
from delta_maintenance.table.data.data_file_reader import SourceFile
from delta_maintenance.table.read import Table
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder

ROW_ID, ROW_VERSION = "_row-id-col", "_row-commit-version-col"
ROW_TRACKING = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": ROW_ID,
    "delta.rowTracking.materializedRowCommitVersionColumnName": ROW_VERSION,
}


def field(name: str, kind: object, **metadata: object) -> dict[str, object]:
    """A field of a schema string."""
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def schema_string(*fields: dict[str, object]) -> str:
    """The schema string of these fields."""
    return json.dumps({"type": "struct", "fields": fields})


def parquet(rows: pa.Table, **options: Any) -> bytes:
    """The rows as one Parquet file."""
    sink = io.BytesIO()
    pq.write_table(rows, sink, **options)
    return sink.getvalue()


def inline_vector(positions: Sequence[int]) -> dict[str, Any]:
    """Returns the descriptor of an inline deletion vector."""
    data = encode_bitmap(BitMap64(positions))
    return {
        "storageType": "i",
        "pathOrInlineDv": z85_encode(data),
        "sizeInBytes": len(data),
        "cardinality": len(positions),
    }


def put(store: Store, path: str, data: bytes) -> None:
    """Writes a whole file of the table."""
    with store.create(path) as file:
        file.write(data)


def source(
    path: str,
    data: bytes,
    *,
    rows: int | None = None,
    deleted: Sequence[int] | None = None,
    partition: Mapping[str, str | None] | None = None,
    **fields: Any,
) -> SourceFile:
    """Returns a data file as a source of a bin."""
    vector = None
    if deleted is not None:
        vector = DeletionVectorDescriptor.from_json(inline_vector(deleted))
    return SourceFile(
        path=path,
        partition_values=tuple(sorted((partition or {}).items())),
        size=len(data),
        deletion_vector=vector,
        num_records=rows,
        **fields,
    )


class DataTable:
    """A table under construction, with files of rows."""

    def __init__(
        self,
        *fields: dict[str, object],
        store: Any = None,
        features: Sequence[str] = (),
        configuration: Mapping[str, str] | None = None,
        partitioned_by: Sequence[str] = (),
        domains: Mapping[str, str] | None = None,
    ) -> None:
        """`features` are those for readers and writers; writer-only features are recognised by
        name.
        """
        self.builder = TableBuilder(store)
        self.store = self.builder.store
        self.tracks_rows = "rowTracking" in features
        self._next_id = 0
        self._files = 0
        both = [name for name in features if name in _READERS]
        protocol = (
            log.protocol(
                3 if both else 1,
                7,
                reader_features=both if both else None,
                writer_features=list(features),
            )
            if features
            else log.protocol()
        )
        self.live: dict[str, dict[str, Any]] = {}
        """The adds of live files by path, in the order in which they were added."""
        lines: list[Any] = [
            protocol,
            log.metadata(
                schema=schema_string(*fields),
                configuration=configuration,
                partitioned_by=partitioned_by,
            ),
        ]
        lines += [log.domain(name, text) for name, text in (domains or {}).items()]
        self.builder.commit(lines)

    def append(self, *tables: pa.Table, commit: bool = True, **fields: Any) -> list[str]:
        """Makes one commit that adds a file for each table; `fields` are added to every add."""
        options = fields.pop("writing", {})
        lines, paths = [], []
        for rows in tables:
            path = fields.get("path") or f"f{self._files:05d}.parquet"
            self._files += 1
            data = parquet(rows, **options)
            put(self.store, path, data)
            add = {
                "path": path,
                "partitionValues": {},
                "size": len(data),
                "modificationTime": 1_700_000_000_000 + self._files,
                "dataChange": True,
                "stats": json.dumps({"numRecords": rows.num_rows}),
            } | fields
            if self.tracks_rows and "baseRowId" not in fields:
                add |= {
                    "baseRowId": self._next_id,
                    "defaultRowCommitVersion": self.builder.version + 1,
                }
                self._next_id += rows.num_rows
            self.live[path] = add
            lines.append({"add": add})
            paths.append(path)
        if self.tracks_rows:
            mark = json.dumps({"rowIdHighWaterMark": self._next_id - 1})
            lines.append(log.domain("delta.rowTracking", mark))
        if commit:
            self.builder.commit(lines)
        return paths

    def continue_row_ids(self) -> None:
        """Assigns row IDs from now on after those that others have assigned."""
        mark = Table(self.store).snapshot().domain_metadata["delta.rowTracking"]
        self._next_id = json.loads(mark)["rowIdHighWaterMark"] + 1

    def delete(self, path: str, positions: Sequence[int]) -> int:
        """Makes one commit that deletes rows of a file by a deletion vector. Returns its
        version.
        """
        old = self.live[path]
        new = old | {"deletionVector": inline_vector(positions)}
        self.live[path] = new
        return self.builder.commit(
            [log.commit_info("DELETE"), {"remove": removed(old)}, {"add": new}]
        )

    def remove(self, path: str, *, data_change: bool = True) -> int:
        """Makes one commit that removes a file."""
        old = self.live.pop(path)
        return self.builder.commit(
            [log.commit_info("DELETE"), {"remove": removed(old) | {"dataChange": data_change}}]
        )


def removed(add: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the remove of a live file."""
    kept = ("path", "partitionValues", "size", "deletionVector", "baseRowId", "stats", "tags")
    return (
        {key: add[key] for key in kept if key in add}
        | {"deletionTimestamp": 1_700_000_000_000, "dataChange": True, "extendedFileMetadata": True}
        | {key: add[key] for key in ("defaultRowCommitVersion",) if key in add}
    )


_READERS = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "variantType"}
)
