"""The compacted windows, the skipped ones, and that no other file is touched."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
    VerificationError,
    VersionNotFoundError,
)
from delta_maintenance.operations import compact_log
from delta_maintenance.operations.compact_log import (
    CompactLogOptions,
    CompactLogPlan,
    CompactLogResult,
)
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import commit_name, compaction_name
from delta_maintenance.protocol.delta_log.compaction import RangeReplay
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Snapshot, Table
from tests.support.faults.every_fault import play_faults
from tests.support.logs.checkpointing import files_of, state_of
from tests.support.tables.actions import (
    add,
    checkpoint_metadata,
    commit_info,
    deletion_vector,
    domain,
    features,
    metadata,
    protocol,
    remove,
    sidecar,
    txn,
)
from tests.support.tables.corpus_tables import TABLES
from tests.support.tables.table_builder import LOG, TableBuilder

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def build(commits: int, **configuration: str) -> TableBuilder:
    """A table with this number of commits, each of which adds a file and removes the
    previous one.
    """
    table = TableBuilder()
    table.commit([protocol(), metadata(configuration=configuration), add("f0")])
    for version in range(1, commits):
        table.commit([commit_info(), add(f"f{version}"), remove(f"f{version - 1}")])
    return table


def plan(table: TableBuilder, **options: Any) -> CompactLogPlan:
    return compact_log.plan(
        table.open().snapshot(), CompactLogOptions(**options), context=RunContext.at(NOW)
    )


def run(table: TableBuilder, **options: Any) -> CompactLogResult:
    return compact_log.apply(table.open(), plan(table, **options))


def ranges(plan: CompactLogPlan) -> list[tuple[int, int]]:
    return [(window.first_version, window.last_version) for window in plan.windows]


def content(table: TableBuilder, first: int, last: int) -> list[Any]:
    return [json.loads(line) for line in table.read(compaction_name(first, last)).splitlines()]


# Windows


@pytest.mark.conformance("COMP-01")
def test_windows_are_complete_and_adjacent_from_version_0_on() -> None:
    table = build(25)
    assert ranges(plan(table)) == [(0, 9), (10, 19)]
    assert ranges(plan(table, commits_per_file=4)) == [(v, v + 3) for v in range(0, 24, 4)]
    assert ranges(plan(table, partial=True)) == [(0, 9), (10, 19), (20, 24)]
    waiting = "commits 20 to 24 are too few for a window, so they wait for more"
    assert waiting in plan(table).notes


def test_windows_begin_after_the_checkpoint() -> None:
    table = build(25)
    table.checkpoint(3)
    assert ranges(plan(table, commits_per_file=5)) == [(4, 8), (9, 13), (14, 18), (19, 23)]
    assert ranges(plan(table, commits_per_file=5, first_version=10)) == [
        (10, 14),
        (15, 19),
        (20, 24),
    ]


def test_a_single_commit_is_never_a_window() -> None:
    assert plan(build(11), partial=True, commits_per_file=5).windows[-1].last_version == 9
    with pytest.raises(InvalidRequestError):
        plan(build(3), commits_per_file=1)


def test_existing_compactions_are_not_touched() -> None:
    table = build(30)
    table.compaction(5, 7)
    table.compaction(20, 29)
    planned = plan(table, commits_per_file=4)
    assert ranges(planned) == [(0, 3), (8, 11), (12, 15), (16, 19)]
    assert sum("exists" in note for note in planned.notes) == 2


def test_a_second_run_has_nothing_to_do() -> None:
    table = build(25)
    result = run(table)
    assert (result.status, [window.status for window in result.windows]) == (
        "written",
        ["written"] * 2,
    )
    assert result.bytes_written == sum(
        len(table.read(name)) for name in table.names() if "compacted" in name
    )
    before = files_of(table.store)
    again = run(table)
    assert again.status == "nothing-to-do" and files_of(table.store) == before


def test_plans_and_results_travel_as_json() -> None:
    table = build(25)
    planned = CompactLogPlan.from_json(json.loads(json.dumps(plan(table).to_json())))
    assert planned == plan(table)
    result = compact_log.apply(table.open(), planned)
    assert CompactLogResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_a_range_that_is_not_in_the_log_is_named() -> None:
    table = build(25)
    with pytest.raises(VersionNotFoundError, match="25 is not published"):
        plan(table, last_version=25)
    with pytest.raises(InvalidRequestError, match="from version 9 to version 5"):
        plan(table, first_version=9, last_version=5)
    table.checkpoint(10)
    table.drop(*(commit_name(version) for version in range(5)))
    with pytest.raises(VersionNotFoundError, match="commit 3 is not in the log"):
        plan(table, first_version=3)
    assert ranges(plan(table, first_version=5)) == [(5, 14), (15, 24)]


# Content


@pytest.mark.conformance("COMP-03", "COMP-04", "COMP-05", "COMP-06")
def test_fields_that_peers_drop_are_kept() -> None:
    """deltalake 1.6.6 and both kernels write a compaction as if it were a checkpoint (D5)."""
    table = TableBuilder()
    expired = {
        "delta.deletedFileRetentionDuration": "interval 0 seconds",
        "delta.setTransactionRetentionDuration": "interval 0 seconds",
    }
    before = [
        protocol(),
        metadata(configuration=expired),
        add("old"),
        add("two", dv=deletion_vector()),
    ]
    table.commit([*before, domain("set", "x"), txn("app", 1, lastUpdated=1)])
    table.commit([remove("old", deletionTimestamp=1), domain("set", removed=True)])
    table.commit([add("here"), txn("app", 7, lastUpdated=1), remove("two", dv=deletion_vector())])
    table.commit([commit_info(), remove("here", deletionTimestamp=None), {"cdc": {"path": "c"}}])
    table.commit([checkpoint_metadata(1), sidecar("s", 1)])
    run(table, first_version=1, commits_per_file=4)
    found = content(table, 1, 4)
    assert sorted(next(iter(action)) for action in found) == [
        "domainMetadata",
        *["remove"] * 3,
        "txn",
    ]
    assert {action["remove"]["path"] for action in found if "remove" in action} == {
        "old",
        "here",
        "two",
    }
    assert domain("set", removed=True) in found and txn("app", 7, lastUpdated=1) in found
    assert all(not action["remove"]["dataChange"] for action in found if "remove" in action)
    snapshot = table.open().snapshot()
    assert [entry.file.end_version for entry in snapshot.log.segment.tail] == [None, 4]
    assert snapshot.live_files().num_rows == 0 and snapshot.domain_metadata == {}


@pytest.mark.conformance("COMP-11", "ICT-03")
def test_history_and_times_still_come_from_the_commits() -> None:
    table = TableBuilder()
    on = {"delta.enableInCommitTimestamps": "true"}
    listed = protocol(1, 7, writer_features=["inCommitTimestamp"])
    table.commit([commit_info(inCommitTimestamp=5), listed, metadata(configuration=on)])
    table.commit([commit_info(inCommitTimestamp=8), add("a")])
    history, instant = table.open().history(), table.open().snapshot().timestamp_ms
    run(table, commits_per_file=2)
    assert table.open().history() == history
    assert table.open().snapshot().timestamp_ms == instant == 8


@pytest.mark.conformance("COMP-09")
def test_the_commits_are_still_required() -> None:
    table = build(10)
    run(table, commits_per_file=5)
    table.drop(commit_name(7))
    with pytest.raises(CorruptTableError, match="commit 7 is missing"):
        table.open().snapshot()


def test_a_window_without_remaining_actions_is_skipped() -> None:
    table = build(2)
    for _ in range(2):
        table.commit([commit_info()])
    result = run(table, commits_per_file=2)
    assert [window.status for window in result.windows] == ["written", "empty"]
    assert result.status == "written" and compaction_name(2, 3) not in table.names()


# Refusals


@pytest.mark.parametrize(
    ("lines", "kind", "problem"),
    [
        ([add("a"), remove("a")], CorruptTableError, "two actions for a"),
        ([add("a"), add("a")], CorruptTableError, "two actions for a"),
        (
            [add("a", dv=deletion_vector()), remove("a", dv=deletion_vector())],
            CorruptTableError,
            "two actions for a",
        ),
        ([{"newAction": {"x": 1}}], RefusedError, "would lose the unknown actions newAction"),
        (
            [{"rowIdHighWaterMark": {"highWaterMark": 1}}],
            RefusedError,
            "would lose the unknown actions rowIdHighWaterMark",
        ),
    ],
)
def test_ambiguous_commits_are_refused(
    lines: list[Any], kind: type[DeltaMaintenanceError], problem: str
) -> None:
    table = build(4)
    table.commit(lines)
    table.commit([add("z")])
    table.commit([add("y")])
    before = files_of(table.store)
    with pytest.raises(kind, match=problem) as failure:
        run(table, first_version=4, commits_per_file=2)
    assert files_of(table.store) == before
    assert failure.value.file == f"{LOG}/{commit_name(4)}"
    result = run(table, commits_per_file=2)
    assert [window.status for window in result.windows] == ["written", "written", "refused"]
    assert result.status == "failed" and problem in str(result.failures[0].reason)
    assert compaction_name(4, 5) not in table.names()


def test_the_same_file_with_another_vector_is_no_repetition() -> None:
    table = build(2)
    table.commit(
        [remove("f1"), add("f1", dv=deletion_vector()), remove("f0", dv=deletion_vector())]
    )
    assert run(table, commits_per_file=3).status == "written"


@pytest.mark.conformance("CAT-01", "CAT-05", "COMP-11")
def test_the_log_of_a_catalog_managed_table_by_its_address_is_not_compacted() -> None:
    table = TableBuilder()
    listed = features("catalogManaged", "vacuumProtocolCheck", writer_only=["inCommitTimestamp"])
    for version in range(4):
        table.commit([listed, metadata(), add(f"f{version}")])
    with pytest.raises(UnsupportedFeatureError, match="by its name in the catalog"):
        plan(table, commits_per_file=2)


def test_an_unknown_writer_feature_is_refused_before_anything_is_written() -> None:
    table = build(10)
    planned = plan(table, commits_per_file=5)
    table.commit([protocol(1, 7, writer_features=["fromTheFuture"])])
    before = files_of(table.store)
    for attempt in (lambda: plan(table), lambda: compact_log.apply(table.open(), planned)):
        with pytest.raises(UnsupportedFeatureError, match="fromTheFuture"):
            attempt()
    assert files_of(table.store) == before


# Others' compactions, and what is found on reading back


@pytest.mark.conformance("COMP-11")
def test_a_concurrent_compaction_is_compared_and_never_overwritten() -> None:
    table = build(6)
    planned = plan(table, commits_per_file=3)
    table.compaction(0, 2)
    pruned = [action for action in table.reconciled(3, 5) if "remove" not in action]
    table.compaction(3, 5, lines=pruned)
    before = files_of(table.store)
    result = compact_log.apply(table.open(), planned)
    assert [window.status for window in result.windows] == ["already-there", "differs"]
    assert (
        result.failures[0].reason
        == "it has 1 adds and 0 removes, its commits have 1 and 3 in effect"
    )
    assert result.status == "failed" and files_of(table.store) == before


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda actions: [*actions, add("f5", size=9)], "two actions"),
        (lambda actions: [*actions, txn("app", 1)], "differs from its commits in txn app"),
        (lambda actions: [add("other") if "add" in a else a for a in actions], "other files"),
        (lambda actions: ["{"], "not valid JSON"),
    ],
)
def test_every_difference_of_an_existing_compaction_is_found(change: Any, problem: str) -> None:
    table = build(6)
    planned = plan(table, commits_per_file=6)
    table.compaction(0, 5, lines=change(table.reconciled(0, 5)))
    (window,) = compact_log.apply(table.open(), planned).windows
    assert window.status == "differs" and problem in str(window.reason)


@pytest.mark.parametrize("at_hand", [False, True])
def test_commits_that_are_cleaned_up_meanwhile_are_no_failure(at_hand: bool) -> None:
    table = build(6)
    planned = plan(table, commits_per_file=3)
    snapshot = table.open().snapshot() if at_hand else None
    table.checkpoint(5)
    table.drop(commit_name(1))
    result = compact_log.apply(table.open(), planned, snapshot=snapshot)
    assert [window.status for window in result.windows] == ["gone", "written"]
    assert result.status == "written"


def test_an_unreadable_result_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    table = build(6)
    planned = plan(table, commits_per_file=6)
    before = files_of(table.store)
    offer = RangeReplay.surviving

    def forgetful(self: RangeReplay, *arguments: Any) -> Any:
        lines = offer(self, *arguments)
        return lines.filter(np.arange(len(lines.starts)) > 0)

    monkeypatch.setattr(RangeReplay, "surviving", forgetful)
    with pytest.raises(VerificationError, match="reads back differently"):
        compact_log.apply(table.open(), planned)
    assert files_of(table.store) == before


def test_a_fault_at_any_step_leaves_the_table_unchanged(count_cases: Any) -> None:
    table = build(7)
    table.checkpoint(1)
    planned = plan(table, commits_per_file=2)
    files = files_of(table.store)
    states = [state_of(table.open().snapshot(version=v)) for v in range(7)]

    def copy() -> MemoryStore:
        store = MemoryStore()
        for path, data in files.items():
            store.put(path, data)
        return store

    def run(store: Store) -> str | None:
        with suppress(FileNotFoundError):
            return compact_log.apply(Table(store), planned).status
        return None

    assert run(copy()) == "written"
    played = 0
    for outcome in play_faults(run, copy):
        played += 1
        if not outcome.is_new:
            continue
        store = outcome.store
        left = files_of(store)
        assert {path: left[path] for path in files} == files
        again = compact_log.apply(Table(store), planned)
        assert again.status in ("written", "already-there")
        for version, state in enumerate(states):
            snapshot = Table(store).snapshot(version=version)
            assert snapshot.warnings == ()
            assert without_change(state_of(snapshot)) == without_change(state)
    count_cases("faults of a log compaction", played)


def without_change(state: Any) -> Any:
    for files in (state.live, state.tombstones):
        for value in files.values():
            value.pop("dataChange", None)
    return state


# Real tables


def copied(corpus: Path, name: str) -> Table:
    store = MemoryStore()
    for path in sorted((corpus / name).glob("_delta_log/**/*")):
        if path.is_file() and "compacted" not in path.name:
            store.put(str(path.relative_to(corpus / name)), path.read_bytes())
    return Table(store)


NOT_COMPACTED = frozenset({"deltars-err-table_g", "spark-transaction_log_schema_evolvability"})
"""A log with a gap, and one with an action that would be lost."""


@pytest.mark.conformance("COMP-02", "COMP-07")
@pytest.mark.parametrize("name", TABLES)
def test_real_logs_give_the_same_snapshots_with_compactions(corpus: Path, name: str) -> None:
    table = copied(corpus, name)
    try:
        latest = table.snapshot()
        compact_log.plan(latest, context=RunContext.at(NOW))
    except DeltaMaintenanceError as error:
        pytest.skip(f"not for writing: {error.problem}")
    listed = [v for v in range(latest.version + 1) if table.store.stat(f"{LOG}/{commit_name(v)}")]
    first, last = listed[0], listed[-1]
    for start, end in {(first, last), (first, last - 1), (first + 1, last), (last - 1, last)}:
        if not first <= start < end <= last:
            continue
        options = CompactLogOptions(
            first_version=start, last_version=end, commits_per_file=end - start + 1
        )
        try:
            before = view(table.snapshot(version=end))
            planned = compact_log.plan(latest, options, context=RunContext.at(NOW))
            (window,) = compact_log.apply(table, planned, snapshot=latest).windows
        except (RefusedError, VersionNotFoundError, CorruptTableError) as error:
            assert name in NOT_COMPACTED, error
            continue
        assert window.status in ("written", "empty")
        assert view(table.snapshot(version=end)) == before
        assert view(table.snapshot()) == view(latest)
        if window.path is not None:
            table.store.delete(window.path)


def view(snapshot: Snapshot) -> Any:
    files = snapshot.live_files().sort_by([("path", "ascending"), ("dv", "ascending")])
    tombstones = snapshot.tombstones().sort_by([("path", "ascending"), ("dv", "ascending")])
    return (
        snapshot.protocol,
        snapshot.metadata,
        snapshot.log.state.txns,
        snapshot.log.state.domains,
        snapshot.timestamp_ms,
        files.to_pylist(),
        tombstones.to_pylist(),
    )
