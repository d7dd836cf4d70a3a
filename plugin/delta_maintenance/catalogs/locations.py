"""The locations of tables, as catalogs state them."""

from __future__ import annotations

import os

from delta_maintenance.address import Address
from delta_maintenance.catalogs.names import CatalogName
from delta_maintenance.errors import CatalogError, InvalidRequestError


def checked_location(name: CatalogName, location: str) -> Address:
    """Parses the location of a table.

    `CatalogError` for one that is no address, that depends on the current directory of this
    process, or that chains file systems of fsspec.
    """
    try:
        address = Address.parse(location)
    except InvalidRequestError as error:
        problem = error.problem
    else:
        if address.is_chained:
            problem = "the address chains file systems"
        elif address.is_local and not os.path.isabs(address.path):
            problem = "the path is relative"
        else:
            return address
    # Raised outside the handler, so that the error has no `__context__`.
    raise CatalogError(
        f"the catalog states an unusable location of {name}: {problem}",
        remedy="correct its entry in the catalog",
    )
