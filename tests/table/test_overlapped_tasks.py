"""Idle workers: tasks in another thread if one is idle, otherwise in the calling thread."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from delta_maintenance.table.parallel import IdleWorkers, OverlappedTasks


def test_without_an_idle_worker_a_task_is_done_at_once() -> None:
    for idle_workers in (None, IdleWorkers()):
        with closing(OverlappedTasks(idle_workers)) as overlapped:
            future = overlapped.begin(threading.get_ident)
            assert future.done()
            assert future.result() == threading.get_ident()


def test_an_error_stays_in_the_future_in_both_cases() -> None:
    def failing() -> None:
        raise OSError("no room")

    for count in (0, 1):
        idle_workers = IdleWorkers()
        idle_workers.add(count)
        with closing(OverlappedTasks(idle_workers)) as overlapped:
            future = overlapped.begin(failing)
            with pytest.raises(OSError, match="no room"):
                future.result()


def test_a_worker_is_idle_again_when_its_task_is_done() -> None:
    idle_workers, goes_on = IdleWorkers(), threading.Event()
    idle_workers.add(1)
    with closing(OverlappedTasks(idle_workers)) as overlapped:
        waiting = overlapped.begin(lambda: goes_on.wait(120) and threading.get_ident())
        assert not idle_workers.take()
        # The second task finds no idle worker.
        assert overlapped.begin(threading.get_ident).result() == threading.get_ident()
        goes_on.set()
        assert waiting.result() != threading.get_ident()
    assert idle_workers.take()
    assert not idle_workers.take()


def test_close_waits_for_the_running_task() -> None:
    idle_workers, ends = IdleWorkers(), []
    idle_workers.add(1)
    before = set(threading.enumerate())
    overlapped = OverlappedTasks(idle_workers)

    def task() -> None:
        time.sleep(0.05)
        ends.append("task")

    overlapped.begin(task)
    overlapped.close()
    assert ends == ["task"]
    assert set(threading.enumerate()) <= before
    overlapped.close()
