"""Clocks that disagree about a removal: the file stays as long as the latest of them says so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError
from tests.support.tables.actions import OMIT, add, cdc, commit_info, remove
from tests.support.tables.table_builder import Line, commit_name
from tests.support.tables.vacuum_tables import Folder, days_ago

RETENTION = 7
"""Days: the retention of every table here."""
ages = st.integers(-2, 14) | st.none()


def removal(
    path: str, *, removed: float | None, said: float | None, in_commit: float | None = None
) -> list[Line]:
    """Returns a commit that removes a file, with these times in days before now, None for
    no time.
    """
    fields = {} if in_commit is None else {"inCommitTimestamp": days_ago(in_commit)}
    info = commit_info(timestamp=None if said is None else days_ago(said), **fields)
    return [info, remove(path, deletionTimestamp=OMIT if removed is None else days_ago(removed))]


def without_tombstones(table: Folder) -> None:
    """A checkpoint as another engine writes it whose clock is ahead: no tombstone is left."""
    table.checkpoint(actions=[action for action in table.state() if "remove" not in action])


@pytest.mark.conformance("VAC-03", "VAC-08")
@pytest.mark.parametrize("mode", ["full", "lite"])
@pytest.mark.parametrize("late", ["deletionTimestamp", "commitInfo", "file"])
def test_a_dropped_tombstone_protects_by_the_latest_time_of_its_commit(
    late: str, mode: str
) -> None:
    table = Folder()
    table.log(add("a.parquet"), add("b.parquet"))
    days = {"deletionTimestamp": 20.0, "commitInfo": 20.0, "file": 20.0, late: 6.2}
    lines = removal("a.parquet", removed=days["deletionTimestamp"], said=days["commitInfo"])
    table.log(*lines, days=days["file"])
    table.log(*removal("b.parquet", removed=20, said=20), cdc("_change_data/c"), days=20)
    table.file("a.parquet", "b.parquet")
    without_tombstones(table)
    going = table.going(mode=mode)
    assert "a.parquet" not in going
    # Commits after a recent one are not older by the times of their files.
    assert "b.parquet" in going or late == "file" or mode == "lite"


@pytest.mark.conformance("VAC-03")
@given(st.lists(st.tuples(st.integers(0, 14), ages, ages, ages), min_size=1, max_size=8))
@settings(max_examples=60)
def test_a_file_is_deleted_when_all_its_removals_have_expired(
    removals: list[tuple[int, int | None, int | None, int | None]],
) -> None:
    table = Folder()
    paths = [f"f{number}.parquet" for number in range(len(removals))]
    table.log(*map(add, paths))
    for path, (file, removed, said, in_commit) in zip(paths, removals, strict=True):
        lines = removal(path, removed=removed, said=said, in_commit=in_commit)
        table.log(*lines, days=file)
    table.file(*paths)
    without_tombstones(table)
    recent = {
        path
        for path, times in zip(paths, removals, strict=True)
        if any(time is not None and time <= RETENTION for time in times)
    }
    assert not table.going() & recent
    if not recent:
        assert table.going() == set(paths)


def test_unreadable_commits_are_reported_and_hide_no_other() -> None:
    table = Folder()
    names = [f"{name}.parquet" for name in "abcd"]
    table.log(*map(add, names))
    damaged, broken, empty, _ = (
        table.log(*removal(name, removed=6, said=6), days=6) for name in names
    )
    table.file(*names)
    without_tombstones(table)
    table.at(days_ago(6), f"_delta_log/{commit_name(damaged)}", b'{"remove":\n')
    table.at(days_ago(6), f"_delta_log/{commit_name(broken)}", b'{"remove":{"path":5}}\n')
    table.at(days_ago(6), f"_delta_log/{commit_name(empty)}", b"")
    planned = table.survey(ignore_missing_files=True)
    assert any("3 commits before a checkpoint" in note for note in planned.plan.notes)
    assert set(planned.found.files()["path"].to_pylist()) == set(names[:3])
    with pytest.raises(CorruptTableError, match=f"{commit_name(empty)}: the file is empty"):
        table.survey(retention=table.now - table.now.replace(year=2020), ignore_missing_files=True)
