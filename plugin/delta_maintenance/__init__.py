"""Maintenance for Delta Lake tables.

`open_table` is the way in; the operations are in `delta_maintenance.operations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delta_maintenance.table.table import Table, open_table

__version__ = "0.1.0"
__all__ = ["Table", "__version__", "open_table"]


def __getattr__(name: str) -> Any:
    # Loading pyarrow takes a moment, which an orchestrator that parses its DAGs must not pay.
    if name in ("Table", "open_table"):
        from delta_maintenance.table import table

        return getattr(table, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
