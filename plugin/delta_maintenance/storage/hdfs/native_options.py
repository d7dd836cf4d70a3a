"""The storage options of `hdfs:` addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core.option_values import named_values
from delta_maintenance.storage.core.paths import check_directory


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
        others = {name: value for name, value in (given or {}).items() if name not in properties}
        if any(name.lower() in _OF_THE_ENVIRONMENT for name in others) or "@" in address.authority:
            raise InvalidRequestError(
                "hdfs: addresses take the user and the delegation tokens from the environment only",
                remedy="set HADOOP_USER_NAME, HADOOP_PROXY_USER or HADOOP_TOKEN_FILE_LOCATION, or "
                "write webhdfs://HOST:9870/PATH, which has options for them",
            )
        values = named_values(others, NAMES, store="HDFS")
        if address.authority and not _SERVER.fullmatch(address.authority):
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
        values = {name: getattr(self, name) for name in NAMES}
        return {name: value for name, value in values.items() if value} | dict(self.properties)

    def secrets(self) -> dict[str, str | None]:
        """Returns the environment variables for the secret options: none."""
        return {}


# Properties of other file systems can be secrets, such as `fs.s3a.secret.key`.
_PROPERTY = re.compile(r"dfs\.[A-Za-z0-9_.-]+|fs\.defaultFS|hadoop\.security\.authentication")
_SERVER = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_OF_THE_ENVIRONMENT = frozenset(
    ("user", "hadoop_user_name", "proxy_user", "hadoop_proxy_user", "token")
)
_OF_A_PRINCIPAL = frozenset(("kerberos_keytab", "kerberos_cache"))
NAMES = {
    name: name for name in ("config_dir", "kerberos_principal", "kerberos_keytab", "kerberos_cache")
}
