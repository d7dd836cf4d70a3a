"""Unreferenced files in archive classes of S3: named, kept unless asked, and never retrieved."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import StorageAccessError
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.operations.vacuum.candidates import (
    DEAD_FILES,
    DeadFiles,
    Search,
    Sum,
    not_archived,
)
from delta_maintenance.protocol.vacuum import VisibilityRules
from delta_maintenance.rest import Answer
from delta_maintenance.rest.failure import storage_error
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.azure import AzureFailure
from delta_maintenance.storage.azure.store import _page
from delta_maintenance.storage.core import STATUSES, TREE, EntryKind
from delta_maintenance.storage.s3 import S3Store
from delta_maintenance.table.read import Table
from tests.support.emulators.s3_server import S3Server
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.table_builder import log_text

LATER = datetime.now(UTC) + timedelta(days=8)
"""The server stamps objects with the time it is: a vacuum in a week finds them old."""
CLASSES = {
    "cold/glacier.parquet": "GLACIER",
    "cold/deep.parquet": "DEEP_ARCHIVE",
    "cold/at-once.parquet": "GLACIER_IR",
    "warm.parquet": "STANDARD",
}


@pytest.fixture
def table(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """A table with one live file and one unreferenced file in each storage class."""
    monkeypatch.setattr(
        "delta_maintenance.operations.vacuum.operation.require_same_clock", lambda *_, **__: None
    )
    bucket = f"bucket-{uuid.uuid4()}"
    s3_server.make_bucket(bucket)
    store = S3Store(Address.parse(f"s3://{bucket}/t"), s3_server.storage_options)
    for name, storage_class in {**CLASSES, "live.parquet": "GLACIER"}.items():
        store._bucket._client.call(
            "put_object", Bucket=bucket, Key=f"t/{name}", Body=b"xy", StorageClass=storage_class
        )
    gone = [remove(name, deletionTimestamp=1) for name in CLASSES]
    lines = [protocol(), metadata(), add("live.parquet", size=2), *gone]
    store.put(f"_delta_log/{0:020}.json", log_text(lines))
    yield Table(store)
    store.close()
    assert not [each for each in s3_server.requests if "restore" in each.lower()]


def surveyed(table: Table, **options: Any) -> vacuum.VacuumSurvey:
    return vacuum.survey(table.snapshot(), VacuumOptions(**options), now=LATER)


@pytest.mark.parametrize("mode", ["full", "lite"])
def test_archived_files_are_named_and_kept_unless_asked(table: Table, mode: str) -> None:
    kept = surveyed(table, mode=mode)
    assert set(kept.found.files()["path"].to_pylist()) == {"cold/at-once.parquet", "warm.parquet"}
    named = [(each.storage_class, each.count, each.bytes) for each in kept.plan.archived]
    assert named == [("DEEP_ARCHIVE", 1, 2), ("GLACIER", 1, 2)]
    # A later lite vacuum must find them again.
    assert kept.plan.last_commit is None
    deleted = surveyed(table, mode=mode, archived="delete")
    assert set(deleted.found.files()["path"].to_pylist()) == set(CLASSES)
    assert deleted.plan.archived == kept.plan.archived
    context = RunContext.at(LATER)
    result = vacuum.apply(table, deleted.plan, context, surveyed=deleted)
    assert result.deleted == 4
    assert vacuum.plan(table.snapshot(), VacuumOptions(mode="full"), context).files == 0


def test_every_archive_class_is_searched_whatever_the_ones_before_it_hold() -> None:
    """A live file, or none, of one class says nothing about the next class."""

    def listed(archives: list[int | None]) -> pa.Table:
        paths = [f"{number}.parquet" for number in range(len(archives))]
        sizes, kinds = [10] * len(paths), [int(EntryKind.FILE)] * len(paths)
        return pa.table([paths, sizes, sizes, kinds, archives], schema=TREE)

    search = Search(
        rules=VisibilityRules(partition_columns=(), iceberg=False),
        modified_before_ms=100,
        foreign_files=False,
        lists_folder=True,
    )
    for before in ([0, 1, None], [None, None, None]):
        entries = [listed(before), listed([None, None, None, 2, 1])]
        unused = pa.table({name: entries[1][name][3:] for name in STATUSES.names})
        files = unused.append_column(DEAD_FILES.field("reason"), pa.array([0, 0], pa.uint8()))
        dead = DeadFiles()
        assert not not_archived(MemoryStore(), files, entries, search, dead).num_rows
        assert dead.archived == {"DEEP_ARCHIVE": Sum(1, 10), "Archive": Sum(1, 10)}
        assert sum(dead.kept.values()) == 2


def test_an_archived_file_that_is_read_gives_one_line_with_its_class(table: Table) -> None:
    with pytest.raises(StorageAccessError) as refused:
        table.store.read("cold/glacier.parquet")
    line = str(refused.value)
    assert re.search(r"file cold/glacier.parquet: the file is archived.*GLACIER", line), line
    assert "\n" not in line and "nothing is retrieved unasked" in line


def test_listings_of_azure_tell_the_access_tier_and_reads_name_it() -> None:
    blob = "<Blob><Name>t/{0}</Name><Properties><Content-Length>1</Content-Length>" + (
        "<Last-Modified>Fri, 27 Nov 2026 05:00:00 GMT</Last-Modified>"
        "<AccessTier>{0}</AccessTier></Properties></Blob>"
    )
    blobs = "".join(blob.format(tier) for tier in ("Hot", "Cold", "Archive"))
    body = f"<EnumerationResults><Blobs>{blobs}</Blobs></EnumerationResults>".encode()
    page = _page(Answer(status=200, headers={}, body=body))
    assert [each.storage_class for each in page.objects] == ["Hot", "Cold", "Archive"]
    failure = AzureFailure(status=409, code="BlobArchived", detail="")
    error = storage_error(failure, permission="read", file="a.parquet")
    assert "archived" in error.problem and not error.retryable
