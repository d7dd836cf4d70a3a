"""Columns of checkpoints in unusual order, type and number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_maintenance.protocol.actions.file_columns import STATISTICS
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from tests.properties.model import state_of
from tests.support.logs.checkpointed_logs import (
    CLASSIC,
    busy,
    check_falls_back,
    expected,
    leave_only_the_checkpoint,
)
from tests.support.tables.actions import (
    OMIT,
    Action,
    add,
    commit_info,
    deletion_vector,
    features,
    metadata,
    protocol,
    remove,
)
from tests.support.tables.table_builder import LOG, TableBuilder, log_table
from tests.table.failures import fails


def _without(column: str, *children: str) -> Callable[[pa.Table], pa.Table]:
    def reshape(table: pa.Table) -> pa.Table:
        array = table[column].combine_chunks()
        kept = [field for field in array.type if field.name not in children]
        return _replaced(table, column, [(f.name, pc.struct_field(array, f.name)) for f in kept])

    return reshape


def _cast(column: str, child: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    def reshape(table: pa.Table) -> pa.Table:
        array = table[column].combine_chunks()
        return _replaced(
            table,
            column,
            [
                (f.name, pc.struct_field(array, f.name).cast(kind if f.name == child else f.type))
                for f in array.type
            ],
        )

    return reshape


def _replaced(table: pa.Table, column: str, children: list[tuple[str, pa.Array]]) -> pa.Table:
    array = table[column].combine_chunks()
    fields = [pa.field(name, child.type) for name, child in children]
    made = pa.StructArray.from_arrays(
        [child for _, child in children], fields=fields, mask=pc.is_null(array)
    )
    return table.set_column(table.column_names.index(column), column, made)


def _with_child(column: str, name: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    def reshape(table: pa.Table) -> pa.Table:
        array = table[column].combine_chunks()
        children = [(f.name, pc.struct_field(array, f.name)) for f in array.type]
        made = value if isinstance(value, pa.Array) else pa.array([value] * len(array))
        return _replaced(table, column, [(name, made), *children])

    return reshape


LARGE_MAP = pa.map_(pa.large_string(), pa.large_string())
SAME_STATE: dict[str, Callable[[pa.Table], pa.Table]] = {
    "columns in another order": lambda table: table.select(list(reversed(table.column_names))),
    "an unknown column": lambda table: table.append_column(
        "shiny", pa.array([{"x": 1}] * table.num_rows)
    ),
    "a commitInfo column": lambda table: table.append_column(
        "commitInfo", pa.array([{"operation": "LIE"}] * table.num_rows)
    ),
    "a cdc column": lambda table: table.append_column(
        "cdc", pa.array([{"path": "cdc"}] * table.num_rows)
    ),
    "an empty draft mark": lambda table: table.append_column(
        "rowIdHighWaterMark",
        pa.array([{"value": None}] * table.num_rows, pa.struct([("value", pa.int64())])),
    ),
    "no domain column where there is none": lambda table: table,
    "large strings": _cast("add", "path", pa.large_string()),
    "binary strings": _cast("add", "path", pa.binary()),
    "large strings elsewhere": _cast("txn", "appId", pa.large_string()),
    "large maps": _cast("add", "partitionValues", LARGE_MAP),
    "a narrow size": _cast("add", "size", pa.int32()),
    "a wide version": _cast("protocol", "minReaderVersion", pa.int64()),
    "a narrow time": _cast("remove", "deletionTimestamp", pa.int32()),
    "remove.stats and remove.tags": lambda table: _with_child("remove", "tags", "t")(
        _with_child("remove", "stats", "{}")(table)
    ),
    "numbers as text": _cast("add", "size", pa.string()),
}


@pytest.mark.conformance("CKPT-04", "CKPT-06", "CKPT-08")
@pytest.mark.parametrize("shape", SAME_STATE)
def test_columns_may_have_any_order_width_and_neighbours(shape: str) -> None:
    table = busy()
    table.checkpoint(4, reshape=SAME_STATE[shape])
    leave_only_the_checkpoint(table)
    plain = busy().open().snapshot()

    snapshot = table.open().snapshot()

    for view in ("live_files", "tombstones"):
        assert _sorted(getattr(snapshot, view)()) == _sorted(getattr(plain, view)())
    assert snapshot.counts == plain.counts
    assert (snapshot.txns, snapshot.domain_metadata) == (plain.txns, plain.domain_metadata)
    assert snapshot.log.state.draft_high_water_mark is None
    assert snapshot.protocol == plain.protocol
    assert snapshot.metadata == plain.metadata


def _sorted(files: pa.Table) -> list[Action]:
    rows: list[Action] = files.to_pylist()
    return sorted(rows, key=lambda row: (row["path"], row["dv"] or ""))


@pytest.mark.conformance("CKPT-06", "FILE-11")
@pytest.mark.parametrize("column", ["add", "remove"])
def test_every_child_column_but_the_path_may_be_missing(column: str) -> None:
    children = [field.name for field in log_table([]).schema.field(column).type]
    for lacking in [*([child] for child in children if child != "path"), children[1:]]:
        table = busy()
        table.checkpoint(4, reshape=_without(column, *lacking))
        snapshot = table.open().snapshot()
        assert snapshot.log.checkpoint is not None
        paths = {path for path, _ in expected(table).live}
        if "deletionVector" not in lacking:
            assert set(snapshot.live_files()["path"].to_pylist()) == paths
        assert snapshot.tombstones().num_rows
        assert snapshot.counts.num_files
        assert list(snapshot.log.scan())


@pytest.mark.conformance("CKPT-06")
@pytest.mark.parametrize("column", ["txn", "domainMetadata"])
def test_a_column_of_an_action_that_never_occurs_may_be_missing(column: str) -> None:
    table = TableBuilder()
    table.commit([protocol(), metadata(), add("a")])
    table.checkpoint(0, reshape=lambda rows: rows.drop_columns([column]))
    snapshot = table.open().snapshot()
    assert snapshot.log.checkpoint is not None
    assert (snapshot.txns, snapshot.domain_metadata) == ({}, {})
    assert snapshot.live_files()["path"].to_pylist() == ["a"]


def _with_null_paths(table: pa.Table) -> pa.Table:
    return _with_child("add", "path", pa.nulls(table.num_rows, pa.string()))(
        _without("add", "path")(table)
    )


def _with_adds_of_text(table: pa.Table) -> pa.Table:
    at = table.column_names.index("add")
    return table.set_column(at, "add", pa.array(["x"] * table.num_rows))


def _with_statistics_as_structs(table: pa.Table) -> pa.Table:
    return _with_child("add", "stats", {"numRecords": 1})(_without("add", "stats")(table))


def _with_broken_text(column: str, child: str) -> Callable[[pa.Table], pa.Table]:
    def reshape(table: pa.Table) -> pa.Table:
        texts = pc.struct_field(table[column].combine_chunks(), child)
        _, offsets, _ = texts.fill_null("").buffers()
        size = sum(len(text or "") for text in texts.to_pylist())
        broken = pa.StringArray.from_buffers(len(texts), offsets, pa.py_buffer(b"\xff" * size))
        return _with_child(column, child, broken)(_without(column, child)(table))

    return reshape


UNUSABLE: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "adds without path": (_without("add", "path"), "column add without paths"),
    "removes without path": (_without("remove", "path"), "column remove without paths"),
    "adds that are text": (_with_adds_of_text, "column add without paths"),
    "null paths": (_with_null_paths, "lacks its path"),
    "paths that are no UTF-8": (_with_broken_text("add", "path"), "UTF8"),
    "statistics that are no UTF-8": (_with_broken_text("add", "stats"), "UTF8"),
    "statistics that are structs": (_with_statistics_as_structs, "cannot be used"),
}


@pytest.mark.conformance("CKPT-06", "CKPT-32")
@pytest.mark.parametrize("shape", UNUSABLE)
def test_invalid_columns_are_skipped(shape: str) -> None:
    reshape, problem = UNUSABLE[shape]
    table = busy()
    table.checkpoint(4, reshape=reshape)
    live = sorted(path for path, _ in expected(table).live)
    assert sorted(table.open().snapshot().live_files()["path"].to_pylist()) == live
    leave_only_the_checkpoint(table)
    snapshot = table.open().snapshot()
    with fails(UnusableCheckpointError, problem, table=table, version=4, file=f"{LOG}/{CLASSIC}"):
        snapshot.live_files()


@pytest.mark.conformance("CKPT-32")
@pytest.mark.parametrize(("column", "child"), [("txn", "appId"), ("metaData", "id")])
def test_small_actions_that_are_no_utf_8_are_passed_over(column: str, child: str) -> None:
    table = busy()
    table.checkpoint(4, reshape=_with_broken_text(column, child))
    check_falls_back(table, "utf-8")


def test_parsed_statistics_replace_missing_record_counts() -> None:
    table = TableBuilder()
    text: Action = {"stats": '{"numRecords":1}'}
    table.commit([protocol(), metadata(), add("both", **text), add("parsed"), add("text", **text)])
    parsed = {"both": 2, "parsed": 3}

    def with_parsed(rows: pa.Table) -> pa.Table:
        paths = pc.struct_field(rows["add"].combine_chunks(), "path").to_pylist()
        counts = [{"numRecords": parsed.get(path)} for path in paths]
        return _with_child("add", "stats_parsed", pa.array(counts))(rows)

    table.checkpoint(reshape=with_parsed)
    files = table.open().snapshot().live_files()
    counts = dict(zip(files["path"].to_pylist(), files["num_records"].to_pylist(), strict=True))
    assert counts == {"both": 1, "parsed": 3, "text": 1}


@pytest.mark.parametrize("lacking", [None, "b"])
def test_statistics_are_read_as_text_only_if_a_file_has_none_in_columns(
    lacking: str | None,
) -> None:
    table = TableBuilder()
    text: Action = {"stats": '{"numRecords":1}'}
    table.commit([protocol(), metadata(), add("a", **text), add("b", **text)])

    def with_parsed(rows: pa.Table) -> pa.Table:
        paths = pc.struct_field(rows["add"].combine_chunks(), "path").to_pylist()
        counts = [None if path in (None, lacking) else {"numRecords": 2} for path in paths]
        return _with_child("add", "stats_parsed", pa.array(counts))(rows)

    table.checkpoint(reshape=with_parsed)
    fields = {"add": ("path", STATISTICS), "remove": ()}
    [batch] = table.open().snapshot().log.scan(fields=fields)
    assert batch.adds["stats_parsed"].null_count == (lacking is not None)
    assert ("stats" in batch.adds.column_names) == (lacking is not None)


@pytest.mark.conformance("CKPT-09", "FEAT-04")
@pytest.mark.parametrize(
    "action",
    [
        protocol(1, 2),
        protocol(1, 7, writer_features=[]),
        protocol(3, 7, reader_features=[], writer_features=[]),
        features("v2Checkpoint", writer_only=["appendOnly"]),
    ],
    ids=str,
)
def test_feature_lists_come_back_from_a_checkpoint_as_they_were(action: Action) -> None:
    table = TableBuilder()
    table.commit([action, metadata()])
    table.checkpoint()
    snapshot = table.open().snapshot()
    assert snapshot.log.checkpoint is not None
    assert snapshot.protocol.to_json() == action["protocol"]


@pytest.mark.conformance("REC-09", "CKPT-04")
def test_commit_info_comes_from_the_commit_of_the_version_alone() -> None:
    table = busy()
    table.commit([commit_info("LAST", userName="x")])
    table.checkpoint(6, reshape=SAME_STATE["a commitInfo column"])
    table.compaction(5, 6, lines=[commit_info("LIE"), *table.reconciled(5, 6)])
    table.drop(*(f"{version:020d}.json" for version in range(5)))

    info = table.open().snapshot().log.state.commit_info
    assert info is not None
    assert info.values == {"operation": "LAST", "userName": "x"}


@pytest.mark.conformance("DV-03", "CKPT-07")
def test_an_unused_max_row_index_is_not_carried_and_an_unknown_field_is() -> None:
    table = TableBuilder()
    vector = deletion_vector(offset=OMIT)
    table.commit([features("deletionVectors"), metadata(), add("a", dv=vector)])

    def with_more_fields(rows: pa.Table) -> pa.Table:
        vectors = pc.struct_field(rows["add"].combine_chunks(), "deletionVector")
        children = [(field.name, pc.struct_field(vectors, field.name)) for field in vectors.type]
        children.append(("maxRowIndex", pa.nulls(len(vectors), pa.int64())))
        children.append(("shiny", pa.array(["x"] * len(vectors))))
        made = pa.StructArray.from_arrays(
            [child for _, child in children],
            fields=[pa.field(name, child.type) for name, child in children],
            mask=pc.is_null(vectors),
        )
        return _with_child("add", "deletionVector", made)(_without("add", "deletionVector")(rows))

    table.checkpoint(reshape=with_more_fields)
    snapshot = table.open().snapshot()
    [batch] = [batch for batch in snapshot.log.scan() if batch.adds.num_rows]
    assert batch.adds["deletionVector"].to_pylist() == [vector | {"offset": None, "shiny": "x"}]
    assert snapshot.live_files()["dv"].to_pylist() == ["uab^-aqEH.-t@S}K{vb[*k^"]


@pytest.mark.conformance("PART-01", "LOG-12", "REC-08")
def test_partition_values_that_were_left_out_are_null_by_every_route() -> None:
    table = TableBuilder()
    table.commit([protocol(), metadata(partitioned_by=["part", "day"])])
    told = {"part": "x", "day": "1"}
    table.commit(
        [
            add("none", partitionValues={}),
            add("one", partitionValues={"day": "1"}),
            add("all", partitionValues=told),
            add("more", partitionValues=told | {"other": "y"}),
            remove("removed", partitionValues={"part": "x"}, extendedFileMetadata=True),
            remove("untold"),
        ]
    )
    by_commits = table.open().snapshot()
    table.checkpoint()
    by_checkpoint = table.open().snapshot()

    assert by_checkpoint.log.checkpoint is not None
    assert state_of(by_checkpoint) == state_of(by_commits)
    for snapshot in (by_commits, by_checkpoint):
        rows = [*_sorted(snapshot.live_files()), *_sorted(snapshot.tombstones())]
        values = {row["path"]: row["partition_values"] for row in rows}
        assert values["none"] == [("day", None), ("part", None)]
        assert values["one"] == [("day", "1"), ("part", None)]
        assert values["removed"] == [("day", None), ("part", "x")]
        assert values["untold"] is None
