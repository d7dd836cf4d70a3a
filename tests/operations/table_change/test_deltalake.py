"""Changes of tables that deltalake wrote."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from delta_maintenance import open_table
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.protocol.actions import Protocol
from delta_maintenance.protocol.features import supported_features, with_requirements
from delta_maintenance.table.read import Table
from tests.support.operations.table_changes import (
    apply_properties,
    apply_upgrade,
    plan_properties,
    plan_upgrade,
    set_,
    upgrade,
)


def keeps_all(before: Protocol, after: Protocol) -> bool:
    closed = with_requirements(supported_features(after))
    return supported_features(before) <= supported_features(after) == closed


def of_deltalake(root: Path, **constraints: str) -> Table:
    write_deltalake(root, pa.table({"id": [1, 2, 3]}))
    if constraints:
        DeltaTable(root).alter.add_constraint(constraints)
    return open_table(str(root))


@pytest.mark.conformance("FEAT-06", "CONS-02")
def test_d3_a_constraint_is_still_enforced_after_another_feature_was_added(tmp_path: Path) -> None:
    table = of_deltalake(tmp_path, positive="id >= 0")
    before = table.snapshot().protocol
    assert (before.min_reader_version, before.min_writer_version) == (1, 3)
    upgrade(table, "changeDataFeed")
    peers = Protocol(
        min_reader_version=1, min_writer_version=7, writer_features=("changeDataFeed",)
    )
    assert not keeps_all(before, peers)
    assert keeps_all(before, table.snapshot().protocol)
    with pytest.raises(Exception, match="validation check"):
        write_deltalake(tmp_path, pa.table({"id": [-1]}), mode="append")
    write_deltalake(tmp_path, pa.table({"id": [4]}), mode="append")
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 4


@pytest.mark.conformance("FEAT-08")
@pytest.mark.parametrize("feature", ["changeDataFeed", "deletionVectors"])
def test_d4_a_retention_change_leaves_the_protocol_alone(tmp_path: Path, feature: str) -> None:
    # There (1,7) becomes (2,7) with more features, and (3,7) gets variantType.
    table = of_deltalake(tmp_path)
    upgrade(table, feature)
    before = table.snapshot().protocol
    result = set_(table, logRetentionDuration="interval 7 days")
    assert result.added_features == () and table.snapshot().protocol == before
    text = (tmp_path / "_delta_log" / f"{result.version:020d}.json").read_text()
    assert '"protocol"' not in text
    assert DeltaTable(tmp_path).metadata().configuration == {
        "delta.logRetentionDuration": "interval 7 days"
    }


@pytest.mark.conformance("FEAT-09", "DOM-03")
def test_d11_row_tracking_adds_domains_and_lists_all_affected_clients(tmp_path: Path) -> None:
    table = of_deltalake(tmp_path)
    before = table.snapshot().protocol
    plan = plan_upgrade(table, "rowTracking")
    apply_upgrade(table, plan)
    peers = Protocol(min_reader_version=1, min_writer_version=7, writer_features=("rowTracking",))
    assert not keeps_all(before, peers)
    assert keeps_all(before, table.snapshot().protocol)
    cut = {client.client: (client.reading, client.writing) for client in plan.cut_off}
    assert cut["delta-rs 1.6 (deltalake)"] == ("stays", "ends")
    assert set_(table, checkpointInterval="5").status == "committed"
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 3
    with pytest.raises(Exception, match="RowTracking"):
        write_deltalake(tmp_path, pa.table({"id": [4]}), mode="append")


@pytest.mark.conformance("FEAT-17")
def test_d13_values_are_validated(tmp_path: Path) -> None:
    table = of_deltalake(tmp_path)
    with pytest.raises(InvalidRequestError, match="garbage"):
        plan_properties(table, logRetentionDuration="garbage")


@pytest.mark.conformance("FEAT-18", "CM-03")
@pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping", "v2Checkpoint"])
def test_deltalake_keeps_the_access_that_the_plan_states(tmp_path: Path, feature: str) -> None:
    table = of_deltalake(tmp_path)
    values = {
        "deletionVectors": {"enableDeletionVectors": "true"},
        "columnMapping": {"columnMapping_mode": "name"},
        "v2Checkpoint": {"checkpointPolicy": "v2"},
    }
    plan = plan_properties(table, **values[feature])
    assert apply_properties(table, plan).status == "committed"
    told = {cut.client: cut for cut in plan.cut_off}
    assert "delta-rs 1.6 (deltalake)" not in told
    write_deltalake(tmp_path, pa.table({"id": [4]}), mode="append")
    assert table.snapshot().counts.num_files == 2
    reading = told["delta-rs 1.6, to_pyarrow_table and to_pandas"].reading
    if feature == "columnMapping":
        assert reading == "may end"
        return
    assert reading == "ends"
    with pytest.raises(Exception, match="not yet supported"):
        DeltaTable(tmp_path).to_pyarrow_table()
