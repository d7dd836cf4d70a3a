"""Maintenance for Delta Lake tables.

Start with `DeltaTable`. Programs use `open_table` and `delta_maintenance.operations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.delta_table.table import DeltaTable
    from delta_maintenance.table.read.table import Table, open_table

__version__ = "0.2.0.dev0"
__all__ = ["DeltaTable", "Table", "__version__", "open_table"]

__getattr__ = lazy_names(
    __name__,
    {
        "DeltaTable": "delta_table.table",
        "Table": "table.read.table",
        "open_table": "table.read.table",
    },
)


def __dir__() -> list[str]:
    return list(__all__)
