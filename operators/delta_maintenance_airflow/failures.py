"""Which failures Airflow should try again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.providers.common.compat.sdk import AirflowFailException

from delta_maintenance.errors import DeltaMaintenanceError


@contextmanager
def retrying_only_what_may_pass() -> Iterator[None]:
    """Lets retryable errors through, which Airflow retries as the task says, and ends the task with
    `AirflowFailException` on all others: no retry corrects an address or repairs a log.
    """
    try:
        yield
    except DeltaMaintenanceError as error:
        if error.retryable:
            raise
        raise AirflowFailException(str(error)) from error
