"""The times of versions, and the version that was current at a time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    NotADeltaTableError,
    VersionNotFoundError,
)
from delta_maintenance.storage import MemoryStore
from tests.support.tables.actions import Action, add, commit_info, features, metadata, protocol
from tests.support.tables.table_builder import EPOCH_MS, LOG, MINUTE_MS, TableBuilder
from tests.table.failures import fails

ON = {"delta.enableInCommitTimestamps": "true"}
FEATURE = features(writer_only=["inCommitTimestamp"])


class CountingStore(MemoryStore):
    """Counts the reads of commits."""

    def __init__(self) -> None:
        super().__init__()
        self.commits_read = 0

    def read(self, path: str) -> bytes:
        self.commits_read += path.endswith(".json")
        return super().read(path)


def stamped(time_ms: int, *actions: Action) -> list[Action]:
    return [commit_info(inCommitTimestamp=time_ms), *actions]


def enabled_since(version: int, time_ms: int) -> Mapping[str, str]:
    return ON | {
        "delta.inCommitTimestampEnablementVersion": str(version),
        "delta.inCommitTimestampEnablementTimestamp": str(time_ms),
    }


def by_file_times(times: list[int]) -> TableBuilder:
    table = TableBuilder()
    for version, time in enumerate(times):
        start = [protocol(), metadata()] if version == 0 else []
        table.commit([*start, add(str(version))], at_ms=time)
    return table


def at(table: TableBuilder, instant: int) -> int:
    return table.open().snapshot(timestamp=instant).version


@pytest.mark.conformance("ICT-08", "ICT-09")
@given(st.lists(st.integers(0, 20), min_size=1, max_size=8))
def test_file_times_that_do_not_increase_are_moved_forward(times: list[int]) -> None:
    adjusted: list[int] = []
    for time in times:
        adjusted.append(max([time, *(previous + 1 for previous in adjusted[-1:])]))
    table = by_file_times([EPOCH_MS + time for time in times])

    history = table.open().history()

    assert [entry.version for entry in history] == list(reversed(range(len(times))))
    assert [entry.timestamp_ms - EPOCH_MS for entry in reversed(history)] == adjusted
    for instant in range(-1, 31):
        current = [version for version, time in enumerate(adjusted) if time <= instant]
        if current and instant <= adjusted[-1]:
            assert at(table, EPOCH_MS + instant) == current[-1]
        else:
            with pytest.raises(VersionNotFoundError):
                at(table, EPOCH_MS + instant)


@pytest.mark.conformance("ICT-09")
def test_an_instant_outside_the_retained_history_is_an_error() -> None:
    table = by_file_times([EPOCH_MS + version * MINUTE_MS for version in range(5)])
    table.checkpoint(2)
    table.drop(f"{0:020d}.json", f"{1:020d}.json")
    assert at(table, EPOCH_MS + 2 * MINUTE_MS) == 2
    outside: list[tuple[Any, str, str]] = [
        ("2001-01-01T00:00:00Z", "before the oldest retained commit", "version 2"),
        (EPOCH_MS + 2 * MINUTE_MS - 1, "before the oldest retained commit", "version 2"),
        (EPOCH_MS + 4 * MINUTE_MS + 1, "after the newest commit", "version 4"),
        (datetime(2999, 1, 1, tzinfo=UTC), "after the newest commit", "version 4"),
    ]
    for instant, problem, nearest in outside:
        with fails(VersionNotFoundError, problem, table=table, version=None, file=None):
            table.open().snapshot(timestamp=instant)
        with pytest.raises(VersionNotFoundError, match=nearest):
            table.open().snapshot(timestamp=instant)


@pytest.mark.conformance("ICT-09")
@pytest.mark.parametrize(
    "spelling",
    [
        EPOCH_MS + MINUTE_MS,
        datetime.fromtimestamp(EPOCH_MS // 1000, UTC) + timedelta(minutes=1),
        "2023-11-14T22:14:20Z",
        "2023-11-15T00:14:20+02:00",
    ],
)
def test_an_instant_may_be_spelt_in_any_way_that_has_a_zone(spelling: Any) -> None:
    table = by_file_times([EPOCH_MS, EPOCH_MS + MINUTE_MS, EPOCH_MS + 2 * MINUTE_MS])
    assert table.open().snapshot(timestamp=spelling).version == 1


@pytest.mark.parametrize("spelling", ["yesterday", "2023-11-14T22:14:20", datetime(2023, 11, 14)])
def test_an_instant_without_zone_or_sense_is_refused(spelling: Any) -> None:
    table = by_file_times([EPOCH_MS])
    with pytest.raises(InvalidRequestError):
        table.open().snapshot(timestamp=spelling)
    with pytest.raises(InvalidRequestError):
        table.open().snapshot(version=0, timestamp=EPOCH_MS)


@pytest.mark.conformance("ICT-08")
def test_without_in_commit_timestamps_an_instant_costs_one_read_of_a_commit() -> None:
    store = CountingStore()
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    for version in range(1, 201):
        table.commit([commit_info(), add(str(version))])
    table.checkpoint(100)
    store.commits_read = 0
    assert at(table, EPOCH_MS + 100 * MINUTE_MS + 5) == 100
    # The newest commit tells that there are none; the snapshot itself reads its own.
    assert store.commits_read <= 2


@pytest.mark.conformance("ICT-06", "ICT-07")
def test_with_in_commit_timestamps_an_instant_costs_a_logarithm_of_reads() -> None:
    store = CountingStore()
    table = TableBuilder(store)
    order = random.Random(7).sample(range(10**6), 1001)
    times = sorted(order)
    table.commit(stamped(times[0], FEATURE, metadata(configuration=ON)), at_ms=order[0])
    for version in range(1, 1001):
        table.commit(stamped(times[version]), at_ms=order[version])
    for version in (250, 500, 750, 1000):
        table.checkpoint(version)
    for version in (250, 500, 1000):
        store.commits_read = 0
        assert at(table, times[version]) == version
        assert store.commits_read <= 20
        if version < 1000:
            assert at(table, times[version + 1] - 1) == version


def mixed() -> tuple[TableBuilder, list[int]]:
    """Versions 0 to 3 go by file times, 4 enables in-commit timestamps, 5 to 7 carry them.

    File times of the later versions are of no meaning, and so is a time that version 1 carries.
    """
    table = TableBuilder()
    times = [100, 200, 300, 400, 1000, 1001, 1500, 2000]
    table.commit([FEATURE, metadata()], at_ms=100)
    table.commit(stamped(777_777), at_ms=200)
    table.commit([add("x")], at_ms=300)
    table.commit([add("y")], at_ms=400)
    table.commit(stamped(1000, metadata(configuration=enabled_since(4, 1000))), at_ms=9_000)
    for version in (5, 6, 7):
        table.commit(stamped(times[version], add(str(version))), at_ms=50)
    return table, times


@pytest.mark.conformance("ICT-01", "ICT-06", "ICT-07")
def test_times_before_the_enablement_are_those_of_the_files_and_after_it_those_within() -> None:
    table, times = mixed()
    history = table.open().history()
    assert [entry.timestamp_ms for entry in reversed(history)] == times
    for version, time in enumerate(times):
        assert at(table, time) == version
    assert (at(table, 999), at(table, 401), at(table, 1499)) == (3, 3, 5)
    for instant in (99, 2001):
        with pytest.raises(VersionNotFoundError):
            at(table, instant)


@pytest.mark.conformance("ICT-07")
def test_the_enablement_is_found_if_its_time_is_not_recorded() -> None:
    table, times = mixed()
    only_version = {
        key: value for key, value in enabled_since(4, 0).items() if "EnablementTimestamp" not in key
    }
    table.commit(stamped(3000, metadata(configuration=only_version)))
    for version, time in enumerate(times):
        assert at(table, time) == version
    assert at(table, 999) == 3


@pytest.mark.conformance("ICT-07", "ICT-09")
def test_a_log_after_the_enablement_uses_only_in_commit_timestamps() -> None:
    table, times = mixed()
    table.checkpoint(6)
    table.drop(*(f"{version:020d}.json" for version in range(6)))
    assert (at(table, times[6]), at(table, 1999), at(table, times[7])) == (6, 6, 7)
    for instant in (times[5], times[4] - 1, 0):
        with pytest.raises(VersionNotFoundError, match="before the oldest"):
            at(table, instant)


@pytest.mark.conformance("ICT-01", "ICT-06")
@pytest.mark.parametrize(
    ("action", "configuration"),
    [
        (protocol(1, 2), ON),
        (features(writer_only=["appendOnly"]), ON),
        (FEATURE, {}),
        (FEATURE, {"delta.enableInCommitTimestamps": "false"}),
        (features(writer_only=["inCommitTimestamp-preview"]), ON),
    ],
    ids=["no feature", "another feature", "unset", "false", "preview"],
)
def test_in_commit_timestamps_count_only_where_supported_and_enabled(
    action: Action, configuration: Mapping[str, str]
) -> None:
    table = TableBuilder()
    table.commit(stamped(5, action, metadata(configuration=configuration)), at_ms=100)
    table.commit(stamped(6), at_ms=200)
    assert [entry.timestamp_ms for entry in table.open().history()] == [200, 100]
    assert [table.open().snapshot(version=v).timestamp_ms for v in (0, 1)] == [100, 200]
    assert at(table, 150) == 0


@pytest.mark.conformance("ICT-01", "ICT-06")
def test_a_snapshot_has_the_time_in_its_commit() -> None:
    table, times = mixed()
    found = [table.open().snapshot(version=version).timestamp_ms for version in range(8)]
    assert found == times
    table.checkpoint(6)
    table.compaction(6, 7)
    assert table.open().snapshot(version=6).timestamp_ms == times[6]
    assert table.open().snapshot(version=7).timestamp_ms == times[7]
    assert table.open().snapshot(version=7).timestamp == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)


@pytest.mark.conformance("ICT-06")
def test_a_commit_that_lacks_its_time_is_named_instead_of_guessed() -> None:
    table = TableBuilder()
    table.commit(stamped(10, FEATURE, metadata(configuration=ON)))
    table.commit([commit_info()])
    table.commit(stamped(30))
    with fails(
        CorruptTableError,
        "has no inCommitTimestamp",
        table=table,
        version=1,
        file=f"{LOG}/{1:020d}.json",
    ):
        table.open().snapshot(timestamp=20)
    assert [entry.version for entry in table.open().history()] == [2, 1, 0]


@pytest.mark.conformance("LOG-11", "REC-09")
def test_history_depends_on_file_names_and_not_on_commits() -> None:
    table = TableBuilder()
    table.commit([commit_info("CREATE", version=7, readVersion=3), protocol(), metadata()])
    table.commit([commit_info("A", version=99)])
    table.commit([add("x")])
    table.commit([add("y"), commit_info("LAST", userName="u")])
    table.commit(['{"commitInfo":null}', add("z")])

    history = table.open().history()

    assert [entry.version for entry in history] == [4, 3, 2, 1, 0]
    assert [entry.operation for entry in history] == [None, "LAST", None, "A", "CREATE"]
    assert history[1].commit_info == {"operation": "LAST", "userName": "u"}
    assert history[0].commit_info == {}


@pytest.mark.conformance("LOG-11")
def test_versions_that_nothing_opens_are_marked() -> None:
    table = TableBuilder()
    table.commit([protocol(), metadata()])
    for version in range(1, 9):
        table.commit([commit_info(str(version))])
    table.checkpoint(5)
    for version in (1, 6):
        table.store.delete(f"{LOG}/{version:020d}.json")
    entries = table.open().history()
    assert {entry.version: entry.is_readable for entry in entries} == {
        **{0: True, 2: False, 3: False, 4: False, 5: True, 7: False, 8: False}
    }
    for entry in entries:
        with nullcontext() if entry.is_readable else pytest.raises(DeltaMaintenanceError):
            assert table.open().snapshot(version=entry.version).version == entry.version
    assert table.open().history(limit=2) == entries[:2]
    assert [entry.to_json()["readable"] for entry in entries[:2]] == [False, False]


@pytest.mark.parametrize("limit", [0, 1, 3, 5, 100])
def test_a_limited_history_is_the_newest_part_and_reads_no_more(limit: int) -> None:
    store = CountingStore()
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    for version in range(1, 5):
        table.commit([commit_info(str(version))])
    whole = table.open().history()
    store.commits_read = 0
    assert table.open().history(limit=limit) == whole[:limit]
    assert store.commits_read <= 1 + min(limit, 5)


def test_a_negative_limit_of_the_history_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        by_file_times([EPOCH_MS]).open().history(limit=-1)


@pytest.mark.conformance("LOG-03")
def test_a_damaged_commit_in_the_history_is_named() -> None:
    table = by_file_times([EPOCH_MS, EPOCH_MS + 1, EPOCH_MS + 2])
    table.write(f"{1:020d}.json", b'{"commitInfo":{"operation"')
    with fails(CorruptTableError, "line 1", table=table, version=1, file=f"{LOG}/{1:020d}.json"):
        table.open().history()


def test_a_place_without_commits_has_no_history() -> None:
    table = TableBuilder()
    with fails(NotADeltaTableError, "missing or empty", table=table, version=None, file=None):
        table.open().history()
    with fails(NotADeltaTableError, "missing or empty", table=table, version=None, file=None):
        table.open().snapshot(timestamp=EPOCH_MS)
