"""Failed requests to a catalog, as errors for users."""

from __future__ import annotations

from delta_maintenance.errors import CatalogError, CatalogUnavailableError
from delta_maintenance.rest.failure import RequestFailure


def catalog_error(failure: RequestFailure, *, where: str, needs: str) -> CatalogError:
    """Converts a failure. `where` is the catalog, the namespace or the table, with the scheme;
    `needs` names the right that the request needs.
    """
    if failure.missing:
        return CatalogError(
            f"{failure.service} does not know the name ({failure})",
            table=where,
            remedy=failure.remedy or "correct the name, or the catalog that it is looked up in",
        )
    if failure.access:
        return CatalogError(
            f"{failure.service} rejects the request ({failure})",
            table=where,
            remedy=failure.remedy or f"check credentials and address, and grant {needs}",
        )
    return CatalogUnavailableError(
        f"{failure.service} failed ({failure})", table=where, remedy=failure.remedy
    )
