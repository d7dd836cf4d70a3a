"""`purge`: no live file holds deleted rows or dropped columns afterwards; other rows stay."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.operations import drop_feature, purge, set_properties
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.core.facts import instant_text
from delta_maintenance.operations.holds import KeptVersion
from delta_maintenance.operations.holds.kept_versions import KEPT_VERSIONS, write_kept_version
from delta_maintenance.operations.purge import PurgeOptions, PurgePlan, PurgeResult
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from delta_maintenance.table.read.file_sums import FileSums, Instants, SumMemory, sum_files
from tests.support.rewrites.data_files import DataTable
from tests.support.rewrites.rewritten_tables import NOW, Rewritten, ids
from tests.support.rewrites.table_rows import actions_of, latest, live_adds, live_rows


def run(store: Store, **options: Any) -> tuple[PurgePlan, PurgeResult]:
    """The plan of a purge, and its result."""
    table = Table(store)
    planned = purge.plan(
        table.snapshot(), PurgeOptions(workers=1, **options), context=RunContext.at(NOW)
    )
    return planned, purge.apply(table, planned, context=RunContext.at(NOW, new_id=ids(7)))


def sums(store: Store, memory: SumMemory | None) -> FileSums:
    """The sums of the files of the newest version."""
    instants = Instants(now=0, expired_before=0, reclaimable_before=0, reclaimed_before=0)
    return sum_files(Table(store).snapshot(), small_bytes=1, instants=instants, memory=memory)


@pytest.mark.conformance("DV-12", "DV-15", "RW-05", "RW-09", "RW-32", "RT-15")
def test_deleted_rows_leave_the_live_files_and_no_other_row_changes() -> None:
    made = Rewritten()
    made.table.delete(made.paths["x"][0], [0])
    made.table.delete(made.paths["x"][1], range(4))
    made.table.delete(made.paths["y"][3], [1, 2])
    before, untouched = made.rows(), set(live_adds(made.store))
    planned, result = run(made.store)
    assert (planned.files, planned.deleted_rows, planned.files_after) == (3, 7, 2)
    assert (result.status, result.files_before, result.files_after) == ("rewritten", 3, 2)
    assert made.rows() == before
    live = live_adds(made.store)
    assert len(untouched & set(live)) == 9
    assert not any(add.get("deletionVector") for add in live.values())
    kept = {value for path in live for value in values(made.store, path)}
    assert kept.isdisjoint({0, 10, 11, 12, 13, 131, 132})
    info = actions_of(made.store, latest(made.store))[0]["commitInfo"]
    assert info["operation"] == "REORG"
    assert info["operationParameters"] == {"predicate": "[]", "applyPurge": "true"}
    assert run(made.store)[0].is_noop


def test_files_with_few_deleted_rows_can_be_left_alone() -> None:
    made = Rewritten()
    made.table.delete(made.paths["x"][0], [0])
    made.table.delete(made.paths["x"][1], [0, 1])
    assert run(made.store, above_percent=25)[1].files_before == 1
    assert run(made.store, above_percent=25)[0].is_noop
    planned, _ = run(made.store, quiet_for=timedelta(days=90))
    assert planned.is_noop and planned.left_alone[0].files == 1


MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "4"}


def mapped(name: str, kind: object, number: int) -> dict[str, object]:
    """A field of a table with column mapping."""
    metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{name}"}
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


@pytest.mark.conformance("RW-08", "RW-16", "CM-04", "CDC-04")
def test_values_of_dropped_columns_leave_the_live_files() -> None:
    inner = {"type": "struct", "fields": [mapped("x", "long", 4)]}
    table = DataTable(
        mapped("a", "long", 1),
        mapped("s", inner, 3),
        features=["columnMapping"],
        configuration=MAPPED,
    )
    table.append(
        pa.table({"col-a": [1, 2], "col-s": [{"col-x": 1}, {"col-x": None}]}),
        pa.table({"col-a": [3], "col-s": [{"col-x": 2}], "col-gone": ["secret"]}),
        pa.table({"col-a": [4], "col-s": [{"col-x": 2, "col-old": "secret"}]}),
    )
    assert run(table.store, dropped_columns=False)[0].is_noop
    memory = SumMemory()
    assert sums(table.store, memory).tombstones == 0
    planned, result = run(table.store)
    assert [(each.reason, each.files) for each in planned.reasons] == [("dropped-columns", 2)]
    assert (result.status, result.files_before, result.files_after) == ("rewritten", 2, 2)
    for path in live_adds(table.store):
        data = table.store.read(path)
        assert b"secret" not in data
    for report in result.bins:
        schema = pq.read_schema(io.BytesIO(table.store.read(report.outputs[0])))
        assert schema.names == ["col-a", "col-s"]
        assert schema.field("col-a").metadata[b"PARQUET:field_id"] == b"1"
        assert schema.field("col-s").type.field(0).metadata[b"PARQUET:field_id"] == b"4"
    assert len(live_rows(table.store)) == 4
    # The sums follow the commit without a replay.
    assert memory.at(Table(table.store).snapshot()) is not None
    assert sums(table.store, memory) == sums(table.store, None)
    assert run(table.store)[0].is_noop


def test_footers_are_read_only_if_columns_were_dropped() -> None:
    table = DataTable(
        mapped("a", "long", 1),
        features=["columnMapping"],
        configuration={**MAPPED, "delta.columnMapping.maxColumnId": "1"},
    )
    [path] = table.append(pa.table({"col-a": [3], "col-gone": ["secret"]}))
    table.store.delete(path)
    assert run(table.store)[0].is_noop


@pytest.mark.conformance("DV-15")
def test_deletion_vectors_can_be_dropped_afterwards() -> None:
    made = Rewritten(tracked=False)
    made.table.delete(made.paths["x"][0], [0, 3])
    made.table.delete(made.paths["z"][1], range(4))
    before, table = made.rows(), Table(made.store)
    wanted = drop_feature.DropFeatureOptions(feature="deletionVectors")
    steps = drop_feature.plan(table.snapshot(), wanted, context=RunContext.at(NOW)).steps
    assert "rewrite-files" in [step.kind for step in steps]
    options = set_properties.SetPropertiesOptions(
        properties={"delta.enableDeletionVectors": "false"}
    )
    changed = set_properties.plan(table.snapshot(), options, context=RunContext.at(NOW))
    assert set_properties.apply(table, changed, context=RunContext.at(NOW)).status == "committed"
    assert run(made.store)[1].status == "rewritten"
    planned = drop_feature.plan(table.snapshot(), wanted, context=RunContext.at(NOW))
    assert "rewrite-files" not in [step.kind for step in planned.steps]
    assert drop_feature.apply(table, planned, context=RunContext.at(NOW)).status == "dropped"
    assert "deletionVectors" not in (table.snapshot().protocol.writer_features or ())
    assert made.rows() == before


def test_plans_and_results_are_documents() -> None:
    made = Rewritten()
    made.table.delete(made.paths["x"][0], [0])
    planned, result = run(made.store, where="p = 'x'")
    assert PurgePlan.from_json(json.loads(json.dumps(planned.to_json()))) == planned
    assert PurgeResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def values(store: Store, path: str) -> list[int]:
    """The values of `a` in a data file, deleted ones included."""
    found: list[int] = pq.read_table(io.BytesIO(store.read(path)))["a"].to_pylist()
    return found


def test_the_plan_names_who_can_still_read_the_deleted_rows() -> None:
    made = Rewritten()
    assert not any("held by" in note for note in run(made.store)[0].notes)
    made.table.delete(made.paths["x"][0], [0])
    kept = KeptVersion(name="audit", version=1, until=NOW + timedelta(days=300))
    write_kept_version(made.store, kept, made_at=NOW)
    planned = purge.plan(Table(made.store).snapshot(), context=RunContext.at(NOW))
    files = f"the files of version 1 stay until {instant_text(kept.until)}, with deleted rows"
    assert f"held by kept version audit: {files}" in planned.notes
    assert any("until a vacuum" in note for note in planned.notes)
    # It deletes no file, so a holder that cannot be examined is only named.
    made.store.put(f"{KEPT_VERSIONS}/model.json", b"{")
    planned, result = run(made.store)
    assert any("what keeps older versions is not known" in note for note in planned.notes)
    assert result.status == "rewritten"
