"""Dropping a feature together with the history that used it, in two runs a retention apart."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from delta_maintenance.errors import RefusedError, VersionNotFoundError
from delta_maintenance.operations import keep_version
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.drop_feature import DropFeatureResult, conclusion
from delta_maintenance.operations.drop_feature.traces import (
    EMPTY_COMMIT,
    history_traces,
    standing_barrier,
)
from delta_maintenance.operations.keep_version import KeepVersionOptions
from delta_maintenance.protocol.changes.drop import removal_of
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.logs.checkpointing import as_checkpointed, state_of
from tests.support.tables import actions as log
from tests.support.tables.droppable_tables import (
    STATS,
    TABLES,
    Clock,
    Droppable,
    built,
    comparable,
    drop,
    planned,
)
from tests.support.tables.table_builder import LOG, UUID, TableBuilder

A_DAY = timedelta(days=1)
RETENTION = "delta.dropFeatureTruncateHistory.retentionDuration"
READERS = [table for table in TABLES.values() if table.truncated is not None]
IN_HISTORY = [TABLES[name] for name in ("deletionVectors", "v2Checkpoint")]
CONFIGURED = {"deletionVectors": {"delta.enableDeletionVectors": "true"}}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def next_minute(clock: Clock) -> datetime:
    return clock().replace(second=0) + timedelta(minutes=1)


def milliseconds(clock: Clock) -> int:
    return round(clock().timestamp() * 1000)


def truncate(store: Store, clock: Clock, feature: str) -> DropFeatureResult:
    return drop(store, clock, feature, truncate_history=True)


def traced(builder: TableBuilder, feature: str) -> list[str]:
    snapshot = builder.open().snapshot()
    return [trace.file.name for trace in history_traces(snapshot, removal_of(feature))]


@pytest.mark.conformance("FEAT-14", "CLEAN-10")
@pytest.mark.parametrize("table", IN_HISTORY, ids=lambda table: table.feature)
def test_the_second_run_after_the_retention_drops_the_feature(
    table: Droppable, clock: Clock
) -> None:
    builder = built(table, clock)
    store = builder.store
    plan = planned(store, clock, table.feature, truncate_history=True)
    first = truncate(store, clock, table.feature)
    assert (plan.ends, first.status, first.protocol) == ("waiting", "waiting", None)
    assert [c.kind for c in first.commits][0] == "switch-off" and first.checkpoints
    assert plan.ready_at == first.ready_at == next_minute(clock) + A_DAY
    assert comparable(Table(store).snapshot().protocol.to_json()) == comparable(
        table.protocol["protocol"]
    )

    clock.pass_by(A_DAY)
    names = builder.names()
    early = truncate(store, clock, table.feature)
    assert (early.status, early.ready_at, early.commits) == ("waiting", first.ready_at, ())
    assert early.notes[0].endswith(planned(
        store, clock, table.feature, truncate_history=True).history_traces[0])  # fmt: skip
    assert builder.names() == names

    clock.pass_by(timedelta(minutes=1))
    before = {v: state_of(Table(store).snapshot(version=v)) for v in first.checkpoints}
    plan = planned(store, clock, table.feature, truncate_history=True)
    assert [step.kind for step in plan.steps] == ["truncate-history", "drop"]
    second = truncate(store, clock, table.feature)
    assert second.status == "dropped" and second.cleaned is not None
    snapshot = Table(store).snapshot()
    assert table.truncated is not None
    assert comparable(snapshot.protocol.to_json()) == comparable(table.truncated["protocol"])
    assert "requireCheckpointProtection" not in str(snapshot.metadata.configuration)
    oldest = second.cleaned.oldest_version
    assert oldest is not None and before.keys() == {oldest}
    for version in range(oldest, snapshot.version + 1):
        kept = state_of(Table(store).snapshot(version=version))
        assert set(kept.live) == set(before[oldest].live)
    with pytest.raises(VersionNotFoundError):
        Table(store).snapshot(version=0)
    assert traced(builder, table.feature) == []
    assert as_checkpointed(state_of(Table(store).snapshot(version=oldest))) == (
        as_checkpointed(before[oldest])
    )


@pytest.mark.parametrize(
    "name", ["columnMapping", "geospatial", "typeWidening", "vacuumProtocolCheck"]
)
def test_history_that_reads_the_same_without_the_feature_needs_not_go(
    name: str, clock: Clock
) -> None:
    builder = built(TABLES[name], clock)
    result = truncate(builder.store, clock, name)
    truncated = TABLES[name].truncated
    assert truncated is not None and result.status == "dropped" and result.cleaned is None
    assert comparable(Table(builder.store).snapshot().protocol.to_json()) == comparable(
        truncated["protocol"]
    )
    assert Table(builder.store).snapshot(version=0).version == 0


def test_later_use_in_history_delays_the_drop(clock: Clock) -> None:
    builder = built(TABLES["deletionVectors"], clock)
    store = builder.store
    first = truncate(store, clock, "deletionVectors")
    vector = log.deletion_vector()
    for lines in (
        [log.remove("b"), log.add("b", dv=vector, stats=STATS)],
        [log.remove("b", dv=vector), log.add("c", stats=STATS)],
    ):
        version = Table(store).latest_version() + 1
        builder.commit(lines, version=version, at_ms=milliseconds(clock) + 3_600_000)
    clock.govern(store)
    clock.pass_by(A_DAY + timedelta(minutes=1))

    second = truncate(store, clock, "deletionVectors")
    assert second.status == "waiting" and second.ready_at == next_minute(clock) + A_DAY
    assert first.ready_at is not None and second.ready_at > first.ready_at
    clock.pass_by(A_DAY + timedelta(minutes=1))
    assert truncate(store, clock, "deletionVectors").status == "dropped"


@pytest.mark.conformance("CPROT-01", "CPROT-03")
def test_the_protection_is_dropped_with_its_history(clock: Clock) -> None:
    builder = built(TABLES["v2Checkpoint"], clock)
    store = builder.store
    dropped = drop(store, clock, "v2Checkpoint")
    first = truncate(store, clock, "checkpointProtection")
    assert (first.status, first.commits) == ("waiting", ())
    assert first.ready_at == next_minute(clock) + A_DAY
    assert Table(store).snapshot(version=0).version == 0

    clock.pass_by(A_DAY + timedelta(minutes=1))
    second = truncate(store, clock, "checkpointProtection")
    assert second.status == "dropped" and second.cleaned is not None
    assert second.cleaned.oldest_version == dropped.version
    snapshot = Table(store).snapshot()
    assert comparable(snapshot.protocol.to_json()) == comparable(
        log.protocol(1, 7, writer_features=["rowTracking", "domainMetadata"])["protocol"]
    )
    assert "delta.requireCheckpointProtectionBeforeVersion" not in snapshot.metadata.configuration
    assert min(int(n[:20]) for n in builder.names() if n[:20].isdecimal()) == dropped.version


class CleanedUp(MemoryStore):
    """A store that loses a commit when it is about to be read."""

    gone: str | None = None

    def read(self, path: str) -> bytes:
        if path == self.gone:
            self.delete(path)
        return super().read(path)


def test_a_barrier_is_found_while_the_log_is_cleaned_up() -> None:
    store = CleanedUp()
    builder = TableBuilder(store)
    builder.commit([log.protocol(), log.metadata()])
    for _ in range(3):
        builder.commit([log.commit_info(EMPTY_COMMIT)])
        builder.checkpoint()
    removal = removal_of("deletionVectors")
    assert standing_barrier(builder.open().snapshot(), removal) == (1, 2, 3)
    snapshot = builder.open().snapshot()
    store.gone = f"{LOG}/00000000000000000001.json"
    assert standing_barrier(snapshot, removal) == (2, 3)


def test_the_last_protected_version_is_in_the_way_too(clock: Clock) -> None:
    builder = built(TABLES["vacuumProtocolCheck"], clock)
    boundary = drop(builder.store, clock, "vacuumProtocolCheck").version
    for name in builder.names():
        if name[:20].isdecimal() and int(name[:20]) < boundary - 1:
            builder.drop(name)
    plan = planned(builder.store, clock, "checkpointProtection", truncate_history=True)
    assert (plan.ends, plan.num_history_traces) == ("waiting", 2)


def test_a_protection_without_history_is_dropped_at_once(clock: Clock) -> None:
    builder = TableBuilder()
    builder.commit([log.protocol(1, 7, writer_features=["checkpointProtection"]), log.metadata()])
    clock.govern(builder.store)
    result = truncate(builder.store, clock, "checkpointProtection")
    assert [commit.kind for commit in result.commits] == ["drop"]
    assert Table(builder.store).snapshot().protocol.to_json() == log.protocol(1, 1)["protocol"]


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ({"delta.enableExpiredLogCleanup": "false"}, "enableExpiredLogCleanup"),
        ({RETENTION: "interval 1 hour"}, "stalled writer"),
        ({RETENTION: "a while"}, "cannot be read"),
        ({"delta.logRetentionDuration": "interval 1 day"}, "deletedFileRetentionDuration"),
    ],
)
def test_history_that_must_not_go_refuses_before_anything_is_touched(
    clock: Clock, configuration: dict[str, str], words: str
) -> None:
    builder = TableBuilder()
    more = {"delta.enableDeletionVectors": "true", **configuration}
    builder.commit([log.features("deletionVectors"), log.metadata(configuration=more)])
    clock.govern(builder.store)
    with pytest.raises(RefusedError, match=words):
        planned(builder.store, clock, "deletionVectors", truncate_history=True)
    assert builder.version == 0 and len(builder.names()) == 1


def test_a_short_retention_applies_without_other_writers(clock: Clock) -> None:
    builder = TableBuilder()
    more = {"delta.enableDeletionVectors": "true", RETENTION: "interval 10 minutes"}
    builder.commit([log.features("deletionVectors"), log.metadata(configuration=more)])
    clock.govern(builder.store)
    options = {"truncate_history": True, "other_writers": "none"}
    first = drop(builder.store, clock, "deletionVectors", **options)
    assert first.ready_at == next_minute(clock) + timedelta(minutes=10)
    clock.pass_by(timedelta(minutes=11))
    assert drop(builder.store, clock, "deletionVectors", **options).status == "dropped"


@pytest.mark.conformance("FEAT-14")
@pytest.mark.parametrize("kind", ["commit", "remove", "compaction", "classic", "v2", "damaged"])
def test_every_file_of_the_log_is_searched(kind: str) -> None:
    builder = TableBuilder()
    builder.commit([log.features("deletionVectors", "v2Checkpoint"), log.metadata()])
    builder.commit([log.add("b", stats=STATS), log.remove("z", deletionVector=None)])
    vector = log.add("v", dv=log.deletion_vector(), stats=STATS)
    state = [*builder.state(), vector]
    expected = "00000000000000000002.json"
    match kind:
        case "commit":
            builder.commit([log.add("w", stats='{"numRecords":1}'), vector])
        case "remove":
            builder.commit([log.remove("v", dv=log.deletion_vector())])
        case "compaction":
            expected = builder.compaction(0, 1, lines=state)
        case "classic":
            (expected,) = builder.checkpoint(actions=state)
        case "v2":
            expected = builder.v2_checkpoint(actions=state, sidecars=1, uuid=UUID)[0]
        case "damaged":
            (expected,) = builder.checkpoint()
            builder.garbage(expected, at=-100)
    assert traced(builder, "deletionVectors") == [expected]


@pytest.mark.parametrize("sidecars", [0, 1])
def test_tombstones_of_a_checkpoint_are_no_traces(sidecars: int) -> None:
    builder = TableBuilder()
    builder.commit([log.features("deletionVectors", "v2Checkpoint"), log.metadata()])
    state = [*builder.state(), log.remove("v", dv=log.deletion_vector()), log.add("w")]
    builder.v2_checkpoint(actions=state, sidecars=sidecars)
    assert traced(builder, "deletionVectors") == []
    assert len(traced(builder, "v2Checkpoint")) == 1


def test_metadata_that_enables_the_feature_is_always_a_trace() -> None:
    builder = TableBuilder()
    builder.commit([log.features("v2Checkpoint"), log.metadata()])
    on = log.metadata(configuration={"delta.checkpointPolicy": "v2"})
    builder.commit([on])
    builder.checkpoint()
    builder.commit([log.metadata(configuration={"delta.checkpointPolicy": "classic"})])
    builder.checkpoint()
    assert traced(builder, "v2Checkpoint") == [
        "00000000000000000001.json",
        "00000000000000000001.checkpoint.parquet",
    ]


def test_a_log_that_is_cleaned_up_meanwhile_is_searched_as_it_is_left() -> None:
    builder = built(TABLES["deletionVectors"], Clock())
    builder.checkpoint()
    store = builder.store
    read = store.read
    gone: list[str] = []

    def vanishing(path: str) -> bytes:
        if path.endswith("1.json") and not gone:
            gone.append(path)
            for version in (0, 1):
                store.delete(f"{LOG}/{version:020}.json")
        return read(path)

    snapshot = builder.open().snapshot()
    store.read = vanishing  # type: ignore[method-assign]
    traces = history_traces(snapshot, removal_of("deletionVectors"))
    assert gone and traces[0].file.name == "00000000000000000002.json"


@pytest.mark.parametrize("until", [None, timedelta(days=9)])
def test_a_kept_version_is_named_instead_of_an_instant_that_has_passed(
    clock: Clock, until: timedelta | None
) -> None:
    builder = built(TABLES["deletionVectors"], clock)
    store = builder.store
    ends = None if until is None else clock() + until
    kept = KeepVersionOptions(name="audit", keep=0, until=ends)
    context = RunContext.at(clock)
    keep_version.apply(Table(store), keep_version.plan(Table(store).snapshot(), kept, context))
    truncate(store, clock, "deletionVectors")
    clock.pass_by(A_DAY + timedelta(minutes=1))
    waiting = truncate(store, clock, "deletionVectors")
    assert (waiting.status, waiting.ready_at) == ("waiting", None)
    (held,) = waiting.held
    remedy = conclusion(waiting, Outcome.WAITING).remedy or ""
    assert "keep-version --release" in remedy and str(held) in remedy
    plan = planned(store, clock, "deletionVectors", truncate_history=True)
    assert plan.ends == "waiting" and plan.ready_at is None

    if until is None:
        release = KeepVersionOptions(name="audit", release=True)
        keep_version.apply(
            Table(store), keep_version.plan(Table(store).snapshot(), release, context)
        )
    else:
        clock.pass_by(until)
    assert truncate(store, clock, "deletionVectors").status == "dropped"
