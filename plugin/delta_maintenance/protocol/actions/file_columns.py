"""The `add` and `remove` actions as Arrow columns.

A table has millions of them, so they are never objects: a batch of adds is a `pyarrow.Table` with
one column per field of the action, named as in the log. Columns whose names this module does not
know are fields of a newer protocol or of another writer; they travel along unchanged.

Implements "Add File and Remove File" and the file columns of "Checkpoint Schema". A logical file is
identified by its path and the unique id of its deletion vector ("Action Reconciliation").
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
from delta_maintenance.protocol.columns.arrays import integers, to_bools

STRING_MAP = pa.map_(pa.string(), pa.string())

PAIRS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())]))
"""A map as JSON has it where its keys are no fields."""

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
"""Every field of `add`, in the order in which checkpoints hold them."""

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
"""Every field of `remove`, in the order in which checkpoints hold them."""

_CDC_FIELDS = ("path", "partitionValues", "size", "dataChange", "tags")
FILE_ACTION_TYPES: Mapping[str, Mapping[str, pa.DataType]] = {
    "add": ADD_TYPES,
    "remove": REMOVE_TYPES,
    # Change data files are no part of any state; their lines are only told apart from the others.
    "cdc": {name: ADD_TYPES[name] for name in _CDC_FIELDS},
}
"""The fields of each action that names a file."""

PARSED_COLUMNS = ("stats_parsed", "partitionValues_parsed")
"""Columns of `add` that only checkpoints have, typed by the table's schema."""

ROW_COUNT = "stats.numRecords"
"""Asks a reader, among the names of fields, for the columns that state the number of rows: `stats`,
`stats_parsed` with `numRecords` alone, or both."""

COMMIT_VERSION = "_commit_version"
"""A column of our own: the version of the commit that an action of the log's tail comes from."""


def empty(types: Mapping[str, pa.DataType]) -> pa.Table:
    """A batch without rows that has all of these columns."""
    return pa.schema(list(types.items())).empty_table()


def unknown_columns(batch: pa.Table, types: Mapping[str, pa.DataType]) -> list[str]:
    """The columns that are fields no revision of the protocol knows."""
    known = {*types, *PARSED_COLUMNS, COMMIT_VERSION}
    return [name for name in batch.column_names if name not in known]


def logical_file_keys(batch: pa.Table) -> pa.ChunkedArray:
    """One text per row that two rows share if and only if they are the same logical file.

    The path exactly as written, and for a file with a deletion vector its unique id in front of it.
    `CorruptTableError` where a path is null or holds a NUL character, which no URI may.
    """
    paths = batch["path"]
    if paths.null_count:
        raise CorruptTableError("an add or remove has no path")
    vectors = batch["deletionVector"] if "deletionVector" in batch.column_names else None
    if any(_holds_nul(chunk) for chunk in paths.chunks):
        raise CorruptTableError("the path of an add or remove holds a NUL character")
    if vectors is None or vectors.null_count == len(vectors):
        return paths
    ids = deletion_vector_ids(batch)
    with_vector = pc.binary_join_element_wise(pc.fill_null(ids, ""), paths, "\0")
    return pc.if_else(pc.is_valid(ids), with_vector, paths)


def keyless_rows(batch: pa.Table) -> npt.NDArray[np.int64]:
    """The rows that identify no logical file: without a path, or with part of a vector's id."""
    keyless = pc.is_null(batch["path"]) if batch["path"].null_count else None
    if "deletionVector" in batch.column_names:
        vectors = batch["deletionVector"]
        for name in ("storageType", "pathOrInlineDv"):
            part = pc.struct_field(vectors, name)
            if part.null_count > vectors.null_count:
                lacks = pc.and_(pc.is_valid(vectors), pc.is_null(part))
                keyless = lacks if keyless is None else pc.or_(keyless, lacks)
    return np.empty(0, np.int64) if keyless is None else np.flatnonzero(keyless.to_numpy())


def deletion_vector_ids(batch: pa.Table) -> pa.ChunkedArray:
    """The unique id of each row's deletion vector, null where it has none."""
    if "deletionVector" not in batch.column_names:
        return pa.chunked_array([pa.nulls(batch.num_rows, pa.string())])
    ids = []
    for vectors in batch["deletionVector"].chunks:
        storage, path, offset = (
            # struct_field, unlike the child itself, is null where the struct is
            pc.struct_field(vectors, name)
            for name in ("storageType", "pathOrInlineDv", "offset")
        )
        ids.append(unique_ids(storage, path, offset))
    return pa.chunked_array(ids, pa.string())


def normalise(
    batch: pa.Table, types: Mapping[str, pa.DataType], *, partition_keys: Collection[str] | None
) -> pa.Table:
    """The batch with known columns in their types; unknown ones follow as they are.

    JSON gives maps as structs, Parquet gives them with names and widths of its own choosing. Some
    writers leave out null partition values: with `partition_keys` (the physical names of the
    partition columns) they are null for exactly those keys, whatever the form.
    """
    columns: dict[str, pa.ChunkedArray] = {}
    for name, wanted in types.items():
        if name not in batch.column_names:
            continue
        column = batch[name]
        if wanted == STRING_MAP and not pa.types.is_map(column.type):
            keep = (partition_keys if name == "partitionValues" else None) or ()
            to_map = _pairs_to_map if column.type == PAIRS else _struct_to_map
            column = pa.chunked_array(
                [to_map(c, keep_null=keep) for c in column.chunks], STRING_MAP
            )
        elif wanted == DELETION_VECTOR and column.type != wanted:
            column = pa.chunked_array(
                [_deletion_vectors(chunk) for chunk in column.chunks], _vector_type(column.type)
            )
        elif column.type != wanted:
            column = column.cast(wanted)
        has_pairs = pa.types.is_map(batch[name].type) or batch[name].type == PAIRS
        if name == "partitionValues" and partition_keys and has_pairs:
            column = pa.chunked_array(
                [_completed(chunk, partition_keys) for chunk in column.chunks], STRING_MAP
            )
        columns[name] = column
    for name in batch.column_names:
        if name not in columns and not pa.types.is_null(batch[name].type):
            columns[name] = batch[name]
    return pa.table(columns)


def concat(batches: Iterable[pa.Table], types: Mapping[str, pa.DataType]) -> pa.Table:
    """One batch of several, whose unknown columns may differ; absent ones become null."""
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
    # A scan of the bytes decides almost always; a NUL may lie outside the slice, so look again.
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
    """Without the nulls of other keys than those."""
    items = values.flatten()
    names, texts = pc.struct_field(items, "key"), pc.struct_field(items, "value")
    kept = pc.or_(pc.is_valid(texts), pc.is_in(names, pa.array(keep_null, pa.string())))
    row = np.repeat(np.arange(len(values)), _lengths(values))[to_bools(kept)]
    return _map_by_row(values, row, names.filter(kept), texts.filter(kept))


def _completed(values: pa.MapArray, keys: Collection[str]) -> pa.MapArray:
    """The maps with a null for every key that they lack, and each key once, in their order."""
    lengths = _lengths(values)
    complete = (lengths == len(keys)) | to_bools(pc.is_null(values))
    if complete.all():
        return values
    first, count = values.offsets[0].as_py(), int(lengths.sum())
    present = values.keys.slice(first, count)
    distinct = pc.unique(present)
    if len(distinct) > _FEW_KEYS:
        return _completed_by_row(values, sorted(keys))
    names = sorted({*keys, *distinct.to_pylist()})
    children = [pc.map_lookup(values, query_key=name, occurrence="first") for name in names]
    fields = [pa.field(name, pa.string()) for name in names]
    struct = pa.StructArray.from_arrays(children, fields=fields, mask=pc.is_null(values))
    return _struct_to_map(struct, keep_null=keys)


_FEW_KEYS = 64
"""So many are looked up one after the other in all rows; of more, only those that are there."""


def _completed_by_row(values: pa.MapArray, keys: Sequence[str]) -> pa.MapArray:
    """The same for maps with any number of keys between them: linear in what they hold."""
    lengths = _lengths(values)
    rows = np.flatnonzero(to_bools(pc.is_valid(values)))
    first, count = values.offsets[0].as_py(), int(lengths.sum())
    lacking = len(rows) * len(keys)
    added = pa.array(keys, pa.string()).take(integers(np.tile(np.arange(len(keys)), len(rows))))
    names = pa.concat_arrays([values.keys.slice(first, count), added])
    texts = pa.concat_arrays([values.items.slice(first, count), pa.nulls(lacking, pa.string())])
    row = np.append(np.repeat(np.arange(len(values)), lengths), np.repeat(rows, len(keys)))
    encoded = names.dictionary_encode()
    rank = np.empty(len(encoded.dictionary), np.int64)
    rank[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(rank))
    key = rank[encoded.indices.to_numpy()]
    # Stable: of two entries of one key the first stands, before the null that was added for it.
    order = np.lexsort((key, row))
    row, key = row[order], key[order]
    stands = np.append(True, (row[1:] != row[:-1]) | (key[1:] != key[:-1]))[: len(row)]
    chosen = integers(order[stands])
    return _map_by_row(values, row[stands], names.take(chosen), texts.take(chosen))


def _lengths(values: pa.MapArray | pa.ListArray) -> npt.NDArray[np.int64]:
    """How many entries each row has, none where it is null."""
    lengths: npt.NDArray[np.int64] = np.diff(values.offsets.to_numpy()).astype(np.int64)
    return lengths


def _map_by_row(
    values: pa.Array, row: npt.NDArray[np.int64], names: pa.Array, texts: pa.Array
) -> pa.MapArray:
    """Maps of entries in the order of their rows, null where `values` is."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.bincount(row, minlength=len(values)), out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets, mask=_offset_mask(values)), names, texts)


def _offset_mask(values: pa.Array) -> np.ndarray | None:
    # A null offset makes the map that starts there null; the last offset starts none.
    if not values.null_count:
        return None
    return np.append(pc.is_null(values).to_numpy(zero_copy_only=False), False)


def _deletion_vectors(vectors: pa.Array) -> pa.StructArray:
    wanted = _vector_type(vectors.type)
    # `pc.struct_field` takes time for each field of the struct.
    children = dict(zip(vectors.type.names, vectors.flatten(), strict=True))
    return pa.StructArray.from_arrays(
        [
            children[field.name].cast(field.type)
            if field.name in children
            else pa.nulls(len(vectors), field.type)
            for field in wanted
        ],
        fields=list(wanted),
        mask=pc.is_null(vectors),
    )


def _vector_type(actual: pa.DataType) -> pa.StructType:
    # `maxRowIndex` stands in many checkpoints, always null, and in no text: it is not carried.
    known = {*(field.name for field in DELETION_VECTOR), "maxRowIndex"}
    extra = [field for field in actual if field.name not in known]
    return cast(pa.StructType, pa.struct([*DELETION_VECTOR, *extra]))
