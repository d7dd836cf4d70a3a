"""Single commits: contents, requests, and outcomes among concurrent commits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delta_maintenance.errors import (
    CommitConflictError,
    CommitUnknownError,
    CorruptTableError,
    InvalidRequestError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.commit.conflicts import BACKFILL, Rule
from delta_maintenance.protocol.commit.staged import removes_of, staged_adds
from delta_maintenance.storage.core.base import Put, Store
from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.table.commit.outcome import AlreadyDone, Conflicted, Landed, Superseded
from delta_maintenance.table.commit.transaction import RowIds, Transaction, Writer
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.testing import actions as log
from delta_maintenance.testing.fault_store import Fault, FaultStore, SimulatedCrash, faults
from delta_maintenance.testing.table_builder import EPOCH_MS, TableBuilder

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(hours=1)
TRACKED = log.protocol(1, 7, writer_features=["domainMetadata", "rowTracking"])
TIMED = log.protocol(1, 7, writer_features=["inCommitTimestamp"])
IN_COMMIT = {"delta.enableInCommitTimestamps": "true"}


class RacedStore(MemoryStore):
    """Runs each of `races` once, directly before a put of the commit under test."""

    def __init__(self) -> None:
        super().__init__()
        self.races: list[Callable[[], object]] = []

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.races:
            self.races.pop(0)()
        return super().put_if_absent(path, data)


@pytest.fixture
def table() -> TableBuilder:
    builder = TableBuilder(RacedStore())
    builder.commit([log.protocol(), log.metadata(), log.add("a"), log.add("b")])
    return builder


def built(
    protocol: log.Action = TRACKED,
    configuration: Mapping[str, str] | None = None,
    *more: log.Action,
) -> TableBuilder:
    builder = TableBuilder(RacedStore())
    builder.commit([protocol, log.metadata(configuration=configuration), *more])
    return builder


def races(builder: TableBuilder, *winners: Sequence[log.Action]) -> None:
    store = builder.store
    assert isinstance(store, RacedStore)
    for winner in winners:
        store.races.append(lambda lines=winner: builder.commit(lines))


def snapshot(builder: TableBuilder, store: Store | None = None) -> Snapshot:
    return Table(store or builder.store).snapshot()


def transaction(
    builder: TableBuilder, operation: str = "TEST", *, store: Store | None = None, **options: Any
) -> Transaction:
    """`options` are arguments of `Transaction` or fields of its `Writer`."""
    names = {each.name for each in fields(Writer)} & options.keys()
    writer = Writer(**{"now": lambda: NOW} | {name: options.pop(name) for name in names})
    return Transaction(snapshot(builder, store), operation, writer=writer, **options)


def append(builder: TableBuilder, path: str = "new", **options: Any) -> Transaction:
    txn = transaction(builder, "WRITE", **options)
    txn.stage_adds([log.add(path, stats='{"numRecords":10}')["add"]])
    return txn


def commit(txn: Transaction, **options: Any) -> Any:
    return txn.commit(sleep=lambda _: None, **options)


def lines(builder: TableBuilder, version: int) -> list[dict[str, Any]]:
    text = builder.read(f"{version:020d}.json").decode()
    return [json.loads(line) for line in text.splitlines()]


def info(builder: TableBuilder, version: int) -> dict[str, Any]:
    value = lines(builder, version)[0]["commitInfo"]
    assert isinstance(value, dict)
    return value


def only(builder: TableBuilder, version: int, name: str) -> list[dict[str, Any]]:
    return [line[name] for line in lines(builder, version) if name in line]


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
    outcome = commit(txn, metrics={"numRemovedFiles": 1}, tags={"note": "x"})
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
    assert kinds == [
        "put_if_absent",
        "list_from",
        *["read"] * 3,
        "put_if_absent",
        "list_from",
    ]


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
    outcome = append(table).commit(max_attempts=4, sleep=pauses.append)
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


# Preconditions


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
def test_an_unsupported_protocol_is_refused_before_any_write(
    protocol: log.Action,
) -> None:
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
@pytest.mark.parametrize(("others", "why"), [(None, "nobody said"), ("spark", "overwrites")])
def test_on_s3_other_writers_must_be_declared(
    table: TableBuilder, scheme: str, others: Any, why: str
) -> None:
    table.store.root = f"{scheme}://bucket/t"
    with pytest.raises(RefusedError, match=why):
        commit(append(table, other_writers=others))
    assert isinstance(commit(append(table, other_writers="conditional_put")), Landed)
    assert isinstance(commit(append(table, path="n2", other_writers="none")), Landed)


def test_on_s3_a_dynamodb_log_is_refused(table: TableBuilder) -> None:
    table.store.root = "s3://bucket/t"
    table.store.put("_delta_log/.tmp/00000000000000000000.json.uuid", b"{}")
    with pytest.raises(RefusedError, match="DynamoDB"):
        commit(append(table, other_writers="conditional_put"))


@pytest.mark.conformance("DRAFT-03")
@pytest.mark.parametrize(
    "draft",
    [
        {"rowIdHighWaterMark": {"highWaterMark": 7}},
        log.domain("mine", {"k": "v"}),
    ],
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


# Uncertain outcomes


@pytest.mark.conformance("TXN-02")
def test_a_put_with_a_lost_response_is_recognised(table: TableBuilder) -> None:
    trial = FaultStore(table.store)
    at = len(trial.trace)
    snapshot(table, trial)
    at = len(trial.trace)
    store = FaultStore(table.store, at=at, fault=Fault.LOST_ANSWER)
    outcome = commit(append(table, store=store))
    assert (outcome.version, outcome.attempts) == (1, 1)
    kinds = [step.kind for step in store.trace[at:]]
    assert kinds == ["put_if_absent", "read", "list_from"]


class DoubtfulStore(RacedStore):
    """Loses the response of the first put, which has no effect."""

    doubts = 1

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.races:
            self.races.pop(0)()
        if self.doubts:
            self.doubts -= 1
            raise CommitUnknownError("no answer")
        return super().put_if_absent(path, data)


@pytest.mark.conformance("TXN-02")
def test_no_further_attempt_after_an_unknown_outcome() -> None:
    table = TableBuilder(DoubtfulStore())
    table.commit([log.protocol(), log.metadata()])
    with pytest.raises(CommitUnknownError, match="version 1"):
        commit(append(table))
    assert table.names() == ["00000000000000000000.json"]


@pytest.mark.conformance("TXN-02")
def test_an_unknown_outcome_with_a_foreign_commit_is_a_lost_race() -> None:
    table = TableBuilder(DoubtfulStore())
    table.commit([log.protocol(), log.metadata()])
    races(table, [log.commit_info(txnId="other"), log.add("x")])
    outcome = commit(append(table))
    assert (outcome.version, outcome.attempts) == (2, 2)


@pytest.mark.conformance("TXN-02")
def test_a_failed_put_is_a_storage_error(table: TableBuilder) -> None:
    trial = FaultStore(table.store)
    snapshot(table, trial)
    store = FaultStore(table.store, at=len(trial.trace), fault=Fault.FAILURE)
    with pytest.raises(StorageError):
        commit(append(table, store=store))
    assert table.names() == ["00000000000000000000.json"]


@pytest.mark.conformance("TXN-08")
def test_a_zombie_task_finds_its_commit(table: TableBuilder) -> None:
    zombie = append(table, operation_id="run-1")
    assert commit(append(table, operation_id="run-1")).version == 1
    assert commit(zombie) == AlreadyDone(version=1)
    assert commit(append(table, operation_id="run-1")) == AlreadyDone(version=1)
    assert commit(append(table, path="m", operation_id="run-2")).version == 2
    table.commit([log.add("x")], version=3)
    late = append(table, operation_id="run-1", planned_version=0)
    assert commit(late) == AlreadyDone(version=1)
    assert table.names()[-1] == "00000000000000000003.json"


def test_a_plan_with_deleted_later_commits_is_not_applied(table: TableBuilder) -> None:
    for n in range(4):
        table.commit([log.add(f"x{n}")])
    table.checkpoint()
    table.drop("00000000000000000001.json")
    with pytest.raises(RefusedError, match="plan again"):
        commit(append(table, operation_id="run-1", planned_version=0))


@pytest.mark.conformance("TXN-08", "TXN-09")
def test_an_application_transaction_is_recorded_once(table: TableBuilder) -> None:
    def batch(version: int) -> Any:
        txn = append(table, path=f"batch{version}")
        txn.stage_txn("app", version)
        return commit(txn)

    assert batch(7).version == 1
    assert only(table, 1, "txn") == [
        {"appId": "app", "version": 7, "lastUpdated": EPOCH_MS + 3_600_000}
    ]
    assert batch(7) == AlreadyDone(version=1)
    assert batch(6) == AlreadyDone(version=1)
    assert batch(8).version == 2


def test_deleted_concurrent_commits_end_the_attempt(table: TableBuilder) -> None:
    txn = append(table)
    table.commit([log.add("x")])
    table.commit([log.add("y")])
    store = table.store
    assert isinstance(store, RacedStore)

    def clean() -> None:
        table.checkpoint()

    store.races.append(clean)
    real = store.list_from

    def cleaned(directory: str, start: str = "") -> Any:
        table.drop("00000000000000000001.json")
        return real(directory, start)

    store.list_from = cleaned  # type: ignore[method-assign]
    outcome = commit(txn)
    assert isinstance(outcome, Conflicted)
    assert outcome.conflict.rule is Rule.LOG_CLEANED


@pytest.mark.parametrize("damage", [b"", b"{", b'{"metaData":{}}\n{"metaData":{}}\n'])
def test_an_unreadable_concurrent_commit_is_an_error(table: TableBuilder, damage: bytes) -> None:
    txn = append(table)
    table.commit_bytes(damage)
    with pytest.raises(CorruptTableError) as caught:
        commit(txn)
    assert caught.value.version == 1


@pytest.mark.parametrize("trace", ["checkpoint", "commit"])
def test_a_commit_at_a_deleted_version_is_reported(table: TableBuilder, trace: str) -> None:
    txn = append(table)
    for n in range(3):
        table.commit([log.add(f"x{n}")])
    table.store.now_ms = lambda: EPOCH_MS + 86_400_000  # type: ignore[attr-defined]
    if trace == "checkpoint":
        table.checkpoint()
        table.drop(*(f"{n:020d}.json" for n in (1, 2, 3)))
    else:
        table.drop(f"{1:020d}.json")
    table.store.now_ms = lambda: EPOCH_MS + 86_400_000  # type: ignore[attr-defined]
    with pytest.raises(CommitUnknownError, match="older"):
        commit(txn)


def test_slightly_older_files_are_tolerated(table: TableBuilder) -> None:
    store = table.store
    assert isinstance(store, RacedStore)
    txn = append(table)
    table.commit([log.add("x")], version=2, at_ms=EPOCH_MS + 60_000)
    store.now_ms = lambda: EPOCH_MS + 120_000
    assert commit(txn).version == 1


def test_a_landed_commit_survives_later_storage_errors(
    table: TableBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    trial = FaultStore(table.store)
    snapshot(table, trial)
    store = FaultStore(table.store, at=len(trial.trace) + 1, fault=Fault.FAILURE)
    assert commit(append(table, store=store)).version == 1
    assert "is committed" in caplog.text


@pytest.mark.conformance("TXN-01", "TXN-02")
def test_a_fault_at_any_step_leaves_the_table_before_or_after() -> None:
    def begin(store: Store, winners: int) -> Transaction:
        base = TableBuilder(store)
        base.commit([log.protocol(), log.metadata(), log.add("a")])
        txn = transaction(base, "WRITE", operation_id="run-1")
        txn.stage_adds([log.add("new")["add"]])
        for n in range(winners):
            base.commit([log.add(f"x{n}")])
        return txn

    def trial(winners: int, **fault: Any) -> tuple[MemoryStore, FaultStore, Any]:
        inner = MemoryStore()
        txn = begin(inner, winners)
        store = FaultStore(inner, **fault)
        txn._snapshot.store = store
        try:
            return inner, store, commit(txn)
        except (SimulatedCrash, StorageError, CommitUnknownError, CorruptTableError) as error:
            return inner, store, error

    cases = 0
    for winners in (0, 2):
        _, recorded, _ = trial(winners)
        for at, fault in faults(recorded.trace):
            cases += 1
            inner, _, outcome = trial(winners, at=at, fault=fault)
            live = Table(inner).snapshot().live_files()["path"].to_pylist()
            assert live.count("new") == ("new" in live)
            if isinstance(outcome, Landed):
                assert "new" in live
            base = TableBuilder(inner)
            again = transaction(base, "WRITE", operation_id="run-1", planned_version=0)
            again.stage_adds([log.add("new")["add"]])
            result = commit(again)
            assert isinstance(result, AlreadyDone if "new" in live else Landed)
            live = Table(inner).snapshot().live_files()["path"].to_pylist()
            assert sorted(live) == ["a", "new", *(f"x{n}" for n in range(winners))]
    assert cases > 20
    print(f"{cases} cases")


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
        [
            log.commit_info(inCommitTimestamp=first),
            TIMED,
            log.metadata(configuration=IN_COMMIT),
        ]
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
def test_a_domain_without_its_feature_is_refused_before_any_write(
    table: TableBuilder,
) -> None:
    txn = transaction(table)
    txn.stage_domain("mine", "{}")
    with pytest.raises(RefusedError, match="domainMetadata"):
        commit(txn)
    assert table.names() == ["00000000000000000000.json"]


@pytest.mark.conformance("LOG-13")
def test_a_commit_does_not_contain_the_table_address(table: TableBuilder) -> None:
    table.store.root = "memory://somewhere/else"
    commit(append(table))
    assert b"somewhere" not in table.read("00000000000000000001.json")


def _with(metadata: Any, configuration: Mapping[str, str]) -> Any:
    return replace(metadata, configuration={**metadata.configuration, **configuration})
