"""Storage options of Azure, with the names of adlfs and of delta-rs."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core.option_values import check_endpoint, named_values
from delta_maintenance.storage.core.paths import check_directory
from delta_maintenance.store_options import names_of, parse_flag, variables_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureAddress:
    """The location of a table: `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH`, or
    `az://CONTAINER/PATH` with the account in the options.
    """

    container: str
    prefix: str
    """Common prefix of the names of all blobs below the root."""
    account: str | None = None
    endpoint: str | None = None
    """The blob endpoint of the account."""

    def aliases(self, endpoint: str) -> Iterator[str]:
        """Every address that engines use for this location, given the account's blob endpoint."""
        path = f"/{self.prefix.rstrip('/')}" if self.prefix else ""
        for scheme in ("az", "abfss", "abfs", "azure"):
            yield f"{scheme}://{self.container}{path}"
        server, blob, domain = endpoint.partition(".blob.")
        yield f"{endpoint}/{self.container}{path}"
        if blob:
            account = server.removeprefix("https://")
            for scheme in ("abfss", "abfs"):
                yield f"{scheme}://{self.container}@{account}.dfs.{domain}{path}"
            for scheme in ("wasbs", "wasb"):
                yield f"{scheme}://{self.container}@{account}.blob.{domain}{path}"
            yield f"{server}.dfs.{domain}/{self.container}{path}"

    @classmethod
    def of(cls, address: Address) -> AzureAddress:
        """`InvalidRequestError` for an address of another form."""
        container, at, host = address.authority.partition("@")
        known_host = _HOST.fullmatch(host) if at else None
        fits = address.kind is StoreKind.AZURE and _CONTAINER.fullmatch(container)
        if not fits or (at and known_host is None):
            # The address is not repeated, because a malformed one may contain a password.
            raise InvalidRequestError(
                "the address is not of the form abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
                " or az://CONTAINER/PATH",
                remedy="correct it; pass credentials as storage options",
            )
        return cls(
            container=container,
            prefix=f"{check_directory(address.path)}/" if address.path else "",
            account=known_host[1] if known_host else None,
            # Both host names serve the same files; only the blob endpoint supports If-None-Match.
            endpoint=f"https://{known_host[1]}.{known_host[2] or ''}blob.{known_host[3]}"
            if known_host
            else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureOptions:
    """The account and the credentials.

    Without credentials, the default ones of Azure are used: those of the environment, of the
    machine, or of the az command.
    """

    account: str
    endpoint: str
    """The blob endpoint of the account, without a trailing slash."""
    account_key: str | None = field(default=None, repr=False)
    """Base64."""
    sas_token: str | None = field(default=None, repr=False)
    """A shared access signature, without a leading question mark."""
    bearer_token: str | None = field(default=None, repr=False)
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    anonymous: bool = False

    @classmethod
    def parse(
        cls,
        given: Mapping[str, str] | None,
        address: AzureAddress,
        environment: Mapping[str, str] | None = None,
    ) -> AzureOptions:
        """Parses options from a command line, completed from the environment.

        Credentials of the environment are used only if the options contain none, and only for the
        account that they belong to. `InvalidRequestError` for an unknown name, a malformed value,
        two names of one option with different values, and a missing account. Messages never contain
        values, because they may be secrets.
        """
        values = _expand(named_values(given, names_of(StoreKind.AZURE), store="Azure"))
        anonymous = bool(parse_flag(values.pop("anonymous", None), "AZURE_SKIP_SIGNATURE"))
        around = _surroundings(environment or {})
        account = values.get("account") or address.account or around.get("account")
        if account is None:
            raise InvalidRequestError(
                "the address names no storage account", remedy="give AZURE_STORAGE_ACCOUNT_NAME"
            )
        if address.account is not None and account != address.account:
            raise InvalidRequestError(
                "the storage options name another account than the address",
                remedy="omit the account in the options",
            )
        if not anonymous and not values.keys() & _CREDENTIALS:
            theirs = around.get("account", account) == account
            values |= {name: around[name] for name in _CREDENTIALS & around.keys() if theirs}
        endpoint = values.get("endpoint") or address.endpoint or around.get("endpoint")
        endpoint = endpoint or f"https://{account}.blob.core.windows.net"
        check_endpoint(endpoint, "endpoint")
        secret = {name: values[name] for name in _CREDENTIALS & values.keys()}
        _check_credentials(secret, anonymous=anonymous)
        if "sas_token" in secret:
            secret["sas_token"] = secret["sas_token"].removeprefix("?")
        return cls(account=account, endpoint=endpoint.rstrip("/"), anonymous=anonymous, **secret)

    @property
    def has_credentials(self) -> bool:
        """Whether the options select credentials."""
        return self.anonymous or any(getattr(self, name) for name in _CREDENTIALS)

    def public(self) -> dict[str, str]:
        """Returns the options that are not secret, in a form that `parse` accepts."""
        values = {
            "account_name": self.account,
            "endpoint": self.endpoint,
            "anon": "true" if self.anonymous else None,
        }
        if self.client_secret is None:
            values |= {"tenant_id": self.tenant_id, "client_id": self.client_id}
        return {name: value for name, value in values.items() if value is not None}

    def secrets(self) -> dict[str, str | None]:
        """Returns the environment variables for the secret options.

        None stands for a variable that must not be inherited, because only one kind of credentials
        may be set.
        """
        values = {
            "AZURE_STORAGE_ACCOUNT_KEY": self.account_key,
            "AZURE_STORAGE_SAS_TOKEN": self.sas_token,
            "AZURE_STORAGE_TOKEN": self.bearer_token,
            "AZURE_CLIENT_SECRET": self.client_secret,
        }
        if not any(values.values()):
            return {}
        if self.client_secret is not None:
            values |= {"AZURE_TENANT_ID": self.tenant_id, "AZURE_CLIENT_ID": self.client_id}
        return {**values, "AZURE_STORAGE_CONNECTION_STRING": None}


def _expand(values: dict[str, str]) -> dict[str, str]:
    """Adds the values of a connection string. Values that are given separately take precedence."""
    text = values.pop("connection_string", None)
    if text is None:
        return values
    settings = dict(setting.split("=", 1) for setting in text.split(";") if "=" in setting)
    held = {meaning: settings[name] for name, meaning in _CONNECTION.items() if name in settings}
    if not held:
        raise InvalidRequestError(
            "the connection string of Azure names neither account nor credentials",
            remedy="copy it anew",
        )
    return held | values


def _surroundings(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the values of the environment, with credentials of one kind only."""
    values = _expand(
        {
            name: environment[variable]
            for name, variable in variables_of(StoreKind.AZURE).items()
            # All other variables are read by azure-identity itself.
            if variable.startswith("AZURE_STORAGE_") and environment.get(variable)
        }
    )
    kinds = [name for name in _ALONE if name in values]
    principal = {name: environment.get(variable) for name, variable in _PRINCIPAL.items()}
    if not kinds and all(principal.values()):
        values |= {name: value for name, value in principal.items() if value}
    return {name: value for name, value in values.items() if name not in kinds[1:]}


def _check_credentials(secret: Mapping[str, str], *, anonymous: bool) -> None:
    principal = {"tenant_id", "client_id", "client_secret"} & secret.keys()
    if "client_secret" in secret and len(principal) < 3:
        raise InvalidRequestError(
            "a client secret needs tenant and client",
            remedy="give AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET",
        )
    kinds = [name for name in _ALONE if name in secret]
    kinds += ["client_secret"] if "client_secret" in secret else []
    if len(kinds) + anonymous > 1:
        raise InvalidRequestError(
            "the storage options name several credentials for Azure",
            remedy="give one of account_key, sas_token, bearer_token, client_secret, anon",
        )
    try:
        base64.b64decode(secret.get("account_key", ""), validate=True)
    except binascii.Error:
        malformed = True
    else:
        malformed = False
    if malformed:
        raise InvalidRequestError(
            "the account key of Azure is not base64", remedy="copy it anew, signs at its end too"
        )


_ALONE = ("account_key", "sas_token", "bearer_token")
_PRINCIPAL = {
    name: variable
    for name, variable in variables_of(StoreKind.AZURE).items()
    if name in ("tenant_id", "client_id", "client_secret")
}
_CREDENTIALS = frozenset((*_ALONE, *_PRINCIPAL))
_CONNECTION = {
    "AccountName": "account",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_token",
    "BlobEndpoint": "endpoint",
}
_CONTAINER = re.compile(r"\$web|[a-z0-9](?:-?[a-z0-9]){2,62}")
_HOST = re.compile(r"([a-z0-9-]+)\.((?:z\d+\.)?)(?:dfs|blob)\.((?:[a-z0-9-]+\.)+[a-z]+)")
