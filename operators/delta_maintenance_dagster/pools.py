"""The concurrency pools of tables: one run on a table at a time."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg


def limit_to_one(instance: dg.DagsterInstance, pools: Iterable[str]) -> None:
    """Gives pools that have no limit yet a limit of one; those that somebody set stay.

    A pool without a limit limits nothing. Courtesy all the same: what keeps tables whole is that
    every operation stands being run twice at a time.
    """
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return
    limited = {limit.name for limit in storage.get_pool_limits() if not limit.from_default}
    for pool in pools:
        if pool not in limited:
            storage.set_concurrency_slots(pool, 1)
