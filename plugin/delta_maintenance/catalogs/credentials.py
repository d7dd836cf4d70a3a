"""Vended credentials: their conversion to storage options, and their renewal before they end.

Two vocabularies are understood: that of Unity Catalog (`azure.sas-token`, `gcs.oauth-token`) and
that of the REST catalog of Iceberg (`adls.sas-token.ACCOUNT.dfs.core.windows.net`,
`gcs.oauth2.token`). Both write `s3.access-key-id` for S3. Keys that do not authenticate, and that
no store needs, are ignored.

A store asks for the current credentials before each request. One thread renews them while the
others continue with the old ones. Executors do the same: each process asks the catalog itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from delta_maintenance import clock
from delta_maintenance.address import Access, Address
from delta_maintenance.catalogs.catalog import (
    Catalog,
    CatalogTable,
    VendedCredentials,
    open_catalog,
)
from delta_maintenance.catalogs.reference import CatalogReference
from delta_maintenance.errors import (
    CatalogError,
    CatalogUnavailableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
)

GCS_TOKEN = "GOOGLE_OAUTH_ACCESS_TOKEN"
"""The storage option for an access token of Google."""


def vended_credentials(
    entries: Iterable[Mapping[str, Any]],
    *,
    location: str,
    access: Access,
    config: Mapping[str, Any] | None = None,
) -> tuple[VendedCredentials, ...]:
    """Converts the field `storage-credentials` of an answer.

    `location` is the table's, for entries without a prefix. `config` is the field of that name,
    whose values apply where an entry has none. Entries without credentials are left out.
    `CatalogError` if the catalog offers nothing but to sign each request itself.
    """
    shared = texts(config)
    credentials = []
    for entry in list(entries) or [{}]:
        prefix = entry.get("prefix")
        prefix = prefix if isinstance(prefix, str) and prefix else location
        held = {**shared, **texts(entry.get("config"))}
        options = _options(held, prefix)
        if not options:
            if held.get("s3.remote-signing-enabled") == "true":
                raise CatalogError(
                    "the catalog signs each request instead of vending credentials",
                    remedy="enable vended credentials in its storage profile, "
                    "or give storage options",
                )
            continue
        ends = entry.get("expiration-time-ms")
        credentials.append(
            VendedCredentials(
                prefix=prefix,
                access=_ACCESS.get(str(entry.get("operation")), access),
                expires_at=_time(ends) if ends is not None else _earliest(held),
                options=options,
            )
        )
    return tuple(credentials)


def temporary_credentials(
    answer: Mapping[str, Any], *, location: str, access: Access
) -> tuple[VendedCredentials, ...]:
    """Converts the answer of `temporary-table-credentials` of Unity Catalog.

    Empty if it contains no credentials, as for a table in a folder of the server.
    """
    aws = texts(answer.get("aws_temp_credentials"))
    config = {
        "s3.access-key-id": aws.get("access_key_id"),
        "s3.secret-access-key": aws.get("secret_access_key"),
        "s3.session-token": aws.get("session_token"),
        "azure.sas-token": texts(answer.get("azure_user_delegation_sas")).get("sas_token"),
        "azure.bearer-token": texts(answer.get("azure_aad")).get("aad_token"),
        "gcs.oauth-token": texts(answer.get("gcp_oauth_token")).get("oauth_token"),
    }
    entry = {
        "prefix": answer.get("url"),
        "config": config,
        "expiration-time-ms": answer.get("expiration_time"),
    }
    return vended_credentials([entry], location=location, access=access)


def credentials_for(
    address: str | Address, credentials: Iterable[VendedCredentials]
) -> VendedCredentials | None:
    """Returns the credentials with the longest prefix that contains an address."""
    file_address = address if isinstance(address, Address) else Address.parse(address)
    best, length = None, -1
    for candidate in credentials:
        prefix = _parse(candidate.prefix)
        if prefix is not None and _contains(prefix, file_address) and len(prefix.path) > length:
            best, length = candidate, len(prefix.path)
    return best


# Asked before each request to a store.
@lru_cache(maxsize=4096)
def _parse(prefix: str) -> Address | None:
    with suppress(InvalidRequestError):
        return Address.parse(prefix)
    return None


def _contains(prefix: Address, address: Address) -> bool:
    # The schemes s3 and s3a, for example, stand for the same store.
    if (prefix.kind, prefix.authority) != (address.kind, address.authority):
        return False
    return not prefix.path or f"{address.path}/".startswith(f"{prefix.path}/")


def _options(held: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Returns the storage options; empty without credentials."""
    key, secret = held.get("s3.access-key-id"), held.get("s3.secret-access-key")
    if key and secret:
        values = {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_SESSION_TOKEN": held.get("s3.session-token"),
            "AWS_ENDPOINT_URL": held.get("s3.endpoint"),
            "AWS_REGION": next((held[name] for name in _REGIONS if name in held), None),
        }
        return {name: value for name, value in values.items() if value}
    if token := held.get("gcs.oauth2.token") or held.get("gcs.oauth-token"):
        return {GCS_TOKEN: token}
    if token := held.get("azure.bearer-token"):
        return {"AZURE_STORAGE_TOKEN": token}
    host, sas = _shared_access_signature(held, prefix)
    if sas is None:
        return {}
    options = {"AZURE_STORAGE_SAS_TOKEN": sas}
    account = held.get("adls.account-name") or host.partition(".")[0]
    if account and "@" not in prefix:
        options["AZURE_STORAGE_ACCOUNT_NAME"] = account
    return options


def _shared_access_signature(held: Mapping[str, str], prefix: str) -> tuple[str, str | None]:
    """Returns the host, or the account, and the signature for it."""
    if token := held.get("azure.sas-token"):
        return "", token
    theirs = {
        name.removeprefix(_SAS): value for name, value in held.items() if name.startswith(_SAS)
    }
    host = prefix.partition("@")[2].partition("/")[0]
    for account in (host, host.partition(".")[0]):
        if account in theirs:
            return account, theirs[account]
    # Without a host in the prefix, only one account can be meant.
    return next(iter(theirs.items())) if len(theirs) == 1 and not host else ("", None)


def _earliest(held: Mapping[str, str]) -> datetime | None:
    times = [
        _time(value)
        for name, value in held.items()
        if "expires-at" in name or name == "expiration-time"
    ]
    return min((time for time in times if time is not None), default=None)


def _time(milliseconds: object) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(str(milliseconds)) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def texts(values: object) -> dict[str, str]:
    """Returns the strings of a JSON object, without all other values."""
    if not isinstance(values, Mapping):
        return {}
    return {str(name): value for name, value in values.items() if isinstance(value, str)}


_REGIONS = ("client.region", "s3.client.region", "s3.region")
_SAS = "adls.sas-token."
_ACCESS = {"READ": Access.READ, "READ_WRITE": Access.READ_WRITE}


_logger = logging.getLogger(__name__)

_MARGIN = timedelta(minutes=5)
"""Credentials are renewed this long before they end, or after three quarters of their time."""
_PAUSE = timedelta(seconds=5)
"""The least time between a failed request for credentials and the next one, and between two
requests after the store has rejected the credentials."""


class CredentialSource:
    """The credentials for the files of one table. Thread-safe; one request at a time."""

    def __init__(
        self,
        reference: CatalogReference,
        root: Address,
        *,
        catalog: Callable[[], Catalog],
        now: clock.Clock | None = None,
    ) -> None:
        self._reference = reference
        self._root = root
        self._catalog = catalog
        # The clock is looked up late, because tests replace it.
        self._now = now or (lambda: clock.now())
        self._lock = threading.Lock()
        self._table: CatalogTable | None = None
        self._held: tuple[VendedCredentials, ...] = ()
        """One for each prefix, of one answer of the catalog."""
        self._held_since = self._failed_at = self._rejected_at = datetime.min.replace(tzinfo=UTC)
        self._writes = reference.access is Access.READ_WRITE
        self._failure: DeltaMaintenanceError | None = None

    def expect(self, access: Access, address: Address) -> None:
        """States what the next requests are for: renewals ask for no more.

        To write, the credentials for an address below the root are requested at once, so that a
        refusal precedes the work. Raises the errors of `current`.
        """
        self._writes = Access.READ_WRITE in (access, self._reference.access)
        if access is Access.READ_WRITE:
            self.current(write=True, address=address)

    def current(self, *, write: bool, address: Address | None = None) -> VendedCredentials:
        """Returns credentials that are valid now, for writing if `write` or if asked for before.

        They are those of the longest prefix that contains `address`, by default the root. A renewal
        that fails is repeated until the old credentials end. Then, and if there were none, raises
        `CatalogError`, or `CatalogUnavailableError` if the catalog does not answer. `RefusedError`
        for a request to write if only reading is allowed.
        """
        if write and self._reference.access is Access.READ:
            raise RefusedError(
                "the table was opened for reading only",
                table=str(self._reference.name),
                remedy="omit the storage option catalog_access",
            )
        address = address or self._root
        # Others need not wait while the old credentials are valid.
        usable = self._usable(address, write=write)
        if usable is not None and not self._is_due(usable):
            return usable
        if not self._lock.acquire(blocking=usable is None):
            assert usable is not None
            return usable
        try:
            return self._renew(address, write=write)
        finally:
            self._lock.release()

    def reject(self, credentials: VendedCredentials) -> bool:
        """Says that the store rejected credentials. Returns whether to try again with newer ones.

        They may have ended before their time, or the catalog does not state it.
        """
        with self._lock:
            if not any(current is credentials for current in self._held):
                return True
            ends, now = credentials.expires_at, self._now()
            # Newer credentials do not help if the store denies what they are for.
            if now - self._rejected_at < _PAUSE and (ends is None or now < ends):
                return False
            self._held, self._rejected_at = (), now
            return True

    def _renew(self, address: Address, *, write: bool) -> VendedCredentials:
        usable = self._usable(address, write=write)
        if usable is not None and not self._is_due(usable):
            return usable
        if self._failure is not None and self._now() - self._failed_at < _PAUSE:
            if usable is not None:
                return usable
            raise self._failure
        # Once something is written, the same task will write again.
        write = write or self._writes
        held = credentials_for(address, self._held)
        if held is not None and not self._serves(held, write=write):
            # Not renewed: these are the first ones for writing.
            held = None
        try:
            credentials = self._request(Access.READ_WRITE if write else Access.READ, address)
        except DeltaMaintenanceError as error:
            self._failure = error = self._describe_failure(error, held)
            self._failed_at = self._now()
            if usable is None:
                raise error from None
            _logger.warning("%s; the old credentials are used until they end", error)
            return usable
        self._failure, self._writes = None, write
        return credentials

    def _request(self, access: Access, address: Address) -> VendedCredentials:
        name, catalog = self._reference.name, self._catalog()
        if self._table is None:
            self._table = self._reference.table() or catalog.resolve(name)
        self._require_location(self._table)
        offered = catalog.credentials(self._table, access)
        credentials = credentials_for(address, offered)
        if credentials is None:
            if offered:
                # They are vended by name, and another table can have the name meanwhile.
                self._require_location(catalog.resolve(name))
            raise CatalogError(
                f"the catalog vends no credentials for {address}",
                table=str(name),
                remedy="let it vend them for the table, or give credentials of the store and the "
                "storage option catalog_access=none",
            )
        ends = credentials.expires_at
        if ends is not None and ends <= self._now():
            raise CatalogError(
                f"the catalog vends credentials that ended at {clock.text(ends)}",
                table=str(name),
                remedy="compare its clock with that of this machine",
            )
        if not self._serves(credentials, write=access is Access.READ_WRITE):
            raise CatalogError(
                f"the catalog vends credentials for {address} for reading only",
                table=str(name),
                remedy="grant the right to write to the table",
            )
        self._held, self._held_since = offered, self._now()
        return credentials

    def _require_location(self, table: CatalogTable) -> None:
        if not self._reference.concerns(Address.parse(table.location)):
            raise CatalogError(
                f"the catalog now states another location than {self._root}",
                table=str(self._reference.name),
                remedy="run again; a policy lists its tables anew",
            )

    def _serves(self, held: VendedCredentials, *, write: bool) -> bool:
        return not write or held.access is Access.READ_WRITE

    def _usable(self, address: Address, *, write: bool) -> VendedCredentials | None:
        held = credentials_for(address, self._held)
        if held is None or not self._serves(held, write=write):
            return None
        ends = held.expires_at
        return held if ends is None or self._now() < ends else None

    def _is_due(self, held: VendedCredentials) -> bool:
        if held.expires_at is None:
            return False
        margin = min(_MARGIN, (held.expires_at - self._held_since) / 4)
        return self._now() >= held.expires_at - margin

    def _describe_failure(
        self, error: DeltaMaintenanceError, held: VendedCredentials | None
    ) -> DeltaMaintenanceError:
        if held is None or held.expires_at is None:
            return error.locate(table=str(self._reference.name))
        kind = CatalogUnavailableError if error.retryable else CatalogError
        return kind(
            f"the credentials that end at {clock.text(held.expires_at)} cannot be renewed: "
            f"{error.problem}",
            table=str(self._reference.name),
            remedy=error.remedy,
        )


@lru_cache(maxsize=1024)
def source_of(reference: CatalogReference, root: Address) -> CredentialSource:
    """Returns the source for a table, the same in the whole process.

    Tasks of a Spark job open the store again and again.
    """
    return CredentialSource(reference, root, catalog=lambda: catalog_of(reference))


def catalog_of(reference: CatalogReference) -> Catalog:
    """Returns the client of a reference, the same for all tables of a catalog."""
    return _client(_Shared(reference))


class _Shared:
    """A reference, equal to every other one to the same catalog."""

    def __init__(self, reference: CatalogReference) -> None:
        self.reference = reference

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shared) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> object:
        return self.reference.name.kind, self.reference.catalog_key


@lru_cache(maxsize=16)
def _client(shared: _Shared) -> Catalog:
    return open_catalog(shared.reference.settings)
