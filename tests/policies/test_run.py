"""A run of the operations that are due: their order, plans, limits and failures."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import (
    CommitConflictError,
    CommitUnknownError,
    CorruptTableError,
    DeltaMaintenanceError,
    StorageError,
)
from delta_maintenance.operations import checkpoint, clean_log, vacuum
from delta_maintenance.operations.checkpoint import operation as checkpoint_code
from delta_maintenance.operations.compact_log import operation as compact_log_code
from delta_maintenance.operations.core import find
from delta_maintenance.policies import MaintainedVersion, RunResult
from delta_maintenance.policies import assess as assess_module
from delta_maintenance.policies import run as run_module
from delta_maintenance.policies.assess import assess
from delta_maintenance.policies.execute import RunEnvironment
from delta_maintenance.policies.on_demand import run_operation
from delta_maintenance.storage import MemoryStore
from tests.support.suite.play import examples
from tests.support.tables.actions import add, remove
from tests.support.tables.policy_tables import (
    EVERYTHING,
    STATS,
    Ticking,
    asked,
    neglected,
    run_on,
    statuses,
)
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago

# The order, and what is due afterwards


def test_everything_that_is_due_is_done_in_order_and_nothing_is_due_afterwards() -> None:
    table = neglected()
    result = run_on(table, asked(**EVERYTHING))
    assert [outcome.operation for outcome in result.outcomes] == [
        "fsck",
        "upgrade-protocol",
        "set-properties",
        "backfill-row-ids",
        # The backfill writes a checkpoint itself.
        "clean-log",
        "vacuum",
        # Including those of the vacuum, there are three commits after that checkpoint.
        "checkpoint",
    ]
    assert (result.status, result.exit_status, result.problem) == ("done", 0, None)
    assert "0.parquet" not in table.files() and "1.parquet" in table.files()
    snapshot = table.open().snapshot()
    assert snapshot.properties.enable_row_tracking
    assert snapshot.properties.checkpoint_policy == "v2"
    assert result.after is not None and result.after.status == "nothing-due"
    assert RunResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_each_operation_sees_the_result_of_the_previous_one() -> None:
    table = neglected()
    result = run_on(table, asked(checkpoint={"max_commits": 1}, clean_log=True))
    clean = clean_log.CleanLogResult.from_json(result.outcomes[1].result)
    written = checkpoint.CheckpointResult.from_json(result.outcomes[0].result)
    assert clean.oldest_version == written.version, "it rests on the new checkpoint"


def test_no_due_operation_is_a_normal_end() -> None:
    table = neglected()
    result = run_on(table, asked(checkpoint={"max_commits": 100}))
    assert (result.status, result.exit_status) == ("nothing-due", 0)
    assert result.outcomes == () and result.after is None and result.before is not None


def test_operations_that_become_due_run_in_the_same_run() -> None:
    table = neglected()
    result = run_on(table, asked(checkpoint={"max_commits": 1}, vacuum=True))
    operations = [outcome.operation for outcome in result.outcomes]
    assert operations == ["checkpoint", "vacuum", "checkpoint"]
    assert result.after is not None and result.after.status == "nothing-due"


_RULES = st.fixed_dictionaries(
    {},
    optional={
        "checkpoint": st.fixed_dictionaries(
            {},
            optional={
                "max_commits": st.integers(1, 8),
                "max_age": st.sampled_from(["1 day", "50 days"]),
                "max_bytes": st.sampled_from([1, 1 << 20]),
            },
        ),
        "compact_log": st.fixed_dictionaries({"commits_per_file": st.integers(2, 4)}),
        "clean_log": st.just({"every": "1 day"}) | st.just({"retention": "50 days"}),
        "vacuum": st.fixed_dictionaries(
            {},
            optional={
                "mode": st.sampled_from(["full", "lite"]),
                "min_reclaimable": st.just(1),
                "log_commits": st.booleans(),
            },
        ),
        "fsck": st.booleans(),
        "row_tracking": st.booleans(),
        "protocol": st.just({"features": ["deletionVectors"]})
        | st.just({"properties": {"delta.logRetentionDuration": "interval 40 days"}}),
    },
)
_EVENTS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "checkpoint", "empty"]), st.integers(0, 4)),
    max_size=14,
)


@settings(max_examples=examples(40), deadline=None)
@given(_RULES, _EVENTS)
@example(
    # The history that a vacuum by the log needs is about to go.
    {"vacuum": {"mode": "lite"}, "clean_log": {"every": "1 day"}, "checkpoint": {"max_commits": 1}},
    [("add", 0)],
)
def test_after_a_run_nothing_is_due_and_another_run_changes_nothing(
    rules: dict[str, Any], events: list[tuple[str, int]]
) -> None:
    table = Folder()
    live: set[str] = set()
    for number, (event, file) in enumerate(events):
        name = f"{file}.parquet"
        days = 58 - 4 * number
        if event == "add":
            table.log(add(name, stats=STATS), days=days)
            table.file(name, days=days)
            live.add(name)
        elif event == "remove" and name in live:
            table.log(remove(name, deletionTimestamp=days_ago(days)), days=days)
            live.discard(name)
        elif event == "empty":
            table.log({"commitInfo": {"operation": "NOTHING"}}, days=days)
        elif event == "checkpoint":
            table.checkpoint()
    policy_table = asked(**rules)
    first = run_on(table, policy_table)
    assert first.status in ("done", "nothing-due"), first.problem
    assert live <= table.files()
    files = table.names(), table.files()
    snapshot = table.open().snapshot()
    seen = assess(snapshot, policy_table, now=NOW, last_runs=first.last_runs)
    due = [(each.operation, each.reason) for each in seen.due]
    assert (seen.status, due) == ("nothing-due", [])
    assert set(snapshot.live_files()["path"].to_pylist()) == live
    second = run_on(table, policy_table, last_runs=first.last_runs)
    assert second.status == "nothing-due" and second.last_runs == first.last_runs
    assert (table.names(), table.files()) == files


# Planning alone


def test_a_run_that_only_plans_changes_nothing_and_has_every_plan() -> None:
    table = neglected()
    before = table.names(), table.files()
    result = run_on(table, asked(**EVERYTHING), plan_only=True)
    assert result.status == "planned" and set(statuses(result).values()) == {"planned"}
    assert [o.operation for o in result.outcomes] == [
        o.operation for o in (result.before.due if result.before else ())
    ]
    plans: Mapping[str, Any] = {o.operation: o.result for o in result.outcomes}
    assert vacuum.VacuumPlan.from_json(plans["vacuum"]).files == 1
    assert checkpoint.CheckpointPlan.from_json(plans["checkpoint"]).commits_since_checkpoint == 10
    assert (table.names(), table.files()) == before
    assert result.last_runs == ()


# Limits


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_deleted_files": 1}, "2 files would be deleted, and 1 are allowed"),
        ({"max_deleted_bytes": 1}, "2 B would be deleted, and 1 B are allowed"),
        ({"max_commits": 1}, "2 commits, and 1 are allowed"),
    ],
)
def test_a_limit_stops_the_run_before_any_change(limits: dict[str, int], words: str) -> None:
    table = neglected(dead=2)
    before = table.names(), table.files()
    result = run_on(table, asked(vacuum=True, limits=limits))
    assert (result.status, result.exit_status) == ("stopped", 3)
    assert statuses(result) == {"vacuum": "stopped"}
    assert result.problem is not None and words in result.problem
    assert vacuum.VacuumPlan.from_json(result.outcomes[0].result).files == 2
    assert (table.names(), table.files()) == before
    assert result.last_runs == (), "it was not run"
    wider = {name: value + 1 for name, value in limits.items()}
    assert run_on(table, asked(vacuum=True, limits=wider)).status == "done"


def test_commits_are_counted_over_the_whole_run() -> None:
    rules = {"row_tracking": True, "vacuum": True}
    result = run_on(neglected(), asked(**rules, limits={"max_commits": 4}))
    assert statuses(result) == {"backfill-row-ids": "done", "vacuum": "stopped"}
    assert result.outcomes[0].commits == 3 and "5 commits" in (result.problem or "")
    assert run_on(neglected(), asked(**rules, limits={"max_commits": 5})).status == "done"


def test_the_share_of_deleted_files_is_limited_once_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from delta_maintenance.policies import execute

    monkeypatch.setattr(execute, "_MANY", 2)
    table = neglected(8, dead=3)
    stopped = run_on(table, asked(vacuum=True, limits={"max_deleted_share": 0.3}))
    assert stopped.status == "stopped" and "38% of 8 data files" in (stopped.problem or "")
    assert run_on(table, asked(vacuum=True, limits={"max_deleted_share": 0.4})).status == "done"


def test_no_operation_begins_after_the_longest_duration() -> None:
    clock = Ticking(timedelta(seconds=1))
    rules = {"checkpoint": {"max_commits": 1}, "fsck": True}
    result = run_on(neglected(), asked(**rules, limits={"max_duration": "3 seconds"}), now=clock)
    assert statuses(result) == {"fsck": "done", "checkpoint": "stopped"}
    assert (result.status, result.exit_status) == ("stopped", 3)


# Failures.


def test_a_failed_operation_is_named_and_holds_back_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_code, "apply", _conflicted)
    result = run_on(neglected(), asked(checkpoint={"max_commits": 1}, vacuum=True))
    assert statuses(result) == {"vacuum": "done", "checkpoint": "failed"}
    assert (result.status, result.exit_status, result.retryable) == ("failed", 4, True)
    assert result.problem == "table memory:, version 7: another writer won; run again"
    assert result.after is not None, "the state after the failure is told"
    assert {r.operation: r.status for r in result.last_runs} == {
        "checkpoint": "failed",
        "vacuum": "vacuumed",
    }


def test_a_vacuum_makes_room_on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise StorageError("cannot write: no space left", file="x", remedy="make room")

    monkeypatch.setattr(checkpoint_code, "apply", full)
    monkeypatch.setattr(compact_log_code, "apply", full)
    table = neglected()
    rules = asked(checkpoint={"max_commits": 20}, compact_log={"commits_per_file": 2}, vacuum=True)
    result = run_on(table, rules)
    assert statuses(result) == {"compact-log": "failed", "vacuum": "done"}
    assert result.status == "failed" and "no space left" in (result.problem or "")
    assert "0.parquet" not in table.files()


@pytest.mark.parametrize("name", ["fsck", "set_properties", "upgrade_protocol"])
def test_nothing_follows_a_failed_operation_that_the_others_need(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retention that could not be made longer would let a vacuum delete too much."""
    rules = {"fsck": True, "protocol": EVERYTHING["protocol"], "vacuum": True, "clean_log": True}
    record = find(name.replace("_", "-"))
    code = importlib.import_module(record.code)
    monkeypatch.setattr(code, "apply", _conflicted)
    table = neglected()
    files = table.files()
    result = run_on(table, asked(**rules))
    assert (result.outcomes[-1].operation, result.outcomes[-1].status) == (record.name, "failed")
    assert table.files() == files


def _conflicted(*_: Any, **__: Any) -> Any:
    raise CommitConflictError("another writer won", version=7, remedy="run again")


@pytest.mark.parametrize("error", [CommitUnknownError, CorruptTableError])
def test_nothing_follows_a_commit_of_unknown_outcome_or_corruption(
    error: type[DeltaMaintenanceError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: Any, **__: Any) -> Any:
        raise error("it is so")

    monkeypatch.setattr(checkpoint_code, "apply", ended)
    table = neglected()
    files = table.files()
    result = run_on(table, asked(checkpoint={"max_commits": 1}, clean_log=True, vacuum=True))
    assert result.exit_status == error.exit_status
    assert [each.status for each in result.outcomes][-1] == "failed"
    assert table.files() == files


def test_an_unexpected_error_fails_its_operation_and_keeps_what_the_others_did(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def exhausted(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(checkpoint_code, "apply", exhausted)
    table = neglected()
    result = run_on(table, asked(fsck=True, checkpoint={"max_commits": 1}))
    assert statuses(result) == {"fsck": "done", "checkpoint": "failed"}
    assert (result.status, result.exit_status, result.retryable) == ("failed", 1, True)
    assert result.problem == (
        f"table {table.store.root}: MemoryError; "
        "give the process more memory, or see the log for the details"
    )
    assert [run.operation for run in result.last_runs] == ["fsck", "checkpoint"]
    # PySpark, in a test before this one, may have replaced the format of the text.
    (record,) = (each for each in caplog.records if "checkpoint: MemoryError" in each.getMessage())
    assert record.exc_info is not None and record.exc_info[0] is MemoryError


@pytest.mark.parametrize("error", [MemoryError(), OSError(5, "cannot read"), RuntimeError("no")])
def test_an_unexpected_error_while_assessing_is_a_result(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(assess_module, "measure", failing)
    result = run_on(neglected(), asked(**EVERYTHING))
    assert (result.status, result.exit_status) == ("failed", 1)
    assert result.problem is not None and type(error).__name__ in result.problem


def test_errors_that_the_caller_names_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise LookupError("a decision of the orchestrator")

    monkeypatch.setattr(checkpoint_code, "apply", failing)
    table = neglected().open()
    environment = RunEnvironment(raised=(LookupError,))
    with pytest.raises(LookupError):
        run_module.run(table, asked(checkpoint={"max_commits": 1}), environment=environment)
    with pytest.raises(LookupError):
        run_operation(table, asked(), "checkpoint", environment=environment)


def test_a_corrupt_table_is_not_touched_after_its_integrity_check() -> None:
    table = neglected()
    table.store.delete("5.parquet")
    before = table.names(), table.files()
    rules = asked(fsck=True, checkpoint={"max_commits": 1}, clean_log=True, vacuum=True)
    result = run_on(table, rules)
    assert statuses(result) == {"fsck": "failed"}
    assert (result.status, result.exit_status) == ("failed", 5)
    assert (table.names(), table.files()) == before
    again = run_on(table, rules, last_runs=result.last_runs)
    assert statuses(again) == {"fsck": "failed"}, "it is looked at again at once"


def test_a_table_that_cannot_be_opened_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> Any:
        raise StorageError("the store is down", remedy="wait")

    table = neglected()
    monkeypatch.setattr(MemoryStore, "list_from", down)
    result = run_on(table, asked(vacuum=True))
    assert (result.status, result.exit_status, result.retryable) == ("failed", 1, True)
    assert result.problem is not None and "the store is down" in result.problem
    assert RunResult.from_json(result.to_json()) == result


def test_runs_that_dealt_with_a_version_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table, rules = neglected(), asked(checkpoint={"max_commits": 1})
    newest = table.open().snapshot().version
    at_start = MaintainedVersion(version=newest, started_at=NOW)

    def conflicted(*_: Any, **__: Any) -> Any:
        raise CommitConflictError("another writer won", version=7, remedy="run again")

    assert run_on(table, rules, plan_only=True).maintained is None
    assert run_operation(table.open(), rules, "checkpoint").maintained is None
    assert run_on(table, rules).maintained == at_start, "nothing is due"
    table.log(add("new.parquet", stats=STATS))
    with monkeypatch.context() as broken:
        broken.setattr(checkpoint_code, "apply", conflicted)
        assert run_on(table, rules).maintained is None, "this may pass"
    later = replace(at_start, version=newest + 1)
    assert run_on(table, rules).maintained == later
    for name in table.names():
        table.store.delete(f"_delta_log/{name}")
    unread = run_on(table, rules)
    assert not unread.retryable and unread.maintained == replace(at_start, version=None)


def test_a_partial_deletion_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    table = neglected(dead=2)
    delete = MemoryStore.delete

    def stubborn(self: MemoryStore, path: str) -> None:
        if path == "1.parquet":
            raise StorageError("permission denied", remedy="ask")
        delete(self, path)

    monkeypatch.setattr(MemoryStore, "delete", stubborn)
    policy_table = asked(vacuum=True, fsck=True)
    result = run_on(table, policy_table)
    assert statuses(result) == {"fsck": "done", "vacuum": "incomplete"}
    assert (result.status, result.exit_status, result.retryable) == ("incomplete", 1, True)
    assert "permission denied" in (result.problem or "")
    monkeypatch.setattr(MemoryStore, "delete", delete)
    again = run_on(table, policy_table, last_runs=result.last_runs)
    assert statuses(again) == {"vacuum": "done"}, "what was not finished is due at once"


def test_a_run_ends_even_if_an_operation_remains_due(monkeypatch: pytest.MonkeyPatch) -> None:
    real = run_module.assess_table

    def always(*arguments: Any, **options: Any) -> Any:
        return real(*arguments, **{**options, "last_runs": ()})

    monkeypatch.setattr(run_module, "assess_table", always)
    assert len(run_on(neglected(), asked(fsck=True)).outcomes) == 1, "the table has not changed"
    result = run_on(neglected(), asked(fsck=True, vacuum=True))
    assert [outcome.operation for outcome in result.outcomes] == ["fsck", "vacuum", "fsck"]
