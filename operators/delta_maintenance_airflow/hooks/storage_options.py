"""Storage options from the fields of an Airflow connection, to a store or to a catalog.

The form of a `delta` connection has fields for every store. It may also refer to a connection of
another provider, whose package is not needed. This module makes no requests, and no message
contains a value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from delta_maintenance.address import Address, CatalogKind, StoreKind, is_catalog_name
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.store_options import Exposure, spellings_by_form_field, spellings_exposed

NOT_FOR_STORES = frozenset({"storage_conn_id", "spark_conn_id", "other_writers", "test_address"})
"""Fields of the form that are not storage options."""

_WITHOUT_OPTIONS = (StoreKind.LOCAL, StoreKind.MEMORY)
_FIELDS = spellings_by_form_field()
"""The storage option of each form field, by store. Any other extra is an option with the same
name.
"""

_HARMLESS = spellings_exposed(Exposure.PUBLIC)
_UNMASKED = spellings_exposed(Exposure.PUBLIC, Exposure.IDENTITY)
"""Options that are not secret: masking their values would make logs unreadable."""
KINDS: Mapping[str, CatalogKind] = {
    "delta_unity_catalog": CatalogKind.UNITY,
    "delta_glue": CatalogKind.GLUE,
    "delta_hive_metastore": CatalogKind.HIVE,
    "delta_lakekeeper": CatalogKind.LAKEKEEPER,
    "delta_polaris": CatalogKind.POLARIS,
    "delta_gravitino": CatalogKind.GRAVITINO,
}
"""The kinds of catalogs by connection type."""
_NOT_FOR_CATALOGS = frozenset({"storage_conn_id", "spark_conn_id", "other_writers"})
_RENAMED = {"catalog": "name", "token_address": "token_uri"}


def store_of(address: str) -> StoreKind | None:
    """Returns the kind of store, such as `s3`; None for local tables."""
    kind = Address.parse(address).kind
    return None if kind in _WITHOUT_OPTIONS else kind


def extra_of(connection: Any) -> dict[str, Any]:
    """Returns the extra of a connection. Raises `InvalidRequestError` if it is not a JSON
    object.
    """
    # Not `extra_dejson`: it blocks on the supervisor, which is not allowed in an event loop.
    try:
        extra = json.loads(connection.extra or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise InvalidRequestError(
            f"the extra of the connection {connection.conn_id!r} is not a JSON object",
            remedy="correct the connection",
        )
    return extra


def own_options(connection: Any, address: str | None) -> dict[str, str]:
    """Returns the options in a `delta` connection, for the store at an address or for any store;
    or those in a connection of a catalog.
    """
    extra = extra_of(connection)
    if connection.conn_type in KINDS:
        return catalog_options(connection, extra)
    fields = {"login": connection.login, "password": connection.password, **extra}
    store = store_of(address) if address is not None else None
    options = {}
    for name, value in fields.items():
        meanings = _FIELDS.get(name, {})
        option = name if name not in _FIELDS else meanings.get(store or next(iter(meanings)))
        # Ignore fields for other stores, and unset switches.
        unset = value is None or value == "" or (name in _FIELDS and value is False)
        if option is None or name in NOT_FOR_STORES or unset:
            continue
        options[option] = _text(value)
    return options


def referred_options(connection: Any, address: str | None = None) -> dict[str, str]:
    """Returns the storage options of a connection to which another one refers.

    The types are `delta`, and those of other providers: `aws`, `google_cloud_platform`, `wasb` and
    `adls`. Raises `InvalidRequestError` for other types, and for authentication methods that only
    their providers implement.
    """
    if connection.conn_type == "delta":
        # The address of a named table, and so its store, is not known yet.
        return own_options(connection, None if address and is_catalog_name(address) else address)
    read = _REFERRED.get(connection.conn_type or "")
    if read is None:
        raise InvalidRequestError(
            f"the connection {connection.conn_id!r} is of the type {connection.conn_type!r}, which "
            "does not contain access to a store",
            remedy=f"refer to one of {', '.join(sorted(_REFERRED))}",
        )
    options = read(connection, extra_of(connection))
    return {name: _text(value) for name, value in options.items() if value}


def without_credentials(options: Mapping[str, str]) -> dict[str, str]:
    """Returns only the options that are known not to be credentials."""
    return {
        name: value
        for name, value in options.items()
        if name.lower() in _HARMLESS or _of_catalog(name)
    }


def _of_catalog(name: str) -> bool:
    # Imported here because it is seldom needed, and would slow down Dag parsing.
    from delta_maintenance.catalogs.settings import is_public

    return is_public(name)


def secrets_in(options: Mapping[str, str]) -> Iterator[str]:
    """Yields every text that must not be printed, in each form in which it might appear."""
    for name, value in options.items():
        if name.lower() in _UNMASKED or name == "catalog_client_id" or _of_catalog(name):
            continue
        yield value
        # The parts of the secret that can be used separately, and might appear in a log.
        for _, value_of_parameter in parse_qsl(value) if "sig=" in value else ():
            yield value_of_parameter
        if "AccountKey=" in value:
            yield value.partition("AccountKey=")[2].partition(";")[0]
        if value.lstrip().startswith("{"):
            yield from _key_of(value)


def _aws(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(connection, extra, ("role_arn", "assume_role_method", "federation"), "profile_name")
    session = extra.get("session_kwargs") or {}
    of_s3 = (extra.get("service_config") or {}).get("s3") or {}
    unsigned = (extra.get("config_kwargs") or {}).get("signature_version") == "unsigned"
    region = extra.get("region_name") or session.get("region_name")
    return {
        "AWS_ACCESS_KEY_ID": connection.login or extra.get("aws_access_key_id"),
        "AWS_SECRET_ACCESS_KEY": connection.password or extra.get("aws_secret_access_key"),
        "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
        "AWS_PROFILE": extra.get("profile_name") or session.get("profile_name"),
        "region": of_s3.get("region_name") or region,
        "endpoint_url": of_s3.get("endpoint_url") or extra.get("endpoint_url"),
        "AWS_SKIP_SIGNATURE": unsigned,
    }


def _google(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name.removeprefix(_OLD_PREFIX): value for name, value in extra.items()}
    refused = ("key_secret_name", "impersonation_chain", "idp_issuer_url")
    _refuse(connection, fields, refused, "key_path or keyfile_dict")
    key, config = fields.get("keyfile_dict"), fields.get("credential_config_file")
    is_key = isinstance(config, dict) or str(config or "").lstrip().startswith("{")
    key = key or (config if is_key else None)
    return {
        "GOOGLE_APPLICATION_CREDENTIALS": fields.get("key_path") or (None if is_key else config),
        "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key) if isinstance(key, dict) else key,
        "GOOGLE_SKIP_SIGNATURE": fields.get("is_anonymous"),
    }


def _azure(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    if extra.get("connection_string"):
        return {"AZURE_STORAGE_CONNECTION_STRING": extra["connection_string"]}
    tenant = extra.get("tenant_id")
    host = urlsplit(connection.host or "")
    account = (host.hostname or connection.host or "").partition(".")[0]
    account = account or ("" if tenant else connection.login or "")
    options = {"AZURE_STORAGE_ACCOUNT_NAME": account}
    if tenant:
        return {
            **options,
            "AZURE_TENANT_ID": tenant,
            "AZURE_CLIENT_ID": connection.login,
            "AZURE_CLIENT_SECRET": connection.password,
        }
    signature = str(extra.get("sas_token") or "")
    if signature:
        # The provider accepts the token alone, and the address in the form that the portal shows.
        return {**options, "AZURE_STORAGE_SAS_TOKEN": signature.rpartition("?")[2]}
    key = extra.get("shared_access_key") or connection.password
    return {**options, "AZURE_STORAGE_ACCOUNT_KEY": key}


def _refuse(
    connection: Any, extra: Mapping[str, Any], names: tuple[str, ...], instead: str
) -> None:
    for name in names:
        if extra.get(name):
            raise InvalidRequestError(
                f"the connection {connection.conn_id!r} logs in by {name}, which only its own "
                "provider supports",
                remedy=f"give the worker that identity, or use {instead}",
            )


def _key_of(value: str) -> Iterator[str]:
    """Yields the private key in a key file of Google, plain and as a JSON string."""
    try:
        key = json.loads(value).get("private_key")
    except (ValueError, AttributeError):
        return
    if isinstance(key, str):
        yield key
        yield json.dumps(key)[1:-1]
        yield from (line for line in key.splitlines() if line and "-----" not in line)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_REFERRED = {"aws": _aws, "google_cloud_platform": _google, "wasb": _azure, "adls": _azure}
_OLD_PREFIX = "extra__google_cloud_platform__"


def catalog_options(connection: Any, extra: Mapping[str, Any]) -> dict[str, str]:
    """Returns the options in the connection of a catalog (`catalogs.settings.settings_of`)."""
    kind = KINDS[connection.conn_type]
    options = {
        _RENAMED.get(name, name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in extra.items()
        if name not in _NOT_FOR_CATALOGS and value not in (None, "")
    }
    if connection.host:
        options["uri"] = _catalog_address(connection, kind)
    if kind is CatalogKind.GLUE:
        secrets = {"access_key_id": connection.login, "secret_access_key": connection.password}
    elif kind is CatalogKind.HIVE:
        secrets = {"user": connection.login}
    elif connection.login:
        secrets = {"client_id": connection.login, "client_secret": connection.password}
    else:
        secrets = {"token": connection.password}
    options |= {name: value for name, value in secrets.items() if value}
    return {f"catalog_{name}": value for name, value in options.items()}


def _catalog_address(connection: Any, kind: CatalogKind) -> str:
    host: str = connection.host
    if "://" in host:
        return host
    scheme = "thrift" if kind is CatalogKind.HIVE else connection.schema or "https"
    port = f":{connection.port}" if connection.port else ""
    return f"{scheme}://{host}{port}"
