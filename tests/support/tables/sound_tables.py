"""A valid table with every kind of file and action, which each test damages in one way."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from delta_maintenance.protocol.actions import DeletionVectorDescriptor, write_file
from delta_maintenance.protocol.delta_log import (
    FileSizeHistogram,
    VersionChecksum,
    deleted_record_counts,
    render_checksum,
)
from delta_maintenance.storage.core import Store
from delta_maintenance.table.commit.checksums import state_of
from delta_maintenance.table.read import Snapshot
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, MINUTE_MS, TableBuilder

ROWS = 10
"""The number of rows in every data file."""
CONFIGURATION = {
    "delta.enableInCommitTimestamps": "true",
    "delta.enableRowTracking": "true",
    "delta.enableDeletionVectors": "true",
}
NO_VECTORS = {"delta.enableDeletionVectors": "false", "delta.enableRowTracking": "false"}
WITH_MANIFESTS = log.metadata(
    configuration=CONFIGURATION
    | NO_VECTORS
    | {"delta.compatibility.symlinkFormatManifest.enabled": "true"}
)
PROTOCOL = log.features(
    "deletionVectors",
    "v2Checkpoint",
    writer_only=["appendOnly", "domainMetadata", "inCommitTimestamp", "rowTracking"],
)
VECTOR = "ab^-aqEH.-t@S}K{vb[*k^"
"""`pathOrInlineDv` of the only deletion vector of the table."""


def parquet(rows: int = ROWS, *, part: str = "x", kind: pa.DataType | None = None) -> bytes:
    """A data file; `kind` is the type of its numbers, by default that of the schema."""
    sink = io.BytesIO()
    numbers = pa.array(range(rows), kind or pa.int64())
    pq.write_table(pa.table({"id": numbers, "part": [part] * rows}), sink)
    return sink.getvalue()


DATA = parquet()
STATS = json.dumps({"numRecords": ROWS})


class SoundTable(TableBuilder):
    """Five commits, the files of four checkpoints, and every data file."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        configuration: Mapping[str, str] | None = None,
        extras: bool = True,
    ) -> None:
        super().__init__(store)
        self.next_row_id = 0
        self.vector = self._write_vector({1, 7})
        metadata = log.metadata(configuration=CONFIGURATION | dict(configuration or {}))
        self.step(PROTOCOL, metadata, self.data("a"), self.data("b"), self.mark())
        self.step(log.remove("a", size=len(DATA)), self.data("d%20e"), self.mark())
        b = self.live("b")
        again = {**b, "deletionVector": self.vector}
        self.step(log.remove("b", size=len(DATA)), {"add": again})
        self.step(log.txn("app", 7), log.domain("custom", "{}"))
        self.step(self.data("c"), self.mark())
        if extras:
            self.checkpoint(1)
            self.checkpoint(2, parts=2)
            self.v2_checkpoint(3, sidecars=2)
            self.compaction(1, 3)
            self.hint(3)
            for version in range(5):
                snapshot = self.open().snapshot(version=version)
                self.checksum(version, render_checksum(checksum_of(snapshot)))

    def step(self, *actions: log.Action, **info: Any) -> int:
        """Makes a commit with the required time and transaction ID."""
        version = self.version + 1
        time = EPOCH_MS + version * MINUTE_MS
        standard: dict[str, Any] = {"inCommitTimestamp": time, "txnId": f"txn-{version}"}
        return self.commit([log.commit_info(**(standard | info)), *actions])

    def data(self, path: str, **fields: Any) -> log.Action:
        """Writes a new data file, and returns its add."""
        self.store.put(path.replace("%20", " "), DATA)
        row_id, self.next_row_id = self.next_row_id, self.next_row_id + ROWS
        standard: dict[str, Any] = {
            "size": len(DATA),
            "stats": STATS,
            "baseRowId": row_id,
            "defaultRowCommitVersion": self.version + 1,
        }
        return log.add(path, **(standard | fields))

    def mark(self, value: int | None = None) -> log.Action:
        """Returns the domain of row tracking with the mark for the files so far."""
        mark = self.next_row_id - 1 if value is None else value
        return log.domain("delta.rowTracking", json.dumps({"rowIdHighWaterMark": mark}))

    def live(self, path: str) -> dict[str, Any]:
        """Returns the add of a live file."""
        for action in self.state():
            if "add" in action and action["add"]["path"] == path:
                return dict(action["add"])
        raise LookupError(path)

    def rewrite(self, version: int, *actions: log.Action) -> None:
        """Replaces the actions after the `commitInfo` of a commit."""
        self.commit([self.commits[version][0], *actions], version=version)

    def forget_tombstone(self, path: str) -> None:
        """Removes a live file, and writes a checkpoint without tombstones."""
        self.step(log.remove(path, size=len(DATA), deletionTimestamp=EPOCH_MS))
        self.checkpoint(actions=[action for action in self.state() if "remove" not in action])

    def _write_vector(self, rows: set[int]) -> log.Action:
        data, (offset,) = write_file([BitMap64(rows)])
        vector = log.deletion_vector(
            VECTOR, offset=offset, sizeInBytes=len(data) - 9, cardinality=len(rows)
        )
        path = DeletionVectorDescriptor.from_json(vector).relative_path()
        assert path is not None
        self.vector_path = path
        self.store.put(path, data)
        return vector


def checksum_of(snapshot: Snapshot) -> VersionChecksum:
    """Computes the checksum of a snapshot by the simplest means: a scan of all its files."""
    files = pa.concat_tables(
        [batch.adds for batch in snapshot.log.scan()], promote_options="default"
    )
    sizes = np.array(files["size"].to_pylist(), np.int64)
    vectors = [value for value in files["deletionVector"].to_pylist() if value is not None]
    deleted = [vector["cardinality"] for vector in vectors] + [0] * (len(sizes) - len(vectors))
    info = snapshot.log.state.commit_info
    return replace(
        state_of(snapshot),
        table_size=int(sizes.sum()),
        num_files=len(sizes),
        num_deletion_vectors=len(vectors),
        num_deleted_records=sum(deleted),
        file_sizes=FileSizeHistogram.of(sizes),
        deleted_record_counts=deleted_record_counts(np.array(deleted, np.int64)),
        in_commit_timestamp=None if info is None else info.in_commit_timestamp,
        all_files=tuple({"path": path} for path in files["path"].to_pylist()),
    )
