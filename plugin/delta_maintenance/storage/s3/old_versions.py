"""The noncurrent versions of the objects in a bucket with versioning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from delta_maintenance import clock
from delta_maintenance.errors import StorageError
from delta_maintenance.rest.failure import repeated_page, storage_error
from delta_maintenance.storage.core.base import FREED, DeletedBytes, OldVersion
from delta_maintenance.storage.s3.client import S3Client, S3Failure

_DAY_MS = timedelta(days=1) // timedelta(milliseconds=1)
_KEPT = "no lifecycle rule of the bucket deletes noncurrent versions: delete it there"


class S3OldVersions:
    """The noncurrent versions below a prefix of a bucket."""

    def __init__(self, client: S3Client, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    def list(self) -> Iterator[OldVersion]:
        """Lists the noncurrent versions. Two requests more than pages of 1,000 versions."""
        settings = self._call("get_bucket_versioning", "s3:GetBucketVersioning")
        if not settings.get("Status"):
            return
        days = self._days()
        newer: Mapping[str, Any] = {}
        for entry in self._entries():
            key = entry["Key"]
            # The entries of a key follow each other, and the newest comes first.
            replaced = newer if newer.get("Key") == key else None
            newer = entry
            if entry["IsLatest"] or "ETag" not in entry:
                continue
            at = entry["LastModified"] if replaced is None else replaced["LastModified"]
            replaced_ms = clock.epoch_millis(at)
            yield OldVersion(
                path=key[len(self._prefix) :],
                version_id=entry["VersionId"],
                size=entry["Size"],
                ends_ms=None if days is None else replaced_ms + days * _DAY_MS,
                ends_by=_KEPT if days is None else "a lifecycle rule of the bucket",
            )

    def read(self, version: OldVersion, first: int, last: int) -> bytes:
        """Reads a range of bytes of a noncurrent version."""
        answer = self._call(
            "get_object",
            "s3:GetObjectVersion",
            file=version.path,
            Key=self._prefix + version.path,
            VersionId=version.version_id,
            Range=f"bytes={first}-{last}",
        )
        data: bytes = answer["Body"]
        return data

    def bytes_of_deleted(self) -> DeletedBytes:
        """Asks for versioning and, if needed, for the lifecycle rules and the object lock."""
        status = self._call("get_bucket_versioning", "s3:GetBucketVersioning").get("Status")
        if not status:
            return FREED
        days = self._days()
        if days is None and status == "Suspended":
            clause = "versioning is suspended, so that only files from before then are kept"
            return DeletedBytes(state="unknown", why=clause)
        if days is None:
            return DeletedBytes(
                state="never",
                why="the bucket keeps versions, and no lifecycle rule of it deletes them",
            )
        # A day ends at midnight.
        after = timedelta(days=max(days, self._locked_days()) + 1)
        return DeletedBytes.kept_for(after, "a lifecycle rule of the bucket deletes old versions")

    def _entries(self) -> Iterator[Mapping[str, Any]]:
        markers: dict[str, str] = {}
        while True:
            page = self._call(
                "list_object_versions", "s3:ListBucketVersions", Prefix=self._prefix, **markers
            )
            entries = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
            # The newest version of a key first; of equal times, the current one.
            entries.sort(key=lambda entry: (entry["LastModified"], entry["IsLatest"]), reverse=True)
            entries.sort(key=lambda entry: entry["Key"])
            yield from entries
            if not page.get("IsTruncated"):
                return
            following = {
                "KeyMarker": page["NextKeyMarker"],
                "VersionIdMarker": page.get("NextVersionIdMarker", ""),
            }
            if following == markers:
                raise repeated_page()
            markers = following

    def _days(self) -> int | None:
        """Returns after how many days a rule deletes noncurrent versions of all these objects."""
        answer = self._configuration(
            "get_bucket_lifecycle_configuration",
            "s3:GetLifecycleConfiguration",
            missing="NoSuchLifecycleConfiguration",
        )
        periods = [
            rule["NoncurrentVersionExpiration"]["NoncurrentDays"]
            for rule in answer.get("Rules", ())
            if rule.get("Status") == "Enabled"
            and "NoncurrentDays" in rule.get("NoncurrentVersionExpiration", {})
            and "NewerNoncurrentVersions" not in rule["NoncurrentVersionExpiration"]
            and self._covers(rule)
        ]
        return min(periods, default=None)

    def _locked_days(self) -> int:
        """Returns for how many days new versions are locked by default."""
        answer = self._configuration(
            "get_object_lock_configuration",
            "s3:GetBucketObjectLockConfiguration",
            missing="ObjectLockConfigurationNotFoundError",
        )
        rule = answer.get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention", {})
        return int(rule.get("Days", 0)) + 366 * int(rule.get("Years", 0))

    def _configuration(self, method: str, permission: str, *, missing: str) -> Mapping[str, Any]:
        """Returns a part of the settings; empty if the bucket, or the server, does not have it."""
        try:
            return self._call(method, permission)
        except StorageError as error:
            cause = error.__cause__
            if isinstance(cause, S3Failure) and (missing == cause.code or cause.is_unsupported):
                return {}
            raise

    def _covers(self, rule: Mapping[str, Any]) -> bool:
        """Whether a rule is about all objects below the prefix."""
        condition = rule.get("Filter", {"Prefix": rule.get("Prefix", "")})
        return set(condition) <= {"Prefix"} and self._prefix.startswith(condition.get("Prefix", ""))

    def _call(
        self, method: str, permission: str, *, file: str | None = None, **parameters: Any
    ) -> Mapping[str, Any]:
        try:
            return self._client.call(method, Bucket=self._bucket, **parameters)
        except S3Failure as failure:
            raise storage_error(failure, permission=permission, file=file) from failure
