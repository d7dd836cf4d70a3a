"""The interface of a catalog: list, resolve, credentials.

To add a kind: implement `Catalog` in a module of this package, and name it in `open`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar, Self

from delta_maintenance.catalogs.models import (
    Access,
    Aspect,
    CatalogListing,
    CatalogTable,
    ManagedState,
    VendedCredentials,
)
from delta_maintenance.catalogs.names import CatalogKind, CatalogName

Wanted = Callable[[tuple[str, ...]], bool]
"""Whether a name, or a namespace, can match a pattern; given the parts from the catalog on."""


class Catalog(ABC):
    """A client of one catalog. Thread-safe.

    Every method raises `CatalogError` for a refusal and `CatalogUnavailableError` if the catalog
    does not answer; both name the catalog's part, and never contain a token.
    """

    kind: ClassVar[CatalogKind]
    describes_all: bool = False
    """Whether the settings ask for `described`, whatever conditions need it."""

    @abstractmethod
    def list(
        self,
        *,
        leads_to: Wanted,
        wanted: Wanted,
        known: Mapping[CatalogName, CatalogTable],
    ) -> CatalogListing:
        """Lists the Delta tables whose names are `wanted`.

        Only namespaces that `leads_to` accepts are listed. A catalog whose lists name tables
        without describing them loads each Delta table that is not `known` with the same entity
        tag. A namespace or a table that fails becomes a failure of the listing; the first request
        that fails raises.
        """

    @abstractmethod
    def resolve(self, name: CatalogName) -> CatalogTable:
        """Returns one Delta table. `CatalogError` if it does not exist or is no Delta table."""

    def described(
        self, tables: Sequence[CatalogTable], aspects: frozenset[Aspect]
    ) -> CatalogListing:
        """Returns tables with the owner or the tags that are `further` and among `aspects`.

        Sends at most 16 requests at once. A table whose request fails becomes a failure of the
        listing, and is not among its tables; so does a namespace that all its tables depend on.
        """
        return CatalogListing(tables=tuple(tables))

    def hidden_tags(self, names: AbstractSet[str]) -> frozenset[str]:
        """Returns which of these tags `described` leaves out, because the caller may not see them.

        A tag that does not exist can be among them.
        """
        return frozenset()

    def credentials(self, table: CatalogTable, access: Access) -> tuple[VendedCredentials, ...]:
        """Returns fresh credentials, one per prefix; empty if the catalog vends none."""
        return ()

    def managed_state(self, table: CatalogTable) -> ManagedState | None:
        """Returns the ratified commits of a catalog-managed table; None for other tables."""
        return None

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
