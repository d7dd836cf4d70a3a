"""Items of a stream are produced ahead of their consumer, in order, and no further than stated."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice

import pytest

from delta_maintenance.table.parallel import in_advance, in_parallel


class Stream:
    """Counts from zero, and records how far and in which thread."""

    def __init__(self, end: int, *, failure: int | None = None) -> None:
        self.produced: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.following = threading.Semaphore(0)
        self._end, self._failure = end, failure

    def items(self) -> Iterator[int]:
        for item in range(self._end):
            self.threads.add(threading.current_thread())
            if item == self._failure:
                raise ValueError(f"item {item}")
            self.produced.append(item)
            self.following.release()
            yield item


def test_the_next_item_is_produced_while_one_is_used() -> None:
    stream = Stream(4)
    items = in_advance(stream.items())
    for item in range(4):
        assert next(items) == item
        for _ in range(2 if item == 0 else item < 3):
            assert stream.following.acquire(timeout=120)
        assert stream.produced == list(range(min(item + 2, 4)))
    assert list(items) == []
    assert threading.current_thread() not in stream.threads and len(stream.threads) == 1


@pytest.mark.parametrize("end", [0, 1, 2, 7])
def test_no_item_is_lost(end: int) -> None:
    assert list(in_advance(Stream(end).items())) == list(range(end))
    assert list(in_parallel(str, Stream(end).items())) == [str(item) for item in range(end)]


def test_an_error_follows_the_items_before_it() -> None:
    items = in_advance(Stream(5, failure=3).items())
    assert list(islice(items, 3)) == [0, 1, 2]
    with pytest.raises(ValueError, match="item 3"):
        next(items)


def test_an_abandoned_stream_ends() -> None:
    stream = Stream(1000)
    items = in_advance(stream.items())
    assert next(items) == 0
    items.close()
    for thread in stream.threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert len(stream.produced) <= 3
