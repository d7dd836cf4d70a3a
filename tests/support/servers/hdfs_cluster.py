"""HDFS on the loopback interface: a name node and data nodes, each in its own process.

The servers are in Hadoop's mini cluster of Maven Central; the client's classes and logging come
from PySpark, which has the same version.
"""

from __future__ import annotations

import getpass
import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from delta_maintenance.storage.hdfs.store import HdfsStore
from tests.support.servers.maven import SPARK_JARS, JarUnavailable, java_command, maven_jar
from tests.support.servers.ports import free_port

PATIENCE_SECONDS = 180
# Short-lived processes: compiling costs more than it saves.
QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")
_CLIENT = (
    *("hadoop-client-api", "hadoop-client-runtime", "slf4j", "jcl-over", "log4j", "snappy"),
    # Hadoop 3.3, of Spark 3.5, needs these besides.
    *("commons-logging", "jaxb-runtime"),
)
_SERVERS_JAR = "org.apache.hadoop:hadoop-client-minicluster"
# The HTTP servers of Hadoop before 3.5 need these, which Java had before 11.
_OF_OLD_JAVA = ("javax.xml.bind:jaxb-api:2.3.1", "javax.activation:javax.activation-api:1.2.0")
_MEMORY = "/dev/shm"
_SERVERS = "org.apache.hadoop.hdfs.server"
_TOOLS = "org.apache.hadoop.hdfs.tools"


class ClusterUnavailable(Exception):
    """HDFS is not available on this machine; the message says why."""


class HdfsCluster:
    """A running name node, with the started data nodes."""

    host = "127.0.0.1"
    java_options: tuple[str, ...] = ()
    core_properties: Mapping[str, object] = {}
    """Additional properties of `core-site.xml`."""
    hdfs_properties: Mapping[str, object] = {}
    """Additional properties of `hdfs-site.xml`."""

    def __init__(self, folder: Path, jars: Sequence[Path], data: Path) -> None:
        self.folder = folder
        self._data = data
        self.rpc = f"{self.host}:{free_port()}"
        self.http = f"{self.host}:{free_port()}"
        self.data_nodes: list[subprocess.Popen[bytes]] = []
        client = [f for name in _CLIENT for f in sorted(SPARK_JARS.glob(f"{name}*.jar"))]
        self.class_path = ":".join(map(str, [folder / "conf", *client]))
        self._server_path = ":".join(map(str, [self.class_path, *jars]))
        self._http_of_data_nodes: list[str] = []
        self._configure()
        self._start("format", "namenode.NameNode", "-format", "-nonInteractive").wait(60)
        self._name_node = self._start("name-node", "namenode.NameNode")

    def address(self, path: str, *, scheme: str = "webhdfs") -> str:
        """Returns the address of a path, for the name node's HTTP server or its RPC protocol
        (`hdfs`).
        """
        return f"{scheme}://{self.rpc if scheme == 'hdfs' else self.http}{path}"

    def make_home(self, user: str) -> None:
        """Creates `/user/USER`, owned by the user."""
        for operation in ("MKDIRS", f"SETOWNER&owner={user}"):
            self._change(f"/user/{user}", operation)

    def set_quota(self, folder: str, *, names: int = -1, space: int = -1) -> None:
        """Limits the names in a folder and the bytes of its blocks; -1 is no limit."""
        for kind, limit in (("namespace", names), ("storagespace", space)):
            self._change(folder, f"SETQUOTA&{kind}quota={limit}")

    def administer(self, *arguments: str) -> None:
        """Runs `hdfs dfsadmin`."""
        self.run_tool("DFSAdmin", *arguments)

    def run_tool(
        self, tool: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Runs a tool of HDFS to its end."""
        java = [java_command(), *QUICK_START, *self.java_options, "-cp", self._server_path]
        subprocess.run(
            [*java, f"{_TOOLS}.{tool}", *arguments],
            env={**os.environ, **(environment or {})},
            check=True,
            capture_output=True,
        )

    def data_node_address(self, number: int = 0) -> str:
        """Returns the HTTP address of a data node, with the name that the name node uses."""
        return f"http://localhost:{self._http_of_data_nodes[number].rpartition(':')[2]}"

    def data_transfer_address(self) -> str:
        """Returns the address at which the only data node serves Hadoop's data transfer
        protocol.
        """
        [node] = json.loads(self.bean("NameNodeInfo")["LiveNodes"]).values()
        return str(node["xferaddr"])

    def start_data_node(self, number: int) -> None:
        """Starts a data node, with its earlier directory if it ran before, and waits for it."""
        if number == len(self._http_of_data_nodes):
            self._http_of_data_nodes.append(f"127.0.0.1:{free_port()}")
        directory = self._data / f"data-{number}"
        process = self._start(
            f"data-node-{number}",
            "datanode.DataNode",
            properties={
                "dfs.datanode.data.dir": directory,
                "dfs.datanode.http.address": self._http_of_data_nodes[number],
            },
        )
        self.data_nodes[number : number + 1] = [process]
        self._await_data_nodes()

    def kill_data_node(self, number: int) -> None:
        """Ends a data node immediately, as `kill -9` does."""
        self.data_nodes[number].send_signal(signal.SIGKILL)
        self.data_nodes[number].wait()

    def kill_name_node(self) -> None:
        """Ends the name node immediately, as `kill -9` does."""
        self._name_node.send_signal(signal.SIGKILL)
        self._name_node.wait()

    def start_name_node(self) -> None:
        """Starts the name node again, and waits until it knows its data nodes."""
        self._name_node = self._start("name-node", "namenode.NameNode")
        self._await_data_nodes()

    def bean(self, name: str) -> dict[str, Any]:
        """Returns metrics of the name node."""
        url = f"http://{self.http}/jmx?qry=Hadoop:service=NameNode,name={name}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            beans = json.load(answer)["beans"]
        return beans[0] if beans else {}

    def live_data_nodes(self) -> int:
        """Returns the number of live data nodes. `OSError` if the name node does not answer."""
        # Blocks of a restarted node count after it has reported them.
        return int(self.bean("FSNamesystemState").get("NumLiveDataNodes", 0))

    def close(self) -> None:
        for process in (*self.data_nodes, self._name_node):
            if process.poll() is None:
                process.kill()
                process.wait()

    def _change(self, path: str, operation: str) -> None:
        """Sends a request that changes a file or directory, as the user of the name node."""
        url = f"http://{self.http}/webhdfs/v1{path}?user.name={getpass.getuser()}"
        request = urllib.request.Request(f"{url}&op={operation}", method="PUT")
        with urllib.request.urlopen(request, timeout=30):
            pass

    def _await_data_nodes(self) -> None:
        wanted = sum(process.poll() is None for process in self.data_nodes)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            for process, name in (
                (self._name_node, "name-node"),
                (self.data_nodes[-1], "data-node-0"),
            ):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ClusterUnavailable(f"its {name} does not start: {self._last_line(name)}")
            try:
                if self.live_data_nodes() >= wanted:
                    return
            except OSError:
                pass
            time.sleep(0.1)

    def _configure(self) -> None:
        conf = self.folder / "conf"
        conf.mkdir(parents=True)
        core = {"fs.defaultFS": f"hdfs://{self.rpc}", **self.core_properties}
        _write(conf / "core-site.xml", core)
        _write(
            conf / "hdfs-site.xml",
            {
                "dfs.replication": 1,
                # Leave safe mode as soon as the blocks are known again.
                "dfs.namenode.safemode.extension": 0,
                # Makes the listing of a log with a few hundred files take several pages.
                "dfs.ls.limit": 100,
                "dfs.namenode.rpc-address": self.rpc,
                "dfs.namenode.http-address": self.http,
                "dfs.namenode.name.dir": self._data / "name",
                # For the data node's own client, which serves the REST interface: it checks after
                # milliseconds instead of 0.4 s whether a file is closed.
                "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": 5,
                "dfs.client.block.write.locateFollowingBlock.retries": 10,
                # One second, so that the end of a data node is detected soon.
                "dfs.heartbeat.interval": 1,
                "dfs.namenode.heartbeat.recheck-interval": 1000,
                "dfs.datanode.address": "127.0.0.1:0",
                "dfs.datanode.ipc.address": "127.0.0.1:0",
                "dfs.namenode.datanode.registration.ip-hostname-check": "false",
                "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
                **self.hdfs_properties,
            },
        )
        (conf / "log4j2.properties").write_text(
            "rootLogger.level = warn\n"
            "rootLogger.appenderRef.stderr.ref = console\n"
            "appender.console.type = Console\n"
            "appender.console.name = console\n"
            "appender.console.target = SYSTEM_ERR\n"
            "appender.console.layout.type = PatternLayout\n"
            "appender.console.layout.pattern = %d %p %c{1}: %m%n\n"
        )

    def _start(
        self, name: str, kind: str, *arguments: str, properties: dict[str, object] | None = None
    ) -> subprocess.Popen[bytes]:
        given = [f"-D{key}={value}" for key, value in (properties or {}).items()]
        java = [java_command(), *QUICK_START, *self.java_options, "-cp", self._server_path]
        command = [*_ending_with_this_process(), *java, f"{_SERVERS}.{kind}"]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, *given, *arguments], cwd=self.folder, stdout=log, stderr=log
            )

    def _last_line(self, name: str) -> str:
        lines = (self.folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"


Cluster = TypeVar("Cluster", bound=HdfsCluster)


def make_empty_files(store: HdfsStore, paths: Iterable[str]) -> None:
    """Creates empty files directly under their names, which needs no data node."""

    def make(path: str) -> None:
        store._client.upload(f"{store._folder}/{path}", io.BytesIO(), 0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, paths))


def mini_cluster_jars(jars: Path) -> list[Path]:
    """Downloads the classes of the servers once. `ClusterUnavailable` if that fails."""
    version = next(SPARK_JARS.glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]
    is_old = [int(part) for part in version.split(".")[:2]] < [3, 5]
    wanted = (f"{_SERVERS_JAR}:{version}", *(_OF_OLD_JAVA if is_old else ()))
    try:
        return [maven_jar(jars, coordinates) for coordinates in wanted]
    except JarUnavailable as error:
        raise ClusterUnavailable(str(error)) from error


@contextmanager
def serve_hdfs(
    folder: Path,
    jars: Sequence[Path],
    kind: Callable[[Path, Sequence[Path], Path], Cluster] = HdfsCluster,
) -> Iterator[Cluster]:
    """Runs a cluster with one data node until the block ends. Its logs are in `folder`."""
    with tempfile.TemporaryDirectory(dir=_memory(), ignore_cleanup_errors=True) as data:
        try:
            cluster = kind(folder, jars, Path(data))
        except FileNotFoundError as error:
            raise ClusterUnavailable("there is no java") from error
        try:
            cluster.start_data_node(0)
            yield cluster
        finally:
            cluster.close()


def _memory() -> str | None:
    """Returns a file system in memory, because HDFS syncs every file; None if there is too little
    memory.
    """
    try:
        return _MEMORY if shutil.disk_usage(_MEMORY).free > 4 << 30 else None
    except OSError:
        return None


def _ending_with_this_process() -> list[str]:
    """Returns a prefix for a command that also ends it if this process is killed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


def _write(file: Path, properties: dict[str, object]) -> None:
    lines = (
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in properties.items()
    )
    file.write_text(f"<configuration>{''.join(lines)}</configuration>")
