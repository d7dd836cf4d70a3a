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
    """Returns an asset for each store in which the policy names tables, and for each catalog from
    which it takes tables; none without a policy.

    One watcher per asset watches all of these tables. This function runs while Dags are parsed: it
    opens no table, resolves no pattern, and lists no catalog. `interval` is in seconds; the default
    is `[delta_maintenance] poll_interval` in the configuration.
    """
    # Imported here, because only Dags with watchers need it.
    from delta_maintenance.policies.definition.policy import load_policy

    path = policy or policy_path()
    if path is None:
        return []
    path = os.path.abspath(path)
    seconds = interval if interval is not None else poll_interval()
    document = load_policy(path)
    places: list[dict[str, Any]] = [
        *({"store": store} for store in sorted({store_root(t.uri) for t in document.named_tables})),
        *({"catalog": key} for key, entries in document.names.items() if entries),
    ]
    return [_asset(path, place, seconds, min_commits) for place in places]


def changed_tables(events: Mapping[Any, Sequence[Any]], policy: str | None = None) -> list[Any]:
    """Returns the tables that triggered a run, for `DeltaPolicyRunOperator`.

    Each has a name, an address, and the problem if the watcher cannot poll the table. `events` are
    the run's triggering asset events.
    """
    from delta_maintenance.policies.definition.policy import load_policy

    path = policy or policy_path()
    payloads = [
        one
        for events_of_asset in events.values()
        for event in events_of_asset
        for one in _tables(event)
    ]
    payloads_by_uri: dict[str, dict[str, Any]] = {}
    for payload in payloads:
        uri = payload["table"]
        problem = payload.get("message") if payload.get("status") == "error" else None
        payloads_by_uri[uri] = {"name": uri, "uri": payload.get("uri", uri), "problem": problem}
    if path is None or path in payloads_by_uri:
        # An unreadable policy is one of the reported problems.
        return list(payloads_by_uri.values())
    names = {table.uri: table.name for table in load_policy(path).named_tables}
    return [{**one, "name": names.get(uri, uri)} for uri, one in payloads_by_uri.items()]


def _tables(event: Any) -> list[dict[str, Any]]:
    payload = (event.extra or {}).get("payload") or {}
    # `DeltaCommitEventTrigger` reports one table, `DeltaPolicyCommitTrigger` many.
    payloads = payload.get("tables", [payload])
    return [one for one in payloads if one.get("table")]


def _asset(policy: str, place: dict[str, Any], interval: float, min_commits: int) -> Asset:
    where = place.get("store") or f"catalogs.{place['catalog']}"
    return Asset(
        name=f"commits in {where} ({policy})",
        # The prefix `x-` keeps Airflow from parsing the rest as a kind of address that it knows.
        uri=f"x-delta-commits:{where}?policy={policy}",
        group="delta",
        watchers=[
            AssetWatcher(
                name="commits",
                trigger=DeltaPolicyCommitTrigger(
                    policy=policy, poll_interval=interval, min_commits=min_commits, **place
                ),
            )
        ],
    )
