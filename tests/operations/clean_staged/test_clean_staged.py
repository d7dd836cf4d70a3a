"""Staged files are deleted once their commits are published, reported and old, and never before."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import DeltaMaintenanceError, StorageError, UnsupportedFeatureError
from delta_maintenance.operations import clean_staged
from delta_maintenance.operations.clean_staged import CleanStagedPlan, CleanStagedResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage import MemoryStore
from tests.support.faults.every_fault import files_of
from tests.support.faults.fault_store import FaultStore, SimulatedCrash, faults
from tests.support.servers.unity_delta import MOST_COMMITS
from tests.support.tables.actions import add
from tests.support.tables.managed import STAGED, Managed, commit_path, live_paths
from tests.support.tables.table_builder import TableBuilder

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
CLEANUP = frozenset(("METADATA_CLEANUP",))


class Clocked(Managed):
    """A managed table whose store tells the time."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.memory = store or MemoryStore()
        self.now = BEGIN
        super().__init__(self.memory)
        self._set_clock()
        self.allowed = CLEANUP

    def _set_clock(self) -> None:
        # The builder sets the time of the store.
        self.memory.now_ms = lambda: epoch_millis(self.now)

    def checkpoint(self) -> None:
        super().checkpoint()
        self._set_clock()

    def ratify(self) -> None:
        """The catalog refuses a commit if ten are not reported."""
        if len(self.listed) < MOST_COMMITS:
            super().ratify()

    def settle(self) -> None:
        """So many versions are published and reported that the ones before them were reported."""
        for _ in range(MOST_COMMITS):
            self.ratify()
            self.publish()
            self.report()

    def wait(self, time: timedelta = DAY) -> None:
        self.now += time

    def plan(self) -> CleanStagedPlan:
        return clean_staged.plan(self.table().snapshot(), context=RunContext.at(self.now))

    def run(self) -> CleanStagedResult:
        return clean_staged.apply(self.table(), self.plan(), RunContext.at(self.now))

    def staged(self) -> set[str]:
        """The staged files: their versions, with `w` for a winner and `l` for a loser."""
        names = [status.path.rpartition("/")[2] for status in self.memory.list_from(STAGED)]
        return {f"{int(name[:20])}{'l' if name.endswith('ff.json') else 'w'}" for name in names}


def settled() -> Clocked:
    """Two versions that nobody reads as staged any more, the ten that show it, a published one, a
    ratified one, and an attempt.
    """
    table = Clocked()
    for _ in range(2):
        table.ratify()
        table.publish()
    table.report()
    table.settle()
    for _ in range(2):
        table.ratify()
    table.publish()
    name = f"{15:020}.00000015-0000-4000-8000-000000000000.json"
    table.memory.put(f"{STAGED}/{name}", b"{}\n")
    return table


def newest_file_now(table: Clocked) -> None:
    """The catalog states a new commit, whose time the ages are counted up to."""
    table.ratify()
    table.listed[-1] = type(table.listed[-1])(
        version=table.latest,
        file_name=table.listed[-1].file_name,
        size=table.listed[-1].size,
        modified_ms=epoch_millis(table.now),
        timestamp_ms=1_000 + table.latest,
    )


@pytest.mark.conformance("CLEAN-07")
def test_copies_of_published_and_reported_commits_end_after_a_day() -> None:
    table = settled()
    newest_file_now(table)
    assert table.run().status == "nothing-to-do"
    table.wait(DAY + timedelta(minutes=1))
    newest_file_now(table)
    before = table.staged()
    plan = table.plan()
    [group] = plan.groups
    assert (group.kind, group.count) == ("staged-commits", 2)
    result = table.run()
    assert result.status == "cleaned"
    assert before - table.staged() == {"1w", "2w"}
    assert live_paths(table.table()) == {f"f{version}" for version in range(table.latest + 1)}
    assert table.run().status == "nothing-to-do"


def test_rejected_commits_end_with_the_log_retention() -> None:
    table = settled()
    table.checkpoint()
    table.wait(timedelta(days=29))
    newest_file_now(table)
    table.run()
    assert {"1l", "2l"} <= table.staged()
    table.wait(timedelta(days=2))
    newest_file_now(table)
    before = table.staged()
    [group] = table.plan().groups
    assert group.kind == "rejected-commits"
    assert table.run().status == "cleaned"
    assert before - table.staged() == {"1l", "2l"}


def test_the_good_copy_of_a_damaged_commit_stays_until_a_checkpoint_replaces_it() -> None:
    table = settled()
    # A commit that was cut after a line is a valid one without some files.
    first_line = table.memory.read(commit_path(2)).partition(b"\n")[0]
    table.memory.put(commit_path(2), first_line + b"\n")
    table.wait(timedelta(days=40))
    newest_file_now(table)
    table.run()
    assert {"1l", "2w", "2l"} <= table.staged() and "1w" not in table.staged()


def test_a_loser_of_the_size_of_the_winner_is_compared_before_it_is_deleted() -> None:
    table = settled()
    winner, loser = (
        f"{STAGED}/{1:020}.{1:08}-0000-4000-8000-0000000000{end}.json" for end in ("00", "ff")
    )
    data = table.memory.read(winner)
    table.memory.put(loser, data.replace(b"f1", b"g1"))
    table.wait(2 * DAY)
    newest_file_now(table)
    before = table.staged()
    assert table.plan().groups[0].count == 3
    assert table.run().status == "cleaned"
    assert before - table.staged() == {"1w", "2w"}
    table.checkpoint()
    table.wait(timedelta(days=31))
    newest_file_now(table)
    table.run()
    assert "1l" not in table.staged()


def test_the_age_counts_from_the_publication() -> None:
    """A writer may have staged its file long before it committed."""
    table = Clocked()
    table.ratify()
    table.wait(3 * DAY)
    table.publish()
    table.report()
    table.settle()
    newest_file_now(table)
    assert table.run().status == "nothing-to-do"


def test_the_report_must_be_a_day_old_too() -> None:
    """The last commits of an idle table are published, and reported with the next commit."""
    table = Clocked()
    for _ in range(2):
        table.ratify()
        table.publish()
    table.wait(5 * DAY)
    reader = [commit.file_name for commit in table.listed]
    table.settle()
    table.wait(DAY - timedelta(minutes=1))
    newest_file_now(table)
    assert table.run().status == "nothing-to-do"
    for name in reader:
        table.memory.read(f"{STAGED}/{name}")
    table.wait(timedelta(minutes=2))
    newest_file_now(table)
    assert table.run().groups[0].deleted == 2


def test_a_fast_clock_deletes_nothing() -> None:
    table = settled()
    newest_file_now(table)
    later = RunContext.at(table.now + timedelta(days=400))
    assert clean_staged.plan(table.table().snapshot(), context=later).is_noop


def test_the_only_copy_of_a_commit_stays() -> None:
    """Somebody reports a commit that nobody published, and the catalog forgets it."""
    table = settled()
    table.checkpoint()
    table.memory.delete(commit_path(1))
    table.wait(timedelta(days=60))
    newest_file_now(table)
    table.run()
    assert {"1w", "1l"} <= table.staged() and "2w" not in table.staged()


@pytest.mark.conformance("CAT-05")
@pytest.mark.parametrize("allowed", [(), ("DATA_CLEANUP", "DATA_REORGANIZATION")])
def test_the_catalog_must_permit_it(allowed: tuple[str, ...]) -> None:
    table = settled()
    table.allowed = frozenset(allowed)
    with pytest.raises(UnsupportedFeatureError) as refused:
        table.plan()
    assert str(refused.value).endswith(
        "the catalog does not permit clean-staged; ask its owner for METADATA_CLEANUP"
    )


def test_a_permission_that_is_taken_away_ends_the_deletion() -> None:
    table = settled()
    table.wait(2 * DAY)
    newest_file_now(table)
    plan, opened = table.plan(), table.table()
    table.allowed = frozenset()
    before = files_of(table.memory)
    with pytest.raises(UnsupportedFeatureError, match="METADATA_CLEANUP"):
        clean_staged.apply(opened, plan, RunContext.at(table.now))
    assert files_of(table.memory) == before


def test_another_table_has_nothing_to_do() -> None:
    table = TableBuilder()
    table.commit([*_first(), add("a")])
    plan = clean_staged.plan(table.open().snapshot())
    assert plan.is_noop and "clean-log" in plan.reason


def _first() -> list[Any]:
    from tests.support.tables.actions import metadata, protocol

    return [protocol(), metadata()]


def test_a_plan_made_before_a_clean_up_of_the_log_deletes_no_last_copy() -> None:
    table = settled()
    table.wait(2 * DAY)
    newest_file_now(table)
    plan = table.plan()
    table.checkpoint()
    table.memory.delete(commit_path(1))
    result = clean_staged.apply(table.table(), plan, RunContext.at(table.now))
    assert result.status == "cleaned" and result.groups[0].deleted == 1
    assert {"1w", "1l"} <= table.staged()


@pytest.mark.cases
def test_wherever_it_stops_every_version_opens_and_the_next_run_ends_it() -> None:
    def build(wrap: Any = None) -> Clocked:
        table = settled()
        table.checkpoint()
        table.wait(timedelta(days=40))
        newest_file_now(table)
        if wrap is not None:
            table.store = wrap(table.memory)
        return table

    trial = build(FaultStore)
    plan = trial.plan()
    assert isinstance(trial.store, FaultStore)
    trial.store.trace.clear()
    clean_staged.apply(trial.table(), plan, RunContext.at(trial.now))
    expected = trial.staged()
    count = 0
    for at, fault in faults([*trial.store.trace]):
        table = build(lambda memory, at=at, fault=fault: FaultStore(memory, at=at, fault=fault))
        quiet = build()
        plan = quiet.plan()
        try:
            result = clean_staged.apply(table.table(), plan, RunContext.at(table.now))
            assert result.status in ("cleaned", "partly")
        except (SimulatedCrash, DeltaMaintenanceError):
            pass
        table.store = table.memory
        for version in range(table.latest + 1):
            paths = {f"f{number}" for number in range(version + 1)}
            assert live_paths(table.table(), version) == paths, (at, fault)
        table.run()
        assert table.staged() == expected, (at, fault)
        count += 1
    assert count > 10


_STEPS = st.sampled_from(
    ["ratify", "ratify", "publish", "publish", "report", "wait", "wait", "checkpoint", "clean_now"]
    + ["settle", "read"]
)


@given(
    steps=st.lists(_STEPS, max_size=30),
    between=st.lists(st.sampled_from(["ratify", "publish", "report"]), max_size=6),
)
def test_no_order_of_readers_writers_publishers_and_clean_ups_loses_a_version(
    steps: list[str], between: list[str]
) -> None:
    table = Clocked()
    readers: list[tuple[datetime, list[str]]] = []

    def read() -> None:
        """A reader asks the catalog, and takes its time with the staged files."""
        readers.append((table.now, [commit.file_name for commit in table.listed]))

    def clean_now() -> None:
        newest_file_now(table)
        plan, opened = table.plan(), table.table()
        # Beside it, others go on after the plan, and while the deletion asks the catalog.
        for action in between[:3]:
            getattr(table, action)()
        table.meanwhile = [getattr(table, action) for action in between[3:]]
        with suppress(StorageError):
            clean_staged.apply(opened, plan, RunContext.at(table.now))
        table.meanwhile = []
        for asked_at, names in readers:
            if table.now - asked_at < DAY:
                for name in names:
                    table.memory.read(f"{STAGED}/{name}")

    own_steps = {
        "clean_now": clean_now,
        "read": read,
        "wait": lambda: table.wait(timedelta(hours=13)),
    }
    for step in steps:
        own_steps.get(step, getattr(table, step, None))()
    assert table.has_every_commit()
    assert live_paths(table.table()) == {f"f{version}" for version in range(table.latest + 1)}
    staged = table.staged()
    for commit in table.listed:
        assert f"{commit.version}w" in staged


def test_a_writer_that_sends_its_commit_again_within_a_day_still_has_its_file() -> None:
    """Servers compare the staged file of a reported commit with the published one."""
    table = settled()
    newest_file_now(table)
    for _ in range(23):
        table.wait(timedelta(hours=1))
        newest_file_now(table)
        table.run()
    resent = f"{STAGED}/{2:020}.{2:08}-0000-4000-8000-000000000000.json"
    assert table.memory.read(resent) == table.memory.read(commit_path(2))
