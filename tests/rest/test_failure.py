"""Repeated requests: what is repeated, and when the attempts end."""

from __future__ import annotations

import pytest

from delta_maintenance.rest.failure import PATIENCE, PAUSES, patiently
from delta_maintenance.storage.s3 import S3Failure

NO_ANSWER = S3Failure(status=None, code="ReadTimeoutError", detail="")


class Store:
    """Fails each request after a number of seconds, on a clock of its own."""

    def __init__(self, failure: S3Failure, *, seconds: float) -> None:
        self.failure = failure
        self.seconds = seconds
        self.now = 0.0
        self.attempts = 0

    def attempt(self) -> None:
        self.attempts += 1
        self.now += self.seconds
        raise self.failure

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def attempts_of(store: Store, *, attempts: int = 1) -> int:
    with pytest.raises(S3Failure):
        patiently(store.attempt, store.sleep, attempts=attempts, elapsed=lambda: store.now)
    return store.attempts


def test_a_request_that_fails_quickly_is_repeated() -> None:
    assert attempts_of(Store(NO_ANSWER, seconds=0.1)) == len(PAUSES) + 1


@pytest.mark.parametrize("seconds", [20, 60])
def test_a_server_that_never_answers_ends_a_request_within_two_minutes(seconds: float) -> None:
    store = Store(NO_ANSWER, seconds=seconds)
    assert attempts_of(store) <= 3
    assert store.now <= PATIENCE + seconds + sum(PAUSES) < 120


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_caller_can_ask_for_more_attempts_than_time_allows(attempts: int) -> None:
    assert attempts_of(Store(NO_ANSWER, seconds=60), attempts=attempts) == attempts


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_final_failure_is_not_repeated(attempts: int) -> None:
    final = S3Failure(status=403, code="AccessDenied", detail="")
    assert attempts_of(Store(final, seconds=0), attempts=attempts) == 1
