"""A Kerberos KDC on the loopback interface, of MIT's packages krb5-kdc and krb5-user."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.servers.ports import free_port

REALM = "TEST.INVALID"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
_CLIENTS = """
[libdefaults]
default_realm = {realm}
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
[realms]
{realm} = {{
    kdc = 127.0.0.1:{port}
}}
"""
_SERVER = """
[kdcdefaults]
kdc_listen = 127.0.0.1:{port}
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
{realm} = {{
    database_name = {folder}/principals
    key_stash_file = {folder}/stash
    acl_file = {folder}/acl
    supported_enctypes = aes256-cts:normal aes128-cts:normal
}}
[logging]
kdc = FILE:{folder}/kdc.log
"""


class KdcUnavailable(Exception):
    """A KDC is not available on this machine; the message says why."""


class Kdc:
    """A running KDC of the realm `REALM`."""

    def __init__(self, folder: Path) -> None:
        if missing := [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]:
            raise KdcUnavailable(f"there is no {', '.join(missing)}")
        folder.mkdir(parents=True)
        self.folder = folder
        self.client_configuration = folder / "krb5.conf"
        port = free_port()
        named = {"realm": REALM, "port": port, "folder": folder}
        self.client_configuration.write_text(_CLIENTS.format(**named))
        (folder / "kdc.conf").write_text(_SERVER.format(**named))
        self._run("kdb5_util", "create", "-s", "-P", "of no value", "-r", REALM)
        with (folder / "kdc.err").open("wb") as log:
            # It stays in the foreground, so that `close` ends it.
            command = [_found("krb5kdc"), "-n", "-r", REALM]
            self._process = subprocess.Popen(command, env=self._around(), stdout=log, stderr=log)
        self._await(port)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a client of the realm, without a ticket."""
        return {
            "KRB5_CONFIG": str(self.client_configuration),
            "KRB5CCNAME": f"FILE:{self.folder / 'no-tickets'}",
            "KRB5_CLIENT_KTNAME": f"FILE:{self.folder / 'no-keys'}",
        }

    def keytab(self, *principals: str) -> Path:
        """Adds principals with random keys. Returns a keytab that contains them."""
        keytab = self.folder / f"{principals[0].partition('/')[0]}.keytab"
        for principal in principals:
            for query in (f"addprinc -randkey {principal}", f"ktadd -k {keytab} {principal}"):
                self._run("kadmin.local", "-r", REALM, "-q", query)
        return keytab

    def ticket(self, principal: str, keytab: Path, *, seconds: int = 3600) -> Path:
        """Gets a ticket with a keytab, as `kinit` does. Returns its cache."""
        cache = self.folder / f"{principal.partition('/')[0]}-{seconds}.tickets"
        lifetime = ("-l", f"{seconds}s", "-k", "-t", str(keytab), "-c", str(cache))
        self._run("kinit", *lifetime, principal)
        return cache

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _run(self, program: str, *arguments: str) -> None:
        command = [_found(program), *arguments]
        done = subprocess.run(command, env=self._around(), capture_output=True, text=True)
        if done.returncode != 0:
            raise KdcUnavailable(f"{program} fails: {' '.join(done.stderr.split())[:300]}")

    def _around(self) -> Mapping[str, str]:
        own = {"KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}
        return {**os.environ, **self.environment, **own}

    def _await(self, port: int) -> None:
        deadline = time.monotonic() + 30
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / "kdc.err").read_text().split()
                raise KdcUnavailable(f"krb5kdc does not start: {' '.join(said)[:300]}")
            time.sleep(0.02)


@contextmanager
def serve_kdc(folder: Path) -> Iterator[Kdc]:
    """Runs a KDC until the block ends."""
    kdc = Kdc(folder)
    try:
        yield kdc
    finally:
        kdc.close()


def _found(program: str) -> str:
    return shutil.which(program, path=_PATH) or program
