"""`upgrade-protocol` and `set-properties`: what they plan, what they commit, and beside whom."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from delta_maintenance import open_table
from delta_maintenance.errors import (
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations import set_properties, upgrade_protocol
from delta_maintenance.operations.set_properties import (
    SetPropertiesOptions,
    SetPropertiesPlan,
    SetPropertiesResult,
)
from delta_maintenance.operations.upgrade_protocol import (
    UpgradeProtocolOptions,
    UpgradeProtocolPlan,
    UpgradeProtocolResult,
)
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.features.registry import supported_features, with_requirements
from delta_maintenance.storage.core.base import Put
from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.table.read.table import Table
from delta_maintenance.testing import actions as log
from delta_maintenance.testing.table_builder import EPOCH_MS, TableBuilder

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(hours=1)
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


class RacedStore(MemoryStore):
    """Lets others act at the last moment before a put of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.races: list[Callable[[], object]] = []

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.races and path.endswith(".json"):
            self.races.pop(0)()
        return super().put_if_absent(path, data)


def built(
    *more: log.Action,
    protocol: log.Action | None = None,
    configuration: Mapping[str, str] | None = None,
) -> TableBuilder:
    table = TableBuilder(RacedStore())
    table.commit([protocol or log.protocol(), log.metadata(configuration=configuration), *more])
    return table


def race(table: TableBuilder, *lines: log.Action) -> None:
    store = table.store
    assert isinstance(store, RacedStore)
    store.races.append(lambda: table.commit(lines))


def plan_properties(
    table: Table, remove: tuple[str, ...] = (), /, **given: Any
) -> SetPropertiesPlan:
    operation_id = given.pop("operation_id", None)
    properties = {f"delta.{name.replace('_', '.')}": value for name, value in given.items()}
    options = SetPropertiesOptions(properties=properties, remove=remove, operation_id=operation_id)
    return set_properties.plan(table.snapshot(), options, now=NOW)


def apply_properties(table: Table, plan: SetPropertiesPlan) -> SetPropertiesResult:
    # As an orchestrator hands it on.
    plan = SetPropertiesPlan.from_json(json.loads(json.dumps(plan.to_json())))
    result = set_properties.apply(table, plan, now=lambda: NOW, sleep=lambda _: None)
    assert SetPropertiesResult.from_json(result.to_json()) == result
    return result


def set_(table: Table, remove: tuple[str, ...] = (), /, **properties: Any) -> SetPropertiesResult:
    return apply_properties(table, plan_properties(table, remove, **properties))


def plan_upgrade(table: Table, *features: str, **options: Any) -> UpgradeProtocolPlan:
    given = UpgradeProtocolOptions(features=features, **options)
    return upgrade_protocol.plan(table.snapshot(), given, now=NOW)


def apply_upgrade(table: Table, plan: UpgradeProtocolPlan) -> UpgradeProtocolResult:
    plan = UpgradeProtocolPlan.from_json(json.loads(json.dumps(plan.to_json())))
    result = upgrade_protocol.apply(table, plan, now=lambda: NOW, sleep=lambda _: None)
    assert UpgradeProtocolResult.from_json(result.to_json()) == result
    return result


def upgrade(table: Table, *features: str, **options: Any) -> UpgradeProtocolResult:
    return apply_upgrade(table, plan_upgrade(table, *features, **options))


def lines(table: TableBuilder, version: int) -> list[dict[str, Any]]:
    text = table.read(f"{version:020d}.json").decode()
    return [json.loads(line) for line in text.splitlines()]


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
def test_the_history_speaks_as_delta_spark_does() -> None:
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
    plan = set_properties.plan(table.open().snapshot(), options, now=NOW)
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
def test_a_property_changes_itself_and_every_other_byte_of_the_metadata_stays() -> None:
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
def test_in_commit_timestamps_are_enabled_with_their_record_which_stays() -> None:
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
def test_the_record_of_in_commit_timestamps_follows_a_lost_race() -> None:
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


@pytest.mark.conformance("RT-11")
def test_a_file_that_comes_while_row_tracking_is_enabled_ends_it() -> None:
    for lines_ in ([log.add("late")],):
        table = built()
        race(table, *lines_)
        result = set_(table.open(), enableRowTracking="true")
        assert result.status == "conflict" and "late" in (result.problem or "")
        assert not table.open().snapshot().properties.enable_row_tracking
    table = built()
    plan = plan_properties(table.open(), enableRowTracking="true")
    table.commit([log.add("between")])
    with pytest.raises(RefusedError, match="backfill-row-ids"):
        apply_properties(table.open(), plan)


@pytest.mark.conformance("TXN-04")
@pytest.mark.parametrize(
    "winner",
    [
        [log.metadata(configuration={"delta.checkpointInterval": "9"})],
        [log.metadata(partitioned_by=["part"])],
        [log.features("deletionVectors")],
        [log.protocol(1, 3)],
    ],
    ids=["property", "partitioning", "features", "versions"],
)
@pytest.mark.parametrize("when", ["between", "racing"])
def test_the_first_change_of_protocol_or_metadata_wins(winner: list[log.Action], when: str) -> None:
    table = built(log.add("a"))
    plan = plan_properties(table.open(), enableChangeDataFeed="true")
    if when == "racing":
        race(table, *winner)
    else:
        table.commit(winner)
    result = apply_properties(table.open(), plan)
    # Of the metadata only what the plan is about matters, as long as nobody is racing.
    may_follow = when == "between" and "metaData" in winner[0]
    assert result.status == ("committed" if may_follow else "conflict")
    assert table.open().snapshot().properties.enable_change_data_feed is may_follow
    if not may_follow:
        assert "again" in (result.problem or "")
        assert table.open().snapshot().version == 1
        assert set_(table.open(), enableChangeDataFeed="true").status == "committed"


@pytest.mark.conformance("TXN-04", "FEAT-07")
def test_a_plan_is_not_carried_out_where_it_would_mean_something_else() -> None:
    table = built()
    raised = plan_upgrade(table.open(), "deletionVectors")
    table.commit([log.features("v2Checkpoint", writer_only=["appendOnly", "invariants"])])
    result = apply_upgrade(table.open(), raised)
    assert result.status == "conflict" and "plan again" in (result.problem or "")
    changed = plan_properties(table.open(), checkpointInterval="5")
    table.commit([log.metadata(configuration={"delta.checkpointInterval": "7"})])
    assert apply_properties(table.open(), changed).status == "conflict"
    assert table.version == 2


def test_appends_of_others_are_followed() -> None:
    table = built()
    race(table, log.add("a"))
    race(table, log.add("b"))
    result = upgrade(table.open(), "deletionVectors")
    assert (result.status, result.version, result.attempts) == ("committed", 3, 3)
    assert table.open().snapshot().counts.num_files == 2


@pytest.mark.conformance("META-04")
def test_a_plan_is_void_after_the_table_was_replaced() -> None:
    table = built()
    plan = plan_properties(table.open(), checkpointInterval="5")
    table.commit([log.metadata(id="another")])
    with pytest.raises(RefusedError, match="was replaced"):
        apply_properties(table.open(), plan)
    upgraded = plan_upgrade(table.open(), "deletionVectors")
    table.commit([log.metadata(id="a third")])
    with pytest.raises(RefusedError, match="was replaced"):
        apply_upgrade(table.open(), upgraded)


@pytest.mark.conformance("TXN-08")
def test_the_same_task_twice_ends_as_done() -> None:
    table = built()
    plan = plan_properties(table.open(), checkpointInterval="5")
    assert apply_properties(table.open(), plan).status == "committed"
    assert apply_properties(table.open(), plan).status == "already-done"
    table.commit([log.commit_info("WRITE"), log.add("a")], version=2)
    assert apply_properties(table.open(), plan).status == "already-done"
    # Somebody took it back: the first run is done all the same.
    table.commit([log.metadata()], version=3)
    assert apply_properties(table.open(), plan).status == "already-done"
    assert table.open().snapshot().version == 3


@pytest.mark.conformance("TXN-08")
def test_two_runs_of_one_task_at_once_make_one_commit() -> None:
    table = built()
    store = table.store
    assert isinstance(store, RacedStore)
    plan = plan_upgrade(table.open(), "deletionVectors")
    store.races.append(lambda: upgrade_protocol.apply(table.open(), plan))
    result = apply_upgrade(table.open(), plan)
    assert (result.status, result.version) == ("already-done", 1)
    assert table.open().snapshot().version == 1


@pytest.mark.parametrize("kind", ["set", "upgrade"])
def test_on_s3_the_other_writers_are_required(kind: str) -> None:
    table = built()
    table.store.root = "s3://lake/t"
    plan: Any
    if kind == "set":
        plan = plan_properties(table.open(), checkpointInterval="5")
        with pytest.raises(RefusedError, match="who else commits"):
            apply_properties(table.open(), plan)
        options = SetPropertiesOptions(
            properties={"delta.checkpointInterval": "5"}, other_writers="spark"
        )
        with pytest.raises(RefusedError, match="overwrites"):
            set_properties.plan(table.open().snapshot(), options, now=NOW)
    else:
        plan = plan_upgrade(table.open(), "deletionVectors")
        with pytest.raises(RefusedError, match="who else commits"):
            apply_upgrade(table.open(), plan)
        allowed = upgrade(table.open(), "deletionVectors", other_writers="conditional_put")
        assert allowed.status == "committed"


@pytest.mark.conformance("CAT-01", "ICE-06", "TXN-11", "FEAT-01")
@pytest.mark.parametrize(
    "names",
    [
        ["catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck"],
        ["rowIds"],
        ["fooBar"],
        ["liquid"],
        ["icebergCompatV3", "columnMapping", "rowTracking", "domainMetadata"],
        ["coordinatedCommits-preview", "inCommitTimestamp", "vacuumProtocolCheck"],
    ],
    ids=lambda names: names[0],
)
def test_tables_that_are_not_ours_to_change_are_left_alone(names: list[str]) -> None:
    readers = [name for name in names if name in ("catalogManaged", "vacuumProtocolCheck")]
    if "columnMapping" in names:
        readers.append("columnMapping")
    protocol = log.protocol(3, 7, reader_features=readers, writer_features=names)
    table = built(protocol=protocol)
    for change in (
        lambda: set_(table.open(), checkpointInterval="5"),
        lambda: upgrade(table.open(), "deletionVectors"),
    ):
        with pytest.raises(UnsupportedFeatureError, match=names[0]):
            change()
    assert len(table.names()) == 1


def test_requests_for_nothing_are_no_requests() -> None:
    table = built().open()
    with pytest.raises(InvalidRequestError):
        plan_properties(table)
    with pytest.raises(InvalidRequestError):
        plan_upgrade(table)


# Drafts of 2023.

MARK = {"rowIdHighWaterMark": {"highWaterMark": 41, "preservedRowIds": True}}


def drafted(*more: log.Action, names: tuple[str, ...] = ("rowIds", "appendOnly")) -> TableBuilder:
    return built(*more, protocol=log.protocol(1, 7, writer_features=names))


@pytest.mark.conformance("DRAFT-03", "DRAFT-04", "RT-05")
@pytest.mark.parametrize(
    ("table", "said", "expected"),
    [
        (lambda: drafted(MARK), "rowIds", 41),
        (lambda: drafted(names=("delta.rowIds",)), "rowIds", -1),
        (lambda: built(MARK), "rowIdHighWaterMark", 41),
        (
            lambda: built(
                log.domain("delta.rowTracking", {"rowIdHighWaterMark": "41"}),
                protocol=log.protocol(1, 7, writer_features=["rowTracking", "domainMetadata"]),
            ),
            "map",
            41,
        ),
        (
            lambda: built(
                log.domain("mine", {"a": "b"}),
                protocol=log.protocol(1, 7, writer_features=["domainMetadata"]),
            ),
            "map",
            None,
        ),
    ],
    ids=["feature", "other name", "action", "map", "map of others"],
)
def test_drafts_are_refused_by_name_and_converted_on_request(
    table: Callable[[], TableBuilder], said: str, expected: int | None
) -> None:
    builder = table()
    files = builder.names()
    for change in (
        lambda: set_(builder.open(), checkpointInterval="5"),
        lambda: upgrade(builder.open(), "deletionVectors"),
    ):
        with pytest.raises(DeltaMaintenanceError, match=said):
            change()
    assert builder.names() == files

    result = upgrade(builder.open(), convert_draft=True)
    assert result.status == "committed" and result.converted_domains
    snapshot = builder.open().snapshot()
    assert not {"rowIds", "delta.rowIds"} & {*(snapshot.protocol.writer_features or ())}
    assert not any(domain.draft_map for domain in snapshot.state.domains.values())
    if "mine" in snapshot.domain_metadata:
        assert snapshot.domain_metadata == {"mine": '{"a":"b"}'}
    else:
        mark = json.loads(snapshot.domain_metadata["delta.rowTracking"])
        assert mark == {"rowIdHighWaterMark": expected}
        assert supported_features(snapshot.protocol) >= {"rowTracking", "domainMetadata"}
    assert upgrade(builder.open(), convert_draft=True).status == "nothing-to-do"
    assert set_(builder.open(), checkpointInterval="5").status == "committed"


@pytest.mark.conformance("DRAFT-03", "RT-04", "RT-07")
def test_a_conversion_keeps_the_row_ids_of_files_and_never_lets_one_be_given_twice() -> None:
    table = drafted(MARK, log.add("a", baseRowId=90, stats='{"numRecords":10}'), log.add("b"))
    plan = plan_upgrade(table.open(), "deletionVectors", convert_draft=True)
    assert plan.converted_domains == ("delta.rowTracking",)
    assert any("high-water mark 99" in note for note in plan.notes)
    assert apply_upgrade(table.open(), plan).status == "committed"
    snapshot = table.open().snapshot()
    assert snapshot.domain_metadata == {"delta.rowTracking": '{"rowIdHighWaterMark":99}'}
    assert sorted(snapshot.live_files()["base_row_id"].to_pylist(), key=str) == [90, None]
    assert supported_features(snapshot.protocol) == {
        "appendOnly",
        "deletionVectors",
        "domainMetadata",
        "rowTracking",
    }


@pytest.mark.conformance("DRAFT-01")
def test_a_draft_spelling_is_replaced_where_a_protocol_is_written_anyway() -> None:
    table = built(protocol=log.features("timestampNTZ", writer_only=["columnInvariants"]))
    set_(table.open(), checkpointInterval="5")
    assert [*(key for line in lines(table, 1) for key in line)] == ["commitInfo", "metaData"]
    upgrade(table.open(), "timestampNtz")
    assert lines(table, 2)[1]["protocol"]["readerFeatures"] == ["timestampNtz"]
    assert lines(table, 2)[1]["protocol"]["writerFeatures"] == ["timestampNtz", "invariants"]


# The peers' defects, on tables that deltalake wrote. What its 1.6.6 commits in our place is written
# down beside each.


def keeps_all(before: Protocol, after: Protocol) -> bool:
    closed = with_requirements(supported_features(after))
    return supported_features(before) <= supported_features(after) == closed


def of_deltalake(root: Path, **constraints: str) -> Table:
    write_deltalake(root, pa.table({"id": [1, 2, 3]}))
    if constraints:
        DeltaTable(root).alter.add_constraint(constraints)
    return open_table(str(root))


@pytest.mark.conformance("FEAT-06", "CONS-02")
def test_d3_a_constraint_is_still_enforced_after_another_feature_came(tmp_path: Path) -> None:
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
def test_d11_row_tracking_adds_domains_and_lists_all_affected_clients(
    tmp_path: Path,
) -> None:
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
