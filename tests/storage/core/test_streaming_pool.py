"""An abandoned stream must not wait for its threads, because it can be closed anywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from delta_maintenance.storage.core.streaming_pool import StreamingPool

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
    hold, begun = threading.Event(), []

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
