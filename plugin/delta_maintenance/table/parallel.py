"""Parallel work: on streams, in order, and by idle workers on bins."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from threading import Condition, Semaphore
from typing import Generic, TypeVar

from delta_maintenance.storage.core.streams import StreamingPool

Item = TypeVar("Item")
Made = TypeVar("Made")
_THREADS = 2

T = TypeVar("T")


def in_parallel(
    function: Callable[[Item], Made], items: Iterable[Item], *, threads: int = _THREADS
) -> Iterator[Made]:
    """Yields the results of `function` in order; the next two items are processed in advance.

    Two are enough, because Arrow and NumPy use the other cores within an item, and items are large.
    Callers with much Python code of their own should pass fewer `threads`, because of the GIL.
    """
    with StreamingPool(threads) as pool:
        under_way: deque[Future[Made]] = deque()
        for item in items:
            under_way.append(pool.submit(function, item))
            if len(under_way) > threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def in_advance(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yields the items; a thread produces the next one meanwhile.

    For producers that leave the GIL to others most of the time.
    """
    with StreamingPool(1) as pool:
        following = pool.submit(_next, items)
        while next_items := following.result():
            following = pool.submit(_next, items)
            yield from next_items


class IdleWorkers:
    """Counts the idle workers of one run, initially none. Thread-safe."""

    def __init__(self) -> None:
        self._free = Semaphore(0)

    def add(self, count: int = 1) -> None:
        """Adds idle workers."""
        if count:
            self._free.release(count)

    def take(self) -> bool:
        """Takes one idle worker, without waiting; False if there is none. `add` returns it."""
        return self._free.acquire(blocking=False)


class OverlappedTasks:
    """Runs tasks of one worker, one at a time: in another thread if a worker is idle, otherwise
    immediately in the calling thread.
    """

    def __init__(self, idle_workers: IdleWorkers | None) -> None:
        self._idle_workers = idle_workers
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, task: Callable[[], T]) -> Future[T]:
        """Starts a task and returns its future, which also holds the error of the task. Without an
        idle worker, the task is complete on return.
        """
        future = self.begin_if_idle(task)
        if future is None:
            future = Future()
            try:
                future.set_result(task())
            except Exception as error:
                future.set_exception(error)
        return future

    def begin_if_idle(self, task: Callable[[], T]) -> Future[T] | None:
        """Starts a task if a worker is idle; otherwise returns None."""
        idle_workers = self._idle_workers
        if idle_workers is None or not idle_workers.take():
            return None
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1)
        return self._pool.submit(self._run_task, task, idle_workers)

    @staticmethod
    def _run_task(task: Callable[[], T], idle_workers: IdleWorkers) -> T:
        try:
            return task()
        finally:
            # Not in a callback of the future, which can run after a thread has its result.
            idle_workers.add()

    def close(self) -> None:
        """Waits for the running task, and ends the thread."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _next(items: Iterator[Item]) -> list[Item]:
    """Returns the next item in a list, which is empty at the end."""
    return list(islice(items, 1))


@dataclass(slots=True, eq=False)
class _Stream(Generic[Item]):
    items: Generator[Item, None, None] | None = None
    """None until the stream is opened, and after its end."""
    waiting: deque[Item] = field(default_factory=deque)
    is_busy: bool = False
    """Whether a thread produces the next item."""
    has_ended: bool = False
    error: BaseException | None = None
    """The error that ended the stream."""


class ParallelChain(Generic[Item]):
    """Iterates over streams; the items of each must be consumed before the next stream.

    Once `help` has found an idle worker, the items of one stream are produced by either thread, but
    one at a time, and two streams are produced at the same time if the calling thread has to wait
    for an item. An error of a stream is raised after its last item.

    At most two streams are open at a time, and items of `most` bytes wait, or one more item of each
    thread. Streams are opened in order, one at a time. For producers that leave the GIL to others
    most of the time.
    """

    def __init__(
        self,
        streams: Iterator[Generator[Item, None, None]],
        *,
        count: int,
        size: Callable[[Item], int],
        max_held: int,
        idle_workers: IdleWorkers | None,
    ) -> None:
        """`count` is the number of streams; `size` returns the size of an item in bytes."""
        self._unopened = streams
        self._count = self._left = count
        self._size = size
        self._most = max_held
        self._held = 0
        self._open: deque[_Stream[Item]] = deque()
        self._changed = Condition()
        self._is_closed = self._is_released = False
        self._overlapped = OverlappedTasks(idle_workers)
        self._helping: Future[None] | None = None

    def __iter__(self) -> Iterator[Iterator[Item]]:
        for _ in range(self._count):
            yield self._items()

    def help(self) -> None:
        """Lets an idle worker produce items from now on, if there is one."""
        if self._helping is None:
            self._helping = self._overlapped.begin_if_idle(self._produce_ahead)

    def release(self) -> None:
        """Ends the help after the next item, so that the worker is idle, until `help` is called."""
        helping, self._helping = self._helping, None
        if helping is not None:
            with self._changed:
                self._is_released = True
                self._changed.notify_all()
            helping.result()
            self._is_released = False

    def close(self) -> None:
        """Ends the other thread after its item, and closes the streams."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._overlapped.close()
        for stream in self._open:
            if stream.items is not None:
                stream.items.close()
        self._open.clear()
        self._left = 0

    def _items(self) -> Iterator[Item]:
        while True:
            with self._changed:
                stream = None
                if not self._open:
                    stream = self._claim_stream()
                front = self._open[0]
                if front.waiting:
                    item = front.waiting.popleft()
                    self._held -= self._size(item)
                    self._changed.notify_all()
                elif front.has_ended:
                    self._open.popleft()
                    if front.error is not None:
                        raise front.error
                    return
                else:
                    item = None
                    if stream is None and (not front.is_busy or self._held < self._most):
                        stream = self._claim_stream()
                    if stream is None:
                        self._changed.wait()
            if stream is not None:
                self._produce(stream)
            elif item is not None:
                yield item

    def _produce_ahead(self) -> None:
        while True:
            with self._changed:
                stream = None
                while stream is None:
                    is_ended = not (self._left or any(map(_goes_on, self._open)))
                    if self._is_closed or self._is_released or is_ended:
                        return
                    if self._held < self._most:
                        stream = self._claim_stream()
                    if stream is None:
                        self._changed.wait()
            self._produce(stream)

    def _claim_stream(self) -> _Stream[Item] | None:
        """Returns the first stream of which no thread produces an item, for the calling thread to
        do so; None if the next stream is just being opened, or if there is none.
        """
        is_opening = False
        for stream in self._open:
            if _goes_on(stream) and not stream.is_busy:
                stream.is_busy = True
                return stream
            is_opening |= _goes_on(stream) and stream.items is None
        if is_opening or not self._left:
            return None
        self._left -= 1
        opened: _Stream[Item] = _Stream(is_busy=True)
        self._open.append(opened)
        return opened

    def _produce(self, stream: _Stream[Item]) -> None:
        items, error, size = stream.items, None, 0
        produced: list[Item] = []
        try:
            if items is None:
                items = next(self._unopened)
                with self._changed:
                    stream.items = items
                    self._changed.notify_all()
            for item in items:
                size = self._size(item)
                produced.append(item)
                break
        except BaseException as problem:
            error = problem
        with self._changed:
            stream.waiting.extend(produced)
            self._held += size
            stream.is_busy = False
            stream.has_ended = not produced
            stream.items = items if produced else None
            stream.error = error
            self._changed.notify_all()


def _goes_on(stream: _Stream[Item]) -> bool:
    return not stream.has_ended
