"""Metadata about a table for the assets in the `outlets` of a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from delta_maintenance.address import Address

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context


def add_to_outlet_events(
    task: BaseOperator, context: Context, table_uri: str, extra: Mapping[str, Any]
) -> None:
    """Adds `extra` to the event of every asset in the task's outlets.

    An alias resolves to an asset for the maintenance of the table. The table's own asset would
    trigger the Dags that wait for new data, possibly including this one.
    """
    for outlet in task.outlets:
        if isinstance(outlet, AssetAlias):
            maintenance = Asset(uri=f"{asset_uri(table_uri)}?maintenance=run")
            context["outlet_events"][outlet].add(maintenance, extra=dict(extra))
        elif isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra = dict(extra)


def asset_uri(address: str) -> str:
    """Returns the address of the table as its producers use it: local paths as `file` URIs."""
    parsed = Address.parse(address)
    return address if parsed.scheme else Path(str(parsed.absolute())).as_uri()
