"""An abandoned stream must not wait for its threads, because it can be closed anywhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from delta_maintenance.storage.core.streams import LocalPool, StreamingPool

SECONDS = 180.0


def stream(hold: threading.Event, done: list[str]) -> Iterator[int]:
    with StreamingPool(1) as pool:
        future = pool.submit(hold.wait, SECONDS)
        yield 1
        future.result()
        done.append("ended")


def test_an_abandoned_stream_does_not_wait_for_its_threads() -> None:
    hold = threading.Event()
    items = stream(hold, [])
    assert next(items) == 1
    closing = threading.Thread(target=items.close)  # type: ignore[attr-defined]
    closing.start()
    closing.join(SECONDS / 3)
    waited = closing.is_alive()
    hold.set()
    closing.join()
    assert not waited


def test_a_stream_that_fails_leaves_no_thread_behind() -> None:
    ended = threading.Event()

    def failing() -> Iterator[int]:
        with StreamingPool(1) as pool:
            pool.submit(ended.wait, 0.2).add_done_callback(lambda _: ended.set())
            yield 1
            raise ValueError("no more")

    items = failing()
    next(items)
    with pytest.raises(ValueError, match="no more"):
        next(items)
    assert ended.is_set()


def test_waiting_work_does_not_start_after_the_end_of_a_stream() -> None:
    hold = threading.Event()
    begun: list[int] = []

    def crowded() -> Iterator[int]:
        with StreamingPool(1) as pool:
            pool.submit(hold.wait, SECONDS)
            pool.submit(begun.append, 1)
            yield 1

    items = crowded()
    next(items)
    items.close()  # type: ignore[attr-defined]
    hold.set()
    assert begun == []


@pytest.mark.parametrize("wait", [0.0, 0.05])
def test_tasks_of_a_local_pool_go_to_threads_once_some_had_to_wait(wait: float) -> None:
    def task(number: int) -> tuple[int, bool]:
        time.sleep(wait)
        if number == 5:
            raise ValueError("the fifth")
        return number, threading.current_thread() is threading.main_thread()

    with LocalPool(2) as pool:
        futures = [pool.submit(task, number) for number in range(12)]
        found = [future.result() for future in futures if future is not futures[5]]
        with pytest.raises(ValueError, match="the fifth"):
            futures[5].result()
    assert [number for number, _ in found] == [*range(5), *range(6, 12)]
    # On a busy machine, tasks that do not wait may have had to wait for a processor.
    assert [here for _, here in found[:7]] == [True] * 7
    assert not (wait and any(here for _, here in found[7:]))
