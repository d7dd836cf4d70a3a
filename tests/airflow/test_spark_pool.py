"""The pool of Spark jobs, which Airflow's services create when they start."""

from __future__ import annotations

import pytest

from delta_maintenance_airflow.plugin import SPARK_POOL, on_starting


def start_service() -> None:
    """Starts a service of Airflow."""
    from airflow.jobs.job import Job

    Job()


def slots(change: int | None = None) -> int | None:
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    with create_session() as session:
        pool = Pool.get_pool(SPARK_POOL, session=session)
        if pool is None:
            return None
        assert pool.include_deferred
        pool.slots = change or pool.slots
        return int(pool.slots)


def test_a_service_creates_the_pool_and_changes_no_existing_one(
    airflow_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_service()
    assert slots() is None
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__SPARK_POOL_SLOTS", "4")
    on_starting("a task, which has no access to the database")
    assert slots() is None
    start_service()
    assert slots() == 4
    assert slots(change=7) == 7
    start_service()
    assert slots() == 7


def test_an_invalid_number_does_not_stop_a_service(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__SPARK_POOL_SLOTS", "many")
    start_service()
    assert "could not be created" in caplog.text
