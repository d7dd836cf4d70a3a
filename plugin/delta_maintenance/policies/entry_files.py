"""The names of the files that keep the state of tables: one for each address, however spelled."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from urllib.parse import quote

from delta_maintenance.address import (
    AZURE_SCHEMES,
    GCS_SCHEMES,
    HDFS_SCHEMES,
    S3_SCHEMES,
    Address,
    place_of,
)
from delta_maintenance.errors import InvalidRequestError

SUFFIX = ".json"
_SCHEMES = (S3_SCHEMES, GCS_SCHEMES, AZURE_SCHEMES, HDFS_SCHEMES)


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
    """Returns the name of the file of a pattern. Earlier versions named all files this way, after
    the name of the table in its policy.
    """
    return f"{_readable(name)}.{_digest(name)}{SUFFIX}"


def earlier_files(uri: str, name: str | None) -> dict[str, None]:
    """Returns the names of the files in which earlier versions may have kept a table."""
    return dict.fromkeys(file_named(each) for each in (name, *_spellings(uri)) if each)


def _spellings(uri: str) -> Iterator[str]:
    """Yields the forms of an address that were in use as the name of a table."""
    yield uri
    try:
        address = Address.parse(uri).absolute()
        store, authority, path = place_of(uri)
    except InvalidRequestError:
        return
    if address.is_local:
        forms = [f"/{path}", f"file:///{quote(path)}", f"file:/{quote(path)}", f"file:///{path}"]
    else:
        schemes = next((each for each in _SCHEMES if address.scheme in each), (address.scheme,))
        forms = [f"{scheme}://{authority}/{path}" for scheme in schemes]
    for form in forms:
        yield form
        yield f"{form}/"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _readable(text: str) -> str:
    """Converts any text to one that every store accepts and that people can recognise."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[-80:] or "table"
