"""What has moved between the supported versions of Airflow, 3.1 and newer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException
else:
    try:
        from airflow.sdk.exceptions import AirflowException, AirflowFailException
    except ImportError:
        # Until 3.2 these were no part of the SDK.
        from airflow.exceptions import AirflowException, AirflowFailException

__all__ = ["AirflowException", "AirflowFailException"]
