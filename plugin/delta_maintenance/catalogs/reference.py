"""From the name of a table to its address, and to the storage options that refer to its catalog.

Storage options name the table, its catalog, and what authenticates to the catalog. Who opens the
store with them, in this process or on an executor, obtains credentials for the files from the
catalog and renews them. So no vended credential is ever passed on."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Self

from delta_maintenance.address import (
    CATALOG_TABLE,
    Access,
    Address,
    CatalogName,
    Located,
    is_catalog_name,
    is_catalog_option,
)
from delta_maintenance.catalogs.catalog import CatalogTable, open_catalog
from delta_maintenance.catalogs.settings import (
    SECRETS,
    CatalogSettings,
    options_of,
    secret_variables,
    settings_of,
)
from delta_maintenance.errors import InvalidRequestError, remember_name

ACCESS = "catalog_access"
"""The storage option that says which credentials are wanted: `read`, `read_write`, or `none`, if
the store has credentials of its own. By default, those for reading, until something is written."""
MANAGED = "catalog_managed"
"""The storage option that is `true` if commits go through the catalog."""
TABLE_ID = "catalog_table_id"
"""The storage option with the catalog's ID of a table whose commits go through it."""
LOCATION = "catalog_location"
"""The storage option with the table's address."""
NO_ACCESS = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogReference:
    """One table in its catalog. Hashable; the `repr` contains no secrets."""

    name: CatalogName
    settings: CatalogSettings = field(compare=False)
    access: Access | None = None
    """What credentials are for. None for reading, until something is written."""
    vends: bool = True
    """Whether the store takes its credentials from the catalog."""
    managed: bool = False
    """Whether commits go through the catalog."""
    table_id: str | None = None
    """The catalog's ID of a table whose commits go through it, if it is known."""
    location: Address | None = None
    """The root of the table; the reference concerns no other address."""
    catalog_key: Hashable = field(repr=False, default=())
    """Equal for references to the same catalog."""

    @classmethod
    def of(
        cls, storage_options: Mapping[str, str] | None, environment: Mapping[str, str]
    ) -> Self | None:
        """Returns the reference in storage options; None if they name no table."""
        options = storage_options or {}
        if CATALOG_TABLE not in options:
            return None
        access = options.get(ACCESS)
        if access not in (None, NO_ACCESS, *Access):
            raise InvalidRequestError(
                f"the storage option {ACCESS} is {access!r}",
                remedy=f"write one of {', '.join(Access)}, {NO_ACCESS}",
            )
        name = CatalogName.parse(options[CATALOG_TABLE])
        settings = settings_of(name.kind, options, environment)
        if LOCATION in options:
            # In executors of Spark, nothing else names the table.
            remember_name(options[LOCATION], str(name))
        return cls(
            name=name,
            settings=settings,
            access=None if access in (None, NO_ACCESS) else Access(access),
            vends=access != NO_ACCESS,
            managed=options.get(MANAGED) == "true",
            table_id=options.get(TABLE_ID),
            location=Address.parse(options[LOCATION]) if LOCATION in options else None,
            catalog_key=frozenset(options_of(settings).items()),
        )

    def concerns(self, address: Address) -> bool:
        """Whether an address is that of the table. A report, for example, is elsewhere."""
        return self.location is None or (
            (self.location.kind, self.location.authority, self.location.path)
            == (address.kind, address.authority, address.path)
        )

    def options(self) -> dict[str, str]:
        """Returns the storage options, secrets included."""
        access = self.access if self.vends else NO_ACCESS
        return {
            **options_of(self.settings),
            CATALOG_TABLE: str(self.name),
            **({LOCATION: str(self.location)} if self.location is not None else {}),
            **({ACCESS: str(access)} if access is not None else {}),
            **({MANAGED: "true"} if self.managed else {}),
            **({TABLE_ID: self.table_id} if self.table_id is not None else {}),
        }

    def table(self) -> CatalogTable | None:
        """Returns the table without a request; None unless all that its catalog needs is known."""
        if not self.managed or self.table_id is None or self.location is None:
            return None
        return CatalogTable(
            name=self.name,
            location=str(self.location),
            table_id=self.table_id,
            catalog_managed=True,
            vends_credentials=self.vends,
        )

    def public(self) -> dict[str, str]:
        """Returns the storage options without secrets."""
        secret = {f"catalog_{name}" for name in SECRETS}
        return {name: value for name, value in self.options().items() if name not in secret}

    def secrets(self) -> dict[str, str | None]:
        """Returns the environment variables for the secret options."""
        return secret_variables(self.settings)


def with_access(storage_options: Mapping[str, str], access: Access) -> dict[str, str]:
    """Returns storage options of a table in which a reference states the access, unless it does."""
    return {
        **({ACCESS: str(access)} if CATALOG_TABLE in storage_options else {}),
        **storage_options,
    }


def reference_options(
    table: CatalogTable, settings: CatalogSettings, *, access: Access | None = None
) -> dict[str, str]:
    """Returns the storage options that refer to a table; none if its store needs nothing of the
    catalog.
    """
    if not (table.vends_credentials or table.catalog_managed):
        return {}
    return CatalogReference(
        name=table.name,
        settings=settings,
        access=access,
        vends=table.vends_credentials,
        managed=table.catalog_managed,
        table_id=table.table_id if table.catalog_managed else None,
        location=Address.parse(table.location),
    ).options()


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
    all_options = dict(storage_options or {})
    if not is_catalog_name(text):
        # Of a table that a policy found, the options may refer to the catalog.
        options = all_options if access is None else with_access(all_options, access)
        return Located(address=text, storage_options=options)
    name = CatalogName.parse(text)
    settings = settings_of(name.kind, all_options, environment)
    with open_catalog(settings) as catalog:
        table = catalog.resolve(name)
    remember_name(table.location, str(table.name))
    store_options = {
        option: value for option, value in all_options.items() if not is_catalog_option(option)
    }
    refers = reference_options(table, settings, access=access)
    if refers and ACCESS in all_options:
        refers[ACCESS] = all_options[ACCESS]
    return Located(
        address=table.location, storage_options={**store_options, **refers}, name=table.name
    )
