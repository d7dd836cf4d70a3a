"""Tables that are worked on side by side: who waits for whom."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from delta_maintenance.policies.lanes import Turns, start_jobs, wait_for, work_side_by_side

LONG = 20.0


def test_results_come_in_order_and_an_error_is_that_of_its_item() -> None:
    both = threading.Barrier(2)

    def work(number: int) -> int:
        both.wait(LONG)
        if number == 3:
            raise LookupError("three")
        return number * 2

    jobs = start_jobs(work, [1, 3])
    assert jobs[0].result() == 2
    with pytest.raises(LookupError, match="three"):
        jobs[1].result()
    assert work_side_by_side(lambda number: number + 1, range(50)) == [*range(1, 51)]
    caller = threading.current_thread()
    assert work_side_by_side(lambda _: threading.current_thread(), ["one"]) == [caller]


def test_a_job_is_waited_for_from_its_beginning() -> None:
    released = threading.Event()
    first, second = start_jobs(lambda _: released.wait(LONG), ["a", "b"], lanes=1)
    assert not wait_for(first, patience=0.05) and second.began is None
    threading.Timer(0.1, released.set).start()
    assert wait_for(second, patience=0.01) or second.began is not None
    assert wait_for(first, patience=LONG)


@pytest.mark.process
def test_no_silent_table_holds_up_the_end_of_the_process() -> None:
    code = (
        "import threading; from delta_maintenance.policies.lanes import start_jobs;"
        "start_jobs(lambda _: threading.Event().wait(300), [1, 2]); print('over')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, b"over\n")


class Played:
    """Turns that threads take, one after the other."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.begun: list[str] = []
        self.changed = threading.Condition()

    @contextmanager
    def holding(self, name: str, answered_in: float) -> Iterator[threading.Event]:
        """A thread that waits for its turn, and holds it until the event is set."""
        over = threading.Event()

        def hold() -> None:
            with self.turns.turn(answered_in):
                with self.changed:
                    self.begun.append(name)
                    self.changed.notify_all()
                over.wait(LONG)

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            yield over
        finally:
            over.set()
            thread.join(LONG)

    def wait_for(self, *names: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.begun == [*names], LONG), self.begun

    def wait_until_waiting(self, number: int) -> None:
        with self.turns._changed:
            assert self.turns._changed.wait_for(lambda: len(self.turns._waiting) == number, LONG)


def test_the_table_that_answered_fastest_works_next() -> None:
    played = Played(Turns(patience=LONG))
    with played.holding("first", 9) as first:
        played.wait_for("first")
        with played.holding("slow", 3) as slow, played.holding("fast", 0.1) as fast:
            played.wait_until_waiting(2)
            assert played.begun == ["first"], "one at a time"
            first.set()
            played.wait_for("first", "fast")
            fast.set()
            played.wait_for("first", "fast", "slow")
            slow.set()


def test_a_turn_that_takes_long_holds_up_no_other_up_to_a_number_of_them() -> None:
    played = Played(Turns(patience=0.05, at_once=2))
    with played.holding("huge", 0.1) as huge:
        played.wait_for("huge")
        with played.holding("next", 0.2) as following:
            played.wait_for("huge", "next")
            with played.holding("third", 0.3):
                played.wait_until_waiting(1)
                time.sleep(0.1)
                assert len(played.begun) == 2, "no more memory than for two"
                following.set()
                played.wait_for("huge", "next", "third")
        assert not huge.is_set()
