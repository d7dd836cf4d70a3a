"""Errors that Airflow should retry, and errors that it should not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance_airflow.compat import AirflowFailException


@contextmanager
def retrying_only_what_may_pass() -> Iterator[None]:
    """Raises `AirflowFailException` for errors for which a retry cannot help, such as a wrong
    address or a damaged log. Other errors pass through, and Airflow retries as configured.
    """
    try:
        yield
    except DeltaMaintenanceError as error:
        # The base class stands for a failure within Spark, which a retry may or may not fix.
        if error.retryable or type(error) is DeltaMaintenanceError:
            raise
        raise AirflowFailException(str(error)) from error
