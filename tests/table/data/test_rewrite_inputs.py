"""What a rewrite carries on exactly, and what it refuses by file while the rest goes on."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import DeltaMaintenanceError, RefusedError, UnsupportedFeatureError
from delta_maintenance.protocol.actions import Metadata, Protocol
from delta_maintenance.protocol.data_files import DataFileLayout, FileNaming
from delta_maintenance.protocol.statistics import StatisticsColumns
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data.bins import Bin, RewriteSpec, RewrittenBin
from delta_maintenance.table.data.data_file_writer import DataFileSpec
from delta_maintenance.table.data.rewrite import rewrite_bin
from tests.support.hostile.encrypted_files import encrypted
from tests.support.rewrites.arrow_features import IS_24
from tests.support.rewrites.data_files import field, parquet, put, schema_string, source


def spec(
    *fields: dict[str, object],
    features: tuple[str, ...] = (),
    configuration: dict[str, str] | None = None,
    partitioned_by: tuple[str, ...] = (),
    **changes: Any,
) -> RewriteSpec:
    protocol = Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=features,
        writer_features=features,
    )
    metadata = Metadata(
        id="t",
        schema_string=schema_string(*fields),
        configuration=configuration or {},
        partition_columns=partitioned_by,
    )
    layout = DataFileLayout.of(protocol, metadata)
    statistics = StatisticsColumns.of(protocol, metadata, {})
    return RewriteSpec(
        files=DataFileSpec(layout=layout, statistics=statistics, **changes),
        naming=FileNaming.of(
            metadata.configuration, [f.name for f in layout.partition_columns.fields], layout.mode
        ),
        target_bytes=1 << 20,
    )


class Files:
    """Some data files in a store, and what a rewrite makes of them."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.sources: list[Any] = []

    def add(self, data: pa.Table | bytes, *, writing: Any = None, **facts: Any) -> None:
        if isinstance(data, pa.Table):
            facts.setdefault("rows", data.num_rows)
            data = parquet(data, **(writing or {}))
        name = f"f{len(self.sources)}"
        put(self.store, name, data)
        self.sources.append(source(name, data, **facts))

    def rewrite(self, spec: RewriteSpec, *, reason: str = "deleted-rows") -> RewrittenBin:
        reasons = ((reason,),) * len(self.sources)
        return rewrite_bin(
            self.store, Bin(number=0, sources=tuple(self.sources), reasons=reasons), spec
        )

    def output(self, done: RewrittenBin, number: int = 0) -> pq.ParquetFile:
        return pq.ParquetFile(io.BytesIO(self.store.read(done.outputs[number].name)))

    def rows(self, done: RewrittenBin) -> list[Any]:
        rows: list[Any] = self.output(done).read().to_pylist()
        return rows


@pytest.fixture
def files() -> Files:
    return Files()


def only_refusal(done: RewrittenBin) -> str:
    """Why the only source was refused; nothing was written."""
    assert not done.outputs and not done.bin.sources
    (refusal,) = done.refused
    assert refusal.source.path in refusal.problem
    assert len(refusal.problem) < 1000
    return refusal.problem


FAR = [datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, 59, 999_999, tzinfo=UTC), None]


@pytest.mark.conformance("RW-11", "RW-17", "ICE-05", "PQ-03")
def test_distant_int96_timestamps_become_microseconds(files: Files) -> None:
    stored = pa.table(
        {"t": pa.array([t and t.replace(tzinfo=None) for t in FAR], pa.timestamp("us"))}
    )
    files.add(stored, writing={"use_deprecated_int96_timestamps": True})
    done = files.rewrite(spec(field("t", "timestamp")))
    assert [row["t"] for row in files.rows(done)] == FAR
    column = files.output(done).schema.column(0)
    assert (column.physical_type, column.logical_type.type) == ("INT64", "TIMESTAMP")
    assert json.loads(column.logical_type.to_json())["isAdjustedToUTC"] is True


@pytest.mark.conformance("RW-11")
@pytest.mark.parametrize("int96", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_finer_than_microseconds_is_refused_not_cut(
    files: Files, int96: bool, nested: bool
) -> None:
    values = pa.array([1_000_001], pa.timestamp("ns"))
    inner = {"type": "struct", "fields": [field("t", "timestamp")]}
    column = field("s", inner) if nested else field("t", "timestamp")
    array = pa.StructArray.from_arrays([values], names=["t"]) if nested else values
    stored = pa.table({column["name"]: array})
    files.add(stored, writing={"use_deprecated_int96_timestamps": int96, "store_schema": False})
    done = files.rewrite(spec(column))
    assert "finer than microseconds" in only_refusal(done)
    assert not any(refusal.damaged for refusal in done.refused)


def test_milliseconds_out_of_the_range_of_microseconds_are_refused(files: Files) -> None:
    files.add(pa.table({"t": pa.array([1 << 62], pa.timestamp("ms"))}))
    done = files.rewrite(spec(field("t", "timestamp")))
    assert "out of their range" in only_refusal(done) and not done.refused[0].damaged


def test_nested_int96_finer_than_microseconds_is_refused(files: Files) -> None:
    kind = pa.list_(pa.struct([("t", pa.timestamp("ns"))]))
    stored = pa.table({"l": pa.array([[{"t": 1_000_001}]], kind)})
    files.add(stored, writing={"use_deprecated_int96_timestamps": True, "store_schema": False})
    inner = {"type": "struct", "fields": [field("t", "timestamp")]}
    array = {"type": "array", "elementType": inner, "containsNull": True}
    assert "finer than microseconds" in only_refusal(files.rewrite(spec(field("l", array))))


@pytest.mark.conformance("RW-12")
@pytest.mark.parametrize(
    ("kind", "value"),
    [("date", date(1582, 10, 14)), ("timestamp", datetime(1899, 12, 31, tzinfo=UTC))],
)
def test_early_days_of_an_old_spark_are_refused(files: Files, kind: str, value: Any) -> None:
    table = pa.table({"d": [value]}).replace_schema_metadata({"org.apache.spark.version": "2.4.8"})
    files.add(table)
    assert "Julian" in only_refusal(files.rewrite(spec(field("d", kind))))


@pytest.mark.conformance("RW-12")
def test_early_days_of_today_say_which_calendar_they_are_of(files: Files) -> None:
    key = b"org.apache.spark.version"
    late = date(1582, 10, 15)
    for first, said in ((date(1582, 10, 14), b"3.1.0"), (late, None)):
        one = Files()
        nested = pa.array([[first], None], pa.list_(pa.date32()))
        one.add(pa.table({"l": nested, "d": [late, None]}))
        array = {"type": "array", "elementType": "date", "containsNull": True}
        done = one.rewrite(spec(field("l", array), field("d", "date")))
        assert (one.output(done).metadata.metadata or {}).get(key) == said
    del files


@pytest.mark.conformance("RW-15", "SCHEMA-10")
def test_variants_are_carried_and_shredded_ones_refused(files: Files) -> None:
    plain = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    rows = [{"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}, None]
    files.add(pa.table({"v": pa.array(rows, plain)}))
    wanted = spec(field("v", "variant"), features=("variantType",))
    done = files.rewrite(wanted)
    assert files.rows(done) == [{"v": row} for row in rows]
    names = [files.output(done).schema.column(at).path for at in range(2)]
    assert names == ["v.metadata", "v.value"]
    assert files.output(done).schema.column(0).max_definition_level == 1
    assert json.loads(done.outputs[0].stats)["nullCount"] == {"v": 1}

    shredded = pa.struct([*plain, ("typed_value", pa.int64())])
    other = Files()
    other.add(pa.table({"v": pa.array([rows[0] | {"typed_value": 1}], shredded)}))
    assert "shredded" in only_refusal(other.rewrite(wanted))


@pytest.mark.conformance("SCHEMA-05", "SCHEMA-06", "RW-16")
def test_void_columns_are_in_no_data_file(files: Files) -> None:
    inner = {"type": "struct", "fields": [field("v", "void"), field("x", "long")]}
    files.add(pa.table({"a": [1], "s": pa.array([{"x": 5}])}))
    done = files.rewrite(spec(field("a", "long"), field("n", "void"), field("s", inner)))
    assert files.rows(done) == [{"a": 1, "s": {"x": 5}}]
    for kind in (
        {"type": "array", "elementType": "void", "containsNull": True},
        {"type": "map", "keyType": "string", "valueType": "void", "valueContainsNull": True},
        {"type": "struct", "fields": [field("v", "void")]},
    ):
        with pytest.raises(RefusedError):
            spec(field("a", "long"), field("b", kind))
    with pytest.raises(RefusedError):
        spec(field("n", "void"))


@pytest.mark.conformance("RW-15", "RW-03", "SCHEMA-02")
@pytest.mark.parametrize("kind", ["geometry(OGC:CRS84)", "interval day to second"])
def test_unknown_types_refuse_the_table(kind: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="cannot be rewritten"):
        spec(field("a", "long"), field("g", kind))


@pytest.mark.conformance("RW-10", "TW-02", "SCHEMA-08")
def test_narrow_types_are_widened_only_where_the_table_has_the_feature(files: Files) -> None:
    files.add(
        pa.table(
            {
                "a": pa.array([1], pa.int32()),
                "d": pa.array([Decimal("1.5")], pa.decimal128(3, 1)),
                "t": pa.array([date(2024, 2, 29)]),
                "f": pa.array([0.5], pa.float32()),
            }
        )
    )
    fields = (
        field("a", "long"),
        field("d", "decimal(6,2)"),
        field("t", "timestamp_ntz"),
        field("f", "double"),
    )
    done = files.rewrite(spec(*fields, features=("typeWidening", "timestampNtz")))
    assert files.rows(done) == [
        {"a": 1, "d": Decimal("1.50"), "t": datetime(2024, 2, 29), "f": 0.5}
    ]
    assert "typeWidening" in only_refusal(files.rewrite(spec(*fields, features=("timestampNtz",))))


@pytest.mark.conformance("RW-10")
@pytest.mark.conformance("RW-10")
def test_a_double_is_not_cut_to_a_float(files: Files) -> None:
    files.add(pa.table({"a": pa.array([0.1, 1.0])}))
    done = files.rewrite(spec(field("a", "float"), features=("typeWidening",)))
    assert [refusal.problem.count("double") for refusal in done.refused] == [1]


def test_bytes_and_shorts_need_no_feature(files: Files) -> None:
    stored = {"a": pa.array([7], pa.int32()), "b": pa.array([-3], pa.int8())}
    files.add(pa.table(stored))
    done = files.rewrite(spec(field("a", "byte"), field("b", "integer")))
    assert files.rows(done) == [{"a": 7, "b": -3}]


def test_a_value_that_its_type_cannot_hold_is_refused(files: Files) -> None:
    files.add(pa.table({"a": pa.array([300], pa.int32())}))
    assert "column a" in only_refusal(files.rewrite(spec(field("a", "byte"))))


def test_files_of_writers_with_other_layouts_in_memory_are_carried_on(files: Files) -> None:
    """Arrow returns the layouts that the writer had, such as the views of `deltalake`."""
    of_text, words = pa.array(["a" * 20, None, "b"]), [["a"], None, []]
    plain = pa.table({"s": of_text, "l": pa.array(words, pa.list_(pa.string()))})
    views = pa.table(
        {
            "s": of_text.cast(pa.string_view()),
            "l": pa.array(words, (pa.list_ if IS_24 else pa.list_view)(pa.string_view())),
        }
    )
    for rows in (views, plain, views):
        files.add(rows, deleted=[2])
    kind = {"type": "array", "elementType": "string", "containsNull": True}
    done = files.rewrite(spec(field("s", "string"), field("l", kind)))
    assert not done.refused
    assert files.rows(done) == [{"s": "a" * 20, "l": ["a"]}, {"s": None, "l": None}] * 3


@pytest.mark.conformance("RW-13")
def test_text_that_is_not_utf8_is_unchanged_and_bounds_nothing(files: Files) -> None:
    raw = pa.array([b"\xff\xfe", b"ok"])
    for stored in (raw, raw.view(pa.string())):
        one = Files()
        one.add(pa.table({"s": stored, "a": [1, 2]}), writing={"store_schema": False})
        done = one.rewrite(spec(field("s", "string"), field("a", "long")))
        found = one.output(done).read()["s"].cast(pa.binary())
        assert found.to_pylist() == [b"\xff\xfe", b"ok"]
        stats = json.loads(done.outputs[0].stats)
        assert "maxValues" not in stats and stats["minValues"] == {"s": "ok", "a": 1}
    del files


@pytest.mark.conformance("RW-08", "CM-04", "CM-05", "RW-16")
@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_are_found_at_every_level_and_keep_names_and_ids(
    files: Files, mode: str
) -> None:
    def mapped(name: str, kind: object, number: int) -> dict[str, object]:
        physical = {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": f"p{number}",
        }
        return field(name, kind, **physical)

    def with_id(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})

    inner = {"type": "struct", "fields": [mapped("x", "long", 3), mapped("new", "string", 4)]}
    array = {"type": "array", "elementType": inner, "containsNull": True}
    fields = (mapped("renamed", "long", 1), mapped("l", array, 2))
    # By id the names in the file mean nothing, by name the ids do not.
    names = {1: "p1", 2: "p2", 3: "p3", 9: "p9"} if mode == "name" else dict.fromkeys(range(10), "")
    struct = pa.struct([with_id(names[3] or "q", pa.int64(), 3), with_id("gone", pa.int64(), 9)])
    schema = pa.schema(
        [with_id(names[2] or "r", pa.list_(struct), 2), with_id(names[1] or "s", pa.int64(), 1)]
    )
    rows = [[{struct[0].name: 5, "gone": 6}, None], None]
    files.add(pa.table([pa.array(rows, pa.list_(struct)), pa.array([1, 2])], schema=schema))
    done = files.rewrite(
        spec(*fields, features=("columnMapping",), configuration={"delta.columnMapping.mode": mode})
    )
    assert files.rows(done) == [
        {"p1": 1, "p2": [{"p3": 5, "p4": None}, None]},
        {"p1": 2, "p2": None},
    ]
    text = str(files.output(done).schema)
    for expected in ("int64 field_id=1 p1", "field_id=2 p2", "field_id=3 p3", "field_id=4 p4"):
        assert expected in text
    # Files of tables with mapping are spread: the names of columns may change.
    assert len(done.outputs[0].name.split("/")[0]) == 2
    assert json.loads(done.outputs[0].stats)["minValues"] == {"p1": 1}


@pytest.mark.conformance("CM-06")
def test_by_id_a_file_without_ids_is_refused(files: Files) -> None:
    files.add(pa.table({"p1": [1]}))
    mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "p1"}
    by_id = spec(
        field("a", "long", **mapped),
        features=("columnMapping",),
        configuration={"delta.columnMapping.mode": "id"},
    )
    assert "no column IDs" in only_refusal(files.rewrite(by_id))


@pytest.mark.conformance("RW-13")
def test_case_is_folded_only_where_one_column_is_meant(files: Files) -> None:
    files.add(pa.table({"A": [1]}))
    assert files.rows(files.rewrite(spec(field("a", "long")))) == [{"a": 1}]
    other = Files()
    other.add(pa.table({"other": [1]}))
    other.add(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["AB", "Ab"]))
    done = other.rewrite(spec(field("ab", "long")))
    (refusal,) = done.refused
    assert "2 times" in refusal.problem
    assert other.rows(done) == [{"ab": None}]


@pytest.mark.conformance("RW-13", "RW-15")
@pytest.mark.parametrize(
    "what", ["gone", "cut", "not Parquet", "more rows", "encrypted footer", "encrypted column"]
)
def test_a_bad_file_is_named_and_the_others_are_done(files: Files, what: str) -> None:
    good = pa.table({"a": [1, 2]})
    files.add(good)
    data = parquet(pa.table({"a": range(1000)}))
    bad = {
        "gone": data,
        "cut": data[: len(data) // 2],
        "not Parquet": b"x" * 100,
        "more rows": data,
        "encrypted footer": encrypted(pa.table({"a": range(1000)}), "a", footer=True),
        "encrypted column": encrypted(pa.table({"a": range(1000)}), "a", footer=False),
    }[what]
    files.add(bad, rows=999 if what == "more rows" else 1000)
    files.add(good)
    if what == "gone":
        files.store.delete("f1")
    done = files.rewrite(spec(field("a", "long")))
    (refusal,) = done.refused
    assert refusal.source.path == "f1" and "f1" in refusal.problem
    assert refusal.damaged != ("encrypted" in what)
    assert ("restore" in refusal.problem) == (what in ("cut", "not Parquet", "more rows"))
    assert [row["a"] for row in files.rows(done)] == [1, 2, 1, 2]
    assert [run.source for run in done.runs] == [0, 1]


def test_a_small_file_alone_is_not_worth_writing(files: Files) -> None:
    files.add(pa.table({"a": [1]}))
    files.add(b"damaged", rows=1)
    done = files.rewrite(spec(field("a", "long")), reason="small")
    assert not done.outputs and not done.bin.sources and len(done.refused) == 1


@pytest.mark.conformance("RW-18")
def test_a_bin_of_deleted_rows_alone_has_no_output(files: Files) -> None:
    files.add(pa.table({"a": [1, 2]}), deleted=[0, 1])
    done = files.rewrite(spec(field("a", "long"), features=("deletionVectors",)))
    assert len(done.bin.sources) == 1 and not done.outputs
    assert [file for file in files.store.list_from("") if file.path.startswith("part-")] == []


@pytest.mark.conformance("RW-09", "DV-10")
def test_a_vector_beyond_the_file_or_of_another_cardinality_is_refused(files: Files) -> None:
    files.add(pa.table({"a": [1, 2]}), deleted=[2])
    assert "row 2 of 2" in only_refusal(files.rewrite(spec(field("a", "long"))))


@pytest.mark.conformance("RW-17", "PQ-01", "PQ-02")
@pytest.mark.parametrize("page", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["zstd", "snappy", "none"])
def test_codec_pages_and_decimals_are_as_requested(files: Files, codec: str, page: str) -> None:
    values = [Decimal("1.25"), None]
    files.add(
        pa.table(
            {
                "s": pa.array(values, pa.decimal128(9, 2)),
                "m": pa.array(values, pa.decimal128(18, 2)),
                "l": pa.array(values, pa.decimal128(38, 2)),
            }
        )
    )
    decimals = [field(n, f"decimal({p},2)") for n, p in (("s", 9), ("m", 18), ("l", 38))]
    done = files.rewrite(spec(*decimals, codec=codec, page_version=page))
    output = files.output(done)
    assert [output.schema.column(at).physical_type for at in range(3)] == [
        "INT32",
        "INT64",
        "FIXED_LEN_BYTE_ARRAY",
    ]
    chunk = output.metadata.row_group(0).column(0)
    assert chunk.compression == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
    assert done.outputs[0].name.endswith(".parquet")
    assert ("zstd" in done.outputs[0].name) == (codec == "zstd")
    assert b"ARROW:schema" not in (output.metadata.metadata or {})


@pytest.mark.conformance("ICE-02", "CM-10", "RW-16")
def test_iceberg_readers_get_partition_columns_and_ids_of_elements(files: Files) -> None:
    nested = {"p1.element": 7}
    mapped = [
        field(
            "l",
            {"type": "array", "elementType": "long", "containsNull": True},
            **{
                "delta.columnMapping.id": 1,
                "delta.columnMapping.physicalName": "p1",
                "delta.columnMapping.nested.ids": nested,
            },
        ),
        field(
            "d", "date", **{"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "p2"}
        ),
    ]
    wanted = spec(
        *mapped,
        features=("columnMapping", "icebergCompatV2"),
        configuration={"delta.columnMapping.mode": "name", "delta.enableIcebergCompatV2": "true"},
        partitioned_by=("d",),
    )
    files.add(pa.table({"p1": [[1], None]}), partition={"p2": "2024-02-29"})
    done = files.rewrite(wanted)
    assert files.rows(done) == [
        {"p1": [1], "p2": date(2024, 2, 29)},
        {"p1": None, "p2": date(2024, 2, 29)},
    ]
    text = str(files.output(done).schema)
    assert "field_id=7 element" in text and "field_id=2 p2" in text


@pytest.mark.conformance("RW-02")
def test_files_of_two_partitions_are_never_merged(files: Files) -> None:
    files.add(pa.table({"a": [1]}), partition={"p": "1"})
    files.add(pa.table({"a": [1]}), partition={"p": "01"})
    with pytest.raises(DeltaMaintenanceError, match="different partitions"):
        files.rewrite(spec(field("a", "long"), field("p", "integer"), partitioned_by=("p",)))


@pytest.mark.conformance("RW-19", "FILE-15", "PART-08")
def test_partitions_have_folders_as_hive_escapes_them(files: Files) -> None:
    files.add(pa.table({"a": [1]}), partition={"p": "a b:c/%ü", "n": None})
    wanted = spec(
        field("a", "long"), field("p", "string"), field("n", "long"), partitioned_by=("p", "n")
    )
    done = files.rewrite(wanted)
    (name,) = [output.name for output in done.outputs]
    assert name.startswith("p=a b%3Ac%2F%25ü/n=__HIVE_DEFAULT_PARTITION__/part-00000-")
    assert done.paths[0].startswith("p=a%20b%253Ac%252F%2525%C3%BC/n=__HIVE_DEFAULT_PARTITION__/")
