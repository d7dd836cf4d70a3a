"""From the credentials that catalogs vend to storage options.

Two vocabularies are understood: that of Unity Catalog (`azure.sas-token`, `gcs.oauth-token`) and
that of the REST catalog of Iceberg (`adls.sas-token.ACCOUNT.dfs.core.windows.net`,
`gcs.oauth2.token`). Both write `s3.access-key-id` for S3. Keys that do not authenticate, and that
no store needs, are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from delta_maintenance.address import Address
from delta_maintenance.catalogs.models import Access, VendedCredentials
from delta_maintenance.errors import CatalogError, InvalidRequestError

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
    shared = _texts(config)
    found = []
    for entry in list(entries) or [{}]:
        prefix = entry.get("prefix")
        prefix = prefix if isinstance(prefix, str) and prefix else location
        held = {**shared, **_texts(entry.get("config"))}
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
        found.append(
            VendedCredentials(
                prefix=prefix,
                access=_ACCESS.get(str(entry.get("operation")), access),
                expires_at=_time(ends) if ends is not None else _earliest(held),
                options=options,
            )
        )
    return tuple(found)


def temporary_credentials(
    answer: Mapping[str, Any], *, location: str, access: Access
) -> tuple[VendedCredentials, ...]:
    """Converts the answer of `temporary-table-credentials` of Unity Catalog.

    Empty if it contains no credentials, as for a table in a folder of the server.
    """
    aws = _texts(answer.get("aws_temp_credentials"))
    config = {
        "s3.access-key-id": aws.get("access_key_id"),
        "s3.secret-access-key": aws.get("secret_access_key"),
        "s3.session-token": aws.get("session_token"),
        "azure.sas-token": _texts(answer.get("azure_user_delegation_sas")).get("sas_token"),
        "azure.bearer-token": _texts(answer.get("azure_aad")).get("aad_token"),
        "gcs.oauth-token": _texts(answer.get("gcp_oauth_token")).get("oauth_token"),
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
    wanted = address if isinstance(address, Address) else Address.parse(address)
    best, length = None, -1
    for each in credentials:
        prefix = _parsed(each.prefix)
        if prefix is not None and _contains(prefix, wanted) and len(prefix.path) > length:
            best, length = each, len(prefix.path)
    return best


# Asked before each request to a store.
@lru_cache(maxsize=4096)
def _parsed(prefix: str) -> Address | None:
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
    for wanted in (host, host.partition(".")[0]):
        if wanted in theirs:
            return wanted, theirs[wanted]
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


def _texts(values: object) -> dict[str, str]:
    if not isinstance(values, Mapping):
        return {}
    return {str(name): value for name, value in values.items() if isinstance(value, str)}


_REGIONS = ("client.region", "s3.client.region", "s3.region")
_SAS = "adls.sas-token."
_ACCESS = {"READ": Access.READ, "READ_WRITE": Access.READ_WRITE}
