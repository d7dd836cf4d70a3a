"""A Hive Metastore, from the jars that PySpark brings, with an embedded database.

It authenticates nobody and binds every interface, so it runs in a network namespace of its own
where that is permitted; a port of the loopback interface leads into it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.servers.endings import end_process
from tests.support.servers.maven import SPARK_JARS
from tests.support.servers.ports import free_port

_PATIENCE_SECONDS = 180
_CLONE_NEWNET = 0x40000000
_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "net", "util")),
    # It needs a package that PySpark does not bring.
    "-Dhive.async.log.enabled=false",
    "-Dlog4j2.disable.jmx=true",
    "-Dhive.metastore.schema.verification=false",
    "-Ddatanucleus.schema.autoCreateAll=true",
)


@contextmanager
def serve_metastore(folder: Path) -> Iterator[str]:
    """Runs a metastore until the block ends. Yields its address."""
    port = free_port()
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    command = [
        str(java),
        *("-cp", f"{SPARK_JARS}/*", *_OPTIONS),
        f"-Djavax.jdo.option.ConnectionURL=jdbc:derby:;databaseName={folder}/db;create=true",
        f"-Dhive.metastore.warehouse.dir={folder}/warehouse",
        *("org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)),
    ]
    isolated = _can_isolate()
    if isolated:
        command = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
    log = folder / "metastore.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        with _door(process.pid, port) if isolated else _as_it_is(port) as entrance:
            _await(entrance, process, log)
            yield f"thrift://127.0.0.1:{entrance}"
    finally:
        end_process(process)


def _can_isolate() -> bool:
    tools = shutil.which("unshare") and shutil.which("ip")
    return bool(tools) and subprocess.run(["unshare", "-n", "true"], stderr=-3).returncode == 0


@contextmanager
def _as_it_is(port: int) -> Iterator[int]:
    yield port


@contextmanager
def _door(process: int, port: int) -> Iterator[int]:
    """Yields a port of the loopback interface that leads to a port in a process's namespace."""
    listener = socket.create_server(("127.0.0.1", 0))

    def admit() -> None:
        # Only this thread moves: a socket stays in the namespace that it was created in.
        entered = False
        while True:
            try:
                outside, _ = listener.accept()
            except OSError:
                return
            try:
                entered = entered or _enter(process)
                inside = socket.create_connection(("127.0.0.1", port), timeout=5)
            except OSError:
                outside.close()
                continue
            inside.settimeout(None)
            for pair in ((outside, inside), (inside, outside)):
                threading.Thread(target=_pump, args=pair, daemon=True).start()

    thread = threading.Thread(target=admit, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        # `close` alone does not wake a thread that accepts.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _enter(process: int) -> bool:
    # Before `unshare` has run, this is still the namespace of the tests.
    if os.readlink(f"/proc/{process}/ns/net") == os.readlink("/proc/self/ns/net"):
        raise OSError("the metastore has no namespace of its own yet")
    namespace = os.open(f"/proc/{process}/ns/net", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(namespace)
    return True


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def _await(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    from delta_maintenance.catalogs.hive.client import HiveClient, HiveFailure, Server

    client = HiveClient([Server("127.0.0.1", port)], pauses=())
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        with suppress(HiveFailure):
            client.call("get_all_databases", {}, ("MetaException",))
            client.close()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the metastore does not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)
