"""Rows of data files: found, typed, and without those that are deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyroaring import BitMap64

from delta_maintenance import open_table
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.protocol.actions import encode_bitmap, write_file, z85_encode
from delta_maintenance.protocol.schema import parse_schema
from delta_maintenance.table.data.row_reader import FILES, RowLayout, RowReader
from delta_maintenance.table.read import Snapshot
from tests.support.rewrites.arrow_features import IS_24
from tests.support.tables import actions as log
from tests.support.tables.corpus_tables import CORPUS
from tests.support.tables.table_builder import TableBuilder

TABLES = sorted(path.parent.name for path in CORPUS.glob("*/_delta_log"))
UUID = "00000000-0000-4000-8000-000000000000"


def read(snapshot: Snapshot, *names: str, zone: tzinfo = UTC) -> pa.Table:
    """Some columns of the live rows, by default all, in the order of the files."""
    fields = parse_schema(snapshot.metadata.schema_string or "").fields
    layout = RowLayout.of(snapshot, names or [field.name for field in fields], zone=zone)
    found = [layout.schema.empty_table()]
    reader = RowReader(snapshot.log.store, layout)
    for batch in snapshot.log.scan(fields={"add": FILES.names}):
        adds = batch.adds
        columns = [
            adds[field.name] if field.name in adds.column_names else pa.nulls(len(adds), field.type)
            for field in FILES
        ]
        files = pa.table(columns, schema=FILES)
        for number in range(files.num_rows):
            for rows in reader.read(files, number):
                assert (rows.file, rows.count) == (number, len(rows.columns[0]))
                found.append(pa.table(rows.columns, schema=layout.schema))
    return pa.concat_tables(found)


def lines(rows: pa.Table) -> list[str]:
    return sorted(json.dumps(list(row.values()), default=str) for row in rows.to_pylist())


@pytest.mark.conformance("CM-02", "CM-03", "CM-05", "DV-01", "SCHEMA-07", "PART-04")
def test_delta_rs_reads_the_same_rows_of_real_tables(corpus: Path) -> None:
    same, ours_refused, theirs_refused = [], [], []
    for name in TABLES:
        try:
            rows = read(open_table(str(corpus / name)).snapshot())
        except DeltaMaintenanceError:
            ours_refused.append(name)
            continue
        try:
            table = DeltaTable(corpus / name)
            query = QueryBuilder().register("t", table).execute("SELECT * FROM t")
            theirs = pa.table(query.read_all()).select(rows.column_names)
        except Exception:
            theirs_refused.append(name)
            continue
        assert lines(rows) == lines(theirs), name
        same.append(name)
    # What is refused lacks its data files in the corpus or is of a type that is not read.
    assert len(same) > 100 and len(theirs_refused) < 6
    assert {"golden-type-widening", "golden-type-widening-nested"} <= set(theirs_refused)


def field(name: str, kind: object, **metadata: object) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def schema(*fields: dict[str, object]) -> str:
    return json.dumps({"type": "struct", "fields": fields})


Build = Callable[..., Snapshot]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """A table of one file `f` that Arrow wrote."""

    def built(
        rows: pa.Table,
        *fields: dict[str, object],
        configuration: dict[str, str] | None = None,
        partitioned_by: tuple[str, ...] = (),
        protocol: log.Action | None = None,
        writing: dict[str, Any] | None = None,
        **add: Any,
    ) -> Snapshot:
        pq.write_table(rows, tmp_path / "f", **(writing or {}))
        builder = TableBuilder(tmp_path)
        metadata = log.metadata(
            schema=schema(*fields), configuration=configuration, partitioned_by=partitioned_by
        )
        builder.commit([protocol or log.protocol(), metadata, log.add("f", **add)])
        return builder.open().snapshot()

    return built


WIDENED: dict[str, tuple[pa.Array, object, list[object]]] = {
    "byte to long": (pa.array([-1], pa.int8()), "long", [-1]),
    "short to integer": (pa.array([-1], pa.int16()), "integer", [-1]),
    "integer to double": (pa.array([7], pa.int32()), "double", [7.0]),
    "float to double": (pa.array([0.5], pa.float32()), "double", [0.5]),
    "integer to decimal": (pa.array([7], pa.int32()), "decimal(12,2)", [Decimal("7.00")]),
    "decimal to decimal": (
        pa.array([Decimal("1.5")], pa.decimal128(3, 1)),
        "decimal(6,3)",
        [Decimal("1.500")],
    ),
    "date to timestamp_ntz": (
        pa.array([date(2024, 2, 29)]),
        "timestamp_ntz",
        [datetime(2024, 2, 29)],
    ),
    "nanoseconds": (
        pa.array([1_000], pa.timestamp("ns")),
        "timestamp",
        [datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)],
    ),
    "dictionary": (pa.array(["a", "a"]).dictionary_encode(), "string", ["a", "a"]),
    "large text": (pa.array(["a"], pa.large_string()), "string", ["a"]),
    "text views": (pa.array(["a", None], pa.string_view()), "string", ["a", None]),
    "views of bytes": (pa.array([b"a", None], pa.binary_view()), "binary", [b"a", None]),
    "lists of text views": (
        pa.array([["a"], None, []], (pa.list_ if IS_24 else pa.list_view)(pa.string_view())),
        {"type": "array", "elementType": "string", "containsNull": True},
        [["a"], None, []],
    ),
    "bytes": (pa.array([b"a"]), "string", ["a"]),
    "elements": (
        pa.array([[1], None, [], [2, None]], pa.large_list(pa.int8())),
        {"type": "array", "elementType": "long", "containsNull": True},
        [[1], None, [], [2, None]],
    ),
    "values": (
        pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())),
        {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
        [[("k", 1)], None],
    ),
    "structs": (
        pa.array([{"X": 1, "gone": 2}, None], pa.struct({"X": pa.int8(), "gone": pa.int8()})),
        {"type": "struct", "fields": [field("x", "long"), field("new", "string")]},
        [{"x": 1, "new": None}, None],
    ),
}


@pytest.mark.conformance("TW-02", "SCHEMA-07")
@pytest.mark.parametrize("case", WIDENED)
def test_values_are_those_of_the_schema(build: Build, case: str) -> None:
    stored, kind, expected = WIDENED[case]
    snapshot = build(pa.table({"c": stored}), field("c", kind))
    assert read(snapshot)["c"].to_pylist() == expected


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (pa.array(["1"]), "long"),
        (pa.array([1]), "string"),
        (pa.array([1.5]), "long"),
        (pa.array([300]), "byte"),
        (pa.array([b"\xff"]), "string"),
        (pa.array([1]), {"type": "struct", "fields": [field("x", "long")]}),
        (pa.array([{"x": 1}]), "long"),
        (pa.array([1e300]), "decimal(10,2)"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_schema_is_an_error_that_names_file_and_column(
    build: Build, stored: pa.Array, kind: object
) -> None:
    snapshot = build(pa.table({"c": stored}), field("c", kind))
    with pytest.raises(CorruptTableError, match="column c") as raised:
        read(snapshot)
    assert raised.value.file == "f"


def test_a_timestamp_that_the_protocol_cannot_represent_is_unsupported(build: Build) -> None:
    stored = pa.array([1], pa.timestamp("ns"))
    with pytest.raises(UnsupportedFeatureError, match="finer than microseconds") as raised:
        read(build(pa.table({"c": stored}), field("c", "timestamp")))
    assert raised.value.file == "f"


def test_a_column_is_found_in_another_case_where_that_is_not_ambiguous(build: Build) -> None:
    rows = pa.table([[1], [2], [3]], names=["id", "ID", "Other"])
    snapshot = build(rows, field("id", "long"), field("other", "long"), field("Id", "long"))
    assert read(snapshot, "id", "other").to_pylist() == [{"id": 1, "other": 3}]
    with pytest.raises(CorruptTableError, match="2 times"):
        read(snapshot, "Id")


def test_a_name_with_a_dot_is_no_path(build: Build) -> None:
    rows = pa.table({"a": [{"b": 1}], "a.b": [2]})
    inner = {"type": "struct", "fields": [field("b", "long")]}
    snapshot = build(rows, field("a", inner), field("a.b", "long"))
    assert read(snapshot, "a.b").to_pylist() == [{"a.b": 2}]
    assert read(snapshot, "a").to_pylist() == [{"a": {"b": 1}}]


IDS = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "p"}
BY_ID = {"delta.columnMapping.mode": "id", "delta.columnMapping.maxColumnId": "1"}


@pytest.mark.conformance("CM-05", "CM-06")
def test_in_mode_id_a_file_without_ids_is_refused_and_a_missing_id_is_null(build: Build) -> None:
    def by_id(*fields: pa.Field) -> Snapshot:
        rows = pa.table([[1]] * len(fields), schema=pa.schema(fields))
        return build(
            rows, field("c", "long", **IDS), configuration=BY_ID, protocol=log.protocol(2, 5)
        )

    first = {"PARQUET:field_id": "1"}
    found = by_id(pa.field("whatever", pa.int64(), metadata=first), pa.field("p", pa.int64()))
    assert read(found)["c"].to_pylist() == [1]
    (Path(found.table) / "_delta_log" / f"{0:020d}.json").unlink()
    later = by_id(pa.field("p", pa.int64(), metadata={"PARQUET:field_id": "2"}))
    assert read(later)["c"].to_pylist() == [None]
    (Path(found.table) / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(CorruptTableError, match="no column IDs"):
        read(by_id(pa.field("p", pa.int64())))


def vectors(rows: int, deleted: list[int], storage: str, root: Path) -> log.Action:
    if storage == "i":
        data = encode_bitmap(BitMap64(deleted))
        return log.deletion_vector(
            z85_encode(data), storage_type="i", sizeInBytes=len(data), cardinality=len(deleted)
        )
    data, offsets = write_file([BitMap64([99]), BitMap64(deleted)])
    folder = root / "v 1"
    folder.mkdir()
    (folder / f"deletion_vector_{UUID}.bin").write_bytes(data)
    text = {
        "u": "v 1" + z85_encode(bytes.fromhex(UUID.replace("-", ""))),
        "p": f"file://{root}/v%201/deletion_vector_{UUID}.bin",
    }[storage]
    size = len(encode_bitmap(BitMap64(deleted)))
    return log.deletion_vector(
        text, storage_type=storage, offset=offsets[1], sizeInBytes=size, cardinality=len(deleted)
    )


@pytest.mark.conformance("DV-01", "DV-04", "DV-05")
@pytest.mark.parametrize("storage", ["i", "u", "p"])
def test_deleted_rows_go_by_their_position_in_the_file(
    build: Build, tmp_path: Path, storage: str
) -> None:
    deleted = [0, 32_767, 32_768, 50_000, 69_999]
    dv = vectors(70_000, deleted, storage, tmp_path)
    protocol = log.features("deletionVectors")
    rows = pa.table({"id": range(70_000)})
    # Row groups of an odd size, so that batches and groups end in different places.
    snapshot = build(
        rows, field("id", "long"), protocol=protocol, dv=dv, writing={"row_group_size": 9_999}
    )
    expected = sorted(set(range(70_000)) - set(deleted))
    assert read(snapshot)["id"].to_pylist() == expected


@pytest.mark.conformance("DV-10", "DV-11")
def test_a_vector_that_does_not_fit_its_file_is_corruption(build: Build, tmp_path: Path) -> None:
    for dv in (vectors(3, [3], "i", tmp_path), log.deletion_vector()):
        snapshot = build(
            pa.table({"id": range(3)}),
            field("id", "long"),
            protocol=log.protocol(
                3, 7, reader_features=["deletionVectors"], writer_features=["deletionVectors"]
            ),
            dv=dv,
        )
        with pytest.raises(CorruptTableError, match=r"row 3 of 3|missing"):
            read(snapshot)
        (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()


@pytest.mark.conformance("PART-02", "PART-04", "PART-05")
def test_partition_values_come_from_the_log_and_not_from_the_file(build: Build) -> None:
    rows = pa.table({"id": [1, 2], "n": [8, 8]})
    fields = field("id", "long"), field("n", "integer"), field("at", "timestamp")
    values = {"n": "7", "at": "2024-07-01 00:00:00"}
    names = ("n", "at")
    snapshot = build(rows, *fields, partitioned_by=names, partitionValues=values)
    zone = ZoneInfo("Asia/Tokyo")
    expected = {"n": 7, "at": datetime(2024, 6, 30, 15, tzinfo=UTC)}
    assert read(snapshot, *names, zone=zone).to_pylist() == [expected] * 2


@pytest.mark.parametrize(
    ("key_values", "int96", "refused"),
    [
        ({b"org.apache.spark.legacyDateTime": b""}, False, True),
        ({b"org.apache.spark.version": b"2.4.8"}, False, True),
        ({b"org.apache.spark.version": b"3.0.0"}, False, False),
        ({b"org.apache.spark.version": b"3.0.3"}, True, True),
        ({b"org.apache.spark.version": b"3.10.0"}, True, False),
        ({b"org.apache.spark.legacyINT96": b""}, True, True),
        ({b"org.apache.spark.legacyINT96": b""}, False, False),
        ({}, True, False),
    ],
    ids=str,
)
def test_early_days_of_the_julian_calendar_are_refused(
    build: Build, tmp_path: Path, key_values: dict[bytes, bytes], int96: bool, refused: bool
) -> None:
    early, late = datetime(1899, 12, 31, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)
    writing = {"use_deprecated_int96_timestamps": int96}
    for instant, expected in ((late, False), (early, refused)):
        column = pa.array([instant, None], pa.timestamp("us", tz="UTC"))
        rows = pa.table({"at": column}).replace_schema_metadata(key_values)
        snapshot = build(rows, field("at", "timestamp"), writing=writing)
        if expected:
            with pytest.raises(UnsupportedFeatureError, match="Julian"):
                read(snapshot)
        else:
            assert read(snapshot)["at"].to_pylist() == [instant, None]
        (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()


@pytest.mark.parametrize("path", ["file:///elsewhere/f", "s3://bucket/f", "../f", "%FF"])
def test_a_file_that_is_not_below_the_root_is_refused(tmp_path: Path, path: str) -> None:
    builder = TableBuilder(tmp_path)
    builder.commit([log.protocol(), log.metadata(), log.add(path)])
    with pytest.raises(RefusedError, match="not below the table's root"):
        read(builder.open().snapshot())


@pytest.mark.parametrize("kind", ["variant", "void", "geometry(OGC:CRS84)"])
def test_an_unreadable_type_is_reported(build: Build, kind: str) -> None:
    snapshot = build(pa.table({"id": [1]}), field("id", "long"), field("v", kind))
    assert read(snapshot, "id")["id"].to_pylist() == [1]
    with pytest.raises(UnsupportedFeatureError):
        read(snapshot)


@pytest.mark.conformance("TW-01")
def test_columns_with_unreadable_history_are_refused_and_others_are_not() -> None:
    odd = [{"fromType": "string", "toType": "long"}]
    schema = {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "odd", "type": "long", "metadata": {"delta.typeChanges": odd}},
        ],
    }
    for protocol, refused in ((log.features("typeWidening"), True), (log.protocol(1, 2), False)):
        table = TableBuilder()
        table.commit([protocol, log.metadata(schema=json.dumps(schema))])
        snapshot = table.open().snapshot()
        assert RowLayout.of(snapshot, ["id"], zone=UTC).schema.names == ["id"]
        if refused:
            with pytest.raises(UnsupportedFeatureError, match="from string to long"):
                RowLayout.of(snapshot, ["id", "odd"], zone=UTC)
        else:
            RowLayout.of(snapshot, ["id", "odd"], zone=UTC)
