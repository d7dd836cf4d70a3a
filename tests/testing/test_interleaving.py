"""The schedule: one actor at a time, a deterministic order per seed, and an end after failures."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put
from tests.support.stores.interleaving import Schedule, ScheduledStore, single_threaded


def story(seed: int, *, persistence: float = 0.0) -> list[str]:
    """The actors of thirty requests, in order."""
    order: list[str] = []
    schedule = Schedule(seed, persistence=persistence)

    def work(name: str) -> None:
        store = ScheduledStore(MemoryStore(), schedule)
        for number in range(10):
            assert store.put_if_absent(f"{number}", b"") is Put.DONE
            order.append(name)

    for name in "abc":
        schedule.begin(partial(work, name))
    schedule.run()
    return order


def switches(order: list[str]) -> int:
    return sum(one != other for one, other in zip(order, order[1:], strict=False))


def test_a_seed_determines_the_order() -> None:
    stories = [story(seed) for seed in range(20)]
    assert stories == [story(seed) for seed in range(20)]
    assert len({"".join(order) for order in stories}) == 20
    assert all(sorted(order) == sorted("abc" * 10) for order in stories)


def test_persistence_keeps_one_actor_running() -> None:
    restless = sum(switches(story(seed)) for seed in range(20))
    steady = sum(switches(story(seed, persistence=0.9)) for seed in range(20))
    assert restless > 3 * steady > 0


def test_only_one_actor_runs_at_a_time() -> None:
    schedule = Schedule(1)
    running: list[int] = []

    def work(me: int) -> None:
        for _ in range(50):
            running.append(me)
            assert running == [me]
            running.remove(me)
            schedule.pause()

    for me in range(4):
        schedule.begin(partial(work, me))
    schedule.run()
    assert schedule.turns > 50


def test_a_failure_stops_all_actors_and_is_raised() -> None:
    schedule, cleaned = Schedule(0), []

    def work() -> None:
        try:
            while True:
                schedule.pause()
        finally:
            cleaned.append(threading.current_thread())

    def fail() -> None:
        schedule.pause()
        raise ValueError("on purpose")

    for _ in range(3):
        schedule.begin(work)
    schedule.begin(fail)
    with pytest.raises(ValueError, match="on purpose"):
        schedule.run()
    assert not any(thread.is_alive() for thread in cleaned)


def test_a_file_is_visible_after_its_write_block() -> None:
    seen = set()
    for seed in range(30):
        inner, schedule = MemoryStore(), Schedule(seed)

        def write(store: ScheduledStore) -> None:
            with store.create("a") as sink:
                sink.write(b"1")
                store.stat("b")
                sink.write(b"2")

        def look(store: ScheduledStore) -> None:
            status = store.stat("a")
            seen.add(None if status is None else status.size)

        for work in (write, look):
            schedule.begin(partial(work, ScheduledStore(inner, schedule)))
        schedule.run()
    assert seen == {None, 2}


def test_pools_run_in_the_thread_of_the_caller() -> None:
    def fail() -> None:
        raise ValueError("on purpose")

    with ThreadPoolExecutor(2) as pool:
        with single_threaded():
            assert pool.submit(threading.current_thread).result() is threading.main_thread()
            with pytest.raises(ValueError, match="on purpose"):
                pool.submit(fail).result()
        assert pool.submit(threading.current_thread).result() is not threading.main_thread()
