"""The storage options of WebHDFS, with the names of fsspec and of Hadoop's environment."""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core.option_values import flag, named_values
from delta_maintenance.storage.core.paths import check_directory


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
        values = named_values(given, NAMES, store="HDFS")
        around = environment or {}
        user, _, server = address.authority.rpartition("@")
        scheme, port = ("https", 9871) if address.scheme == "swebhdfs" else ("http", 9870)
        named_servers = [server, *filter(None, values.get("name_nodes", "").split(","))]
        servers = [name if ":" in name else f"{name}:{port}" for name in named_servers]
        if address.kind is not StoreKind.HDFS or not all(map(_SERVER.fullmatch, servers)):
            # The address is not repeated, because a malformed one may contain a password.
            raise InvalidRequestError(
                "the name node's HTTP server is not given as HOST:PORT",
                remedy="write webhdfs://HOST:9870/PATH, and other name nodes as "
                "name_nodes=HOST:PORT,HOST:PORT",
            )
        check_directory(address.path)
        kerberos = bool(flag(values.get("kerberos"), "kerberos"))
        token = values.get("token")
        if token is None and not kerberos and "user" not in values:
            token = around.get(_TOKEN) or None
        named = values.get("user") or user or None
        if named is None and token is None and not kerberos:
            named = around.get(_USER) or getpass.getuser()
        return cls(
            endpoints=tuple(dict.fromkeys(f"{scheme}://{server}" for server in servers)),
            user=named,
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


_SERVER = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_USER = "HADOOP_USER_NAME"
_PROXY = "HADOOP_PROXY_USER"
_TOKEN = "HADOOP_DELEGATION_TOKEN"
NAMES = {
    "user": "user",
    _USER: "user",
    "proxy_user": "proxy_user",
    "proxy_to": "proxy_user",
    _PROXY: "proxy_user",
    "kerberos": "kerberos",
    "name_nodes": "name_nodes",
    "token": "token",
    _TOKEN: "token",
}
