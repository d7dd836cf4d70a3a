"""The section `delta_maintenance` of Airflow's configuration.

Options are read when they are needed, never while a module is imported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_maintenance.policies.assessments import AssessmentStore
    from delta_maintenance.policies.leases import Leases

SECTION = "delta_maintenance"
_LONGEST_TOKEN = 4096


def policy_path() -> str | None:
    """Returns the file with the policy; None if the configuration names none."""
    return _option("policy")


def assessment_store() -> AssessmentStore:
    """Opens the store of assessments: the option `assessments`, accessed by
    `assessments_conn_id`.
    """
    # Imported here because both load PyArrow, which would slow down Dag parsing.
    from delta_maintenance.policies.assessments import AssessmentStore
    from delta_maintenance_airflow.hooks.delta import DeltaHook

    uri = _option("assessments") or _default_folder()
    return AssessmentStore(uri, DeltaHook(_option("assessments_conn_id")).options_for(uri))


def leases(store: AssessmentStore) -> Leases:
    """Returns the leases of tables, in the folder of the assessments, which all tasks can reach."""
    from delta_maintenance.policies.leases import Leases

    return Leases(store.store)


def report_folder() -> str | None:
    """Returns the folder for the reports of Spark jobs whose task names none; None without a
    default.
    """
    return _option("report_folder")


def spark_pool_slots() -> int | None:
    """Returns the number of slots of the pool of Spark jobs; None if no such pool is configured."""
    value = _option("spark_pool_slots")
    return int(value) if value is not None else None


def notify_conn_id() -> str | None:
    """Returns the connection to whose address summaries are posted; None to post nothing."""
    return _option("notify_conn_id")


def separate_approver() -> bool:
    """Whether the person who triggers a run may not approve its plans."""
    return _flag("separate_approver")


def any_address() -> bool:
    """Whether manual runs may use tables that are not in the policy."""
    return _flag("any_address")


def has_metrics() -> bool:
    """Whether the health page has the endpoint for metrics."""
    return _flag("metrics") or bool(_option("metrics_token") or _option("metrics_token_file"))


def metrics_token() -> str | None:
    """Returns the token with which metrics are read without signing in; None if there is none.

    `InvalidRequestError` if its file cannot be read. The file is read each time, so that a token
    can be replaced.
    """
    path = _option("metrics_token_file")
    if path is None:
        return _option("metrics_token")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_LONGEST_TOKEN).strip() or None
    except (OSError, ValueError) as error:
        from delta_maintenance.errors import InvalidRequestError

        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidRequestError(
            f"the token for metrics cannot be read: {problem}",
            file=path,
            remedy=f"correct [{SECTION}] metrics_token_file, or let the API server read the file",
        ) from None


def documentation() -> str | None:
    """Returns the address of the documentation site, without a slash at its end; None if the
    configuration names none.
    """
    address = _option("documentation") or ""
    return address.rstrip("/") if address.startswith(("https://", "http://", "/")) else None


def poll_interval() -> float:
    """Returns the number of seconds between two polls of a watched table."""
    return float(_option("poll_interval") or 30)


def max_map_length() -> int:
    """Returns the maximum number of values over which Airflow maps a task."""
    from airflow.configuration import conf

    return int(conf.getint("core", "max_map_length", fallback=1024))


def _flag(name: str) -> bool:
    from airflow.configuration import conf

    return bool(conf.getboolean(SECTION, name, fallback=False))


def _option(name: str) -> str | None:
    from airflow.configuration import conf

    value = conf.get(SECTION, name, fallback=None)
    return value.strip() or None if value is not None else None


def _default_folder() -> str:
    from airflow.configuration import AIRFLOW_HOME

    return os.path.join(AIRFLOW_HOME, "delta_maintenance", "assessments")
