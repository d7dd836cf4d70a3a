"""Parsing of storage options for all stores, whose messages never contain values, and the optional
packages of stores.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping

from delta_maintenance.errors import InvalidRequestError, closest
from delta_maintenance.rest.client import endpoint_scheme


def named_values(
    given: Mapping[str, str] | None, meanings: Mapping[str, str], *, store: str
) -> dict[str, str]:
    """Returns the values by meaning. Upper-case names may be written in any case.

    `InvalidRequestError` for an unknown name, and for two names of the same option with different
    values.
    """
    values: dict[str, str] = {}
    for name, value in (given or {}).items():
        meaning = meanings.get(name) or meanings.get(name.upper())
        if meaning is None:
            meant = closest(name, meanings)
            raise InvalidRequestError(
                f"{store} has no storage option {name!r}",
                remedy=f"did you mean {meant}?"
                if meant is not None
                else f"use one of {', '.join(sorted(meanings))}",
            )
        if values.setdefault(meaning, value) != value:
            raise InvalidRequestError(
                f"the storage option {name!r} contradicts another name of the same option",
                remedy="give it once",
            )
    return values


def hide_secrets(text: str, secrets: Iterable[str | None]) -> str:
    """Returns the text without any of the secrets."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text


def check_endpoint(url: str, name: str) -> str:
    """Returns the scheme of an endpoint of the form `https://HOST:PORT`, with an optional path."""
    scheme = endpoint_scheme(url)
    if scheme is None:
        # The value is not repeated, because it may contain a password.
        raise InvalidRequestError(
            "the endpoint is not an address like https://HOST:PORT",
            remedy=f"correct {name}; pass credentials in separate options",
        )
    return scheme


def require_package(module: str, *, addresses: str, extra: str) -> None:
    """Checks that the package of a store is installed.

    `InvalidRequestError` if it is not; `extra` is the extra of this distribution that installs it.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        package = module.replace(".", "-").replace("_", "-")
        raise InvalidRequestError(
            f"{addresses} need the package {package}", remedy=f"install delta-maintenance[{extra}]"
        ) from error
