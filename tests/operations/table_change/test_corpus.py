"""Real tables: no change loses anything."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from delta_maintenance import open_table
from delta_maintenance.errors import DeltaMaintenanceError, RefusedError
from delta_maintenance.operations import set_properties, upgrade_protocol
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.operations.upgrade_protocol import UpgradeProtocolOptions
from delta_maintenance.protocol.features import check_protocol, supported_features
from delta_maintenance.protocol.schema import column_mapping_mode
from delta_maintenance.table.read import Snapshot, Table
from tests.support.tables.corpus_tables import TABLES

FEATURES = ("deletionVectors", "rowTracking", "v2Checkpoint", "columnMapping", "changeDataFeed")
NOW = datetime.now(UTC)


def files(snapshot: Snapshot) -> list[dict[str, object]]:
    keys = [("path", "ascending"), ("dv", "ascending")]
    return snapshot.live_files().sort_by(keys).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.conformance("FEAT-06", "FEAT-07", "FEAT-08", "FEAT-15", "META-02")
@pytest.mark.parametrize("name", TABLES)
def test_a_real_table_loses_nothing(
    corpus: Path, name: str, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    if not (corpus / name / "_delta_log").is_dir():
        pytest.skip("no log at all")
    log = shutil.copytree(
        corpus / name / "_delta_log", tmp_path / "_delta_log", copy_function=shutil.copyfile
    )
    names = {path.name for path in log.rglob("*")}
    table = open_table(str(tmp_path))
    try:
        before = table.snapshot()
        live = files(before)
        interval = set_interval(table)
    except DeltaMaintenanceError:
        # Corrupt, hostile or not ours to write: then nothing was written.
        assert {path.name for path in log.rglob("*")} == names
        return
    assert interval.protocol == before.protocol
    assert interval.metadata.configuration == {
        **before.metadata.configuration,
        "delta.checkpointInterval": "77",
    }
    assert interval.metadata.schema_string == before.metadata.schema_string
    features = FEATURES
    if interval.properties.enable_iceberg_compat_v1:
        with pytest.raises(RefusedError, match="icebergCompatV1 does not allow"):
            upgrade_protocol.plan(
                interval, UpgradeProtocolOptions(features=features), context=RunContext.at(NOW)
            )
        features = tuple(name for name in FEATURES if name != "deletionVectors")
    options = UpgradeProtocolOptions(features=features)
    plan = upgrade_protocol.plan(interval, options, context=RunContext.at(NOW))
    assert upgrade_protocol.apply(table, plan).status == "committed"
    after = table.snapshot()
    check_protocol(after.protocol)
    assert supported_features(after.protocol) == (
        supported_features(before.protocol) | {*features, "domainMetadata"}
    )
    assert after.metadata == interval.metadata and files(after) == live
    if column_mapping_mode(after.protocol, after.metadata.configuration) == "none":
        map_columns(table)
        mapped = table.snapshot()
        assert column_mapping_mode(mapped.protocol, mapped.metadata.configuration) == "name"
        assert mapped.protocol == after.protocol
        assert files(mapped) == live
        assert mapped.log.physical_partition_columns == before.metadata.partition_columns
    assert table.snapshot(version=before.version).protocol == before.protocol
    count_cases("real tables upgraded", 1)


def set_interval(table: Table) -> Snapshot:
    options = SetPropertiesOptions(properties={"delta.checkpointInterval": "77"})
    plan = set_properties.plan(table.snapshot(), options, context=RunContext.at(NOW))
    assert plan.added_features == () and not plan.cut_off
    assert set_properties.apply(table, plan).status == "committed"
    return table.snapshot()


def map_columns(table: Table) -> None:
    options = SetPropertiesOptions(properties={"delta.columnMapping.mode": "name"})
    plan = set_properties.plan(table.snapshot(), options, context=RunContext.at(NOW))
    assert set_properties.apply(table, plan).status == "committed"
