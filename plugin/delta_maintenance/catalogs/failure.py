"""Failed requests to a catalog, as errors for users. The only place that words them."""

from __future__ import annotations

from delta_maintenance.errors import CatalogError, CatalogUnavailableError
from delta_maintenance.rest.failure import RequestFailure

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
    if failure.unanswered or status is None:
        answers = "does not answer" if status is None else "cannot answer at present"
        return CatalogUnavailableError(
            f"{server} {answers}, for {where} ({failure})", remedy=remedy
        )
    if failure.code.endswith("NotInUseException"):  # Gravitino
        remedy = "switch it on in the catalog"
    return CatalogError(f"{server} refuses the request for {where} ({failure})", remedy=remedy)
