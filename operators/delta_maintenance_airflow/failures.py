"""Errors that Airflow should retry, and errors that it should not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance_airflow.compat import AirflowFailException


@contextmanager
def retrying_only_what_may_pass() -> Iterator[None]:
    """Ends the task with `AirflowFailException` where no retry helps: none corrects an address or
    repairs a log. All other errors pass through, for Airflow to retry as the task says.
    """
    try:
        yield
    except DeltaMaintenanceError as error:
        # The bare base class stands for a failure within Spark, which says nothing of the next try.
        if error.retryable or type(error) is DeltaMaintenanceError:
            raise
        raise AirflowFailException(str(error)) from error
