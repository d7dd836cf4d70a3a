"""Publishing ratified commits and reporting them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import pytest

from delta_maintenance.catalogs import RatifiedCommit
from delta_maintenance.clock import instant
from delta_maintenance.errors import (
    BusyError,
    CatalogError,
    CatalogUnavailableError,
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    StorageError,
)
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.publish import PublishPlan, PublishResult, apply, plan
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from delta_maintenance.table.read.managed_log import ManagedStore
from tests.support.faults.every_fault import files_of, play_faults, store_of
from tests.support.faults.fault_store import Fault, FaultStore, Step
from tests.support.tables.actions import add
from tests.support.tables.managed import STAGED, Managed, commit_path, info, live_paths
from tests.support.tables.table_builder import log_text

CONTEXT = RunContext.at(instant(5_000))


def ratified(commits: int, *, published: int = 0) -> Managed:
    managed = Managed()
    for _ in range(commits):
        managed.ratify()
    for _ in range(published):
        managed.publish()
    return managed


def publish(managed: Managed, store: Store | None = None) -> PublishResult:
    table = Table(ManagedStore(store or managed.store, managed.state, managed.take_report))
    return apply(table, plan(table, context=CONTEXT), CONTEXT)


def staged_path(managed: Managed, version: int) -> str:
    return f"{STAGED}/{managed.listed[version - 1].file_name}"


def content(managed: Managed, version: int) -> bytes:
    name = f"{version:020}.{version:08}-0000-4000-8000-000000000000.json"
    return managed.store.read(f"{STAGED}/{name}")


def is_published(managed: Managed, version: int) -> bool:
    return managed.store.stat(commit_path(version)) is not None


@pytest.mark.parametrize("commits", [1, 2, 10])
@pytest.mark.parametrize("published", [0, 1, 10])
def test_every_listed_commit_is_published_and_reported(commits: int, published: int) -> None:
    managed = ratified(commits, published=published)
    asked: list[int] = []
    managed.meanwhile = [lambda: asked.append(1)]
    store = FaultStore(managed.store)
    result = publish(managed, store)
    for version in range(1, commits + 1):
        assert managed.store.read(commit_path(version)) == content(managed, version)
    assert managed.reports == [commits] and managed.listed == []
    assert result.reported_version == commits and result.version == commits
    assert [commit.status for commit in result.commits] == [
        "already-there" if version <= published else "published"
        for version in range(1, commits + 1)
    ]
    assert result.status == ("published" if published < commits else "reported")
    # One looks for the commit before them; one more asks for the commits, and one reports them.
    assert len(store.trace) == 3 * commits + 1
    assert live_paths(managed.table()) == {f"f{version}" for version in range(commits + 1)}
    # Without the catalog, every reader sees all versions.
    assert Table(managed.store).snapshot().version == commits


def test_two_requests_find_that_there_is_nothing_to_do() -> None:
    managed = ratified(2, published=2)
    managed.report()
    asked: list[int] = []
    managed.meanwhile = [lambda: asked.append(1)]
    store = FaultStore(managed.store)
    result = publish(managed, store)
    assert (result.status, len(store.trace), managed.reports) == ("nothing-to-do", 1, [])
    assert asked == [1]


@pytest.mark.conformance("CAT-07")
@pytest.mark.parametrize("published", [0, 2])
@pytest.mark.parametrize("later_commits", [0, 1, 3])
def test_nothing_is_published_behind_a_commit_that_was_reported_and_is_not_there(
    published: int, later_commits: int
) -> None:
    managed = ratified(3, published=published)
    managed.forget()
    for _ in range(later_commits):
        managed.ratify()
    before, listed = files_of(managed.store), managed.listed
    with pytest.raises(CorruptTableError, match="version 3 was reported to the catalog") as caught:
        publish(managed)
    assert caught.value.exit_status == 5
    assert (caught.value.version, caught.value.file) == (3, commit_path(3))
    assert f"could be it: _staged_commits/{3:020}.{3:08}-" in str(caught.value)
    assert files_of(managed.store) == before
    assert (managed.reports, managed.listed) == ([], listed)
    # The remedy: the writer publishes the file that it committed.
    managed.published = 2
    managed.publish()
    assert publish(managed).status == ("published" if later_commits else "nothing-to-do")


@pytest.mark.parametrize("later_commits", [0, 1])
def test_a_reported_commit_may_have_been_deleted_behind_a_checkpoint(later_commits: int) -> None:
    managed = ratified(3, published=3)
    managed.report()
    for _ in range(later_commits):
        managed.ratify()
    managed.store.delete(commit_path(3))
    managed.store.put(f"_delta_log/{2:020}.checkpoint.parquet", b"")
    managed.store.put("_delta_log/_last_checkpoint", b"")
    with pytest.raises(CorruptTableError, match="version 3 was reported to the catalog"):
        publish(managed)
    managed.store.put(f"_delta_log/{3:020}.checkpoint.parquet", b"")
    assert publish(managed).status == ("published" if later_commits else "nothing-to-do")


def test_the_first_commit_of_a_table_has_none_before_it() -> None:
    managed = ratified(0)
    data = managed.store.read(commit_path(0))
    managed.store.delete(commit_path(0))
    name = f"{0:020}.00000000-0000-4000-8000-000000000000.json"
    managed.store.put(f"{STAGED}/{name}", data)
    managed.listed = [
        RatifiedCommit(version=0, file_name=name, size=len(data), modified_ms=1, timestamp_ms=1_000)
    ]
    assert publish(managed).reported_version == 0


def test_a_plan_lists_the_versions_with_their_sizes_and_changes_nothing() -> None:
    managed = ratified(3, published=1)
    before = files_of(managed.store)
    planned = plan(managed.table(), context=CONTEXT)
    assert [(commit.version, commit.size) for commit in planned.commits] == [
        (version, len(content(managed, version))) for version in (1, 2, 3)
    ]
    text = str(planned)
    assert "3 commits not reported" in text and managed.listed[2].file_name in text
    assert PublishPlan.from_json(planned.to_json()) == planned
    assert files_of(managed.store) == before and managed.reports == []


@pytest.mark.parametrize("version", [1, 3, 5])
def test_a_published_file_with_other_bytes_stops_it(version: int) -> None:
    managed = ratified(5)
    wrong = log_text([info(version), add("wrong")])
    managed.store.put(commit_path(version), wrong)
    with pytest.raises(CorruptTableError, match="differs from the ratified one") as caught:
        publish(managed)
    assert caught.value.file == commit_path(version) and caught.value.version == version
    assert staged_path(ratified(5), version) in str(caught.value)
    assert managed.store.read(commit_path(version)) == wrong
    # What was published before can be forgotten; nothing is published after it.
    assert managed.reports == ([version - 1] if version > 1 else [])
    assert [is_published(managed, later) for later in range(version + 1, 6)] == [False] * (
        5 - version
    )


def _truncate(data: bytes) -> bytes:
    return data[:-20]


def _scribble(data: bytes) -> bytes:
    return b"x" * len(data)


@pytest.mark.parametrize("spoil", [_truncate, _scribble, lambda _: b""])
def test_a_damaged_staged_file_is_not_published(spoil: Callable[[bytes], bytes]) -> None:
    managed = ratified(3)
    path = staged_path(managed, 2)
    whole = managed.store.read(path)
    managed.store.put(path, spoil(whole))
    with pytest.raises((CorruptTableError, StorageError), match=path.rpartition("/")[2]):
        publish(managed)
    assert not is_published(managed, 2) and managed.reports == [1]
    managed.store.put(path, whole)
    assert publish(managed).reported_version == 3


def test_a_commit_without_any_file_is_lost() -> None:
    managed = ratified(3)
    managed.store.delete(staged_path(managed, 2))
    with pytest.raises(CorruptTableError, match="neither staged nor published"):
        publish(managed)
    assert managed.reports == [1] and not is_published(managed, 3)


def test_the_published_file_is_enough_if_it_is_the_stated_commit() -> None:
    managed = ratified(3, published=3)
    managed.clean()
    assert publish(managed).reported_version == 3


def test_another_published_file_is_not_taken_for_a_staged_one_that_is_gone() -> None:
    managed = ratified(3, published=1)
    managed.clean()
    managed.store.put(commit_path(1), log_text([info(9), add("wrong")]))
    with pytest.raises(CorruptTableError, match="as the catalog states it"):
        publish(managed)
    assert managed.reports == []


def test_a_plan_that_others_have_overtaken_does_nothing() -> None:
    managed = ratified(3)
    table = managed.table()
    planned = plan(table, context=CONTEXT)
    publish(managed)
    assert apply(table, planned, CONTEXT).status == "reported"
    managed.lose_staged_files()
    managed.store.delete(commit_path(1))
    with pytest.raises(BusyError, match="other clients have published and deleted"):
        apply(table, planned, CONTEXT)


def test_a_table_that_was_made_again_is_left_alone() -> None:
    managed = ratified(3)
    planned = replace(plan(managed.table(), context=CONTEXT), table_id="another")
    before = files_of(managed.store)
    with pytest.raises(CatalogError, match="dropped and created again; plan again"):
        apply(managed.table(), planned, CONTEXT)
    assert files_of(managed.store) == before and managed.reports == []


def test_a_table_without_a_catalog_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="give the name of a catalog-managed table"):
        plan(ratified(1).builder.open())


class _NoConditionalPut(MemoryStore):
    def put_if_absent(self, path: str, data: bytes) -> NoReturn:
        raise RefusedError("this store cannot create a file only if it is absent")


def test_a_store_without_conditional_puts_is_refused() -> None:
    managed = Managed(_NoConditionalPut())
    managed.ratify()
    with pytest.raises(RefusedError, match="only if it is absent"):
        publish(managed)
    assert managed.reports == []


def test_a_report_that_fails_is_sent_by_the_next_run() -> None:
    managed = ratified(3)

    def refuse(table_id: str, version: int) -> None:
        raise CatalogUnavailableError("down")

    table = Table(ManagedStore(managed.store, managed.state, refuse))
    with pytest.raises(CatalogUnavailableError):
        apply(table, plan(table, context=CONTEXT), CONTEXT)
    assert publish(managed).status == "reported"
    assert managed.reports == [3]


@pytest.mark.parametrize("published", [0, 1, 3])
@pytest.mark.conformance("CAT-07")
def test_a_fault_at_any_request_loses_nothing(published: int) -> None:
    """Nobody reads another version in between, and the next run completes it."""
    states: list[Managed] = []

    def make() -> MemoryStore:
        managed = ratified(3, published=published)
        store = store_of(files_of(managed.store), now_ms=lambda: 5_000)
        managed.store = store
        states.append(managed)
        return store

    def run(store: Store) -> PublishResult:
        return publish(states[-1], store)

    outcomes = 0
    for outcome in play_faults(run, make):
        managed = states[-1]
        versions = [version for version in range(1, 4) if is_published(managed, version)]
        # In order, so that no reader without the catalog finds a gap.
        assert versions == [*range(1, len(versions) + 1)], outcome.where
        assert all(version in versions for version in managed.reports), outcome.where
        for version in versions:
            assert outcome.store.read(commit_path(version)) == content(managed, version)
        assert live_paths(managed.table()) == {"f0", "f1", "f2", "f3"}, outcome.where
        if not (outcome.result and outcome.result.reported_version == 3):
            assert publish(managed).reported_version == 3, outcome.where
        assert managed.reports[-1] == 3 and managed.listed == []
        outcomes += 1
    assert outcomes > 20


@pytest.mark.conformance("CAT-07")
def test_two_publishers_take_turns_at_every_request() -> None:
    """One stops after each of its requests, and the other one runs in between."""
    for stop in range(10):
        managed = ratified(3)
        publish(managed, _Interrupted(managed, stop))
        assert all(is_published(managed, version) for version in (1, 2, 3))
        assert managed.listed == [] and set(managed.reports) == {3}


class _Interrupted(FaultStore):
    """Before one of its steps, another publisher does everything."""

    def __init__(self, managed: Managed, stop: int) -> None:
        super().__init__(managed.store)
        self._managed, self._stop = managed, stop

    def _before(self, step: Step, data: bytes) -> Fault | None:
        if len(self.trace) == self._stop:
            publish(self._managed)
        return super()._before(step, data)


def test_an_unsupported_protocol_does_not_hold_writers_up() -> None:
    """The bytes are copied; nothing depends on their meaning."""
    managed = Managed()
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["new"]}
    managed.store.put(
        commit_path(0), log_text([info(0), {"protocol": {**protocol, "writerFeatures": ["new"]}}])
    )
    managed.ratify()
    with pytest.raises(DeltaMaintenanceError):
        managed.table().snapshot()
    assert publish(managed).reported_version == 1
