"""The contents of deleted and replaced files that a store still keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class OldVersion:
    """The content of a file before it was deleted or replaced."""

    path: str
    """Relative to the root of the store."""
    version_id: str
    size: int
    """Bytes."""
    ends_ms: int | None
    """When a rule of the store deletes it, in milliseconds since 1970-01-01 UTC; None if no rule is
    known to do so."""
    ends_by: str
    """What deletes it then, or what is missing."""
    problem: str | None = None
    """Why its content cannot be read; None if it can be."""


class OldVersions(Protocol):
    """Access to old versions. All calls raise `StorageError`."""

    def list(self) -> Iterator[OldVersion]:
        """Lists all old versions below the root, in the same order each time. Memory is bounded by
        a page."""

    def read(self, version: OldVersion, first: int, last: int) -> bytes:
        """Reads the bytes from a first to a last position, inclusive."""


SOFT_DELETED = "it is soft-deleted, so that only restoring it makes its content readable"
