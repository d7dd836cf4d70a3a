"""Money for rows of the ledger, by the price list of a policy."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.policies.definition.prices import Prices

PRICED = (
    "requests_write",
    "requests_list",
    "requests_read",
    "requests_other",
    "requests_delete",
    "bytes_read",
    "cpu_seconds",
    "spark_task_seconds",
)
"""The columns that have a price."""
_GB, _HOUR = 1 << 30, 3600


def costs_of(rows: pa.Table, prices: Prices) -> pa.ChunkedArray:
    """Returns what each row cost. Values that nobody has counted cost nothing."""
    total: pa.ChunkedArray = pa.chunked_array([pa.nulls(len(rows), pa.float64()).fill_null(0.0)])
    for name, price in _unit_prices(prices).items():
        units = pc.fill_null(rows[name].cast(pa.float64()), 0.0)
        total = pc.add(total, pc.multiply(units, price))
    return total


def saved_a_month(freed_bytes: int, prices: Prices) -> float | None:
    """Returns what bytes that are no longer stored would cost a month; None without a price."""
    lowest = min(prices.gb_month.values(), default=None)
    return None if lowest is None else freed_bytes / _GB * lowest


def _unit_prices(prices: Prices) -> Mapping[str, float]:
    requests = {
        f"requests_{name}": price / 1000 for name, price in prices.requests.to_json().items()
    }
    return {
        **requests,
        "bytes_read": prices.gb_out / _GB,
        "cpu_seconds": prices.cpu_hour / _HOUR,
        "spark_task_seconds": prices.spark_core_hour / _HOUR,
    }
