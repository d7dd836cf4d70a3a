"""Acknowledgements: one failure, until its end, its change, or the recovery of the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.policies import Assessment, AssessmentEntry, AssessmentStore
from delta_maintenance.policies.acknowledgements import (
    Acknowledgement,
    Failure,
    acknowledge_failure,
    end_of,
)
from tests.support.tables.assessed_tables import NOW, assessment, run_result

CORRUPT = (
    "table s3://lake/orders, version 12, file _delta_log/00000000000000000012.json: it is no JSON; "
    "restore it"
)


def broken(problem: str = CORRUPT, *, at: datetime = NOW, **changes: Any) -> Assessment:
    found = assessment("orders", status="failed", health=None, operations=(), assessed_at=at)
    return replace(found, problem=problem, exit_status=5, **changes)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AssessmentStore]:
    kept = AssessmentStore(str(tmp_path / "state"))
    yield kept
    kept.close()


def acknowledge(
    store: AssessmentStore, until: str | None = "7d", *, changed: bool = False
) -> Acknowledgement:
    def make(entry: AssessmentEntry) -> Acknowledgement:
        return acknowledge_failure(
            entry.failure,
            name=entry.name,
            reason="restored on Monday",
            by="ann",
            until=until,
            until_changed=changed,
            now=NOW,
        )

    known = store.acknowledge("orders", make).acknowledgement
    assert known is not None
    return known


def covers(store: AssessmentStore, *, now: datetime = NOW) -> bool:
    entry = store.find_by_name("orders")
    assert isinstance(entry, AssessmentEntry)
    return entry.acknowledgement_at(now=now) is not None


def test_it_survives_assessments_of_the_same_failure_until_it_ends(store: AssessmentStore) -> None:
    store.save(broken())
    known = acknowledge(store)
    assert str(known) == ("acknowledged by ann until 2026-11-28 06:40 UTC: restored on Monday")
    later = NOW + timedelta(days=6)
    assert store.save(broken(at=later)).acknowledgement_at(now=later) == known
    end = NOW + timedelta(days=7)
    assert not covers(store, now=end)
    store.save(broken(at=end))
    entry = store.find_by_name("orders")
    assert isinstance(entry, AssessmentEntry) and entry.acknowledgement is None


@pytest.mark.parametrize(
    ("other", "changed", "same"),
    [
        (CORRUPT.replace("version 12", "version 13"), False, True),
        (CORRUPT.replace("version 12", "version 13"), True, False),
        (CORRUPT.replace("0012.json", "0013.json"), False, False),
        (CORRUPT.replace("it is no JSON", "it is gone"), False, False),
        (CORRUPT, True, True),
    ],
)
def test_another_failure_is_new(
    store: AssessmentStore, other: str, changed: bool, same: bool
) -> None:
    store.save(broken())
    acknowledge(store, changed=changed)
    store.save(broken(other))
    assert covers(store) == same


def test_another_failure_is_new_also_at_a_long_address(store: AssessmentStore) -> None:
    def at(problem: str) -> Assessment:
        return broken(problem.replace("lake", "lake/" + "deep/" * 99))

    store.save(at(CORRUPT))
    acknowledge(store)
    store.save(at(CORRUPT.replace("version 12", "version 13")))
    assert covers(store)
    store.save(at(CORRUPT.replace("it is no JSON", "it is gone")))
    assert not covers(store)


def test_what_differs_between_runs_of_the_same_failure_does_not_count() -> None:
    def told(files: int, seconds: str, request: str) -> Failure:
        return Failure.of(
            "vacuum",
            f"{files:,} files would be deleted after {seconds} at 2026-11-{files % 9 + 10}T10:00Z"
            f", and 100 are allowed (request {request})",
        )

    first = told(98, "12 s", "4442587FB7D0A2F9")
    assert first.is_same(told(7_000_000, "3.5 s", "Yz8/x+0123456789abcdefA="))
    assert not first.is_same(told(98, "12 minutes", "4442587FB7D0A2F9"))
    assert not first.is_same(replace(first, step="clean-log"))


def test_an_outage_does_not_end_it_and_a_recovery_does(store: AssessmentStore) -> None:
    store.save(broken())
    acknowledge(store, None, changed=True)
    store.save(broken("the store is down; wait"))
    assert not covers(store)
    store.save(broken())
    assert covers(store), "the same failure after an outage is not new"
    store.save(assessment("orders"))
    store.save(broken())
    assert not covers(store), "after a recovery the same failure is new"


def test_a_failed_operation_is_acknowledged_until_it_succeeds_or_is_not_due(
    store: AssessmentStore,
) -> None:
    due = assessment("orders")
    step = next(each.operation for each in due.operations if each.status == "due")
    run = run_result("orders", problem="4 files would be deleted, and 1 is allowed", exit_status=3)
    outcome = replace(run.outcomes[-1], operation=step, status="stopped")
    run = replace(run, outcomes=(outcome,), status="stopped")
    store.save(due, run)
    acknowledge(store)
    # The assessment of the next run finds the operation due again, and it fails again.
    store.save(due)
    assert covers(store)
    store.save(due, replace(run, problem="5 files would be deleted, and 1 is allowed"))
    assert covers(store)
    idle = replace(
        due, operations=tuple(replace(each, status="not-due") for each in due.operations)
    )
    store.save(idle)
    store.save(due)
    assert not covers(store)
    acknowledge(store)
    done = replace(run, outcomes=(replace(outcome, status="done"),), exit_status=0, status="done")
    store.save(due, done)
    store.save(due, run)
    assert not covers(store)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"failure": None}, "has not failed"),
        ({"reason": "  "}, "needs a reason"),
        ({"reason": "x" * 501}, "needs a reason"),
        ({"until": None}, "needs an end"),
        ({"until": "yesterday"}, "is not a date or a duration"),
        ({"until": "2026-11-21"}, "that ends later than now"),
        ({"until": "2027-01-31T12:00"}, "is not a date or a duration"),
        ({"until": "0d"}, "that ends later than now"),
    ],
)
def test_it_needs_a_failure_a_reason_and_an_end(given: dict[str, Any], problem: str) -> None:
    whole: dict[str, Any] = {
        "failure": Failure.of("assessment", CORRUPT),
        "name": "orders",
        "reason": "known",
        "by": None,
        "until": "7d",
        "until_changed": False,
        "now": NOW,
    }
    assert acknowledge_failure(**whole).reason == "known"
    with pytest.raises(InvalidRequestError, match=problem):
        acknowledge_failure(**{**whole, **given})


def test_the_end_is_a_date_a_time_or_a_duration() -> None:
    assert end_of("2027-01-31", now=NOW) == datetime(2027, 1, 31, tzinfo=UTC)
    assert end_of("2027-01-31T12:00:00Z", now=NOW) == datetime(2027, 1, 31, 12, tzinfo=UTC)
    assert end_of("1d 12h", now=NOW) == NOW + timedelta(hours=36)


def test_it_is_not_lost_to_an_assessment_at_the_same_time(store: AssessmentStore) -> None:
    """An assessment that was read before and written after the acknowledgement replaces it."""
    store.save(broken())
    put = store.store.put
    other = AssessmentStore(store.uri)
    old = Path(store.uri, next(Path(store.uri).glob("*.json")).name).read_bytes()
    turns: list[int] = []

    def overtaken(path: str, data: bytes) -> None:
        put(path, data)
        if not turns:
            turns.append(1)
            other.store.put(path, old)

    store.store.put = overtaken  # type: ignore[method-assign]
    acknowledge(store)
    assert turns and covers(store)
    other.close()


def test_a_name_without_an_entry_is_refused(store: AssessmentStore) -> None:
    with pytest.raises(InvalidRequestError, match="'orders' was never assessed"):
        acknowledge(store)
