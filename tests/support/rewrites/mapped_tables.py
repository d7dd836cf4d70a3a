"""Tables with column mapping, and their rows by logical names."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.protocol.actions import DeletionVectorDescriptor, load
from delta_maintenance.storage.core import Store
from tests.support.rewrites.data_files import ROW_ID, ROW_TRACKING, ROW_VERSION, DataTable, field
from tests.support.rewrites.rewritten_tables import VECTORS, RacedRewrites
from tests.support.rewrites.table_rows import live_adds

ID, NAME = "delta.columnMapping.id", "delta.columnMapping.physicalName"
MODE, HIGHEST = "delta.columnMapping.mode", "delta.columnMapping.maxColumnId"
NAMES = {"c1": "number", "c2": "inner", "c3": "deep", "c4": "pairs", "c7": "text", "text": "c7"}
"""Logical names by physical ones, at any level. Two columns have each other's name."""


def mapped(name: str, kind: object, number: int, physical: str) -> dict[str, object]:
    """A field with an ID and a physical name."""
    return field(name, kind, **{ID: number, NAME: physical})


def struct(*fields: dict[str, object]) -> dict[str, object]:
    return {"type": "struct", "fields": fields}


def schema() -> tuple[dict[str, object], ...]:
    """Columns that were renamed, at every level."""
    entry = struct(mapped("deep", "long", 9, "c3"))
    pairs = {"type": "map", "keyType": "string", "valueType": entry, "valueContainsNull": True}
    return (
        mapped("number", "long", 1, "c1"),
        mapped("inner", struct(mapped("deep", "long", 3, "c3")), 2, "c2"),
        mapped("pairs", pairs, 4, "c4"),
        mapped("text", "string", 7, "c7"),
        mapped("c7", "string", 8, "text"),
        mapped("part", "string", 6, "c6"),
    )


def rows(first: int, count: int = 4, *, ids: bool = True) -> pa.Table:
    """A file of the table: physical names, in another order, with a column that was dropped."""
    numbers = range(first, first + count)

    def named(name: str, number: int, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)} if ids else None)

    inner = pa.struct([named("c3", 3, pa.int64())])
    entry = pa.struct([named("c3", 9, pa.int64())])
    fields = {
        "c2": (named("c2", 2, inner), [{"c3": 2 * n} if n % 3 else None for n in numbers]),
        "text": (named("text", 8, pa.string()), [f"eight {n}" for n in numbers]),
        "c1": (named("c1", 1, pa.int64()), list(numbers)),
        "gone": (named("gone", 5, pa.string()), [f"secret {n}" for n in numbers]),
        "c4": (
            named("c4", 4, pa.map_(pa.string(), entry)),
            [[(str(n), {"c3": 3 * n}), ("", None)] for n in numbers],
        ),
        "c7": (named("c7", 7, pa.string()), [f"seven {n % 2}" for n in numbers]),
    }
    arrays = [pa.array(values, kind.type) for kind, values in fields.values()]
    return pa.Table.from_arrays(arrays, schema=pa.schema([kind for kind, _ in fields.values()]))


def expected(first: int, part: str | None, count: int = 4) -> dict[int, Any]:
    """The rows of a file by `number`, as a reader of the table sees them."""
    return {
        n: {
            "number": n,
            "inner": {"deep": 2 * n} if n % 3 else None,
            "pairs": [(str(n), {"deep": 3 * n}), ("", None)],
            "text": f"seven {n % 2}",
            "c7": f"eight {n}",
            "part": part,
        }
        for n in range(first, first + count)
    }


def mapped_table(
    *, mode: str = "name", tracked: bool = True, vectors: bool = True, **options: Any
) -> DataTable:
    """A table without files, with row tracking, deletion vectors and clustering."""
    features = ["columnMapping", "deletionVectors", "domainMetadata", "clustering"]
    return DataTable(
        *schema(),
        store=RacedRewrites(),
        features=[*features, *(["rowTracking"] if tracked else [])],
        configuration={MODE: mode, HIGHEST: "9", "user.own": "1"}
        | (ROW_TRACKING if tracked else {})
        | (VECTORS if vectors else {}),
        partitioned_by=["part"],
        domains={"delta.clustering": '{"clusteringColumns":[["c1"],["c2","c3"]],"other":1}'},
        **options,
    )


def unmapped_rows(store: Store) -> dict[int, Any]:
    """The live rows of a table without mapping, by `number`. Files have no other columns."""
    return _rows(store, lambda name: name, "part")


def mapped_rows(store: Store) -> dict[int, Any]:
    """The live rows of a table whose files have the physical names of `rows`."""
    return _rows(store, NAMES.get, "c6")


def identities(store: Store) -> dict[int, tuple[int, int]]:
    """The row ID and row commit version of each live row."""
    found = {}
    for path, add in live_adds(store).items():
        table = _read(store, path)
        name = "number" if "number" in table.column_names else "c1"
        for at, row in enumerate(table.to_pylist()):
            if at not in _deleted(store, add):
                found[row[name]] = (
                    row.get(ROW_ID, add["baseRowId"] + at),
                    row.get(ROW_VERSION, add["defaultRowCommitVersion"]),
                )
    return found


def _rows(store: Store, name_of: Any, part: str) -> dict[int, Any]:
    found: dict[int, Any] = {}

    def named(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name_of(key): named(each) for key, each in value.items()}
        if isinstance(value, list):
            return [tuple(map(named, each)) for each in value]
        return value

    for path, add in live_adds(store).items():
        for at, row in enumerate(_read(store, path).to_pylist()):
            if at in _deleted(store, add):
                continue
            kept = {
                name_of(key): named(value)
                for key, value in row.items()
                if key not in (ROW_ID, ROW_VERSION) and name_of(key) is not None
            }
            kept["part"] = add["partitionValues"][part]
            assert kept["number"] not in found, "a row is there twice"
            found[kept["number"]] = kept
    return found


def _read(store: Store, path: str) -> pa.Table:
    return pq.ParquetFile(io.BytesIO(store.read(unquote(path)))).read()


def _deleted(store: Store, add: Mapping[str, Any]) -> set[int]:
    vector = add.get("deletionVector")
    return set(load(DeletionVectorDescriptor.from_json(vector), store.read)) if vector else set()
