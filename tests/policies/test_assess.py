"""The operations that a policy makes due: times, reasons and obstacles."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import StorageError
from delta_maintenance.operations.core import find, policy_operations
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.operations.vacuum.references import record_vacuumed
from delta_maintenance.policies import Assessment, LastRun, assess_table
from delta_maintenance.policies.assess import assess
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import Table
from tests.support.tables.actions import add, commit_info, features, metadata, remove
from tests.support.tables.policy_tables import EVERYTHING, asked, assessed, only
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago

DAY = timedelta(days=1)


def ran(operation: str, days: float, status: str | None = None, version: int = 0) -> LastRun:
    """A run with this age in days, by default a successful one."""
    outcomes = find(operation).outcomes
    status = status or next(name for name, outcome in outcomes.items() if outcome is Outcome.DONE)
    return LastRun(operation=operation, at=NOW - days * DAY, version=version, status=status)


def remembering(table: Folder, *runs: LastRun, **rules: Any) -> Assessment:
    """The table against a policy, with these runs remembered."""
    return assess(table.open().snapshot(), asked(**rules), now=NOW, last_runs=runs)


def grown(commits: int, *, days: float = 40) -> Folder:
    """A table with this number of commits after its checkpoint of version 0."""
    table = Folder()
    table.checkpoint(0)
    for number in range(commits):
        table.log(add(f"{number}", size=100), days=days)
    return table


def test_nothing_is_due_under_an_empty_policy() -> None:
    seen = assessed(grown(50))
    assert (seen.status, seen.operations, seen.next_due_at) == ("nothing-due", (), None)
    assert seen.health is not None and seen.health.commits_since_checkpoint == 50


# checkpoint


@pytest.mark.parametrize(("commits", "status"), [(9, "not-due"), (10, "due"), (11, "due")])
def test_a_checkpoint_is_due_with_so_many_commits(commits: int, status: str) -> None:
    seen = only(assessed(grown(commits), checkpoint={"max_commits": 10}))
    assert seen.status == status
    if status == "due":
        assert (seen.commits_to_replay, seen.commits_to_replay_after) == (commits, 0)
        assert seen.bytes_to_read > 0 and seen.requests > commits
        assert f"{commits} commits" in seen.reason and "10" in seen.reason


def test_a_checkpoint_is_due_with_so_many_bytes() -> None:
    table = grown(3)
    size = sum(len(table.read(f"{v:020d}.json")) for v in (1, 2, 3))
    assert (
        only(assessed(table, checkpoint={"max_commits": None, "max_bytes": size})).status == "due"
    )
    rule = {"max_commits": None, "max_bytes": size + 1}
    assert only(assessed(table, checkpoint=rule)).status == "not-due"


def test_a_checkpoint_is_due_by_age_with_the_next_time() -> None:
    table = grown(1, days=3)
    later = only(assessed(table, checkpoint={"max_age": "4 days"}))
    assert (later.status, later.due_at) == ("not-due", NOW + DAY)
    assert only(assessed(table, checkpoint={"max_age": "3 days"})).status == "due"
    table.checkpoint()
    nothing = only(assessed(table, checkpoint={"max_age": "3 days", "max_commits": 1}))
    assert (nothing.status, nothing.due_at) == ("not-due", None)


def test_a_checkpoint_that_the_table_cannot_have_is_blocked() -> None:
    seen = assessed(grown(9), checkpoint={"max_commits": 1, "kind": "v2-json"})
    assert only(seen).status == "blocked" and seen.status == "blocked"
    assert "v2Checkpoint" in only(seen).reason


# compact-log


def test_a_compaction_is_due_with_a_whole_window() -> None:
    rule = {"commits_per_file": 5}
    assert only(assessed(grown(4), compact_log=rule)).status == "not-due"
    seen = only(assessed(grown(12), compact_log=rule))
    assert (seen.status, seen.commits_to_replay, seen.commits_to_replay_after) == ("due", 12, 4)


def test_no_compaction_is_due_before_a_checkpoint() -> None:
    both = {"checkpoint": {"max_commits": 10}, "compact_log": {"commits_per_file": 5}}
    first, second = assessed(grown(12), **both).operations
    assert (first.operation, first.status) == ("checkpoint", "due")
    assert (second.operation, second.status) == ("compact-log", "not-due")
    shut = {"hours": {"windows": ["01:00-02:00"]}, "approval": ["checkpoint"]}
    assert [o.status for o in assessed(grown(12), **both, **shut).operations] == ["blocked"] * 2


def test_windows_that_were_tried_in_vain_are_not_due_again() -> None:
    table = grown(10)
    rule = {"compact_log": {"commits_per_file": 5}}
    tried = ran("compact-log", 1, "nothing-to-do", version=10)
    assert only(remembering(table, tried, **rule)).status == "not-due"
    before = ran("compact-log", 1, "nothing-to-do", version=9)
    assert only(remembering(table, before, **rule)).status == "due"
    failed = ran("compact-log", 1, "failed", version=10)
    assert only(remembering(table, failed, **rule)).status == "due"


# clean-log


def test_clean_log_is_due_if_files_are_expired_but_not_too_often() -> None:
    table = grown(3)
    assert only(assessed(table, clean_log=True)).status == "not-due", (
        "the checkpoint is of version 0"
    )
    table.checkpoint()
    seen = only(assessed(table, clean_log=True))
    assert (seen.status, seen.reclaims_files) == ("due", 4), "three commits and a checkpoint"
    assert seen.reclaims_bytes > 0
    recently = only(remembering(table, ran("clean-log", 0.5), clean_log=True))
    assert (recently.status, recently.due_at) == ("not-due", NOW + DAY / 2)
    assert only(remembering(table, ran("clean-log", 1), clean_log=True)).status == "due"
    partly = ran("clean-log", 0.5, "partly")
    assert only(remembering(table, partly, clean_log=True)).status == "due"
    assert only(assessed(table, clean_log={"retention": "50 days"})).status == "not-due"


@pytest.mark.parametrize(
    "rules", [{"clean_log": {"retention": "29 days"}}, {"vacuum": {"retention": "6 days"}}]
)
def test_a_policy_never_shortens_a_retention(rules: dict[str, Any]) -> None:
    seen = only(assessed(grown(1), **rules))
    assert seen.status == "blocked" and "shorter" in seen.reason


# vacuum


def dead(days: float = 20, size: int = 100) -> Folder:
    """A table with one file that was removed this number of days ago."""
    table = grown(1)
    removed = remove("0", deletionTimestamp=days_ago(days), size=size, extendedFileMetadata=True)
    table.log(removed, days=days)
    return table


def test_a_vacuum_is_due_when_none_is_known_or_the_last_is_long_ago() -> None:
    first = only(assessed(dead(), vacuum=True))
    assert (first.status, first.reclaims_files, first.reclaims_bytes) == ("due", 1, 100)
    recently = only(remembering(dead(), ran("vacuum", 3, "vacuumed"), vacuum=True))
    assert (recently.status, recently.due_at) == ("not-due", NOW + 4 * DAY)
    assert only(remembering(dead(), ran("vacuum", 7, "vacuumed"), vacuum=True)).status == "due"
    failed = ran("vacuum", 3, "failed")
    assert only(remembering(dead(), failed, vacuum=True)).status == "due"


@pytest.mark.parametrize(("status", "due"), [("COMPLETED", "not-due"), ("FAILED", "due")])
def test_a_vacuum_in_the_log_counts_whichever_engine_ran_it(status: str, due: str) -> None:
    table = dead()
    table.log(commit_info("VACUUM END", operationParameters={"status": status}), days=2)
    seen = only(assessed(table, vacuum=True))
    assert seen.status == due
    assert seen.due_at == (NOW + 5 * DAY if due == "not-due" else None)


def test_a_vacuum_is_due_early_once_enough_can_be_reclaimed() -> None:
    table = dead(days=9, size=100)
    last = ran("vacuum", 3, "vacuumed")
    assert only(remembering(table, last, vacuum={"min_reclaimable": 100})).status == "due"
    assert only(remembering(table, last, vacuum={"min_reclaimable": 101})).status == "not-due"
    assert only(remembering(table, last, vacuum={"min_reclaimable": 0})).status == "due"
    none = remembering(grown(1), last, vacuum={"min_reclaimable": 0})
    assert only(none).status == "not-due", "nothing is nothing to reclaim"
    old = remembering(dead(days=11), last, vacuum={"min_reclaimable": 1})
    assert only(old).status == "not-due", "the last vacuum took it"


def test_a_lite_vacuum_runs_before_its_history_is_deleted() -> None:
    table = grown(9)
    table.checkpoint()
    lite = assessed(table, vacuum={"mode": "lite"}, clean_log=True)
    assert [each.operation for each in lite.operations] == ["vacuum", "clean-log"]
    assert lite.operations[0].options.mode == "lite"
    full = assessed(table, vacuum=True, clean_log=True)
    assert [each.operation for each in full.operations] == ["clean-log", "vacuum"]


@pytest.mark.parametrize(("done", "mode"), [(None, "full"), (2, "full"), (3, "lite"), (9, "lite")])
def test_a_lite_vacuum_becomes_full_if_commits_are_missing(done: int | None, mode: str) -> None:
    table = grown(9)
    table.checkpoint(4)
    table.drop(*(f"{version:020d}.json" for version in range(4)), f"{0:020d}.checkpoint.parquet")
    if done is not None:
        record_vacuumed(table.store, done, newest=9)
    seen = only(assessed(table, vacuum={"mode": "lite"}))
    assert (seen.status, seen.options.mode) == ("due", mode)
    assert ("in full" in seen.reason) is (mode == "full")


# fsck


def test_an_integrity_check_is_due_if_the_last_is_unknown_or_long_ago() -> None:
    table = grown(1)
    assert only(assessed(table, fsck=True)).status == "due"
    recently = only(remembering(table, ran("fsck", 10, "sound"), fsck=True))
    assert (recently.status, recently.due_at) == ("not-due", NOW + 20 * DAY)
    assert only(remembering(table, ran("fsck", 30, "warnings"), fsck=True)).status == "due"


def test_a_sample_is_opened_until_corruption_is_reported() -> None:
    """Files outside the next sample may be the corrupt ones."""
    table, rule = grown(1), {"deep": True, "sample": 100, "every": "1d"}
    options = only(remembering(table, ran("fsck", 1, "sound"), fsck=rule)).options
    assert isinstance(options, FsckOptions) and (options.deep, options.sample) == (True, 100)
    corrupt = replace(ran("fsck", 1, "corrupt"), corruption="1 finding")
    options = only(remembering(table, corrupt, fsck=rule)).options
    assert isinstance(options, FsckOptions) and (options.deep, options.sample) == (True, None)


@pytest.mark.conformance("CAT-01")
def test_a_catalog_managed_table_by_its_address_is_blocked_and_does_not_fail() -> None:
    managed = features("catalogManaged", "vacuumProtocolCheck", writer_only=["inCommitTimestamp"])
    table = Folder(first=[commit_info(inCommitTimestamp=1), managed, metadata()])
    table.log(add("a", size=100), days=40)
    rules = {"checkpoint": {"max_commits": 1}, "vacuum": {"every": "1d"}, "optimize": {}}
    seen = assessed(table, **rules)
    assert (seen.status, seen.exit_status) == ("blocked", 0)
    due = [each for each in seen.operations if each.status != "not-due"]
    assert [each.operation for each in due] == ["optimize", "checkpoint", "vacuum"]
    assert {each.status for each in due} == {"blocked"}
    assert all("open the table by its name in the catalog" in each.reason for each in due)


def test_nothing_is_deleted_from_a_corrupt_table() -> None:
    table = dead()
    table.checkpoint(1)
    found = replace(ran("fsck", 1, "corrupt"), corruption="1 finding")
    seen = remembering(table, found, fsck=True, vacuum=True, clean_log=True, checkpoint=True)
    assert {each.operation: each.status for each in seen.operations} == {
        "fsck": "due",
        "checkpoint": "not-due",
        "clean-log": "blocked",
        "vacuum": "blocked",
    }


# Operations that change the table.


def test_a_protocol_and_properties_are_due_until_the_table_has_them() -> None:
    rule = {"features": ["deletionVectors"], "properties": {"delta.checkpointPolicy": "v2"}}
    first = assessed(grown(1), protocol=rule)
    assert [(o.operation, o.status) for o in first.operations] == [
        ("upgrade-protocol", "due"),
        ("set-properties", "due"),
    ]
    configuration = {"delta.checkpointPolicy": "v2"}
    has = Folder(
        first=[features("deletionVectors", "v2Checkpoint"), metadata(configuration=configuration)]
    )
    assert [o.status for o in assessed(has, protocol=rule).operations] == ["not-due"] * 2
    unknown = assessed(grown(1), protocol={"features": ["teleportation"]})
    assert only(unknown).status == "blocked" and "teleportation" in only(unknown).reason


def tracked(*, suspended: bool = False) -> Folder:
    """A table with row tracking."""
    key = "delta.rowTrackingSuspended" if suspended else "delta.enableRowTracking"
    supported = features(writer_only=("rowTracking", "domainMetadata"))
    return Folder(first=[supported, metadata(configuration={key: "true"})])


def test_row_tracking_is_enabled_disabled_or_left_alone() -> None:
    assert only(assessed(grown(1), row_tracking=True)).status == "due"
    assert only(assessed(tracked(), row_tracking=True)).status == "not-due"
    assert only(assessed(tracked(suspended=True), row_tracking=True)).status == "blocked"
    off = only(assessed(tracked(), row_tracking=False))
    assert (off.operation, off.status) == ("set-properties", "due")
    assert off.options.properties == {"delta.enableRowTracking": "false"}
    assert assessed(grown(1), row_tracking=False).operations == ()
    assert assessed(tracked()).operations == ()


# Obstacles.


def test_due_operations_are_blocked_outside_the_hours() -> None:
    hours = {"windows": ["13:00-14:00"]}
    seen = assessed(grown(9), checkpoint={"max_commits": 5}, vacuum=True, hours=hours)
    assert seen.status == "blocked"
    assert {each.status for each in seen.operations} == {"blocked"}
    assert seen.next_due_at == NOW + timedelta(hours=1)
    open_at = NOW + timedelta(hours=1)
    assert assessed(grown(9), now=open_at, vacuum=True, hours=hours).status == "due"


def test_hours_block_nothing_that_is_not_due() -> None:
    seen = assessed(grown(1), checkpoint={"max_commits": 5}, hours={"windows": ["13:00-14:00"]})
    assert (seen.status, only(seen).status) == ("nothing-due", "not-due")


def test_a_feature_that_forbids_an_operation_blocks_it_with_the_reason() -> None:
    table = Folder(first=[features(writer_only=("teleportation",)), metadata()])
    for number in range(5):
        table.log(add(f"{number}"))
    seen = assessed(table, checkpoint={"max_commits": 1}, vacuum=True, row_tracking=True)
    assert {each.status for each in seen.operations} == {"blocked"}
    assert all("teleportation" in each.reason for each in seen.operations)


@pytest.mark.parametrize("writers", [None, "spark", "conditional_put", "none"])
def test_on_s3_only_operations_that_commit_wait_for_safe_writers(writers: str | None) -> None:
    table = grown(12)
    rules = {"other_writers": writers, **EVERYTHING, "optimize": {"min_files_saved": 1}}
    committing = {"upgrade-protocol", "set-properties", "backfill-row-ids", "optimize"}
    assert not {e.operation for e in assessed(table, **rules).operations if e.status == "blocked"}
    table.store.address = Address.parse("s3://lake/t")
    seen = assessed(table, **rules)
    blocked = {e.operation: e for e in seen.operations if e.status == "blocked"}
    if writers in ("conditional_put", "none"):
        assert not blocked
        return
    assert set(blocked) == committing
    words = "are not specified" if writers is None else "could overwrite the commit; give "
    for operation in blocked.values():
        assert words in operation.reason and "conditional_put" in operation.reason
    due = {e.operation for e in seen.due}
    assert {"fsck", "checkpoint", "vacuum"} <= due
    logged = only(assessed(table, other_writers=writers, vacuum={"log_commits": True}))
    assert logged.status == "blocked" and words in logged.reason


def test_operations_come_in_the_order_in_which_they_run() -> None:
    seen = assessed(
        grown(12),
        vacuum=True,
        clean_log=True,
        clean_staged=True,
        compact_log=True,
        checkpoint=True,
        checksum=True,
        fsck=True,
        publish=True,
        expire={"column": "id", "older_than": "1 day"},
        layout=True,
        cluster=True,
        optimize=True,
        purge=True,
        statistics=True,
        row_tracking=True,
        protocol={"features": ["v2Checkpoint"], "properties": {"a": "b"}},
        approval=["vacuum"],
    )
    order = [record.name for record in policy_operations()]
    assert [each.operation for each in seen.operations] == order
    assert [e.operation for e in seen.operations if e.needs_approval] == ["vacuum"]
    assert Assessment.from_json(json.loads(json.dumps(seen.to_json()))) == seen


def test_the_policy_overrides_options_of_due_operations() -> None:
    rules = {
        "checkpoint": {"max_commits": 2, "kind": "classic"},
        "vacuum": {"mode": "lite", "retention": "20 days", "log_commits": True},
        "fsck": {"deep": True},
        "optimize": {"min_files_saved": 1},
        "engine": {"spark_log_bytes": "1 MiB", "spark_files": 7, "spark_data_bytes": "1 B"},
        "other_writers": "conditional_put",
        "limits": {"max_deleted_share": 0.9},
    }
    due = {each.operation: each for each in assessed(grown(12), **rules).due}
    options: dict[str, Any] = {name: each.options for name, each in due.items()}
    assert {name: type(given) for name, given in options.items()} == {
        name: find(name).options for name in due
    }
    assert options["checkpoint"].kind == "classic"
    assert options["checkpoint"].auto_spark_bytes == options["vacuum"].auto_spark_bytes == 1 << 20
    assert options["fsck"].deep and options["fsck"].auto_spark_files == 7
    assert (options["vacuum"].mode, options["vacuum"].retention) == ("lite", 20 * DAY)
    assert options["vacuum"].log_commits and options["vacuum"].allow_large_delete
    assert options["vacuum"].other_writers == "conditional_put"
    assert due["fsck"].engine == "spark", "twelve files are more than seven"
    assert (due["optimize"].engine, options["optimize"].auto_spark_bytes) == ("spark", 1)
    assert only(assessed(grown(12), optimize=True)).engine == "local"
    engine = {"spark_log_bytes": "1 B"}
    large = only(assessed(grown(12), compact_log=True, engine=engine))
    assert (large.engine, large.options.auto_spark_bytes) == ("spark", 1)
    assert only(assessed(grown(12), compact_log=True)).engine == "local"
    careful = only(assessed(grown(12), vacuum=True)).options
    assert not careful.allow_large_delete, "unless more than half may go"
    assert not options["vacuum"].allow_short_retention and not options["vacuum"].no_other_writers


def test_an_unreadable_table_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = assess_table(
        Table(MemoryStore(Address.parse("memory://t"))), asked(vacuum=True), now=NOW
    )
    assert (nothing.status, nothing.exit_status, nothing.retryable) == ("failed", 5, False)
    assert nothing.problem is not None and "memory://t" in nothing.problem

    def down(*_: object) -> Any:
        raise StorageError("the store is down", remedy="wait")

    table = grown(1).open()
    monkeypatch.setattr(MemoryStore, "list_from", down)
    failed = assess_table(table, asked(vacuum=True), now=NOW)
    assert (failed.status, failed.exit_status, failed.retryable) == ("failed", 1, True)
    assert Assessment.from_json(failed.to_json()) == failed


def test_an_assessment_changes_nothing_and_has_the_next_time() -> None:
    table = grown(2, days=1)
    before = {name: table.read(name) for name in table.names()}
    seen = remembering(
        table,
        ran("vacuum", 1),
        ran("fsck", 29.5),
        vacuum=True,
        fsck=True,
        optimize=True,
        purge=True,
        checkpoint={"max_age": "3 days"},
    )
    assert seen.status == "nothing-due" and seen.next_due_at == NOW + DAY / 2
    assert {name: table.read(name) for name in table.names()} == before


def test_an_instant_without_a_zone_is_never_stored() -> None:
    value = {"operation": "vacuum", "at": "2026-01-01T00:00:00", "version": 1, "status": "x"}
    with pytest.raises(Exception, match="at"):
        LastRun.from_json(value)
    assert isinstance(ran("vacuum", 1).at, datetime)
