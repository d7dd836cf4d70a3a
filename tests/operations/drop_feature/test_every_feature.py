"""Every droppable feature leaves tables with columns of every type, in any order of drops.

Other readers return the same rows after each drop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.protocol.changes.drop import removal_of
from delta_maintenance.protocol.features import supported_features
from delta_maintenance.table.read import Table
from tests.operations.drop_feature.test_widened_types import by_deltalake, by_duckdb, copy_to, plain
from tests.support.oracle.other_readers import require
from tests.support.rewrites.data_files import ROW_TRACKING, DataTable, field, inline_vector, removed
from tests.support.suite.play import examples
from tests.support.tables import actions as log
from tests.support.tables.droppable_tables import Clock, drop

UTC_TIME = pa.timestamp("us", "UTC")
NESTED = {"type": "struct", "fields": [field("x", "decimal(20,3)")]}
ENTRY = pa.struct([("x", pa.decimal128(20, 3))])
COLUMNS: dict[str, tuple[Any, pa.DataType, list[Any]]] = {
    "flag": ("boolean", pa.bool_(), [True, False]),
    "tiny": ("byte", pa.int8(), [-128, 127]),
    "small": ("short", pa.int16(), [-(2**15), 1]),
    "number": ("integer", pa.int32(), [2**31 - 1, 0]),
    "single": ("float", pa.float32(), [0.5, float("inf")]),
    "double": ("double", pa.float64(), [-0.0, 1e300]),
    "price": ("decimal(5,2)", pa.decimal128(5, 2), [Decimal("-999.99"), Decimal(0)]),
    "exact": ("decimal(38,10)", pa.decimal128(38, 10), [Decimal("1e27"), None]),
    "text": ("string", pa.string(), ["", "ä 'x'=%20"]),
    "bytes": ("binary", pa.binary(), [b"\x00\xff", b""]),
    "day": ("date", pa.date32(), [date(1900, 1, 1), date(2024, 2, 29)]),
    "time": ("timestamp", UTC_TIME, [datetime(2024, 2, 29, 1, 2, 3, 4, UTC), None]),
    "local": ("timestamp_ntz", pa.timestamp("us"), [datetime(1970, 1, 1), None]),
    "items": (
        {"type": "array", "elementType": NESTED, "containsNull": True},
        pa.list_(ENTRY),
        [[{"x": Decimal("1.5")}, None], []],
    ),
    "pairs": (
        {"type": "map", "keyType": "string", "valueType": "date", "valueContainsNull": True},
        pa.map_(pa.string(), pa.date32()),
        [[("k", date(2000, 1, 1))], None],
    ),
}
PARTITIONS: dict[str, tuple[str, Any]] = {
    "flag": ("true", True),
    "number": ("-5", -5),
    "price": ("1.50", Decimal("1.50")),
    "text": ("a b", "a b"),
    "day": ("2024-02-29", date(2024, 2, 29)),
    "time": ("2024-02-29T01:02:03.500000Z", datetime(2024, 2, 29, 1, 2, 3, 500_000, UTC)),
    "local": ("2024-02-29 01:02:03", datetime(2024, 2, 29, 1, 2, 3)),
}
DROPPABLE = (
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "materializePartitionColumns",
    "rowTracking",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
)
READERS = {"columnMapping", "deletionVectors", "typeWidening", "v2Checkpoint"}
READERS |= {"vacuumProtocolCheck", "timestampNtz"}
PROPERTIES: dict[str, dict[str, str]] = {
    "deletionVectors": {"delta.enableDeletionVectors": "true"},
    "rowTracking": ROW_TRACKING,
    "typeWidening": {"delta.enableTypeWidening": "true"},
    "v2Checkpoint": {"delta.checkpointPolicy": "v2"},
}
ID, NAME = "delta.columnMapping.id", "delta.columnMapping.physicalName"


@dataclass(frozen=True)
class Case:
    """A table with some features, and what uses them."""

    features: Sequence[str]
    partition: str | None
    mode: Literal["name", "id"]
    renamed: bool
    gone: bool
    """Whether the files have a column that was dropped."""
    vectors: Sequence[Sequence[int]]
    """The deleted rows of some files."""
    checkpoint: int | None
    truncate: bool

    @property
    def mapped(self) -> bool:
        return "columnMapping" in self.features

    def physical(self, name: str) -> str:
        return f"col-{name}" if self.mapped and self.renamed else name

    def metadata(self, name: str, at: int) -> dict[str, Any]:
        return {ID: at, NAME: self.physical(name)} if self.mapped else {}


CASES = st.builds(
    Case,
    features=st.lists(st.sampled_from(DROPPABLE), min_size=1, unique=True).map(tuple),
    partition=st.sampled_from([None, *PARTITIONS]),
    mode=st.sampled_from(["name", "id"]),
    renamed=st.booleans(),
    gone=st.booleans(),
    vectors=st.lists(st.sampled_from([(), (0,), (0, 1)]), max_size=3),
    checkpoint=st.sampled_from([None, 1, 2]),
    truncate=st.booleans(),
)


def table_of(case: Case) -> DataTable:
    names = list(COLUMNS)
    fields = [field("id", "long", **case.metadata("id", 1))]
    for at, name in enumerate(names, 2):
        metadata = case.metadata(name, at)
        kind = COLUMNS[name][0]
        if name == "items" and case.mapped:
            inner = field("x", "decimal(20,3)", **{ID: 90, NAME: case.physical("x")})
            kind = {**kind, "elementType": {"type": "struct", "fields": [inner]}}
        if name == "price" and "typeWidening" in case.features:
            kind = "decimal(12,4)"
            change = {"fromType": "decimal(5,2)", "toType": kind}
            metadata["delta.typeChanges"] = [change]
        fields.append(field(name, kind, **metadata))
    properties: dict[str, str] = {}
    for feature in case.features:
        properties |= PROPERTIES.get(feature, {})
    if case.mapped:
        properties |= {"delta.columnMapping.mode": case.mode}
        properties |= {"delta.columnMapping.maxColumnId": "99" if case.gone else "90"}
    required = ["domainMetadata"] if "rowTracking" in case.features else []
    made = DataTable(*fields, partitioned_by=[case.partition] if case.partition else [])
    writers = ["timestampNtz", *case.features, *required]
    readers = [name for name in writers if name in READERS]
    metadata = made.builder.commits[0][1]["metaData"] | {"configuration": properties}
    made.builder.commits.clear()
    protocol = log.protocol(3, 7, reader_features=readers, writer_features=writers)
    made.builder.commit([protocol, {"metaData": metadata}])
    made.tracks_rows = "rowTracking" in case.features
    return made


def rows_of(case: Case, first: int) -> pa.Table:
    columns = {"id": (pa.int64(), [first, first + 1])}
    columns |= {name: (kind, values) for name, (_, kind, values) in COLUMNS.items()}
    if case.partition is not None and "materializePartitionColumns" not in case.features:
        del columns[case.partition]
    if case.mapped:
        inner = pa.field(case.physical("x"), pa.decimal128(20, 3), metadata=parquet_id(90))
        items = [[{case.physical("x"): Decimal("1.5")}, None], []]
        columns["items"] = pa.list_(pa.struct([inner])), items
    if case.mapped and case.gone:
        columns["gone"] = pa.string(), ["secret", "secret"]
    arrays, fields = [], []
    for name, (kind, values) in columns.items():
        at = 99 if name == "gone" else ["id", *COLUMNS].index(name) + 1
        metadata = parquet_id(at) if case.mapped else None
        fields.append(pa.field(case.physical(name), kind, metadata=metadata))
        arrays.append(pa.array(values, kind))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def parquet_id(number: int) -> dict[str, str]:
    return {"PARQUET:field_id": str(number)}


def fill(case: Case, made: DataTable) -> None:
    for at in range(4):
        values = {}
        if case.partition is not None:
            values = {case.physical(case.partition): PARTITIONS[case.partition][0] if at else None}
        made.append(rows_of(case, 10 * at), partitionValues=values)
        if at == case.checkpoint and "v2Checkpoint" in case.features:
            made.builder.v2_checkpoint(sidecars=2)
        elif at == case.checkpoint:
            made.builder.checkpoint(parts=2)
    if "deletionVectors" in case.features:
        for path, positions in zip(list(made.live), case.vectors, strict=False):
            old = made.live[path]
            made.live[path] = old | {"deletionVector": inline_vector(positions)}
            made.builder.commit([{"remove": removed(old)}, {"add": made.live[path]}])


def expected(case: Case) -> list[Any]:
    """The live rows, by their IDs."""
    rows = []
    for at in range(4):
        deleted = case.vectors[at] if at < len(case.vectors) else ()
        for row in range(2):
            if row in deleted and "deletionVectors" in case.features:
                continue
            values = {name: values[row] for name, (_, _, values) in COLUMNS.items()}
            if case.partition is not None:
                values[case.partition] = PARTITIONS[case.partition][1] if at else None
            rows.append(plain({"id": 10 * at + row, **values}))
    return rows


def readers_of(case: Case, made: DataTable) -> Iterator[Callable[[Path], pa.Table]]:
    """The readers that support the features of the table."""
    features = supported_features(Table(made.store).snapshot().protocol)
    if "typeWidening" in features and case.partition == "price":
        # Both refuse a value with the scale of the former type.
        return
    if not features & {"typeWidening", "vacuumProtocolCheck"}:
        yield by_deltalake
    if "columnMapping" not in features or not case.partition or not case.renamed:
        # DuckDB returns no values of a partition column with another physical name.
        yield by_duckdb


@pytest.mark.cases
@pytest.mark.conformance("FEAT-14", "FEAT-15", "RW-38", "DV-15", "TW-05")
@settings(max_examples=examples(10))
@given(CASES)
def test_other_readers_return_the_rows_after_each_drop(case: Case) -> None:
    require("duckdb", "duckdb_extension_delta")
    clock = Clock()
    made = table_of(case)
    fill(case, made)
    clock.govern(made.store)
    for feature in case.features:
        truncate = case.truncate and removal_of(feature).may_truncate
        result = drop(made.store, clock, feature, truncate_history=truncate)
        if result.status == "waiting":
            clock.pass_by(timedelta(hours=25))
            result = drop(made.store, clock, feature, truncate_history=truncate)
        assert result.status == "dropped"
        assert feature not in supported_features(Table(made.store).snapshot().protocol)
        with TemporaryDirectory() as folder:
            copy_to(Path(folder), made)
            for read in readers_of(case, made):
                rows = sorted(read(Path(folder)).to_pylist(), key=itemgetter("id"))
                assert [plain(row) for row in rows] == expected(case), (feature, read.__name__)
