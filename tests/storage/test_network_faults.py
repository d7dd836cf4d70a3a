"""The same network faults for every remote store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from urllib.parse import urlsplit

import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import StorageError
from delta_maintenance.rest import HttpSession
from delta_maintenance.storage.azure import AzureClient
from delta_maintenance.storage.azure.options import AzureAddress, AzureOptions
from delta_maintenance.storage.azure.store import AzureStore
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.gcs.client import GCSClient, GCSOptions
from delta_maintenance.storage.gcs.store import GCSStore
from delta_maintenance.storage.s3 import S3Client, S3Options, S3Store
from delta_maintenance.table.read import Table
from tests.support.emulators.azure_server import ACCOUNT, AzureServer
from tests.support.emulators.gcs_server import GCSServer
from tests.support.emulators.s3_server import S3Server
from tests.support.faults.fault_proxy import FaultProxy, HttpFault, serve_faults
from tests.support.servers.loopback import Request
from tests.support.stores.fault_contract import PATIENCE, FaultContract
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

MIB = 1 << 20
COMMIT = f"{1:020}.json"


def no_pause(seconds: float) -> None:
    return


class TableContract(FaultContract):
    """Tables with empty answers."""

    patience = 60.0
    """The timeout of the client in seconds."""

    @pytest.fixture(autouse=True)
    def in_time(self, request: pytest.FixtureRequest) -> None:
        """Only silence needs a short timeout, which a busy machine may exceed at other times."""
        parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
        if parameters.get("fault") in (HttpFault.SILENCE_BEFORE, HttpFault.SILENCE_AFTER):
            self.patience = PATIENCE

    @pytest.fixture
    def table(self, open_one: Callable[[], Store]) -> Table:
        builder = TableBuilder(open_one())
        builder.commit([protocol(), metadata(), add("a")])
        builder.commit([add("b")])
        return Table(open_one())

    def test_an_empty_answer_for_a_commit_is_requested_again(
        self, proxy: FaultProxy, table: Table
    ) -> None:
        proxy.choose = _empty_for(COMMIT, times=1)
        assert table.snapshot().live_files().num_rows == 2
        assert proxy.injected == [HttpFault.EMPTY_ANSWER]

    def test_a_commit_that_remains_empty_is_not_removed(
        self, proxy: FaultProxy, table: Table
    ) -> None:
        proxy.choose = _empty_for(COMMIT, times=100)
        with pytest.raises(StorageError) as refused:
            table.snapshot().live_files()
        assert "remove" not in str(refused.value) and "restore" not in str(refused.value)

    @pytest.mark.parametrize("number", range(6))
    def test_an_empty_answer_to_any_request_hides_no_version(
        self, proxy: FaultProxy, table: Table, number: int
    ) -> None:
        requests = count()
        proxy.choose = lambda request: HttpFault.EMPTY_ANSWER if next(requests) == number else None
        try:
            found = table.snapshot().live_files().num_rows
        except StorageError:
            return
        assert found == 2


def _empty_for(name: str, *, times: int) -> Callable[[Request], HttpFault | None]:
    left = iter(range(times))

    def choose(request: Request) -> HttpFault | None:
        concerned = request.method == "GET" and urlsplit(request.target).path.endswith(name)
        return HttpFault.EMPTY_ANSWER if concerned and next(left, None) is not None else None

    return choose


class TestS3(TableContract):
    @pytest.fixture
    def proxy(self, s3_server: S3Server, s3_bucket: str) -> Iterator[FaultProxy]:
        self.server, self.bucket = s3_server, s3_bucket
        with serve_faults(s3_server.url) as proxy:
            yield proxy

    def open_through(self, proxy: FaultProxy) -> Store:
        options = S3Options.parse(self.server.storage_options | {"AWS_ENDPOINT_URL": proxy.url})
        client = S3Client(options, sleep=no_pause, read_timeout=self.patience)
        return S3Store(Address.parse(f"s3://{self.bucket}/t"), client=client, multipart_size=MIB)


class TestGCS(TableContract):
    @pytest.fixture
    def proxy(self, gcs_server: GCSServer, gcs_bucket: str) -> Iterator[FaultProxy]:
        self.bucket = gcs_bucket
        with serve_faults(gcs_server.url) as proxy:
            yield proxy

    def open_through(self, proxy: FaultProxy) -> Store:
        client = GCSClient(
            GCSOptions.parse({"endpoint_url": proxy.url}),
            self.bucket,
            session=HttpSession(timeout=(60, self.patience)),
            sleep=no_pause,
        )
        return GCSStore(
            Address.parse(f"gs://{self.bucket}/t"), client=client, multipart_size=MIB, part_size=MIB
        )


class TestAzure(TableContract):
    @pytest.fixture
    def proxy(self, azure_server: AzureServer, azure_container: str) -> Iterator[FaultProxy]:
        self.server, self.container = azure_server, azure_container
        with serve_faults(azure_server.url) as proxy:
            yield proxy

    def open_through(self, proxy: FaultProxy) -> Store:
        root = f"az://{self.container}/t"
        options = self.server.storage_options | {"endpoint": f"{proxy.url}/{ACCOUNT}"}
        client = AzureClient(
            AzureOptions.parse(options, AzureAddress.of(Address.parse(root))),
            self.container,
            session=HttpSession(timeout=(60, self.patience)),
            sleep=no_pause,
        )
        return AzureStore(Address.parse(root), client=client, multipart_size=MIB, part_size=MIB)
