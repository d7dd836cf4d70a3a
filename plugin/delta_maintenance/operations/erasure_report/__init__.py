"""Reports where rows still exist, in files of the table and in those that nothing needs."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.erasure_report.options import (
    ErasureReportOptions,
    ErasureReportPlan,
    ErasureReportResult,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.erasure_report.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
