"""The gate of every verb that writes to a table."""

from __future__ import annotations

from collections.abc import Collection

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.features.registry import (
    Operation,
    require_supported,
    without_features,
)
from delta_maintenance.table.read.snapshot import Snapshot

EXAMINE = "run fsck, and follow the remedy of each finding"
"""The remedy for a table with a contradiction."""


def require_writable(
    snapshot: Snapshot, operation: Operation, *, drops: Collection[str] = (), repairs: bool = False
) -> None:
    """Raises unless this release may do `operation` on top of the snapshot. Reads nothing.

    `drops` are features that the operation removes from the protocol. With `repairs`, the state may
    contradict itself, because the operation only replaces damaged files.

    `UnsupportedFeatureError` for an unsupported protocol, `CorruptTableError` for a state without
    files that `fsck` reports as corruption: other readers refuse it or interpret it differently.
    """
    protocol = without_features(snapshot.protocol, drops)
    require_supported(protocol, operation, table=snapshot.table, version=snapshot.version)
    if not repairs:
        require_consistent(snapshot)


def require_consistent(snapshot: Snapshot) -> None:
    """Raises `CorruptTableError` if the state without files contradicts itself."""
    if (problem := snapshot.contradiction) is not None:
        raise CorruptTableError(
            problem, table=snapshot.table, version=snapshot.version, remedy=EXAMINE
        )
