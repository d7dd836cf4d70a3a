"""Reads a new data file back from the store, to verify it before it is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from delta_maintenance.errors import CorruptTableError, VerificationError
from delta_maintenance.protocol.data_files.layout import PARQUET_ID, DataFileLayout
from delta_maintenance.protocol.data_files.ordered_digest import OrderedDigest
from delta_maintenance.protocol.statistics.collect import StatisticsCollector
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.bins import (
    Bin,
    DigestKind,
    RewriteSpec,
    RowsDigest,
    RowsSum,
    require_rows,
)
from delta_maintenance.table.data.data_file_writer import DataFileWriter, WrittenFile
from delta_maintenance.table.data.parquet_input import WHOLE_FILE, ParquetInput
from delta_maintenance.table.parallel import IdleWorkers, OverlappedTasks

_Half: TypeAlias = Callable[[ParquetInput], None]


def read_back(
    store: Store,
    written: WrittenFile,
    layout: DataFileLayout,
    digest: RowsDigest,
    *,
    dictionaries: Sequence[str] = (),
    statistics: StatisticsCollector | None = None,
    idle_workers: IdleWorkers | None = None,
) -> None:
    """Adds the rows of a new file to `digest`.

    All rows are added to `statistics`, if given. Without `statistics`, a digest that only counts
    rows needs nothing but the footer. Raises `VerificationError` if the file cannot be read, or if
    its number of rows or its schema is wrong.
    """
    try:
        # A small file is read in one request, unless its footer is enough.
        is_read_whole = written.size <= WHOLE_FILE and digest.kind != "counts"
        data = store.read_head(written.name, written.size) if is_read_whole else None

        def open_file() -> ParquetInput:
            source = store.open(written.name) if data is None else data
            return ParquetInput(source, dictionaries=dictionaries)

        with open_file() as parquet:
            if parquet.rows != written.rows:
                raise VerificationError(
                    f"the new data file has {parquet.rows} rows instead of {written.rows}",
                    file=written.name,
                )
            require_schema(parquet.schema, layout.schema, written.name)
            names = layout.schema.names
            if statistics is not None:
                for batch in parquet.batches(names):
                    digest.add(batch)
                    statistics.offer(batch)
            elif digest.kind == "counts":
                digest.rows += parquet.rows
            else:
                ahead, second = _halves(parquet, names, digest)

                def second_half() -> None:
                    with open_file() as again:
                        second(again)

                with closing(OverlappedTasks(idle_workers)) as overlapped:
                    task = overlapped.begin_if_idle(second_half)
                    ahead(parquet)
                    if task is None:
                        second(parquet)
                    else:
                        task.result()
    except (pa.ArrowException, OSError, CorruptTableError) as error:
        problem = " ".join(str(error).split())[:300]
        raise VerificationError(
            f"the new data file cannot be read back ({problem})", file=written.name
        ) from None


def _halves(parquet: ParquetInput, names: Sequence[str], digest: RowsDigest) -> tuple[_Half, _Half]:
    """Returns two tasks that add all rows of a file, for two threads.

    Each adds some columns of the digest of a sequence, or some row groups to sums.
    """
    ordered, groups = digest.ordered, range(parquet.row_groups)
    if ordered is None:
        middle = -(-len(groups) // 2)
        return (
            partial(_add_groups, digest, names, groups[:middle]),
            partial(_add_groups, digest.part(), names, groups[middle:]),
        )
    digest.rows += parquet.rows
    halves: tuple[list[str], list[str]] = ([], [])
    sizes = [0, 0]
    for name, size in sorted(parquet.column_sizes(names).items(), key=lambda item: -item[1]):
        lighter = sizes.index(min(sizes))
        halves[lighter].append(name)
        sizes[lighter] += size
    return partial(_add_columns, ordered, halves[0]), partial(_add_columns, ordered, halves[1])


def _add_groups(
    digest: RowsDigest, names: Sequence[str], groups: Sequence[int], parquet: ParquetInput
) -> None:
    for batch in parquet.batches(names, groups):
        digest.add(batch)


def _add_columns(digest: OrderedDigest, names: Sequence[str], parquet: ParquetInput) -> None:
    """Adds all values of some columns, which a large file stores one after another."""
    columns = {column.name: column for column in digest.columns}
    parts = [names] if parquet.size <= WHOLE_FILE else [[name] for name in names]
    for part in parts:
        for batch in parquet.batches(part):
            for name, values in zip(part, batch.columns, strict=True):
                columns[name].add(values)


def require_same_rows(
    store: Store,
    file_bin: Bin,
    spec: RewriteSpec,
    outputs: Sequence[WrittenFile],
    writers: Sequence[DataFileWriter],
    read: RowsDigest,
    *,
    idle_workers: IdleWorkers | None = None,
) -> RowsSum:
    """Returns the digest of the rows of new files; `VerificationError` unless it is that of the
    rows that were read. See `require_sums`.
    """
    expected = read.total()
    sums_in_store = stored_sums(
        store, file_bin, spec, outputs, writers, kind=read.kind, idle_workers=idle_workers
    )
    require_sums(file_bin, sums_in_store, expected)
    return sums_in_store


def stored_sums(
    store: Store,
    file_bin: Bin,
    spec: RewriteSpec,
    outputs: Sequence[WrittenFile],
    writers: Sequence[DataFileWriter],
    *,
    kind: DigestKind,
    idle_workers: IdleWorkers | None = None,
) -> RowsSum:
    """Returns the digest of the rows of new files of a bin. `writers` are those of the files."""
    layout = spec.files.layout
    digest = RowsDigest(layout.schema, dict(file_bin.partition_values), kind)
    for output, writer in zip(outputs, writers, strict=True):
        read_back(
            store,
            output,
            layout,
            digest,
            dictionaries=writer.dictionaries,
            idle_workers=idle_workers,
        )
    return digest.total()


def require_sums(file_bin: Bin, sums_read: RowsSum, expected: RowsSum) -> None:
    """Raises `VerificationError` unless new files with this digest have the expected rows.

    Their number must also be that of the live rows of the bin in the log.
    """
    require_rows(file_bin, sums_read.rows)
    if sums_read != expected:
        raise VerificationError(
            f"the rows that were written are not those that were read: {sums_read} instead of "
            f"{expected}",
            file=file_bin.sources[0].path,
        )


def require_schema(schema: pa.Schema, expected: pa.Schema, name: str) -> None:
    """Raises `VerificationError` if the columns of a new data file differ from `expected`."""
    difference = schema_difference(schema, expected)
    if difference is not None:
        raise VerificationError(f"the new data file has {difference}", file=name)


def schema_difference(schema: pa.Schema, expected: pa.Schema) -> str | None:
    """Returns the first difference in names, types and field IDs at any level, as a clause.

    Parquet libraries drop metadata that they do not support, so this check is needed.
    """
    return _difference(list(schema), list(expected), "")


def _difference(fields: list[pa.Field], expected: list[pa.Field], path: str) -> str | None:
    if [field.name for field in fields] != [field.name for field in expected]:
        return f"other columns than expected{' in ' + path if path else ''}"
    for ours, theirs in zip(fields, expected, strict=True):
        here = f"{path}.{ours.name}" if path else ours.name
        kind = ours.type.value_type if pa.types.is_dictionary(ours.type) else ours.type
        if _id(ours) != _id(theirs):
            return f"the id {_id(ours)!r} for the column {here} instead of {_id(theirs)!r}"
        children = _children(kind)
        if len(children) != len(_children(theirs.type)) or (not children and kind != theirs.type):
            return f"{kind} for the column {here} instead of {theirs.type}"
        problem = _difference(children, _children(theirs.type), here)
        if problem is not None:
            return problem
    return None


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    if pa.types.is_list(kind):
        return [kind.value_field.with_name("element")]
    return list(kind) if pa.types.is_struct(kind) else []


def _id(field: pa.Field) -> bytes | None:
    field_id: bytes | None = (field.metadata or {}).get(PARQUET_ID)
    return field_id
