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

__getattr__, __dir__ = lazy_names(
    __name__, delta_table__table="DeltaTable", table__read__table="Table open_table"
)
