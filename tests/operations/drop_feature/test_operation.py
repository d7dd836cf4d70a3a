"""Dropping a feature with its history kept: what is done, what is left, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError, RefusedError, UnsupportedFeatureError
from delta_maintenance.operations import drop_feature
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.drop_feature import DropFeaturePlan, DropFeatureResult
from delta_maintenance.protocol.features import supported_features
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.faults.fault_store import FaultStore
from tests.support.logs.checkpointing import as_checkpointed, on_disk, state_of
from tests.support.tables import actions as log
from tests.support.tables.droppable_tables import (
    BASIC,
    STATS,
    TABLES,
    Clock,
    Droppable,
    built,
    comparable,
    drop,
    planned,
)
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

ALL = list(TABLES.values())
PROTECTED_BEFORE = "delta.requireCheckpointProtectionBeforeVersion"
READERS = [table for table in ALL if table.truncated is not None]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def table_of(clock: Clock, protocol: log.Action, *lines: log.Action, **more: Any) -> TableBuilder:
    builder = TableBuilder()
    builder.commit([protocol, log.metadata(**more), *lines])
    clock.govern(builder.store)
    return builder


def lines(store: Store, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in store.read(f"_delta_log/{version:020}.json").splitlines()]


def only(store: Store, version: int, name: str) -> list[dict[str, Any]]:
    return [line[name] for line in lines(store, version) if name in line]


def operations(store: Store, versions: Sequence[int]) -> list[str]:
    return [only(store, version, "commitInfo")[0]["operation"] for version in versions]


def live(store: Store) -> list[str]:
    return sorted(Table(store).snapshot().live_files()["path"].to_pylist())


@pytest.mark.conformance("FEAT-14", "FEAT-15", "CPROT-04")
@pytest.mark.parametrize("table", ALL, ids=lambda table: table.feature)
def test_a_feature_is_dropped_and_every_version_reads_as_before(
    table: Droppable, clock: Clock
) -> None:
    builder = built(table, clock)
    store = builder.store
    before = [state_of(Table(store).snapshot(version=v)) for v in range(builder.version + 1)]

    result = drop(store, clock, table.feature)

    snapshot = Table(store).snapshot()
    assert result.status == "dropped" and result.version == snapshot.version
    assert comparable(snapshot.protocol.to_json()) == comparable(table.protected["protocol"])
    assert table.feature not in supported_features(snapshot.protocol)
    own = {"user.own": "1", **table.left}
    protects = table.truncated is not None
    protection = {PROTECTED_BEFORE: str(snapshot.version)} if protects else {}
    assert dict(snapshot.metadata.configuration) == own | protection
    assert set(state_of(snapshot).live) == set(before[-1].live)
    for version, state in enumerate(before):
        assert as_checkpointed(state_of(Table(store).snapshot(version=version))) == (
            as_checkpointed(state)
        )


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.feature)
def test_deltalake_reads_the_table_afterwards(
    table: Droppable, clock: Clock, tmp_path: Path
) -> None:
    builder = built(table, clock)
    drop(builder.store, clock, table.feature)
    read = deltalake.DeltaTable(on_disk(builder.store, tmp_path))
    files = pa_paths(read)
    assert files == live(builder.store)


def pa_paths(table: deltalake.DeltaTable) -> list[str]:
    return sorted(str(uri).rpartition("/")[2] for uri in table.file_uris())


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.feature)
def test_the_plan_reads_only_and_lists_the_steps(table: Droppable, clock: Clock) -> None:
    builder = built(table, clock)
    store = FaultStore(builder.store)
    plan = planned(store, clock, table.feature)
    assert {step.kind for step in store.trace} <= {"list_from", "read", "open", "stat"}
    assert DropFeaturePlan.from_json(plan.to_json()) == plan
    assert plan.ends == "dropped" and plan.reason

    result = drop_feature.apply(Table(store), plan, context=RunContext.at(clock))
    assert DropFeatureResult.from_json(result.to_json()) == result
    done = list(dict.fromkeys(commit.kind for commit in result.commits))
    assert done == [step.kind for step in plan.steps if step.kind != "checkpoint"]
    assert result.protocol == plan.protocol_after
    versions = [commit.version for commit in result.commits]
    assert versions == list(range(builder.version + 1, result.version + 1))


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.feature)
def test_running_it_again_does_nothing(table: Droppable, clock: Clock) -> None:
    builder = built(table, clock)
    plan = planned(builder.store, clock, table.feature)
    first = drop_feature.apply(Table(builder.store), plan, context=RunContext.at(clock))
    names = builder.names()

    again = drop_feature.apply(Table(builder.store), plan, context=RunContext.at(clock))
    assert (again.status, again.version, again.commits) == ("dropped", first.version, ())
    anew = drop(builder.store, clock, table.feature)
    assert (anew.status, anew.commits) == ("nothing-to-do", ())
    assert builder.names() == names


def test_a_zombie_leaves_a_feature_alone_that_was_added_again(clock: Clock) -> None:
    builder = built(TABLES["v2Checkpoint"], clock)
    plan = planned(builder.store, clock, "v2Checkpoint")
    dropped = drop_feature.apply(Table(builder.store), plan, context=RunContext.at(clock))
    configuration = {"delta.checkpointPolicy": "v2"}
    builder.commit(
        [log.features("v2Checkpoint"), log.metadata(configuration=configuration)],
        version=dropped.version + 1,
    )
    again = drop_feature.apply(Table(builder.store), plan, context=RunContext.at(clock))
    assert (again.status, again.version, again.commits) == ("dropped", dropped.version, ())
    assert Table(builder.store).snapshot().properties.checkpoint_policy == "v2"


@pytest.mark.conformance("TXN-12", "FEAT-14")
@pytest.mark.parametrize("table", READERS, ids=lambda table: table.feature)
def test_three_checkpoints_stand_between_the_feature_and_its_end(
    table: Droppable, clock: Clock
) -> None:
    builder = built(table, clock)
    result = drop(builder.store, clock, table.feature)
    barrier = [c.version for c in result.commits if c.kind == "barrier-checkpoints"]
    assert len(barrier) == 3 and set(barrier) <= set(result.checkpoints)
    assert operations(builder.store, barrier) == ["Empty Commit"] * 3
    assert max(barrier) < result.version and result.version in result.checkpoints
    for version in barrier:
        checkpoint = Table(builder.store).snapshot(version=version).log.checkpoint
        assert checkpoint is not None and checkpoint.files.version == version
        assert checkpoint.is_v2 == (
            table.configuration.get("delta.checkpointPolicy") == "v2"
            and table.feature != "v2Checkpoint"
        )
    info = only(builder.store, result.version, "commitInfo")[0]
    assert info["operation"] == "DROP FEATURE"
    assert info["operationParameters"] == {"featureName": table.feature, "truncateHistory": "false"}


def test_a_property_that_is_off_is_left_alone(clock: Clock) -> None:
    builder = table_of(
        clock,
        log.features("deletionVectors"),
        configuration={"delta.enableDeletionVectors": "false"},
    )
    result = drop(builder.store, clock, "deletionVectors")
    assert "switch-off" not in {commit.kind for commit in result.commits}
    assert Table(builder.store).snapshot().metadata.configuration[
        "delta.enableDeletionVectors"
    ] == ("false")


@pytest.mark.conformance("RT-08", "RT-20", "DOM-05")
def test_row_tracking_is_dropped_with_everything_that_belongs_to_it(clock: Clock) -> None:
    builder = built(TABLES["rowTracking"], clock)
    store = builder.store
    result = drop(store, clock, "rowTracking", files_per_commit=2)
    kinds = [commit.kind for commit in result.commits]
    assert kinds == ["switch-off", "strip-files", "strip-files", "drop"]
    off, one, two, end = (commit.version for commit in result.commits)

    assert operations(store, [off]) == ["SET TBLPROPERTIES"]
    configuration = only(store, off, "metaData")[0]["configuration"]
    assert configuration["delta.enableRowTracking"] == "false"
    assert configuration["delta.rowTrackingSuspended"] == "true"
    assert operations(store, [one, two]) == ["ROW TRACKING UNBACKFILL"] * 2
    added = [*only(store, one, "add"), *only(store, two, "add")]
    assert sorted(add["path"] for add in added) == ["a", "f1", "f2", "f3"]
    for add in added:
        assert add["dataChange"] is False and add["stats"] == STATS
        assert not add.keys() & {"baseRowId", "defaultRowCommitVersion"}
    removed = only(store, end, "domainMetadata")
    assert removed == [
        {
            "domain": "delta.rowTracking",
            "configuration": '{"rowIdHighWaterMark":39}',
            "removed": True,
        }
    ]
    files = Table(store).snapshot().live_files()
    assert files["base_row_id"].null_count == files.num_rows == 4
    assert files["default_row_commit_version"].null_count == 4


def test_row_ids_are_taken_from_tables_that_merely_support_them(clock: Clock) -> None:
    protocol = log.protocol(1, 7, writer_features=["domainMetadata", "rowTracking"])
    builder = table_of(clock, protocol, log.add("a", stats=STATS, defaultRowCommitVersion=0))
    assert drop(builder.store, clock, "rowTracking").status == "dropped"
    files = Table(builder.store).snapshot().live_files()
    assert files["default_row_commit_version"].to_pylist() == [None]


def test_statistics_that_are_structs_only_survive_the_loss_of_row_ids(clock: Clock) -> None:
    protocol = log.protocol(1, 7, writer_features=["domainMetadata", "rowTracking"])
    builder = table_of(clock, protocol)
    stats = {"numRecords": 7, "minValues": {"id": 3}, "maxValues": {"id": 9}}
    builder.commit([log.add("a", stats=json.dumps(stats), baseRowId=0)])
    state = builder.state()
    for action in state:
        if "add" in action:
            action["add"] = {k: v for k, v in action["add"].items() if k != "stats"}
            action["add"]["stats_parsed"] = stats
    builder.checkpoint(actions=state)
    clock.govern(builder.store)
    result = drop(builder.store, clock, "rowTracking")
    (version,) = (c.version for c in result.commits if c.kind == "strip-files")
    assert json.loads(only(builder.store, version, "add")[0]["stats"]) == stats


@pytest.mark.conformance("FEAT-14")
def test_vector_files_that_older_versions_need_get_tombstones(clock: Clock) -> None:
    clock.pass_by(timedelta(days=6))
    builder = table_of(clock, log.features("deletionVectors", writer_only=BASIC))
    uuid = "^-aqEH.-t@S}K{vb[*k^"
    recent = {"deletionTimestamp": EPOCH_MS + 1}
    old = {"deletionTimestamp": EPOCH_MS - 86_400_000 * 30}
    absolute = "s3://elsewhere/t/deletion_vector_1.bin"
    builder.commit(
        [
            log.remove("one", dv=log.deletion_vector(f"x y{uuid}"), **recent),
            log.remove("two", dv=log.deletion_vector(f"x y{uuid}", offset=50), **recent),
            log.remove("three", dv=log.deletion_vector(absolute, storage_type="p"), **recent),
            log.remove("four", dv=log.deletion_vector("0rr", storage_type="i"), **recent),
            log.remove("five", dv=log.deletion_vector(f"old{uuid}"), **old),
            log.remove("six", dv=log.deletion_vector(f"done{uuid}"), **recent),
        ]
    )
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    builder.commit([log.remove(f"done/{name}", dataChange=False, **recent)])
    clock.govern(builder.store)
    result = drop(builder.store, clock, "deletionVectors")
    (version,) = (c.version for c in result.commits if c.kind == "keep-vector-files")
    assert operations(builder.store, [version]) == ["Deletion Vector Tombstones"]
    removes = only(builder.store, version, "remove")
    assert sorted(remove["path"] for remove in removes) == [absolute, f"x%20y/{name}"]
    for remove in removes:
        assert remove["dataChange"] is False and "deletionVector" not in remove
        assert remove["deletionTimestamp"] == EPOCH_MS + 1000 * (86_400 * 6 + 3630)


@pytest.mark.conformance("ICT-01")
def test_commits_carry_no_time_once_that_is_switched_off(clock: Clock) -> None:
    builder = built(TABLES["inCommitTimestamp"], clock)
    result = drop(builder.store, clock, "inCommitTimestamp")
    assert [commit.kind for commit in result.commits] == ["switch-off", "drop"]
    for commit in result.commits:
        assert "inCommitTimestamp" not in only(builder.store, commit.version, "commitInfo")[0]
    history = Table(builder.store).history()
    assert [entry.version for entry in history] == list(range(result.version, -1, -1))


def test_one_pass_over_the_files_is_enough(clock: Clock) -> None:
    protocol = log.protocol(1, 7, writer_features=["domainMetadata", "rowTracking"])
    ids = [log.add(f"f{n}", stats=STATS, baseRowId=10 * n) for n in range(9)]
    builder = table_of(clock, protocol, *ids)
    result = drop(builder.store, clock, "rowTracking", files_per_commit=1)
    assert [c.kind for c in result.commits].count("strip-files") == 9
    assert Table(builder.store).snapshot().live_files()["base_row_id"].null_count == 9


@pytest.mark.conformance("DOM-04")
def test_domains_are_dropped_and_their_contents_kept(clock: Clock) -> None:
    builder = built(TABLES["domainMetadata"], clock)
    plan = planned(builder.store, clock, "domainMetadata")
    assert "app, delta.clustering" in plan.steps[0].detail
    result = drop(builder.store, clock, "domainMetadata")
    (version,) = (c.version for c in result.commits if c.kind == "remove-domains")
    assert only(builder.store, version, "domainMetadata") == [
        {"domain": "app", "configuration": '{"a":1}', "removed": True},
        {"domain": "delta.clustering", "configuration": "{}", "removed": True},
    ]
    assert Table(builder.store).snapshot().domain_metadata == {}


SCHEMA = json.loads(log.SCHEMA_STRING)


def schema_with(**field: Any) -> str:
    column = {"name": "more", "type": "long", "nullable": True, "metadata": {}, **field}
    return json.dumps({**SCHEMA, "fields": [*SCHEMA["fields"], column]})


WIDENED = schema_with(metadata={"delta.typeChanges": [{"fromType": "integer", "toType": "long"}]})
NESTED = schema_with(
    type={
        "type": "array",
        "elementType": {"type": "map", "keyType": "long", "valueType": "geometry(OGC:CRS84)"},
    }
)


@pytest.mark.conformance("FEAT-14", "CM-01", "TW-04", "TW-05")
@pytest.mark.parametrize(
    ("feature", "protocol", "metadata", "file", "words"),
    [
        ("columnMapping", log.protocol(2, 5), {"schema": schema_with(name="a b")}, None, "'a b'"),
        ("geospatial", log.features("geospatial"), {"schema": NESTED}, None, "column more"),
        ("checkConstraints", log.protocol(1, 3), {"configuration": {
            "delta.constraints.positive": "id > 0"}}, None, "constraint positive"),
        ("domainMetadata", log.protocol(1, 7, writer_features=["domainMetadata"]), {}, log.domain(
            "delta.unheard-of"), "delta.unheard-of"),
        ("domainMetadata", log.protocol(1, 7, writer_features=["domainMetadata", "clustering"]),
            {}, None, "required by clustering"),
        ("columnMapping", log.features("columnMapping", writer_only=["icebergCompatV1"]),
            {}, None, "required by icebergCompatV1"),
        ("appendOnly", log.protocol(), {}, None, "cannot be dropped"),
        ("timestampNtz", log.features("timestampNtz"), {}, None, "cannot be dropped"),
        ("checkpointProtection", log.protocol(1, 7, writer_features=["checkpointProtection"]),
            {}, None, "together with the history"),
        ("typeWidening", log.features("typeWidening-preview"), {}, None, "typeWidening-preview"),
    ],
)  # fmt: skip
def test_what_has_to_be_done_by_somebody_else_first_is_refused(
    clock: Clock,
    feature: str,
    protocol: log.Action,
    metadata: dict[str, Any],
    file: log.Action | None,
    words: str,
) -> None:
    builder = table_of(clock, protocol, *([file] if file else []), **metadata)
    names = builder.names()
    with pytest.raises(RefusedError) as refused:
        planned(builder.store, clock, feature)
    assert words in refused.value.problem and refused.value.remedy
    assert refused.value.version == 0 and builder.names() == names


def test_wrong_requests_are_refused(clock: Clock) -> None:
    builder = built(TABLES["rowTracking"], clock)
    with pytest.raises(InvalidRequestError, match="leave out --truncate-history"):
        planned(builder.store, clock, "rowTracking", truncate_history=True)
    with pytest.raises(InvalidRequestError, match="files_per_commit"):
        planned(builder.store, clock, "rowTracking", files_per_commit=0)
    with pytest.raises(UnsupportedFeatureError, match="unknown table feature 'rowtracking'"):
        planned(builder.store, clock, "rowtracking")


def test_the_preview_has_its_own_name(clock: Clock) -> None:
    builder = table_of(clock, log.features("typeWidening-preview", "timestampNtz"))
    assert drop(builder.store, clock, "typeWidening-preview").status == "dropped"
    assert Table(builder.store).snapshot().protocol.reader_features == ("timestampNtz",)


def test_an_unknown_feature_beside_it_forbids_the_drop(clock: Clock) -> None:
    protocol = log.features("vacuumProtocolCheck", writer_only=["fromTheFuture"])
    builder = table_of(clock, protocol)
    with pytest.raises(UnsupportedFeatureError, match="fromTheFuture"):
        planned(builder.store, clock, "vacuumProtocolCheck")


def test_the_other_writers_must_be_declared_on_s3(clock: Clock) -> None:
    class OnS3(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.address = Address.parse("s3://bucket/table")

    builder = TABLES["vacuumProtocolCheck"].build(OnS3())
    clock.govern(builder.store)
    for said in (None, "spark"):
        with pytest.raises(RefusedError):
            planned(builder.store, clock, "vacuumProtocolCheck", other_writers=said)
    done = drop(builder.store, clock, "vacuumProtocolCheck", other_writers="conditional_put")
    assert done.status == "dropped"


def test_a_plan_for_another_protocol_is_refused(clock: Clock) -> None:
    builder = built(TABLES["vacuumProtocolCheck"], clock)
    plan = planned(builder.store, clock, "vacuumProtocolCheck")
    builder.commit([log.features("vacuumProtocolCheck", "timestampNtz")])
    clock.govern(builder.store)
    names = builder.names()
    with pytest.raises(RefusedError, match="plan again"):
        drop_feature.apply(Table(builder.store), plan, context=RunContext.at(clock))
    assert builder.names() == names
