"""Rows and columns of checkpoints as pure functions of reconciled actions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions import (
    CheckpointMetadata,
    DomainMetadata,
    Metadata,
    Protocol,
    Sidecar,
    Txn,
)
from delta_maintenance.protocol.actions.file_columns import COMMIT_VERSION, DELETION_VECTOR
from delta_maintenance.protocol.delta_log.checkpoint_rows import (
    FileActionLayout,
    UnknownFieldsError,
    kept_txns,
    select_unexpired,
    single_action_table,
    single_actions,
)
from delta_maintenance.protocol.schema import PrimitiveType

PLAIN = FileActionLayout(stats_as_json=True, statistics_type=None)


def adds(**columns: Any) -> pa.Table:
    [rows] = {len(values) for values in columns.values()}
    return pa.table({"path": [f"f{number}" for number in range(rows)]} | columns)


def values_of(rows: pa.ChunkedArray, name: str) -> list[Any]:
    return [row[name] for row in rows.to_pylist()]


# Tombstones and transactions.


def tombstones(times: list[int | None], versions: list[int] | None = None) -> pa.Table:
    columns: dict[str, Any] = {
        "path": [str(time) for time in times],
        "deletionTimestamp": pa.array(times, pa.int64()),
    }
    if versions is not None:
        columns[COMMIT_VERSION] = pa.array(versions, pa.int64())
    return pa.table(columns)


@pytest.mark.conformance("REC-07")
@given(st.lists(st.integers(-100, 100)), st.none() | st.integers(-100, 100))
def test_unexpired_tombstones_are_kept(times: list[int], instant: int | None) -> None:
    kept = select_unexpired(tombstones(list(times)), deleted_after_ms=instant, commit_times={})
    wanted = [time for time in times if instant is None or time > instant]
    assert kept["deletionTimestamp"].to_pylist() == wanted


@pytest.mark.conformance("REC-07", "FILE-10")
def test_a_tombstone_is_no_older_than_its_commit() -> None:
    rows = tombstones([None, None, None, 5, 5, 11], [1, 2, 3, 1, 2, 2])
    kept = select_unexpired(rows, deleted_after_ms=10, commit_times={1: 11, 2: 10})
    # Nothing is known about commit 3, which is only in a checkpoint.
    assert kept[COMMIT_VERSION].to_pylist() == [1, 1, 2]
    assert select_unexpired(rows, deleted_after_ms=None, commit_times={}) is rows


def test_a_tombstone_of_a_checkpoint_without_a_time_has_expired() -> None:
    assert (
        select_unexpired(tombstones([None]), deleted_after_ms=0, commit_times={0: 9}).num_rows == 0
    )
    without_column = pa.table({"path": ["a"]})
    assert select_unexpired(without_column, deleted_after_ms=0, commit_times={}).num_rows == 0


def test_transactions_without_a_time_are_kept() -> None:
    txns = [Txn(app_id=str(time), version=1, last_updated=time) for time in (None, 9, 10, 11)]
    kept = kept_txns(txns, updated_after_ms=10)
    assert [txn.last_updated for txn in kept] == [None, 11]
    assert kept_txns(txns, updated_after_ms=None) == txns


# Non-file actions.

PROTOCOL = Protocol(min_reader_version=1, min_writer_version=2)
METADATA = Metadata(id="m", schema_string="{}", partition_columns=("p",), configuration={"a": "b"})


def singles(**fields: Any) -> list[tuple[str, dict[str, Any]]]:
    return single_actions(
        **{"protocol": PROTOCOL, "metadata": METADATA, "txns": [], "domains": [], **fields}
    )


@pytest.mark.conformance("CKPT-03", "CKPT-21", "CKPT-26")
def test_every_action_is_a_row_of_its_own_column() -> None:
    actions = singles(
        txns=[Txn(app_id="a", version=1)],
        domains=[DomainMetadata(domain="d", configuration="c")],
        checkpoint_metadata=CheckpointMetadata(version=3),
        sidecars=[Sidecar(path="s", size_in_bytes=1, modification_time=2)],
    )
    table = single_action_table(actions, version_2=True)
    assert table.num_rows == 6
    for row in table.to_pylist():
        assert sum(value is not None for value in row.values()) == 1
    assert table["checkpointMetadata"].drop_null().to_pylist() == [{"version": 3, "tags": None}]
    assert table["metaData"].drop_null().to_pylist()[0]["configuration"] == [("a", "b")]
    version_1 = single_action_table(singles(), version_2=False)
    assert version_1.column_names == ["txn", "metaData", "protocol", "domainMetadata"]


@pytest.mark.conformance("CKPT-09")
@pytest.mark.parametrize("names", [None, (), ("a", "b")])
def test_feature_lists_are_null_only_where_there_are_none(names: tuple[str, ...] | None) -> None:
    protocol = Protocol(
        min_reader_version=1, min_writer_version=7, reader_features=names, writer_features=names
    )
    table = single_action_table(singles(protocol=protocol), version_2=False)
    [row] = table["protocol"].drop_null().to_pylist()
    wanted = None if names is None else list(names)
    assert (row["readerFeatures"], row["writerFeatures"]) == (wanted, wanted)


@pytest.mark.conformance("LOG-06")
def test_unknown_fields_of_other_actions_get_columns_of_their_own() -> None:
    txns = [
        Txn(app_id="a", version=1, extra={"n": 1, "when": "2024-01-01"}),
        Txn(app_id="b", version=1, extra={"n": 0.5, "deep": {"x": [1]}}),
    ]
    table = single_action_table(singles(txns=txns), version_2=False)
    a, b = table["txn"].drop_null().to_pylist()
    assert (a["n"], a["when"], a["deep"]) == (1.0, "2024-01-01", None)
    assert (b["n"], b["when"], b["deep"]) == (0.5, None, {"x": [1]})


@pytest.mark.conformance("LOG-06")
@pytest.mark.parametrize(
    "values", [[1, "x"], [{"x": 1}, 2], [2**64], [2**53 + 1, 0.5], [{}], [[{"x": {}}]]]
)
def test_unknown_fields_that_cannot_be_columns_are_refused(values: list[Any]) -> None:
    txns = [Txn(app_id=str(at), version=1, extra={"n": x}) for at, x in enumerate(values)]
    with pytest.raises(RefusedError, match="txn") as refusal:
        single_action_table(singles(txns=txns), version_2=False)
    assert refusal.value.remedy


# Files.


@pytest.mark.conformance("CKPT-07", "CKPT-08")
def test_rows_have_every_column_of_the_type_and_no_data_change() -> None:
    rows = PLAIN.adds(adds(path=["a"], dataChange=[True], size=pa.array([3], pa.int64())))
    assert rows.type == PLAIN.add_type
    [row] = rows.to_pylist()
    assert (row["path"], row["size"], row["dataChange"], row["stats"]) == ("a", 3, False, None)
    removes = PLAIN.removes(
        pa.table({"path": ["a"], "stats": ["{}"], "dataChange": [True], "size": [3]})
    )
    assert removes.type == PLAIN.remove_type
    assert {"stats", "tags"}.isdisjoint(field.name for field in removes.type)
    assert removes.to_pylist()[0]["dataChange"] is False


def test_a_batch_without_rows_has_the_same_type() -> None:
    assert PLAIN.adds(adds(path=[]).cast(pa.schema([("path", pa.string())]))).type == PLAIN.add_type


@pytest.mark.conformance("LOG-06")
def test_an_unknown_field_widens_the_layout_once() -> None:
    batch = adds(odd=[1, 2])
    with pytest.raises(UnknownFieldsError) as wider:
        PLAIN.adds(batch)
    layout = wider.value.layout
    assert values_of(layout.adds(batch), "odd") == [1, 2]
    # Rows without the field and removes fit as well.
    assert values_of(layout.adds(adds(path=["a"])), "odd") == [None]
    assert layout.remove_type == PLAIN.remove_type
    with pytest.raises(UnknownFieldsError) as again:
        layout.removes(pa.table({"path": ["a"], "odd": ["x"]}))
    assert [field.name for field in again.value.layout.unknown_remove_fields] == ["odd"]


@pytest.mark.conformance("LOG-06")
def test_types_of_an_unknown_field_are_reconciled() -> None:
    schemas = [
        pa.schema([("path", pa.string()), ("odd", kind)])
        for kind in (
            pa.struct([("n", pa.int64())]),
            pa.struct([("n", pa.float64()), ("m", pa.string())]),
        )
    ]
    layout = PLAIN
    for schema in schemas:
        layout = layout.widen(schema, pa.schema([]))
    [field] = layout.unknown_add_fields
    assert field.type == pa.struct([("n", pa.float64()), ("m", pa.string())])
    assert layout.widen(*schemas[:1], pa.schema([])) == layout
    rows = layout.adds(pa.table({"path": ["a"], "odd": [{"n": 1}]}))
    assert values_of(rows, "odd") == [{"n": 1.0, "m": None}]


@pytest.mark.conformance("LOG-06")
@pytest.mark.parametrize(
    ("known", "found"),
    [
        (pa.int64(), pa.string()),
        (pa.bool_(), pa.int64()),
        (pa.struct([("n", pa.int64())]), pa.int64()),
        (pa.list_(pa.int64()), pa.list_(pa.string())),
    ],
)
def test_types_that_cannot_be_reconciled_are_refused(
    known: pa.DataType, found: pa.DataType
) -> None:
    one, other = (pa.schema([("path", pa.string()), ("odd", kind)]) for kind in (known, found))
    layout = PLAIN.widen(one, pa.schema([]))
    with pytest.raises(RefusedError, match="unknown field"):
        layout.widen(other, pa.schema([]))


@pytest.mark.conformance("LOG-06")
@pytest.mark.parametrize(
    "values",
    [[2.0**53 - 1, 0.5], [{"x": 0.5}], [[2**60, 1]], [["text"]], [[]], [{"x": [{"y": 1.5}]}]],
)
def test_fields_whose_values_are_exact_are_carried(values: list[Any]) -> None:
    batch = adds(odd=values)
    rows = PLAIN.widen(batch.schema, pa.schema([])).adds(batch)
    assert values_of(rows, "odd") == values


@pytest.mark.conformance("LOG-06")
@pytest.mark.parametrize(
    "values", [[2.0**53, 0.5], [{"x": 2.0**60}], [[1.0, -(2.0**53)]], [{"x": [{"y": 2.0**53}]}]]
)
def test_numbers_that_may_have_been_rounded_on_reading_are_refused(values: list[Any]) -> None:
    batch = adds(odd=values)
    with pytest.raises(RefusedError, match="odd"):
        PLAIN.widen(batch.schema, pa.schema([])).adds(batch)


@pytest.mark.conformance("LOG-06")
def test_unknown_fields_of_deletion_vectors_are_kept() -> None:
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "odd": "y"}
    batch = adds(
        deletionVector=pa.array([vector], pa.struct([*DELETION_VECTOR, ("odd", pa.string())]))
    )
    with pytest.raises(UnknownFieldsError) as wider:
        PLAIN.adds(batch)
    [row] = values_of(wider.value.layout.adds(batch), "deletionVector")
    assert row == vector | {"sizeInBytes": None, "cardinality": None}


# Statistics and typed values.

STATISTICS = pa.struct(
    [
        ("numRecords", pa.int64()),
        ("minValues", pa.struct([("id", pa.int64())])),
        ("maxValues", pa.struct([("id", pa.int64())])),
        ("nullCount", pa.struct([("id", pa.int64())])),
    ]
)
JSON = '{"numRecords":2, "minValues":{"id":1},"maxValues":{"id":2},"nullCount":{"id":0}}'
PARSED = {"numRecords": 2, "minValues": {"id": 1}, "maxValues": {"id": 2}, "nullCount": {"id": 0}}


def layout(*, json: bool, struct: bool) -> FileActionLayout:
    return FileActionLayout(
        stats_as_json=json,
        statistics_type=STATISTICS if struct else None,
        columns=frozenset({"id"}),
    )


@pytest.mark.conformance("CKPT-10")
@pytest.mark.parametrize("json", [True, False])
@pytest.mark.parametrize("struct", [True, False])
def test_statistics_are_written_in_the_requested_forms(json: bool, struct: bool) -> None:
    rows = layout(json=json, struct=struct).adds(adds(stats=[JSON]))
    names = {field.name for field in rows.type}
    assert (("stats" in names), ("stats_parsed" in names)) == (json, struct)
    [row] = rows.to_pylist()
    assert row.get("stats", JSON) == JSON
    assert row.get("stats_parsed", PARSED) == PARSED


@pytest.mark.conformance("CKPT-11", "STAT-05")
def test_only_missing_forms_of_statistics_are_computed() -> None:
    batch = adds(
        stats=[JSON, None, JSON, None],
        stats_parsed=pa.array([PARSED | {"numRecords": 9}, PARSED, None, None], STATISTICS),
    )
    rows = layout(json=True, struct=True).adds(batch).to_pylist()
    assert rows[0]["stats"] == JSON
    assert rows[0]["stats_parsed"]["numRecords"] == 9
    assert rows[1]["stats"] == JSON.replace(" ", "")
    assert rows[2]["stats_parsed"] == PARSED
    assert rows[3]["stats"] is None and rows[3]["stats_parsed"] is None


@pytest.mark.conformance("CKPT-11", "STAT-06")
@pytest.mark.parametrize(
    ("text", "loses"),
    [
        ('{"numRecords":2,"minValues":{"id":1}}', False),
        ('{"numRecords":2,"minValues":{"id":"no number"}}', True),
        ('{"numRecords":2,"minValues":{"id":1.5}}', True),
        ('{"numRecords":2,"strange":{"id":1}}', True),
        # A column that the table no longer has.
        ('{"numRecords":2,"minValues":{"dropped":1}}', False),
    ],
)
def test_losing_statistics_is_refused(text: str, loses: bool) -> None:
    # With JSON statistics, nothing can be lost.
    both = layout(json=True, struct=True).adds(adds(stats=[text]))
    assert values_of(both, "stats") == [text]
    if not loses:
        layout(json=False, struct=True).adds(adds(stats=[text]))
        return
    with pytest.raises(RefusedError, match="without loss") as refusal:
        layout(json=False, struct=True).adds(adds(stats=[text]))
    assert "writeStatsAsJson" in str(refusal.value)


@pytest.mark.conformance("CKPT-12", "PART-02")
def test_typed_partition_values_are_written() -> None:
    typed = FileActionLayout(
        stats_as_json=True,
        statistics_type=STATISTICS,
        partition_types={
            "n": PrimitiveType(name="integer"),
            "d": PrimitiveType(name="date"),
            "s": PrimitiveType(name="string"),
        },
    )
    values = pa.array(
        [[("n", "0012"), ("d", "2024-01-31"), ("s", "x")], [("n", None), ("d", ""), ("s", "")]],
        pa.map_(pa.string(), pa.string()),
    )
    rows = typed.adds(adds(partitionValues=values))
    assert values_of(rows, "partitionValues") == values.to_pylist()
    first, second = values_of(rows, "partitionValues_parsed")
    assert (first["n"], str(first["d"]), first["s"]) == (12, "2024-01-31", "x")
    assert second == {"n": None, "d": None, "s": None}
