"""Writes version checksums, so that readers can skip the log for protocol, metadata and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.checksum.operation import apply, plan
    from delta_maintenance.operations.checksum.options import (
        ChecksumOptions,
        ChecksumPlan,
        ChecksumResult,
        VersionOutcome,
    )

__all__ = [
    "ChecksumOptions",
    "ChecksumPlan",
    "ChecksumResult",
    "VersionOutcome",
    "apply",
    "plan",
]

__getattr__ = lazy_names(
    __name__,
    {
        "ChecksumOptions": "options",
        "ChecksumPlan": "options",
        "ChecksumResult": "options",
        "VersionOutcome": "options",
        "apply": "operation",
        "plan": "operation",
    },
)
