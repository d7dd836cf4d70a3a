"""The bounds of a table's live files, from its log: some columns of the statistics, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import ADD_TYPES, STATISTICS
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.columns import column_of
from delta_maintenance.protocol.schema.partition_values import parse_partition_values
from delta_maintenance.protocol.schema.types import (
    DeltaType,
    StructType,
    column_mapping_mode,
    is_skipped_by,
    parse_schema,
    physical_name,
    to_arrow_type,
)
from delta_maintenance.protocol.statistics.as_json import align_statistics, read_statistics
from delta_maintenance.protocol.statistics.bounds import (
    FileBounds,
    Path,
    column_bounds,
    partition_bounds,
)
from delta_maintenance.protocol.statistics.columns import StatisticsColumns
from delta_maintenance.protocol.statistics.stats import selected_statistics
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.active_files import ActiveFiles
from delta_maintenance.table.read.partition_codes import partition_codes, partition_texts
from delta_maintenance.table.read.snapshot import Snapshot

_FIELDS = {
    "add": ("path", "deletionVector", "partitionValues", "size", STATISTICS),
    "remove": ("path", "deletionVector"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column that filters can compare with values, or a field of a struct at any depth."""

    names: Path
    """The logical names, from the outermost struct inwards."""
    path: Path
    """The logical names in lower case."""
    physical: Path
    kind: DeltaType
    is_partition: bool

    @property
    def name(self) -> str:
        """The logical name, with dots between the names of structs and fields."""
        return ".".join(self.names)

    @property
    def is_bounded(self) -> bool:
        """Whether statistics contain bounds of the column."""
        return not self.is_partition and is_skipped_by(self.kind)


def columns_of(snapshot: Snapshot) -> dict[Path, Column]:
    """Returns the columns of a table with a type of single values."""
    columns = every_column(snapshot.protocol, snapshot.metadata)
    return {column.path: column for column in columns if to_arrow_type(column.kind) is not None}


def every_column(protocol: Protocol, metadata: Metadata) -> Iterator[Column]:
    """Yields the columns of a table, and the fields of structs, of all types."""
    mode = column_mapping_mode(protocol, metadata.configuration)
    partitioning = {name.lower() for name in metadata.partition_columns}

    def below(struct: StructType, names: Path, physical: Path) -> Iterator[Column]:
        for field in struct.fields:
            own, stored = (*names, field.name), (*physical, physical_name(field, mode))
            yield Column(
                names=own,
                path=tuple(name.lower() for name in own),
                physical=stored,
                kind=field.type,
                is_partition=len(own) == 1 and field.name.lower() in partitioning,
            )
            if isinstance(field.type, StructType):
                yield from below(field.type, own, stored)

    yield from below(parse_schema(metadata.schema_string or ""), (), ())


def read_bounds(snapshot: Snapshot, columns: Sequence[Column]) -> FileBounds:
    """Reads the bounds of some columns. A file takes 24 bytes, and for each column of numbers 24
    more.
    """
    names = snapshot.log.physical_partition_columns
    stored = [column for column in columns if not column.is_partition]

    def part(batch: ActiveFiles) -> tuple[pa.Table, Mapping[str, pa.ChunkedArray]]:
        return file_statistics(batch.adds, stored), partition_texts(batch.adds, names)

    parts = snapshot.avoiding_damage(
        lambda opened: list(in_parallel(part, opened.log.scan(fields=_FIELDS)))
    )
    files = pa.concat_tables([file_statistics(_NO_FILES, stored), *(table for table, _ in parts)])
    codes, texts = partition_codes([texts for _, texts in parts], names, files.num_rows)
    rows = files["rows"].to_numpy()
    statistics = StatisticsColumns.of(snapshot.protocol, snapshot.metadata, {})
    indexed = {leaf.path for leaf in statistics.leaves}
    bounds = {}
    for number, column in enumerate(stored):
        bounds[column.path] = column_bounds(
            column.kind,
            least=_join(files[f"{number} least"]),
            greatest=_join(files[f"{number} greatest"]),
            nulls=_join(files[f"{number} nulls"]),
            rows=rows,
            is_indexed=column.physical in indexed,
        )
    for column in columns:
        if column.is_partition:
            # A text that is no value is null, as for Delta Spark.
            values = parse_partition_values(
                texts[column.physical[0]], column.kind, zone=None, strict=False
            ).values
            bounds[column.path] = partition_bounds(column.kind, values, codes)
    return FileBounds(size=files["size"].to_numpy(), rows=rows, partition=codes, columns=bounds)


def file_statistics(adds: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Returns the `size` and `rows` of files, and for each column its `least`, `greatest` and
    `nulls`, after the number of the column, such as `0 least`.

    `rows` is -1 where it is unknown; other unknown values are null. Partition columns have none.
    """
    kind = selected_statistics(
        {column.physical: to_arrow_type(column.kind) for column in columns if column.is_bounded},
        [column.physical for column in columns],
    )
    statistics = pa.chunked_array(_statistics(adds, kind), kind).combine_chunks()
    found = {
        "size": pc.max_element_wise(pc.fill_null(column_of(adds, "size", ADD_TYPES), 0), 0),
        "rows": pc.fill_null(_leaf(statistics, ("numRecords",), pa.int64()), -1),
    }
    for number, column in enumerate(columns):
        value_type = to_arrow_type(column.kind)
        assert value_type is not None
        for part, name, leaf in (
            ("least", "minValues", value_type),
            ("greatest", "maxValues", value_type),
            ("nulls", "nullCount", pa.int64()),
        ):
            found[f"{number} {part}"] = _leaf(statistics, (name, *column.physical), leaf)
    return pa.table(found)


_NO_FILES = pa.schema(ADD_TYPES.items()).empty_table()


def _statistics(adds: pa.Table, kind: pa.StructType) -> Iterator[pa.StructArray]:
    """Yields the statistics of each chunk: as columns where the log has them, else from JSON."""
    texts = column_of(adds, "stats", ADD_TYPES)
    if "stats_parsed" not in adds.column_names:
        yield from (read_statistics(chunk, kind) for chunk in texts.chunks)
        return
    for batch in adds.select(["stats_parsed"]).add_column(0, "stats", texts).to_batches():
        parsed = align_statistics(batch["stats_parsed"], kind).values
        missing = pc.is_null(pc.struct_field(parsed, 0))
        if not pc.any(missing).as_py():
            yield parsed
            continue
        own = read_statistics(batch["stats"].filter(missing), kind)
        # Rows of both, put back in their order.
        rows = np.flatnonzero(missing.to_numpy(zero_copy_only=False))
        order = np.arange(len(parsed))
        order[rows] = len(parsed) + np.arange(len(rows))
        yield pa.concat_arrays([parsed, own]).take(pa.array(order))


def _leaf(statistics: pa.StructArray, path: Path, kind: pa.DataType) -> pa.Array:
    values = statistics
    for name in path:
        if values.type.get_field_index(name) < 0:
            return pa.nulls(len(statistics), kind)
        values = pc.struct_field(values, name)
    return values


def _join(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks)
