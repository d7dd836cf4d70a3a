"""Measures the health of a table from its snapshot and the listing of its log."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.health.models import TableHealth

if TYPE_CHECKING:
    from delta_maintenance.operations.health.operation import (
        MAX_COMMITS,
        SMALL_FILE_BYTES,
        last_vacuum,
        measure,
    )

__getattr__, __dir__ = lazy_names(
    __name__, operation="MAX_COMMITS SMALL_FILE_BYTES last_vacuum measure"
)
