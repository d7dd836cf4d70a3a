"""Failed requests to a catalog, as errors for users."""

from __future__ import annotations

from delta_maintenance.errors import CatalogError, CatalogUnavailableError
from delta_maintenance.rest.failure import RequestFailure


def catalog_error(
    failure: RequestFailure, *, where: str, needs: str, at: str | None = None
) -> CatalogError:
    """Converts a failure. `where` is the catalog, the namespace or the table, with the scheme;
    `needs` names the right that the request needs; `at` is the host of the server.
    """
    service = f"{failure.service} at {at}" if at is not None else failure.service
    # A scheme alone names no table.
    table = None if where.endswith("://") else where
    if failure.missing:
        return CatalogError(
            f"{service} does not know the name ({failure})",
            table=table,
            remedy=failure.remedy or "correct the name, or the catalog that it is looked up in",
        )
    if failure.access:
        return CatalogError(
            f"{service} rejects the request ({failure})",
            table=table,
            remedy=failure.remedy or f"check credentials and address, and grant {needs}",
        )
    return CatalogUnavailableError(
        f"{service} failed ({failure})", table=table, remedy=failure.remedy
    )
