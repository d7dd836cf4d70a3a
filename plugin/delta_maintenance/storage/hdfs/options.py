"""The storage options of HDFS, for both interfaces."""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core.option_values import named_values
from delta_maintenance.storage.core.paths import check_directory
from delta_maintenance.store_options import names_of, parse_flag


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """The name nodes for the RPC protocol, and the Kerberos credentials.

    User, delegation tokens and the configuration folder come from the environment of the process,
    as for Hadoop's own clients.
    """

    url: str | None
    """`hdfs://HOST:PORT` or `hdfs://NAMESERVICE`; None for `fs.defaultFS` of the configuration."""
    config_dir: str | None = None
    """Folder of `core-site.xml` and `hdfs-site.xml`."""
    kerberos_principal: str | None = None
    kerberos_keytab: str | None = None
    """Path of a keytab."""
    kerberos_cache: str | None = None
    """Path of a ticket cache."""
    properties: tuple[tuple[str, str], ...] = ()
    """Hadoop properties that override the configuration, sorted by name."""

    @classmethod
    def parse(cls, given: Mapping[str, str] | None, address: Address) -> NativeOptions:
        """Parses options from a command line.

        `InvalidRequestError` for an unknown name, and for an address that is not of the form
        `hdfs://HOST:PORT/PATH` or `hdfs://NAMESERVICE/PATH`. Messages never contain values.
        """
        properties = {
            name: value for name, value in (given or {}).items() if _PROPERTY.fullmatch(name)
        }
        options = {name: value for name, value in (given or {}).items() if name not in properties}
        if any(name.lower() in _OF_THE_ENVIRONMENT for name in options) or "@" in address.authority:
            raise InvalidRequestError(
                "hdfs: addresses take the user and the delegation tokens from the environment only",
                remedy="set HADOOP_USER_NAME, HADOOP_PROXY_USER or HADOOP_TOKEN_FILE_LOCATION, or "
                "write webhdfs://HOST:9870/PATH, which has options for them",
            )
        values = named_values(options, _NATIVE_NAMES, store="HDFS")
        if address.authority and not _NAME_NODE.fullmatch(address.authority):
            # The address is not repeated, because a malformed one may contain a password.
            raise InvalidRequestError(
                "the name node is not given as HOST:PORT or by the name of its service",
                remedy="write hdfs://HOST:8020/PATH, or hdfs://NAMESERVICE/PATH and config_dir",
            )
        check_directory(address.path)
        if values.keys() & _OF_A_PRINCIPAL and "kerberos_principal" not in values:
            raise InvalidRequestError(
                "a keytab or ticket cache is given without its principal",
                remedy="add kerberos_principal=NAME@REALM",
            )
        return cls(
            url=f"hdfs://{address.authority}" if address.authority else None,
            properties=tuple(sorted(properties.items())),
            **values,
        )

    def public(self) -> dict[str, str]:
        """Returns the options that are not secret, in a form that `parse` accepts."""
        values = {name: getattr(self, name) for name in _NATIVE_NAMES}
        return {name: value for name, value in values.items() if value} | dict(self.properties)

    def secrets(self) -> dict[str, str | None]:
        """Returns the environment variables for the secret options: none."""
        return {}


# Properties of other file systems can be secrets, such as `fs.s3a.secret.key`.
_PROPERTY = re.compile(r"dfs\.[A-Za-z0-9_.-]+|fs\.defaultFS|hadoop\.security\.authentication")
_NAME_NODE = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_OF_THE_ENVIRONMENT = frozenset(
    ("user", "hadoop_user_name", "proxy_user", "hadoop_proxy_user", "token")
)
_OF_A_PRINCIPAL = frozenset(("kerberos_keytab", "kerberos_cache"))
_NATIVE_NAMES = {
    spelling: name
    for spelling, name in names_of(StoreKind.HDFS).items()
    if name in NativeOptions.__dataclass_fields__
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHdfsOptions:
    """The name nodes, and the user for their requests.

    A delegation token takes precedence over Kerberos, and Kerberos over a user name. Without any of
    them, requests name the user of this process, as Hadoop's own clients do.
    """

    endpoints: tuple[str, ...]
    """The HTTP servers of all name nodes of one file system, such as `https://HOST:PORT`."""
    user: str | None = None
    proxy_user: str | None = None
    """The user on whose behalf requests are made."""
    kerberos: bool = False
    token: str | None = field(default=None, repr=False)
    """A delegation token in the form in which the name node returns it: the `urlString` of
    GETDELEGATIONTOKEN.
    """

    @classmethod
    def parse(
        cls,
        given: Mapping[str, str] | None,
        address: Address,
        environment: Mapping[str, str] | None = None,
    ) -> WebHdfsOptions:
        """Parses options from a command line, completed from the environment.

        `InvalidRequestError` for an unknown name, a malformed value, and an address that is not of
        the form `webhdfs://USER@HOST:PORT/PATH`. Messages never contain values.
        """
        values = named_values(given, _WEBHDFS_NAMES, store="HDFS")
        around = environment or {}
        user, _, server = address.authority.rpartition("@")
        scheme, port = ("https", 9871) if address.scheme == "swebhdfs" else ("http", 9870)
        named_servers = [server, *filter(None, values.get("name_nodes", "").split(","))]
        servers = [name if ":" in name else f"{name}:{port}" for name in named_servers]
        if address.kind is not StoreKind.HDFS or not all(map(_HTTP_SERVER.fullmatch, servers)):
            # The address is not repeated, because a malformed one may contain a password.
            raise InvalidRequestError(
                "the name node's HTTP server is not given as HOST:PORT",
                remedy="write webhdfs://HOST:9870/PATH, and other name nodes as "
                "name_nodes=HOST:PORT,HOST:PORT",
            )
        check_directory(address.path)
        kerberos = bool(parse_flag(values.get("kerberos"), "kerberos"))
        token = values.get("token")
        if token is None and not kerberos and "user" not in values:
            token = around.get(_TOKEN) or None
        user_name = values.get("user") or user or None
        if user_name is None and token is None and not kerberos:
            user_name = around.get(_USER) or getpass.getuser()
        return cls(
            endpoints=tuple(dict.fromkeys(f"{scheme}://{server}" for server in servers)),
            user=user_name,
            proxy_user=values.get("proxy_user") or around.get(_PROXY) or None,
            kerberos=kerberos,
            token=token,
        )

    def public(self) -> dict[str, str]:
        """Returns the options that are not secret, in a form that `parse` accepts."""
        values = {
            "user": self.user,
            "proxy_user": self.proxy_user,
            "kerberos": "true" if self.kerberos else None,
            "name_nodes": ",".join(url.partition("://")[2] for url in self.endpoints[1:]),
        }
        return {name: value for name, value in values.items() if value}

    def secrets(self) -> dict[str, str | None]:
        """Returns the environment variables for the secret options."""
        return {_TOKEN: self.token} if self.token is not None else {}


_HTTP_SERVER = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_USER = "HADOOP_USER_NAME"
_PROXY = "HADOOP_PROXY_USER"
_TOKEN = "HADOOP_DELEGATION_TOKEN"
_WEBHDFS_NAMES = {
    spelling: name
    for spelling, name in names_of(StoreKind.HDFS).items()
    if spelling not in _NATIVE_NAMES
}


def parse_options(
    address: Address, given: Mapping[str, str] | None, environment: Mapping[str, str] | None = None
) -> NativeOptions | WebHdfsOptions:
    """Parses the options of an `hdfs:`, `webhdfs:` or `swebhdfs:` address.

    `InvalidRequestError` for an address or option that is not understood.
    """
    if address.scheme == "hdfs":
        return NativeOptions.parse(given, address)
    return WebHdfsOptions.parse(given, address, environment)
