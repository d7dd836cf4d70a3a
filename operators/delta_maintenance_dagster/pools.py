"""The concurrency pools of tables: one run on a table at a time."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg


def limit_to_one(instance: dg.DagsterInstance, pools: Iterable[str]) -> None:
    """Sets a limit of one for pools without a limit; existing limits are kept.

    A pool without a limit has no effect. Pools only save work: tables are safe without them,
    because every operation tolerates concurrent runs.
    """
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return
    limited = {limit.name for limit in storage.get_pool_limits() if not limit.from_default}
    for pool in pools:
        if pool not in limited:
            storage.set_concurrency_slots(pool, 1)
