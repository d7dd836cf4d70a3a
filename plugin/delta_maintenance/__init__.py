"""Maintenance for Delta Lake tables.

Start with `open_table`; the operations are in `delta_maintenance.operations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.table.read.table import Table, open_table

__version__ = "0.2.0.dev0"
__all__ = ["Table", "__version__", "open_table"]

__getattr__ = lazy_names(__name__, {"Table": "table.read.table", "open_table": "table.read.table"})
