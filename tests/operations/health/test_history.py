"""Health of the newest commits, earlier measures, and the measure as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

import delta_maintenance
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import checkpoint, compact_log, vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.health import TableHealth, measure
from delta_maintenance.operations.health.commit_history import MAINTENANCE_OPERATIONS
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Snapshot
from tests.support.faults.fault_store import FaultStore
from tests.support.operations.table_health import DAY, gone, health
from tests.support.tables.actions import add, commit_info, features, metadata, protocol
from tests.support.tables.vacuum_tables import NOW, Folder


def vacuumed(days: float, status: str = "COMPLETED") -> dict[str, Any]:
    """The closing commit of a vacuum."""
    return commit_info("VACUUM END", operationParameters={"status": status})


# The newest commits.


def test_the_series_contains_the_newest_commits_with_their_metrics() -> None:
    table = Folder()
    for number in range(5):
        table.log(commit_info(f"WRITE {number}"), add(f"{number}"), days=30 - number)
    seen = health(table, max_commits=3)
    assert [(p.version, p.operation) for p in seen.commits] == [
        (3, "WRITE 2"),
        (4, "WRITE 3"),
        (5, "WRITE 4"),
    ]
    assert [p.timestamp for p in seen.commits] == [NOW - n * DAY for n in (28, 27, 26)]
    assert health(table, max_commits=0).commits == ()


def test_a_day_of_which_only_the_newest_commits_are_counted_says_so() -> None:
    table = Folder()
    for number in range(5):
        table.log(commit_info(f"WRITE {number}"), days=30 - number // 3)
    bars = {text.split()[0]: text.split("█ ")[1] for text in commits_a_day(table, max_commits=4)}
    assert bars == {
        f"{NOW - 30 * DAY:%Y-%m-%d}": "at least 2 (only the newest 4 are counted)",
        f"{NOW - 29 * DAY:%Y-%m-%d}": "2",
    }
    assert not [text for text in commits_a_day(table, max_commits=6) if "at least" in text]


def commits_a_day(table: Folder, **options: Any) -> list[str]:
    return cast("list[str]", health(table, **options).facts()["commits a day"])


def test_commits_carry_their_own_times_where_the_table_says_so() -> None:
    configuration = {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "1",
    }
    table = Folder()
    first = epoch_millis(NOW - 20 * DAY)
    table.log(
        commit_info("SET", inCommitTimestamp=first),
        features(writer_only=("inCommitTimestamp",)),
        metadata(configuration=configuration),
    )
    seen = health(table)
    assert [p.timestamp for p in seen.commits] == [NOW - 60 * DAY, NOW - 20 * DAY]


def test_files_of_the_last_vacuum_in_the_log_do_not_count_again() -> None:
    table = Folder()
    table.log(add("a"), add("b"))
    table.log(gone("a", 30, 1), gone("b", 9, 2), days=9)
    table.log(vacuumed(20), days=8.5)
    table.log(vacuumed(1, "FAILED"), days=1)
    seen = health(table)
    assert [(m.operation, m.result, m.version) for m in seen.maintenance] == [
        ("VACUUM END", "FAILED", 4),
        ("VACUUM END", "COMPLETED", 3),
    ]
    assert (seen.reclaimable_files, seen.reclaimable_bytes) == (1, 2), "a is gone, b was too young"


def test_commits_of_an_earlier_measurement_are_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Folder()
    for number in range(6):
        table.log(commit_info("OPTIMIZE" if number == 1 else "WRITE"), add(f"{number}"))
    table.checkpoint(5)
    before = health(table, max_commits=4)
    table.log(commit_info("WRITE"), add("x"))
    snapshot = table.open().snapshot()
    reads: list[str] = []
    read = type(table.store).read

    def counted(self: Store, path: str) -> bytes:
        reads.append(path)
        return read(self, path)

    monkeypatch.setattr(type(table.store), "read", counted)
    after = measure(snapshot, now=NOW, previous=before)
    new = [path for path in reads if path.endswith(".json")]
    # Short commits after the checkpoint are kept with the snapshot, except the newest one.
    assert sorted(set(new)) == [f"_delta_log/{v:020d}.json" for v in (0, 1, 2, 7)]
    assert [p.operation for p in after.commits[-4:]] == ["WRITE"] * 4
    assert [m.operation for m in after.maintenance] == ["OPTIMIZE"]
    assert replace(after, file_check=None) == replace(measure(snapshot, now=NOW), file_check=None)


def test_a_measurement_of_another_table_is_ignored() -> None:
    old, new = Folder(), Folder(first=[protocol(), metadata(id="another")])
    old.log(commit_info("OPTIMIZE"), add("a"))
    new.log(commit_info("WRITED!"), add("a"))
    assert health(new, previous=health(old)) == health(new)


@pytest.mark.parametrize("commits", [1, 3])
def test_a_measurement_of_a_log_with_other_commits_is_ignored(commits: int) -> None:
    old, copy = Folder(), Folder()
    for _ in range(2):
        old.log(commit_info("OPTIMIZE"), add("a"))
    for number in range(commits):
        copy.log(commit_info("WRITE"), add(f"{number}"))
    assert health(copy, previous=health(old)) == health(copy)


def test_maintenance_is_recorded_beyond_the_series() -> None:
    table = Folder()
    table.log(vacuumed(30), days=30)
    before = health(table, max_commits=2)
    for number in range(3):
        table.log(commit_info("WRITE"), add(f"{number}"), days=20)
    assert health(table, max_commits=2).maintenance == ()
    assert health(table, max_commits=2, previous=before).maintenance == before.maintenance != ()


def test_only_the_beginning_of_a_large_commit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Folder()
    large = [commit_info("LARGE"), *(add(f"{n}" + "x" * 200) for n in range(2000))]
    table.log(*large)
    table.log(*reversed(large))
    table.log(add("y" * 300_000))
    table.log(commit_info("WIDE"), metadata(description="z" * 300_000))
    table.checkpoint()
    seen = health(table)
    assert [p.operation for p in seen.commits] == [None, "LARGE", None, None, "WIDE"]
    assert seen.warnings == ()


def test_a_damaged_commit_behind_the_checkpoint_is_a_warning() -> None:
    table = Folder()
    for number in range(4):
        table.log(commit_info("WRITE"), add(f"{number}"))
    table.checkpoint()
    table.garbage(f"{2:020d}.json")
    seen = health(table)
    assert [p.operation for p in seen.commits] == [None, None, None, "WRITE", "WRITE"]
    assert any("00000000000000000002.json" in warning for warning in seen.warnings)


# As a whole.


def test_every_measure_round_trips_and_is_small(corpus: Path) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    names = sorted(path.parent for path in corpus.glob("*/_delta_log"))[::4]
    measured = 0
    for name in names:
        try:
            snapshot = delta_maintenance.open_table(name).snapshot()
        except DeltaMaintenanceError:
            continue
        seen = measure(snapshot, now=now)
        document = json.dumps(seen.to_json())
        assert TableHealth.from_json(json.loads(document)) == seen
        assert len(document) < 64 << 10
        counts = snapshot.counts
        assert (seen.num_files, seen.total_bytes) == (counts.num_files, counts.total_size)
        assert seen.tombstones == counts.num_tombstones
        assert seen.files_with_deletion_vector == counts.num_deletion_vectors
        assert seen.deleted_rows == counts.num_deleted_rows
        measured += 1
    assert measured > 20


@pytest.mark.usefixtures("asks_for_files")
def test_measuring_writes_nothing_and_opens_no_data_file() -> None:
    table = Folder()
    table.log(add("a.parquet"))
    table.checkpoint()
    watched = FaultStore(table.store)
    seen = measure(delta_maintenance.Table(watched).snapshot(), now=NOW)
    assert seen.num_files == 1
    kinds = {step.kind for step in watched.trace}
    assert kinds <= {"list_from", "read", "open", "stat"}
    asked = [step for step in watched.trace if not step.path.startswith("_delta_log")]
    assert {(step.kind, step.path) for step in asked} == {("stat", "a.parquet")}


def test_a_commit_that_is_cleaned_up_meanwhile_has_no_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Folder()
    table.log(commit_info("WRITE"), add("a"))
    table.checkpoint()
    snapshot = table.open().snapshot()
    read = type(table.store).read

    def cleaned(self: Store, path: str) -> bytes:
        if path.endswith(f"{0:020d}.json"):
            raise FileNotFoundError(2, "gone", path)
        return read(self, path)

    monkeypatch.setattr(type(table.store), "read", cleaned)
    seen = measure(snapshot, now=NOW)
    assert [p.operation for p in seen.commits] == [None, "WRITE"] and seen.warnings == ()


def test_a_checkpoint_that_turns_out_damaged_is_passed_over(tmp_path: Path) -> None:
    table = Folder()
    table.log(add("a", size=5))
    table.checkpoint(0)
    snapshot: Snapshot = table.open().snapshot()
    table.drop(f"{0:020d}.checkpoint.parquet")
    seen = measure(snapshot, now=NOW)
    assert (seen.num_files, seen.total_bytes) == (1, 5)


def test_the_names_of_our_own_commits_are_among_those_of_maintenance() -> None:
    table = Folder()
    table.log(add("a.parquet"))
    table.log(gone("a.parquet", 30, 1))
    table.file("a.parquet")
    opened = table.open()
    now = datetime.now(UTC)
    checkpoint.apply(opened, checkpoint.plan(opened.snapshot(), context=RunContext.at(now)))
    compact_log.plan(opened.snapshot(), context=RunContext.at(now))
    survey = vacuum.survey(opened.snapshot(), now=now)
    table.store.now_ms = lambda: epoch_millis(now)
    result = vacuum.apply(opened, survey.plan, context=RunContext.at(now), surveyed=survey)
    assert result.status == "vacuumed" and result.end_version is not None
    seen: Mapping[str, str | None] = {
        m.operation: m.result for m in measure(opened.snapshot(), now=now).maintenance
    }
    assert seen == {"VACUUM END": "COMPLETED", "VACUUM START": None}
    assert seen.keys() <= MAINTENANCE_OPERATIONS
