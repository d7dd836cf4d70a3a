"""A run looks at its table several times, and reads the log and the files of the table once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import checkpoint, compact_log, health
from delta_maintenance.operations.core import RunContext
from delta_maintenance.policies import NewestSnapshots
from delta_maintenance.policies.execute import RunEnvironment
from delta_maintenance.policies.on_demand import run_operation
from delta_maintenance.table.read import Snapshot, file_sums
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import add, commit_info, features, metadata, remove
from tests.support.tables.policy_tables import asked, run_on
from tests.support.tables.vacuum_tables import NOW, Folder

V2 = {"delta.checkpointPolicy": "v2"}


def begun() -> tuple[Folder, CountingStore]:
    """A table with a checkpoint of several sidecars, and commits since."""
    store = CountingStore()
    table = Folder(store, first=(features("v2Checkpoint"), metadata(configuration=V2)))
    table.log(commit_info(), *(add(f"f{number:02d}", size=9000) for number in range(40)))
    store.now_ms = lambda: epoch_millis(NOW)
    options = checkpoint.CheckpointOptions(kind="v2-json", actions_per_sidecar=10)
    plan = checkpoint.plan(table.open().snapshot(), options, context=RunContext.at(NOW))
    checkpoint.apply(table.open(), plan, context=RunContext.at(NOW))
    for number in range(5):
        table.log(commit_info(), add(f"g{number}", size=9000), days=1)
    table.log(commit_info("DELETE"), remove("f03", size=9000), days=1)
    store.requests.clear()
    return table, store


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of files that assessments read in replays."""
    counted: list[int] = []
    replay: Any = file_sums._replay_sums

    def count(snapshot: Snapshot, sample: Any) -> Any:
        known = replay(snapshot, sample)
        counted.append(int(known.live.files.sum()))
        return known

    monkeypatch.setattr(file_sums, "_replay_sums", count)
    return counted


def most_read(store: CountingStore) -> int:
    """How often a commit is read that is not the newest one at the end.

    The snapshot reads each commit since the checkpoint, and the history of the table reads the
    beginning of each.
    """
    names = (line.rpartition("/")[2] for line in store.requests if line.startswith("read "))
    found = Counter(name for name in names if name.removesuffix(".json").isdigit())
    return max(found[name] for name in sorted(found)[:-1])


def test_a_run_reads_each_commit_and_each_file_once(replayed: list[int]) -> None:
    table, store = begun()
    properties = {"properties": {"delta.logRetentionDuration": "interval 40 days"}}
    result = run_on(table, asked(protocol=properties, checkpoint={"max_commits": 3}))
    assert [outcome.operation for outcome in result.outcomes] == ["set-properties", "checkpoint"]
    assert result.status == "done" and result.after is not None
    assert result.after.health is not None and result.after.health.num_files == 44
    # One replay for three assessments; the last one compares it with the new checkpoint.
    assert replayed == [44]
    # The commit of the properties opens the table itself, and both plans compare their snapshots
    # with the commits up to the checkpoint.
    assert most_read(store) == 4


def test_an_operation_on_demand_looks_at_the_table_as_often_as_a_run(replayed: list[int]) -> None:
    table, store = begun()
    environment = RunEnvironment(now=lambda: NOW)
    result = run_operation(table.open(), asked(), "checkpoint", environment=environment)
    assert result.status == "done" and replayed == [44]
    assert most_read(store) == 2


def test_the_assessment_after_a_compaction_counts_what_a_new_reader_opens() -> None:
    table, _ = begun()
    result = run_on(table, asked(compact_log={"commits_per_file": 2}))
    assert [outcome.operation for outcome in result.outcomes] == ["compact-log"]
    before, after = result.before, result.after
    assert before is not None and before.health is not None
    assert after is not None and after.health is not None
    fresh = health.measure(table.open().snapshot(), now=NOW)
    assert after.health.files_to_open == fresh.files_to_open < before.health.files_to_open
    assert after.health.bytes_to_open == fresh.bytes_to_open


def listings(store: CountingStore) -> int:
    """The number of listings of the log so far."""
    return sum(line.startswith("list _delta_log from") for line in store.requests)


def test_a_plan_lists_the_log_once() -> None:
    table, store = begun()
    snapshots = NewestSnapshots(table.open())
    first = snapshots.to_plan()
    assert listings(store) == 1
    store.requests.clear()
    # Directly after a look, nothing else is read.
    assert snapshots.to_plan() is first and snapshots.newest() is first
    assert store.requests == [
        f"list _delta_log from {first.log.segment.base_version + 1:020}",
        f"list _delta_log from {first.version:020}",
    ]
    table.log(commit_info(), add("new", size=9000), days=1)
    store.requests.clear()
    assert snapshots.to_plan().version == first.version + 1
    assert listings(store) == 1
    # A checkpoint leads to a fresh opening, which has a listing of its own.
    options = checkpoint.CheckpointOptions(kind="v2-json", incremental="never")
    checkpoint.apply(
        table.open(), checkpoint.plan(first, options, context=RunContext.at(NOW)), snapshot=first
    )
    table.log(commit_info(), add("newer", size=9000), days=1)
    store.requests.clear()
    assert snapshots.to_plan().log.segment.base_version == first.version
    assert listings(store) == 2


def test_a_log_compaction_of_older_versions_does_not_open_the_table_again() -> None:
    table, store = begun()
    opened = table.open()
    options = compact_log.CompactLogOptions(commits_per_file=2)
    planned = compact_log.plan(opened.snapshot(), options, context=RunContext.at(NOW))
    assert compact_log.apply(opened, planned, context=RunContext.at(NOW)).status == "written"
    snapshots = NewestSnapshots(opened)
    snapshots.newest()
    table.log(commit_info(), add("new", size=9000), days=1)
    store.requests.clear()
    snapshots.to_plan()
    assert "read _delta_log/_last_checkpoint" not in store.requests


def test_a_plan_begins_at_the_checkpoint_that_another_process_wrote() -> None:
    table, _ = begun()
    snapshots = NewestSnapshots(table.open())
    older = snapshots.newest()
    options = checkpoint.CheckpointOptions(kind="v2-json", incremental="never")
    behind = table.open().snapshot(version=older.version - 1)
    checkpoint.apply(
        table.open(),
        checkpoint.plan(behind, options, context=RunContext.at(NOW)),
        context=RunContext.at(NOW),
        snapshot=behind,
    )
    assert snapshots.newest().log.segment.base_version == older.log.segment.base_version
    assert snapshots.to_plan().log.segment.base_version == older.version - 1
    assert snapshots.newest().log.segment.base_version == older.version - 1
