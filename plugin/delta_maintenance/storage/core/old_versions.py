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
    replaced_ms: int
    """When it was deleted or replaced, in milliseconds since 1970-01-01 UTC."""
    ends_ms: int | None
    """When a rule of the store deletes it, likewise; None if no rule does."""


class OldVersions(Protocol):
    """Access to old versions. All calls raise `StorageError`."""

    def list(self) -> Iterator[OldVersion]:
        """Lists all old versions below the root, ordered by path."""

    def read(self, version: OldVersion, first: int, last: int) -> bytes:
        """Reads the bytes from a first to a last position, inclusive."""
