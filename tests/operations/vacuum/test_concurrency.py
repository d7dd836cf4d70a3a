"""Commits and clean-ups of other processes during a vacuum."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import (
    CommitConflictError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.vacuum import engine as vacuum_engine
from delta_maintenance.storage import FileStatus, MemoryStore
from tests.support.operations.vacuum_cases import removed
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.vacuum_tables import NOW, Folder, named_memory, operations, paths_of


@pytest.mark.conformance("VAC-17")
def test_a_commit_between_listing_and_reading_the_log_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Folder()
    table.file("back.parquet", "dead.parquet")
    snapshot = table.open().snapshot()
    list_folder = vacuum_engine.list_folder

    def listing(*arguments: Any) -> pa.Table:
        entries = list_folder(*arguments)
        table.log(add("back.parquet"), days=0)
        return entries

    monkeypatch.setattr(vacuum_engine, "list_folder", listing)
    planned = vacuum.survey(snapshot, now=NOW)
    assert paths_of(planned) == {"dead.parquet"} and planned.plan.version == 1


class CleanedUp(MemoryStore):
    """A store whose log loses one of these commits, before it is read, after each listing."""

    gone: tuple[str, ...] = ()
    _is_listed = False
    _lock = threading.Lock()

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        self._is_listed = True
        return super().list_from(directory, start)

    def read(self, path: str) -> bytes:
        # Commits are read by several threads.
        with self._lock:
            if self._is_listed and self.gone and path.endswith(self.gone[0]):
                self.delete(path)
                self.gone, self._is_listed = self.gone[1:], False
        return super().read(path)


def cleaned_up(clean_ups: int) -> Folder:
    """A table of which the last of four dead files is known to no earlier vacuum."""
    table = Folder(CleanedUp())
    for number in range(4):
        table.log(add(f"{number}.parquet"))
        table.log(removed(f"{number}.parquet", 30), days=30)
    table.file(*(f"{number}.parquet" for number in range(4)))
    table.checkpoint()
    assert isinstance(table.store, CleanedUp)
    table.store.gone = tuple(f"{version:020}.json" for version in range(clean_ups))
    return table


@pytest.mark.parametrize("clean_ups", [1, 2])
@pytest.mark.parametrize(("mode", "going"), [("full", {*"0123"}), ("lite", {"3"})])
def test_a_log_that_is_cleaned_up_while_it_is_read_is_listed_again(
    mode: str, going: set[str], clean_ups: int
) -> None:
    table = cleaned_up(clean_ups)
    table.write("_last_vacuum_info", b'{"latestCommitVersionOutsideOfRetentionWindow":6}')
    assert table.going(mode=mode) == {f"{name}.parquet" for name in going}
    assert table.store.stat("_delta_log/00000000000000000000.json") is None


def test_a_log_that_keeps_vanishing_ends_the_vacuum() -> None:
    with pytest.raises(StorageError, match="was deleted after it was listed; run again") as raised:
        # The first one is lost when the checkpoint is compared with the commits.
        cleaned_up(4).survey()
    assert str(raised.value.file).endswith("3.json")


@pytest.mark.conformance("VAC-18")
def test_the_mode_lite_is_refused_where_a_clean_up_takes_a_commit_that_it_needs() -> None:
    with pytest.raises(RefusedError, match="before version 1 were deleted"):
        cleaned_up(1).survey(mode="lite")


@pytest.mark.conformance("VAC-17")
@pytest.mark.parametrize(
    "path", ["back.parquet", "%62ack.parquet", "memory://others/t/back.parquet", "BACK.parquet"]
)
def test_a_commit_between_plan_and_deletion_wins(path: str) -> None:
    table = Folder(named_memory("memory://others/t"))
    table.file("back.parquet", "dead.parquet")
    planned = table.survey()
    table.log(add(path), days=0)
    result = table.vacuum(planned)
    assert (result.deleted, result.spared, result.status) == (1, 1, "vacuumed")
    assert table.files() == {"back.parquet"}


@pytest.mark.conformance("VAC-17")
def test_the_log_is_read_before_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Folder()
    table.log(*(add(f"live-{n}.parquet") for n in range(3)))
    table.file(*(f"dead-{number:05}.parquet" for number in range(9000)))
    planned = table.survey(ignore_missing_files=True, allow_large_delete=True)
    steps: list[int] = []

    def progress(_: str, done: int, __: int | None) -> None:
        steps.append(done)
        if len(steps) == 1:
            table.log(add("dead-08999.parquet"), add("dead-04000.parquet"), days=0)

    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(NOW)
    result = vacuum.apply(
        table.open(), planned.plan, context=RunContext.at(NOW, progress=progress), surveyed=planned
    )
    assert (result.deleted, result.spared, result.lost) == (8998, 2, ())
    assert table.files() == {"dead-08999.parquet", "dead-04000.parquet"} and len(steps) == 4


def test_files_referenced_again_after_deletion_are_reported() -> None:
    table = Folder()
    table.file("dead.parquet")
    planned = table.survey()

    def progress(*_: Any) -> None:
        table.log(add("dead.parquet"), days=0)

    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(NOW)
    result = vacuum.apply(
        table.open(), planned.plan, context=RunContext.at(NOW, progress=progress), surveyed=planned
    )
    assert result.status == "partly" and result.lost == ("dead.parquet",)


@pytest.mark.conformance("VAC-01", "VAC-17")
@pytest.mark.parametrize(
    "change",
    [
        metadata(configuration={"delta.deletedFileRetentionDuration": "interval 99 days"}),
        metadata(partitioned_by=["part"]),
        features(writer_only=["fooBar"]),
    ],
)
def test_changed_rules_during_the_run_stop_it(change: Any) -> None:
    table = Folder()
    table.file("dead.parquet")
    planned = table.survey(log_commits=False)
    table.log(change, days=0)
    with pytest.raises((RefusedError, UnsupportedFeatureError)):
        table.vacuum(planned)
    assert table.files() == {"dead.parquet"}


def test_a_run_stopped_half_way_reports_its_progress() -> None:
    table = Folder()
    table.log(*(add(f"live-{n}.parquet") for n in range(3)))
    table.file(*(f"dead-{number:05}.parquet" for number in range(4001)))
    planned = table.survey(ignore_missing_files=True, allow_large_delete=True)

    def progress(*_: Any) -> None:
        table.log(metadata(partitioned_by=["part"]), days=0)

    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(NOW)
    result = vacuum.apply(
        table.open(), planned.plan, context=RunContext.at(NOW, progress=progress), surveyed=planned
    )
    assert (result.status, result.deleted) == ("partly", 4000)
    assert result.stopped is not None and "has just changed" in result.stopped
    _, end = operations(table)[-1]
    assert end["operation"] == "VACUUM END" and end["operationParameters"] == {"status": "FAILED"}


def test_two_runs_at_once_do_no_harm() -> None:
    table = Folder()
    table.log(add("live.parquet"))
    table.file("live.parquet", "a.parquet", "b.parquet")
    one, other = table.survey(), table.survey()
    assert table.vacuum(one).deleted == 2
    assert table.vacuum(other).deleted == 2, "gone is gone, whoever did it"
    assert table.files() == {"live.parquet"}


def test_a_start_that_cannot_be_committed_deletes_nothing() -> None:
    table = Folder()
    table.file("dead.parquet")
    planned = table.survey()
    table.log(features(writer_only=["typeWidening"]), days=0)
    with pytest.raises((CommitConflictError, RefusedError, UnsupportedFeatureError)):
        table.vacuum(planned)
    assert table.files() == {"dead.parquet"}
