"""Delta Spark reads and writes what we upgraded, and would have made the same of it itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.errors import UnsupportedFeatureError
from delta_maintenance.operations import set_properties, upgrade_protocol
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.operations.upgrade_protocol import UpgradeProtocolOptions
from delta_maintenance.protocol.actions import Protocol
from delta_maintenance.protocol.changes.client_support import CLIENTS
from delta_maintenance.protocol.changes.upgrade import require_addable
from delta_maintenance.protocol.features import FEATURES as REGISTRY
from tests.support.oracle.delta_spark import DELTA_RELEASE, DeltaSpark
from tests.support.oracle.delta_spark_tables import copy
from tests.support.oracle.recordings import RecordedSpark

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]

PROPERTIES: dict[str, dict[str, str]] = {
    "columnMapping": {"delta.columnMapping.mode": "name"},
    "deletionVectors": {"delta.enableDeletionVectors": "true"},
    "v2Checkpoint": {"delta.checkpointPolicy": "v2"},
    "inCommitTimestamp": {"delta.enableInCommitTimestamps": "true"},
    "changeDataFeed": {"delta.enableChangeDataFeed": "true"},
    "typeWidening": {"delta.enableTypeWidening": "true"},
    "retention": {"delta.logRetentionDuration": "interval 60 days", "team": "lake"},
    "iceberg": {
        "delta.castIcebergTimeType": "true",
        "delta.ignoreIcebergBucketPartition": "false",
        "delta.universalFormat.iceberg.atomicConversion.supported": "true",
    },
    "versions": {"delta.minReaderVersion": "2", "delta.minWriterVersion": "5"},
    "implied": {
        "delta.feature.generatedColumns": "supported",
        "delta.feature.changeDataFeed": "supported",
        "delta.feature.checkConstraints": "supported",
    },
    "rowTracking": {"delta.feature.rowTracking": "supported"},
}
FEATURES = (
    ("columnMapping",),
    ("deletionVectors",),
    ("icebergCompatV1",),
    ("inCommitTimestamp",),
    ("rowTracking",),
    ("v2Checkpoint",),
    (
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "materializePartitionColumns",
    ),
    ("geospatial", "timestampNtz", "typeWidening", "vacuumProtocolCheck", "variantShredding"),
)
"""The features that are added to one table each; those in one row are independent."""
VOLATILE = (
    "delta.inCommitTimestampEnablementTimestamp",
    # Made by Delta Spark with the feature, by us when row tracking is enabled.
    "delta.rowTracking.materializedRowIdColumnName",
    "delta.rowTracking.materializedRowCommitVersionColumnName",
)


@pytest.fixture(scope="module")
def legacy(recorded_module: RecordedSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partitioned table of versions (1, 2) with nested columns and two files."""
    path = tmp_path_factory.mktemp("upgrade") / "legacy"
    recorded_module.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, part STRING, s STRUCT<x: INT, y: ARRAY<STRUCT<"
        "z: INT>>>, m MAP<STRING, STRUCT<v: INT>>) USING delta PARTITIONED BY (part) "
        "TBLPROPERTIES ('delta.minReaderVersion' = '1', 'delta.minWriterVersion' = '2')"
    )
    recorded_module.sql(f"INSERT INTO delta.`{path}` {row(1, 'a')} UNION ALL {row(2, 'b')}")
    return path


def row(number: int, part: str) -> str:
    return (
        f"SELECT CAST({number} AS BIGINT) AS id, '{part}' AS part, named_struct('x', {number}, "
        f"'y', array(named_struct('z', {number}))) AS s, map('k', named_struct('v', {number})) AS m"
    )


def set_ours(path: Path, properties: dict[str, str]) -> None:
    table = open_table(str(path))
    options = SetPropertiesOptions(properties=properties)
    plan = set_properties.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
    assert set_properties.apply(table, plan).status == "committed"


def upgrade_ours(path: Path, *features: str) -> None:
    table = open_table(str(path))
    options = UpgradeProtocolOptions(features=features)
    plan = upgrade_protocol.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
    assert upgrade_protocol.apply(table, plan).status == "committed"


def essence(path: Path) -> dict[str, Any]:
    """Returns the changes of an ALTER TABLE, without the order of lists and values that differ per
    run.
    """
    snapshot = open_table(str(path)).snapshot()
    protocol, metadata = snapshot.protocol, snapshot.metadata
    return {
        "versions": (protocol.min_reader_version, protocol.min_writer_version),
        "readers": sorted(protocol.reader_features or ()),
        "writers": sorted(protocol.writer_features or ()),
        "schema": json.loads(metadata.schema_string or ""),
        "configuration": {
            name: value for name, value in metadata.configuration.items() if name not in VOLATILE
        },
    }


def ids(spark: DeltaSpark, path: Path) -> list[int]:
    spark.forget()
    lines = spark.rows(f"SELECT id, s.y[0].z AS z, m['k'].v AS v FROM delta.`{path}`")
    rows = [json.loads(line) for line in lines]
    assert all(item["id"] == item["z"] == item["v"] for item in rows)
    return [item["id"] for item in rows]


@pytest.mark.conformance("FEAT-06", "FEAT-09", "FEAT-12", "CM-09", "ICT-04")
@pytest.mark.parametrize("case", PROPERTIES)
def test_delta_spark_makes_the_same_change(
    recorded_spark: RecordedSpark, legacy: Path, tmp_path: Path, case: str
) -> None:
    ours, theirs = copy(legacy, tmp_path / "ours"), copy(legacy, tmp_path / "theirs")
    set_ours(ours, PROPERTIES[case])
    pairs = ", ".join(f"'{name}' = '{value}'" for name, value in PROPERTIES[case].items())
    recorded_spark.sql(f"ALTER TABLE delta.`{theirs}` SET TBLPROPERTIES ({pairs})")
    assert essence(ours) == essence(theirs)


@pytest.mark.conformance("FEAT-05")
@pytest.mark.parametrize("features", FEATURES, ids=lambda features: features[0])
def test_delta_spark_reads_and_writes_with_every_feature(
    recorded_spark: RecordedSpark,
    request: pytest.FixtureRequest,
    legacy: Path,
    tmp_path: Path,
    features: tuple[str, ...],
) -> None:
    # In-commit timestamps follow from the times of our files, which differ each time.
    is_timed = features == ("inCommitTimestamp",)
    spark = request.getfixturevalue("delta_spark") if is_timed else recorded_spark
    path = copy(legacy, tmp_path / "table")
    upgrade_ours(path, *features)
    if features != ("rowTracking",):
        for name in PROPERTIES.keys() & {*features}:
            set_ours(path, PROPERTIES[name])
    spark.forget()
    spark.sql(f"INSERT INTO delta.`{path}` {row(3, 'a')}")
    assert ids(spark, path) == [1, 2, 3]
    if features == ("deletionVectors",):
        spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")
        assert ids(spark, path) == [2, 3]


@pytest.mark.conformance("CM-03", "CM-07")
def test_delta_spark_renames_and_drops_columns_that_we_mapped(
    recorded_spark: RecordedSpark, legacy: Path, tmp_path: Path
) -> None:
    path = copy(legacy, tmp_path / "mapped")
    set_ours(path, PROPERTIES["columnMapping"])
    recorded_spark.forget()
    recorded_spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN part TO region")
    recorded_spark.sql(f"ALTER TABLE delta.`{path}` DROP COLUMN s.x")
    recorded_spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN new INT")
    rows = recorded_spark.rows(f"SELECT id, region, s, new FROM delta.`{path}` WHERE region = 'a'")
    assert rows == ['{"id":1,"region":"a","s":{"y":[{"z":1}]}}']
    highest = open_table(str(path)).snapshot().metadata.configuration
    assert highest["delta.columnMapping.maxColumnId"] == "9"


@pytest.mark.conformance("CONS-02", "FEAT-06")
def test_delta_spark_enforces_a_constraint_as_before(
    recorded_spark: RecordedSpark, legacy: Path, tmp_path: Path
) -> None:
    path = copy(legacy, tmp_path / "constrained")
    recorded_spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (id > 0)")
    upgrade_ours(path, "changeDataFeed")
    recorded_spark.forget()
    with pytest.raises(Exception, match="(?i)check constraint positive"):
        recorded_spark.sql(f"INSERT INTO delta.`{path}` {row(-1, 'a')}")
    recorded_spark.sql(f"INSERT INTO delta.`{path}` {row(3, 'a')}")
    assert ids(recorded_spark, path) == [1, 2, 3]


@pytest.mark.conformance("RT-09", "RT-10")
def test_delta_spark_tracks_rows_where_we_enabled_it_on_an_empty_table(
    recorded_spark: RecordedSpark, tmp_path: Path
) -> None:
    path = tmp_path / "tracked"
    recorded_spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT) USING delta")
    set_ours(path, {"delta.enableRowTracking": "true"})
    recorded_spark.forget()
    recorded_spark.sql(f"INSERT INTO delta.`{path}` SELECT id FROM range(3)")
    recorded_spark.sql(f"UPDATE delta.`{path}` SET id = 7 WHERE id = 1")
    rows = recorded_spark.rows(
        f"SELECT _metadata.row_id AS r, _metadata.row_commit_version AS v FROM delta.`{path}`"
    )
    found = [json.loads(line) for line in rows]
    assert sorted(item["r"] for item in found) == [0, 1, 2]
    assert sorted(item["v"] for item in found) == [2, 2, 3]


@pytest.mark.conformance("ICE-03", "ICE-04", "CM-10")
@pytest.mark.parametrize("version", [1, 2])
def test_delta_spark_makes_the_same_of_iceberg_compatibility_and_writes_in_its_form(
    recorded_spark: RecordedSpark, tmp_path: Path, version: int
) -> None:
    nested = ", l ARRAY<ARRAY<INT>>, m MAP<STRING, STRUCT<v: ARRAY<INT>>>" if version == 2 else ""
    theirs = tmp_path / "theirs"
    recorded_spark.sql(
        f"CREATE TABLE delta.`{theirs}` (id BIGINT, part STRING, at TIMESTAMP{nested}) USING delta "
        "PARTITIONED BY (part)"
    )
    ours = copy(theirs, tmp_path / "ours")
    compatibility = {f"delta.enableIcebergCompatV{version}": "true"}
    for step in (PROPERTIES["columnMapping"], compatibility):
        set_ours(ours, step)
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in step.items())
        recorded_spark.sql(f"ALTER TABLE delta.`{theirs}` SET TBLPROPERTIES ({pairs})")
    # Delta Spark notes of all columns without lists and maps that nothing of them has an id.
    none = ', "delta.columnMapping.nested.ids": {}'
    assert essence(ours) == json.loads(json.dumps(essence(theirs)).replace(none, "")) | {
        "versions": (2, 7)
    }
    recorded_spark.forget()
    lists = ", array(array(7)) AS l, map('k', named_struct('v', array(7))) AS m" if nested else ""
    recorded_spark.sql(
        f"INSERT INTO delta.`{ours}` SELECT 7L AS id, 'a' AS part, "
        f"TIMESTAMP '2026-01-01 00:00:00' AS at{lists}"
    )
    assert recorded_spark.rows(f"SELECT id, part FROM delta.`{ours}`") == ['{"id":7,"part":"a"}']
    (file,) = (path for path in ours.rglob("*.parquet") if "_delta_log" not in path.parts)
    assert "part" in pq.read_schema(file).names


@pytest.mark.conformance("ICT-02", "ICT-03", "ICT-04", "TXN-10")
def test_delta_spark_uses_our_in_commit_timestamps(
    delta_spark: DeltaSpark, legacy: Path, tmp_path: Path
) -> None:
    path = copy(legacy, tmp_path / "timed")
    set_ours(path, PROPERTIES["inCommitTimestamp"])
    set_ours(path, {"delta.checkpointInterval": "20"})
    delta_spark.forget()
    delta_spark.sql(f"INSERT INTO delta.`{path}` {row(3, 'a')}")
    ours = {entry.version: entry.timestamp_ms for entry in open_table(str(path)).history()}
    theirs = delta_spark.history(path)
    assert {entry["version"]: entry["ms"] for entry in theirs} == ours
    assert [entry["operation"] for entry in theirs[:2]] == ["WRITE", "SET TBLPROPERTIES"]
    assert sorted(ours.values(), key=lambda ms: ms or 0) == [ours[v] for v in sorted(ours)]


@pytest.mark.conformance("FEAT-18")
def test_the_table_of_clients_lists_the_features_of_this_release(
    recorded_spark: RecordedSpark,
) -> None:
    (client,) = (known for known in CLIENTS if known.name == f"Delta Spark {DELTA_RELEASE}")
    new = Protocol(min_reader_version=3, min_writer_version=7)
    offered = [feature.name for feature in REGISTRY if _is_offered(feature.name, new)]
    # A feature that is supported may also be listed as unknown, for older releases.
    known = client.writes | set(offered) - client.unknown
    stated = {name: name in client.writes for name in offered if name in known}
    assert stated == {name: recorded_spark.supports(name) for name in offered}


def _is_offered(name: str, protocol: Protocol) -> bool:
    try:
        require_addable(name, protocol)
    except UnsupportedFeatureError:
        return False
    return True
