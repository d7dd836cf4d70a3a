"""Others write while a feature is dropped: what is in use stays, what is dropped is in no use."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count, takewhile
from typing import Any

import pytest

from delta_maintenance.errors import CommitConflictError
from delta_maintenance.operations import drop_feature
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import LogFileKind, parse_log_file_name
from delta_maintenance.protocol.features import supports
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put
from delta_maintenance.table.read import Table
from tests.support.faults.fault_store import SimulatedCrash
from tests.support.tables import actions as log
from tests.support.tables.droppable_tables import BASIC, STATS, TABLES, Clock, drop, planned
from tests.support.tables.droppable_tables import built as built_in
from tests.support.tables.table_builder import LOG, TableBuilder, log_text

pytestmark = pytest.mark.cases

PROTECTED_BEFORE = "delta.requireCheckpointProtectionBeforeVersion"


class RacedStore(MemoryStore):
    """Lets somebody else commit just before the commits of ours that are numbered so, from 1 on."""

    def __init__(self) -> None:
        super().__init__()
        self.races: dict[int, Callable[[], object]] = {}
        self.commits = 0
        self.afterwards: Callable[[], object] | None = None
        """What somebody else does after each commit of ours."""

    def put_if_absent(self, path: str, data: bytes) -> Put:
        file = parse_log_file_name(path.removeprefix(f"{LOG}/"))
        if file.kind is LogFileKind.COMMIT:
            self.commits += 1
            race = self.races.pop(self.commits, None)
            if race is not None:
                race()
        outcome = super().put_if_absent(path, data)
        if file.kind is LogFileKind.COMMIT and self.afterwards is not None:
            self.afterwards()
        return outcome

    def win(self, number: int, *lines: log.Action) -> None:
        """Somebody else's commit before the one of that number."""

        self.races[number] = lambda: self.commit_for_somebody(*lines)

    def commit_for_somebody(self, *lines: log.Action) -> None:
        version = Table(self).latest_version() + 1
        data = log_text([log.commit_info("SOMEBODY"), *lines])
        assert super().put_if_absent(f"{LOG}/{version:020}.json", data) is Put.DONE


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> RacedStore:
    return RacedStore()


def built(feature: str, store: RacedStore, clock: Clock) -> TableBuilder:
    return built_in(TABLES[feature], clock, store)


def metadata(builder: TableBuilder, configuration: Mapping[str, str]) -> log.Action:
    own = builder.commits[0][2]["metaData"]
    return {"metaData": {**own, "configuration": {**own["configuration"], **configuration}}}


def info(store: RacedStore, version: int) -> Any:
    text = store.read(f"{LOG}/{version:020}.json")
    return json.loads(text.splitlines()[0])["commitInfo"]


SWITCHED_OFF = ("deletionVectors", "inCommitTimestamp", "rowTracking", "typeWidening")
COMMITS = {"deletionVectors": 6, "inCommitTimestamp": 2, "rowTracking": 3, "typeWidening": 5}
"""With the one that drops."""


@pytest.mark.conformance("FEAT-14", "TXN-04")
@pytest.mark.parametrize(
    ("feature", "number"), [(name, n) for name in SWITCHED_OFF for n in range(2, COMMITS[name] + 1)]
)
def test_who_switches_it_on_again_keeps_it(
    feature: str, number: int, store: RacedStore, clock: Clock
) -> None:
    builder = built(feature, store, clock)
    # The properties as they were before anybody switched them off.
    times = {"inCommitTimestamp": log.commit_info("X", inCommitTimestamp=2**50)}
    store.win(number, metadata(builder, {}), *([times[feature]] if feature in times else []))

    with pytest.raises(CommitConflictError, match="again"):
        drop(store, clock, feature)
    snapshot = Table(store).snapshot()
    assert supports(snapshot.protocol, feature) and not store.races
    assert snapshot.metadata.configuration == {"user.own": "1", **TABLES[feature].configuration}
    # Asked once more, with nobody in the way, it goes.
    assert drop(store, clock, feature).status == "dropped"
    if feature == "deletionVectors":
        # Of the barrier nothing counts that stood before it was switched off again.
        newest_first = (str(entry.operation) for entry in Table(store).history())
        barrier = [*takewhile(lambda name: "TBLPROPERTIES" not in name, newest_first)]
        assert barrier.count("Empty Commit") == 3


@pytest.mark.conformance("FEAT-14", "CPROT-04")
@pytest.mark.parametrize("others", range(3))
def test_a_barrier_that_was_interrupted_is_completed_beside_other_writers(
    others: int, store: RacedStore, clock: Clock
) -> None:
    built("deletionVectors", store, clock)

    def crash() -> None:
        raise SimulatedCrash("before the last of three")

    # Switched off, vectors kept, two checkpoints, and then no third.
    store.races[COMMITS["deletionVectors"] - 1] = crash
    with pytest.raises(SimulatedCrash):
        drop(store, clock, "deletionVectors")
    for number in range(others):
        store.commit_for_somebody(log.add(f"theirs-{number}", stats=STATS))
    plan = planned(store, clock, "deletionVectors")
    barrier = next(step for step in plan.steps if step.kind == "barrier-checkpoints")
    assert barrier.detail.startswith("1 empty commits")
    result = drop(store, clock, "deletionVectors")
    assert [commit.kind for commit in result.commits] == ["barrier-checkpoints", "drop"]


def test_who_switches_it_on_before_it_was_off_is_switched_off_too(
    store: RacedStore, clock: Clock
) -> None:
    builder = built("deletionVectors", store, clock)
    store.win(1, metadata(builder, {"more": "1"}))
    result = drop(store, clock, "deletionVectors")
    assert result.status == "dropped"
    assert Table(store).snapshot().metadata.configuration["more"] == "1"


@pytest.mark.conformance("FEAT-14")
@pytest.mark.parametrize("number", range(2, 7))
@pytest.mark.parametrize("way", ["protect", "truncate"])
def test_a_concurrent_deletion_vector_keeps_the_feature(
    way: str, number: int, store: RacedStore, clock: Clock
) -> None:
    if way == "protect":
        built("deletionVectors", store, clock)
    else:
        # Nothing of its history uses vectors, so that one commit is all there is.
        builder = TableBuilder(store)
        builder.commit([log.features("deletionVectors"), log.metadata(), log.add("b")])
        clock.govern(store)
        number = 1
    vector = log.add("b", dv=log.deletion_vector(), stats=STATS)
    store.win(number, log.remove("b"), vector)
    with pytest.raises(CommitConflictError, match="the file b uses"):
        drop(store, clock, "deletionVectors", truncate_history=way == "truncate")
    assert supports(Table(store).snapshot().protocol, "deletionVectors") and not store.races


def test_a_deletion_vector_of_a_concurrent_commit_is_a_trace_in_the_history(
    store: RacedStore, clock: Clock
) -> None:
    builder = TableBuilder(store)
    builder.commit([log.features("deletionVectors"), log.metadata(), log.add("b")])
    clock.govern(store)
    vector = log.deletion_vector()

    def come_and_go() -> None:
        for lines in (
            [log.remove("b"), log.add("b", dv=vector, stats=STATS)],
            [log.remove("b", dv=vector), log.add("c")],
        ):
            version = Table(store).latest_version() + 1
            store.put(f"{LOG}/{version:020}.json", log_text(lines))

    store.races[1] = come_and_go
    with pytest.raises(CommitConflictError, match="00000000000000000001.json uses"):
        drop(store, clock, "deletionVectors", truncate_history=True)
    assert supports(Table(store).snapshot().protocol, "deletionVectors")


@pytest.mark.conformance("CPROT-04", "FEAT-14", "TXN-03")
@pytest.mark.parametrize("number", range(1, 7))
def test_writers_that_do_without_the_feature_do_not_stop_the_drop(
    number: int, store: RacedStore, clock: Clock
) -> None:
    built("deletionVectors", store, clock)
    store.win(number, log.add("new", stats=STATS), log.txn("app", 1))
    result = drop(store, clock, "deletionVectors")
    assert result.status == "dropped" and not store.races
    snapshot = Table(store).snapshot()
    assert snapshot.metadata.configuration[PROTECTED_BEFORE] == str(result.version)
    assert "new" in snapshot.live_files()["path"].to_pylist() and snapshot.txns == {"app": 1}
    assert info(store, result.version)["operation"] == "DROP FEATURE"


def test_the_drop_follows_a_commit_that_adds_nothing_at_once(
    store: RacedStore, clock: Clock
) -> None:
    built("deletionVectors", store, clock)
    store.win(6, log.txn("app", 1), log.remove("b"))
    result = drop(store, clock, "deletionVectors")
    # The first try, and the rebased one.
    assert store.commits == 7
    snapshot = Table(store).snapshot()
    assert snapshot.metadata.configuration[PROTECTED_BEFORE] == str(result.version)


def test_who_adds_another_feature_meanwhile_makes_it_be_planned_anew(
    store: RacedStore, clock: Clock
) -> None:
    built("deletionVectors", store, clock)
    store.win(6, log.features("deletionVectors", "timestampNtz", writer_only=BASIC))
    with pytest.raises(CommitConflictError, match="protocol changed"):
        drop(store, clock, "deletionVectors")
    assert drop(store, clock, "deletionVectors").status == "dropped"
    assert Table(store).snapshot().protocol.reader_features == ("timestampNtz",)


@pytest.mark.parametrize(
    ("feature", "number"),
    [("rowTracking", n) for n in (1, 2, 3)]
    + [("v2Checkpoint", n) for n in (1, 3, 5)]
    + [("domainMetadata", n) for n in (1, 2)],
)
def test_two_that_drop_at_a_time_do_it_once(
    feature: str, number: int, store: RacedStore, clock: Clock
) -> None:
    built(feature, store, clock)
    plan = planned(store, clock, feature)
    other = MemoryStore()
    other.__dict__.update(store.__dict__)
    others = []
    store.races[number] = lambda: others.append(
        drop_feature.apply(Table(other), plan, context=RunContext.at(clock))
    )
    result = drop_feature.apply(Table(store), plan, context=RunContext.at(clock))
    assert others[0].status == "dropped" and result.version >= others[0].version
    assert not supports(Table(store).snapshot().protocol, feature)
    operations = [entry.operation for entry in Table(store).history()]
    assert operations.count("DROP FEATURE") == 1


@pytest.mark.conformance("RT-08", "RT-20")
def test_files_that_still_get_row_ids_lose_them_too(store: RacedStore, clock: Clock) -> None:
    built("rowTracking", store, clock)
    late = log.add("late", stats=STATS, baseRowId=40, defaultRowCommitVersion=3)
    store.win(2, late, log.remove("f1"))
    store.win(3, log.add("later", stats=STATS, baseRowId=50, defaultRowCommitVersion=5))
    result = drop(store, clock, "rowTracking")
    assert result.status == "dropped" and not store.races
    files = Table(store).snapshot().live_files()
    assert sorted(files["path"].to_pylist()) == ["a", "f2", "f3", "late", "later"]
    assert files["base_row_id"].null_count == files.num_rows


def test_row_ids_that_are_wanted_again_stay_as_they_are(store: RacedStore, clock: Clock) -> None:
    builder = built("rowTracking", store, clock)
    ids = {path: id for path, id in row_ids(store).items()}
    store.win(3, metadata(builder, {}))
    with pytest.raises(CommitConflictError, match="enableRowTracking uses rowTracking again"):
        drop(store, clock, "rowTracking", files_per_commit=2)
    # The batch before lost its own; nothing is ever given out anew.
    after = row_ids(store)
    assert [after[path] for path in ids if after[path] is not None] == [
        ids[path] for path in ids if after[path] is not None
    ]
    assert list(after.values()).count(None) == 2


def row_ids(store: RacedStore) -> dict[str, int | None]:
    files = Table(store).snapshot().live_files()
    return dict(zip(files["path"].to_pylist(), files["base_row_id"].to_pylist(), strict=True))


def test_files_that_others_remove_meanwhile_do_not_come_back(
    store: RacedStore, clock: Clock
) -> None:
    built("rowTracking", store, clock)
    store.win(3, log.remove("f1"), log.remove("f2"), log.remove("f3"), log.remove("a"))
    assert drop(store, clock, "rowTracking", files_per_commit=2).status == "dropped"
    assert row_ids(store) == {}


def test_files_that_others_remove_between_two_batches_do_not_come_back(
    store: RacedStore, clock: Clock
) -> None:
    built("rowTracking", store, clock)

    def remove() -> None:
        if store.commits == 2:
            store.commit_for_somebody(*(log.remove(path) for path in ("a", "f1", "f2")))

    store.afterwards = remove
    assert drop(store, clock, "rowTracking", files_per_commit=1).status == "dropped"
    assert row_ids(store) == {"f3": None}


def test_writers_that_never_stop_giving_row_ids_end_it(store: RacedStore, clock: Clock) -> None:
    built("rowTracking", store, clock)
    ids = count(100)
    store.afterwards = lambda: store.commit_for_somebody(
        log.add(f"n{next(ids)}", stats=STATS, baseRowId=next(ids), defaultRowCommitVersion=1)
    )
    with pytest.raises(CommitConflictError, match="keep adding files with baseRowId"):
        drop(store, clock, "rowTracking")
    assert supports(Table(store).snapshot().protocol, "rowTracking")


def test_a_concurrent_v2_checkpoint_keeps_the_feature(store: RacedStore, clock: Clock) -> None:
    builder = built("v2Checkpoint", store, clock)

    def checkpoint() -> None:
        version = Table(store).latest_version()
        uuid = "00000000-0000-4000-8000-00000000000f"
        builder.v2_checkpoint(version, actions=[
            *(action for action in builder.state() if "metaData" not in action),
            metadata(builder, {"delta.checkpointPolicy": "classic"})], uuid=uuid)  # fmt: skip
        clock.govern(store)
        store.win(6, log.remove("b"), log.add("d", stats=STATS))
        store.races.pop(6)()

    store.races[5] = checkpoint
    with pytest.raises(CommitConflictError, match="V2 checkpoint"):
        drop(store, clock, "v2Checkpoint")
    assert supports(Table(store).snapshot().protocol, "v2Checkpoint")
    assert drop(store, clock, "v2Checkpoint").status == "dropped"
