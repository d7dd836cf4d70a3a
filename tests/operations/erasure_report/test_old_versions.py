"""Erasure in a bucket that keeps the contents of deleted objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance import open_table
from delta_maintenance.operations import erasure_report
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.erasure_report import ErasureReportOptions, ErasureReportResult
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

pytestmark = pytest.mark.server
SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'


@pytest.fixture
def s3(s3_server: S3Server) -> Iterator[Any]:
    """A client of the server."""
    options = s3_server.storage_options
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.url,
        region_name="us-east-1",
        aws_access_key_id=options["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=options["AWS_SECRET_ACCESS_KEY"],
    )
    yield client
    client.close()


def report(server: S3Server, bucket: str) -> ErasureReportResult:
    """Looks for the row 7."""
    table = open_table(f"s3://{bucket}/t", server.storage_options)
    planned = erasure_report.plan(table.snapshot(), ErasureReportOptions(where="id = 7"))
    found = erasure_report.apply(table, planned, RunContext())
    table.store.close()
    return found


def test_a_deleted_file_is_found_in_a_bucket_with_versioning(
    s3: Any, s3_server: S3Server, s3_bucket: str
) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": pa.array([6, 7, 7, 8], pa.int64())}), sink)
    data = sink.getvalue().to_pybytes()
    enabled = {"Status": "Enabled"}
    s3.put_bucket_versioning(Bucket=s3_bucket, VersioningConfiguration=enabled)
    s3.put_object(Bucket=s3_bucket, Key="t/a.parquet", Body=data)
    s3.put_object(Bucket=s3_bucket, Key="other/a.parquet", Body=data)
    table = TableBuilder(open_table(f"s3://{s3_bucket}/t", s3_server.storage_options).store)
    table.commit([protocol(), metadata(schema=SCHEMA), add("a.parquet", size=len(data))])
    assert [(each.place, each.rows) for each in report(s3_server, s3_bucket).places] == [
        ("live", 2)
    ]
    table.commit([remove("a.parquet")])
    s3.delete_object(Bucket=s3_bucket, Key="t/a.parquet")
    result = report(s3_server, s3_bucket)
    assert [(each.place, each.rows, each.last_end) for each in result.places] == [
        ("old-version", 2, None)
    ]
    (found,) = result.found
    assert found.path == "a.parquet" and found.version_id and "no lifecycle rule" in found.ends_by
    rule = {
        "ID": "noncurrent",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 30},
    }
    s3.put_bucket_lifecycle_configuration(
        Bucket=s3_bucket, LifecycleConfiguration={"Rules": [rule]}
    )
    (total,) = report(s3_server, s3_bucket).places
    assert total.last_end is not None
    assert abs(total.last_end - result.examined_at - timedelta(days=30)) < timedelta(minutes=5)
    s3.delete_object(Bucket=s3_bucket, Key="t/a.parquet", VersionId=found.version_id)
    assert report(s3_server, s3_bucket).status == "erased"


def test_a_bucket_whose_versions_cannot_be_listed_leaves_the_erasure_uncertain(
    s3: Any, s3_server: S3Server, s3_bucket: str
) -> None:
    enabled = {"Status": "Enabled"}
    s3.put_bucket_versioning(Bucket=s3_bucket, VersioningConfiguration=enabled)
    table = TableBuilder(open_table(f"s3://{s3_bucket}/t", s3_server.storage_options).store)
    table.commit([protocol(), metadata(schema=SCHEMA)])
    assert report(s3_server, s3_bucket).status == "erased"

    def denied(application: Application) -> Application:
        def answer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            query = environ["QUERY_STRING"].split("&")
            if "versions" not in {each.partition("=")[0] for each in query}:
                return application(environ, start)
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"]

        return answer

    s3_server.intercept = denied
    result = report(s3_server, s3_bucket)
    assert result.status == "uncertain"
    assert "s3:ListBucketVersions" in result.not_examined[0]
