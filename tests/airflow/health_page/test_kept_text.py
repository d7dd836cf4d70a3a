"""A text that is made anew in the background."""

from __future__ import annotations

import threading

import pytest

from delta_maintenance_airflow.health_page import kept_text
from delta_maintenance_airflow.health_page.kept_text import FRESH_SECONDS, OLDEST_SECONDS, KeptText


class Clock:
    """What makes a text at a time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.made = 0
        self.may_end = threading.Event()
        self.may_end.set()
        self.ended = threading.Semaphore(0)
        self.problem: Exception | None = None
        self.kept = KeptText(self._make, elapsed=lambda: self.now)

    def _make(self) -> bytes:
        self.may_end.wait(30)
        self.made += 1
        self.ended.release()
        if self.problem is not None:
            raise self.problem
        return f"text {self.made}".encode()

    def settled(self) -> None:
        """Waits for the end of what is made in the background."""
        running = self.kept._running
        if running is not None:
            running.exception(30)

    def text(self) -> str:
        """What a reader gets, who then asks for another one."""
        text = self.kept.get().plain.decode()
        self.kept.renew()
        return text


def test_a_fresh_text_is_not_made_again() -> None:
    clock = Clock()
    assert clock.text() == "text 1"
    clock.now = FRESH_SECONDS - 1
    assert clock.text() == "text 1"
    clock.settled()
    assert clock.made == 1


def test_an_older_text_is_served_while_one_thread_makes_the_next() -> None:
    clock = Clock()
    clock.text()
    clock.may_end.clear()
    clock.now = FRESH_SECONDS + 1
    assert [clock.text() for _ in range(5)] == ["text 1"] * 5
    clock.may_end.set()
    clock.settled()
    assert clock.text() == "text 2" and clock.made == 2


def test_a_failure_is_reported_until_it_has_passed() -> None:
    clock = Clock()
    clock.text()
    clock.now = FRESH_SECONDS + 1
    clock.problem = ValueError("away")
    assert clock.text() == "text 1"
    clock.settled()
    for _ in range(2):
        with pytest.raises(ValueError, match="away"):
            clock.text()
    clock.problem = None
    assert clock.text() == "text 5"


def test_a_store_that_does_not_answer_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_text, "PATIENCE_SECONDS", 0.01)
    clock = Clock()
    clock.text()
    clock.may_end.clear()
    clock.now = OLDEST_SECONDS - 1
    assert clock.text() == "text 1"
    clock.now = OLDEST_SECONDS + 1
    with pytest.raises(TimeoutError):
        clock.text()
    clock.may_end.set()
    clock.settled()
