"""The names of kept versions."""

from __future__ import annotations

import re

from delta_maintenance.errors import InvalidRequestError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


def checked_name(name: str) -> str:
    """Returns the name. Raises `InvalidRequestError` if it cannot be that of a kept version."""
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{name!r} is not the name of a kept version",
            remedy="use at most 64 letters, digits, dots, underscores and hyphens, and begin with "
            "a letter",
        )
    return name
