"""Streams one after another, produced by the calling thread and by an idle worker."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.table.parallel import IdleWorkers, OverlappedTasks, ParallelChain

Source = Iterator[Generator[int, None, None]]


def chain(sources: Source, count: int, *, most: int = 3, idle: int = 1) -> ParallelChain[int]:
    idle_workers = IdleWorkers()
    idle_workers.add(idle)
    return ParallelChain(
        sources, count=count, size=lambda _: 1, max_held=most, idle_workers=idle_workers
    )


@given(
    st.lists(st.integers(0, 6), max_size=8),
    st.integers(1, 4),
    st.integers(0, 20),
    st.integers(0, 1),
    st.sets(st.integers(1, 40)),
)
def test_items_keep_their_order_and_few_of_them_wait(
    lengths: list[int], most: int, helped_from: int, idle: int, released: set[int]
) -> None:
    produced, consumed, opened = [0], 0, [0]
    busy = threading.Lock()

    def items(number: int, length: int) -> Generator[int, None, None]:
        opened[0] += 1
        own = threading.Lock()
        for at in range(length):
            # A generator that two threads resume at a time raises ValueError by itself.
            with busy:
                produced[0] += 1
            assert own.acquire(blocking=False)
            yield number * 10 + at
            own.release()
        opened[0] -= 1

    sources = (items(number, length) for number, length in enumerate(lengths))
    with closing(chain(sources, len(lengths), most=most, idle=idle)) as parallel:
        found: list[list[int]] = []
        for stream in parallel:
            found.append([])
            for item in stream:
                consumed += 1
                found[-1].append(item)
                if consumed >= helped_from:
                    parallel.help()
                if consumed in released:
                    parallel.release()
                # Those that wait, and the one that each thread is about to produce.
                assert produced[0] - consumed <= most + 2
                assert opened[0] <= 2
    assert found == [[n * 10 + at for at in range(length)] for n, length in enumerate(lengths)]


def test_two_streams_are_produced_at_the_same_time() -> None:
    """Each waits for the other, so a single thread would never get its first item."""
    meet = threading.Barrier(2, timeout=120)

    def items(number: int) -> Generator[int, None, None]:
        if number:
            meet.wait()
        yield number

    with closing(chain((items(number) for number in range(3)), 3)) as parallel:
        found: list[int] = []
        for stream in parallel:
            found += stream
            parallel.help()
    assert found == [0, 1, 2]


def test_an_error_is_raised_after_the_last_item_of_its_stream() -> None:
    def items(number: int) -> Generator[int, None, None]:
        yield number
        if number == 1:
            raise OSError("the disk is away")

    before = set(threading.enumerate())
    found = []
    parallel = chain((items(number) for number in range(3)), 3)
    parallel.help()
    with closing(parallel), pytest.raises(OSError, match="away"):
        for stream in parallel:
            for item in stream:
                found.append(item)
    assert found == [0, 1]
    assert set(threading.enumerate()) <= before


def test_close_ends_the_thread_and_the_open_streams() -> None:
    ended, began, goes_on = [], threading.Event(), threading.Event()

    def items(number: int) -> Generator[int, None, None]:
        try:
            yield number
            if number:
                began.set()
                assert goes_on.wait(120)
            yield number
            yield number
        finally:
            ended.append(number)

    before = set(threading.enumerate())
    parallel = chain((items(number) for number in range(9)), 9, most=9)
    first = iter(next(iter(parallel)))
    assert next(first) == 0
    parallel.help()
    # The worker may consume the first stream before it comes to the second.
    assert began.wait(120)
    threading.Timer(0.05, goes_on.set).start()
    parallel.close()
    assert sorted(ended) == [0, 1]
    assert {thread for thread in threading.enumerate() if thread.name.startswith("ThreadPool")} <= (
        before
    )


def test_the_other_thread_stops_when_enough_items_wait() -> None:
    enough, too_many = threading.Event(), threading.Event()

    def items() -> Generator[int, None, None]:
        for at in range(100):
            if at == 4:
                enough.set()
            if at == 5:
                too_many.set()
            yield at

    with closing(chain(iter([items()]), 1, most=4)) as parallel:
        (stream,) = parallel
        assert next(stream) == 0
        parallel.help()
        assert enough.wait(120)
        assert not too_many.wait(0.1)
        assert list(stream) == list(range(1, 100))


def test_a_released_worker_runs_another_task_and_helps_again() -> None:
    items, produced = threading.Condition(), [0]

    def numbers() -> Generator[int, None, None]:
        for at in range(100):
            with items:
                produced[0] = at
                items.notify_all()
            yield at

    idle_workers = IdleWorkers()
    idle_workers.add()
    parallel = ParallelChain(
        iter([numbers()]), count=1, size=lambda _: 1, max_held=4, idle_workers=idle_workers
    )
    tasks = OverlappedTasks(idle_workers)
    with closing(parallel), closing(tasks):
        (stream,) = parallel
        assert next(stream) == 0
        parallel.help()
        assert tasks.begin_if_idle(threading.get_ident) is None
        parallel.release()
        assert tasks.begin(threading.get_ident).result() != threading.get_ident()
        last = next(item for item in stream if item == produced[0])
        parallel.help()
        with items:
            assert items.wait_for(lambda: produced[0] == last + 4, 120)
        assert list(stream) == list(range(last + 1, 100))
    assert idle_workers.take() and not idle_workers.take()


def test_streams_are_opened_one_at_a_time() -> None:
    began, goes_on = threading.Event(), threading.Event()

    def sources() -> Source:
        for number in range(4):
            if number == 1:
                began.set()
                assert goes_on.wait(120)
            yield (item for item in [number])

    with closing(chain(sources(), 4)) as parallel:
        found: list[int] = []
        for stream in parallel:
            found += stream
            parallel.help()
            assert began.wait(120)
            threading.Timer(0.05, goes_on.set).start()
    assert found == [0, 1, 2, 3]
