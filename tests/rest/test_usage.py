"""Requests are counted by class, and their bytes as the servers count them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delta_maintenance.rest.usage import Usage, class_of_http
from delta_maintenance.storage import open_store
from tests.support.emulators.azure_server import AzureServer
from tests.support.emulators.gcs_server import GCSServer
from tests.support.emulators.s3_server import S3Server

_GCS = "https://storage.googleapis.com/storage/v1/b/lake/o"
_AZURE = "https://a.blob.core.windows.net/lake"


@pytest.mark.parametrize(
    ("method", "url", "expected"),
    [
        ("GET", f"{_GCS}?prefix=a", "list"),
        ("GET", _GCS, "list"),
        ("GET", f"{_GCS}/a%2Fo?alt=media", "read"),
        ("GET", f"{_GCS}/a", "other"),
        ("POST", "https://h/upload/storage/v1/b/lake/o?uploadType=multipart", "write"),
        ("POST", "https://h/batch/storage/v1", "delete"),
        ("DELETE", f"{_GCS}/a", "delete"),
        ("GET", f"{_AZURE}/a", "read"),
        ("GET", f"{_AZURE}?restype=container&comp=list", "list"),
        ("POST", f"{_AZURE}?comp=batch", "delete"),
        ("PUT", f"{_AZURE}/a?comp=block", "write"),
        ("HEAD", f"{_AZURE}/a", "other"),
        ("GET", "http://h/webhdfs/v1/a?op=LISTSTATUS_BATCH", "list"),
        ("GET", "http://h/webhdfs/v1/a?op=OPEN", "read"),
        ("GET", "http://h/webhdfs/v1/a?op=GETFILESTATUS", "other"),
        ("PUT", "http://h/webhdfs/v1/a?op=CREATE", "write"),
        ("DELETE", "http://h/webhdfs/v1/a?op=DELETE", "delete"),
    ],
)
def test_a_request_has_the_class_that_the_store_charges_for(
    method: str, url: str, expected: str
) -> None:
    assert class_of_http(method, url) == expected


@pytest.fixture(params=["s3", "gcs", "azure"])
def root(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, str]]]:
    if request.param == "s3":
        s3: S3Server = request.getfixturevalue("s3_server")
        s3.make_bucket("counted")
        yield "s3://counted/t", s3.storage_options
    elif request.param == "gcs":
        gcs: GCSServer = request.getfixturevalue("gcs_server")
        gcs.make_bucket("counted")
        yield "gs://counted/t", gcs.storage_options
    else:
        azure: AzureServer = request.getfixturevalue("azure_server")
        azure.make_container("counted")
        yield "az://counted/t", azure.storage_options


@pytest.mark.server
def test_the_requests_of_a_store_are_counted(root: tuple[str, dict[str, str]]) -> None:
    store = open_store(*root)
    store.put_if_absent("a", b"12345")
    before = store.usage
    assert before is not None
    assert store.read("a") == b"12345"
    assert store.read_head("a", 2) == b"12"
    list(store.list_from(""))
    store.stat("a")
    store.delete("a")
    after = store.usage
    assert after is not None
    found = after.since(before)
    assert found == Usage(read=2, list=1, other=1, delete=1, bytes_received=7)
    # What proves the conditional put costs requests of its own, once for each store.
    assert before.write >= 1 and before.bytes_sent >= 5
