"""One S3 server for all tests of this folder, and a fresh root on it for each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("delta_maintenance.testing.store_contract")

from delta_maintenance.testing.s3_server import S3Server, serve_s3  # noqa: E402


@pytest.fixture(scope="session")
def running_s3_server() -> Iterator[S3Server]:
    with serve_s3() as server:
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
