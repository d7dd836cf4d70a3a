"""Settings of an administrator: who may approve, and what manual runs may request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from delta_maintenance.redaction import redact_address
from delta_maintenance_airflow.compat import AirflowException, AirflowFailException
from delta_maintenance_airflow.settings import any_address, separate_approver

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.policies.definition.policy import Policy

_SHORT_RETENTION = ("allow_short_retention", "no_other_writers")
"""Options by which an operation deletes files younger than the table's own retention."""


def name_of(user: Mapping[str, Any] | None) -> str | None:
    """The name of the person who answered; None if the question timed out."""
    return None if user is None else str(user.get("name") or user.get("id") or "") or None


def require_other_person(context: Context, user: Mapping[str, Any] | None) -> None:
    """Fails this try of the task if the person who approves also triggered the run.

    Only if `[delta_maintenance] separate_approver` is set. Runs that were started by a schedule or
    an asset have no such person.
    """
    if not separate_approver():
        return
    run = context["dag_run"]
    requester = getattr(run, "triggering_user_name", None)
    if requester is None and str(getattr(run, "run_type", "")) != "manual":
        return
    approvers = {str(user[key]) for key in ("id", "name") if user.get(key)} if user else set()
    if requester is None or not approvers or requester in approvers:
        raise AirflowException(
            f"the run was triggered by {requester or 'a person whose name is unknown'}; the "
            "approval must be given by another person, so the question is asked again"
        )


def require_allowed_options(options: Mapping[str, Any], *, short_retention: bool) -> None:
    """Fails the task for options that the Dag does not permit."""
    given = [name for name in _SHORT_RETENTION if options.get(name)]
    if given and not short_retention:
        raise AirflowFailException(
            f"this Dag may not shorten a retention: leave out {' and '.join(given)}, or use the "
            "Dag that `DagIds(short_retention=...)` adds"
        )
    if options.get("inventory") and not any_address():
        raise AirflowFailException(
            "an inventory is outside of the policy: leave it out, or set "
            "[delta_maintenance] any_address in Airflow's configuration"
        )


def require_table_of_policy(policy: Policy, uri: str) -> None:
    """Fails the task for the address of a table that the policy neither names nor finds.

    With `[delta_maintenance] any_address`, all users who may trigger the Dag may use any address.
    """
    if any_address():
        return
    plain = uri.rstrip("/")
    # Patterns match text, so `..` would match as the name of a folder.
    leaves = any(segment in (".", "..") for segment in plain.split("/"))
    named = any(table.uri.rstrip("/") == plain for table in policy.named_tables)
    if leaves or not (named or any(entry.covers(plain) for entry in policy.patterns)):
        raise AirflowFailException(
            f"{redact_address(uri)[:300]} is not a table of the policy: add it there, or set "
            "[delta_maintenance] any_address in Airflow's configuration"
        )
