"""One emulator of each object store, and one HDFS, for all tests of a process."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.emulators.azure_server import AzureServer, serve_azure
from tests.support.emulators.gcs_server import GCSServer, serve_gcs
from tests.support.emulators.s3_server import S3Server, serve_s3
from tests.support.servers.azurite import AzuriteUnavailable, azurite_command
from tests.support.servers.hdfs_cluster import (
    ClusterUnavailable,
    HdfsCluster,
    mini_cluster_jars,
    serve_hdfs,
)
from tests.support.servers.kerberos_kdc import KdcUnavailable
from tests.support.servers.secured_hdfs import SecuredHdfs, serve_secured_hdfs

HADOOP_JARS = Path(__file__).parents[3] / ".tools" / "hadoop"
UNAVAILABLE = pytest.StashKey[dict[str, str]]()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints once, at the end, which servers were not available."""
    for server, reason in config.stash.get(UNAVAILABLE, {}).items():
        terminalreporter.write_line(
            f"WARNING: every test against {server} was skipped: {reason}", yellow=True, bold=True
        )


@pytest.fixture(scope="session")
def running_s3_server() -> Iterator[S3Server]:
    """The emulator, and clients that share the parsed description of S3."""
    from botocore.loaders import JSONFileLoader

    with pytest.MonkeyPatch.context() as patch, serve_s3() as server:
        load = functools.cache(JSONFileLoader().load_file)
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: load(path))
        yield server


@pytest.fixture
def s3_server(running_s3_server: S3Server) -> Iterator[S3Server]:
    """The server, without the requests and faults of other tests."""
    running_s3_server.intercept = None
    running_s3_server.requests.clear()
    yield running_s3_server
    running_s3_server.intercept = None


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> str:
    """An empty bucket."""
    name = f"bucket-{uuid.uuid4()}"
    s3_server.make_bucket(name)
    return name


@pytest.fixture
def gcs_server() -> Iterator[GCSServer]:
    with serve_gcs() as server:
        yield server


@pytest.fixture
def gcs_bucket(gcs_server: GCSServer) -> str:
    """An empty bucket."""
    name = f"bucket-{uuid.uuid4()}"
    gcs_server.make_bucket(name)
    return name


@pytest.fixture(scope="session")
def azure_server(pytestconfig: pytest.Config) -> Iterator[AzureServer]:
    """A running emulator; if it cannot be downloaded, its tests are skipped loudly."""
    try:
        command = azurite_command()
    except AzuriteUnavailable as reason:
        pytestconfig.stash.setdefault(UNAVAILABLE, {})["Azure"] = str(reason)
        pytest.skip(f"NO AZURE: {reason}")
    with serve_azure(command) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[HdfsCluster]:
    """A running cluster; if its jar cannot be downloaded, its tests are skipped loudly."""
    try:
        with serve_hdfs(tmp_path_factory.mktemp("hdfs"), mini_cluster_jars(HADOOP_JARS)) as cluster:
            yield cluster
    except ClusterUnavailable as reason:
        pytestconfig.stash.setdefault(UNAVAILABLE, {})["HDFS"] = str(reason)
        pytest.skip(f"NO HDFS: {reason}")


@pytest.fixture(scope="module")
def secured_hdfs(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[SecuredHdfs]:
    """A cluster that requires Kerberos, and its KDC; if either is missing, its tests are skipped
    loudly.
    """
    try:
        folder = tmp_path_factory.mktemp("secured-hdfs")
        with serve_secured_hdfs(folder, mini_cluster_jars(HADOOP_JARS)) as cluster:
            yield cluster
    except (ClusterUnavailable, KdcUnavailable) as reason:
        pytestconfig.stash.setdefault(UNAVAILABLE, {})["HDFS with Kerberos"] = str(reason)
        pytest.skip(f"NO HDFS WITH KERBEROS: {reason}")


@pytest.fixture
def azure_container(azure_server: AzureServer) -> str:
    """An empty container."""
    name = f"container-{uuid.uuid4()}"
    azure_server.make_container(name)
    return name
