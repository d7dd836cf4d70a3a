"""What the requests of all platforms have in common."""

from __future__ import annotations

from typing import Any


def given(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that have a value."""
    return {name: value for name, value in fields.items() if value}
