"""From the name of a table to its address and its storage options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from delta_maintenance.catalogs.environment import is_catalog_option, settings_of
from delta_maintenance.catalogs.models import Access, CatalogTable
from delta_maintenance.catalogs.names import CatalogName, is_catalog_name
from delta_maintenance.catalogs.open import open_catalog
from delta_maintenance.catalogs.reference import ACCESS, reference_options, with_access
from delta_maintenance.table_names import remember_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The address of a table, and the options of its store."""

    address: str
    storage_options: dict[str, str] = field(repr=False)
    """Without vended credentials: they refer to the catalog instead (`reference`)."""
    table: CatalogTable | None = None
    """The table in its catalog; None for a table that was given by its address."""


def locate(
    text: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    access: Access | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Located:
    """Finds a table by its name in a catalog. An address stays as it is.

    `access` says which credentials are wanted; by default those for reading, until something is
    written. `settings_of` documents the options of the catalog. Raises `CatalogError` if the
    catalog does not have the table.
    """
    given = dict(storage_options or {})
    if not is_catalog_name(text):
        # Of a table that a policy found, the options may refer to the catalog.
        options = given if access is None else with_access(given, access)
        return Located(address=text, storage_options=options)
    name = CatalogName.parse(text)
    settings = settings_of(name.kind, given, environment)
    with open_catalog(settings) as catalog:
        table = catalog.resolve(name)
    remember_name(table.location, str(table.name))
    own = {option: value for option, value in given.items() if not is_catalog_option(option)}
    refers = reference_options(table, settings, access=access)
    if refers and ACCESS in given:
        refers[ACCESS] = given[ACCESS]
    return Located(address=table.location, storage_options={**own, **refers}, table=table)
