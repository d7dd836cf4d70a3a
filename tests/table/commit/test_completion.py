"""Completion of a commit: in-commit timestamps, row tracking and domains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.protocol.commit import staged_adds
from delta_maintenance.table.commit.transaction import RowIds
from tests.support.logs.transactions import (
    NOW,
    TRACKED,
    RacedStore,
    append,
    built,
    commit,
    info,
    only,
    races,
    snapshot,
    transaction,
)
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

TIMED = log.protocol(1, 7, writer_features=["inCommitTimestamp"])
IN_COMMIT = {"delta.enableInCommitTimestamps": "true"}


# In-commit timestamps


@pytest.mark.conformance("ICT-01", "ICT-02")
@pytest.mark.parametrize(
    ("protocol", "configuration", "active"),
    [
        (TIMED, IN_COMMIT, True),
        (TIMED, {}, False),
        (log.protocol(), IN_COMMIT, False),
        (log.protocol(1, 7, writer_features=[]), IN_COMMIT, False),
    ],
)
def test_the_in_commit_timestamp_is_the_first_field(
    protocol: log.Action, configuration: dict[str, str], active: bool
) -> None:
    table = built(protocol, configuration)
    outcome = commit(transaction(table, "VACUUM START"))
    assert (outcome.in_commit_timestamp is not None) is active
    assert ("inCommitTimestamp" in info(table, 1)) is active
    if active:
        assert next(iter(info(table, 1))) == "inCommitTimestamp"


@pytest.mark.conformance("ICT-02", "ICT-03")
def test_timestamps_increase_with_a_clock_that_runs_backwards() -> None:
    table = TableBuilder(RacedStore())
    first = EPOCH_MS + 10_000_000
    table.commit(
        [log.commit_info(inCommitTimestamp=first), TIMED, log.metadata(configuration=IN_COMMIT)]
    )
    times = [first + 10 * n for n in range(1, 51)]
    races(table, *([log.commit_info(inCommitTimestamp=time)] for time in times))
    instants = iter(NOW - timedelta(days=n) for n in range(60))
    outcome = commit(append(table, now=lambda: next(instants)), max_attempts=51)
    assert (outcome.version, outcome.attempts) == (51, 51)
    assert outcome.in_commit_timestamp == times[-1] + 1
    assert info(table, 51)["inCommitTimestamp"] == times[-1] + 1


@pytest.mark.conformance("ICT-04", "ICT-05")
def test_enabling_records_the_landed_version_and_time() -> None:
    table = built(TIMED)
    base = snapshot(table).metadata
    txn = transaction(table, "SET TBLPROPERTIES", now=lambda: NOW - timedelta(days=9))
    txn.stage_metadata(_with(base, IN_COMMIT))
    future = EPOCH_MS + 10**9
    store = table.store
    assert isinstance(store, RacedStore)
    store.races.append(lambda: table.commit([log.add("x")], at_ms=future))
    outcome = commit(txn)
    assert (outcome.version, outcome.in_commit_timestamp) == (2, future + 1)
    (metadata,) = only(table, 2, "metaData")
    recorded = {
        "delta.inCommitTimestampEnablementVersion": "2",
        "delta.inCommitTimestampEnablementTimestamp": str(future + 1),
    }
    assert metadata["configuration"] == IN_COMMIT | recorded
    txn = transaction(table, "SET TBLPROPERTIES")
    txn.stage_metadata(_with(base, IN_COMMIT | {"other": "1"}))
    commit(txn)
    assert only(table, 3, "metaData")[0]["configuration"] == (IN_COMMIT | recorded | {"other": "1"})


@pytest.mark.conformance("ICT-03")
def test_a_missing_previous_timestamp_is_refused() -> None:
    table = built(TIMED, IN_COMMIT)
    table.checkpoint()
    table.drop("00000000000000000000.json")
    with pytest.raises(RefusedError, match="is missing"):
        commit(append(table))


def test_version_properties_follow_the_landed_version(table: TableBuilder) -> None:
    txn = transaction(table, "DROP FEATURE")
    key = "delta.requireCheckpointProtectionBeforeVersion"
    txn.stage_metadata(_with(snapshot(table).metadata, {key: "?"}), version_properties=[key])
    races(table, [log.add("x")])
    assert commit(txn).version == 2
    assert only(table, 2, "metaData")[0]["configuration"] == {key: "2"}


# Row tracking


@pytest.mark.conformance("RT-02", "RT-03", "RT-04", "RT-06", "RT-18")
def test_new_files_get_row_ids_and_raise_the_mark() -> None:
    table = built()
    for version, mark in ((1, 9), (2, 19)):
        assert commit(append(table, path=f"f{version}")).version == version
        (add,) = only(table, version, "add")
        assert (add["baseRowId"], add["defaultRowCommitVersion"]) == (mark - 9, version)
        assert only(table, version, "domainMetadata") == [
            {
                "domain": "delta.rowTracking",
                "configuration": f'{{"rowIdHighWaterMark":{mark}}}',
                "removed": False,
            }
        ]
        assert info(table, version)["tags"] == {"delta.rowTracking.preserved": "true"}
    commit(transaction(table, "VACUUM START"))
    assert only(table, 3, "domainMetadata") == []


@pytest.mark.conformance("RT-02", "RT-06", "RT-14")
def test_row_commit_versions_follow_the_landed_version() -> None:
    table = built()
    races(
        table,
        [
            log.add("x", baseRowId=0, defaultRowCommitVersion=1, stats='{"numRecords":50}'),
            log.domain("delta.rowTracking", '{"rowIdHighWaterMark":49}'),
        ],
    )
    assert commit(append(table)).version == 2
    (add,) = only(table, 2, "add")
    assert (add["baseRowId"], add["defaultRowCommitVersion"]) == (50, 2)


@pytest.mark.conformance("RT-02")
def test_concurrently_added_row_tracking_is_applied(table: TableBuilder) -> None:
    upgraded = log.protocol(
        1, 7, writer_features=["appendOnly", "invariants", "domainMetadata", "rowTracking"]
    )
    races(table, [upgraded])
    assert commit(append(table)).version == 2
    (add,) = only(table, 2, "add")
    assert (add["baseRowId"], add["defaultRowCommitVersion"]) == (0, 2)


@pytest.mark.conformance("RT-04")
def test_row_ids_continue_above_the_highest_known_row_id() -> None:
    table = built(TRACKED, None, log.domain("delta.rowTracking", '{"rowIdHighWaterMark":3}'))
    commit(append(table, row_ids=RowIds(highest=99)))
    assert only(table, 1, "add")[0]["baseRowId"] == 100


@pytest.mark.conformance("RT-02")
def test_files_without_row_counts_are_refused() -> None:
    table = built()
    txn = transaction(table, "WRITE")
    txn.stage_adds([log.add("f", stats="{}")["add"]])
    with pytest.raises(RefusedError, match="number of rows"):
        commit(txn)
    assert table.names() == ["00000000000000000000.json"]


@pytest.mark.conformance("RT-07")
def test_existing_files_keep_their_row_ids() -> None:
    old = {"baseRowId": 5, "defaultRowCommitVersion": 0, "stats": '{"numRecords":1}'}
    mark = log.domain("delta.rowTracking", '{"rowIdHighWaterMark":5}')
    table = built(TRACKED, None, log.add("f", **old), mark)
    txn = transaction(table, "COMPUTE STATS")
    live = staged_adds([log.add("f", dataChange=False, **old)["add"]])
    txn.read_files(live)
    txn.stage_adds(live)
    commit(txn)
    (add,) = only(table, 1, "add")
    assert (add["baseRowId"], add["defaultRowCommitVersion"]) == (5, 0)
    assert only(table, 1, "domainMetadata") == []


@pytest.mark.conformance("RT-08")
def test_no_row_ids_while_suspended() -> None:
    table = built(TRACKED, {"delta.rowTrackingSuspended": "true"})
    txn = transaction(table, "WRITE")
    txn.stage_adds([log.add("f")["add"]])
    commit(txn)
    (add,) = only(table, 1, "add")
    assert "baseRowId" not in add
    assert "defaultRowCommitVersion" not in add
    assert only(table, 1, "domainMetadata") == []


@pytest.mark.conformance("RT-18")
def test_moving_rows_without_their_ids_is_refused() -> None:
    table = built(TRACKED, {"delta.enableRowTracking": "true"})
    with pytest.raises(RefusedError, match="lose their row IDs"):
        commit(append(table, row_ids=RowIds(preserved=False)))


# Domains


@pytest.mark.conformance("DOM-05")
def test_a_removed_domain_keeps_its_last_configuration() -> None:
    table = built(TRACKED, None, log.domain("mine", "{ }"))
    txn = transaction(table, "DOMAIN METADATA CLEANUP")
    txn.remove_domain("mine")
    commit(txn)
    assert only(table, 1, "domainMetadata") == [
        {"domain": "mine", "configuration": "{ }", "removed": True}
    ]
    assert snapshot(table).domain_metadata == {}
    with pytest.raises(InvalidRequestError, match="no domain"):
        transaction(table).remove_domain("mine")


@pytest.mark.conformance("DOM-03", "TXN-11")
def test_a_domain_without_its_feature_is_refused_before_any_write(table: TableBuilder) -> None:
    txn = transaction(table)
    txn.stage_domain("mine", "{}")
    with pytest.raises(RefusedError, match="domainMetadata"):
        commit(txn)
    assert table.names() == ["00000000000000000000.json"]


@pytest.mark.conformance("LOG-13")
def test_a_commit_does_not_contain_the_table_address(table: TableBuilder) -> None:
    table.store.address = Address.parse("memory://somewhere/else")
    commit(append(table))
    assert b"somewhere" not in table.read("00000000000000000001.json")


def _with(metadata: Any, configuration: Mapping[str, str]) -> Any:
    return replace(metadata, configuration={**metadata.configuration, **configuration})
