from __future__ import annotations

import threading
import time

import pytest

from delta_maintenance.storage.hdfs.native_client import Step, StepTimeoutError, within_steps


def test_each_step_has_its_own_time() -> None:
    def attempt(step: Step) -> int:
        return sum(step("sleep", lambda: time.sleep(0.3) or 1) for _ in range(4))

    assert within_steps(attempt, 1.0, name="attempt") == 4


def test_no_step_follows_one_that_takes_too_long() -> None:
    released, ended, made = threading.Event(), threading.Event(), []

    def attempt(step: Step) -> None:
        try:
            step("wait", released.wait)
            step("append", lambda: made.append("later"))
        finally:
            ended.set()

    with pytest.raises(StepTimeoutError, match="^wait$"):
        within_steps(attempt, 0.05, name="attempt")
    released.set()
    assert ended.wait(30)
    assert made == []


def test_an_attempt_without_steps_has_a_name_of_its_own() -> None:
    released = threading.Event()
    with pytest.raises(StepTimeoutError, match="^attempt$"):
        within_steps(lambda _: released.wait(), 0.05, name="attempt")
    released.set()


def test_an_error_of_the_attempt_is_raised_as_it_is() -> None:
    def attempt(step: Step) -> None:
        step("convert", lambda: int("x"))

    with pytest.raises(ValueError, match="'x'"):
        within_steps(attempt, 30, name="attempt")
