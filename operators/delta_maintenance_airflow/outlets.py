"""Metadata about a table for the assets in the `outlets` of a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from delta_maintenance.address import Address

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context


def tell_outlets(
    task: BaseOperator, context: Context, table_uri: str, extra: Mapping[str, Any]
) -> None:
    """Gives `extra` to the event of every asset in the task's outlets.

    An alias comes to stand for the table's maintenance, an asset of its own: the table's own would
    wake whoever waits for data, this task's Dag among them.
    """
    for outlet in task.outlets:
        if isinstance(outlet, AssetAlias):
            maintenance = Asset(uri=f"{asset_uri(table_uri)}?maintenance=run")
            context["outlet_events"][outlet].add(maintenance, extra=dict(extra))
        elif isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra = dict(extra)


def asset_uri(address: str) -> str:
    """The table as its producers name it: a path of this machine as a `file` URI."""
    parsed = Address.parse(address)
    return address if parsed.scheme else Path(str(parsed.absolute())).as_uri()
