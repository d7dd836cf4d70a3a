"""The section `delta_maintenance` of Airflow's configuration.

Read when something is done with it, never while a module is imported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_maintenance.policies.assessments import AssessmentStore
    from delta_maintenance.policies.leases import Leases

SECTION = "delta_maintenance"


def policy_path() -> str | None:
    """The file with the policy; None where the configuration names none."""
    return _option("policy")


def assessment_store() -> AssessmentStore:
    """Where the last assessments are kept: `assessments`, reached by `assessments_conn_id`."""
    # Both load pyarrow, which the parsing of Dags must not wait for.
    from delta_maintenance.policies.assessments import AssessmentStore
    from delta_maintenance_airflow.hooks.delta import DeltaHook

    uri = _option("assessments") or _default_folder()
    return AssessmentStore(uri, DeltaHook(_option("assessments_conn_id")).options_for(uri))


def leases(store: AssessmentStore) -> Leases:
    """Who is at work on which table: beside the assessments, where all tasks look."""
    from delta_maintenance.policies.leases import Leases

    return Leases(store.store)


def notify_conn_id() -> str | None:
    """The connection whose address summaries are posted to; None for nobody."""
    return _option("notify_conn_id")


def separate_approver() -> bool:
    """Whether the person who triggers a run may not approve its plans."""
    return _flag("separate_approver")


def any_address() -> bool:
    """Whether tables outside of the policy may be maintained by hand."""
    return _flag("any_address")


def poll_interval() -> float:
    """Seconds from one look at a watched table to the next."""
    return float(_option("poll_interval") or 30)


def max_map_length() -> int:
    """Over how many values Airflow maps a task, at most."""
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
