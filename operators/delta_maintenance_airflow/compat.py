"""Differences between the supported versions of Airflow, 3.1 and newer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow import sdk

if TYPE_CHECKING:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowSkipException,
    )
else:
    try:
        from airflow.sdk.exceptions import (
            AirflowException,
            AirflowFailException,
            AirflowSkipException,
        )
    except ImportError:
        # Until 3.2 these were no part of the SDK.
        from airflow.exceptions import (
            AirflowException,
            AirflowFailException,
            AirflowSkipException,
        )

__all__ = [
    "HAS_TASK_STATE",
    "AirflowException",
    "AirflowFailException",
    "AirflowSkipException",
    "asset_states",
    "default_deferrable",
    "mask",
    "mask_async",
]

HAS_TASK_STATE = hasattr(sdk, "ResumableJobMixin")
"""Whether a try of a task finds what an earlier one has noted: since 3.3."""


def asset_states(trigger: Any) -> list[Any]:
    """Where a watcher can keep what must outlive the triggerer: one store for each of its assets.

    Two assets with the very same watcher share one trigger. Before 3.3 there is no such store, and
    there is none outside of an `AssetWatcher`.
    """
    states = getattr(trigger, "asset_state_store", None)
    if states is None:
        return []
    # The accessors themselves are only for a single asset.
    by_asset = {**getattr(states, "_by_name", {}), **getattr(states, "_by_uri", {})}
    return list(by_asset.values()) or [states]


def default_deferrable() -> bool:
    """Whether operators that can be deferred shall be, unless their Dag says otherwise."""
    try:
        from airflow.sdk.configuration import conf
    except ImportError:
        # Until 3.2 the SDK had no configuration of its own.
        from airflow.configuration import conf

    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))


def mask(secret: str) -> None:
    """Has a secret replaced in whatever this process, or the one that runs it, logs from now on."""
    from airflow.sdk.log import mask_secret

    mask_secret(secret)


async def mask_async(secret: str) -> None:
    """The same, within an event loop that must not wait."""
    try:
        from airflow.sdk.log import amask_secret
    except ImportError:
        # It came with 3.3.
        await asyncio.to_thread(mask, secret)
    else:
        await amask_secret(secret)
