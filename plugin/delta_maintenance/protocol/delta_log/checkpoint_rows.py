"""Rows and columns of checkpoints.

Implements "Writer Requirements for Checkpoints", "Checkpoint Schema" and "V2 Spec" as pure
functions from reconciled actions to Arrow. The checkpoint writer decides which file each row goes
to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    COMMIT_VERSION,
    REMOVE_TYPES,
    STRING_MAP,
    unknown_columns,
)
from delta_maintenance.protocol.actions.model import (
    CheckpointMetadata,
    DomainMetadata,
    Metadata,
    Protocol,
    Sidecar,
    Txn,
)
from delta_maintenance.protocol.schema.partition_values import parse_partition_values
from delta_maintenance.protocol.schema.types import DeltaType, to_arrow_type
from delta_maintenance.protocol.statistics.as_json import (
    align_statistics,
    parse_statistics,
    render_statistics,
)

TEXTS = pa.list_(pa.field("element", pa.string()))
_MOST_UNKNOWN_COLUMNS = 1_000
"""Of each action; footers and the time to read a file increase with its columns."""

_SINGLE_TYPES: Mapping[str, Mapping[str, pa.DataType]] = {
    "txn": {"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()},
    "metaData": {
        "id": pa.string(),
        "name": pa.string(),
        "description": pa.string(),
        "format": pa.struct([("provider", pa.string()), ("options", STRING_MAP)]),
        "schemaString": pa.string(),
        "partitionColumns": TEXTS,
        "configuration": STRING_MAP,
        "createdTime": pa.int64(),
    },
    "protocol": {
        "minReaderVersion": pa.int32(),
        "minWriterVersion": pa.int32(),
        "readerFeatures": TEXTS,
        "writerFeatures": TEXTS,
    },
    "domainMetadata": {"domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()},
    "checkpointMetadata": {"version": pa.int64(), "tags": STRING_MAP},
    "sidecar": {
        "path": pa.string(),
        "sizeInBytes": pa.int64(),
        "modificationTime": pa.int64(),
        "tags": STRING_MAP,
    },
}

# `remove` in a checkpoint has neither field ("Checkpoint Schema"); in `add`, statistics come last.
_NOT_IN_REMOVE = ("stats", "tags")


_TIGHT_BOUNDS = ("tightBounds",)


class UnknownFieldsError(Exception):
    """A batch has fields that the chosen columns lack; start again with the wider `layout`."""

    def __init__(self, layout: FileActionLayout) -> None:
        super().__init__("unknown fields")
        self.layout = layout


@dataclass(frozen=True, slots=True, kw_only=True)
class FileActionLayout:
    """The columns of adds and removes in one checkpoint."""

    stats_as_json: bool
    statistics_type: pa.StructType | None
    """The type of `stats_parsed`, or None if statistics are not written as structs."""
    source_type: pa.StructType | None = None
    """The same type, also set if not written: it distinguishes timestamps with and without zone."""
    partition_types: Mapping[str, DeltaType] | None = None
    """The types of `partitionValues_parsed` by physical name, or None without that column."""
    zone: tzinfo | None = None
    """The time zone of partition values of type timestamp that contain none."""
    columns: frozenset[str] = frozenset()
    """Physical column names of the table. Statistics of other (dropped) columns may be lost."""
    unknown_add_fields: tuple[pa.Field, ...] = ()
    unknown_remove_fields: tuple[pa.Field, ...] = ()
    vector_type: pa.DataType = ADD_TYPES["deletionVector"]

    def adds(self, batch: pa.Table) -> pa.ChunkedArray:
        """A batch of live files as rows of the checkpoint's column `add`.

        `dataChange` is false in all rows. If a row lacks one of the two forms of statistics, it is
        computed from the other one. Raises `UnknownFieldsError` if the batch has fields that the
        layout lacks, and `RefusedError` if statistics would be lost.
        """
        self._require_fields(batch)
        return pa.chunked_array([self._adds(rows) for rows in batch.to_batches()], self.add_type)

    def removes(self, batch: pa.Table) -> pa.ChunkedArray:
        """A batch of tombstones as rows of the checkpoint's column `remove`."""
        self._require_fields(batch, removes=True)
        return pa.chunked_array(
            [self._removes(rows) for rows in batch.to_batches()], self.remove_type
        )

    def _adds(self, batch: pa.RecordBatch) -> pa.StructArray:
        columns = {
            name: _column(batch, name, kind)
            for name, kind in ADD_TYPES.items()
            if name not in ("stats", "dataChange")
        }
        columns["dataChange"] = pa.repeat(pa.scalar(False), batch.num_rows)
        columns["deletionVector"] = _cast_struct(columns["deletionVector"], self.vector_type)
        stats = _column(batch, "stats", pa.string())
        parsed = _column(batch, "stats_parsed", None)
        if self.stats_as_json:
            columns["stats"] = self._json(stats, parsed)
        if self.statistics_type is not None:
            columns["stats_parsed"] = self._struct(stats, parsed, self.statistics_type)
        if self.partition_types is not None:
            columns["partitionValues_parsed"] = self._partition_values(columns["partitionValues"])
        for field in self.unknown_add_fields:
            columns[field.name] = _carry_values(batch, field)
        return _struct(columns, self.add_type, batch.num_rows)

    def _removes(self, batch: pa.RecordBatch) -> pa.StructArray:
        columns = {
            name: _column(batch, name, kind)
            for name, kind in REMOVE_TYPES.items()
            if name not in _NOT_IN_REMOVE
        }
        columns["dataChange"] = pa.repeat(pa.scalar(False), batch.num_rows)
        columns["deletionVector"] = _cast_struct(columns["deletionVector"], self.vector_type)
        for field in self.unknown_remove_fields:
            columns[field.name] = _carry_values(batch, field)
        return _struct(columns, self.remove_type, batch.num_rows)

    @property
    def add_type(self) -> pa.StructType:
        """The type of the column `add`."""
        fields = [
            pa.field(name, self.vector_type if name == "deletionVector" else kind)
            for name, kind in ADD_TYPES.items()
            if name != "stats"
        ]
        if self.partition_types is not None:
            fields.append(pa.field("partitionValues_parsed", self._parsed_partition_type()))
        if self.stats_as_json:
            fields.append(pa.field("stats", pa.string()))
        if self.statistics_type is not None:
            fields.append(pa.field("stats_parsed", self.statistics_type))
        return pa.struct([*fields, *self.unknown_add_fields])

    @property
    def remove_type(self) -> pa.StructType:
        """The type of the column `remove`."""
        fields = [
            pa.field(name, self.vector_type if name == "deletionVector" else kind)
            for name, kind in REMOVE_TYPES.items()
            if name not in _NOT_IN_REMOVE
        ]
        return pa.struct([*fields, *self.unknown_remove_fields])

    def widen(self, adds: pa.Schema, removes: pa.Schema) -> FileActionLayout:
        """The layout extended by all unknown fields of batches with these columns.

        Raises `RefusedError` if the type of a field conflicts with its type in the layout, or if
        Parquet cannot store it.
        """
        vector_type = self.vector_type
        for schema in (adds, removes):
            if "deletionVector" in schema.names:
                vector_type = _merged_type(vector_type, schema.field("deletionVector").type)
        return replace(
            self,
            unknown_add_fields=_merge_fields(self.unknown_add_fields, _unknown(adds, ADD_TYPES)),
            unknown_remove_fields=_merge_fields(
                self.unknown_remove_fields, _unknown(removes, REMOVE_TYPES)
            ),
            vector_type=vector_type,
        )

    def require_few_columns(self) -> None:
        """Raises `RefusedError` for unknown fields with too many values for a Parquet file."""
        for fields in (self.unknown_add_fields, self.unknown_remove_fields, self.vector_type):
            _require_few(fields, "the file actions")

    def _require_fields(self, batch: pa.Table, *, removes: bool = False) -> None:
        empty = pa.schema([])
        wider = self.widen(*((empty, batch.schema) if removes else (batch.schema, empty)))
        if wider != self:
            raise UnknownFieldsError(wider)

    def _json(self, stats: pa.Array, parsed: pa.Array | None) -> pa.Array:
        if parsed is None or not stats.null_count:
            return stats
        needed = pc.and_(pc.is_null(stats), pc.is_valid(parsed))
        if not pc.any(needed).as_py():
            return stats
        rendered = render_statistics(parsed.filter(needed), self.source_type)
        if lost := self._relevant(rendered.lost):
            raise _loss(lost, "as JSON")
        return pc.replace_with_mask(stats, needed, rendered.values)

    def _struct(
        self, stats: pa.Array, parsed: pa.Array | None, target: pa.StructType
    ) -> pa.StructArray:
        from_json = parse_statistics(stats, target)
        lost = from_json.lost
        values = from_json.values
        if parsed is not None and parsed.null_count < len(parsed):
            aligned = align_statistics(parsed, target)
            lost = tuple(sorted({*lost, *aligned.lost}))
            # Values that the writer stored as a struct are exact; JSON may be truncated or rounded.
            values = pc.if_else(pc.is_valid(aligned.values), aligned.values, values)
        if not self.stats_as_json and (lost := self._relevant(lost)):
            if lost == (_TIGHT_BOUNDS,) and target.get_field_index(*_TIGHT_BOUNDS) < 0:
                # Files keep `tightBounds` after the feature deletionVectors is dropped.
                wider = pa.struct([*target, pa.field(*_TIGHT_BOUNDS, pa.bool_())])
                raise UnknownFieldsError(replace(self, statistics_type=wider, source_type=wider))
            raise _loss(lost, "as a struct alone")
        return values

    def _relevant(self, lost: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
        per_column = ("minValues", "maxValues", "nullCount", "nullCounts")
        return tuple(
            path
            for path in lost
            if len(path) < 2 or path[0] not in per_column or path[1] in self.columns
        )

    def _partition_values(self, values: pa.MapArray) -> pa.StructArray:
        assert self.partition_types is not None
        columns = {}
        for name, kind in self.partition_types.items():
            texts = pc.map_lookup(values, query_key=pa.scalar(name), occurrence="first")
            columns[name] = parse_partition_values(texts, kind, zone=self.zone).values
        return _struct(columns, self._parsed_partition_type(), len(values))

    def _parsed_partition_type(self) -> pa.StructType:
        assert self.partition_types is not None
        return pa.struct(
            [pa.field(name, to_arrow_type(kind)) for name, kind in self.partition_types.items()]
        )


def select_unexpired(
    tombstones: pa.Table, *, deleted_after_ms: int | None, commit_times: Mapping[int, int]
) -> pa.Table:
    """The tombstones deleted after the given time, in milliseconds since 1970; all if it is None.

    The age of a tombstone without a deletion timestamp is that of its commit. If that is unknown
    too, the tombstone came from an earlier checkpoint and counts as expired ("Action
    Reconciliation").
    """
    if deleted_after_ms is None or not tombstones.num_rows:
        return tombstones
    times = deletion_times(tombstones, commit_times=commit_times)
    return tombstones.filter(pc.fill_null(pc.greater(times, deleted_after_ms), False))


def deletion_times(tombstones: pa.Table, *, commit_times: Mapping[int, int]) -> pa.ChunkedArray:
    """The removal time of each file, in milliseconds since 1970-01-01 UTC; null if unknown.

    The later of the tombstone's own time and the time of the commit that contains it, because
    either clock may have been slow.
    """
    times = (
        tombstones["deletionTimestamp"]
        if "deletionTimestamp" in tombstones.column_names
        else pa.chunked_array([pa.nulls(tombstones.num_rows, pa.int64())])
    )
    if COMMIT_VERSION in tombstones.column_names:
        versions = tombstones[COMMIT_VERSION].to_numpy()
        distinct, at = np.unique(versions, return_inverse=True)
        committed = pa.array([commit_times.get(int(version)) for version in distinct], pa.int64())
        times = pc.max_element_wise(times, committed.take(pa.array(at)), skip_nulls=True)
    return times


def kept_txns(txns: Iterable[Txn], *, updated_after_ms: int | None) -> list[Txn]:
    """The transactions that have not expired; without `lastUpdated` they never expire."""
    return [
        txn
        for txn in txns
        if updated_after_ms is None
        or txn.last_updated is None
        or txn.last_updated > updated_after_ms
    ]


def single_actions(
    *,
    protocol: Protocol,
    metadata: Metadata,
    txns: Sequence[Txn],
    domains: Sequence[DomainMetadata],
    checkpoint_metadata: CheckpointMetadata | None = None,
    sidecars: Sequence[Sidecar] = (),
) -> list[tuple[str, dict[str, Any]]]:
    """The non-file actions of a checkpoint with their names; `checkpointMetadata` and `sidecar`
    actions exist only in V2 checkpoints."""
    actions: list[tuple[str, dict[str, Any]]] = []
    if checkpoint_metadata is not None:
        actions.append(("checkpointMetadata", checkpoint_metadata.to_json()))
    actions.extend(("sidecar", sidecar.to_json()) for sidecar in sidecars)
    actions.append(("protocol", protocol.to_json()))
    actions.append(("metaData", metadata.to_json()))
    actions.extend(("txn", txn.to_json()) for txn in txns)
    actions.extend(("domainMetadata", domain.to_json()) for domain in domains)
    return actions


def single_action_table(
    actions: Sequence[tuple[str, Mapping[str, Any]]], *, version_2: bool
) -> pa.Table:
    """The actions as rows of a Parquet checkpoint: one column per action, all but one null per row.

    Raises `RefusedError` if unknown fields cannot be stored as columns.
    """
    names = [name for name in _SINGLE_TYPES if version_2 or name not in _VERSION_2_ONLY]
    columns = {}
    for name in names:
        values = [dict(value) if kind == name else None for kind, value in actions]
        try:
            columns[name] = pa.array(values, _single_type(name, values))
        except (pa.ArrowException, OverflowError):
            problem = f"a field of {name} has values of several types or too large numbers"
            raise _not_carried(problem) from None
    return pa.table(columns)


_VERSION_2_ONLY = ("checkpointMetadata", "sidecar")


def _single_type(name: str, values: Sequence[Mapping[str, Any] | None]) -> pa.StructType:
    known_fields = _SINGLE_TYPES[name]
    extra: dict[str, list[Any]] = {}
    for value in values:
        for key in value or {}:
            if key not in known_fields:
                extra.setdefault(key, []).append((value or {})[key])
    inferred = [pa.field(key, pa.infer_type(extra_value)) for key, extra_value in extra.items()]
    for field in inferred:
        _require_storable(field, name)
    _require_few(inferred, name)
    return pa.struct([*(pa.field(key, kind) for key, kind in known_fields.items()), *inferred])


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType | None) -> Any:
    if name not in batch.column_names:
        return None if kind is None else pa.nulls(batch.num_rows, kind)
    array = batch.column(name)
    if kind is None or array.type == kind or name == "deletionVector":
        return array
    return _cast_struct(array, kind) if pa.types.is_struct(kind) else array.cast(kind)


def _carry_values(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """The values of an unknown field in its checkpoint type, provided that no digit is lost."""
    try:
        values = _column(batch, field.name, field.type)
    except pa.ArrowInvalid:
        values = None
    if values is None or _may_be_rounded(values):
        raise _not_carried(f"the field {field.name} has numbers too large to be stored exactly")
    return values


def _may_be_rounded(values: pa.Array) -> bool:
    # JSON integers are read as floating point beside fractions, and beyond 64 bits.
    if pa.types.is_floating(values.type):
        return bool(pc.any(pc.greater_equal(pc.abs(values), 2.0**53)).as_py())
    if pa.types.is_struct(values.type):
        return any(_may_be_rounded(child) for child in values.flatten())
    return pa.types.is_list(values.type) and _may_be_rounded(values.flatten())


def _cast_struct(values: pa.Array, target: pa.DataType) -> pa.Array:
    if values.type == target:
        return values
    children_by_name = dict(zip(values.type.names, values.flatten(), strict=True))
    children = [
        children_by_name[field.name].cast(field.type)
        if field.name in children_by_name
        else pa.nulls(len(values), field.type)
        for field in target
    ]
    return pa.StructArray.from_arrays(children, fields=list(target), mask=pc.is_null(values))


def _struct(columns: Mapping[str, pa.Array], target: pa.StructType, rows: int) -> pa.StructArray:
    if not target.num_fields:
        return pa.array([{}] * rows, target)
    return pa.StructArray.from_arrays(
        [columns[field.name] for field in target], fields=list(target)
    )


def _unknown(schema: pa.Schema, types: Mapping[str, pa.DataType]) -> list[pa.Field]:
    return [schema.field(name) for name in unknown_columns(schema.empty_table(), types)]


def _merge_fields(earlier: tuple[pa.Field, ...], later: Sequence[pa.Field]) -> tuple[pa.Field, ...]:
    merged = {field.name: field for field in earlier}
    for field in later:
        _require_storable(field, "the file actions")
        if field.name in merged:
            kind = _merged_type(merged[field.name].type, field.type)
            merged[field.name] = field.with_type(kind)
        else:
            merged[field.name] = field.with_nullable(True)
    return tuple(merged.values())


def _merged_type(earlier: pa.DataType, later: pa.DataType) -> pa.DataType:
    if earlier == later:
        return earlier
    try:
        schemas = [pa.schema([pa.field("field", kind)]) for kind in (earlier, later)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        problem = f"a field of the file actions has both the type {earlier} and the type {later}"
        raise _not_carried(problem) from None


def _require_storable(field: pa.Field, action: str) -> None:
    if _has_empty_struct(field.type):
        raise _not_carried(f"the field {field.name} of {action} contains an object without fields")


def _require_few(fields: Iterable[pa.Field], action: str) -> None:
    """Limits unknown fields, because each of their values becomes a column that every reader pays
    for.
    """
    count = sum(_leaves(field.type) for field in fields)
    if count > _MOST_UNKNOWN_COLUMNS:
        raise _not_carried(
            f"those of {action} would be {count} columns, and the limit is {_MOST_UNKNOWN_COLUMNS}"
        )


def _leaves(kind: pa.DataType) -> int:
    if pa.types.is_list(kind):
        return _leaves(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_leaves(field.type) for field in kind)
    return 1


def _has_empty_struct(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_empty_struct(kind.value_type)
    if pa.types.is_struct(kind):
        return not kind.num_fields or any(_has_empty_struct(field.type) for field in kind)
    return False


def _not_carried(reason: str) -> RefusedError:
    return RefusedError(
        f"an unknown field cannot be copied to a checkpoint: {reason}",
        remedy="checkpoint the table with the engine that writes this field",
    )


def _loss(lost: Sequence[Sequence[str]], form: str) -> RefusedError:
    columns = ", ".join(sorted({".".join(path) for path in lost}))
    return RefusedError(
        f"statistics cannot be written {form} without loss: {columns}",
        remedy="set delta.checkpoint.writeStatsAsJson to true, or let Delta Spark checkpoint",
    )
