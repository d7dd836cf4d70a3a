"""Generates a table with real data files: ``python -m benchmarks.data_files TABLE``.

The table has twelve columns: integers, floating point numbers, a decimal, a flag, a day, an
instant, and texts with 8, with 5,000 and with only different values. One commit adds all files. A
few files are made up from a fixed seed; the others are hard links to them, so that a table of
gigabytes is written in seconds. On request, deletion vectors delete a share of the rows of each
file, columns are mapped by name, rows are tracked, and the table has the eight columns of an
independent check.
"""

from __future__ import annotations

import argparse
import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_DIFFERENT = 16
"""Files with rows of their own; the limit of hard links is far above what is needed."""
_SMALL_ROWS = 20_000
_FIRST_MICROS, _DAY_MICROS = 1_700_000_000_000_000, 86_400_000_000
_COLUMNS = {
    "id": "long",
    "user": "long",
    "amount": "double",
    "ratio": "double",
    "count": "integer",
    "flag": "boolean",
    "at": "timestamp",
    "day": "date",
    "kind": "string",
    "city": "string",
    "note": "string",
    "price": "decimal(20,2)",
}
_INDEPENDENT = ("id", "ratio", "count", "flag", "at", "kind", "city", "note")
_KINDS, _INDEPENDENT_KINDS = 8, 50


def rows(number: int, count: int, kinds: int = _KINDS) -> pa.Table:
    """The rows of one of the different files."""
    chance = np.random.default_rng(number)
    numbers = chance.integers(0, 1 << 40, (2, count))
    columns = {
        "id": pa.array(np.arange(number * count, (number + 1) * count)),
        "user": pa.array(chance.integers(0, 1_000_000, count)),
        "amount": pa.array(np.round(chance.normal(100, 30, count), 2)),
        "ratio": pa.array(chance.random(count)),
        "count": pa.array(chance.integers(0, 1000, count).astype(np.int32)),
        "flag": pa.array(chance.random(count) < 0.5),
        "at": pa.array(_FIRST_MICROS + np.sort(chance.integers(0, _DAY_MICROS, count))).cast(
            pa.timestamp("us", "UTC")
        ),
        "day": pa.array(chance.integers(19_000, 20_000, count).astype(np.int32)).cast(pa.date32()),
        "kind": pa.array([f"kind {value}" for value in chance.integers(0, kinds, count)]),
        "city": pa.array([f"city {value}" for value in chance.integers(0, 5000, count)]),
        "note": pa.array([f"note {one} {other:x}" for one, other in numbers.T.tolist()]),
        "price": _decimals(chance.integers(0, 10**9, count)),
    }
    return pa.table(columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The files of a table. With one partition it has no partition column."""

    files: int
    rows_per_file: int
    partitions: int = 1
    different: int = _DIFFERENT
    """Files with rows of their own."""
    deleted_percent: int = 0
    mapped: bool = False
    tracked: bool = False
    floats: bool = True
    """Whether there are floating point numbers, of which footers by Arrow state no safe bounds."""
    independent: bool = False
    """Whether there are only the columns of the independent check, with 50 kinds."""
    small_files: int = 0
    """Further files of 20,000 rows among the others, of a table without deletion vectors."""


def generate(table: Path, shape: Shape) -> None:
    """Writes the table."""
    files, rows_per_file, different = shape.files, shape.rows_per_file, shape.different
    partitions, mapped, tracked = shape.partitions, shape.mapped, shape.tracked
    properties = {"mapped": mapped, "tracked": tracked}
    small_files = shape.small_files
    names = [name for name, kind in _COLUMNS.items() if shape.floats or kind != "double"]
    kinds = _KINDS
    if shape.independent:
        names, kinds = [*_INDEPENDENT], _INDEPENDENT_KINDS
    log = table / "_delta_log"
    log.mkdir(parents=True)
    originals = [table / f"different-{number}.parquet" for number in range(different)]
    for number, file in enumerate(originals):
        own = rows(number, rows_per_file, kinds).select(names)
        own = _mapped(own) if mapped else own
        pq.write_table(own, file, compression="snappy", store_schema=False)
    vectors = _vectors(table, originals, rows_per_file, shape.deleted_percent)
    lines: list[dict[str, object]] = [
        {"protocol": _protocol(vectors=bool(vectors), **properties)},
        {
            "metaData": _metadata(
                names, partitions, vectors=bool(vectors), mapped=mapped, tracked=tracked
            )
        },
    ]
    if tracked:
        total = files * rows_per_file + small_files * _SMALL_ROWS
        mark = json.dumps({"rowIdHighWaterMark": total - 1})
        domain = {"domain": "delta.rowTracking", "configuration": mark, "removed": False}
        lines.append({"domainMetadata": domain})
    small = table / "small.parquet"
    if small_files:
        pq.write_table(
            rows(different, _SMALL_ROWS).select(names),
            small,
            compression="snappy",
            store_schema=False,
        )
    next_row = 0
    for number in range(files + small_files):
        before, after = (at * small_files // (files + small_files) for at in (number, number + 1))
        is_small = after > before
        count = _SMALL_ROWS if is_small else rows_per_file
        values = {"p": f"{number % partitions:04}"} if partitions > 1 else {}
        folder = "".join(f"{name}={value}/" for name, value in values.items())
        path = f"{folder}part-{number:06}.snappy.parquet"
        (table / folder).mkdir(exist_ok=True)
        source = small if is_small else originals[number % different]
        os.link(source, table / path)
        add: dict[str, object] = {
            "path": path,
            "partitionValues": values,
            "size": source.stat().st_size,
            "modificationTime": _FIRST_MICROS // 1000 + number,
            "dataChange": True,
            "stats": json.dumps({"numRecords": count, "tightBounds": not vectors}),
        }
        if vectors:
            add["deletionVector"] = vectors[number % different]
        if tracked:
            add |= {"baseRowId": next_row, "defaultRowCommitVersion": 0}
        next_row += count
        lines.append({"add": add})
    for file in [*originals, small]:
        file.unlink(missing_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (log / f"{0:020}.json").write_text(text)


def _decimals(unscaled: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> pa.Array:
    words = np.stack([unscaled, np.zeros_like(unscaled)], axis=1)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(words))]
    return pa.Array.from_buffers(pa.decimal128(20, 2), len(unscaled), buffers)


def _mapped(rows: pa.Table) -> pa.Table:
    """The rows under physical names, with field IDs."""
    schema = rows.schema
    fields = [
        schema.field(number)
        .with_name(f"col-{name}")
        .with_metadata({"PARQUET:field_id": str(number + 1)})
        for number, name in enumerate(schema.names)
    ]
    return pa.table(rows.columns, schema=pa.schema(fields))


def _vectors(
    table: Path, originals: Sequence[Path], rows_per_file: int, percent: int
) -> list[dict[str, object]]:
    """For each of the different files a deletion vector of so many of its rows; none for 0."""
    if not percent:
        return []
    # A large part of the library, which other tables do without.
    from pyroaring import BitMap64

    from delta_maintenance.storage import open_store
    from delta_maintenance.table.data.carried_deletions import write_vectors

    positions = [
        BitMap64(
            np.flatnonzero(np.random.default_rng(number).random(rows_per_file) * 100 < percent)
        )
        for number in range(len(originals))
    ]
    written = write_vectors(open_store(str(table)), positions, new_id=lambda: str(uuid.UUID(int=3)))
    return [
        {
            "storageType": vector.storage_type,
            "pathOrInlineDv": vector.path_or_inline_dv,
            "offset": vector.offset,
            "sizeInBytes": vector.size_in_bytes,
            "cardinality": vector.cardinality,
        }
        for vector in written
    ]


def _protocol(*, vectors: bool, mapped: bool, tracked: bool) -> dict[str, object]:
    both = [name for name, on in (("columnMapping", mapped), ("deletionVectors", vectors)) if on]
    writers = [*both, "appendOnly", "invariants"]
    writers += ["domainMetadata", "rowTracking"] if tracked else []
    if not both and not tracked:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": both,
        "writerFeatures": writers,
    }


def _metadata(
    names: Sequence[str], partitions: int, *, vectors: bool, mapped: bool, tracked: bool
) -> dict[str, object]:
    columns = {name: _COLUMNS[name] for name in names} | ({"p": "string"} if partitions > 1 else {})
    fields = [
        {
            "name": name,
            "type": kind,
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{name}",
            }
            if mapped
            else {},
        }
        for number, (name, kind) in enumerate(columns.items(), 1)
    ]
    configuration = {"delta.enableDeletionVectors": "true"} if vectors else {}
    if mapped:
        configuration |= {
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": str(len(columns)),
        }
    if tracked:
        configuration |= {
            "delta.enableRowTracking": "true",
            "delta.rowTracking.materializedRowIdColumnName": "_row-id-col",
            "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col",
        }
    return {
        "id": str(uuid.UUID(int=2)),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": ["p"] if partitions > 1 else [],
        "configuration": configuration,
        "createdTime": _FIRST_MICROS // 1000,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Generate a Delta table with data files.")
    parser.add_argument("table", type=Path)
    parser.add_argument("--files", type=int, default=400)
    parser.add_argument("--rows-per-file", type=int, default=20_000)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--different", type=int, default=_DIFFERENT)
    parser.add_argument("--deleted-percent", type=int, default=0)
    parser.add_argument("--mapped", type=int, default=0)
    parser.add_argument("--tracked", type=int, default=0)
    parser.add_argument("--floats", type=int, default=1)
    parser.add_argument("--independent", type=int, default=0)
    parser.add_argument("--small-files", type=int, default=0)
    given = vars(parser.parse_args(arguments))
    generate(given.pop("table"), Shape(**given))


if __name__ == "__main__":
    main()
