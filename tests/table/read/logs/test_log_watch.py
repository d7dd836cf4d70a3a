"""Polls of a log: their results, their cost, and logs that disappear."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delta_maintenance.errors import NotADeltaTableError
from delta_maintenance.protocol.delta_log import commit_name
from delta_maintenance.table.read.log_watch import LogWatch, Sighting
from tests.support.orchestrators.watching import watched_table
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder, log_text


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def table(store: CountingStore) -> TableBuilder:
    return watched_table(store)


def long_log(store: CountingStore, versions: int) -> TableBuilder:
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    data = log_text([add("a")])
    for version in range(1, versions):
        store.put(f"_delta_log/{commit_name(version)}", data)
        store.put(f"_delta_log/{version:020d}.crc", b"{}")
    store.requests.clear()
    return table


def polls(watch: LogWatch, store: CountingStore) -> Iterator[Sighting]:
    """Polls until nothing is left to read, each time with at most two requests."""
    more = True
    while more:
        store.requests.clear()
        seen = watch.poll()
        assert len(store.requests) <= 2, store.requests
        more = seen.more
        yield seen


def test_the_first_poll_begins_at_the_checkpoint(table: TableBuilder, store: CountingStore) -> None:
    seen = LogWatch(store).poll()
    assert seen == Sighting(since=-1, version=9, checkpoint_version=4)
    assert store.requests == [
        "read _delta_log/_last_checkpoint",
        "list _delta_log from 00000000000000000004",
    ]


def test_every_later_poll_is_one_listing_of_what_is_new(
    table: TableBuilder, store: CountingStore
) -> None:
    watch = LogWatch(store)
    watch.poll()
    table.commit([add("new")])
    store.requests.clear()
    assert watch.poll() == Sighting(since=9, version=10, checkpoint_version=4)
    assert watch.poll() == Sighting(since=10, version=10, checkpoint_version=4)
    assert store.requests == [
        "list _delta_log from 00000000000000000009",
        "list _delta_log from 00000000000000000010",
    ]


@pytest.mark.parametrize("known", [None, 0, 4000])
def test_no_poll_of_a_long_log_without_a_checkpoint_costs_more_than_two_requests(
    store: CountingStore, known: int | None
) -> None:
    long_log(store, 5000)
    watch = LogWatch(store, version=known)
    seen = list(polls(watch, store))
    assert seen[-1].version == 4999
    assert len(seen) > 1
    assert [one.since for one in seen[1:]] == [one.version for one in seen[:-1]]
    assert next(polls(watch, store)).since == 4999


def test_a_checkpoint_of_more_parts_than_a_page_is_no_dead_end(store: CountingStore) -> None:
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    table.commit([add("a")])
    for part in range(1, 1501):
        name = f"_delta_log/{0:020d}.checkpoint.{part:010d}.{1500:010d}.parquet"
        store.put(name, b"x")
    watch = LogWatch(store)
    *_, last = polls_of_any_cost(watch)
    assert last.version == 1


def polls_of_any_cost(watch: LogWatch) -> Iterator[Sighting]:
    while True:
        seen = watch.poll()
        yield seen
        if not seen.more:
            return


def test_a_late_checkpoint_is_found_by_its_hint(table: TableBuilder, store: CountingStore) -> None:
    watch = LogWatch(store, checkpoints=True)
    assert watch.poll().checkpoint_version == 4
    table.checkpoint(7)
    table.hint(7)
    store.requests.clear()
    assert watch.poll().checkpoint_version == 7
    assert len(store.requests) == 2
    assert watch.poll().checkpoint_version == 7
    assert store.requests[-1] == "list _delta_log from 00000000000000000009"


def test_a_hint_to_a_missing_checkpoint_is_ignored(
    table: TableBuilder, store: CountingStore
) -> None:
    table.hint(8)
    watch = LogWatch(store, checkpoints=True)
    assert watch.poll().checkpoint_version is None
    assert watch.poll().version == 9


def test_a_hint_beyond_the_log_leads_back_to_its_beginning(
    table: TableBuilder, store: CountingStore
) -> None:
    table.hint(40)
    assert LogWatch(store).poll() == Sighting(since=-1, version=9, checkpoint_version=4)


def test_a_directory_without_a_log_is_not_watched(store: CountingStore) -> None:
    with pytest.raises(NotADeltaTableError, match="contains no commit"):
        LogWatch(store).poll()


def test_a_deleted_log_is_reported(table: TableBuilder, store: CountingStore) -> None:
    watch = LogWatch(store)
    watch.poll()
    store.delete_many([status.path for status in list(store.list_from("_delta_log"))])
    expected = "version 9.*the log no longer exists; give the new address"
    with pytest.raises(NotADeltaTableError, match=expected):
        watch.poll()
    with pytest.raises(NotADeltaTableError):
        watch.poll()


def test_a_replaced_log_starts_again(table: TableBuilder, store: CountingStore) -> None:
    watch = LogWatch(store)
    watch.poll()
    store.delete_many([status.path for status in list(store.list_from("_delta_log"))])
    fresh = TableBuilder(store)
    fresh.commit([protocol(), metadata()])
    assert watch.poll() == Sighting(since=-1, version=0, replaced=True)
    fresh.commit([add("a")])
    assert watch.poll() == Sighting(since=0, version=1)


def test_a_digest_is_read_once(table: TableBuilder, store: CountingStore) -> None:
    watch = LogWatch(store)
    digest = watch.digest(9)
    assert digest is not None and digest.changes_data and digest.whole
    assert watch.digest(9) is digest
    assert watch.whole(9) is digest
    assert store.requests == [f"read _delta_log/{commit_name(9)}"]


def test_the_rest_of_a_long_commit_is_read_on_demand(store: CountingStore) -> None:
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    table.commit([add("x" * 100 + str(n), dataChange=False) for n in range(1000)] + [add("new")])
    watch = LogWatch(store)
    digest = watch.digest(1)
    assert digest is not None and (digest.changes_data, digest.whole) == (None, False)
    digest = watch.whole(1)
    assert digest is not None and (digest.changes_data, digest.whole) == (True, True)


def test_a_missing_or_broken_commit_does_not_stop_the_watch(
    table: TableBuilder, store: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.delete(f"_delta_log/{commit_name(5)}")
    table.write(commit_name(6), b"{broken")
    watch = LogWatch(store)
    assert watch.digest(5) is None
    digest = watch.digest(6)
    assert digest is not None and digest.changes_data
    assert "version 6" in caplog.text and "not valid JSON" in caplog.text
