"""A commit is derived again from the newest version until other writers leave it alone."""

from __future__ import annotations

import pytest

from delta_maintenance.errors import CommitConflictError
from delta_maintenance.protocol.commit import BACKFILL, removes_of, staged_adds
from delta_maintenance.table.commit import beside_writers
from delta_maintenance.table.commit.beside_writers import (
    Ending,
    commit_beside_writers,
    restart_reading,
)
from delta_maintenance.table.commit.outcome import AlreadyDone, Landed
from delta_maintenance.table.commit.transaction import Transaction, Writer
from delta_maintenance.table.read import Snapshot, Table
from delta_maintenance.table.read.log_view import VanishedFileError
from tests.support.logs.transactions import NOW, TRACKED, built, races
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder

WRITER = Writer(now=lambda: NOW, sleep=lambda _: None)


@pytest.fixture
def table() -> TableBuilder:
    return built(log.protocol(), None, log.add("a"), log.add("b"))


def remove_first(
    table: TableBuilder, versions: list[int], *, only_next: bool = False
) -> Ending | None:
    """Removes the first live file, and records the versions that it was derived from."""

    def stage(snapshot: Snapshot) -> Transaction | None:
        versions.append(snapshot.version)
        files = snapshot.live_files()
        first = files.sort_by("path").slice(0, 1)
        transaction = Transaction(snapshot, "DELETE", writer=WRITER)
        transaction.read_files(first)
        transaction.stage_removes(removes_of(first, data_change=True))
        return transaction

    opened = Table(table.store)
    return commit_beside_writers("t", opened.snapshot, stage, only_next=only_next)


def test_the_actions_are_derived_again_from_the_version_that_won(table: TableBuilder) -> None:
    versions: list[int] = []
    races(table, *([log.add("a", size=size)] for size in range(7, 10)))
    outcome = remove_first(table, versions)
    assert isinstance(outcome, Landed)
    assert versions == [0, 1, 2, 3]
    assert outcome.version == 4


@pytest.mark.parametrize(("only_next", "expected"), [(False, [0]), (True, [0, 1, 2])])
def test_a_commit_without_a_conflict_leads_back_if_only_the_next_version_will_do(
    table: TableBuilder, only_next: bool, expected: list[int]
) -> None:
    races(table, *[[log.commit_info("WRITE")]] * 2)
    outcome = remove_first(table, versions := [], only_next=only_next)
    assert isinstance(outcome, Landed)
    assert (outcome.version, versions) == (3, expected)


def test_actions_that_others_made_unnecessary_are_derived_again() -> None:
    table = built(TRACKED, None, log.add("a", stats='{"numRecords":1}'))
    versions: list[int] = []

    def stage(snapshot: Snapshot) -> Transaction | None:
        versions.append(snapshot.version)
        files = staged_adds([log.add("a", stats='{"numRecords":1}', dataChange=False)["add"]])
        if not snapshot.live_files().num_rows:
            return None
        transaction = Transaction(snapshot, BACKFILL, writer=WRITER)
        transaction.read_files(files)
        transaction.stage_adds(files)
        return transaction

    races(table, [log.remove("a")])
    assert commit_beside_writers("t", Table(table.store).snapshot, stage) is None
    assert versions == [0, 1]
    assert table.version == 1


@pytest.mark.parametrize("only_next", [False, True])
def test_it_gives_up_with_the_reason(
    table: TableBuilder, only_next: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside_writers, "TRIES", 3)
    races(table, *([log.add("a", size=size)] for size in range(7, 10)))
    with pytest.raises(CommitConflictError) as conflict:
        remove_first(table, versions := [], only_next=only_next)
    assert versions == [0, 1, 2]
    assert "version 3 was committed first: it added a" in str(conflict.value)


def test_other_commits_are_counted_when_only_the_next_version_will_do(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside_writers, "TRIES", 3)
    races(table, *[[log.commit_info("WRITE")]] * 3)
    with pytest.raises(CommitConflictError, match="committed first, 3 times in a row"):
        remove_first(table, [], only_next=True)


def test_an_outcome_without_a_commit_is_returned() -> None:
    done = AlreadyDone(version=5)
    assert commit_beside_writers("t", lambda: None, lambda _: done) is done


def test_reading_is_restarted_with_the_newest_version_when_the_log_is_cleaned(
    table: TableBuilder,
) -> None:
    versions: list[int] = []
    opened = Table(table.store)

    def work(snapshot: Snapshot) -> int:
        versions.append(snapshot.version)
        if len(versions) < 3:
            table.commit([log.add(f"n{len(versions)}")])
            raise VanishedFileError("a commit was deleted")
        return snapshot.version

    assert restart_reading(opened, opened.snapshot(), work) == 2
    assert versions == [0, 1, 2]
