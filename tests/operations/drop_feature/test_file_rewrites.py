"""Features that are dropped by rewriting the data files that use them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.errors import CommitConflictError, CorruptTableError
from delta_maintenance.protocol.features import supported_features
from delta_maintenance.table.commit import Transaction
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.rewritten_tables import RacedRewrites
from tests.support.rewrites.table_rows import live_rows
from tests.support.tables.droppable_tables import Clock, drop, planned

VECTORS = {"delta.enableDeletionVectors": "true"}
WIDENING = {"delta.enableTypeWidening": "true"}
CHANGES = [{"fromType": "integer", "toType": "long"}]
LONG, DOUBLE = pa.int64(), pa.float64()
INSIDE = [{"fromType": "float", "toType": "double", "fieldPath": "element"}]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def rows(first: int, kind: pa.DataType = LONG, inner: pa.DataType = DOUBLE) -> pa.Table:
    numbers = range(first, first + 4)
    lists = [[number / 2, None] for number in numbers]
    return pa.table({"a": pa.array(numbers, kind), "b": pa.array(lists, pa.list_(inner))})


def table_of(
    clock: Clock, feature: str, configuration: dict[str, str], *, widened: bool = False
) -> DataTable:
    array = {"type": "array", "elementType": "double", "containsNull": True}
    made = DataTable(
        field("a", "long", **({"delta.typeChanges": CHANGES} if widened else {})),
        field("b", array, **({"delta.typeChanges": INSIDE} if widened else {})),
        store=RacedRewrites(),
        features=[feature],
        configuration=configuration,
    )
    clock.govern(made.store)
    return made


def kinds(steps: Any) -> list[str]:
    return list(dict.fromkeys(step.kind for step in steps))


@pytest.mark.conformance("FEAT-14", "FEAT-15", "DV-15")
def test_deleted_rows_leave_the_live_files_before_deletion_vectors_are_dropped(
    clock: Clock,
) -> None:
    made = table_of(clock, "deletionVectors", VECTORS)
    paths = made.append(rows(0), rows(10), rows(20))
    made.delete(paths[0], [1, 2])
    # A vector may mark no row.
    made.delete(paths[1], [])
    made.delete(paths[2], [0, 1, 2, 3])
    before = live_rows(made.store)
    plan = planned(made.store, clock, "deletionVectors")
    assert [step.detail for step in plan.steps if step.kind == "rewrite-files"][0].startswith(
        "writes 3 data files"
    )
    result = drop(made.store, clock, "deletionVectors")
    assert result.status == "dropped"
    assert kinds(result.commits)[:2] == ["switch-off", "rewrite-files"]
    assert live_rows(made.store) == before
    snapshot = Table(made.store).snapshot()
    assert "deletionVectors" not in supported_features(snapshot.protocol)
    assert snapshot.live_files()["dv"].null_count == snapshot.live_files().num_rows == 2


@pytest.mark.conformance("FEAT-14", "TW-02", "TW-05")
def test_files_of_earlier_types_are_rewritten_before_type_widening_is_dropped(clock: Clock) -> None:
    made = table_of(clock, "typeWidening", WIDENING, widened=True)
    old, inner, new = made.append(rows(0, pa.int32()), rows(10, inner=pa.float32()), rows(20))
    before = live_rows(made.store)
    plan = planned(made.store, clock, "typeWidening")
    assert kinds(plan.steps)[:3] == ["switch-off", "rewrite-files", "forget-type-changes"]
    result = drop(made.store, clock, "typeWidening")
    assert result.status == "dropped"
    assert kinds(result.commits)[:3] == kinds(plan.steps)[:3]
    assert live_rows(made.store) == before
    snapshot = Table(made.store).snapshot()
    live = snapshot.live_files()["path"].to_pylist()
    assert new in live and old not in live and inner not in live
    assert "typeWidening" not in supported_features(snapshot.protocol)
    assert "delta.typeChanges" not in (snapshot.metadata.schema_string or "")


@pytest.mark.conformance("TW-05", "TXN-04")
def test_a_file_of_an_earlier_type_that_others_add_keeps_the_feature(clock: Clock) -> None:
    made = table_of(clock, "typeWidening", WIDENING, widened=True)
    made.append(rows(0, pa.int32()))

    def restore() -> None:
        [path] = made.append(rows(50, pa.int32()), commit=False)
        txn = Transaction(Table(made.store).snapshot(), "RESTORE")
        txn.stage_adds([made.live[path]])
        txn.commit()

    # Right before the commit that removes the record of type changes.
    made.store.races = [None, None, restore]
    with pytest.raises(CommitConflictError, match="earlier type"):
        drop(made.store, clock, "typeWidening")
    assert "delta.typeChanges" in (Table(made.store).snapshot().metadata.schema_string or "")
    made.store.races = []
    assert drop(made.store, clock, "typeWidening").status == "dropped"


@pytest.mark.conformance("TW-05")
def test_a_footer_that_cannot_be_read_keeps_the_feature(clock: Clock) -> None:
    made = table_of(clock, "typeWidening", WIDENING, widened=True)
    [path] = made.append(rows(0))
    made.store.delete(path)
    with pytest.raises(CorruptTableError, match=path + r": the data file is gone"):
        drop(made.store, clock, "typeWidening")
    assert "typeWidening" in supported_features(Table(made.store).snapshot().protocol)
