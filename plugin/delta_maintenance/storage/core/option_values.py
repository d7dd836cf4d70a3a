"""Parsing of storage options for all stores. No message repeats a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from delta_maintenance.errors import InvalidRequestError


def named_values(
    given: Mapping[str, str] | None, meanings: Mapping[str, str], *, store: str
) -> dict[str, str]:
    """The values by meaning. Names in capitals may be written in any case.

    `InvalidRequestError` for a name without a meaning, and for two names of one that disagree.
    """
    values: dict[str, str] = {}
    for name, value in (given or {}).items():
        meaning = meanings.get(name) or meanings.get(name.upper())
        if meaning is None:
            raise InvalidRequestError(
                f"{store} has no storage option {name!r}",
                remedy=f"use one of {', '.join(sorted(meanings))}",
            )
        if values.setdefault(meaning, value) != value:
            raise InvalidRequestError(
                f"the storage option {name!r} contradicts another name of the same option",
                remedy="give it once",
            )
    return values


def flag(value: str | None, name: str) -> bool | None:
    """Reads true or false; None if nothing is given."""
    if value is None:
        return None
    if value.lower() in ("true", "1"):
        return True
    if value.lower() in ("false", "0"):
        return False
    raise InvalidRequestError(
        f"the storage option {name} is neither true nor false", remedy="write true or false"
    )


def redacted(text: str, secrets: Iterable[str | None]) -> str:
    """The text without any of the secrets."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text


def check_endpoint(url: str, name: str) -> str:
    """Returns the scheme of an endpoint of the form `https://HOST:PORT`, path allowed."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
        sound = sound and not parts.query and not parts.fragment
    except ValueError:
        sound = False
    if not sound:
        # Not repeated: it may hold a password.
        raise InvalidRequestError(
            "the endpoint is not an address like https://HOST:PORT",
            remedy=f"correct {name}; credentials go into options of their own",
        )
    return parts.scheme
