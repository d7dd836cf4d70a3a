"""Tables of the protocol's drafts of 2023: read as what became of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.features import supports
from delta_maintenance.protocol.row_tracking.row_ids import draft_high_water_mark
from delta_maintenance.table.read import Snapshot
from tests.support.tables.actions import Action, add, domain, features, metadata, protocol
from tests.support.tables.table_builder import LOG, TableBuilder
from tests.table.failures import fails

SHAPES: dict[str, Action] = {
    "spring": {"highWaterMark": 41, "preservedRowIds": True},
    "summer": {"highWaterMark": 41},
    "summer as text": {"highWaterMark": "41"},
    "databricks": {"value": 41},
}


def draft(*names: str) -> TableBuilder:
    table = TableBuilder()
    table.commit([protocol(1, 7, writer_features=names or ["rowIds"]), metadata()])
    return table


def mark(snapshot: Snapshot) -> int | None:
    found = snapshot.log.state.draft_high_water_mark
    return None if found is None else draft_high_water_mark(found)


@pytest.mark.conformance("DRAFT-01")
@pytest.mark.parametrize(
    ("alias", "final"), [("timestampNTZ", "timestampNtz"), ("columnInvariants", "invariants")]
)
def test_aliases_are_read_as_the_final_features_and_kept_as_written(alias: str, final: str) -> None:
    readers = [alias] if alias == "timestampNTZ" else []
    table = TableBuilder()
    table.commit([features(*readers, writer_only=[alias] if not readers else []), metadata()])
    for checkpointed in (False, True):
        if checkpointed:
            table.checkpoint()
        snapshot = table.open().snapshot()
        assert supports(snapshot.protocol, final)
        assert alias in (snapshot.protocol.writer_features or ())


@pytest.mark.conformance("DRAFT-02")
@pytest.mark.parametrize("name", ["rowIds", "delta.rowIds"])
def test_draft_row_ids_never_prevent_reading(name: str) -> None:
    table = draft(name)
    table.commit([add("a", baseRowId=7)])
    files = table.open().snapshot().live_files()
    assert files["base_row_id"].to_pylist() == [7]
    assert files["default_row_commit_version"].to_pylist() == [None]


@pytest.mark.conformance("DRAFT-02")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_mark_is_read_from_commits_in_every_shape(shape: str) -> None:
    table = draft()
    assert mark(table.open().snapshot()) is None
    table.commit([{"rowIdHighWaterMark": {"highWaterMark": 5}}])
    table.commit([{"rowIdHighWaterMark": SHAPES[shape]}, add("a")])
    for lines in ([], [{"rowIdHighWaterMark": None}], [{"rowIdHighWaterMark": {"value": None}}]):
        table.commit(lines or [add("b")])
        assert mark(table.open().snapshot()) == 41
    table.compaction(1, table.version)
    assert mark(table.open().snapshot(version=1)) == 5


def with_mark(value: Any, kind: pa.DataType) -> Any:
    """Puts a draft mark into the first row of a checkpoint."""

    def reshape(table: pa.Table) -> pa.Table:
        values = [value, *[None] * (table.num_rows - 1)]
        return table.append_column("rowIdHighWaterMark", pa.array(values, kind))

    return reshape


@pytest.mark.conformance("DRAFT-02", "CKPT-06")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_mark_is_read_from_checkpoints_in_every_shape(shape: str) -> None:
    table = draft()
    table.commit([add("a")])
    value = SHAPES[shape]
    table.checkpoint(reshape=with_mark(value, pa.array([value]).type))
    assert mark(table.open().snapshot()) == 41
    table.commit([{"rowIdHighWaterMark": {"highWaterMark": 50}}])
    assert mark(table.open().snapshot()) == 50


@pytest.mark.conformance("DRAFT-02")
@pytest.mark.parametrize("value", [None, {"value": None}])
def test_an_empty_column_of_marks_is_ignored(value: Any) -> None:
    table = draft()
    table.commit([{"rowIdHighWaterMark": {"highWaterMark": 3}}])
    table.commit([add("a")])
    table.checkpoint(reshape=with_mark(value, pa.struct([("value", pa.int64())])))
    table.drop(f"{0:020d}.json", f"{1:020d}.json")
    assert mark(table.open().snapshot()) is None


@pytest.mark.conformance("DRAFT-04", "DOM-01")
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_map_in_a_domain_is_its_text(checkpointed: bool) -> None:
    table = TableBuilder()
    table.commit([protocol(1, 7, writer_features=["domainMetadata"]), metadata()])
    table.commit([domain("d", {"b": "2", "a": "1 "}), domain("text", ' {"a": 1}')])
    if checkpointed:
        table.checkpoint(
            actions=[
                *table.state(0),
                domain("d", '{"a":"1 ","b":"2"}'),
                domain("text", ' {"a": 1}'),
            ]
        )
    assert table.open().snapshot().domain_metadata == {
        "d": '{"a":"1 ","b":"2"}',
        "text": ' {"a": 1}',
    }
    assert table.open().snapshot().log.state.domains["d"].draft_map is not checkpointed


@pytest.mark.conformance("DRAFT-04")
@pytest.mark.parametrize("configuration", [5, [], True])
def test_a_domain_that_is_neither_text_nor_map_is_corrupt(configuration: Any) -> None:
    table = draft("domainMetadata")
    table.commit([domain("d", configuration)])
    with fails(
        CorruptTableError, "'d' has a configuration", table=table, version=1,
        file=f"{LOG}/{1:020d}.json",
    ):  # fmt: skip
        table.open().snapshot()
