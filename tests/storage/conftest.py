"""One S3 server for all tests of this folder, and a fresh root on it for each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("delta_maintenance.testing.store_contract")

from delta_maintenance.testing.s3_server import S3Server, serve_s3  # noqa: E402

# The contract ships with the library, where nobody has registered this mark.
CONFORMANCE = {
    "test_of_those_who_race_for_a_file_exactly_one_wins": "LOG-09",
    "test_a_put_if_absent_leaves_an_existing_file_alone": "LOG-09",
    "test_a_name_means_itself": "FILE-01",
    "test_a_stream_never_replaces_a_file": "FILE-14",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the contract with the requirements that they hold up."""
    for item in items:
        requirement = CONFORMANCE.get(getattr(item, "originalname", item.name))
        if requirement is not None:
            item.add_marker(pytest.mark.conformance(requirement))


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
