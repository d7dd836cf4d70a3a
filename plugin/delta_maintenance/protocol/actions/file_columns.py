"""The `add` and `remove` actions as Arrow columns.

A table has millions of them, so they never become objects: a batch of adds is a `pyarrow.Table`
with one column per field of the action, named as in the log. Unknown columns are fields of a newer
protocol or of another writer and are copied unchanged.

Implements "Add File and Remove File" and the file columns of "Checkpoint Schema". A logical file is
identified by its path and the unique ID of its deletion vector ("Action Reconciliation").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.deletion_vectors import unique_ids
from delta_maintenance.protocol.columns import integers, to_bools

STRING_MAP = pa.map_(pa.string(), pa.string())

PAIRS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())]))
"""A JSON map as a list of pairs, for maps with too many keys for a struct."""

DELETION_VECTOR = pa.struct(
    [
        pa.field("storageType", pa.string()),
        pa.field("pathOrInlineDv", pa.string()),
        pa.field("offset", pa.int32()),
        pa.field("sizeInBytes", pa.int32()),
        pa.field("cardinality", pa.int64()),
    ]
)

ADD_TYPES: Mapping[str, pa.DataType] = {
    "path": pa.string(),
    "partitionValues": STRING_MAP,
    "size": pa.int64(),
    "modificationTime": pa.int64(),
    "dataChange": pa.bool_(),
    "stats": pa.string(),
    "tags": STRING_MAP,
    "deletionVector": DELETION_VECTOR,
    "baseRowId": pa.int64(),
    "defaultRowCommitVersion": pa.int64(),
    "clusteringProvider": pa.string(),
}
"""All fields of `add`, in their order in checkpoints."""

REMOVE_TYPES: Mapping[str, pa.DataType] = {
    "path": pa.string(),
    "deletionTimestamp": pa.int64(),
    "dataChange": pa.bool_(),
    "extendedFileMetadata": pa.bool_(),
    "partitionValues": STRING_MAP,
    "size": pa.int64(),
    "stats": pa.string(),
    "tags": STRING_MAP,
    "deletionVector": DELETION_VECTOR,
    "baseRowId": pa.int64(),
    "defaultRowCommitVersion": pa.int64(),
}
"""All fields of `remove`, in their order in checkpoints."""

_CDC_FIELDS = ("path", "partitionValues", "size", "dataChange", "tags")
CDC_TYPES: Mapping[str, pa.DataType] = {name: ADD_TYPES[name] for name in _CDC_FIELDS}
"""All fields of `cdc`."""
FILE_ACTION_TYPES: Mapping[str, Mapping[str, pa.DataType]] = {
    "add": ADD_TYPES,
    "remove": REMOVE_TYPES,
    # Change data files are not part of the table state; only their lines need to be recognised.
    "cdc": CDC_TYPES,
}
"""The fields of each file action."""

PARSED_COLUMNS = ("stats_parsed", "partitionValues_parsed")
"""Columns of `add` that occur only in checkpoints; their types depend on the table's schema."""

ROW_COUNT = "stats.numRecords"
"""A pseudo field for readers: the columns that contain the number of rows, which are `stats`,
`stats_parsed` with only `numRecords`, or both.

A Parquet reader returns a column with this name instead of `stats`. It contains the row counts of
the JSON texts, so that no batch keeps the texts.
"""

STATISTICS = "stats or stats_parsed"
"""A pseudo field for readers: `stats_parsed`, and `stats` unless the former has the statistics of
each file. The texts make up most of a checkpoint.
"""

COMMIT_VERSION = "_commit_version"
"""A column of this library: the version of the commit that contains the action."""


def empty(types: Mapping[str, pa.DataType]) -> pa.Table:
    """Returns an empty batch with all of these columns."""
    return pa.schema(list(types.items())).empty_table()


def unknown_columns(batch: pa.Table, types: Mapping[str, pa.DataType]) -> list[str]:
    """Returns the columns that no revision of the protocol defines."""
    known_names = {*types, *PARSED_COLUMNS, COMMIT_VERSION}
    return [name for name in batch.column_names if name not in known_names]


def logical_file_keys(batch: pa.Table) -> pa.ChunkedArray:
    """Returns a key for each row; two rows have equal keys if and only if they are the same logical
    file.

    The key is the path as written, preceded by the unique ID of the deletion vector if the file has
    one. `CorruptTableError` if a path is null or contains a NUL character, which is invalid in a
    URI.
    """
    paths = batch["path"]
    if paths.null_count:
        raise CorruptTableError("an add or remove has no path")
    vectors = batch["deletionVector"] if "deletionVector" in batch.column_names else None
    if any(_holds_nul(chunk) for chunk in paths.chunks):
        raise CorruptTableError("the path of an add or remove contains a NUL character")
    if vectors is None or vectors.null_count == len(vectors):
        return paths
    ids = deletion_vector_ids(batch)
    with_vector = pc.binary_join_element_wise(pc.fill_null(ids, ""), paths, "\0")
    return pc.if_else(pc.is_valid(ids), with_vector, paths)


def keyless_rows(batch: pa.Table) -> npt.NDArray[np.int64]:
    """Returns the rows without a valid key: without a path, or with an incomplete deletion vector
    ID.
    """
    keyless = pc.is_null(batch["path"]) if batch["path"].null_count else None
    if "deletionVector" in batch.column_names:
        vectors = batch["deletionVector"]
        for name in ("storageType", "pathOrInlineDv"):
            key_field = pc.struct_field(vectors, name)
            if key_field.null_count > vectors.null_count:
                lacks = pc.and_(pc.is_valid(vectors), pc.is_null(key_field))
                keyless = lacks if keyless is None else pc.or_(keyless, lacks)
    return np.empty(0, np.int64) if keyless is None else np.flatnonzero(keyless.to_numpy())


def key_problem(batch: pa.Table, row: int, *, action: str) -> str:
    """Returns what one of the `keyless_rows` lacks, as a clause. `action` is its action."""
    path = batch["path"][row].as_py()
    if path is None:
        return f"{'an add' if action == 'add' else 'a remove'} lacks its path"
    return f"the deletion vector of {path} lacks its storageType or its pathOrInlineDv"


def deletion_vector_ids(batch: pa.Table) -> pa.ChunkedArray:
    """Returns the unique ID of each row's deletion vector, null without a vector."""
    if "deletionVector" not in batch.column_names:
        return pa.chunked_array([pa.nulls(batch.num_rows, pa.string())])
    ids = []
    for vectors in batch["deletionVector"].chunks:
        if vectors.null_count == len(vectors):
            ids.append(pa.nulls(len(vectors), pa.string()))
            continue
        storage, path, offset = (
            # Unlike the child array, struct_field is null where the struct is null.
            pc.struct_field(vectors, name)
            for name in ("storageType", "pathOrInlineDv", "offset")
        )
        ids.append(unique_ids(storage, path, offset))
    return pa.chunked_array(ids, pa.string())


def normalise(
    batch: pa.Table, types: Mapping[str, pa.DataType], *, partition_keys: Collection[str] | None
) -> pa.Table:
    """Casts known columns to their types; unknown columns follow unchanged.

    JSON readers return maps as structs, and Parquet readers return maps with other field names and
    types. Some writers omit null partition values: with `partition_keys` (the physical names of the
    partition columns), every map gets exactly these keys, with nulls for missing ones.
    """
    columns: dict[str, pa.ChunkedArray] = {}
    for name, kind in types.items():
        if name not in batch.column_names:
            continue
        column = batch[name]
        if kind == STRING_MAP and not pa.types.is_map(column.type):
            keep = (partition_keys if name == "partitionValues" else None) or ()
            to_map = _pairs_to_map if column.type == PAIRS else _struct_to_map
            column = pa.chunked_array(
                [to_map(c, keep_null=keep) for c in column.chunks], STRING_MAP
            )
        elif kind == DELETION_VECTOR and column.type != kind:
            column = pa.chunked_array(
                [_deletion_vectors(chunk) for chunk in column.chunks], _vector_type(column.type)
            )
        elif column.type != kind and kind == STRING_MAP:
            column = pa.chunked_array([_of_strings(chunk) for chunk in column.chunks], STRING_MAP)
        elif column.type != kind:
            column = column.cast(kind)
        has_pairs = pa.types.is_map(batch[name].type) or batch[name].type == PAIRS
        if name == "partitionValues" and partition_keys and has_pairs:
            column = pa.chunked_array(
                [_complete_maps(chunk, partition_keys) for chunk in column.chunks], STRING_MAP
            )
        columns[name] = column
    for name in batch.column_names:
        if name not in columns and not pa.types.is_null(batch[name].type):
            columns[name] = batch[name]
    return pa.table(columns)


def concat(batches: Iterable[pa.Table], types: Mapping[str, pa.DataType]) -> pa.Table:
    """Concatenates batches whose unknown columns may differ; missing values become null."""
    tables = [batch for batch in batches if batch.num_rows]
    if not tables:
        return empty(types)
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise CorruptTableError(
            "an unknown field of the file actions changes its type within the log"
        ) from None


def _holds_nul(texts: pa.StringArray) -> bool:
    # The buffer is scanned first, which nearly always suffices. It may contain a NUL outside the
    # slice, so a match is checked again.
    data = texts.buffers()[2]
    if data is None or np.frombuffer(data, np.uint8).all():
        return False
    return bool(pc.any(pc.match_substring(texts, "\0")).as_py())


def _struct_to_map(values: pa.StructArray, *, keep_null: Collection[str]) -> pa.MapArray:
    names = [field.name for field in values.type]
    rows = len(values)
    if not names:
        offsets = pa.array(np.zeros(rows + 1, np.int32), mask=_offset_mask(values))
        return pa.MapArray.from_arrays(
            offsets, pa.array([], pa.string()), pa.array([], pa.string())
        )
    children = [child.cast(pa.string()) for child in values.flatten()]
    present = np.empty((rows, len(names)), bool)
    valid = pc.is_valid(values).to_numpy(zero_copy_only=False)
    for index, (name, child) in enumerate(zip(names, children, strict=True)):
        if name in keep_null:
            present[:, index] = valid
        else:
            present[:, index] = pc.is_valid(child).to_numpy(zero_copy_only=False)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(present.sum(axis=1), out=offsets[1:])
    row, key = np.divmod(np.flatnonzero(present.ravel()), len(names))
    items = (
        children[0].take(pa.array(row))
        if len(names) == 1
        else pa.concat_arrays(children).take(pa.array(key * rows + row))
    )
    return pa.MapArray.from_arrays(
        pa.array(offsets, mask=_offset_mask(values)), pa.array(names).take(pa.array(key)), items
    )


def _pairs_to_map(values: pa.ListArray, *, keep_null: Collection[str]) -> pa.MapArray:
    """Converts pairs to a map and drops nulls, except those of the keys in `keep_null`."""
    items = values.flatten()
    names, texts = pc.struct_field(items, "key"), pc.struct_field(items, "value")
    is_kept = pc.or_(pc.is_valid(texts), pc.is_in(names, pa.array(keep_null, pa.string())))
    row = np.repeat(np.arange(len(values)), _lengths(values))[to_bools(is_kept)]
    return _map_by_row(values, row, names.filter(is_kept), texts.filter(is_kept))


def _of_strings(values: pa.MapArray) -> pa.MapArray:
    """Converts maps with another type of strings."""
    # PyArrow 24 and 25 end the process when they cast a map that was filtered, because the nulls of
    # the new keys are not counted yet. Asking for the number counts them.
    keys, items = (texts.cast(pa.string()) for texts in (values.keys, values.items))
    _ = keys.null_count
    ends = pa.array(values.offsets.to_numpy())
    return pa.MapArray.from_arrays(ends, keys, items, mask=pc.is_null(values))


def _complete_maps(values: pa.MapArray, keys: Collection[str]) -> pa.MapArray:
    """Returns maps with exactly these keys, in this order; missing ones become null."""
    lengths = _lengths(values)
    complete = (lengths == len(keys)) | to_bools(pc.is_null(values))
    if complete.all():
        return values
    start, count = values.offsets[0].as_py(), int(lengths.sum())
    present = values.keys.slice(start, count)
    distinct = pc.unique(present)
    if len(distinct) > _FEW_KEYS:
        return _completed_by_row(values, sorted(keys))
    names = sorted({*keys, *distinct.to_pylist()})
    children = [pc.map_lookup(values, query_key=name, occurrence="first") for name in names]
    fields = [pa.field(name, pa.string()) for name in names]
    struct = pa.StructArray.from_arrays(children, fields=fields, mask=pc.is_null(values))
    return _struct_to_map(struct, keep_null=keys)


_FEW_KEYS = 64
"""Up to this number, keys are looked up one by one in all rows."""


def _completed_by_row(values: pa.MapArray, keys: Sequence[str]) -> pa.MapArray:
    """Like `_complete_maps`, for any number of keys: linear in the number of entries."""
    lengths = _lengths(values)
    rows = np.flatnonzero(to_bools(pc.is_valid(values)))
    start, count = values.offsets[0].as_py(), int(lengths.sum())
    lacking = len(rows) * len(keys)
    added = pa.array(keys, pa.string()).take(integers(np.tile(np.arange(len(keys)), len(rows))))
    names = pa.concat_arrays([values.keys.slice(start, count), added])
    texts = pa.concat_arrays([values.items.slice(start, count), pa.nulls(lacking, pa.string())])
    row = np.append(np.repeat(np.arange(len(values)), lengths), np.repeat(rows, len(keys)))
    encoded = names.dictionary_encode()
    rank = np.empty(len(encoded.dictionary), np.int64)
    rank[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(rank))
    key = rank[encoded.indices.to_numpy()]
    # The sort is stable: of two entries with one key, the first comes before the added null.
    order = np.lexsort((key, row))
    row, key = row[order], key[order]
    stands = np.append(True, (row[1:] != row[:-1]) | (key[1:] != key[:-1]))[: len(row)]
    chosen = integers(order[stands])
    return _map_by_row(values, row[stands], names.take(chosen), texts.take(chosen))


def _lengths(values: pa.MapArray | pa.ListArray) -> npt.NDArray[np.int64]:
    """Returns the number of entries of each row, 0 for null."""
    lengths: npt.NDArray[np.int64] = np.diff(values.offsets.to_numpy()).astype(np.int64)
    return lengths


def _map_by_row(
    values: pa.Array, row: npt.NDArray[np.int64], names: pa.Array, texts: pa.Array
) -> pa.MapArray:
    """Builds maps from entries sorted by row; null where `values` is null."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.bincount(row, minlength=len(values)), out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets, mask=_offset_mask(values)), names, texts)


def _offset_mask(values: pa.Array) -> np.ndarray | None:
    # A null offset makes the map that starts there null; the last offset starts no map.
    if not values.null_count:
        return None
    return np.append(pc.is_null(values).to_numpy(zero_copy_only=False), False)


def _deletion_vectors(vectors: pa.Array) -> pa.StructArray:
    target_type = _vector_type(vectors.type)
    # `pc.struct_field` takes time proportional to the number of fields.
    children = dict(zip(vectors.type.names, vectors.flatten(), strict=True))
    return pa.StructArray.from_arrays(
        [
            children[field.name].cast(field.type)
            if field.name in children
            else pa.nulls(len(vectors), field.type)
            for field in target_type
        ],
        fields=list(target_type),
        mask=pc.is_null(vectors),
    )


def _vector_type(actual: pa.DataType) -> pa.StructType:
    # `maxRowIndex` is in many checkpoints, but always null and undocumented; it is not copied.
    known_fields = {*(field.name for field in DELETION_VECTOR), "maxRowIndex"}
    extra = [field for field in actual if field.name not in known_fields]
    return cast(pa.StructType, pa.struct([*DELETION_VECTOR, *extra]))
