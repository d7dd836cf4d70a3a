"""Maintenance for Delta Lake tables.

Start with `DeltaTable`. Programs use `open_table` and `delta_maintenance.operations`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 11):  # noqa: UP036 - a cluster may have an older one
    raise ImportError(
        "delta-maintenance needs Python 3.11 or newer, and this is Python "
        + ".".join(map(str, sys.version_info[:3]))
        + ": name another with spark.pyspark.python, or send one in an archive"
    )

from delta_maintenance.dependencies import OLDEST, require_versions
from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.delta_table.table import DeltaTable
    from delta_maintenance.table.read.table import Table, open_table

__version__ = "0.2.0.dev0"
require_versions(OLDEST)

__getattr__, __dir__ = lazy_names(
    __name__, delta_table__table="DeltaTable", table__read__table="Table open_table"
)
