"""The status of one file in a listing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """One file in a listing."""

    path: str
    """Relative to the store's root, `/`-separated, exactly as stored (never URI-encoded)."""
    size: int
    """Bytes."""
    modified_ms: int
    """Milliseconds since 1970-01-01 UTC."""
