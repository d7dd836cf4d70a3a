"""Requests to AWS Glue, with retries and classification of failures."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs.catalog import (
    Catalog,
    CatalogListing,
    CatalogTable,
    PartFilter,
    PassedOver,
    catalog_error,
)
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.catalogs.spark_entries import (
    EntryListing,
    SparkEntry,
    is_view,
    three_parts,
    where_of,
)
from delta_maintenance.errors import CatalogError, InvalidRequestError
from delta_maintenance.redaction import HIDDEN
from delta_maintenance.rest.failure import PAUSES, RequestFailure, patiently

SECRETS = ("access_key_id", "secret_access_key", "session_token")
PLACES = ("region", "profile")


class GlueFailure(RequestFailure):
    """A failed request. `code` is the error code of AWS, or the name of botocore's exception."""

    service = "AWS Glue"
    access_codes = frozenset(
        (
            "AccessDeniedException",
            "ExpiredTokenException",
            "FederationSourceException",
            "IncompleteSignature",
            "InvalidClientTokenId",
            "InvalidInputException",
            "InvalidSignatureException",
            "MissingAuthenticationTokenException",
            "NotAuthorized",
            "OptInRequired",
            "SignatureDoesNotMatch",
            "UnrecognizedClientException",
            # Raised by the client before it sends anything.
            "CredentialRetrievalError",
            "ConfigNotFound",
            "InvalidRegionError",
            "NoCredentialsError",
            "NoRegionError",
            "ParamValidationError",
            "PartialCredentialsError",
            "ProfileNotFound",
            "SSOTokenLoadError",
            "TokenRetrievalError",
            "UnauthorizedSSOTokenError",
        )
    )

    @property
    def missing(self) -> bool:
        return self.code == "EntityNotFoundException"

    @property
    def is_unsure(self) -> bool:
        # AWS states all of these as requests that are wrong.
        passes = any(mark in self.code for mark in ("Throttl", "Timeout", "Retryable"))
        return not self.missing and (passes or super().is_unsure)


class GlueClient:
    """Sends requests to Glue. Thread-safe.

    `options` are those of `SECRETS` and `PLACES`; botocore looks up missing values as usual.
    """

    def __init__(
        self, options: Mapping[str, str], *, endpoint: str | None, connections: int
    ) -> None:
        try:
            # Imported here, because loading it takes time and only this kind needs it.
            import botocore.session
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise InvalidRequestError(
                "the catalog AWS Glue needs the package botocore",
                remedy="install delta-maintenance[glue]",
            ) from error
        self._pauses = PAUSES
        self._secrets = [options[name] for name in SECRETS if name in options]
        self._counting = threading.Lock()
        self.requests = 0
        """The number of requests so far, repeated ones included."""
        failure: GlueFailure | None = None
        try:
            self._client = botocore.session.Session(profile=options.get("profile")).create_client(
                "glue",
                # botocore itself reads only AWS_DEFAULT_REGION.
                region_name=options.get("region") or os.environ.get("AWS_REGION"),
                endpoint_url=endpoint,
                aws_access_key_id=options.get("access_key_id"),
                aws_secret_access_key=options.get("secret_access_key"),
                aws_session_token=options.get("session_token"),
                config=Config(
                    connect_timeout=5,
                    read_timeout=60,
                    max_pool_connections=connections,
                    # Only this client retries, so that requests are counted.
                    retries={"mode": "standard", "total_max_attempts": 1},
                ),
            )
        except (BotoCoreError, ValueError) as error:
            failure = self._failure(error)
        if failure is not None:
            raise InvalidRequestError(
                f"the settings of AWS Glue are not complete or not valid ({failure})",
                remedy="set AWS_REGION and the credentials of AWS, or give the options region, "
                "profile, access_key_id and secret_access_key",
            )

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a request that changes nothing, with retries. `GlueFailure` after the last one.

        Parameters that are None are left out.
        """
        arguments = {name: value for name, value in parameters.items() if value is not None}

        def attempt() -> dict[str, Any]:
            with self._counting:
                self.requests += 1
            try:
                reply: dict[str, Any] = getattr(self._client, method)(**arguments)
                return reply
            # Connection, parser and credential errors have no common base class.
            except Exception as error:
                failure = self._failure(error)
            raise failure

        return patiently(attempt, time.sleep, self._pauses)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _failure(self, error: Exception) -> GlueFailure:
        answer = getattr(error, "response", None)
        if isinstance(answer, dict) and "Error" in answer:
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code, detail = answer["Error"].get("Code", ""), answer["Error"].get("Message", "")
        else:
            status, code, detail = None, type(error).__name__, error
        text = str(detail)
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return GlueFailure(status=status, code=str(code), detail=text)


_PAGE = 100
"""The most that Glue returns at once."""
_MOST_PAGES = 10_000
"""The number of pages of a list that are requested."""
_PARALLEL = 8
"""Databases that are listed at the same time."""


class GlueCatalog(Catalog):
    """The databases of one catalog ID; by default those of the caller's account.

    Options: `region`, `profile`, `access_key_id`, `secret_access_key`, `session_token`. The address
    is that of another endpoint than the region's own.
    """

    kind = CatalogKind.GLUE

    def __init__(self, settings: CatalogSettings) -> None:
        options = settings.only(*SECRETS, *PLACES)
        self._catalog = settings.catalog
        self._client = GlueClient(options, endpoint=settings.address, connections=_PARALLEL)

    def list(
        self,
        *,
        leads_to: PartFilter,
        includes: PartFilter,
        known_tables: Mapping[CatalogName, CatalogTable],
    ) -> CatalogListing:
        before = self._client.requests
        listing = EntryListing(self.kind)
        databases: list[str] = []
        try:
            for page in self._pages("get_databases"):
                names = [str(database["Name"]) for database in page.get("DatabaseList", [])]
                databases += [name for name in names if leads_to(self._parts(name))]
        except GlueFailure as failure:
            error = self._error(failure, (), "glue:GetDatabases")
            if not databases:
                raise error from None
            listing.add_failure(self._parts(), error)
        with ThreadPoolExecutor(_PARALLEL) as pool:
            for listing_of_database in pool.map(
                lambda name: self._tables_of(name, includes), databases
            ):
                listing.add(listing_of_database)
        return listing.result(requests=self._client.requests - before)

    def resolve(self, name: CatalogName) -> CatalogTable:
        catalog, database, table = three_parts(name, self._catalog)
        try:
            answer = self._client.call(
                "get_table", CatalogId=catalog, DatabaseName=database, Name=table
            )
        except GlueFailure as failure:
            raise self._error(failure, name.parts, "glue:GetTable") from None
        return _entry(answer["Table"], name.parts).delta_table()

    def check(self) -> str:
        try:
            self._client.call("get_databases", CatalogId=self._catalog, MaxResults=1)
        except GlueFailure as failure:
            raise self._error(failure, (), "glue:GetDatabases") from None
        return "Glue answers"

    def close(self) -> None:
        self._client.close()

    def _tables_of(self, database: str, includes: PartFilter) -> EntryListing:
        """Lists one database. Tables of the pages before a failure are kept."""
        listing = EntryListing(self.kind)
        try:
            for page in self._pages("get_tables", DatabaseName=database):
                for table in page.get("TableList", []):
                    database_parts = self._parts(database, str(table["Name"]))
                    if includes(database_parts):
                        listing.put(_entry(table, database_parts))
                    else:
                        listing.passed_over[PassedOver.NOT_IN_POLICY] += 1
        except GlueFailure as failure:
            database_parts = self._parts(database)
            error = self._error(failure, database_parts, "glue:GetTables")
            listing.add_failure(database_parts, error)
        return listing

    def _pages(self, method: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Yields pages, the empty ones that have a successor too."""
        token: str | None = None
        for _ in range(_MOST_PAGES):
            page = self._client.call(
                method, CatalogId=self._catalog, MaxResults=_PAGE, NextToken=token, **parameters
            )
            yield page
            following = page.get("NextToken") or None
            if following is None:
                return
            if following == token:
                raise GlueFailure(
                    status=None, code="SamePage", detail="a page names itself as next"
                )
            token = following
        raise GlueFailure(
            status=None, code="TooManyPages", detail=f"a list has more than {_MOST_PAGES:,} pages"
        )

    def _parts(self, *below: str) -> tuple[str, ...]:
        return (self._catalog, *below) if self._catalog else below

    def _error(self, failure: GlueFailure, name_parts: tuple[str, ...], needs: str) -> CatalogError:
        where = where_of(self.kind, name_parts)
        return catalog_error(failure, server=failure.service, where=where, needs=needs)


def _entry(table: Mapping[str, Any], name_parts: tuple[str, ...]) -> SparkEntry:
    storage = table.get("StorageDescriptor") or {}
    return SparkEntry(
        kind=CatalogKind.GLUE,
        parts=name_parts,
        parameters=table.get("Parameters") or {},
        location=storage.get("Location"),
        serde_parameters=(storage.get("SerdeInfo") or {}).get("Parameters") or {},
        owner=table.get("Owner"),
        comment=table.get("Description") or (table.get("Parameters") or {}).get("comment"),
        entity_tag=table.get("VersionId"),
        # A resource link is a second name of a table.
        is_view=bool(table.get("TargetTable")) or is_view(table.get("TableType") or ""),
    )
