"""The tables of a policy as assets, with watchers for new commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetWatcher

from delta_maintenance_airflow.outlets import asset_uri
from delta_maintenance_airflow.settings import policy_path, poll_interval
from delta_maintenance_airflow.triggers.commit_event import DeltaCommitEventTrigger

if TYPE_CHECKING:
    from delta_maintenance.policies.definition.policy import PolicyTable


def watched_assets(
    policy: str | None = None, *, interval: float | None = None, min_commits: int = 1
) -> list[Asset]:
    """An asset for each table that the policy names with its address; none without a policy.

    For the parsing of Dags: no table is opened, and no pattern looked for. Tables that patterns
    find are the scheduled Dag's. `interval` is in seconds, by default the configuration's
    `[delta_maintenance] poll_interval`.
    """
    # Only a Dag that watches waits for this.
    from delta_maintenance.policies.definition.policy import load_policy

    path = policy or policy_path()
    if path is None:
        return []
    seconds = interval if interval is not None else poll_interval()
    tables = load_policy(path).named_tables
    return [_asset(table, path, seconds, min_commits) for table in tables]


def changed_tables(events: Mapping[Any, Sequence[Any]], policy: str | None = None) -> list[Any]:
    """The tables that a run was woken for, for `DeltaPolicyRunOperator`: name, address, and the
    problem where the watcher cannot look at one. `events` are the run's triggering asset events.
    """
    from delta_maintenance.policies.definition.policy import load_policy

    path = policy or policy_path()
    names = {table.uri: table.name for table in load_policy(path).named_tables} if path else {}
    found: dict[str, dict[str, Any]] = {}
    for told in events.values():
        for event in told:
            payload = (event.extra or {}).get("payload") or {}
            uri = payload.get("table")
            if uri is None:
                continue
            problem = payload.get("message") if payload.get("status") == "error" else None
            found[uri] = {"name": names.get(uri, uri), "uri": uri, "problem": problem}
    return list(found.values())


def _asset(table: PolicyTable, policy: str, interval: float, min_commits: int) -> Asset:
    storage = table.rules.storage
    # What stands beside a connection is for the triggerer to look up. A connection alone says all,
    # and needs no policy there.
    way = {"policy": policy} if storage.options else {"delta_conn_id": storage.connection}
    return Asset(
        name=table.name,
        uri=asset_uri(table.uri),
        group="delta",
        watchers=[
            AssetWatcher(
                name="commits",
                trigger=DeltaCommitEventTrigger(
                    table_uri=table.uri,
                    poll_interval=interval,
                    min_commits=min_commits,
                    **way,
                ),
            )
        ],
    )
