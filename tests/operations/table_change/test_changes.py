"""`upgrade-protocol` and `set-properties`: their plans and commits."""

from __future__ import annotations

import pytest

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import set_properties
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.protocol.features import supported_features, with_requirements
from tests.support.operations.table_changes import (
    NOW,
    RacedStore,
    apply_properties,
    built,
    lines,
    plan_properties,
    race,
    set_,
    upgrade,
)
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder

FEATURES = [
    "allowColumnDefaults",
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "checkpointProtection",
    "collations",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "generatedColumns",
    "geospatial",
    "icebergCompatV1",
    "icebergCompatV2",
    "identityColumns",
    "inCommitTimestamp",
    "materializePartitionColumns",
    "rowTracking",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "variantShredding",
    "variantType",
]


@pytest.mark.conformance("FEAT-07", "FEAT-09", "TXN-11")
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize(
    "protocol",
    [log.protocol(1, 1), log.protocol(1, 2), log.protocol(2, 5), log.features("deletionVectors")],
    ids=["1-1", "1-2", "2-5", "3-7"],
)
def test_every_feature_is_added_with_what_it_needs_and_nothing_else_changes(
    feature: str, protocol: log.Action
) -> None:
    table = built(log.add("a"), protocol=protocol)
    before = table.open().snapshot()
    result = upgrade(table.open(), feature)
    after = table.open().snapshot()
    wanted = supported_features(before.protocol) | with_requirements([feature])
    assert supported_features(after.protocol) == wanted
    assert (after.metadata, after.live_files()) == (before.metadata, before.live_files())
    expected = "nothing-to-do" if wanted == supported_features(before.protocol) else "committed"
    assert (result.status, upgrade(table.open(), feature).status) == (expected, "nothing-to-do")
    if expected == "committed":
        assert set(result.added_features) == wanted - supported_features(before.protocol)
        assert [*(key for line in lines(table, 1) for key in line)] == ["commitInfo", "protocol"]


@pytest.mark.conformance("TXN-10")
def test_the_history_has_the_operation_names_of_delta_spark() -> None:
    table = built()
    upgrade(table.open(), "v2Checkpoint")
    set_(table.open(), logRetentionDuration="interval 7 days")
    set_(table.open(), ("delta.logRetentionDuration", "mine"))
    infos = [lines(table, version)[0]["commitInfo"] for version in (1, 2, 3)]
    assert [(info["operation"], info["operationParameters"]) for info in infos] == [
        (
            "UPGRADE PROTOCOL",
            {
                "newProtocol": '{"minReaderVersion":3,"minWriterVersion":7,'
                '"readerFeatures":["v2Checkpoint"],'
                '"writerFeatures":["appendOnly","invariants","v2Checkpoint"]}'
            },
        ),
        ("SET TBLPROPERTIES", {"properties": '{"delta.logRetentionDuration":"interval 7 days"}'}),
        (
            "UNSET TBLPROPERTIES",
            {"properties": '["delta.logRetentionDuration","mine"]', "ifExists": "true"},
        ),
    ]


@pytest.mark.conformance("FEAT-18")
def test_a_plan_lists_changes_and_clients_and_writes_nothing() -> None:
    table = built(log.add("a"))
    names = table.names()
    options = SetPropertiesOptions(properties={"delta.columnMapping.mode": "name", "owner": "me"})
    plan = set_properties.plan(table.open().snapshot(), options, context=RunContext.at(NOW))
    assert table.names() == names
    assert {change.name: (change.before, change.after) for change in plan.changes} == {
        "delta.columnMapping.mode": (None, "name"),
        "delta.columnMapping.maxColumnId": (None, "2"),
        "owner": (None, "me"),
    }
    polars = next(cut for cut in plan.cut_off if cut.client.startswith("Polars"))
    assert (polars.reading, polars.writing, polars.features) == (
        "ends",
        "stays",
        ("columnMapping",),
    )
    assert plan.maps_columns and plan.added_features == ("columnMapping",)
    assert plan.protocol_after.writer_features == ("appendOnly", "columnMapping", "invariants")


@pytest.mark.conformance("META-02", "META-03", "FEAT-08", "CONS-02", "CONS-03", "TW-03")
@pytest.mark.conformance("CM-10", "SCHEMA-04")
def test_a_changed_property_keeps_every_other_byte_of_the_metadata() -> None:
    schema = (
        '{ "type":"struct", "fields":[{"name":"id","type":"long","nullable":true,"metadata":'
        '{"delta.identity.highWaterMark":9007199254740993,"CURRENT_DEFAULT":"1","x":1.10,'
        '"delta.invariants":"{\\"expression\\":{\\"expression\\":\\"id > 0\\"}}",'
        '"delta.columnMapping.nested.ids":{"id.element":7},"delta.generationExpression":"1","__CHAR_VARCHAR_TYPE_STRING":"char(3)",'
        '"delta.typeChanges":[{"fromType":"integer","toType":"long","tableVersion":3}]}}]}'
    )
    table = TableBuilder()
    configuration = {"delta.constraints.c": "id >= 0", "delta.appendOnly": "true", "own": "x"}
    table.commit(
        [
            log.protocol(1, 6),
            log.metadata(
                schema=schema, configuration=configuration, name="n", createdTime=5, future=[1]
            ),
        ]
    )
    set_(table.open(), checkpointInterval="20")
    [info, after] = lines(table, 1)
    before = lines(table, 0)[1]["metaData"]
    changed = {**before["configuration"], "delta.checkpointInterval": "20"}
    assert after["metaData"] == {**before, "configuration": changed}
    assert after["metaData"]["schemaString"] == schema


@pytest.mark.conformance("FEAT-08")
def test_an_existing_change_is_not_committed_again() -> None:
    table = built(configuration={"delta.appendOnly": "true"})
    for result in (
        set_(table.open(), appendOnly="true"),
        set_(table.open(), ("delta.checkpointInterval",)),
        upgrade(table.open(), "invariants"),
        upgrade(table.open(), writer_version=2),
    ):
        assert result.status == "nothing-to-do" and result.notes
    assert table.version == 0 and len(table.names()) == 1


@pytest.mark.conformance("ICT-04", "ICT-05")
def test_in_commit_timestamps_are_enabled_with_a_permanent_record() -> None:
    table = built()
    set_(table.open(), enableInCommitTimestamps="true")
    set_(table.open(), checkpointInterval="3")
    first = lines(table, 1)[0]["commitInfo"]["inCommitTimestamp"]
    for version in (1, 2):
        configuration = lines(table, version)[-1]["metaData"]["configuration"]
        assert configuration["delta.inCommitTimestampEnablementVersion"] == "1"
        assert configuration["delta.inCommitTimestampEnablementTimestamp"] == str(first)
    assert lines(table, 2)[0]["commitInfo"]["inCommitTimestamp"] > first


@pytest.mark.conformance("ICT-04")
def test_the_in_commit_timestamp_record_is_updated_after_a_lost_race() -> None:
    table = built()
    race(table, log.commit_info(), log.add("a"))
    result = set_(table.open(), enableInCommitTimestamps="true")
    assert (result.status, result.version, result.attempts) == ("committed", 2, 2)
    configuration = lines(table, 2)[-1]["metaData"]["configuration"]
    assert configuration["delta.inCommitTimestampEnablementVersion"] == "2"


@pytest.mark.conformance("RT-09", "RT-11")
def test_row_tracking_is_enabled_at_once_where_there_are_no_files() -> None:
    table = built()
    plan = plan_properties(table.open(), enableRowTracking="true")
    assert apply_properties(table.open(), plan).status == "committed"
    snapshot = table.open().snapshot()
    assert snapshot.properties.enable_row_tracking
    assert supported_features(snapshot.protocol) >= {"rowTracking", "domainMetadata"}
    names = {
        snapshot.properties.materialized_row_id_column,
        snapshot.properties.materialized_row_commit_version_column,
    }
    assert names == {
        f"_row-id-col-{plan.operation_id}",
        f"_row-commit-version-col-{plan.operation_id}-1",
    }
    with_files = built(log.add("a"))
    with pytest.raises(RefusedError, match="backfill-row-ids"):
        set_(with_files.open(), enableRowTracking="true")


@pytest.mark.conformance("ICE-02", "ICE-03")
def test_iceberg_compatibility_looks_at_the_files_that_are_there() -> None:
    wanted = {"columnMapping_mode": "name", "enableIcebergCompatV2": "true"}
    plain = built(log.add("a"))
    plan = plan_properties(plain.open(), **wanted)
    assert any("REORG TABLE" in note for note in plan.notes)
    assert apply_properties(plain.open(), plan).status == "committed"

    with_vector = built(
        log.add("a", dv=log.deletion_vector(), stats='{"numRecords":9}'),
        protocol=log.features("deletionVectors"),
    )
    with pytest.raises(RefusedError, match=r"no deletion vectors, of which there are 1.*REORG"):
        plan_properties(with_vector.open(), **wanted)

    partitioned = TableBuilder(RacedStore())
    partitioned.commit([log.protocol(), log.metadata(partitioned_by=["p"])])
    first = {"columnMapping_mode": "name", "enableIcebergCompatV1": "true"}
    plan = plan_properties(partitioned.open(), **first)
    race(partitioned, log.add("p=1/a", partitionValues={"p": "1"}))
    assert apply_properties(partitioned.open(), plan).status == "conflict"
    with pytest.raises(RefusedError, match=r"in all data files, of which there are 1.*REORG"):
        plan_properties(partitioned.open(), **first)
