"""The complete adds of the files that a run rewrites, needed to read and to remove these files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations.rewriting.choice import Choice
from delta_maintenance.operations.rewriting.live_columns import LiveColumns
from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.actions.file_columns import ADD_TYPES, logical_file_keys
from delta_maintenance.table.data.data_file_reader import SourceFile
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import layout_of


def chosen_adds(snapshot: Snapshot, files: LiveColumns, choice: Choice) -> pa.Table:
    """Returns the adds of the chosen files, in the order of `choice.rows`, with all fields.

    Reads the snapshot again, and holds only the chosen files in memory. Statistics that a
    checkpoint stores as structs are converted to JSON. A damaged checkpoint is skipped.
    """
    rows = pa.array(choice.rows)
    vector, path = files.vector.take(rows), files.path.take(rows)
    keyed = pc.binary_join_element_wise(pc.fill_null(vector, ""), path, "\0")
    wanted = pc.if_else(pc.is_valid(vector), keyed, path)
    while True:
        layout = replace(
            layout_of(snapshot, zone=None),
            stats_as_json=True,
            statistics_type=None,
            partition_types=None,
        )
        parts, places = [], []
        try:
            for batch in snapshot.scan():
                at = pc.index_in(logical_file_keys(batch.adds), value_set=wanted)
                known = pc.is_valid(at)
                if not pc.any(known).as_py():
                    continue
                adds = batch.adds.filter(known)
                layout = layout.widened(adds.schema, pa.schema([]))
                whole = layout.adds(adds)
                parts += [pa.Table.from_struct_array(chunk) for chunk in whole.chunks]
                places += at.filter(known).chunks
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)
            continue
        order = np.argsort(pa.chunked_array(places, pa.int32()).to_numpy(), kind="stable")
        if len(order) != len(choice.rows):
            raise RefusedError(
                "the live files of this version changed between two reads of the log",
                table=snapshot.table,
                version=snapshot.version,
                remedy="run again",
            )
        found = pa.concat_tables(parts, promote_options="permissive") if parts else _none()
        return found.take(pa.array(order))


def source_files(adds: pa.Table, counts: pa.Array) -> tuple[SourceFile, ...]:
    """Converts adds to source files of a bin; `counts` are their numbers of physical rows."""
    fields = ("path", "partitionValues", "size", "deletionVector", "baseRowId")
    rows = adds.select([*fields, "defaultRowCommitVersion"]).to_pylist()
    return tuple(_source(row, count) for row, count in zip(rows, counts.to_pylist(), strict=True))


def _source(row: Mapping[str, Any], count: int | None) -> SourceFile:
    vector = row["deletionVector"]
    return SourceFile(
        path=row["path"],
        partition_values=tuple(sorted(row["partitionValues"] or [])),
        size=row["size"] or 0,
        deletion_vector=None if vector is None else DeletionVectorDescriptor.from_json(vector),
        num_records=count,
        base_row_id=row["baseRowId"],
        default_row_commit_version=row["defaultRowCommitVersion"],
    )


def _none() -> pa.Table:
    return pa.schema(list(ADD_TYPES.items())).empty_table()
