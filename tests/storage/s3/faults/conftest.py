"""A store whose server plays faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from delta_maintenance.address import Address
from delta_maintenance.storage.s3.client import S3Client, S3Options
from delta_maintenance.storage.s3.store import S3Store
from tests.support.emulators.s3_server import S3Server
from tests.support.faults.s3_faults import Faults


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def open_s3(
    s3_server: S3Server, s3_bucket: str, pauses: list[float]
) -> Iterator[Callable[..., S3Store]]:
    opened: list[S3Store] = []

    def open_one(**options: Any) -> S3Store:
        client = S3Client(S3Options.parse(s3_server.storage_options), sleep=pauses.append)
        opened.append(S3Store(Address.parse(f"s3://{s3_bucket}/t"), client=client, **options))
        return opened[-1]

    yield open_one
    s3_server.intercept = None
    for store in opened:
        store.close()


@pytest.fixture
def store(open_s3: Callable[..., S3Store]) -> S3Store:
    return open_s3()


@pytest.fixture
def faults(s3_server: S3Server) -> Faults:
    return Faults(s3_server)
