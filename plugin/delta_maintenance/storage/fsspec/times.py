"""Modification times in the various forms that the file systems of fsspec report."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from delta_maintenance import clock


def modified_ms(info: Mapping[str, Any]) -> int | None:
    """Returns milliseconds since 1970-01-01 UTC; None if the file system reports no time.

    The creation time is not used, because a file that was replaced may keep it.
    """
    for name in _NAMES:
        value = info.get(name)
        if value is not None:
            return _millis(value)
    return None


def _millis(value: Any) -> int | None:
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, tuple | list) and len(value) >= 6:
        # Archives store no time zone.
        year, month, day, hour, minute, second = (int(part) for part in value[:6])
        value = datetime(year, month, day, hour, minute, second)
    if isinstance(value, datetime):
        return clock.epoch_millis(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, int | float):
        # A value below 1e11 is in seconds (up to the year 5138), otherwise in milliseconds.
        return int(value * 1000) if value < 1e11 else int(value)
    return None


def _parsed(text: str) -> datetime | None:
    for parse in (_compact, datetime.fromisoformat, parsedate_to_datetime):
        try:
            return parse(text)
        except ValueError:
            continue
    return None


def _compact(text: str) -> datetime:
    """Parses the format of FTP."""
    return datetime.strptime(text, "%Y%m%d%H%M%S")


_NAMES = (
    "mtime",
    "modified",
    "last_modified",
    "LastModified",
    "Last-Modified",
    "updated",
    "modificationTime",
    "modify",
    "date_time",
)
"""The names that file systems use for the modification time."""
