"""What readers hold: vacuums and clean-ups keep everything that they have not read."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.address import Address
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import InvalidRequestError, RefusedError, StorageError
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.clean_log import CleanLogOptions, CleanLogPlan
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.core.facts import instant_text
from delta_maintenance.operations.holds.find import find_holds, kept_rows
from delta_maintenance.operations.holds.models import Holders, KeptVersion, Reader
from delta_maintenance.operations.vacuum.planning import VacuumSurvey
from delta_maintenance.operations.vacuum.references import last_vacuumed
from delta_maintenance.storage import MemoryStore
from tests.operations.holds.test_streams import ID, OTHER, batch, offset
from tests.support.suite.play import examples
from tests.support.tables.actions import add, cdc, metadata, protocol, remove
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago, paths_of

FIRST = (protocol(), metadata(id=ID))


def replaced(versions: int = 5, store: MemoryStore | None = None) -> Folder:
    """A table with one file, which each version from 2 on replaced. The versions are a day apart,
    and the last one is 40 days old."""
    table = Folder(store, first=FIRST)
    for version in range(1, versions + 1):
        days = 40 + versions - version
        removed = [remove(f"{version - 1}.parquet", deletionTimestamp=days_ago(days))]
        table.log(add(f"{version}.parquet"), *removed[: version - 1], days=days)
        table.file(f"{version}.parquet", days=60)
    return table


def stream(path: Path, *offsets: str, days: float = 1, **options: Any) -> Reader:
    """A stream that has committed batches up to these offsets."""
    store = MemoryStore(Address.parse(f"memory://{path.name}/state"))
    store.now_ms = lambda: days_ago(days)
    store.put("metadata", b"{}")
    for number, text in enumerate(offsets):
        store.put(f"offsets/{number}", batch(text))
        store.put(f"commits/{number}", b"v1\n{}")
    options = {"name": "silver", "address": str(store.address), **options}
    return Reader(kind="stream", **options)


def holding(table: Folder, *readers: Reader) -> VacuumSurvey:
    return table.survey(holders=Holders(readers=readers), ignore_missing_files=True)


def cleaning(table: Folder, *readers: Reader) -> CleanLogPlan:
    options = CleanLogOptions(holders=Holders(readers=readers))
    return clean_log.plan(table.open().snapshot(), options, context=RunContext.at(NOW))


def test_a_stopped_stream_keeps_the_files_and_the_log_that_it_has_not_read(tmp_path: Path) -> None:
    table = replaced()
    for version in (1, 2, 4, 5):
        table.checkpoint(version)
    reader = stream(tmp_path, offset(3), offset(4), days=10)
    planned = holding(table, reader)
    # The change feed of version 3 contains the rows of the file that it removed.
    assert paths_of(planned) == {"1.parquet"}
    (held,) = planned.plan.held
    assert (held.holder, held.files, held.first_version) == ("stream silver", 3, 2)
    assert str(held).endswith(
        "version 2 and all later ones, has read up to version 3, last progress "
        f"{NOW - timedelta(days=10):%Y-%m-%dT%H:%M:%SZ}"
    )
    cleaned = cleaning(table, reader)
    assert (cleaned.oldest_version, cleaned.cut_off_commit) == (2, 2)
    assert [each.holder for each in cleaned.held] == ["stream silver"]
    assert cleaning(table).oldest_version == 5


def test_a_stream_that_has_read_everything_holds_nothing(tmp_path: Path) -> None:
    table = replaced()
    for version in (1, 5):
        table.checkpoint(version)
    reader = stream(tmp_path, offset(6), offset(6))
    planned = holding(table, reader).plan
    assert (planned.files, planned.held, planned.last_commit) == (4, (), 5)
    assert (cleaning(table, reader).oldest_version, cleaning(table, reader).held) == (5, ())


def test_a_lite_vacuum_continues_behind_the_commits_that_a_reader_holds(tmp_path: Path) -> None:
    table = replaced()
    reader = stream(tmp_path, offset(4), offset(4))
    for reading, deleted, done in ((reader, 2, 3), (reader, 0, 3), (None, 2, 5)):
        holders = Holders(readers=(reading,) if reading is not None else ())
        result = table.vacuum(mode="lite", holders=holders, log_commits=False)
        assert result.deleted == deleted
        assert last_vacuumed(table.store) == done


def test_a_stream_in_its_first_snapshot_holds_that_version(tmp_path: Path) -> None:
    table = replaced()
    reader = stream(tmp_path, offset(2, initial=True))
    planned = holding(table, reader)
    assert paths_of(planned) == {"1.parquet"}
    assert "reads version 2 as a whole" in str(planned.plan.held[0])


def test_a_stream_whose_begin_is_not_recorded_holds_everything_that_is_left(tmp_path: Path) -> None:
    table = replaced()
    planned = holding(table, stream(tmp_path, offset(6)))
    assert paths_of(planned) == set()
    assert "the version with which it began is not recorded" in str(planned.plan.held[0])


def test_a_reader_without_its_log_is_named_and_holds_what_is_left(tmp_path: Path) -> None:
    table = replaced()
    table.checkpoint(3)
    for version in (0, 1, 2):
        table.store.delete(f"_delta_log/{version:020}.json")
    planned = holding(table, stream(tmp_path, offset(2), offset(2)))
    assert paths_of(planned) == {"1.parquet", "2.parquet"}
    assert any("log begins at version 3: it cannot" in note for note in planned.plan.notes)
    # All commits after version 2 are left: the stream can continue.
    planned = holding(table, stream(tmp_path, offset(3), offset(3)))
    assert paths_of(planned) == {"1.parquet"}
    assert planned.plan.notes == holding(table).plan.notes


@pytest.mark.parametrize("kind", ["change-feed", "share"])
def test_a_maximum_lag_holds_the_versions_that_were_current_within_it(kind: Any) -> None:
    table = replaced()

    def going(days: float) -> set[str]:
        lag = timedelta(days=days)
        return paths_of(holding(table, Reader(kind=kind, name="bi", max_lag=lag)))

    assert going(39) == {"1.parquet", "2.parquet", "3.parquet", "4.parquet"}
    # Version 3 is 42 days old.
    assert going(41.5) == {"1.parquet", "2.parquet"}
    assert going(300) == set()
    table.checkpoint(3)
    for version in (0, 1, 2):
        table.store.delete(f"_delta_log/{version:020}.json")
    reader = Reader(kind=kind, name="bi", max_lag=timedelta(days=300))
    notes = holding(table, reader).plan.notes
    assert f"{kind} bi: the log begins at version 3, less than 300 days ago" in notes


def test_the_file_of_a_consumer_holds_what_it_has_not_read(tmp_path: Path) -> None:
    table, file = replaced(), tmp_path / "position.json"
    file.write_text('{"version": 3}')
    assert table.going(last_read=(str(file),)) == {"1.parquet", "2.parquet"}
    file.unlink()
    with pytest.raises(RefusedError, match=r"file .*position\.json: .*does not exist; restore it"):
        table.survey(last_read=(str(file),))


@pytest.mark.parametrize(
    ("offsets", "problem"),
    [
        ((offset(10), offset(10)), "version 9, and the table does not have that version"),
        ((offset(6, initial=True), offset(6, initial=True)), "version 6 as a whole, and the table"),
        ((offset(5), offset(4)), "version 3, and its last offsets go back"),
    ],
)
def test_everything_is_kept_for_a_reader_whose_position_contradicts_the_table_or_itself(
    tmp_path: Path, offsets: tuple[str, str], problem: str
) -> None:
    table = replaced()
    for version in (1, 5):
        table.checkpoint(version)
    reader = stream(tmp_path, *offsets)
    planned = holding(table, reader).plan
    assert (planned.files, planned.held[0].first_version) == (0, 0)
    assert any(problem in note and "all versions are kept" in note for note in planned.notes)
    assert cleaning(table, reader).oldest_version is None, "the log stays as well"
    if "does not have" in problem:
        file = tmp_path / "position.json"
        file.write_text("9")
        planned = table.survey(last_read=(str(file),), ignore_missing_files=True).plan
        assert planned.files == 0
        assert any(problem in note for note in planned.notes)
    # The remedy: without the reader, or with sound files.
    sound = stream(tmp_path / "sound", offset(6), offset(6))
    assert holding(table).plan.files == holding(table, sound).plan.files == 4


def test_a_reader_of_a_commit_that_came_after_the_snapshot_holds_nothing_more(
    tmp_path: Path,
) -> None:
    table = replaced()
    snapshot = table.open().snapshot()
    table.log(add("6.parquet"), days=0)
    table.log(add("7.parquet"), days=0)
    file = tmp_path / "position"
    for version, first in ((7, 5), (8, 0)):
        file.write_text(str(version))
        reader = Reader(kind="last-read", name="bi", address=str(file))
        holds = find_holds(
            snapshot, Holders(readers=(reader,)), now=NOW, storage_options=lambda _: None
        )
        assert [hold.first for hold in holds.holds] == [first]
        assert bool(holds.notes) == (version == 8)


def test_a_silent_reader_is_reported_and_released_only_on_request(tmp_path: Path) -> None:
    table = replaced()
    week = timedelta(days=7)
    reader = stream(tmp_path, offset(4), offset(4), days=8, silent_after=week)
    planned = holding(table, reader)
    assert paths_of(planned) == {"1.parquet", "2.parquet"}
    since = f"is silent since {NOW - timedelta(days=8):%Y-%m-%dT%H:%M:%SZ}, for longer than 7 days"
    assert any(since in note and "waited for never" in note for note in planned.plan.notes)
    reader = stream(tmp_path, offset(4), offset(4), days=8, silent_after=week, release_silent=True)
    planned = holding(table, reader)
    assert planned.plan.files == 4
    assert any("no longer waited for" in note for note in planned.plan.notes)
    # It has had something to read for six days only.
    table.log(add("6.parquet"), days=6)
    reader = stream(tmp_path, offset(6), offset(6), days=8, silent_after=week, release_silent=True)
    assert not any("silent" in note for note in holding(table, reader).plan.notes)
    # It has nothing to read.
    reader = stream(tmp_path, offset(7), offset(7), days=30, silent_after=week)
    assert not any("silent" in note for note in holding(table, reader).plan.notes)


def test_a_reader_with_recent_progress_is_waited_for_though_its_version_is_gone(
    tmp_path: Path,
) -> None:
    table = replaced()
    table.checkpoint(4)
    for version in range(4):
        table.store.delete(f"_delta_log/{version:020}.json")
    options = {"silent_after": timedelta(days=7), "release_silent": True}
    planned = holding(table, stream(tmp_path, offset(3), offset(3), days=6, **options))
    assert [each.holder for each in planned.plan.held] == ["stream silver"]
    assert not any("silent" in note for note in planned.plan.notes)
    planned = holding(table, stream(tmp_path, offset(3), offset(3), days=8, **options))
    assert planned.plan.held == () and any("silent" in note for note in planned.plan.notes)


def test_a_stream_of_another_table_is_refused_or_holds_nothing(tmp_path: Path) -> None:
    table = replaced()
    foreign = offset(3, table=OTHER)
    with pytest.raises(RefusedError, match="the stream silver is that of another table"):
        holding(table, stream(tmp_path, foreign, foreign))
    planned = holding(table, stream(tmp_path, foreign, foreign, must_match=False)).plan
    assert (planned.files, planned.held) == (4, ())


def test_nothing_is_deleted_for_a_reader_that_cannot_be_examined(tmp_path: Path) -> None:
    table = replaced()
    table.checkpoint(1)
    reader = stream(tmp_path, offset(3), offset(4))
    state = MemoryStore(Address.parse(reader.address or ""))
    surveyed, planned = holding(table, reader), cleaning(table, reader)
    state.put("offsets/1", b"v1\n{}\n{")
    for plans in (holding, cleaning):
        with pytest.raises(RefusedError, match=r"state/offsets/1: .*stream silver .*not JSON"):
            plans(table, reader)
    with pytest.raises(RefusedError, match="not JSON"):
        clean_log.apply(table.open(), planned, RunContext.at(NOW))
    # The list of files was made while the stream could be read, and streams go forward only.
    assert paths_of(surveyed) == {"1.parquet"}
    gone = Reader(kind="stream", name="gone", address=str(tmp_path / "gone"))
    with pytest.raises(RefusedError, match="stream gone .*no checkpoint of a stream"):
        holding(table, gone)
    (tmp_path / "gone").write_text("a file")
    with pytest.raises(
        StorageError, match="stream gone cannot be read: Not a dir.*nothing is deleted"
    ):
        holding(table, gone)
    # One reader twice is one reader; two with one name are a mistake.
    again = Reader(kind="stream", name="silver", address=str(tmp_path / "gone"))
    with pytest.raises(InvalidRequestError, match="two readers stream silver"):
        holding(table, reader, again)


@pytest.mark.parametrize("is_file", [False, True])
def test_a_reader_that_cannot_be_examined_is_named_where_nothing_is_deleted(
    tmp_path: Path, is_file: bool
) -> None:
    """A folder that is no stream is refused; a file in its place is an error of its store."""
    snapshot, context = replaced().open().snapshot(), RunContext.at(NOW)
    gone = tmp_path / "gone"
    if is_file:
        gone.write_text("a file")
    unknown = Holders(readers=(Reader(kind="stream", name="gone", address=str(gone)),))
    notes = kept_rows(snapshot, unknown, context, rows="expired rows")
    assert len(notes) == 2 and "until a vacuum deletes their files" in notes[0]
    assert notes[1].startswith("what keeps older versions is not known: the position of the stream")
    end = NOW + timedelta(days=3)
    held = Holders(
        readers=(stream(tmp_path, offset(4), offset(4)),),
        keep=(KeptVersion(name="audit", version=2, until=end),),
    )
    assert kept_rows(snapshot, held, context, rows="expired rows")[1:] == (
        f"held by kept version audit: the files of version 2 stay until {instant_text(end)}, "
        "with expired rows",
        "held by stream silver: the files of version 3 stay, with expired rows",
    )


Step = tuple[int, tuple[int, ...], bool]
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), max_size=2).map(tuple), st.booleans()),
    min_size=2,
    max_size=9,
)
"""Commits: the number of new files, the positions of removed ones, and whether there is change
data."""
READS = st.lists(st.tuples(st.integers(0, 10), st.booleans()), min_size=1, max_size=3)
"""The version that a stream reads next, and whether as a whole."""


@settings(max_examples=examples(30))
@given(steps=STEPS, checkpoints=st.sets(st.integers(0, 9)), reads=READS, seed=st.uuids())
def test_everything_that_a_reader_was_promised_is_there_afterwards(
    steps: list[Step], checkpoints: set[int], reads: list[tuple[int, bool]], seed: Any
) -> None:
    table = Folder(first=FIRST)
    live: list[set[str]] = [set()]
    changed: list[set[str]] = [set()]
    for version, (adds, removes, has_changes) in enumerate(steps, 1):
        before = sorted(live[-1])
        added = {f"{version}-{number}.parquet" for number in range(adds)}
        removed = {before[number % len(before)] for number in removes if before}
        changes = {f"_change_data/{version}.parquet"} if has_changes else set()
        table.log(
            {"commitInfo": {"operation": "WRITE"}},
            *(add(path) for path in added),
            *(remove(path, deletionTimestamp=days_ago(40)) for path in removed),
            *(cdc(path) for path in changes),
        )
        table.file(*added, *changes)
        live.append((live[-1] - removed) | added)
        changed.append(added | removed | changes)
    latest = len(steps)
    for version in checkpoints | {latest}:
        if version <= latest:
            table.checkpoint(version)
    readers, needed, oldest = [], set(live[-1]), latest
    for number, (position, whole) in enumerate(reads):
        version = min(position, latest if whole else latest + 1)
        text = offset(version, initial=whole)
        readers.append(stream(Path(f"{seed}-{number}"), text, text, name=str(number)))
        needed |= live[version] if whole else set()
        needed |= set().union(*changed[version + whole :])
        oldest = min(oldest, version if whole else max(version - 1, 0))
    everything = table.files()
    holders = Holders(readers=tuple(readers))
    table.vacuum(holders=holders, log_commits=False, allow_large_delete=True)
    planned = clean_log.plan(
        table.open().snapshot(), CleanLogOptions(holders=holders), RunContext.at(NOW)
    )
    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(NOW)
    clean_log.apply(table.open(), planned, RunContext.at(NOW))
    kept = table.files()
    assert needed <= kept, "a reader lost files"
    # Only the files of the version before are kept in addition, because that must be readable.
    assert kept <= needed | live[oldest]
    assert kept < everything or everything <= needed | live[oldest]
    for version in range(oldest, latest + 1):
        assert table.open().snapshot(version=version).version == version
        assert version == oldest or table.store.stat(f"_delta_log/{version:020}.json")
