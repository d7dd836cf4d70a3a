"""Readers, writers, publishers and cleaners of a catalog-managed table, in any order, with crashes.

The readers, the writers and half of the cleaners are models of Delta Spark and of its successors.
The publishers, the cleaners in worlds with readers, and the client with which all of them reach the
model of the catalog, are the code of the library.

`DELTA_MAINTENANCE_PUBLICATION_SEED` plays one seed.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs import ManagedState
from delta_maintenance.catalogs.http.authorization import RequestRefused
from delta_maintenance.catalogs.http.client import CatalogClient
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.catalogs.unity.catalog import UnityCatalog
from delta_maintenance.catalogs.unity.commits import DeltaApi
from delta_maintenance.clock import instant
from delta_maintenance.errors import CatalogUnavailableError, CorruptTableError
from delta_maintenance.errors import DeltaMaintenanceError as OwnError
from delta_maintenance.operations import clean_staged
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.publish import apply, plan
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put
from delta_maintenance.table.read import Table
from delta_maintenance.table.read.managed_log import ManagedStore
from tests.support.faults.fault_store import Fault, FaultStore, SimulatedCrash
from tests.support.servers.unity_delta import TOKEN, UnityServer, UnityTable
from tests.support.stores.interleaving import Schedule, ScheduledStore, single_threaded
from tests.support.suite.play import examples
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.managed import LOG, STAGED, commit_path, info
from tests.support.tables.table_builder import log_text

SEEDS = examples(1_000)
_NAME = CatalogName(CatalogKind.UNITY, ("main", "s", "t"))
_PATH = "/delta/v1/catalogs/main/schemas/s/tables/t"
_FAULTS = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAILURE, Fault.LOST_ANSWER)
_DAY_MS = 24 * 3_600_000


class _Witness(MemoryStore):
    """Judges each change of the log."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def put_if_absent(self, path: str, data: bytes) -> Put:
        put = super().put_if_absent(path, data)
        if put is Put.DONE and path.startswith(f"{LOG}/0"):
            self._world.judge_publication(int(path.rpartition("/")[2][:20]), data)
        return put

    def delete(self, path: str) -> None:
        super().delete(path)
        self._world.judge()


@dataclass
class World:
    """The table, its catalog, and the judge of both."""

    schedule: Schedule
    server: UnityServer = field(default_factory=UnityServer)
    ratified: dict[int, bytes] = field(default_factory=dict)
    """The content of each version."""
    events: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = self.schedule.random
        self.table = self.server.add("main.s.t", UnityTable(location="memory:", managed=True))
        self.share_published = self.chance.choice((0.0, 0.5, 1.0))
        self.server.later = self.chance.random() < 0.5
        self.table.allowed = ["METADATA_CLEANUP"]
        self.has_readers = self.chance.random() < 0.5
        self.num_readers = 0
        self.now_ms = 100 * _DAY_MS
        self.store = _Witness(self)
        self.store.now_ms = lambda: self.now_ms
        protocol = features("catalogManaged", writer_only=["inCommitTimestamp"])
        configuration = {"delta.enableInCommitTimestamps": "true"}
        lines = [info(0), protocol, metadata(configuration=configuration), add("f0")]
        self.ratified[0] = log_text(lines)
        self.store.put(commit_path(0), self.ratified[0])

    def context(self) -> RunContext:
        return RunContext.at(instant(self.now_ms))

    def published(self, version: int) -> bytes | None:
        with suppress(FileNotFoundError):
            return self.store.read(commit_path(version))
        return None

    def judge_publication(self, version: int, data: bytes) -> None:
        """A commit is published in order, and as it was ratified."""
        assert data == self.ratified.get(version), f"version {version} has other bytes"
        assert self.published(version - 1) is not None, f"version {version} is out of order"
        self.events["published"] += 1

    def judge(self) -> None:
        """No version is lost: each is published, or listed and staged."""
        listed = {entry["version"]: entry["file-name"] for entry in self.table.commits}
        for version in range(self.table.latest + 1):
            data = self.published(version)
            if data is None:
                assert version in listed, f"version {version} is lost"
                data = self.store.read(f"{STAGED}/{listed[version]}")
            assert data == self.ratified[version], f"version {version} has other bytes"


class _Client(CatalogClient):
    """Requests to the model of the server, with faults."""

    def __init__(self, world: World) -> None:
        self.title = "Unity Catalog"
        self._world = world

    def error(self, failure: RequestRefused, where: str, *, needs: str | None = None) -> Any:
        assert failure.status != 400, failure
        return CatalogUnavailableError(f"{where}: {failure}")

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        retried: bool = True,
    ) -> dict[str, Any]:
        world = self._world
        world.schedule.pause()
        fault = world.chance.choice(("before", "after")) if world.chance.random() < 0.05 else None
        if fault == "before":
            raise RequestRefused(status=world.chance.choice((500, 409, None)), code="c", detail="")
        listed = {entry["version"] for entry in world.table.commits}
        target = f"/api/2.1/unity-catalog{path}"
        status, answer = world.server.answer(method, target, f"Bearer {TOKEN}", dict(body or {}))
        for version, name in world.table.names.items():
            if version not in world.ratified:
                world.ratified[version] = world.store.read(f"{STAGED}/{name}")
        for version in listed - {entry["version"] for entry in world.table.commits}:
            # Before this request, so that nobody is accused of what others did meanwhile.
            assert world.published(version) is not None, f"version {version} is reported too early"
            world.events["reported"] += 1
        world.schedule.pause()
        if fault == "after" and method == "POST":
            world.events["lost answer"] += 1
            raise RequestRefused(status=None, code="ConnectionError", detail="")
        if status >= 400:
            world.events[f"status {status}"] += 1
            raise RequestRefused(status=status, code=answer["error"]["type"], detail="")
        return dict(answer)


def _catalog(world: World) -> UnityCatalog:
    settings = CatalogSettings(
        kind=CatalogKind.UNITY, address="http://localhost", options={"token": TOKEN}
    )
    catalog = UnityCatalog(settings)
    catalog.client = _Client(world)
    catalog._delta = DeltaApi(catalog.client)
    return catalog


class Actor:
    """One process."""

    tasks = 6

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.chance = world, number, world.chance
        self.catalog = _catalog(world)
        self.store = ScheduledStore(world.store, world.schedule)

    def work(self) -> None:
        for task in range(self.tasks):
            # No reader takes longer than a day.
            if not self.world.num_readers and self.chance.random() < 0.3:
                self.world.now_ms += 2 * _DAY_MS
            with suppress(OwnError, RequestRefused, SimulatedCrash):
                self.task(task)

    def task(self, number: int) -> None:
        raise NotImplementedError

    def entry(self) -> Any:
        table = self.world.table
        return self.catalog._table(
            _NAME,
            self.world.server._table("main.s.t")[1]
            | {"storage_location": "s3://b/t", "table_id": table.table_id},
        )

    def state(self) -> ManagedState:
        state = self.catalog.managed_state(self.entry())
        assert state is not None
        return state

    def open(self, store: Any) -> Table:
        def report(table_id: str, version: int) -> None:
            self.catalog.report_published(self.entry(), version)

        return Table(ManagedStore(store, self.state, report))


class Writer(Actor):
    """Commits and publishes as Delta Spark does, which dies at any time."""

    tasks = 16

    def task(self, number: int) -> None:
        state = self.state()
        version = state.latest_version + 1
        data = log_text([info(version), add(f"w{self.number}-{number}")])
        name = f"{version:020}.{self.number:08}-{number:04}-4000-8000-000000000000.json"
        self.store.put(f"{STAGED}/{name}", data)
        commit = {
            "version": version,
            "timestamp": 1_000 + version,
            "file-name": name,
            "file-size": len(data),
            "file-modification-timestamp": self.world.now_ms,
        }
        updates: list[dict[str, Any]] = [{"action": "add-commit", "commit": commit}]
        oldest = version - len(state.commits)
        last = max(
            (v for v in range(oldest, version) if self.world.published(v) is not None), default=0
        )
        if last and self.chance.random() < 0.7:
            report = {"action": "set-latest-backfilled-version", "latest-published-version": last}
            updates.append(report)
        requirement = {"type": "assert-table-uuid", "uuid": state.table_id}
        body = {"requirements": [requirement], "updates": updates}
        self.catalog.client.send("POST", _PATH, body=body)
        if self.chance.random() >= self.world.share_published:
            return
        for listed in self.state().commits:
            # Delta Spark ends a publication at the first failure, and says nothing.
            try:
                data = self.store.read(f"{STAGED}/{listed.file_name}")
            except FileNotFoundError:
                return
            self.store.put_if_absent(commit_path(listed.version), data)


class Publisher(Actor):
    """Runs `publish`, which may be killed at any request."""

    def task(self, number: int) -> None:
        store: Any = self.store
        if self.chance.random() < 0.4:
            fault = self.chance.choice(_FAULTS)
            store = FaultStore(store, at=self.chance.randrange(20), fault=fault)

        table, context = self.open(store), self.world.context()
        try:
            result = apply(table, plan(table, context=context), context)
        except CorruptTableError as error:
            raise AssertionError(str(error)) from error
        self.world.events[f"publish: {result.status}"] += 1


class Cleaner(Actor):
    """Deletes the staged files of published commits; an eager one, also of those still listed."""

    def task(self, number: int) -> None:
        is_eager = self.chance.random() < 0.5
        files = [status.path for status in self.store.list_from(STAGED)]
        listed = {commit.version for commit in self.state().commits}
        for path in files:
            version = int(path.rpartition("/")[2][:20])
            if version in listed and not is_eager:
                continue
            with suppress(FileNotFoundError):
                if self.store.read(commit_path(version)) == self.store.read(path):
                    self.store.delete(path)
                    self.world.events["cleaned"] += 1


class OwnCleaner(Actor):
    """Runs `clean-staged`."""

    tasks = 16

    def task(self, number: int) -> None:
        table, context = self.open(self.store), self.world.context()
        plan = clean_staged.plan(table.snapshot(), context=context)
        result = clean_staged.apply(table, plan, context)
        deleted = sum(group.deleted for group in result.groups)
        self.world.events["cleaned by clean-staged"] += deleted


class Reader(Actor):
    """Reads the staged files that the catalog named, and no published file instead."""

    def task(self, number: int) -> None:
        self.world.num_readers += 1
        try:
            commits = self.state().commits
            for _ in range(self.chance.choice((0, 300))):
                self.world.schedule.pause()
            for commit in commits:
                assert self.store.stat(f"{STAGED}/{commit.file_name}"), (
                    f"the staged file of version {commit.version} is gone for a reader"
                )
                self.world.events["read"] += 1
        finally:
            self.world.num_readers -= 1


def play(seed: int) -> World:
    chance = random.Random(f"publication {seed}")
    world = World(Schedule(seed, persistence=chance.choice((0.0, 0.5, 0.9))))
    cleaners = (OwnCleaner, Reader) if world.has_readers else (Cleaner,)
    kinds = [Writer, *chance.choices((Writer, Publisher, *cleaners), k=4), Publisher]
    for number, kind in enumerate(kinds):
        world.schedule.begin(kind(world, number).work)
    with single_threaded():
        world.schedule.run()
    world.judge()
    final = Publisher(world, 99)
    world.chance = random.Random()
    while world.table.commits:
        with suppress(OwnError, SimulatedCrash):
            final.task(0)
    world.judge()
    assert Table(world.store).snapshot().version == world.table.latest
    return world


def _seeds() -> Iterator[int]:
    one = os.environ.get("DELTA_MAINTENANCE_PUBLICATION_SEED")
    yield from range(SEEDS) if one is None else (int(one),)


@pytest.mark.conformance("CAT-07")
@pytest.mark.timeout(3600)
def test_no_order_of_writers_publishers_and_cleaners_loses_a_version(
    monkeypatch: pytest.MonkeyPatch, count_cases: Callable[[str, int], None]
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    events = Counter[str]()
    for seed in _seeds():
        try:
            world = play(seed)
        except Exception as error:
            again = f"DELTA_MAINTENANCE_PUBLICATION_SEED={seed} pytest {__file__}"
            raise AssertionError(f"seed {seed}; to play it again: {again}") from error
        events.update(world.events)
        events["versions"] += world.table.latest
        events["seeds"] += 1
    for event, number in sorted(events.items()):
        count_cases(f"publications, {event}", number)
    if events["seeds"] >= 20:
        expected = ("published", "reported", "cleaned", "lost answer", "status 409", "status 429")
        expected += ("cleaned by clean-staged", "read")
        assert all(events[event] for event in expected), events
