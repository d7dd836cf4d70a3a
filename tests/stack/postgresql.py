"""A PostgreSQL server for the length of a test, from the packages of the machine."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.ports import free_port


def programs() -> Path | None:
    """Returns the folder with `initdb` and `postgres`; None if they are not installed."""
    # Debian keeps each version in a folder of its own, outside of PATH.
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which("initdb")
    candidates = [*folders, *([Path(found).parent] if found else [])]
    return next((each for each in candidates if (each / "postgres").exists()), None)


@contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """A server on the loopback interface with the database `airflow`: its `HOST:PORT/DATABASE`.

    The server refuses to run as root, and then runs as the user that its package has made.
    """
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="postgresql-") as temporary:
        if user is not None:
            account = pwd.getpwnam(user)
            os.chown(temporary, account.pw_uid, account.pw_gid)
        data = Path(temporary, "data")
        trusting = ["--auth=trust", "--username=airflow", "--encoding=UTF8", "--no-sync"]
        subprocess.run(
            [str(folder / "initdb"), *trusting, f"--pgdata={data}"],
            check=True,
            capture_output=True,
            user=user,
            cwd=temporary,
        )
        port = free_port()
        settings = {"listen_addresses": "127.0.0.1", "port": port, "fsync": "off"}
        settings |= {"unix_socket_directories": "", "max_connections": 200}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        server = subprocess.Popen(
            [str(folder / "postgres"), "-D", str(data), *flags],
            user=user,
            cwd=temporary,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait(folder, port)
            create = [str(folder / "createdb"), "-h", "127.0.0.1", "-p", str(port)]
            subprocess.run([*create, "-U", "airflow", "airflow"], check=True, capture_output=True)
            yield f"127.0.0.1:{port}/airflow"
        finally:
            # Ends the sessions that are open, and the server.
            server.send_signal(signal.SIGINT)
            server.wait(timeout=30)


def _wait(folder: Path, port: int) -> None:
    ready = [str(folder / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    end = time.monotonic() + 300
    while subprocess.run(ready).returncode != 0:
        assert time.monotonic() < end, "PostgreSQL did not start"
        time.sleep(0.2)
