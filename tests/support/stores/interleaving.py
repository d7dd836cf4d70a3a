"""Several actors on one store, interleaved in an order that a seed determines.

Every actor has a thread of its own, and exactly one of them runs at any moment. The running actor
may hand over at each request to its store, as the schedule decides:

    schedule = Schedule(seed)
    for work in (append, vacuum):
        schedule.begin(partial(work, ScheduledStore(store, schedule)))
    with single_threaded():
        schedule.run()
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa

from delta_maintenance.storage.core import FileStatus, Put, Skip, Store

Work = Callable[[], None]


class Abandoned(BaseException):
    """Another actor has failed, so this one ends immediately."""


class Schedule:
    """Decides which actor runs."""

    def __init__(self, seed: int, *, persistence: float = 0.0) -> None:
        """`persistence` is the probability that an actor continues when it could hand over.

        With a low value, the actors alternate at nearly every request; with a high value, each one
        does much work while the others wait in the middle of theirs.
        """
        self.random = random.Random(seed)
        """The source of every decision: of the schedule, and of actors while they run."""
        self.turns = 0
        """The number of times that one actor took over from another."""
        self._persistence = persistence
        self._alive: list[_Actor] = []
        self._running: _Actor | None = None
        self._failure: BaseException | None = None
        self._ended = threading.Event()

    @property
    def num_alive(self) -> int:
        """The number of actors that have not ended."""
        return len(self._alive)

    def begin(self, work: Work) -> None:
        """Adds an actor, which starts when the schedule first chooses it."""
        self._alive.append(_Actor(self, work))

    def run(self) -> None:
        """Runs the actors until all of them have ended.

        The first failure ends the other actors with `Abandoned`, and is raised here.
        """
        if not self._alive:
            return
        actors = list(self._alive)
        for actor in actors:
            actor.start()
        self._hand_over()
        self._ended.wait()
        for actor in actors:
            actor.join()
        if self._failure is not None:
            raise self._failure

    def pause(self) -> None:
        """May let another actor run first. Has no effect in other threads."""
        me = self._running
        if me is None or threading.current_thread() is not me:
            return
        self._require_success()
        if self.random.random() >= self._persistence and self._hand_over() is not me:
            me.turn.acquire()
            self._require_success()

    def _hand_over(self) -> _Actor:
        before = self._running
        self._running = chosen = self.random.choice(self._alive)
        if chosen is not before:
            self.turns += 1
            chosen.turn.release()
        return chosen

    def _require_success(self) -> None:
        if self._failure is not None:
            raise Abandoned

    def _leave(self, actor: _Actor, failure: BaseException | None) -> None:
        self._failure = self._failure or failure
        self._alive.remove(actor)
        if self._alive:
            self._hand_over()
        else:
            self._ended.set()


class _Actor(threading.Thread):
    def __init__(self, schedule: Schedule, work: Work) -> None:
        super().__init__(daemon=True)
        self.turn = threading.Semaphore(0)
        self._schedule = schedule
        self._work = work

    def run(self) -> None:
        self.turn.acquire()
        failure: BaseException | None = None
        try:
            self._schedule._require_success()
            self._work()
        except Abandoned:
            pass
        except BaseException as error:
            failure = error
        self._schedule._leave(self, failure)


class ScheduledStore(Store):
    """An actor's view of a store, which may wait before every request."""

    def __init__(self, store: Store, schedule: Schedule) -> None:
        self.address = store.address
        self._store = store
        self._schedule = schedule

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        self._schedule.pause()
        return iter(list(self._store.list_from(directory, start)))

    def stat(self, path: str) -> FileStatus | None:
        self._schedule.pause()
        return self._store.stat(path)

    def read(self, path: str) -> bytes:
        self._schedule.pause()
        return self._store.read(path)

    def read_head(self, path: str, size: int) -> bytes:
        self._schedule.pause()
        return self._store.read_head(path, size)

    def open(self, path: str) -> BinaryIO:
        self._schedule.pause()
        return self._store.open(path)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        self._schedule.pause()
        return self._store.put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        self._schedule.pause()
        self._store.put(path, data)

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with self._store.create(path) as sink:
            yield sink
            # The file is not visible before the block ends.
            self._schedule.pause()

    def delete(self, path: str) -> None:
        self._schedule.pause()
        self._store.delete(path)

    def list_tree(self, directory: str = "", *, skip: Skip | None = None) -> Iterator[pa.Table]:
        self._schedule.pause()
        yield from list(self._store.list_tree(directory, skip=skip))


@contextmanager
def single_threaded() -> Iterator[None]:
    """Runs tasks for thread pools immediately, in the calling thread.

    Threads of an actor would run outside of the schedule, in an order that the seed does not
    determine.
    """
    submit = ThreadPoolExecutor.submit

    def at_once(
        _: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    ThreadPoolExecutor.submit = at_once  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]
