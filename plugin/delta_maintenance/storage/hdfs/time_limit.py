"""Timeouts for calls that have none and cannot be interrupted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

R = TypeVar("R")
T = TypeVar("T")


class StepTimeoutError(TimeoutError):
    """A step took too long. The text of the error is the name of the step."""


class Step(Protocol):
    """Makes one call of an attempt, with its own time limit. Errors name it."""

    def __call__(self, name: str, call: Callable[[], R], /) -> R: ...


def within_steps(attempt: Callable[[Step], T], patience: float, *, name: str) -> T:
    """Returns the result of an attempt in which no step takes longer than `patience` seconds.

    `StepTimeoutError` if one does. Until the first step, its name is that of the attempt. The
    abandoned thread begins no further step, and does not keep the process alive. Work between the
    steps counts towards them.
    """
    done = threading.Event()
    # Held while a step begins and while an attempt is abandoned, so that no step begins afterwards.
    lock = threading.Lock()
    started = time.monotonic()
    is_abandoned = False
    results: list[T] = []
    errors: list[BaseException] = []

    def step(step_name: str, call: Callable[[], R]) -> R:
        nonlocal name, started
        with lock:
            if is_abandoned:
                raise StepTimeoutError(step_name)
            name, started = step_name, time.monotonic()
        return call()

    def run() -> None:
        try:
            results.append(attempt(step))
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        while not done.wait(max(0.0, started + patience - time.monotonic())):
            with lock:
                if time.monotonic() - started >= patience:
                    is_abandoned = True
                    raise StepTimeoutError(name)
    except BaseException:
        # Also if the caller is interrupted.
        is_abandoned = True
        raise
    if errors:
        raise errors.pop()
    return results.pop()
