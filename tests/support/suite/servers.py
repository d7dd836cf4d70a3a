"""One emulator of each object store for all tests of a process, and an empty bucket for each."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator

import pytest
from emulators.azure_server import AzureServer, serve_azure
from emulators.gcs_server import GCSServer, serve_gcs
from emulators.s3_server import S3Server, serve_s3
from servers.azurite import AzuriteUnavailable, azurite_command

UNAVAILABLE = pytest.StashKey[str]()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says once, at the end, that no Azure took part."""
    if (reason := config.stash.get(UNAVAILABLE, None)) is not None:
        terminalreporter.write_line(
            f"WARNING: every test against Azure was skipped: {reason}", yellow=True, bold=True
        )


@pytest.fixture(scope="session")
def running_s3_server() -> Iterator[S3Server]:
    """The emulator, and clients that parse the description of S3 once instead of once each."""
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
    """A running emulator; where it can't be fetched, its tests are skipped loudly."""
    try:
        command = azurite_command()
    except AzuriteUnavailable as reason:
        pytestconfig.stash[UNAVAILABLE] = str(reason)
        pytest.skip(f"NO AZURE: {reason}")
    with serve_azure(command) as server:
        yield server


@pytest.fixture
def azure_container(azure_server: AzureServer) -> str:
    """An empty container."""
    name = f"container-{uuid.uuid4()}"
    azure_server.make_container(name)
    return name
