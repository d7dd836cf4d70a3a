"""Credentials that Unity Catalog vends for the files of a table."""

from __future__ import annotations

from delta_maintenance.catalogs.http.authorization import RequestRefused
from delta_maintenance.catalogs.http.client import CatalogClient, entries
from delta_maintenance.catalogs.models import Access, CatalogTable, VendedCredentials
from delta_maintenance.catalogs.unity.delta_api import CREDENTIALS, DeltaApi
from delta_maintenance.catalogs.vended import temporary_credentials, vended_credentials
from delta_maintenance.errors import CatalogError


def table_credentials(
    client: CatalogClient, delta: DeltaApi, table: CatalogTable, access: Access
) -> tuple[VendedCredentials, ...]:
    """Returns fresh credentials: of the Delta API for a catalog-managed table, if the server has
    it, and else of the interface for all tables.

    `CatalogError` names the missing rights if the catalog denies them.
    """
    name = str(table.name)
    with client.naming(name):
        try:
            return _requested(client, delta, table, access)
        except RequestRefused as failure:
            if failure.status != 403:
                raise
            denied = str(failure)
    # Raised outside the handler, so that the error has no `__context__`.
    rights = "SELECT" if access is Access.READ else "SELECT and MODIFY"
    purpose = "reading" if access is Access.READ else "reading and writing"
    raise CatalogError(
        f"{client.title} denies credentials for {purpose} {name}, which need {rights} on the table "
        f"({denied})",
        remedy=f"grant {rights}, and on Databricks EXTERNAL USE SCHEMA",
    )


def _requested(
    client: CatalogClient, delta: DeltaApi, table: CatalogTable, access: Access
) -> tuple[VendedCredentials, ...]:
    operation = access.name
    if table.catalog_managed and (path := delta.path(table.name, CREDENTIALS)) is not None:
        answer = client.get(path, {"operation": operation})
        held = entries(answer, "storage-credentials")
        return vended_credentials(held, location=table.location, access=access)
    answer = client.send(
        "POST",
        "/temporary-table-credentials",
        body={"table_id": table.table_id, "operation": operation},
    )
    return temporary_credentials(answer, location=table.location, access=access)
