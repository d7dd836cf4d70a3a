"""One server of each kind for all tests of this folder, and a fresh root on it for each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from azurite import AzuriteUnavailable, azurite_command

pytest.register_assert_rewrite(
    "delta_maintenance.testing.store_contract", "delta_maintenance.testing.fault_contract"
)

from emulators.azure_server import AzureServer, serve_azure  # noqa: E402
from emulators.gcs_server import GCSServer, serve_gcs  # noqa: E402
from emulators.s3_server import S3Server, serve_s3  # noqa: E402

# The contracts ship with the library, where nobody has registered this mark.
CONFORMANCE = {
    "test_of_those_who_race_for_a_file_exactly_one_wins": ("LOG-09", "TXN-01"),
    "test_a_put_if_absent_leaves_an_existing_file_alone": ("LOG-09", "TXN-01"),
    "test_a_name_means_itself": ("FILE-01",),
    "test_a_stream_never_replaces_a_file": ("FILE-14",),
    "test_a_lost_answer_changes_neither_winner_nor_content": ("LOG-09", "TXN-02"),
    "test_who_lost_is_not_told_to_have_won_whatever_its_answer": ("TXN-02",),
    "test_a_condition_refuted_by_its_own_first_attempt_is_a_success": ("TXN-02",),
    "test_without_any_answer_the_outcome_is_the_true_one_or_unknown": ("TXN-02",),
}
UNAVAILABLE = pytest.StashKey[str]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the contracts with the requirements that they hold up."""
    for item in items:
        requirements = CONFORMANCE.get(getattr(item, "originalname", item.name), ())
        for requirement in requirements:
            item.add_marker(pytest.mark.conformance(requirement))


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
