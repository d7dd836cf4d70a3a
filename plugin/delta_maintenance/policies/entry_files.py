"""The names of the files that keep the state of tables: one for each address, however spelled."""

from __future__ import annotations

import hashlib
import re

from delta_maintenance.address import place_of
from delta_maintenance.errors import InvalidRequestError

SUFFIX = ".json"


def identity_of(uri: str) -> str:
    """Returns a digest that is equal for all forms of the address of one table."""
    try:
        place: tuple[str, ...] = place_of(uri)
    except InvalidRequestError:
        # Such as an address with credentials, whose failed assessment is stored.
        place = ("", uri)
    return _digest("\0".join(place))


def file_at(uri: str) -> str:
    """Returns the name of the file of the table at an address."""
    identity = identity_of(uri)
    try:
        readable = place_of(uri)[2]
    except InvalidRequestError:
        readable = ""
    return f"{_readable(readable)}.{identity}{SUFFIX}"


def file_named(name: str) -> str:
    """Returns the name of the file of a pattern."""
    return f"{_readable(name)}.{_digest(name)}{SUFFIX}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _readable(text: str) -> str:
    """Converts any text to one that every store accepts and that people can recognise."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[-80:] or "table"
