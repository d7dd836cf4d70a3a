"""Idle workers: tasks in another thread if one is idle, otherwise in the calling thread."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from delta_maintenance.table.parallel import Helped, Helpers


def test_without_an_idle_worker_a_task_is_done_at_once() -> None:
    for helpers in (None, Helpers()):
        with closing(Helped(helpers)) as helped:
            future = helped.begin(threading.get_ident)
            assert future.done()
            assert future.result() == threading.get_ident()


def test_an_error_stays_in_the_future_in_both_cases() -> None:
    def failing() -> None:
        raise OSError("no room")

    for count in (0, 1):
        helpers = Helpers()
        helpers.add(count)
        with closing(Helped(helpers)) as helped:
            future = helped.begin(failing)
            with pytest.raises(OSError, match="no room"):
                future.result()


def test_a_worker_is_idle_again_when_its_task_is_done() -> None:
    helpers, goes_on = Helpers(), threading.Event()
    helpers.add(1)
    with closing(Helped(helpers)) as helped:
        waiting = helped.begin(lambda: goes_on.wait(120) and threading.get_ident())
        assert not helpers.take()
        # The second task finds no idle worker.
        assert helped.begin(threading.get_ident).result() == threading.get_ident()
        goes_on.set()
        assert waiting.result() != threading.get_ident()
    assert helpers.take()
    assert not helpers.take()


def test_close_waits_for_the_running_task() -> None:
    helpers, ends = Helpers(), []
    helpers.add(1)
    before = set(threading.enumerate())
    helped = Helped(helpers)

    def task() -> None:
        time.sleep(0.05)
        ends.append("task")

    helped.begin(task)
    helped.close()
    assert ends == ["task"]
    assert set(threading.enumerate()) <= before
    helped.close()
