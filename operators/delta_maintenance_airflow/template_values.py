"""Values from templates, which are text unless the Dag renders templates natively."""

from __future__ import annotations

from collections.abc import Sequence


def as_flag(value: bool | str) -> bool:
    """A flag: `true` or `1` in any case is true."""
    return value.strip().lower() in ("true", "1") if isinstance(value, str) else value


def as_number(value: int | str | None) -> int | None:
    """A whole number; None for None."""
    return None if value is None else int(value)


def as_names(value: Sequence[str] | str) -> tuple[str, ...]:
    """A list of names, or a text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(name.strip() for name in parts if name.strip())
