"""What the settings of a bucket on S3 say about the bytes of deleted files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import boto3
import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import StorageAccessError
from delta_maintenance.storage.s3.client import S3Client, S3Failure
from delta_maintenance.storage.s3.old_versions import S3OldVersions
from delta_maintenance.storage.s3.store import S3Store
from tests.support.emulators.s3_server import S3Server


def expiry(days: int, prefix: str = "a b/", **more: int) -> dict[str, Any]:
    expiration = {"NoncurrentDays": days, **more}
    return {
        "ID": f"{days} {prefix}",
        "Status": "Enabled",
        "Filter": {"Prefix": prefix},
        "NoncurrentVersionExpiration": expiration,
    }


@pytest.fixture
def bucket(s3_server: S3Server, s3_bucket: str) -> Any:
    """The bucket, as a client of its vendor sees it."""
    return boto3.resource(
        "s3",
        endpoint_url=s3_server.url,
        region_name="us-east-1",
        aws_access_key_id="testing-key",
        aws_secret_access_key="testing-secret",
    ).Bucket(s3_bucket)


@pytest.fixture
def store(s3_server: S3Server, s3_bucket: str) -> Iterator[S3Store]:
    store = S3Store(Address.parse(f"s3://{s3_bucket}/a b/t"), s3_server.storage_options)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("versioning", "rules", "state", "days", "requests"),
    [
        (None, [], "freed", None, 1),
        (None, [expiry(5)], "freed", None, 1),
        ("Enabled", [], "never", None, 2),
        ("Enabled", [expiry(5, "other/")], "never", None, 2),
        # S3 ends a day at midnight.
        ("Enabled", [expiry(30), expiry(5)], "later", 6, 3),
        ("Suspended", [], "unknown", None, 2),
        ("Suspended", [expiry(5)], "later", 6, 3),
    ],
)
def test_the_settings_of_the_bucket_say_what_a_deletion_frees(
    s3_server: S3Server,
    bucket: Any,
    store: S3Store,
    versioning: str | None,
    rules: list[dict[str, Any]],
    state: str,
    days: int | None,
    requests: int,
) -> None:
    if versioning is not None:
        bucket.Versioning().put(VersioningConfiguration={"Status": versioning})
    if rules:
        bucket.LifecycleConfiguration().put(LifecycleConfiguration={"Rules": rules})
    s3_server.requests.clear()
    found = store.bytes_of_deleted()
    assert (found.state, found.after) == (state, None if days is None else timedelta(days=days))
    assert len(s3_server.requests) == requests


class Settings(S3Client):
    """Answers that the emulator does not give."""

    def __init__(self, **answers: Mapping[str, Any] | S3Failure) -> None:
        self.answers = answers

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        answer = self.answers[method]
        if isinstance(answer, S3Failure):
            raise answer
        return dict(answer)


LOCK = {"ObjectLockConfiguration": {"Rule": {"DefaultRetention": {"Years": 1}}}}
NO_LOCK = S3Failure(status=404, code="ObjectLockConfigurationNotFoundError", detail="")
FORBIDDEN = S3Failure(status=403, code="AccessDenied", detail="")
UNSUPPORTED = S3Failure(status=501, code="NotImplemented", detail="")


@pytest.mark.parametrize(
    ("lock", "days"), [(LOCK, 367), (NO_LOCK, 6), (UNSUPPORTED, 6)], ids=["lock", "none", "unknown"]
)
def test_a_locked_version_outlives_its_rule(lock: Any, days: int) -> None:
    settings = Settings(
        get_bucket_versioning={"Status": "Enabled"},
        get_bucket_lifecycle_configuration={"Rules": [expiry(5)]},
        get_object_lock_configuration=lock,
    )
    found = S3OldVersions(settings, "lake", "a b/t/").bytes_of_deleted()
    assert found.after == timedelta(days=days)


def test_settings_that_must_not_be_read_are_an_error_that_names_the_permission() -> None:
    settings = Settings(get_bucket_versioning=FORBIDDEN)
    with pytest.raises(StorageAccessError, match="s3:GetBucketVersioning"):
        S3OldVersions(settings, "lake", "t/").bytes_of_deleted()
    settings = Settings(
        get_bucket_versioning={"Status": "Enabled"}, get_bucket_lifecycle_configuration=FORBIDDEN
    )
    with pytest.raises(StorageAccessError, match="s3:GetLifecycleConfiguration"):
        S3OldVersions(settings, "lake", "t/").bytes_of_deleted()


def test_a_rule_that_keeps_some_versions_frees_nothing() -> None:
    """Against recorded answers, because the emulator forgets the number of versions."""
    settings = Settings(
        get_bucket_versioning={"Status": "Enabled"},
        get_bucket_lifecycle_configuration={"Rules": [expiry(5, NewerNoncurrentVersions=2)]},
    )
    assert S3OldVersions(settings, "lake", "a b/t/").bytes_of_deleted().state == "never"
