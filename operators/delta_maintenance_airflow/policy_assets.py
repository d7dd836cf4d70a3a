"""The tables of a policy as assets, with watchers for new commits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Asset, AssetWatcher

from delta_maintenance_airflow.settings import policy_path, poll_interval
from delta_maintenance_airflow.triggers.policy_commits import DeltaPolicyCommitTrigger
from delta_maintenance_airflow.triggers.polling import store_root


def watched_assets(
    policy: str | None = None, *, interval: float | None = None, min_commits: int = 1
) -> list[Asset]:
    """Returns an asset for each store in which the policy names tables; none without a policy.

    One watcher per asset watches all of these tables. This function runs while Dags are parsed: it
    opens no table, and resolves no pattern. `interval` is in seconds; the default is
    `[delta_maintenance] poll_interval` in the configuration.
    """
    # Imported here, because only Dags with watchers need it.
    from delta_maintenance.policies.definition.policy import load_policy

    path = policy or policy_path()
    if path is None:
        return []
    path = os.path.abspath(path)
    seconds = interval if interval is not None else poll_interval()
    stores = sorted({store_root(table.uri) for table in load_policy(path).named_tables})
    return [_asset(path, store, seconds, min_commits) for store in stores]


def changed_tables(events: Mapping[Any, Sequence[Any]], policy: str | None = None) -> list[Any]:
    """Returns the tables that triggered a run, for `DeltaPolicyRunOperator`.

    Each has a name, an address, and the problem if the watcher cannot poll the table. `events` are
    the run's triggering asset events.
    """
    from delta_maintenance.policies.definition.policy import load_policy

    path = policy or policy_path()
    payloads = [one for some in events.values() for event in some for one in _tables(event)]
    found: dict[str, dict[str, Any]] = {}
    for payload in payloads:
        uri = payload["table"]
        problem = payload.get("message") if payload.get("status") == "error" else None
        found[uri] = {"name": uri, "uri": uri, "problem": problem}
    if path is None or path in found:
        # An unreadable policy is one of the reported problems.
        return list(found.values())
    names = {table.uri: table.name for table in load_policy(path).named_tables}
    return [{**one, "name": names.get(uri, uri)} for uri, one in found.items()]


def _tables(event: Any) -> list[dict[str, Any]]:
    payload = (event.extra or {}).get("payload") or {}
    # `DeltaCommitEventTrigger` reports one table, `DeltaPolicyCommitTrigger` many.
    payloads = payload.get("tables", [payload])
    return [one for one in payloads if one.get("table")]


def _asset(policy: str, store: str, interval: float, min_commits: int) -> Asset:
    return Asset(
        name=f"commits in {store} ({policy})",
        # The prefix `x-` keeps Airflow from parsing the rest as a kind of address that it knows.
        uri=f"x-delta-commits:{store}?policy={policy}",
        group="delta",
        watchers=[
            AssetWatcher(
                name="commits",
                trigger=DeltaPolicyCommitTrigger(
                    policy=policy, store=store, poll_interval=interval, min_commits=min_commits
                ),
            )
        ],
    )
