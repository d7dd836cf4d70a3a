"""Single commits: contents, requests and conflicts, and the preconditions of a commit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import (
    CommitConflictError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.protocol.actions import Protocol
from delta_maintenance.protocol.commit import BACKFILL, Rule, removes_of, staged_adds
from delta_maintenance.table.commit.outcome import Conflicted, Landed, Superseded
from tests.support.faults.fault_store import FaultStore
from tests.support.logs.transactions import (
    NOW,
    TRACKED,
    append,
    built,
    commit,
    info,
    lines,
    only,
    races,
    snapshot,
    transaction,
)
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder


@pytest.mark.conformance("TXN-01", "TXN-10", "LOG-03", "LOG-09")
def test_a_commit_has_the_next_version_and_provenance(table: TableBuilder) -> None:
    txn = transaction(
        table,
        "FSCK",
        parameters={"batchId": "0", "dryRun": False, "paths": ["a"]},
        operation_id="run-1",
        new_id=lambda: "id-1",
        engine_info="engine/1",
    )
    live = staged_adds([log.add("a")["add"]])
    txn.read_files(live)
    txn.stage_removes(removes_of(live, data_change=True))
    txn.stage_info(metrics={"numRemovedFiles": 1}, tags={"note": "x"})
    outcome = commit(txn)
    assert outcome == Landed(
        version=1, attempts=1, in_commit_timestamp=None, num_adds=0, num_removes=1
    )
    now_ms = EPOCH_MS + 3_600_000
    assert info(table, 1) == {
        "timestamp": now_ms,
        "operation": "FSCK",
        "operationParameters": {"batchId": "0", "dryRun": "false", "paths": '["a"]'},
        "readVersion": 0,
        "isolationLevel": "Serializable",
        "isBlindAppend": False,
        "operationMetrics": {"numRemovedFiles": "1"},
        "engineInfo": "engine/1",
        "txnId": "id-1",
        "tags": {"note": "x"},
        "operationId": "run-1",
    }
    (remove,) = only(table, 1, "remove")
    assert remove["deletionTimestamp"] == now_ms
    assert remove["extendedFileMetadata"] is True
    assert snapshot(table).live_files()["path"].to_pylist() == ["b"]


@pytest.mark.conformance("TXN-12")
def test_an_empty_commit_changes_no_state(table: TableBuilder) -> None:
    before = snapshot(table)
    assert isinstance(commit(transaction(table, "VACUUM START")), Landed)
    after = snapshot(table)
    assert after.version == 1
    assert (after.metadata, after.protocol) == (before.metadata, before.protocol)
    assert after.live_files().equals(before.live_files())
    assert [list(line) for line in lines(table, 1)] == [["commitInfo"]]


@pytest.mark.conformance("TXN-01")
def test_requests_of_a_commit_without_conflict(table: TableBuilder) -> None:
    store = FaultStore(table.store)
    txn = append(table, store=store)
    opened = len(store.trace)
    assert isinstance(commit(txn), Landed)
    assert [step.kind for step in store.trace[opened:]] == ["put_if_absent", "list_from"]


@pytest.mark.conformance("TXN-03")
def test_requests_of_a_lost_race(table: TableBuilder) -> None:
    store = FaultStore(table.store)
    txn = append(table, store=store)
    opened = len(store.trace)
    for n in range(3):
        table.commit([log.add(f"other{n}")])
    outcome = commit(txn)
    assert (outcome.version, outcome.attempts) == (4, 2)
    kinds = [step.kind for step in store.trace[opened:]]
    assert kinds == ["put_if_absent", "list_from", *["read"] * 3, "put_if_absent", "list_from"]


@pytest.mark.conformance("TXN-01", "TXN-03", "LOG-09", "LOG-10")
def test_the_commit_is_built_again_for_each_version(table: TableBuilder) -> None:
    instants = iter(NOW + timedelta(seconds=n) for n in range(9))
    races(table, [log.add("x")], [log.add("y")])
    outcome = commit(append(table, now=lambda: next(instants)))
    assert (outcome.version, outcome.attempts) == (3, 3)
    assert info(table, 3)["timestamp"] == EPOCH_MS + 3_602_000
    assert info(table, 3)["readVersion"] == 0
    assert only(table, 1, "add")[0]["path"] == "x"
    assert sorted(snapshot(table).live_files()["path"].to_pylist()) == ["a", "b", "new", "x", "y"]


@pytest.mark.conformance("TXN-07")
def test_a_conflict_writes_nothing_and_names_the_remedy(table: TableBuilder) -> None:
    txn = transaction(table, "OPTIMIZE")
    live = staged_adds([log.add("a")["add"], log.add("b")["add"]])
    txn.read_files(live)
    txn.stage_removes(removes_of(live, data_change=False))
    txn.stage_adds([log.add("ab", dataChange=False)["add"]])
    races(table, [log.commit_info("DELETE"), log.remove("a")])
    outcome = commit(txn)
    assert isinstance(outcome, Conflicted)
    assert outcome.conflict.rule is Rule.DELETE
    assert table.names() == ["00000000000000000000.json", "00000000000000000001.json"]
    error = outcome.as_error("t")
    assert isinstance(error, CommitConflictError)
    assert str(error) == (
        "table t, version 1: version 1 (DELETE) was committed first: it removed a, which was read; "
        "run again to use the latest version"
    )


def test_attempts_are_bounded(table: TableBuilder) -> None:
    races(table, *([log.add(f"x{n}")] for n in range(9)))
    pauses: list[float] = []
    outcome = append(table, sleep=pauses.append).commit(max_attempts=4)
    assert isinstance(outcome, Conflicted)
    assert (outcome.conflict.rule, outcome.attempts) == (Rule.RETRIES, 4)
    assert len(pauses) == 4
    assert all(0 <= pause <= 2 for pause in pauses)


def test_a_transaction_can_be_used_once(table: TableBuilder) -> None:
    txn = append(table)
    commit(txn)
    with pytest.raises(InvalidRequestError, match="already used"):
        commit(txn)


@pytest.mark.conformance("TXN-06", "RT-13")
def test_a_commit_without_remaining_actions_is_superseded() -> None:
    table = built(TRACKED, None, log.add("a", stats='{"numRecords":1}'))
    txn = transaction(table, BACKFILL)
    live = staged_adds([log.add("a", stats='{"numRecords":1}', dataChange=False)["add"]])
    txn.read_files(live)
    txn.stage_adds(live)
    races(table, [log.remove("a")])
    assert commit(txn) == Superseded(version=1)
    assert table.names()[-1] == "00000000000000000001.json"


@pytest.mark.conformance("TXN-11", "CAT-01", "FEAT-01")
@pytest.mark.parametrize(
    "protocol",
    [
        log.protocol(1, 7, writer_features=["fooBar"]),
        log.protocol(1, 8),
        log.features("catalogManaged", "vacuumProtocolCheck", writer_only=["inCommitTimestamp"]),
        log.protocol(1, 7, writer_features=["coordinatedCommits-preview", "inCommitTimestamp"]),
    ],
)
def test_an_unsupported_protocol_is_refused_before_any_write(protocol: log.Action) -> None:
    table = built(protocol)
    store = FaultStore(table.store)
    txn = append(table, store=store)
    with pytest.raises(UnsupportedFeatureError):
        commit(txn)
    assert not {"put_if_absent", "put", "create"} & {step.kind for step in store.trace}


@pytest.mark.conformance("TXN-11")
def test_metadata_changes_require_more_support_than_commits() -> None:
    features = ["columnMapping", "domainMetadata", "icebergCompatV3", "rowTracking"]
    table = built(log.protocol(2, 7, writer_features=features))
    assert isinstance(commit(append(table)), Landed)
    txn = transaction(table)
    txn.stage_metadata(snapshot(table).metadata)
    with pytest.raises(UnsupportedFeatureError, match="icebergCompatV3"):
        commit(txn)


@pytest.mark.conformance("TXN-03")
def test_an_unsupported_concurrent_protocol_ends_the_attempt(table: TableBuilder) -> None:
    races(table, [log.protocol(1, 7, writer_features=["fooBar"])])
    with pytest.raises(UnsupportedFeatureError, match="fooBar"):
        commit(append(table))
    assert table.names()[-1] == "00000000000000000001.json"


@pytest.mark.conformance("FEAT-06", "FEAT-07")
def test_features_are_removed_only_if_named(table: TableBuilder) -> None:
    def upgrade(drops: Sequence[str] = ()) -> Any:
        txn = transaction(table, "UPGRADE PROTOCOL")
        new = Protocol(min_reader_version=1, min_writer_version=7, writer_features=("invariants",))
        txn.stage_protocol(new, drops=drops)
        return commit(txn)

    with pytest.raises(RefusedError, match="appendOnly"):
        upgrade()
    assert isinstance(upgrade(drops=["appendOnly"]), Landed)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "S3"])
@pytest.mark.parametrize(("others", "why"), [(None, "not specified"), ("spark", "could overwrite")])
def test_on_s3_other_writers_must_be_declared(
    table: TableBuilder, scheme: str, others: Any, why: str
) -> None:
    table.store.address = Address.parse(f"{scheme}://bucket/t")
    with pytest.raises(RefusedError, match=why):
        commit(append(table, other_writers=others))
    assert isinstance(commit(append(table, other_writers="conditional_put")), Landed)
    assert isinstance(commit(append(table, path="n2", other_writers="none")), Landed)


def test_on_s3_a_dynamodb_log_is_refused(table: TableBuilder) -> None:
    table.store.address = Address.parse("s3://bucket/t")
    table.store.put("_delta_log/.tmp/00000000000000000000.json.uuid", b"{}")
    with pytest.raises(RefusedError, match="DynamoDB"):
        commit(append(table, other_writers="conditional_put"))


@pytest.mark.conformance("DRAFT-03")
@pytest.mark.parametrize(
    "draft", [{"rowIdHighWaterMark": {"highWaterMark": 7}}, log.domain("mine", {"k": "v"})]
)
def test_row_tracking_drafts_are_converted_or_refused(draft: log.Action) -> None:
    table = built(TRACKED, None, draft)
    with pytest.raises(RefusedError, match="draft"):
        commit(append(table))
    txn = append(table)
    txn.stage_domain("mine", "{}")
    txn.stage_domain("delta.rowTracking", '{"rowIdHighWaterMark":7}')
    assert isinstance(commit(txn), Landed)
    assert only(table, 1, "add")[0]["baseRowId"] == 8
    assert isinstance(commit(append(table, path="next")), Landed)
