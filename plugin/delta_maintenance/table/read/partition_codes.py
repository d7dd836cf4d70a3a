"""The partitions of file actions as numbers, for work over the files of each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import ADD_TYPES
from delta_maintenance.protocol.columns import column_of, integers, to_bools
from delta_maintenance.protocol.schema.partition_values import canonical_texts
from delta_maintenance.protocol.schema.types import DeltaType, parse_schema
from delta_maintenance.table.read.snapshot import Snapshot

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_MOST_PER_ROW = 2
"""The number of possible partitions per row up to which they are numbered by a table of all."""


def partition_types(snapshot: Snapshot) -> dict[str, DeltaType]:
    """Returns the types of the partition columns by their physical names."""
    metadata = snapshot.metadata
    if not metadata.partition_columns:
        return {}
    schema = parse_schema(metadata.schema_string or "")
    columns = zip(metadata.partition_columns, snapshot.log.physical_partition_columns, strict=True)
    fields = {physical: schema.find(name) for name, physical in columns}
    return {name: field.type for name, field in fields.items() if field is not None}


def partition_texts(batch: pa.Table, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """Returns the values of each partition column of file actions, dictionary-encoded.

    `names` are physical names.
    """
    values = column_of(batch, "partitionValues", ADD_TYPES)
    # Dictionary-encoded at once, because many files share few values.
    return {
        name: pa.chunked_array(
            [_looked_up(chunk, name, len(names)) for chunk in values.chunks], pa.string()
        ).dictionary_encode()
        for name in names
    }


def has_other_spelling(
    texts: Mapping[str, pa.ChunkedArray], types: Mapping[str, DeltaType], rows: int
) -> Mask:
    """Returns which of the `rows` files have a partition value that is not spelled canonically.

    `texts` are as `partition_texts` returns them.
    """
    is_other = np.zeros(rows, np.bool_)
    for name, column in texts.items():
        values = column.unify_dictionaries().combine_chunks()
        if name in types and len(values):
            distinct = values.dictionary
            differ = pc.not_equal(canonical_texts(distinct, types[name]), distinct)
            is_other |= to_bools(pc.fill_null(differ.take(values.indices), False))
    return is_other


def partition_codes(
    batches: Sequence[Mapping[str, pa.ChunkedArray]], names: Sequence[str], rows: int
) -> tuple[Numbers, dict[str, pa.Array]]:
    """Numbers the partitions of the batches that `partition_texts` returned, with `rows` in all.

    Also returns the partition values of each number.
    """
    codes = np.zeros(rows, np.int64)
    columns: dict[str, tuple[Numbers, pa.Array]] = {}
    for name in names:
        chunks = [chunk for batch in batches for chunk in batch[name].chunks]
        dictionaries = pa.chunked_array(chunks, pa.dictionary(pa.int32(), pa.string()))
        dictionaries = dictionaries.unify_dictionaries()
        indices = [pc.fill_null(chunk.indices, -1).to_numpy() for chunk in dictionaries.chunks]
        texts = (
            dictionaries.chunk(0).dictionary
            if dictionaries.num_chunks
            else pa.array([], pa.string())
        )
        # 0 is null, which differs from the empty string.
        column_codes = np.concatenate([np.zeros(0, np.int32), *indices]).astype(np.int64) + 1
        columns[name] = column_codes, pa.concat_arrays([pa.nulls(1, pa.string()), texts])
        # Renumbered after each column, so that the product does not overflow.
        codes = _dense(codes * (len(texts) + 1) + column_codes)
    first_rows = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    first_rows[codes[::-1]] = np.arange(rows)[::-1]
    return codes, {
        name: texts.take(pa.array(column_codes[first_rows]))
        for name, (column_codes, texts) in columns.items()
    }


def merge_spellings(
    codes: Numbers, partitions: Mapping[str, pa.Array], types: Mapping[str, DeltaType]
) -> tuple[Numbers, dict[str, pa.Array]]:
    """Gives partitions of equal values one number and the canonical values, whatever their
    spellings in the log.

    `codes` and `partitions` are as `partition_codes` returns them.
    """
    canonical = {
        name: canonical_texts(texts, types[name]) if name in types else texts
        for name, texts in partitions.items()
    }
    if all(canonical[name].equals(texts) for name, texts in partitions.items()):
        return codes, dict(partitions)
    numbers, texts = partition_codes(
        [{name: pa.chunked_array([v]).dictionary_encode() for name, v in canonical.items()}],
        list(canonical),
        len(next(iter(canonical.values()))),
    )
    return numbers[codes], texts


def _looked_up(maps: pa.MapArray, name: str, width: int) -> pa.StringArray:
    """Returns the value of a key of each map, null without the key.

    Usually all maps of a batch have the same `width` keys in the same order, so that the values of
    a key are at equal distances. They are taken from there, which is faster than a search.
    """
    if not len(maps) or maps.null_count or maps.keys.null_count:
        return pc.map_lookup(maps, name, "first")
    offsets = np.frombuffer(maps.buffers()[1], np.int32, len(maps) + 1, 4 * maps.offset)
    if width and (np.diff(offsets) == width).all():
        start, count = int(offsets[0]), len(maps) * width
        is_entry = to_bools(pc.equal(maps.keys.slice(start, count), name)).reshape(-1, width)
        at = int(np.argmax(is_entry[0]))
        if is_entry[:, at].all() and np.count_nonzero(is_entry) == len(maps):
            items = maps.items.slice(start, count)
            return items if width == 1 else items.take(integers(np.arange(at, count, width)))
    return pc.map_lookup(maps, name, "first")


def _dense(numbers: Numbers) -> Numbers:
    """Renumbers the distinct numbers from 0 on, in ascending order."""
    end = int(numbers.max(initial=-1)) + 1
    if end > _MOST_PER_ROW * len(numbers):
        dense_numbers: Numbers = np.unique(numbers, return_inverse=True)[1]
        return dense_numbers
    # A table of all possible numbers is faster than sorting them.
    occurs = np.zeros(end, np.bool_)
    occurs[numbers] = True
    dense_numbers = (np.cumsum(occurs) - 1)[numbers]
    return dense_numbers
