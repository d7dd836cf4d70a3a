"""The interface of a catalog, what catalogs say of tables, and failed requests.

To add a kind: implement `Catalog` in a module of this package, and name it in `_CLIENTS`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from importlib import import_module
from typing import ClassVar, Self

from delta_maintenance.address import Access, Address, CatalogKind, CatalogName
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import (
    CatalogError,
    CatalogUnavailableError,
    DeltaMaintenanceError,
    InvalidRequestError,
)
from delta_maintenance.rest.failure import RequestFailure


class Aspect(StrEnum):
    """What some catalogs state of a table only on a further request."""

    OWNER = "owner"
    TAGS = "tags"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """One Delta table as its catalog describes it."""

    name: CatalogName
    location: str
    """The address of the table's root, as `address.Address` parses it."""
    table_id: str | None = None
    """The catalog's own ID of the table, if it has one."""
    entity_tag: str | None = None
    """Changes when the catalog's entry changes; None if the catalog has none."""
    owner: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    catalog_managed: bool = False
    """Whether commits go through the catalog: the table feature `catalogManaged`."""
    is_shallow_clone: bool = False
    """Whether the catalog says that the table needs data files of another one."""
    vends_credentials: bool = False
    """Whether `Catalog.credentials` can return credentials for the table."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties of the catalog's entry, which may differ from those in the log."""
    further: frozenset[Aspect] = frozenset()
    """What the catalog states only on a further request: `Catalog.describe`."""
    described: Mapping[Aspect, datetime] = field(default_factory=dict)
    """When each of these was requested, in UTC."""


class PassedOver(StrEnum):
    """Why an entry of a catalog is not listed as a Delta table."""

    VIEW = "view"
    """Views, materialized views, functions."""
    OTHER_FORMAT = "other format"
    """Iceberg, Parquet, Hive and all other formats."""
    DELETED = "deleted"
    """Soft-deleted."""
    NOT_IN_POLICY = "not in the policy"
    """No pattern matches it, or one excludes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFailure:
    """A part of a catalog that could not be listed; it hides no other part."""

    where: str
    """The name of the catalog, the namespace or the table, with the scheme."""
    error: DeltaMaintenanceError


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogListing:
    """The Delta tables that match a pattern."""

    tables: tuple[CatalogTable, ...] = ()
    """Sorted by name."""
    passed_over: Mapping[PassedOver, int] = field(default_factory=dict)
    """Counts of entries that are not Delta tables, or not to be looked after."""
    failures: tuple[CatalogFailure, ...] = ()
    without: frozenset[Aspect] = frozenset()
    """What the server has of no table, as its settings are."""
    requests: int = 0
    """The number of requests that were sent, retries included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VendedCredentials:
    """Temporary credentials for all files below a prefix."""

    prefix: str
    """An address; the longest prefix that contains a file applies."""
    access: Access
    expires_at: datetime | None
    """In UTC; None if the catalog does not say."""
    options: Mapping[str, str] = field(repr=False)
    """Storage options of the store at the prefix (`storage.options`), secrets included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatifiedCommit:
    """A commit that the catalog ratified and that may not be published yet."""

    version: int
    file_name: str
    """The name of the staged file below `_delta_log/_staged_commits/`."""
    size: int
    modified_ms: int
    timestamp_ms: int
    """The in-commit timestamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedState:
    """One consistent cut of the commits of a catalog-managed table."""

    table_id: str
    latest_version: int
    commits: tuple[RatifiedCommit, ...]
    """Ascending and contiguous, up to the latest version; empty if all commits are published."""
    allowed_maintenance: frozenset[str] = frozenset()
    """The maintenance that the catalog permits, as it names it; unknown values are left out."""


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


MALFORMED = frozenset(("NotJSON", "TooLong"))
"""Codes of answers that no catalog gives."""


def catalog_error(
    failure: RequestFailure, *, server: str, where: str, needs: str, anonymous: bool = False
) -> CatalogError:
    """Converts a failure. `server` is the kind of catalog, with the address if it is known;
    `where` is the catalog, the namespace or the table, with the scheme; `needs` names the rights
    that the request needs; `anonymous` says that it was sent without credentials.
    """
    status, remedy = failure.status, failure.remedy
    if failure.code in MALFORMED or (status is not None and 300 <= status < 400):
        return CatalogError(
            f"{server} does not answer like a catalog, for {where} ({failure})",
            remedy=remedy or "check the address of the catalog",
        )
    if failure.missing:
        return CatalogError(
            f"{server} does not know {where} ({failure})",
            remedy=remedy or f"check the name and its case, and the address, or grant {needs}",
        )
    if status == 401 and anonymous:
        return CatalogError(
            f"{server} requires credentials, for {where} ({failure})",
            remedy=remedy or "give a token or client credentials, as options or in the environment",
        )
    if status == 401:
        return CatalogError(
            f"{server} rejects the credentials, for {where} ({failure})",
            remedy=remedy or "renew the token, or check the client credentials",
        )
    if failure.access:
        check = "" if status == 403 else "check credentials and address, and "
        return CatalogError(
            f"{server} denies access to {where} ({failure})",
            remedy=remedy or f"{check}grant {needs}",
        )
    is_off = failure.code.endswith("NotInUseException")  # Gravitino
    # 409 of Unity Catalog: the table was locked for too long.
    if failure.is_unsure or status is None or (status == 409 and not is_off):
        answers = "does not answer" if status is None else "cannot answer at present"
        return CatalogUnavailableError(
            f"{server} {answers}, for {where} ({failure})", remedy=remedy
        )
    if is_off:
        remedy = "switch it on in the catalog"
    return CatalogError(f"{server} refuses the request for {where} ({failure})", remedy=remedy)


PartFilter = Callable[[tuple[str, ...]], bool]
"""Whether a name, or a namespace, can match a pattern; given the parts from the catalog on."""


class Catalog(ABC):
    """A client of one catalog. Thread-safe.

    Every method raises `CatalogError` for a refusal and `CatalogUnavailableError` if the catalog
    does not answer; both name the catalog's part, and never contain a token.
    """

    kind: ClassVar[CatalogKind]
    describes_all: bool = False
    """Whether the settings ask for `describe`, whatever conditions need it."""

    @abstractmethod
    def list(
        self,
        *,
        leads_to: PartFilter,
        includes: PartFilter,
        known_tables: Mapping[CatalogName, CatalogTable],
    ) -> CatalogListing:
        """Lists the Delta tables whose names `includes` accepts.

        Only namespaces that `leads_to` accepts are listed. A catalog whose lists name tables
        without describing them loads each Delta table that `known_tables` lacks with the same
        entity tag. A namespace or a table that fails becomes a failure of the listing; the first
        request that fails raises.
        """

    @abstractmethod
    def resolve(self, name: CatalogName) -> CatalogTable:
        """Returns one Delta table. `CatalogError` if it does not exist or is no Delta table."""

    def describe(
        self, tables: Sequence[CatalogTable], aspects: frozenset[Aspect]
    ) -> CatalogListing:
        """Returns tables with the owner or the tags that are `further` and among `aspects`.

        Sends at most 16 requests at once. A table whose request fails becomes a failure of the
        listing, and is not among its tables; so does a namespace that all its tables depend on.
        """
        return CatalogListing(tables=tuple(tables))

    def hidden_tags(self, names: AbstractSet[str]) -> frozenset[str]:
        """Returns which of these tags `describe` leaves out, because the caller may not see them.

        A tag that does not exist can be among them.
        """
        return frozenset()

    def credentials(self, table: CatalogTable, access: Access) -> tuple[VendedCredentials, ...]:
        """Returns fresh credentials, one per prefix; empty if the catalog vends none."""
        return ()

    def managed_state(self, table: CatalogTable) -> ManagedState | None:
        """Returns the ratified commits of a catalog-managed table; None for other tables."""
        return None

    def report_published(self, table: CatalogTable, version: int) -> None:
        """Tells the catalog that all commits up to a version are published, so that it may forget
        them. The caller has read each of them under its published name.

        Safe to repeat. `CatalogError` for a table that was dropped and created again under its
        name.
        """
        raise CatalogError(
            f"the catalog takes no reports of published commits of {table.name}",
            remedy="let the catalog publish them",
        )

    def check(self) -> str:
        """Sends the smallest request that needs the credentials. Returns one line for people."""
        return f"{self.kind} answers"

    @abstractmethod
    def close(self) -> None:
        """Closes connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_CLIENTS: Mapping[CatalogKind, str] = {
    CatalogKind.UNITY: "unity.catalog:UnityCatalog",
    CatalogKind.GLUE: "glue:GlueCatalog",
    CatalogKind.HIVE: "hive.catalog:HiveCatalog",
    CatalogKind.LAKEKEEPER: "generic_tables:LakekeeperCatalog",
    CatalogKind.POLARIS: "generic_tables:PolarisCatalog",
    CatalogKind.GRAVITINO: "gravitino:GravitinoCatalog",
}


def open_catalog(settings: CatalogSettings) -> Catalog:
    """Returns a client. Nothing is requested yet.

    `InvalidRequestError` for settings that the kind does not understand, and if a package that it
    needs is not installed.
    """
    # Imported on demand, so that a catalog loads only its own client.
    module, _, name = _CLIENTS[settings.kind].partition(":")
    client: type[Catalog] = getattr(import_module(f"delta_maintenance.catalogs.{module}"), name)
    return client(settings)  # type: ignore[call-arg]
