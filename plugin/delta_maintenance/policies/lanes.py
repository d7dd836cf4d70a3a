"""Work on many tables side by side, in which a slow table holds up no other."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

LANES = 16
"""The tables that are read side by side. Those whose stores are silent must leave some for the
others, and the others must fit into the memory together."""
_AT_ONCE = 4
_PATIENCE = 30.0


class Job(Future[Made]):
    """The work on one table."""

    began: float | None = None
    """When a thread began it, on a monotonic clock in seconds."""


def start_jobs(
    work: Callable[[Item], Made], items: Sequence[Item], *, lanes: int = LANES
) -> list[Job[Made]]:
    """Begins the work on all items in order, in threads; a job also holds the error of its item.

    The end of the process waits for none of the threads, unlike those of `concurrent.futures`: one
    that waits for a silent store would hold it up for minutes.
    """
    jobs = [Job[Made]() for _ in items]
    unbegun: SimpleQueue[tuple[Job[Made], Item]] = SimpleQueue()
    for pair in zip(jobs, items, strict=True):
        unbegun.put(pair)

    def run_lane() -> None:
        while True:
            try:
                job, item = unbegun.get_nowait()
            except Empty:
                return
            job.began = time.monotonic()
            try:
                job.set_result(work(item))
            except BaseException as error:
                job.set_exception(error)

    for _ in range(min(lanes, len(jobs))):
        threading.Thread(target=run_lane, name="lane", daemon=True).start()
    return jobs


def work_side_by_side(work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    """Returns the results of work on all items, in order; a single one is done by the caller."""
    if len(items) == 1:
        return [work(items[0])]
    return [job.result() for job in start_jobs(work, items)]


def wait_for(job: Job[Made], *, patience: float) -> bool:
    """Waits until a job is done or has run for so many seconds; returns whether it is done."""
    while not job.done():
        seconds_left = patience if job.began is None else job.began + patience - time.monotonic()
        if seconds_left <= 0:
            return False
        wait([job], timeout=seconds_left)
    return True


class Turns:
    """Lets one table after the other work, of those that wait the one with the lowest place.

    While a turn takes longer than `patience` seconds, the next table begins beside it, up to
    `at_once` of them, whose operations each need the memory that their plans state. Thread-safe.
    """

    def __init__(self, *, at_once: int = _AT_ONCE, patience: float = _PATIENCE) -> None:
        self._at_once = at_once
        self._patience = patience
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int]] = []
        self._began: dict[tuple[float, int], float] = {}
        self._numbers = itertools.count()

    @contextmanager
    def turn(self, place: float) -> Iterator[None]:
        """Waits for the turn of a table, such as by the seconds it took to read, and holds it."""
        ticket = (place, next(self._numbers))
        with self._changed:
            heapq.heappush(self._waiting, ticket)
            self._changed.notify_all()
            while (seconds := self._seconds_left(ticket)) != 0:
                self._changed.wait(seconds)
            self._waiting.remove(ticket)
            heapq.heapify(self._waiting)
            self._began[ticket] = time.monotonic()
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                del self._began[ticket]
                self._changed.notify_all()

    def _seconds_left(self, ticket: tuple[float, int]) -> float | None:
        """Returns the time until a table may begin; None if that depends on others."""
        if self._waiting[0] != ticket or len(self._began) >= self._at_once:
            return None
        if not self._began:
            return 0
        return max(0.0, max(self._began.values()) + self._patience - time.monotonic())
