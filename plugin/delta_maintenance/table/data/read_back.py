"""Reads a new data file back from the store, to verify it before it is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from delta_maintenance.errors import CorruptTableError, VerificationError
from delta_maintenance.protocol.data_files.layout import PARQUET_ID, DataFileLayout
from delta_maintenance.protocol.data_files.row_digest import RowDigest, RowSums, row_sums
from delta_maintenance.protocol.statistics.collect import StatisticsCollector
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.bins import Bin, RewriteSpec, require_rows
from delta_maintenance.table.data.data_file_writer import DataFileWriter, WrittenFile
from delta_maintenance.table.data.parquet_input import ParquetInput
from delta_maintenance.table.parallel import IdleWorkers, OverlappedTasks


def read_back(
    store: Store,
    written: WrittenFile,
    layout: DataFileLayout,
    digest: RowDigest | None,
    *,
    partition: Mapping[str, str | None],
    dictionaries: Sequence[str] = (),
    statistics: StatisticsCollector | None = None,
    idle_workers: IdleWorkers | None = None,
) -> RowSums:
    """Returns the digest of the rows of a new file; without `digest`, only their number.

    All rows are added to `statistics`, if given. Without `statistics` and `digest`, only the footer
    is read. Raises `VerificationError` if the file cannot be read, or if its number of rows or its
    schema is wrong.
    """
    try:
        with ParquetInput(store.open(written.name), dictionaries=dictionaries) as parquet:
            if parquet.rows != written.rows:
                raise VerificationError(
                    f"the new data file has {parquet.rows} rows instead of {written.rows}",
                    file=written.name,
                )
            require_schema(parquet.schema, layout.schema, written.name)
            if digest is None and statistics is None:
                return RowSums(rows=parquet.rows)
            columns, groups = layout.schema.names, range(parquet.row_groups)
            if statistics is not None or idle_workers is None or len(groups) < 2:
                return _sums(parquet.batches(columns), digest, partition, statistics)
            middle = len(groups) // 2

            def first_half() -> RowSums:
                with ParquetInput(store.open(written.name), dictionaries=dictionaries) as again:
                    batches = again.batches(columns, groups[:middle])
                    return _sums(batches, RowDigest(layout.schema), partition)

            with closing(OverlappedTasks(idle_workers)) as overlapped:
                first = overlapped.begin(first_half)
                second = _sums(parquet.batches(columns, groups[middle:]), digest, partition)
                return first.result() + second
    except (pa.ArrowException, OSError, CorruptTableError) as error:
        problem = " ".join(str(error).split())[:300]
        raise VerificationError(
            f"the new data file cannot be read back ({problem})", file=written.name
        ) from None


def _sums(
    batches: Iterable[pa.RecordBatch],
    digest: RowDigest | None,
    partition: Mapping[str, str | None],
    statistics: StatisticsCollector | None = None,
) -> RowSums:
    found = RowSums()
    for batch in batches:
        if statistics is not None:
            statistics.offer(batch)
        if digest is None:
            found += RowSums(rows=batch.num_rows)
        else:
            found += row_sums(digest.hashes(batch, partition))
    return found


def require_same_rows(
    store: Store,
    work: Bin,
    spec: RewriteSpec,
    outputs: Sequence[WrittenFile],
    writers: Sequence[DataFileWriter],
    expected: RowSums,
    *,
    digest: RowDigest,
    idle_workers: IdleWorkers | None = None,
) -> None:
    """Raises `VerificationError` unless new files have the expected rows; see `require_sums`."""
    found = stored_sums(
        store, work, spec, outputs, writers, digest=digest, idle_workers=idle_workers
    )
    require_sums(work, found, expected)


def stored_sums(
    store: Store,
    work: Bin,
    spec: RewriteSpec,
    outputs: Sequence[WrittenFile],
    writers: Sequence[DataFileWriter],
    *,
    digest: RowDigest,
    idle_workers: IdleWorkers | None = None,
) -> RowSums:
    """Returns the digest of the rows of new files of a bin. `writers` are those of the files."""
    found = RowSums()
    for output, writer in zip(outputs, writers, strict=True):
        found += read_back(
            store,
            output,
            spec.files.layout,
            digest if spec.proof == "rows" else None,
            partition=dict(work.partition_values),
            dictionaries=writer.dictionaries,
            idle_workers=idle_workers,
        )
    return found


def require_sums(work: Bin, found: RowSums, expected: RowSums) -> None:
    """Raises `VerificationError` unless new files with the digest `found` have the expected rows.

    Their number must also be that of the live rows of the bin in the log.
    """
    require_rows(work, found.rows)
    if found != expected:
        raise VerificationError(
            f"the rows that were written are not those that were read: {found} instead of "
            f"{expected}",
            file=work.sources[0].path,
        )


def require_schema(found: pa.Schema, wanted: pa.Schema, name: str) -> None:
    """Raises `VerificationError` if the columns of a new data file differ from `wanted`."""
    difference = schema_difference(found, wanted)
    if difference is not None:
        raise VerificationError(f"the new data file has {difference}", file=name)


def schema_difference(found: pa.Schema, wanted: pa.Schema) -> str | None:
    """Returns the first difference in names, types and field IDs at any level, as a clause.

    Parquet libraries drop metadata that they do not support, so this check is needed.
    """
    return _difference(list(found), list(wanted), "")


def _difference(found: list[pa.Field], wanted: list[pa.Field], path: str) -> str | None:
    if [field.name for field in found] != [field.name for field in wanted]:
        return f"other columns than expected{' in ' + path if path else ''}"
    for ours, theirs in zip(found, wanted, strict=True):
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
    found: bytes | None = (field.metadata or {}).get(PARQUET_ID)
    return found
