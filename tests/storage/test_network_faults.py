"""The same faults of the network before every store that is reached through one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from emulators.azure_server import ACCOUNT, AzureServer
from emulators.gcs_server import GCSServer
from emulators.s3_server import S3Server

from delta_maintenance.storage.azure.client import AzureClient
from delta_maintenance.storage.azure.options import AzureAddress, AzureOptions
from delta_maintenance.storage.azure.store import AzureStore
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.http_session import HttpSession
from delta_maintenance.storage.gcs.client import GCSClient
from delta_maintenance.storage.gcs.options import GCSOptions
from delta_maintenance.storage.gcs.store import GCSStore
from delta_maintenance.storage.s3.client import S3Client
from delta_maintenance.storage.s3.options import S3Options
from delta_maintenance.storage.s3.store import S3Store
from delta_maintenance.testing.fault_contract import PATIENCE, FaultContract
from delta_maintenance.testing.fault_proxy import FaultProxy, serve_faults

MIB = 1 << 20


def no_pause(seconds: float) -> None:
    return


class TestS3(FaultContract):
    @pytest.fixture
    def proxy(self, s3_server: S3Server, s3_bucket: str) -> Iterator[FaultProxy]:
        self.server, self.bucket = s3_server, s3_bucket
        with serve_faults(s3_server.url) as proxy:
            yield proxy

    def open_through(self, proxy: FaultProxy) -> Store:
        options = S3Options.parse(self.server.storage_options | {"AWS_ENDPOINT_URL": proxy.url})
        client = S3Client(options, sleep=no_pause, read_timeout=PATIENCE)
        return S3Store(f"s3://{self.bucket}/t", client=client, multipart_size=MIB)


class TestGCS(FaultContract):
    @pytest.fixture
    def proxy(self, gcs_server: GCSServer, gcs_bucket: str) -> Iterator[FaultProxy]:
        self.bucket = gcs_bucket
        with serve_faults(gcs_server.url) as proxy:
            yield proxy

    def open_through(self, proxy: FaultProxy) -> Store:
        client = GCSClient(
            GCSOptions.parse({"endpoint_url": proxy.url}),
            self.bucket,
            session=HttpSession(timeout=(5, PATIENCE)),
            sleep=no_pause,
        )
        return GCSStore(f"gs://{self.bucket}/t", client=client, multipart_size=MIB, part_size=MIB)


class TestAzure(FaultContract):
    @pytest.fixture
    def proxy(self, azure_server: AzureServer, azure_container: str) -> Iterator[FaultProxy]:
        self.server, self.container = azure_server, azure_container
        with serve_faults(azure_server.url) as proxy:
            yield proxy

    def open_through(self, proxy: FaultProxy) -> Store:
        root = f"az://{self.container}/t"
        options = self.server.storage_options | {"endpoint": f"{proxy.url}/{ACCOUNT}"}
        client = AzureClient(
            AzureOptions.parse(options, AzureAddress.parse(root)),
            self.container,
            session=HttpSession(timeout=(5, PATIENCE)),
            sleep=no_pause,
        )
        return AzureStore(root, client=client, multipart_size=MIB, part_size=MIB)
