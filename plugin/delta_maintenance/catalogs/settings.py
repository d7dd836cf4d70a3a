"""How to reach a catalog, by a policy, a connection of an orchestrator, or the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from delta_maintenance.address import CATALOG_PREFIX, CatalogKind, is_catalog_option
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.store_options import parse_flag


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """The address of one catalog and what authenticates to it. Its `repr` contains no secrets."""

    kind: CatalogKind
    address: str | None = None
    """Such as `https://HOST/api` or `thrift://HOST:9083`; None for the vendor's default."""
    catalog: str | None = None
    """The name of the catalog on its server (catalog, warehouse, account), if names of a policy
    have another first part."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the kind: `token`, `client_id`, `client_secret`, `token_address`, `scope`,
    `region` and others. Each kind refuses options that it does not know, by name."""

    def only(self, *names: str) -> Mapping[str, str]:
        """Returns the options. `InvalidRequestError` for one that is not among the names."""
        for name in sorted(self.options.keys() - set(names)):
            raise InvalidRequestError(
                f"a catalog of the kind {self.kind.name.lower()} has no option {name!r}",
                remedy=f"use one of {', '.join(sorted(names))}",
            )
        return self.options

    def flag(self, name: str) -> bool | None:
        """Returns whether an option is true; None if it is not given."""
        return parse_flag(self.options.get(name), name)


SECRETS = frozenset(
    ("token", "client_id", "client_secret", "access_key_id", "secret_access_key", "session_token")
)
"""The options of catalogs that leave this process in environment variables only."""


def settings_of(
    kind: CatalogKind, options: Mapping[str, str], environment: Mapping[str, str]
) -> CatalogSettings:
    """Returns the settings for the names of a kind.

    The storage option `catalog_uri` is the address of the catalog, `catalog_name` its name on the
    server, and any other `catalog_X` the option `X` of its client. Missing values are those of the
    environment: `UNITY_CATALOG_URI`, `UNITY_CATALOG_TOKEN` and so on, named after the kind.
    Credentials of the environment are used only if the options contain none, and only for the
    address that they belong to.
    """
    catalog_options = {
        _MEANINGS.get(name, name): value
        for option, value in options.items()
        if is_catalog_option(option)
        and (name := option.removeprefix(CATALOG_PREFIX)) not in _OF_TABLE
    }
    address, catalog = catalog_options.pop("uri", None), catalog_options.pop("name", None)
    for around in _surroundings(kind, environment):
        theirs = around.pop("uri", None)
        if address is not None and theirs is not None and not _same(address, theirs):
            continue
        address = address or theirs
        if catalog_options.keys() & SECRETS:
            around = {name: value for name, value in around.items() if name not in SECRETS}
        catalog_options = around | catalog_options
        break
    return CatalogSettings(kind=kind, address=address, catalog=catalog, options=catalog_options)


def options_of(settings: CatalogSettings) -> dict[str, str]:
    """Returns the storage options from which `settings_of` makes the settings."""
    values = {"uri": settings.address, "name": settings.catalog, **settings.options}
    return {
        CATALOG_PREFIX + _NAMES.get(name, name): value
        for name, value in values.items()
        if value is not None
    }


def address_variable(kind: CatalogKind) -> str:
    """Returns the environment variable with the address of a catalog."""
    return f"{_PREFIXES[kind]}_URI"


def is_public(name: str) -> bool:
    """Whether a storage option concerns the table's catalog and is known not to be secret."""
    return is_catalog_option(name) and name.removeprefix(CATALOG_PREFIX) in _PUBLIC


def secret_variables(settings: CatalogSettings) -> dict[str, str | None]:
    """Returns the environment variables for the secret options.

    None stands for a variable that must not be inherited, because it belongs to other credentials.
    """
    secrets = {name: value for name, value in settings.options.items() if name in SECRETS}
    if not secrets:
        return {}
    prefix = _PREFIXES[settings.kind]
    variables: dict[str, str | None] = dict.fromkeys(
        f"{prefix}_{name}" for name in ("URI", "TOKEN", "CLIENT_ID", "CLIENT_SECRET")
    )
    return variables | {f"{prefix}_{name.upper()}": value for name, value in secrets.items()}


def _surroundings(kind: CatalogKind, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yields the options in the environment, by the families of variables that a kind has."""
    for prefix, names in _FAMILIES[kind]:
        settings = {
            _MEANINGS.get(meaning, meaning): value
            for name, meaning in names.items()
            if (value := environment.get(f"{prefix}_{name}"))
        }
        if settings and (prefix != _DATABRICKS or "uri" in settings):
            if prefix == _DATABRICKS and "://" not in settings["uri"]:
                settings["uri"] = f"https://{settings['uri']}"
            if "token" in settings:
                # The other credentials are those for obtaining a token.
                settings = {
                    n: v for n, v in settings.items() if n not in ("client_id", "client_secret")
                }
            yield settings


def _same(address: str, other_address: str) -> bool:
    return address.rstrip("/").lower() == other_address.rstrip("/").lower()


_OF_TABLE = frozenset(("table", "access", "managed", "location", "table_id"))
"""Options of `reference`, which concern one table."""
_PUBLIC = _OF_TABLE | frozenset(
    ("uri", "name", "token_uri", "scope", "vend", "tags")
    + ("region", "profile", "user", "tls", "metalake", "project", "realm")
)
_MEANINGS = {"token_uri": "token_address"}
_NAMES = {meaning: name for name, meaning in _MEANINGS.items()}
_DATABRICKS = "DATABRICKS"
_PREFIXES = {
    CatalogKind.UNITY: "UNITY_CATALOG",
    CatalogKind.GLUE: "GLUE_CATALOG",
    CatalogKind.HIVE: "HIVE_METASTORE",
    CatalogKind.LAKEKEEPER: "LAKEKEEPER",
    CatalogKind.POLARIS: "POLARIS",
    CatalogKind.GRAVITINO: "GRAVITINO",
}
_USUAL = {
    "URI": "uri",
    "TOKEN": "token",
    "CLIENT_ID": "client_id",
    "CLIENT_SECRET": "client_secret",
    "TOKEN_URI": "token_uri",
    "SCOPE": "scope",
}
_FAMILIES: dict[CatalogKind, tuple[tuple[str, dict[str, str]], ...]] = {
    kind: ((prefix, _USUAL),) for kind, prefix in _PREFIXES.items()
}
# botocore reads the variables of AWS itself.
_FAMILIES[CatalogKind.GLUE] = (
    (
        _PREFIXES[CatalogKind.GLUE],
        {name.upper(): name for name in ("access_key_id", "secret_access_key", "session_token")},
    ),
)
_FAMILIES[CatalogKind.HIVE] = ((_PREFIXES[CatalogKind.HIVE], {"URI": "uri"}),)
_FAMILIES[CatalogKind.GRAVITINO] = (
    (_PREFIXES[CatalogKind.GRAVITINO], _USUAL | {"METALAKE": "metalake"}),
)
_FAMILIES[CatalogKind.UNITY] += (
    (
        _DATABRICKS,
        {
            "HOST": "uri",
            "TOKEN": "token",
            "CLIENT_ID": "client_id",
            "CLIENT_SECRET": "client_secret",
        },
    ),
)
