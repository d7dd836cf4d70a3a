"""The tags of data files that a rewrite reads and writes. They never affect the rows of a reader.

`OPTIMIZE_TARGET_SIZE` records the target size of a file. `compactedInto` and `compactionInfo` are
tags of removes that record where the rows of a file went, so that a concurrent writer that deletes
rows of the file can find them; names and formats are those of Databricks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import STRING_MAP
from delta_maintenance.protocol.columns import booleans, to_bools
from delta_maintenance.protocol.statistics.clustering import CLUSTERING_TAGS

TARGET_SIZE = "OPTIMIZE_TARGET_SIZE"
ICEBERG_COMPAT = "ICEBERG_COMPAT_VERSION"
COMPACTED_INTO = "compactedInto"
COMPACTION_INFO = "compactionInfo"
INSERTION_TIMES = ("MIN_INSERTION_TIME", "MAX_INSERTION_TIME")
UNBOUNDED = "delta-maintenance.unbounded"
"""The tag of a file whose statistics this library has recomputed: a JSON list of the columns, by
physical path, that have values and lack a bound because the log cannot state it.
"""
READ_TAGS = frozenset({TARGET_SIZE, COMPACTED_INTO, UNBOUNDED, *CLUSTERING_TAGS})
"""The tags by which files are chosen for a rewrite or for new statistics."""


def output_tags(
    sources: Sequence[Mapping[str, str]], *, target_size: int, iceberg_compat: int | None
) -> dict[str, str]:
    """Returns the tags of a new file, given the tags of its source files.

    Only the insertion time range is inherited, and only if every source has one.
    """
    tags = {TARGET_SIZE: str(target_size)}
    if iceberg_compat is not None:
        tags[ICEBERG_COMPAT] = str(iceberg_compat)
    for name, choose in zip(INSERTION_TIMES, (min, max), strict=True):
        insertion_texts = [source.get(name) or source.get("INSERTION_TIME") for source in sources]
        instants = [int(text) for text in insertion_texts if text is not None and _is_number(text)]
        if instants and len(instants) == len(sources):
            tags[name] = str(choose(instants))
    return tags


def with_compaction_tags(
    removes: pa.Table,
    outputs: pa.StringArray,
    offsets: npt.NDArray[np.int64],
    physical_rows: npt.NDArray[np.int64],
) -> pa.Table:
    """Adds the tags that record where the live rows of each removed file went.

    `outputs` are paths as in the log. They are null for removes that get no such tags because their
    rows are not contiguous from `offsets` on.
    """
    into = pc.binary_join_element_wise('["', _escape_paths(outputs), '"]', "")
    info = pc.binary_join_element_wise(
        '[{"rowOffsetInTarget":',
        pa.array(offsets, pa.int64()).cast(pa.string()),
        ',"sourceNumPhysicalRecords":',
        pa.array(physical_rows, pa.int64()).cast(pa.string()),
        "}]",
        "",
    )
    tags = removes["tags"]
    rows = [
        _merge_tags(tags_before, target, where)
        for tags_before, target, where in zip(
            tags.to_pylist(), into.to_pylist(), info.to_pylist(), strict=True
        )
    ]
    at = removes.column_names.index("tags")
    return removes.set_column(at, "tags", pa.chunked_array([pa.array(rows, STRING_MAP)]))


def target_sizes(tags: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Returns the target size of each file, 0 if its tags do not contain one."""
    texts = pc.map_lookup(tags, TARGET_SIZE, "first")
    usable = pc.match_substring_regex(texts, "^[0-9]{1,18}$")
    numbers = pc.if_else(pc.fill_null(usable, False), texts, "0").cast(pa.int64())
    target_bytes: npt.NDArray[np.int64] = numbers.to_numpy()
    return target_bytes


def with_tag(tags: pa.Array, name: str, texts: pa.StringArray) -> pa.MapArray:
    """Returns the tags of files with another value for a tag, where `texts` is not null."""
    if pa.types.is_null(tags.type):
        tags = pa.nulls(len(tags), STRING_MAP)
    entries = pc.list_parent_indices(_as_list(tags))
    keys, values = _entries(tags)
    tagged_rows = np.flatnonzero(to_bools(pc.is_valid(texts)))
    is_kept = to_bools(
        pc.invert(pc.and_(pc.equal(keys, name), pc.is_in(entries, value_set=pa.array(tagged_rows))))
    )
    of = np.concatenate([entries.to_numpy()[is_kept], tagged_rows])
    order = np.argsort(of, kind="stable")
    offsets = np.searchsorted(of[order], np.arange(len(tags) + 1))
    has_tags = to_bools(pc.or_(pc.is_valid(tags), pc.is_valid(texts)))
    # A null offset marks a null map.
    starts = pa.array(offsets, pa.int32(), mask=np.append(~has_tags, False))
    take = pa.array(order)
    names = pa.repeat(name, len(tagged_rows))
    return pa.MapArray.from_arrays(
        starts,
        pa.concat_arrays([keys.filter(booleans(is_kept)), names]).take(take),
        pa.concat_arrays(
            [values.filter(booleans(is_kept)), texts.take(pa.array(tagged_rows))]
        ).take(take),
    )


def _merge_tags(
    tags: list[tuple[str, str]] | None, into: str | None, info: str | None
) -> list[tuple[str, str]] | None:
    if into is None or info is None:
        return tags
    other_tags = [
        (key, value) for key, value in tags or () if key not in (COMPACTED_INTO, COMPACTION_INFO)
    ]
    return [*other_tags, (COMPACTED_INTO, into), (COMPACTION_INFO, info)]


def _escape_paths(paths: pa.StringArray) -> pa.Array:
    # Encoded paths contain neither quotes nor backslashes; paths of other writers might.
    return pc.replace_substring(pc.replace_substring(paths, "\\", "\\\\"), '"', '\\"')


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _entries(tags: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    entries = _as_list(tags).flatten()
    return entries.field(0), entries.field(1)


def _as_list(tags: pa.MapArray) -> pa.ListArray:
    kind = pa.list_(pa.struct([tags.type.key_field, tags.type.item_field]))
    return tags.cast(kind)
