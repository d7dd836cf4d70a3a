"""What the methods of a table need to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delta_maintenance.table.read.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionParts:
    """What operations need to know of their table."""

    table: Table
    storage_options: Mapping[str, str]
    spark: Any
    """A session or None."""
    ledger: str | None
    """The address of the ledger."""
    name: str
    """The name of the table in its catalog, or its address."""
