"""Optional packages that only some stores need."""

from __future__ import annotations

import importlib

from delta_maintenance.errors import InvalidRequestError


def require_package(module: str, *, addresses: str, extra: str) -> None:
    """Checks that the package of a store is installed.

    `InvalidRequestError` if it is not; `extra` is the extra of this distribution that installs it.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        package = module.replace(".", "-").replace("_", "-")
        raise InvalidRequestError(
            f"{addresses} need the package {package}",
            remedy=f"install delta-maintenance[{extra}]",
        ) from error
