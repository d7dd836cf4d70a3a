"""Storage options as arguments of fsspec's file systems."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.redaction import LINK


def as_arguments(address: Address, given: Mapping[str, str]) -> dict[str, Any]:
    """Converts storage options to arguments of fsspec.

    An option is an argument of the first file system of the address; `SCHEME.NAME` is an argument
    of the file system SCHEME in a chain. `true`, `false`, JSON lists and JSON objects are
    converted, and so are digits, except in options that identify the user, such as a password.
    """
    schemes = [scheme_of(link) for link in re.split(LINK, _text(address))]
    # A shared instance would keep the credentials in a process-wide cache.
    arguments: dict[str, Any] = {"skip_instance_cache": True}
    for scheme in schemes[1:]:
        arguments[scheme] = {"skip_instance_cache": True}
    if schemes[0] in ("http", "https"):
        arguments["encoded"] = True
    for name, value in given.items():
        scheme, dot, rest = name.partition(".")
        if dot and scheme in schemes[1:]:
            arguments[scheme][rest] = _value(rest, value)
        elif dot and scheme == schemes[0]:
            arguments[rest] = _value(rest, value)
        elif dot or name in _OURS:
            raise InvalidRequestError(
                f"there is no storage option {name!r} for this address",
                remedy=f"write NAME, or SCHEME.NAME with one of {', '.join(schemes)}",
            )
        else:
            arguments[name] = _value(name, value)
    return arguments


def secrets_of(given: Mapping[str, str]) -> list[str]:
    """Returns the values that must not appear in messages, the longest first."""
    shown = {value for name, value in given.items() if value.lower() in ("true", "false")}
    return sorted((value for value in given.values() if value not in shown), key=len, reverse=True)


def scheme_of(link: str) -> str:
    """The scheme of one link of a chained address."""
    if "://" not in link:
        return "file" if link.startswith("/") else link.partition(":")[0]
    return link.partition("://")[0].lower()


def _text(address: Address) -> str:
    return f"{address.before}{address.path}{address.behind}"


def _value(name: str, value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.startswith(("{", "[")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    digits = value.isascii() and value.isdecimal()
    return int(value) if digits and not _IDENTITY.search(name) else value


_IDENTITY = re.compile(r"user|name|pass|secret|token|key|account|credential", re.IGNORECASE)
_OURS = frozenset(("skip_instance_cache", "use_listings_cache", "protocol", "fo"))
