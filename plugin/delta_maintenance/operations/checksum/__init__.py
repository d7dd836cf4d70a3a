"""Writes version checksums, so that readers can skip the log for protocol, metadata and counts."""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.checksum.options import (
    ChecksumOptions,
    ChecksumPlan,
    ChecksumResult,
    VersionOutcome,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.checksum.operation import apply, plan

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
