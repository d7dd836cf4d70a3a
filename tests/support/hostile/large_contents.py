"""Data files and deletion vectors that are small on disk and huge in memory, and their tables.

Every file has the column `c` with hostile values, a column `n` of an earlier type, and the hidden
columns of row tracking, of which that of row IDs is hostile as well where that is possible.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from delta_maintenance.checksums import crc32
from delta_maintenance.protocol.actions import encode_bitmap, z85_encode
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.data.parquet.footers import COLUMNS, GROUP_ROWS, NUM_ROWS, ROW_GROUPS
from delta_maintenance.table.data.parquet.thrift import (
    I64,
    LIST,
    STRUCT,
    ListValue,
    Struct,
    read_struct,
    struct_bytes,
)
from tests.support.rewrites.data_files import ROW_ID, ROW_VERSION, DataTable
from tests.support.rewrites.data_files import field as column
from tests.support.tables import actions as log

TEXTS = {"type": "array", "elementType": "string", "containsNull": True}
NUMBERS = {"type": "array", "elementType": "long", "containsNull": True}
LONG = [str(number) + "v" * 300_000 for number in range(5)]


def shared(values: Sequence[str], rows: int) -> pa.Array:
    """Rows that refer to a few long texts, one after another."""
    return pa.DictionaryArray.from_arrays(
        np.arange(rows, dtype=np.int32) % len(values), pa.array(values)
    )


def _lists(values: pa.Array, length: int) -> pa.Array:
    ends = np.arange(0, len(values) + 1, length, dtype=np.int32)
    return pa.ListArray.from_arrays(ends, values)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Values of a column that take much more memory than space."""

    kind: object
    """The type of the column in the schema of the table."""
    values: Callable[[], pa.Array]
    is_refused: bool = False
    """Whether no batch can hold one of its rows."""
    options: Mapping[str, Any] = field(default_factory=dict)


HOSTILE = {
    "shared texts": Rows(kind="string", values=lambda: shared(LONG, 1800)),
    "one shared text": Rows(kind="string", values=lambda: shared(["w" * 1_000_000], 600)),
    "shared texts in structs": Rows(
        kind={"type": "struct", "fields": [column("s", "string")]},
        values=lambda: pa.StructArray.from_arrays([shared(LONG, 1500)], ["s"]),
    ),
    "shared texts in lists": Rows(kind=TEXTS, values=lambda: _lists(shared(LONG, 1500), 3)),
    "shared texts in one row": Rows(
        kind=TEXTS, values=lambda: _lists(shared(LONG, 1500), 1500), is_refused=True
    ),
    "a list of one number": Rows(
        kind=NUMBERS,
        values=lambda: _lists(pa.repeat(pa.scalar(3), 30_000_000), 30_000_000),
        is_refused=True,
    ),
    "one long text": Rows(
        kind="string",
        values=lambda: pa.array(["\0" * (200 << 20)]),
        is_refused=True,
        options={"use_dictionary": False},
    ),
    "shared prefixes": Rows(
        kind="string",
        values=lambda: pa.array([LONG[0] + str(number) for number in range(1500)]),
        options={"use_dictionary": False, "column_encoding": {"c": "DELTA_BYTE_ARRAY"}},
    ),
}
"""Rows of the inputs that once took gigabytes."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """A data file, its deletion vector, and what the log states of them."""

    data: bytes
    rows: int
    kind: object = "string"
    vector: bytes | None = None
    """The bytes of a deletion vector; by default it marks the first row."""
    cardinality: int = 1
    refused: Literal["sound", "damaged"] | None = None
    """Whether a rewrite leaves the file out, and what it takes it for."""
    copies: int = 16
    """The maximum number of such files in a table."""
    vector_file: int | None = None
    """The size of the file with the vector, most of it a hole; None if it is in the log."""


def _file(values: pa.Array, **options: Any) -> bytes:
    rows = len(values)
    numbers = np.arange(rows, dtype=np.int64)
    encoding = dict(options.pop("column_encoding", {}))
    columns = {
        "c": values,
        "n": pa.array(numbers, pa.int32()),
        ROW_ID: values if isinstance(values, pa.DictionaryArray) else pa.array(numbers),
        ROW_VERSION: pa.repeat(pa.scalar(1, pa.int64()), rows),
    }
    sink = io.BytesIO()
    defaults = {
        "compression": "zstd",
        "store_schema": False,
        "dictionary_pagesize_limit": 1 << 30,
        **({"column_encoding": encoding} if encoding else {}),
    }
    pq.write_table(pa.table(columns), sink, **defaults, **options)
    return sink.getvalue()


@cache
def content(name: str) -> Content:
    """Builds an input."""
    if name in HOSTILE:
        rows = HOSTILE[name]
        values = rows.values()
        return Content(
            data=_file(values, **rows.options),
            rows=len(values),
            kind=rows.kind,
            refused="sound" if rows.is_refused else None,
        )
    return CONTENTS[name]()


def _crowded_footer() -> Content:
    """A row group with half a million column chunks of three bytes."""
    few = content("few rows")
    size = int.from_bytes(few.data[-8:-4], "little")
    footer, _ = read_struct(few.data[-8 - size : -8])
    chunk = Struct()
    chunk.put(2, I64, 0)
    group = Struct()
    group.put(COLUMNS, LIST, ListValue(STRUCT, [chunk] * 500_000))
    group.put(2, I64, 0)
    group.put(GROUP_ROWS, I64, few.rows)
    footer.put(ROW_GROUPS, LIST, ListValue(STRUCT, [group]))
    text = struct_bytes(footer)
    data = few.data[: -8 - size] + text + len(text).to_bytes(4, "little") + b"PAR1"
    return replace(few, data=data, refused="sound")


def _long_vector() -> Content:
    """Hundreds of millions of rows, all null, of which a vector of some bytes deletes most."""
    many = 1 << 26
    sink = io.BytesIO()
    schema = pa.schema([("c", pa.string())])
    options = {"compression": "zstd", "store_schema": False, "write_statistics": False}
    few = 1 << 16
    with pq.ParquetWriter(sink, schema, data_page_size=1 << 30, **options) as writer:
        writer.write_table(pa.table([pa.nulls(few, pa.string())], schema=schema))
    data = sink.getvalue()
    # The other rows exist only according to the footer.
    size = int.from_bytes(data[-8:-4], "little")
    footer, _ = read_struct(data[-8 - size : -8])
    [group] = footer.structs(ROW_GROUPS)
    footer.put(ROW_GROUPS, LIST, ListValue(STRUCT, [group, group_of(group, many - few)]))
    footer.put(NUM_ROWS, I64, many)
    text = struct_bytes(footer)
    data = data[: -8 - size] + text + len(text).to_bytes(4, "little") + b"PAR1"
    bitmap = BitMap64(range(many - 1))
    bitmap.run_optimize()
    return Content(
        data=data,
        rows=many,
        vector=encode_bitmap(bitmap),
        cardinality=len(bitmap),
        copies=3,
        refused="damaged",
    )


def group_of(group: Struct, rows: int) -> Struct:
    """Returns a row group that states another number of rows."""
    other = group.copy()
    other.put(GROUP_ROWS, I64, rows)
    return other


def _vector_in_a_huge_file() -> Content:
    """A vector in a file with a hole of a gigabyte."""
    return replace(content("few rows"), vector_file=1 << 30, copies=1)


CONTENTS: dict[str, Callable[[], Content]] = {
    "few rows": lambda: Content(data=_file(pa.array(["a", "b", "c"])), rows=3),
    "a crowded footer": _crowded_footer,
    "a long vector": _long_vector,
    "a vector in a huge file": _vector_in_a_huge_file,
}
INPUTS = (*HOSTILE, *(name for name in CONTENTS if name != "few rows"))


def written(
    root: Path,
    name: str,
    *,
    many: int = 1,
    features: Sequence[str] = (),
    configuration: Mapping[str, str] | None = None,
    fields: Callable[[object], Sequence[dict[str, object]]] | None = None,
    counted: bool = True,
) -> None:
    """Writes a table with an input and two small files.

    There are `many` copies of an input whose footer or deletion vector is large. `fields` returns
    the schema for the type of `c`. If `deletionVectors` are a feature, files have one. `counted` is
    whether the log states the numbers of rows.
    """
    found, small = content(name), content("few rows")
    if found.kind != "string":
        nothing = pa.nulls(3, pq.read_schema(io.BytesIO(found.data)).field("c").type)
        small = Content(data=_file(nothing), rows=3)
    schema = fields or (lambda kind: (column("c", kind), column("n", "integer")))
    made = DataTable(
        *schema(found.kind),
        store=LocalStore(str(root)),
        features=features,
        configuration=configuration,
    )
    copies = min(many, found.copies) if name in CONTENTS else 1
    lines: list[Any] = []
    first = 0
    for number, each in enumerate((*[found] * copies, small, small)):
        path = f"f{number}.parquet"
        made.store.put(path, each.data)
        add: dict[str, Any] = {
            "path": path,
            "partitionValues": {},
            "size": len(each.data),
            "modificationTime": 1_700_000_000_000,
            "dataChange": True,
        }
        if counted:
            add["stats"] = json.dumps({"numRecords": each.rows})
        if "deletionVectors" in features:
            add["deletionVector"] = _vector(root, each, number)
        if "rowTracking" in features:
            add |= {"baseRowId": first, "defaultRowCommitVersion": 1}
            first += each.rows
        lines.append({"add": add})
    if "rowTracking" in features:
        mark = json.dumps({"rowIdHighWaterMark": first - 1})
        lines.append(log.domain("delta.rowTracking", mark))
    made.builder.commit(lines)


def _vector(root: Path, found: Content, number: int) -> dict[str, Any]:
    data = found.vector or encode_bitmap(BitMap64([0]))
    vector = {"sizeInBytes": len(data), "cardinality": found.cardinality}
    if found.vector_file is None:
        return {"storageType": "i", "pathOrInlineDv": z85_encode(data), **vector}
    path = root / f"deletion_vector_{number}.bin"
    with path.open("wb") as file:
        file.write(b"\x01" + len(data).to_bytes(4, "big") + data)
        file.write(crc32(data).to_bytes(4, "big"))
        file.truncate(found.vector_file)
    return {"storageType": "p", "pathOrInlineDv": path.as_uri(), "offset": 1, **vector}
