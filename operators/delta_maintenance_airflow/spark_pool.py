"""The pool of Spark jobs, which Airflow's services create when they start.

Airflow never starts a task whose pool does not exist, and reports that only in the log of the
scheduler.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl

from delta_maintenance_airflow.settings import spark_pool_slots

SPARK_POOL = "delta_spark"
_log = logging.getLogger(__name__)


@hookimpl
def on_starting(component: Any) -> None:
    """Creates the pool if it is configured."""
    # The process of a task is a component too, and has no access to the database. Which service
    # starts is not known yet.
    if type(component).__name__ != "Job":
        return
    try:
        create_spark_pool()
    except Exception:
        _log.warning("the pool %s could not be created", SPARK_POOL, exc_info=True)


def create_spark_pool() -> None:
    """Creates the pool unless it exists; its number of slots can then be changed in Airflow.

    It includes deferred tasks, whose drivers use as many resources as those of other tasks.
    """
    slots = spark_pool_slots()
    if slots is None:
        return
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    with create_session() as session:
        if Pool.get_pool(SPARK_POOL, session=session) is None:
            session.add(
                Pool(
                    pool=SPARK_POOL,
                    slots=slots,
                    description="Spark jobs of the maintenance of Delta tables",
                    include_deferred=True,
                )
            )
            _log.info("created the pool %s with %d slots", SPARK_POOL, slots)
