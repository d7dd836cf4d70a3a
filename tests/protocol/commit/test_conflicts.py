"""Conflicts over row IDs, domains, metadata, features and files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delta_maintenance.protocol.actions import CommitInfo, DomainMetadata, Metadata, Txn
from delta_maintenance.protocol.commit.build import Provenance, build
from delta_maintenance.protocol.commit.conflicts import (
    BACKFILL,
    UNBACKFILL,
    ConcurrentCommit,
    Conflict,
    IsolationLevel,
    Rebased,
    Rule,
    check,
)
from delta_maintenance.protocol.commit.staged import ReadSet, StagedActions
from delta_maintenance.protocol.row_tracking.row_ids import DOMAIN, render_domain_configuration
from tests.support.logs.concurrent_commits import (
    FEATURES,
    METADATA,
    OPERATIONS,
    PROTOCOL,
    WINNERS,
    adds,
    append,
    attempt,
    backfill,
    changed,
    empty,
    optimize,
    paths,
    properties,
    removes,
    with_features,
    won,
)
from tests.support.tables import actions as log

ENABLING = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_version",
}


@pytest.mark.conformance("RT-14", "RT-07")
@pytest.mark.parametrize("mine", ["optimize", "recompute", "repair"])
def test_row_ids_of_a_concurrent_backfill_are_kept(mine: str) -> None:
    result = check(OPERATIONS[mine](), WINNERS["backfill"]())
    assert isinstance(result, Rebased)
    actions = result.attempt.actions
    batch = actions.removes if actions.removes.num_rows else actions.adds
    row = batch.to_pylist()[0]
    assert (row["path"], row["baseRowId"], row["defaultRowCommitVersion"]) == ("a", 7, 5)
    assert result.dropped_files == 0


@pytest.mark.conformance("RT-14")
def test_two_backfills_assign_row_ids_once() -> None:
    result = check(backfill(), WINNERS["backfill"]())
    assert isinstance(result, Rebased)
    assert paths(result.attempt.actions.adds) == ["b"]


@pytest.mark.conformance("RT-20")
def test_removed_row_ids_are_not_restored() -> None:
    ours = attempt(
        "COMPUTE STATS",
        ReadSet(files=adds("a")),
        adds=adds("a", baseRowId=3, defaultRowCommitVersion=1),
    )
    result = check(ours, won(UNBACKFILL, adds=adds("a")))
    assert isinstance(result, Rebased)
    assert result.attempt.actions.adds["baseRowId"].to_pylist() == [None]


@pytest.mark.conformance("RT-14")
@pytest.mark.parametrize(("mine", "winner"), [(BACKFILL, UNBACKFILL), (UNBACKFILL, BACKFILL)])
def test_assigning_and_removing_row_ids_conflict(mine: str, winner: str) -> None:
    ours = attempt(mine, ReadSet(files=adds("a")), adds=adds("a"))
    result = check(ours, won(winner, adds=adds("x")))
    assert isinstance(result, Conflict)
    assert result.rule is Rule.ROW_TRACKING


@pytest.mark.conformance("RT-02", "RT-04", "RT-06", "RT-14")
def test_row_ids_continue_above_the_concurrent_high_water_mark() -> None:
    mark = DomainMetadata(domain=DOMAIN, configuration=render_domain_configuration(149))
    winner = won(adds=adds("x", baseRowId=100, dataChange=True), domains={DOMAIN: mark})
    first = build(append(), PROVENANCE, now_ms=1)
    assert first.actions.adds["baseRowId"].to_pylist() == [100]
    assert first.actions.adds["defaultRowCommitVersion"].to_pylist() == [5]
    result = check(append(), winner)
    assert isinstance(result, Rebased)
    second = build(result.attempt, PROVENANCE, now_ms=1)
    assert second.actions.adds["baseRowId"].to_pylist() == [150]
    assert second.actions.adds["defaultRowCommitVersion"].to_pylist() == [6]
    assert second.actions.domains[0].configuration == '{"rowIdHighWaterMark":159}'


@pytest.mark.conformance("RT-04")
def test_a_too_low_concurrent_mark_does_not_repeat_row_ids() -> None:
    winner = won(adds=adds("x", baseRowId=400, dataChange=True))
    result = check(append(), winner)
    assert isinstance(result, Rebased)
    assert result.attempt.high_water_mark == 409


@pytest.mark.conformance("TXN-05")
@pytest.mark.parametrize("removed", [False, True])
def test_writing_the_same_domain_conflicts(removed: bool) -> None:
    theirs = DomainMetadata(domain="d", configuration="", removed=removed)
    ours = attempt(domains=(DomainMetadata(domain="d", configuration="x"),))
    result = check(ours, won(domains={"d": theirs}))
    assert isinstance(result, Conflict)
    assert result.rule is Rule.DOMAIN
    other = attempt(domains=(DomainMetadata(domain="e", configuration="x"),))
    assert isinstance(check(other, won(domains={"d": theirs})), Rebased)


@pytest.mark.conformance("TXN-05")
def test_the_row_tracking_domain_does_not_conflict() -> None:
    mark = DomainMetadata(domain=DOMAIN, configuration=render_domain_configuration(149))
    assert isinstance(check(attempt(domains=(mark,)), won(domains={DOMAIN: mark})), Rebased)


@pytest.mark.conformance("TXN-08")
def test_transactions_of_one_application_conflict() -> None:
    ours = attempt(txns=(Txn(app_id="app", version=3),))
    result = check(ours, won(txns={"app": Txn(app_id="app", version=9)}))
    assert isinstance(result, Conflict)
    assert result.rule is Rule.TRANSACTION
    assert "9" in result.explanation
    assert isinstance(check(ours, won(txns={"other": Txn(app_id="other", version=9)})), Rebased)


MAPPED_SCHEMA = log.SCHEMA_STRING.replace(
    '"metadata":{}',
    '"metadata":{"delta.columnMapping.id":1,"delta.columnMapping.physicalName":"p"}',
)
MAPPING = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
IN_COMMIT = {
    "delta.enableInCommitTimestamps": "true",
    "delta.inCommitTimestampEnablementVersion": "5",
    "delta.inCommitTimestampEnablementTimestamp": "2000",
}


@pytest.mark.conformance("TXN-04")
@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param(changed(ENABLING), id="row tracking"),
        pytest.param(changed(MAPPING, schema_string=MAPPED_SCHEMA), id="column mapping by name"),
        pytest.param(changed({"delta.enableDeletionVectors": "true"}), id="deletion vectors"),
        pytest.param(changed({"delta.checkpointPolicy": "v2"}), id="v2 checkpoints"),
        pytest.param(changed(IN_COMMIT), id="in-commit timestamps"),
    ],
)
def test_enabling_a_feature_does_not_conflict(theirs: Metadata) -> None:
    result = check(append(), won(metadata=theirs))
    assert isinstance(result, Rebased), result
    assert result.attempt.metadata == theirs


@pytest.mark.conformance("TXN-04")
@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param(replace(METADATA, configuration={}), id="a property gone"),
        pytest.param(changed({"a": "2"}), id="a property changed"),
        pytest.param(changed({"delta.enableDeletionVectors": "false"}), id="a feature off"),
        pytest.param(changed({"delta.checkpointPolicy": "classic"}), id="the policy back"),
        pytest.param(changed(MAPPING | {"delta.columnMapping.mode": "id"}), id="mapping by id"),
        pytest.param(
            changed(MAPPING, schema_string=log.SCHEMA_STRING.replace("part", "p")), id="renamed"
        ),
        pytest.param(changed(schema_string=MAPPED_SCHEMA), id="a schema without a reason"),
        pytest.param(
            changed({"delta.rowTracking.materializedRowIdColumnName": "_id"}), id="half of it"
        ),
        pytest.param(changed(name="n"), id="a name"),
        pytest.param(changed(partition_columns=("part",)), id="partitioning"),
    ],
)
def test_other_metadata_changes_conflict(theirs: Metadata) -> None:
    result = check(append(), won(metadata=theirs))
    assert isinstance(result, Conflict)
    assert result.rule is Rule.METADATA


@pytest.mark.conformance("TXN-04")
def test_enabling_an_unsupported_feature_conflicts() -> None:
    bare = replace(append(), protocol=with_features("appendOnly"))
    for configuration in (ENABLING, IN_COMMIT, {"delta.enableDeletionVectors": "true"}):
        result = check(bare, won(metadata=changed(configuration)))
        assert isinstance(result, Conflict)
    with_protocol = check(bare, won(protocol=PROTOCOL, metadata=changed(ENABLING)))
    assert isinstance(with_protocol, Rebased)


def test_the_enablement_version_of_in_commit_timestamps_never_changes() -> None:
    ours = replace(append(), metadata=changed(IN_COMMIT))
    moved = changed(IN_COMMIT | {"delta.inCommitTimestampEnablementVersion": "3"})
    assert isinstance(check(ours, won(metadata=moved)), Conflict)


def test_advancing_identity_columns_does_not_conflict() -> None:
    theirs = changed(schema_string=log.SCHEMA_STRING + " ")
    assert isinstance(check(append(), won(metadata=theirs)), Conflict)
    winner = won(tags={"delta.identity.schemaUpdate": "true"}, metadata=theirs)
    assert isinstance(check(append(), winner), Rebased)
    assert isinstance(check(properties(), winner), Conflict)


@pytest.mark.conformance("RT-18")
def test_moving_rows_without_ids_conflicts_with_enabling_row_tracking() -> None:
    winner = won(metadata=changed(ENABLING))
    result = check(replace(optimize(), preserves_row_ids=False), winner)
    assert isinstance(result, Conflict)
    assert result.rule is Rule.ROW_TRACKING
    assert isinstance(check(optimize(), winner), Rebased)


@pytest.mark.conformance("ICT-03", "ICT-05")
def test_the_timestamp_exceeds_that_of_the_concurrent_commit() -> None:
    plain = check(empty(), won())
    assert isinstance(plain, Rebased)
    assert plain.attempt.previous_ms == 2_000
    timed = replace(empty(), metadata=changed(IN_COMMIT))
    info = CommitInfo(values={"inCommitTimestamp": 7_777})
    result = check(timed, ConcurrentCommit(version=5, modified_ms=2_000, commit_info=info))
    assert isinstance(result, Rebased)
    assert build(result.attempt, PROVENANCE, now_ms=0).in_commit_timestamp == 7_778


@pytest.mark.conformance("ICT-04")
def test_enabling_in_commit_timestamps_records_the_committed_version() -> None:
    ours = attempt(metadata=changed({"delta.enableInCommitTimestamps": "true"}))
    result = check(ours, won())
    assert isinstance(result, Rebased)
    for version, previous, tried in ((5, 1_000, ours), (6, 2_000, result.attempt)):
        built = build(tried, PROVENANCE, now_ms=0)
        assert built.actions.metadata is not None
        configuration = built.actions.metadata.configuration
        assert configuration["delta.inCommitTimestampEnablementVersion"] == str(version)
        assert configuration["delta.inCommitTimestampEnablementTimestamp"] == str(previous + 1)


def test_a_downgrade_conflicts_with_commits_that_may_use_the_feature() -> None:
    fewer = replace(PROTOCOL, writer_features=FEATURES[:-1], reader_features=FEATURES[1:3])
    ours = attempt("DROP FEATURE", protocol=fewer)
    assert isinstance(check(ours, won()), Rebased)
    assert isinstance(check(ours, won(removes=removes("a"))), Rebased)
    for winner in (won(adds=adds("x")), won(metadata=changed({"a": "1", "b": "2"}))):
        assert isinstance(check(ours, winner), Conflict)


@pytest.mark.conformance("TXN-07")
def test_deleting_a_deleted_file_conflicts_even_if_unread() -> None:
    ours = attempt(removes=removes("a", dataChange=False), adds=adds("new"))
    result = check(ours, won(removes=removes("a")))
    assert isinstance(result, Conflict)
    assert result.rule is Rule.DELETE_TWICE


@pytest.mark.conformance("TXN-07")
@pytest.mark.parametrize("mine", ["optimize", "repair"])
def test_a_new_vector_conflicts_even_without_its_remove(mine: str) -> None:
    quiet = replace(OPERATIONS[mine](), isolation=IsolationLevel.SNAPSHOT_ISOLATION)
    result = check(quiet, won("DELETE", adds=adds("a", dv="0rr91")))
    assert isinstance(result, Conflict)
    assert result.rule is Rule.DELETION_VECTOR


def test_writing_the_same_path_conflicts() -> None:
    for winner in (won(adds=adds("new")), won(removes=removes("new"))):
        result = check(append(), winner)
        assert isinstance(result, Conflict)
        assert result.rule is Rule.SAME_PATH


def test_appends_conflict_only_under_serializable() -> None:
    winner = won(adds=adds("x", dataChange=True))
    strict = replace(optimize(), isolation=IsolationLevel.SERIALIZABLE)
    result = check(strict, winner)
    assert isinstance(result, Conflict)
    assert result.rule is Rule.APPEND
    assert isinstance(check(optimize(), winner), Rebased)


def test_the_isolation_level_follows_from_the_actions() -> None:
    level = IsolationLevel.needed_by
    mark = DomainMetadata(domain=DOMAIN, configuration=render_domain_configuration(1))
    assert level(StagedActions(adds=adds("a"), domains=(mark,))).value == "SnapshotIsolation"
    assert level(StagedActions()).value == "SnapshotIsolation"
    for staged in (
        StagedActions(adds=adds("a", dataChange=True)),
        StagedActions(removes=removes("a")),
        StagedActions(metadata=METADATA),
        StagedActions(protocol=PROTOCOL),
        StagedActions(txns=(Txn(app_id="a", version=1),)),
        StagedActions(domains=(DomainMetadata(domain="d", configuration=""),)),
    ):
        assert level(staged) is IsolationLevel.SERIALIZABLE


def test_concurrent_commits_are_checked_in_order() -> None:
    with pytest.raises(ValueError):
        check(empty(), replace(won(), version=6))


PROVENANCE = Provenance(read_version=4, engine_info="test", txn_id="id")
