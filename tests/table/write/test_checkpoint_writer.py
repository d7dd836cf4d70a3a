"""The files of a checkpoint as Parquet sees them, and the proof that no damage is published."""

from __future__ import annotations

import io
import re
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.delta_log import Tally
from delta_maintenance.table.write import checkpoint_spec, checkpoint_writer
from delta_maintenance.table.write.checkpoint_spec import ParquetStyle
from tests.support.logs.checkpointing import (
    KEEP_TOMBSTONES,
    LOG,
    SHAPES,
    SIDECARS,
    V2_KINDS,
    files_of,
    only,
    state_of,
    write,
)
from tests.support.tables.actions import (
    Action,
    add,
    deletion_vector,
    domain,
    features,
    metadata,
    protocol,
    remove,
    txn,
)
from tests.support.tables.table_builder import TableBuilder

SUPPORTED = features("v2Checkpoint", "deletionVectors")


def table_of(*actions: Action, configuration: dict[str, str] | None = None) -> TableBuilder:
    table = TableBuilder()
    settings = metadata(configuration=KEEP_TOMBSTONES | (configuration or {}))
    table.commit([SUPPORTED, settings, *actions])
    return table


def written(table: TableBuilder, kind: str, per_sidecar: int = 50_000) -> dict[str, pq.ParquetFile]:
    """The Parquet files of a new checkpoint, the top-level one last."""
    before = files_of(table.store)
    write(table.open(), kind, per_sidecar)
    after = files_of(table.store)
    new = sorted(after.keys() - before.keys(), key=lambda path: not path.startswith(SIDECARS))
    return {
        path: pq.ParquetFile(io.BytesIO(after[path])) for path in new if path.endswith(".parquet")
    }


MAP = "map<string, string>"
VECTOR = (
    "struct<storageType: string, pathOrInlineDv: string, offset: int32, sizeInBytes: int32, "
    "cardinality: int64>"
)
ADD = {
    "path": "string",
    "partitionValues": MAP,
    "size": "int64",
    "modificationTime": "int64",
    "dataChange": "bool",
    "tags": MAP,
    "deletionVector": VECTOR,
    "baseRowId": "int64",
    "defaultRowCommitVersion": "int64",
    "clusteringProvider": "string",
    "stats": "string",
}
REMOVE = {
    "path": "string",
    "deletionTimestamp": "int64",
    "dataChange": "bool",
    "extendedFileMetadata": "bool",
    "partitionValues": MAP,
    "size": "int64",
    "deletionVector": VECTOR,
    "baseRowId": "int64",
    "defaultRowCommitVersion": "int64",
}
OTHERS = {
    "txn": {"appId": "string", "version": "int64", "lastUpdated": "int64"},
    "metaData": {
        "id": "string",
        "name": "string",
        "description": "string",
        "format": f"struct<provider: string, options: {MAP}>",
        "schemaString": "string",
        "partitionColumns": "list<element: string>",
        "configuration": MAP,
        "createdTime": "int64",
    },
    "protocol": {
        "minReaderVersion": "int32",
        "minWriterVersion": "int32",
        "readerFeatures": "list<element: string>",
        "writerFeatures": "list<element: string>",
    },
    "domainMetadata": {"domain": "string", "configuration": "string", "removed": "bool"},
}
V2_ONLY = {
    "checkpointMetadata": {"version": "int64", "tags": MAP},
    "sidecar": {"path": "string", "sizeInBytes": "int64", "modificationTime": "int64", "tags": MAP},
}
FILES = {"add": ADD, "remove": REMOVE}


def described(schema: pa.Schema) -> dict[str, dict[str, str]]:
    return {
        column.name: {
            field.name: re.sub(r" \('\w+'\)", "", str(field.type)) for field in column.type
        }
        for column in schema
    }


@pytest.mark.conformance(
    "CKPT-03", "CKPT-04", "CKPT-06", "CKPT-07", "CKPT-08", "CKPT-22", "CKPT-26", "PQ-03"
)
@pytest.mark.parametrize("kind", ["classic", *V2_KINDS])
@pytest.mark.parametrize("per_sidecar", [0, 2])
def test_each_kind_has_exactly_the_columns_of_the_protocol(kind: str, per_sidecar: int) -> None:
    table = table_of(
        add("a", dv=deletion_vector(maxRowIndex=3), stats="{}", tags={"t": ""}),
        remove("b", stats="{}", tags={"t": ""}),
        txn("app", 1),
    )
    files = written(table, kind, per_sidecar)
    schemas = {path: described(file.schema_arrow) for path, file in files.items()}
    sidecars = {path for path in schemas if path.startswith(SIDECARS)}
    assert all(schemas[path] == FILES for path in sidecars)
    tops = [schema for path, schema in schemas.items() if path not in sidecars]
    expected = FILES | OTHERS | (V2_ONLY if kind != "classic" else {})
    assert tops == ([] if kind == "v2-json" else [expected])
    # One for live files, one for tombstones.
    assert len(sidecars) == (2 if per_sidecar and kind != "classic" else 0)


@pytest.mark.conformance("CKPT-06")
def test_every_column_and_field_may_be_null_and_lists_have_three_levels() -> None:
    [file] = written(table_of(add("a")), "v2-parquet", 0).values()
    for column in file.schema_arrow:
        assert column.nullable
        assert all(field.nullable for field in column.type)
    text = str(file.schema).replace(" field_id=-1", "")
    assert "optional group readerFeatures (List)" in text
    assert "repeated group list" in text and "repeated group key_value" in text
    assert "required binary key (String)" in text


@pytest.mark.conformance("CKPT-06", "CKPT-03")
@pytest.mark.parametrize(("kind", "per_sidecar"), SHAPES)
def test_a_row_has_one_action_and_a_row_group_one_type_of_action(
    kind: str, per_sidecar: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_spec, "_ROW_GROUP_ROWS", 2)
    files = [add(f"f{number}") for number in range(5)] + [remove(f"r{number}") for number in (1, 2)]
    table = table_of(*files, txn("app", 1), domain("d", "x"))
    for path, file in written(table, kind, per_sidecar).items():
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group)
            sorts = set()
            for row in rows.to_pylist():
                [sort] = (name for name, value in row.items() if value is not None)
                sorts.add(sort if sort in ("add", "remove") else "other")
            assert len(sorts) == 1, path
            assert "other" in sorts or rows.num_rows <= 2


@pytest.mark.conformance("CKPT-09")
@pytest.mark.parametrize(
    ("action", "lists"),
    [
        (protocol(1, 2), (None, None)),
        (protocol(1, 7, writer_features=[]), (None, [])),
        (features("v2Checkpoint", writer_only=["appendOnly"]), (1, 2)),
    ],
)
def test_feature_lists_are_null_or_empty_or_filled(action: Action, lists: Any) -> None:
    table = TableBuilder()
    table.commit([action, metadata(), add("a")])
    [file] = written(table, "classic").values()
    rows = file.read(columns=["protocol"]).column(0).drop_null().to_pylist()
    found = tuple(
        value if not value else len(value)
        for value in (rows[0]["readerFeatures"], rows[0]["writerFeatures"])
    )
    assert found == lists and len(rows) == 1


# Encoding.


@pytest.mark.conformance("PQ-01")
@pytest.mark.parametrize(
    ("codec", "found"),
    [
        (None, "ZSTD"),
        ("zstd", "ZSTD"),
        ("ZSTD", "ZSTD"),
        (" Snappy ", "SNAPPY"),
        ("gzip", "GZIP"),
        ("brotli", "BROTLI"),
        ("lz4", "LZ4"),
        ("lz4_raw", "LZ4"),
        ("none", "UNCOMPRESSED"),
        ("uncompressed", "UNCOMPRESSED"),
    ],
)
@pytest.mark.parametrize("kind", ["classic", "v2-json"])
def test_the_codec_is_the_one_of_the_table(codec: str | None, found: str, kind: str) -> None:
    setting = {"delta.parquet.compression.codec": codec} if codec else {}
    table = table_of(add("a"), configuration=setting)
    [file] = written(table, kind).values()
    codecs = {
        file.metadata.row_group(group).column(column).compression
        for group in range(file.num_row_groups)
        for column in range(file.metadata.num_columns)
    }
    assert codecs == {found}
    assert table.open().snapshot().counts.num_files == 1


@pytest.mark.conformance("PQ-01", "PQ-02")
@pytest.mark.parametrize(
    "setting",
    [
        {"delta.parquet.compression.codec": "lzo"},
        {"delta.parquet.format.version": "1.1.0"},
        {"delta.parquet.format.version": "3.0.0"},
        {"delta.parquet.format.version": "two"},
    ],
)
def test_an_encoding_that_the_protocol_does_not_list_is_refused(setting: dict[str, str]) -> None:
    table = table_of(add("a"), configuration=setting)
    before = files_of(table.store)
    [(name, value)] = setting.items()
    with pytest.raises(RefusedError) as refusal:
        write(table.open())
    assert name in str(refusal.value) and repr(value) in str(refusal.value)
    assert files_of(table.store) == before


@pytest.mark.conformance("PQ-02")
@pytest.mark.parametrize(
    ("version", "pages"), [(None, "1.0"), ("1.0.0", "1.0"), ("2.0.0", "2.0"), ("2.12.0", "2.0")]
)
def test_the_page_format_is_the_one_of_the_table(version: str | None, pages: str) -> None:
    assert ParquetStyle.of_table(None, version).page_version == pages
    setting = {"delta.parquet.format.version": version} if version else {}
    table = table_of(*(add(f"f{n}") for n in range(9)), configuration=setting)
    write(table.open())
    data = table.read("00000000000000000000.checkpoint.parquet")
    assert first_page_type(data) == {"1.0": 0, "2.0": 3}[pages]
    assert table.open().snapshot().counts.num_files == 9


def first_page_type(data: bytes) -> int:
    """The type of the first data page of `add.path` from its header: 0 for V1 and 3 for V2.

    The header is a Thrift struct in compact form, whose first field is the type as a zigzag number.
    """
    footer = pq.ParquetFile(io.BytesIO(data)).metadata
    columns = (footer.row_group(0).column(index) for index in range(footer.num_columns))
    [paths] = (column for column in columns if column.path_in_schema == "add.path")
    at = paths.data_page_offset
    assert data[at] == 0x15
    return data[at + 1] >> 1


def test_tallies_do_not_depend_on_the_order_of_files() -> None:
    adds = pa.table({"path": ["a", "b", "c"], "size": pa.array([1, 2, None], pa.int64())})
    none = adds.slice(0, 0)
    one, other = Tally(), Tally()
    one.include(adds, none)
    for at in (2, 0, 1):
        part = Tally()
        part.include(adds.slice(at, 1), none)
        other.add(part)
    assert one == other and (one.adds, one.size) == (3, 3)
    removed = Tally()
    removed.include(none, adds)
    assert removed.keys != one.keys and removed.size == 0


def test_a_json_checkpoint_without_sidecars_has_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writer, "_INLINE_JSON_ACTIONS", 3)
    table = table_of(add("a"), add("b"), remove("c"))
    assert write(table.open(), "v2-json", 0).num_files == 2
    table.commit([add("d")])
    before = files_of(table.store)
    with pytest.raises(RefusedError, match="v2-parquet"):
        write(table.open(), "v2-json", 0)
    assert files_of(table.store) == before


def test_sidecars_are_filled_to_their_size_across_batches() -> None:
    table = table_of(*(add(f"a{number}") for number in range(5)))
    table.checkpoint()
    table.commit([add("b"), remove("a0"), remove("c")])
    files = written(table, "v2-parquet", 3)
    rows = [file.metadata.num_rows for path, file in files.items() if path.startswith(SIDECARS)]
    assert sorted(rows) == [2, 2, 3]
    top = next(path for path in files if not path.startswith(SIDECARS))
    assert top.startswith(f"{LOG}/00000000000000000001.checkpoint.")
    state = state_of(only(table.store, top, 1).snapshot())
    assert (len(state.live), len(state.tombstones)) == (5, 2)


def test_row_groups_have_no_bounds_of_floating_point_statistics() -> None:
    """Arrow would leave out NaN, and kernels skip row groups by the bounds of `stats_parsed`."""
    schema = (
        '{"type":"struct","fields":['
        + ",".join(
            f'{{"name":"{name}","type":"{kind}","nullable":true,"metadata":{{}}}}'
            for name, kind in (("x", "double"), ("n", "long"))
        )
        + "]}"
    )
    table = TableBuilder()
    settings = {"delta.checkpoint.writeStatsAsStruct": "true"}
    table.commit(
        [
            SUPPORTED,
            metadata(schema=schema, configuration=settings),
            add("a", stats='{"numRecords":1,"maxValues":{"x":1.5,"n":1}}'),
            add("b", stats='{"numRecords":1,"maxValues":{"x":"NaN","n":2}}'),
        ]
    )
    [file] = written(table, "classic").values()
    greatest = file.read()["add"].combine_chunks().field("stats_parsed").field("maxValues")
    assert "nan" in repr(greatest.field("x").to_pylist())
    bounds = {}
    for at in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(at)
        for leaf in range(group.num_columns):
            chunk = group.column(leaf)
            found = chunk.statistics
            if found is not None and found.has_min_max:
                bounds[chunk.path_in_schema] = found.max
    assert bounds["add.stats_parsed.maxValues.n"] == 2
    assert "add.stats_parsed.maxValues.x" not in bounds
