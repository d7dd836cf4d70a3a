"""Three writers on one table, interleaved in random order and checked against a small model.

The writers take turns at each request to the store. Some puts lose their answer, before or after
they took effect, and some arrive only later. `DELTA_MAINTENANCE_SEEDS` is the number of seeds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO

import pytest

from delta_maintenance.errors import CommitUnknownError, DeltaMaintenanceError
from delta_maintenance.protocol.commit import BACKFILL, removes_of, staged_adds
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import FileStatus, Put
from delta_maintenance.table.commit.outcome import AlreadyDone, Landed
from delta_maintenance.table.commit.transaction import Transaction
from delta_maintenance.table.commit.transaction import Writer as Committer
from delta_maintenance.table.read import Table
from tests.support.stores.interleaving import Schedule, ScheduledStore, single_threaded
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, log_text

pytestmark = pytest.mark.cases

SEEDS = int(os.environ.get("DELTA_MAINTENANCE_SEEDS", "12"))
WRITERS = 3
COMMITS = 8
FEATURES = log.features(
    "deletionVectors", writer_only=["domainMetadata", "inCommitTimestamp", "rowTracking"]
)
Late = list[tuple[str, bytes]]
"""Puts that take effect later."""
START = [
    log.commit_info("CREATE TABLE", inCommitTimestamp=EPOCH_MS),
    FEATURES,
    log.metadata(configuration={"delta.enableInCommitTimestamps": "true"}),
    # Files that were written before row tracking was supported.
    *(log.add(f"old{n}", stats='{"numRecords":10}') for n in range(4)),
]


class PacedStore(ScheduledStore):
    """One writer's view of the store: requests wait for their turn, and some puts are lost."""

    def __init__(self, inner: MemoryStore, schedule: Schedule, late: Late) -> None:
        super().__init__(inner, schedule)
        self._late = late
        self.faults = 0

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        self._turn()
        return iter(list(self._store.list_from(directory, start)))

    def read(self, path: str) -> bytes:
        self._turn()
        return self._store.read(path)

    def read_head(self, path: str, size: int) -> bytes:
        self._turn()
        return self._store.read_head(path, size)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        self._turn()
        fault = self._schedule.random.random()
        if fault < 0.03:
            self.faults += 1
            self._late.append((path, data))
            raise CommitUnknownError("under way")
        outcome = self._store.put_if_absent(path, data)
        if fault < 0.08:
            self.faults += 1
            raise CommitUnknownError("the answer was lost")
        return outcome

    def _turn(self) -> None:
        self._schedule.pause()
        if self._late and self._schedule.random.random() < 0.3:
            path, data = self._late.pop()
            self._store.put_if_absent(path, data)

    def stat(self, path: str) -> FileStatus | None:
        raise AssertionError("a commit needs no stat")

    def open(self, path: str) -> BinaryIO:
        raise AssertionError("a commit opens nothing")

    def put(self, path: str, data: bytes) -> None:
        raise AssertionError("a commit overwrites nothing")

    def create(self, path: str) -> Any:
        raise AssertionError("a commit streams nothing")

    def delete(self, path: str) -> None:
        raise AssertionError("a commit deletes nothing")


class Writer:
    def __init__(self, number: int, inner: MemoryStore, schedule: Schedule, late: Late) -> None:
        self.number, self.inner, self.schedule = number, inner, schedule
        self.store = PacedStore(inner, schedule, late)
        self.results: list[tuple[str, object]] = []

    def work(self) -> None:
        for turn in range(COMMITS):
            self._commit(turn)
            self.schedule.pause()

    def _commit(self, turn: int) -> None:
        choose = self.schedule.random
        snapshot = Table(self.inner).snapshot()
        live = [row for batch in snapshot.log.scan() for row in batch.adds.to_pylist()]
        live = [{k: _plain(v) for k, v in row.items() if not k.startswith("_")} for row in live]
        live.sort(key=lambda row: row["path"])
        snapshot.log.store = self.store
        kind = choose.choice(
            [
                "append",
                "append",
                "delete",
                "optimize",
                "stats",
                "backfill",
                "vector",
                "set",
                "empty",
            ]
        )
        # Writers share some tasks, as if a task had been started twice.
        task = f"shared-{turn}" if turn % 4 == 0 else f"{self.number}-{turn}"
        if task.startswith("shared"):
            kind = "append"
        txn_id = f"{self.number}/{turn}"
        instant = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
        operations = {"backfill": BACKFILL, "set": "SET TBLPROPERTIES"}
        txn = Transaction(
            snapshot,
            operations.get(kind, kind.upper()),
            operation_id=task,
            planned_version=0,
            writer=Committer(
                new_id=lambda: txn_id,
                sleep=lambda _: None,
                now=lambda: instant + timedelta(milliseconds=choose.randrange(-50, 50)),
            ),
        )
        name = f"{task}.parquet" if kind == "append" else f"{txn_id.replace('/', '-')}.parquet"
        new = log.add(name, stats=f'{{"numRecords":{choose.randrange(1, 20)}}}')["add"]
        picked = choose.sample(live, min(len(live), 2))
        if kind == "backfill":
            picked = [row for row in picked if row["baseRowId"] is None]
        files = staged_adds(picked) if picked else None
        if kind == "append":
            txn.stage_adds([new])
        elif kind == "set":
            metadata = snapshot.metadata
            configuration = {**metadata.configuration, "writer": txn_id}
            txn.stage_metadata(
                type(metadata).from_json(metadata.to_json() | {"configuration": configuration})
            )
        elif files is not None and kind in ("delete", "optimize", "stats", "backfill", "vector"):
            txn.read_files(files)
            if kind in ("delete", "optimize", "vector"):
                txn.stage_removes(removes_of(files, data_change=kind != "optimize"))
            if kind == "optimize":
                txn.stage_adds([{**new, "dataChange": False}])
            if kind in ("stats", "backfill"):
                txn.stage_adds(staged_adds([{**row, "dataChange": False} for row in picked]))
            if kind == "vector":
                vector = log.deletion_vector(f"{txn_id}", storage_type="i")
                changed = [{**row, "dataChange": True, "deletionVector": vector} for row in picked]
                txn.stage_adds(staged_adds(changed))
        try:
            result: object = txn.commit()
        except CommitUnknownError as error:
            result = error
        self.results.append((txn_id, result))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, list) else value


@pytest.mark.conformance("TXN-01", "TXN-02", "TXN-06", "TXN-07", "TXN-08", "RT-02", "ICT-03")
def test_interleaved_writers_agree_with_the_model() -> None:
    landed = rebased = faults = 0
    for seed in range(SEEDS):
        try:
            writers, inner = _play(seed)
            landed += _judge(inner, [result for w in writers for result in w.results])
        except (AssertionError, DeltaMaintenanceError) as error:
            raise AssertionError(f"seed {seed}") from error
        faults += sum(writer.store.faults for writer in writers)
        rebased += sum(
            isinstance(result, Landed) and result.attempts > 1
            for writer in writers
            for _, result in writer.results
        )
    print(f"{SEEDS} seeds: {landed} commits, {rebased} of them rebased, {faults} faults")
    assert landed > SEEDS * WRITERS
    assert rebased > SEEDS
    assert faults > SEEDS / 4


def test_a_seed_is_deterministic() -> None:
    first, second = (_play(3)[1] for _ in range(2))
    paths = [status.path for status in first.list_from("_delta_log")]
    assert [status.path for status in second.list_from("_delta_log")] == paths
    assert all(first.read(path) == second.read(path) for path in paths)


def _play(seed: int) -> tuple[list[Writer], MemoryStore]:
    inner = MemoryStore(now_ms=lambda: EPOCH_MS)
    inner.put("_delta_log/00000000000000000000.json", log_text(START))
    schedule, late = Schedule(seed), Late()
    writers = [Writer(number, inner, schedule, late) for number in range(WRITERS)]
    for writer in writers:
        schedule.begin(writer.work)
    with single_threaded():
        schedule.run()
    for path, data in late:
        inner.put_if_absent(path, data)
    return writers, inner


def _judge(store: MemoryStore, results: list[tuple[str, object]]) -> int:
    """Replays the log with dicts and returns the number of commits."""
    live: dict[str, dict[str, Any]] = {}
    given: list[tuple[int, int]] = []
    mark, previous, metadata_version = -1, 0, 0
    owners: dict[str, int] = {}
    tasks: dict[str, int] = {}
    for version, status in enumerate(store.list_from("_delta_log")):
        assert status.path.endswith(f"{version:020d}.json")
        lines = [json.loads(line) for line in store.read(status.path).splitlines()]
        info = lines[0]["commitInfo"]
        assert info["inCommitTimestamp"] > previous
        previous = info["inCommitTimestamp"]
        adds = [line["add"] for line in lines if "add" in line]
        removes = [line["remove"] for line in lines if "remove" in line]
        if version:
            assert owners.setdefault(info["txnId"], version) == version
            assert tasks.setdefault(info["operationId"], version) == version
            if any("metaData" in line for line in lines):
                assert info["readVersion"] >= metadata_version
                metadata_version = version
        before = dict(live)
        for remove in removes:
            current = live.pop(remove["path"])
            assert current.get("deletionVector") == remove.get("deletionVector")
            assert current.get("baseRowId") == remove.get("baseRowId")
        for add in adds:
            old = before.get(add["path"])
            if version and not removes and not add["dataChange"]:
                assert old is not None, "a file came back"
                assert old.get("deletionVector") == add.get("deletionVector")
            if old is not None and old.get("baseRowId") is not None:
                assert add["baseRowId"] == old["baseRowId"]
                assert add["defaultRowCommitVersion"] == old["defaultRowCommitVersion"]
            elif version:
                assert add["defaultRowCommitVersion"] == version
                rows = json.loads(add["stats"])["numRecords"]
                given.append((add["baseRowId"], add["baseRowId"] + rows))
            live[add["path"]] = add
        for line in lines:
            if "domainMetadata" in line:
                higher = json.loads(line["domainMetadata"]["configuration"])["rowIdHighWaterMark"]
                assert higher > mark
                mark = higher
        assert mark >= max((end - 1 for _, end in given), default=-1)
    given.sort()
    assert all(end <= start for (_, end), (start, _) in zip(given, given[1:], strict=False))
    for txn_id, result in results:
        if isinstance(result, Landed):
            assert owners.pop(txn_id) == result.version
        elif isinstance(result, CommitUnknownError):
            owners.pop(txn_id, None)
        else:
            assert txn_id not in owners
            assert not isinstance(result, AlreadyDone) or result.version in tasks.values()
    assert not owners, "a commit that nobody made"
    assert Table(store).snapshot().live_files().num_rows == len(live)
    return version
