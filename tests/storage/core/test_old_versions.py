"""Listings of old versions that are far longer than what may be in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from multiprocessing import get_context
from typing import Any, TypeVar, cast

import pytest

from delta_maintenance.errors import StorageError
from delta_maintenance.operations import erasure_report
from delta_maintenance.operations.erasure_report import ErasureReportOptions
from delta_maintenance.rest import Answer
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.azure.listing import AzureOldVersions
from delta_maintenance.storage.core import OldVersions
from delta_maintenance.storage.gcs.old_versions import GCSOldVersions
from delta_maintenance.storage.s3 import S3Failure
from delta_maintenance.storage.s3.old_versions import S3OldVersions
from delta_maintenance.table.read import Table
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder

Result = TypeVar("Result")

PER_PAGE = 1000
WATCHED = 40
"""The pages at the end of a listing during which memory is watched, which takes time."""
MOST_BYTES = 6 << 20
"""A page takes less than 2 MiB, and the entries of these pages more than 10 MiB."""


class S3Pages:
    def __init__(self, pages: int) -> None:
        self.pages = pages

    def call(self, method: str, **asked: Any) -> Mapping[str, Any]:
        if method == "get_bucket_versioning":
            return {"Status": "Enabled"}
        if method == "get_bucket_lifecycle_configuration":
            raise S3Failure(status=404, code="NoSuchLifecycleConfiguration", detail="")
        number = int(asked.get("KeyMarker", "0"))
        if number == self.pages - WATCHED:
            tracemalloc.start()
        entries = [
            {
                "Key": f"t/.{number:06}-{entry:04}.crc",
                "VersionId": str(entry),
                "Size": 8,
                "ETag": "x",
                "IsLatest": False,
                "LastModified": datetime(2026, 1, 1, tzinfo=UTC),
            }
            for entry in range(PER_PAGE)
        ]
        return {
            "Versions": entries,
            "IsTruncated": number + 1 < self.pages,
            "NextKeyMarker": str(number + 1),
        }


class GCSPages:
    bucket_path = "/b"

    def __init__(self, pages: int) -> None:
        self.pages = pages

    def ask(self, path: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
        if path == "/b":
            rule = {"action": {"type": "Delete"}, "condition": {"numNewerVersions": 3}}
            return {"lifecycle": {"rule": [rule]}}
        if "softDeleted" in query:
            return {}
        number = int(query.get("pageToken", "0"))
        time = "2026-01-01T00:00:00Z"
        items = [
            # All of them are versions of one object.
            {
                "name": "t/_delta_log/_last_checkpoint",
                "generation": str(number * PER_PAGE + entry),
                "size": "8",
                "timeCreated": time,
                "timeDeleted": time,
            }
            for entry in range(PER_PAGE)
        ]
        following = {"nextPageToken": str(number + 1)} if number + 1 < self.pages else {}
        return {"items": items, **following}


class AzurePages:
    pauses = ()

    def __init__(self, pages: int) -> None:
        self.pages = pages

    def sleep(self, seconds: float) -> None:
        raise AssertionError

    def call(self, method: str, key: str = "", **asked: Any) -> Answer:
        return Answer(status=200, headers={}, body=b"")

    def send(self, method: str, key: str = "", *, query: Mapping[str, str]) -> Answer:
        number = int(query.get("marker", "0"))
        blobs = "".join(
            f"<Blob><Name>t/{number}-{entry}</Name><VersionId>1</VersionId>"
            "<Properties><Content-Length>8</Content-Length></Properties></Blob>"
            for entry in range(PER_PAGE)
        )
        following = number + 1 if number + 1 < self.pages else ""
        text = (
            f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{following}</NextMarker>"
            "</EnumerationResults>"
        )
        return Answer(status=200, headers={}, body=text.encode())


def most_memory() -> int:
    """The bytes that Python has held at most since memory is watched."""
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def alone(work: Callable[..., Result], *arguments: Any) -> Result:
    """Runs work in a new process, in which no servers of other tests take memory meanwhile."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def listed(store: str) -> tuple[int, int]:
    """The number of listed versions, and the memory that this took."""
    old: OldVersions = (
        GCSOldVersions(cast(Any, GCSPages(WATCHED)), "t/")
        if store == "gcs"
        else AzureOldVersions(cast(Any, AzurePages(WATCHED)), "t/")
    )
    tracemalloc.start()
    counted = sum(1 for _ in old.list())
    return counted, most_memory()


@pytest.mark.process
@pytest.mark.parametrize("store", ["gcs", "azure"])
def test_a_long_listing_takes_the_memory_of_a_page(store: str) -> None:
    counted, memory = alone(listed, store)
    assert memory < MOST_BYTES
    assert counted == WATCHED * PER_PAGE


class VersionedStore(MemoryStore):
    """A store that keeps a million old versions."""

    @property
    def old_versions(self) -> OldVersions:
        return S3OldVersions(cast(Any, S3Pages(1000)), "bucket", "t/")


def reported() -> tuple[str, int]:
    """The status of a report over them, and the memory that this took."""
    table = TableBuilder(VersionedStore())
    schema = (
        '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
    )
    table.commit([protocol(), metadata(schema=schema)])
    opened = Table(table.store)
    plan = erasure_report.plan(opened.snapshot(), ErasureReportOptions(where="id = 7"))
    return erasure_report.apply(opened, plan).status, most_memory()


@pytest.mark.cases
@pytest.mark.process
def test_a_report_over_a_million_old_versions_takes_the_memory_of_a_page() -> None:
    status, memory = alone(reported)
    assert memory < MOST_BYTES
    assert status == "erased"


class Repeating:
    """The clients of three stores whose listings name their first page as the next one."""

    bucket_path, pauses = "/b", ()
    page = b"<EnumerationResults><Blobs/><NextMarker>1</NextMarker></EnumerationResults>"

    def __init__(self) -> None:
        self.asked = 0

    def call(self, method: str, *_: Any, **__: Any) -> Any:
        if method == "get_bucket_lifecycle_configuration":
            raise S3Failure(status=404, code="NoSuchLifecycleConfiguration", detail="")
        if method == "get_bucket_versioning":
            return {"Status": "Enabled"}
        if method == "GET":
            return Answer(status=200, headers={}, body=b"")
        self._count()
        return {"IsTruncated": True, "NextKeyMarker": "1"}

    def ask(self, path: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
        self._count()
        return {"nextPageToken": "1"}

    def send(self, method: str, **_: Any) -> Answer:
        self._count()
        return Answer(status=200, headers={}, body=self.page)

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing failed that a pause could mend")

    def _count(self) -> None:
        self.asked += 1
        assert self.asked < 10, "the listing does not end"


@pytest.mark.parametrize(
    "versions_of",
    [
        lambda client: S3OldVersions(client, "b", "t/"),
        lambda client: GCSOldVersions(client, "t/"),
        lambda client: AzureOldVersions(client, "t/"),
    ],
    ids=["s3", "gcs", "azure"],
)
def test_a_listing_that_repeats_a_page_ends(versions_of: Callable[[Any], OldVersions]) -> None:
    with pytest.raises(StorageError, match="same page of a listing twice"):
        list(versions_of(Repeating()).list())
