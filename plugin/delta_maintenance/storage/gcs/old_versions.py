"""The noncurrent generations and the soft-deleted objects of a bucket."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from delta_maintenance import clock
from delta_maintenance.errors import StorageError
from delta_maintenance.rest.failure import repeated_page, storage_error
from delta_maintenance.storage.core.base import SOFT_DELETED, DeletedBytes, OldVersion
from delta_maintenance.storage.gcs.client import GCSClient, GCSFailure

_DAY_MS = timedelta(days=1) // timedelta(milliseconds=1)
_NONCURRENT = (
    "name,size,generation,timeCreated,timeDeleted,"
    "temporaryHold,eventBasedHold,retentionExpirationTime"
)
_UNDERSTOOD = {"age", "daysSinceNoncurrentTime", "isLive", "matchesPrefix", "numNewerVersions"}
"""The conditions of rules whose effect is certain; all of a rule's conditions must hold."""
_LEAST_DAYS = {"NEARLINE": 30, "COLDLINE": 90, "ARCHIVE": 365}
"""For how long an object in a class is paid for, even if it is deleted earlier."""
_BY_RULE = "a lifecycle rule of the bucket"


class GCSOldVersions:
    """The noncurrent and soft-deleted objects below a prefix of a bucket."""

    def __init__(self, client: GCSClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def list(self) -> Iterator[OldVersion]:
        """Lists the noncurrent objects, then the soft-deleted ones, which cannot be read."""
        settings = self._settings()
        ends = _Ends.of(settings, self._prefix)
        entries = self._entries({"versions": "true"}, _NONCURRENT)
        for item, newer in _count_newer(entries, ends.most_newer):
            if "timeDeleted" not in item:
                continue
            ends_ms = ends.of_item(item, newer)
            yield OldVersion(
                path=item["name"][len(self._prefix) :],
                version_id=item["generation"],
                size=int(item["size"]),
                ends_ms=ends_ms,
                ends_by=ends.known if ends_ms is not None else ends.missing,
            )
        for item in self._entries({"softDeleted": "true"}, f"{_NONCURRENT},hardDeleteTime"):
            if "hardDeleteTime" not in item:
                # Live objects, from a server that does not know the parameter.
                raise StorageError(
                    "the server does not tell which objects are soft-deleted",
                    remedy="look for them with its own tools",
                )
            yield OldVersion(
                path=item["name"][len(self._prefix) :],
                version_id=item["generation"],
                size=int(item["size"]),
                ends_ms=_millis(item["hardDeleteTime"]),
                ends_by="the soft-delete policy of the bucket",
                problem=SOFT_DELETED,
            )

    def read(self, version: OldVersion, first: int, last: int) -> bytes:
        """Reads a range of bytes of a noncurrent object."""
        try:
            return self._client.call(
                "GET",
                self._client.object_path(self._prefix + version.path),
                query={"alt": "media", "generation": version.version_id},
                # As for current objects.
                headers={"Accept-Encoding": "gzip", "Range": f"bytes={first}-{last}"},
            ).body
        except GCSFailure as failure:
            raise storage_error(
                failure, permission="storage.objects.get", file=version.path
            ) from failure

    def bytes_of_deleted(self) -> DeletedBytes:
        """Asks for the settings of the bucket."""
        settings = self._settings()
        ends = _Ends.of(settings, self._prefix)
        if settings is None:
            return DeletedBytes(state="unknown", why=ends.missing)
        minimum_age = timedelta(days=_LEAST_DAYS.get(settings.get("storageClass", ""), 0))
        if settings.get("versioning", {}).get("enabled"):
            # Of objects that are as new as can be, which end last.
            now = clock.now().isoformat()
            now_ms = _millis(now)
            ends_ms = ends.of_item({"timeCreated": now, "timeDeleted": now}, 0)
            if ends_ms is None:
                return DeletedBytes(
                    state="never",
                    why="the bucket keeps versions, and no lifecycle rule of it deletes them",
                )
            after, clause = timedelta(milliseconds=ends_ms - now_ms), ends.known
        else:
            after = timedelta(milliseconds=ends.soft_ms)
            clause = "the soft-delete policy of the bucket"
        if minimum_age > after:
            after, clause = (
                minimum_age,
                f"the least duration of the class {settings['storageClass']}",
            )
        return DeletedBytes.kept_for(after, clause)

    def _settings(self) -> Mapping[str, Any] | None:
        """Returns the rules of the bucket; None without the right to read them, which those who
        may read objects often lack.
        """
        query = {"fields": "lifecycle,softDeletePolicy,storageClass,versioning"}
        try:
            return self._client.ask(self._client.bucket_path, query)
        except GCSFailure as failure:
            if failure.access:
                return None
            raise storage_error(failure, permission="storage.buckets.get") from failure

    def _entries(self, which: Mapping[str, str], fields: str) -> Iterator[Mapping[str, Any]]:
        query = {"prefix": self._prefix, "fields": f"nextPageToken,items({fields})", **which}
        while True:
            try:
                page = self._client.ask(f"{self._client.bucket_path}/o", query)
            except GCSFailure as failure:
                raise storage_error(failure, permission="storage.objects.list") from failure
            yield from page.get("items", ())
            token = page.get("nextPageToken", "")
            if not token:
                return
            if token == query.get("pageToken"):
                raise repeated_page()
            query["pageToken"] = token


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """A lifecycle rule that deletes noncurrent objects."""

    age_ms: int
    """Since the object was created."""
    noncurrent_ms: int
    """Since it was deleted or replaced."""
    newer: int
    """The number of newer versions that there must be, with the live one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """When noncurrent objects end by the rules of a bucket."""

    rules: tuple[_Rule, ...] = ()
    soft_ms: int = 0
    """For how long the bucket keeps objects that a rule deletes."""
    known: str = _BY_RULE
    missing: str = "no lifecycle rule of the bucket deletes it: delete it there"

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None, prefix: str) -> _Ends:
        """Returns the ends by the settings of a bucket, below a prefix."""
        if settings is None:
            return cls(missing="its end is not known: grant storage.buckets.get")
        rules = settings.get("lifecycle", {}).get("rule", ())
        seconds = int(settings.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
        by_rule = _BY_RULE if not seconds else f"{_BY_RULE}, then its soft-delete policy"
        return cls(
            rules=tuple(_rule(rule["condition"]) for rule in rules if _deletes(rule, prefix)),
            soft_ms=seconds * 1000,
            known=by_rule,
        )

    @property
    def most_newer(self) -> int:
        """How many newer versions of an object must be counted."""
        return max((rule.newer for rule in self.rules), default=0)

    def of_item(self, item: Mapping[str, Any], newer: int) -> int | None:
        """Returns when an object ends that has at least `newer` newer versions."""
        if item.get("temporaryHold") or item.get("eventBasedHold"):
            return None
        created_ms, deleted_ms = _millis(item["timeCreated"]), _millis(item["timeDeleted"])
        ends = [
            max(created_ms + rule.age_ms, deleted_ms + rule.noncurrent_ms)
            for rule in self.rules
            if rule.newer <= newer
        ]
        if not ends:
            return None
        locked = item.get("retentionExpirationTime")
        return max(min(ends), 0 if locked is None else _millis(locked)) + self.soft_ms


def _deletes(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether a rule is certain to delete all noncurrent objects below the prefix in the end."""
    condition = rule.get("condition", {})
    prefixes = condition.get("matchesPrefix", ("",))
    return (
        rule.get("action", {}).get("type") == "Delete"
        and bool(condition)
        and set(condition) <= _UNDERSTOOD
        and not condition.get("isLive", False)
        and any(prefix.startswith(rule_prefix) for rule_prefix in prefixes)
    )


def _rule(condition: Mapping[str, Any]) -> _Rule:
    return _Rule(
        age_ms=condition.get("age", 0) * _DAY_MS,
        noncurrent_ms=condition.get("daysSinceNoncurrentTime", 0) * _DAY_MS,
        newer=condition.get("numNewerVersions", 0),
    )


def _count_newer(
    items: Iterable[Mapping[str, Any]], most: int
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Yields each item with the number of newer versions of its object, counted up to `most`.

    The versions of an object follow each other, and the newest comes last.
    """
    waiting: deque[Mapping[str, Any]] = deque()
    for item in items:
        while waiting and waiting[0]["name"] != item["name"]:
            yield waiting.popleft(), len(waiting)
        waiting.append(item)
        if len(waiting) > most:
            yield waiting.popleft(), most
    while waiting:
        yield waiting.popleft(), len(waiting)


def _millis(text: str) -> int:
    return clock.epoch_millis(datetime.fromisoformat(text))
