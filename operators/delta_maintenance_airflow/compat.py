"""Differences between the supported versions of Airflow, 3.1 and newer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow import sdk

if TYPE_CHECKING:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
else:
    try:
        from airflow.sdk.exceptions import (
            AirflowException,
            AirflowFailException,
            AirflowSkipException,
        )
    except ImportError:
        # Until 3.1 these were not part of the SDK.
        from airflow.exceptions import AirflowException, AirflowFailException, AirflowSkipException

try:
    from airflow.sdk.observability.stats import Stats
except ImportError:
    # Until 3.1 these were not part of the SDK.
    from airflow.stats import Stats

__all__ = ["AirflowException", "AirflowFailException", "AirflowSkipException", "Stats"]

HAS_TASK_STATE = hasattr(sdk, "ResumableJobMixin")
"""Whether a try of a task can read the state that an earlier try stored: since 3.3."""


def asset_states(trigger: Any) -> list[Any]:
    """Returns the state stores of a watcher, which outlive the triggerer: one for each asset.

    Two assets with equal watchers share one trigger. There is no such store before 3.3, nor outside
    of an `AssetWatcher`.
    """
    states = getattr(trigger, "asset_state_store", None)
    if states is None:
        return []
    # The accessor itself only works for a single asset.
    by_asset = {**getattr(states, "_by_name", {}), **getattr(states, "_by_uri", {})}
    return list(by_asset.values()) or [states]


def default_deferrable() -> bool:
    """Whether operators that can be deferred are deferred, unless their Dag says otherwise."""
    try:
        from airflow.sdk.configuration import conf
    except ImportError:
        # Until 3.1 the SDK had no configuration of its own.
        from airflow.configuration import conf

    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))


def mask(secret: str) -> None:
    """Masks a secret in everything that this process, or its supervisor, logs from now on."""
    from airflow.sdk.log import mask_secret

    mask_secret(secret)


async def mask_async(secret: str) -> None:
    """Like `mask`, without blocking the event loop."""
    try:
        from airflow.sdk.log import amask_secret
    except ImportError:
        # New in 3.3.
        await asyncio.to_thread(mask, secret)
    else:
        await amask_secret(secret)
