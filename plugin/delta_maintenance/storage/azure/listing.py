"""Listings of the Blob service, as XML, and the old versions of the blobs of a container."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import unquote
from xml.etree import ElementTree

from delta_maintenance import clock
from delta_maintenance.rest.client import Answer
from delta_maintenance.rest.failure import patiently, repeated_page, storage_error
from delta_maintenance.storage.azure.client import AzureClient, AzureFailure
from delta_maintenance.storage.core.base import FREED, SOFT_DELETED, DeletedBytes, OldVersion


def listing_of(answer: Answer, *, tag: str = "EnumerationResults") -> ElementTree.Element:
    """Parses the answer to a listing, or another one. `AzureFailure` if it is something else."""
    try:
        listing = ElementTree.fromstring(answer.body)
    except ElementTree.ParseError:
        listing = None
    if listing is None or listing.tag != tag:
        # Sent by a proxy or a gateway, not by Azure.
        raise AzureFailure(status=None, code="NotXML", detail="not an answer of the Blob API")
    return listing


def is_directory(blob: ElementTree.Element) -> bool:
    """Whether an entry is a directory, or the marker of one."""
    is_folder = (blob.findtext("Metadata/hdi_isfolder") or "").lower() == "true"
    return is_folder or blob.findtext("Properties/ResourceType") == "directory"


def name_of(element: ElementTree.Element) -> str:
    """Returns the name of an entry or of a common prefix."""
    name = element.find("Name")
    text = (name.text if name is not None else None) or ""
    encoded = name is not None and name.get("Encoded") == "true"
    return unquote(text, errors="strict") if encoded else text


def millis_of(text: str) -> int:
    """Converts a date of HTTP to milliseconds since 1970-01-01 UTC."""
    return clock.epoch_millis(parsedate_to_datetime(text))


_DAY_MS = timedelta(days=1) // timedelta(milliseconds=1)
_READER = "Storage Blob Data Reader"
_SERVICE_READER = "Microsoft.Storage/storageAccounts/blobServices/read"


class AzureOldVersions:
    """The old versions below a prefix of a container.

    The Blob service does not tell the lifecycle rules of the account, so only soft-deleted blobs
    have a known end.
    """

    def __init__(self, client: AzureClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def list(self) -> Iterator[OldVersion]:
        """Lists the old versions. Soft-deleted ones cannot be read."""
        which = [{"include": "deleted,metadata,snapshots,versions"}]
        if self._is_hierarchical():
            # Such an account has no versions, and lists soft-deleted blobs only by themselves.
            which = [{"include": "metadata,snapshots"}, {"showonly": "deleted"}]
        now_ms = clock.epoch_millis(clock.now())
        for query in which:
            for blob in self._entries(query):
                old_version = self._old(blob, now_ms)
                if old_version is not None:
                    yield old_version

    def read(self, version: OldVersion, first: int, last: int) -> bytes:
        """Reads a range of bytes of a previous version or of a snapshot."""
        parameter, _, value = version.version_id.partition("=")
        key, headers = self._prefix + version.path, {"x-ms-range": f"bytes={first}-{last}"}
        try:
            return self._client.call("GET", key, query={parameter: value}, headers=headers).body
        except AzureFailure as failure:
            raise storage_error(failure, permission=_READER, file=version.path) from failure

    def bytes_of_deleted(self) -> DeletedBytes:
        """Asks for the kind of the account, for a page of the log, and for its soft delete."""
        if not self._is_hierarchical():
            page = self._page({"include": "versions", "prefix": f"{self._prefix}_delta_log/"})
            if page.find("Blobs/Blob/VersionId") is not None:
                clause = (
                    "the account keeps versions, and its Blob service does not tell their rules"
                )
                return DeletedBytes(state="unknown", why=clause)
        try:
            answer = self._client.call("GET", query={"restype": "service", "comp": "properties"})
            service = listing_of(answer, tag="StorageServiceProperties")
        except AzureFailure as failure:
            raise storage_error(failure, permission=_SERVICE_READER) from failure
        policy = service.find("DeleteRetentionPolicy")
        if policy is None or policy.findtext("Enabled") != "true":
            return FREED
        return DeletedBytes.kept_for(
            timedelta(days=int(policy.findtext("Days") or 0)), "the soft delete of the account"
        )

    def _old(self, blob: ElementTree.Element, now_ms: int) -> OldVersion | None:
        is_deleted = blob.findtext("Deleted") == "true"
        version, snapshot = blob.findtext("VersionId"), blob.findtext("Snapshot")
        is_current = not version or blob.findtext("IsCurrentVersion") == "true"
        if not is_deleted and (is_directory(blob) or (is_current and not snapshot)):
            return None
        if snapshot:
            version_id = f"snapshot={snapshot}"
        elif version:
            version_id = f"versionid={version}"
        else:
            version_id = f"deletionid={blob.findtext('DeletionId') or 'unknown'}"
        days = blob.findtext("Properties/RemainingRetentionDays")
        ends_by = "the lifecycle rules of the account, which its Blob service does not tell"
        if is_deleted:
            ends_by = "the soft-delete retention of the account"
        return OldVersion(
            path=name_of(blob)[len(self._prefix) :],
            version_id=version_id,
            size=int(blob.findtext("Properties/Content-Length") or 0),
            # A part of a day is not told.
            ends_ms=now_ms + (int(days) + 1) * _DAY_MS if is_deleted and days else None,
            ends_by=ends_by,
            problem=SOFT_DELETED if is_deleted else None,
        )

    def _entries(self, which: Mapping[str, str]) -> Iterator[ElementTree.Element]:
        query = dict(which)
        if self._prefix:
            query["prefix"] = self._prefix
        while True:
            page = self._page(query)
            yield from page.iterfind("Blobs/Blob")
            marker = page.findtext("NextMarker") or ""
            if not marker:
                return
            if marker == query.get("marker"):
                raise repeated_page()
            query["marker"] = marker

    def _page(self, which: Mapping[str, str]) -> ElementTree.Element:
        query = {"restype": "container", "comp": "list", **which}
        try:
            return patiently(
                lambda: listing_of(self._client.send("GET", query=query)),
                self._client.sleep,
                self._client.pauses,
            )
        except AzureFailure as failure:
            raise storage_error(failure, permission=_READER) from failure

    def _is_hierarchical(self) -> bool:
        try:
            query = {"restype": "account", "comp": "properties"}
            headers = self._client.call("GET", query=query).headers
        except AzureFailure as failure:
            raise storage_error(failure, permission=_READER) from failure
        return headers.get("x-ms-is-hns-enabled", "").lower() == "true"
