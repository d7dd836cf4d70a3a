"""A guarded commit that Delta Spark overwrites is noticed, and named with what was lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.clock import instant
from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.limits import ReadLimits
from delta_maintenance.operations.core import RunContext, find
from delta_maintenance.operations.health import measure
from delta_maintenance.policies.assess import assess_table
from delta_maintenance.policies.definition.policy import Policy
from delta_maintenance.table.evidence.overwritten_commits import states_of, verify_guarded
from delta_maintenance.table.read import Table
from delta_maintenance.table.read.segment import list_log
from tests.support.logs.beside_spark import MINUTE, SPARK, WINDOW, SteppedStore, quiet_table
from tests.support.logs.transactions import TRACKED, append, commit, transaction
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder


class Killed(BaseException):
    """The process has ended."""


@pytest.fixture
def store() -> SteppedStore:
    return quiet_table()[1]


@pytest.fixture
def table(store: SteppedStore) -> TableBuilder:
    return TableBuilder(store)


def rewrite(table: TableBuilder, **writer: Any) -> int:
    """Replaces the files a and b by c."""
    txn = transaction(table, "OPTIMIZE", **SPARK | writer)
    txn.stage_removes([log.remove(name, size=10)["remove"] for name in "ab"])
    txn.stage_adds([log.add("c", size=20)["add"]])
    return int(commit(txn).version)


def states(store: SteppedStore) -> dict[int, str]:
    listing = list_log(store)
    return {g.version: state for g, state in states_of(store, listing.guarded, listing.commits)}


def run(store: SteppedStore, verb: str, **options: Any) -> Any:
    """Plans and applies, as each surface does."""
    record = find(verb)
    context = RunContext.at(instant(store.clock_ms))
    prepared = record.prepare(Table(store), record.options(**options), context)
    assert prepared is not None
    return prepared.apply()


def kinds(result: Any) -> dict[str, int]:
    """The findings about commits that may have been overwritten."""
    counts = {count.kind: count.count for count in result.counts}
    return {kind: number for kind, number in counts.items() if kind.endswith("-commit")}


def set_property(store: SteppedStore, **options: Any) -> Any:
    return run(store, "set-properties", **{"properties": {"a": "b"}, **SPARK, **options})


def assessed(store: SteppedStore) -> Any:
    policy = Policy.model_validate(
        {
            "version": 1,
            "defaults": {"other_writers": "spark", "quiet": "10 minutes"},
            "tables": [{"name": "t", "uri": store.root, "optimize": {"min_files_saved": 1}}],
        }
    )
    return assess_table(Table(store), policy.named_tables[0], now=instant(store.clock_ms))


def test_a_sound_commit_is_verified_by_all(table: TableBuilder, store: SteppedStore) -> None:
    rewrite(table)
    assert states(store) == {1: "sound"}
    verify_guarded(store)
    assert assessed(store).status != "failed"
    assert kinds(run(store, "fsck")) == {}
    assert measure(Table(store).snapshot(), now=instant(store.clock_ms)).warnings == ()
    assert set_property(store).version == 2


def test_a_commit_beyond_the_read_limit_is_compared_by_its_beginning(
    table: TableBuilder, store: SteppedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(table)
    monkeypatch.setattr(ReadLimits, "text_bytes", 100)
    assert states(store) == {1: "sound"}
    path = f"_delta_log/{1:020d}.json"
    store.put(path, store.read(path).replace(b"OPTIMIZE", b"optimize"))
    assert states(store) == {1: "overwritten"}


def test_an_overwritten_commit_is_named_with_what_was_lost(
    table: TableBuilder, store: SteppedStore
) -> None:
    rewrite(table)
    store.spark_commits(log.add("s"), version=1)
    with pytest.raises(CorruptTableError) as caught:
        verify_guarded(store)
    assert caught.value.exit_status == 5 and caught.value.version == 1
    words = (
        "OPTIMIZE of 2023-11-14T23:13:20Z was overwritten by Apache-Spark/4.2.0",
        "files that it removed, live again: 2 (20 bytes)",
        "files that it added, now in no version: 1 (20 bytes)",
    )
    for text in words:
        assert text in caught.value.problem, caught.value.problem
    assert "damaged" not in caught.value.problem
    # No other operation writes on top of it or deletes its files.
    for verb, options in (("set-properties", {"properties": {"a": "b"}, **SPARK}), ("vacuum", {})):
        with pytest.raises(CorruptTableError, match="was overwritten"):
            run(store, verb, **options)
    assessment = assessed(store)
    assert assessment.exit_status == 5 and "was overwritten" in assessment.problem
    (warning,) = measure(Table(store).snapshot(), now=instant(store.clock_ms)).warnings
    assert warning.startswith("version 1: ") and warning.endswith("run fsck, which says what to do")
    assert all(text in warning for text in words)


def test_an_assessment_waits_for_the_end_of_the_window(
    table: TableBuilder, store: SteppedStore
) -> None:
    store.spark_commits(log.add("s"))
    (optimize,) = assessed(store).operations
    assert optimize.status == "blocked" and "the quiet window lasts until" in optimize.reason
    assert optimize.due_at == instant(store.clock_ms) + WINDOW
    store.clock_ms += 10 * MINUTE
    (optimize,) = assessed(store).operations
    assert optimize.status == "due"
    # Own commits end no window.
    rewrite(table)
    (optimize,) = assessed(store).operations
    assert optimize.status != "blocked"


def test_a_run_within_the_window_is_refused_before_it_writes(store: SteppedStore) -> None:
    store.spark_commits(log.add("s"))
    store.requests.clear()
    with pytest.raises(RefusedError, match="within the quiet window"):
        set_property(store)
    assert not [request for request in store.requests if request.startswith("put")]


def test_a_dry_run_says_that_the_run_would_be_refused(store: SteppedStore) -> None:
    """As an assessment does, for whose commits the policy states the other writers."""
    store.spark_commits(log.add("s"))
    assert "are not specified; give --other-writers" in dry_run(store)
    assert "could overwrite the commit" in dry_run(store, other_writers="spark")
    assert "within the quiet window" in dry_run(store, **SPARK)
    assert dry_run(store, other_writers="conditional_put") == ""
    store.clock_ms += 10 * MINUTE
    assert dry_run(store, **SPARK) == ""
    store.put("old.parquet", b"")
    store.clock_ms += 30 * 24 * 60 * MINUTE
    vacuum = {"mode": "full", "ignore_missing_files": True}
    assert dry_run(store, "vacuum", **vacuum) == "", "it commits nothing on S3"
    assert "are not specified" in dry_run(store, "vacuum", log_commits=True, **vacuum)


def dry_run(store: SteppedStore, verb: str = "optimize", **options: Any) -> str:
    """Returns the note of a plan that would be refused; empty without one."""
    record = find(verb)
    context = RunContext.at(instant(store.clock_ms), plan_only=True)
    prepared = record.prepare(Table(store), record.options(**options), context)
    assert prepared is not None and not prepared.plan.is_noop
    notes = [note for note in prepared.plan.notes if note.startswith("the run would be refused: ")]
    return "".join(notes)


def test_a_run_of_several_commits_ends_with_those_that_it_has_made(store: SteppedStore) -> None:
    """Own commits end no window, those of others do."""
    TableBuilder(store).commit(
        [TRACKED, log.metadata(), *(log.add(n, stats='{"numRecords":1}') for n in "abcd")]
    )
    store.now_ms = lambda: store.clock_ms

    def race(request: str) -> None:
        if request.endswith(f"{3:020d}.json"):
            store.before = lambda request: None
            store.spark_commits(log.add("s"))

    store.before = race
    ended = run(store, "backfill-row-ids", files_per_commit=1, **SPARK)
    assert ended.status == "incomplete" and ended.num_commits == 2
    assert "version 3 0 seconds ago, within the quiet window" in ended.problem
    assert states(store) == {1: "sound", 2: "sound", 3: "uncertain"}


def test_fsck_lists_the_files_and_ends_the_finding(
    table: TableBuilder, store: SteppedStore
) -> None:
    rewrite(table)
    store.spark_commits(log.add("s"), version=1)
    found = run(store, "fsck")
    assert kinds(found) == {"overwritten-commit": 1, "file-of-overwritten-commit": 3}
    files = [f.path for f in found.findings if f.kind == "file-of-overwritten-commit"]
    assert files == ["a", "b", "c"]
    forgotten = run(store, "fsck", forget_overwritten_commits=True)
    assert [repair.status for repair in forgotten.repairs] == ["done"]
    assert kinds(forgotten) == {} and store.names() == []
    store.clock_ms += 30 * MINUTE
    assert set_property(store).version == 2


def test_versions_that_need_a_lost_file_are_named(table: TableBuilder, store: SteppedStore) -> None:
    rewrite(table)
    store.spark_commits(log.remove("c"), log.add("d"))
    store.spark_commits(log.add("e"))
    store.spark_commits(log.add("s"), version=1)
    with pytest.raises(CorruptTableError, match="version 2 refers to files that it added"):
        verify_guarded(store)
    # The finding precedes those that follow from it, and ends only when the log has the commit.
    table.checksum(3, b"{}")
    found = run(store, "fsck", forget_overwritten_commits=True)
    assert min(kinds(found)) < "needed-overwritten-commit" and found.repairs == ()
    assert found.findings[0].kind == "needed-overwritten-commit"
    store.put(f"_delta_log/{1:020d}.json", store.read(found.findings[0].path))
    store.delete(f"_delta_log/{3:020d}.crc")
    assert kinds(run(store, "fsck")) == {}


def test_the_end_of_a_run_notices_it(table: TableBuilder, store: SteppedStore) -> None:
    def race(request: str) -> None:
        if request.endswith(".landed"):
            store.before = lambda request: None
            store.spark_commits(log.add("s"), version=1)

    store.before = race
    with pytest.raises(
        CorruptTableError, match="SET TBLPROPERTIES .* changes without effect: metadata"
    ):
        set_property(store)


def test_a_killed_run_is_at_most_uncertain(store: SteppedStore) -> None:
    requests = 0
    while True:
        table, store = quiet_table()
        left = [requests]

        def kill(request: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        txn = append(table, **SPARK)
        store.before = kill
        try:
            commit(txn)
            break
        except Killed:
            store.before = lambda request: None
        marked = "landed" in store.names()
        store.spark_commits(log.add("s"), version=1)
        state = states(store).get(1)
        assert state == ("overwritten" if marked else "uncertain" if store.names() else None)
        if state != "overwritten":
            verify_guarded(store)
            uncertain = {"uncertain-commit": 1} if state == "uncertain" else {}
            assert kinds(run(store, "fsck")) == uncertain
        requests += 1
    assert requests >= 5


def test_a_commit_that_a_log_clean_up_deleted_is_not_overwritten(
    table: TableBuilder, store: SteppedStore
) -> None:
    rewrite(table)
    store.spark_commits(log.add("d"))
    table = TableBuilder(store)
    store.delete(f"_delta_log/{1:020d}.json")
    assert states(store) == {1: "deleted"}
    verify_guarded(store)


def test_a_commit_in_doubt_is_named_when_its_copy_is_deleted(
    table: TableBuilder, store: SteppedStore, caplog: pytest.LogCaptureFixture
) -> None:
    def kill(request: str) -> None:
        if request.endswith(".landed"):
            raise Killed

    store.before = kill
    with pytest.raises(Killed):
        rewrite(table)
    store.before = lambda request: None
    store.spark_commits(log.add("s"), version=1)
    store.clock_ms += timedelta(days=1, minutes=1) // timedelta(milliseconds=1)
    assert set_property(store).version == 2
    assert "version 1 is of another writer" in caplog.text
    assert set(states(store)) == {2}


def test_copies_are_deleted_a_day_later(table: TableBuilder, store: SteppedStore) -> None:
    set_property(store)
    store.clock_ms += timedelta(days=1) // timedelta(milliseconds=1)
    set_property(store, properties={"a": "c"})
    assert set(states(store)) == {1, 2}
    store.clock_ms += 1
    set_property(store, properties={"a": "d"})
    assert set(states(store)) == {2, 3}
