"""Files whose column types only type widening allows, in a table without that feature.

A drop of the feature that overlooked files, or a writer that changed the schema, leaves such files.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.operations import fsck, optimize, upgrade_protocol
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions, FsckResult
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.upgrade_protocol import UpgradeProtocolOptions
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import DataTable, field
from tests.support.tables.droppable_tables import START, Clock, drop

LATER = RunContext.at(START + timedelta(days=2))
ARRAY = {"type": "array", "elementType": "decimal(12,2)", "containsNull": True}


def damaged(kind: Any, stored: pa.DataType, values: list[Any]) -> DataTable:
    """A table without the feature; one of its three files has an earlier type."""
    made = DataTable(field("id", "long"), field("w", kind))
    wide = pa.list_(pa.decimal128(12, 2)) if kind == ARRAY else pa.decimal128(12, 2)
    for at, type_ in enumerate((stored, wide, wide)):
        numbers = pa.array([at], pa.int64())
        made.append(pa.table({"id": numbers, "w": pa.array(values, type_)}))
    Clock().govern(made.store)
    return made


def deep(made: DataTable) -> FsckResult:
    table = Table(made.store)
    return fsck.apply(table, fsck.plan(table, FsckOptions(deep=True), LATER), LATER)


def optimized(made: DataTable) -> optimize.OptimizeResult:
    table = Table(made.store)
    plan = optimize.plan(table.snapshot(), OptimizeOptions(), context=LATER)
    return optimize.apply(table, plan, context=LATER)


CASES = [
    ("decimal(12,2)", pa.int32(), [5]),
    ("decimal(12,2)", pa.decimal128(10, 1), [5]),
    (ARRAY, pa.list_(pa.int8()), [[5, None]]),
]


@pytest.mark.conformance("TW-02", "TW-05")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_file_and_the_missing_feature_are_named_and_the_remedy_works(case: Any) -> None:
    made = damaged(*case)
    result = deep(made)
    assert [(f.kind, f.path) for f in result.findings] == [
        ("widened-without-feature", "f00000.parquet")
    ]
    [finding] = result.findings
    assert result.status == "corrupt" and "decimal(12,2)" in finding.problem

    left = optimized(made)
    assert left.status == "rewritten" and left.files_before == 2
    [refused] = left.refused
    assert not refused.damaged
    assert refused.problem.endswith(f"does not have the feature typeWidening; {finding.remedy}")

    assert "upgrade-protocol --feature typeWidening" in finding.remedy
    table = Table(made.store)
    options = UpgradeProtocolOptions(features=("typeWidening",))
    upgrade = upgrade_protocol.plan(table.snapshot(), options, context=LATER)
    assert upgrade_protocol.apply(table, upgrade, context=LATER).status == "committed"
    assert deep(made).status == "sound"
    assert drop(made.store, Clock(), "typeWidening").status == "dropped"
    assert deep(made).status == "sound"
    assert "f00000.parquet" not in table.snapshot().live_files()["path"].to_pylist()


@pytest.mark.conformance("SCHEMA-08")
def test_a_type_that_no_reader_converts_is_damage() -> None:
    made = DataTable(field("w", "long"))
    made.append(pa.table({"w": ["text"]}))
    [finding] = deep(made).findings
    assert (finding.kind, finding.problem) == (
        "unreadable-data-file",
        "the column w: the file contains string where the schema has long",
    )


@pytest.mark.parametrize("kind", [pa.decimal128(12, 2), pa.decimal128(10, 3), pa.int32()], ids=str)
def test_a_narrower_type_of_the_table_is_no_matter_of_the_feature(kind: pa.DataType) -> None:
    made = DataTable(field("w", "decimal(8,2)"))
    made.append(pa.table({"w": pa.array([5], kind)}))
    [finding] = deep(made).findings
    assert finding.kind == "unreadable-data-file" and "restore" in finding.remedy
