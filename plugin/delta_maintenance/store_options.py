"""The storage options of all stores: one row for each option, from which all else derives.

The names that a store accepts, the variables of the environment, what may leave the process without
credentials, what logs mask, and the fields of a connection's form.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from delta_maintenance.address import StoreKind
from delta_maintenance.errors import InvalidRequestError


class Exposure(Enum):
    """Where the value of an option may appear."""

    PUBLIC = "public"
    """Everywhere."""
    IDENTITY = "identity"
    """In logs. It selects credentials, and is passed on only together with them."""
    SECRET = "secret"
    """Nowhere."""


@dataclass(frozen=True, slots=True)
class StorageOption:
    """One option of one store."""

    store: StoreKind
    name: str
    """Its name in the parsed options of the store."""
    spellings: tuple[str, ...]
    """The names that users write, as s3fs, gcsfs, adlfs and delta-rs do. Upper-case ones may be
    written in any case."""
    exposure: Exposure
    form_field: str | None
    """The field of an orchestrator's form for connections; its value gets the first spelling."""

    @property
    def variable(self) -> str:
        """The environment variable of the option; empty if it has none."""
        return next((spelling for spelling in self.spellings if spelling.isupper()), "")


def parse_flag(value: str | None, name: str) -> bool | None:
    """Parses true or false in the spellings of YAML and the environment; None for None.

    `InvalidRequestError`, which names the option, for everything else: the wrong answer could send
    credentials without encryption.
    """
    if value is None:
        return None
    text = value.strip().lower()
    if text in ("true", "yes", "on", "1"):
        return True
    if text in ("false", "no", "off", "0"):
        return False
    raise InvalidRequestError(
        f"the option {name} is neither true nor false", remedy="write true or false"
    )


def names_of(store: StoreKind) -> dict[str, str]:
    """Returns the names of the options of a store by spelling."""
    rows = (option for option in OPTIONS if option.store is store)
    return {spelling: option.name for option in rows for spelling in option.spellings}


def variables_of(store: StoreKind) -> dict[str, str]:
    """Returns the environment variables by the names of the options of a store."""
    return {row.name: row.variable for row in OPTIONS if row.store is store and row.variable}


def options_spelled(spelling: str) -> list[StorageOption]:
    """Returns the options of all stores with options that are known, which this spelling means."""
    meant = {spelling, spelling.upper()}
    rows = (option for option in OPTIONS if option.store is not StoreKind.OTHER)
    return [option for option in rows if not meant.isdisjoint(option.spellings)]


def spellings_exposed(*exposures: Exposure) -> frozenset[str]:
    """Returns the spellings, in lower case, that have one of these exposures in every store."""
    exposed, hidden = set[str](), set[str]()
    for option in OPTIONS:
        names = exposed if option.exposure in exposures else hidden
        names.update(map(str.lower, option.spellings))
    return frozenset(exposed - hidden)


def spellings_by_form_field() -> dict[str, dict[StoreKind, str]]:
    """Returns the spelling that the value of a form field gets, by field and store."""
    fields: dict[str, dict[StoreKind, str]] = {}
    for option in OPTIONS:
        if option.form_field is not None:
            fields.setdefault(option.form_field, {})[option.store] = option.spellings[0]
    return fields


def _rows(store: StoreKind, *rows: tuple[str, str, Exposure, str | None]) -> list[StorageOption]:
    return [
        StorageOption(store, name, tuple(spellings.split()), exposure, form_field)
        for name, spellings, exposure, form_field in rows
    ]


_PUBLIC, _IDENTITY, _SECRET = Exposure
OPTIONS = (
    *_rows(
        StoreKind.S3,
        ("access_key_id", "AWS_ACCESS_KEY_ID key", _IDENTITY, "login"),
        ("secret_access_key", "AWS_SECRET_ACCESS_KEY secret", _SECRET, "password"),
        ("session_token", "AWS_SESSION_TOKEN token", _SECRET, "session_token"),
        ("region", "region AWS_REGION AWS_DEFAULT_REGION", _PUBLIC, "region"),
        ("endpoint_url", "endpoint_url AWS_ENDPOINT_URL", _PUBLIC, "endpoint_url"),
        ("anonymous", "AWS_SKIP_SIGNATURE anon", _PUBLIC, "anonymous"),
        ("profile", "profile AWS_PROFILE", _IDENTITY, None),
        ("allow_http", "AWS_ALLOW_HTTP", _PUBLIC, None),
    ),
    *_rows(
        StoreKind.GCS,
        ("token", "token", _SECRET, None),
        (
            "key_file",
            "GOOGLE_APPLICATION_CREDENTIALS GOOGLE_SERVICE_ACCOUNT GOOGLE_SERVICE_ACCOUNT_PATH",
            _IDENTITY,
            "google_key_file",
        ),
        ("key", "GOOGLE_SERVICE_ACCOUNT_KEY", _SECRET, "google_key"),
        ("access_token", "GOOGLE_OAUTH_ACCESS_TOKEN", _SECRET, None),
        ("anonymous", "GOOGLE_SKIP_SIGNATURE", _PUBLIC, "anonymous"),
        ("endpoint_url", "endpoint_url", _PUBLIC, "endpoint_url"),
    ),
    *_rows(
        StoreKind.AZURE,
        ("account", "AZURE_STORAGE_ACCOUNT_NAME account_name", _PUBLIC, "azure_account_name"),
        (
            "account_key",
            "AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_ACCESS_KEY account_key",
            _SECRET,
            "azure_account_key",
        ),
        ("sas_token", "AZURE_STORAGE_SAS_TOKEN sas_token", _SECRET, "azure_sas_token"),
        ("bearer_token", "AZURE_STORAGE_TOKEN bearer_token", _SECRET, None),
        ("connection_string", "AZURE_STORAGE_CONNECTION_STRING connection_string", _SECRET, None),
        ("tenant_id", "AZURE_TENANT_ID tenant_id", _IDENTITY, "azure_tenant_id"),
        ("client_id", "AZURE_CLIENT_ID client_id", _IDENTITY, "azure_client_id"),
        ("client_secret", "AZURE_CLIENT_SECRET client_secret", _SECRET, "azure_client_secret"),
        ("endpoint", "endpoint AZURE_STORAGE_ENDPOINT", _PUBLIC, "endpoint_url"),
        ("anonymous", "AZURE_SKIP_SIGNATURE anon", _PUBLIC, "anonymous"),
    ),
    *_rows(
        StoreKind.HDFS,
        # `hdfs:` takes everything else from the environment, as Hadoop's own clients do.
        ("config_dir", "config_dir", _IDENTITY, None),
        ("kerberos_principal", "kerberos_principal", _IDENTITY, None),
        ("kerberos_keytab", "kerberos_keytab", _IDENTITY, None),
        ("kerberos_cache", "kerberos_cache", _IDENTITY, None),
        # `webhdfs:` and `swebhdfs:`
        ("user", "user HADOOP_USER_NAME", _PUBLIC, "login"),
        ("proxy_user", "proxy_user proxy_to HADOOP_PROXY_USER", _PUBLIC, None),
        ("kerberos", "kerberos", _PUBLIC, None),
        ("name_nodes", "name_nodes", _PUBLIC, None),
        ("token", "token HADOOP_DELEGATION_TOKEN", _SECRET, None),
    ),
    *_rows(
        # Of most other file systems. They have further options, whose names are not known.
        StoreKind.OTHER,
        ("username", "username", _IDENTITY, "login"),
        ("password", "password", _SECRET, "password"),
    ),
)
