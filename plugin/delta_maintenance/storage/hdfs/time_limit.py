"""Time limits for calls that have none of their own and cannot be interrupted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

R = TypeVar("R")
T = TypeVar("T")


class Step(Protocol):
    """Makes one call of an attempt, whose time is limited by itself."""

    def __call__(self, call: Callable[[], R], /) -> R: ...


def within_steps(attempt: Callable[[Step], T], patience: float) -> T:
    """The result of an attempt of which no step takes longer than `patience`, in seconds.

    `TimeoutError` if one does. Then the thread of the attempt makes no further step, and does not
    keep the process from ending. What the attempt does beside its steps counts as part of them.
    """
    done = threading.Event()
    # Held while a step begins, and while an attempt is given up: no step begins after that.
    turn = threading.Lock()
    begun = time.monotonic()
    is_abandoned = False
    results: list[T] = []
    errors: list[BaseException] = []

    def step(call: Callable[[], R]) -> R:
        nonlocal begun
        with turn:
            if is_abandoned:
                raise TimeoutError
            begun = time.monotonic()
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
        while not done.wait(max(0.0, begun + patience - time.monotonic())):
            with turn:
                if time.monotonic() - begun >= patience:
                    is_abandoned = True
                    raise TimeoutError
    except BaseException:
        # Also where the caller is interrupted.
        is_abandoned = True
        raise
    if errors:
        raise errors.pop()
    return results.pop()
