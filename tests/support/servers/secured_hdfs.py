"""An HDFS that requires Kerberos, and encrypts its RPC protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.servers.hdfs_cluster import HdfsCluster, serve_hdfs
from tests.support.servers.kerberos_kdc import REALM, Kdc, serve_kdc

USER = "alice"
"""The owner of `/user/alice`."""
_NODE = f"node/localhost@{REALM}"
_HTTP = f"HTTP/localhost@{REALM}"


class SecuredHdfs(HdfsCluster):
    """A cluster whose name node and data node have keys of a KDC."""

    # Tickets are issued for host names.
    host = "localhost"

    def __init__(self, kdc: Kdc, folder: Path, jars: Sequence[Path], data: Path) -> None:
        self.kdc = kdc
        self.user_keytab = kdc.keytab(USER)
        self._keytab = keytab = kdc.keytab("node/localhost", "HTTP/localhost")
        secret = kdc.folder / "http-secret"
        secret.write_text("signs cookies")
        self.java_options = (f"-Djava.security.krb5.conf={kdc.client_configuration}",)
        self.core_properties = {
            "hadoop.security.authentication": "kerberos",
            "hadoop.security.authorization": "true",
            "hadoop.security.token.service.use_ip": "false",
            "hadoop.http.filter.initializers": _FILTER,
            "hadoop.http.authentication.type": "kerberos",
            "hadoop.http.authentication.kerberos.principal": _HTTP,
            "hadoop.http.authentication.kerberos.keytab": keytab,
            "hadoop.http.authentication.signature.secret.file": secret,
        }
        self.hdfs_properties = {
            "dfs.block.access.token.enable": "true",
            "dfs.namenode.kerberos.principal": _NODE,
            "dfs.namenode.keytab.file": keytab,
            "dfs.datanode.kerberos.principal": _NODE,
            "dfs.datanode.keytab.file": keytab,
            "dfs.web.authentication.kerberos.principal": _HTTP,
            "dfs.web.authentication.kerberos.keytab": keytab,
            "dfs.data.transfer.protection": "privacy",
            # The ports of the data node are above 1023, and its HTTP server has no TLS.
            "ignore.secure.ports.for.testing": "true",
        }
        super().__init__(folder, jars, data)

    def cache(self, *, seconds: int = 3600) -> str:
        """Returns the cache of a new ticket of `USER`."""
        return str(self.kdc.ticket(USER, self.user_keytab, seconds=seconds))

    def live_data_nodes(self) -> int:
        """Detected by writing a file, because metrics are only available by HTTP, which requires
        SPNEGO.
        """
        import hdfs_native

        client = hdfs_native.Client(
            f"hdfs://{self.rpc}",
            {"dfs.client.failover.max.attempts": "1"},
            str(self.folder / "conf"),
            kerberos_principal=_NODE,
            kerberos_keytab=str(self._keytab),
        )
        try:
            client.mkdirs(f"/user/{USER}", 0o755, True)
            client.set_owner(f"/user/{USER}", USER, None)
            with client.create("/probe", hdfs_native.WriteOptions(overwrite=True)) as file:
                file.write(b"written by a data node")
        except RuntimeError:
            # No data node is known yet.
            return 0
        return 1


@contextmanager
def serve_secured_hdfs(folder: Path, jars: Sequence[Path]) -> Iterator[SecuredHdfs]:
    """Runs a KDC, and a cluster with one data node. This process stays in the realm until
    the end.
    """
    with serve_kdc(folder / "kdc") as kdc, pytest.MonkeyPatch.context() as patch:
        for name, value in kdc.environment.items():
            patch.setenv(name, value)
        with serve_hdfs(folder / "hdfs", jars, partial(SecuredHdfs, kdc)) as cluster:
            yield cluster


_FILTER = "org.apache.hadoop.security.AuthenticationFilterInitializer"
