"""Files of a log in archive classes of S3: named by class, and never requested."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from delta_maintenance.address import Address
from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions, FsckPlan
from delta_maintenance.protocol.delta_log import (
    LAST_CHECKPOINT,
    checksum_name,
    classic_checkpoint_name,
    commit_name,
    compaction_name,
)
from delta_maintenance.storage.s3 import S3Store
from delta_maintenance.table.read import Table
from tests.support.emulators.s3_server import S3Server
from tests.support.operations.fsck_findings import NOW
from tests.support.tables.sound_tables import SoundTable

LOG = "_delta_log"
Check = Callable[..., FsckPlan]


@pytest.fixture
def check(s3_server: S3Server) -> Iterator[Check]:
    """Copies a sound table to S3 with some files of its log in archive classes, and checks it."""
    stores = []

    def checked(*archived: str, **options: bool) -> FsckPlan:
        bucket = f"bucket-{uuid.uuid4()}"
        s3_server.make_bucket(bucket)
        store = S3Store(Address.parse(f"s3://{bucket}/t"), s3_server.storage_options)
        stores.append(store)
        made = SoundTable()
        classes = dict.fromkeys(archived, "DEEP_ARCHIVE")
        for batch in made.store.list_tree():
            for path in batch["path"].to_pylist():
                store._bucket._client.call(
                    "put_object",
                    Bucket=bucket,
                    Key=f"t/{path}",
                    Body=made.store.read(path),
                    StorageClass=classes.get(path, "STANDARD"),
                )
        assert set(archived) <= {f"{LOG}/{name}" for name in _names(made)}
        s3_server.requests.clear()
        plan = fsck.plan(Table(store), FsckOptions(deep=True, **options), RunContext.at(NOW))
        asked = [line for line in s3_server.requests if line.startswith("GET")]
        for path in archived:
            assert not any(f"/{bucket}/t/{path}" in line for line in asked), path
        return plan

    yield checked
    for store in stores:
        store.close()
    assert not [each for each in s3_server.requests if "restore" in each.lower()]


def _names(made: SoundTable) -> list[str]:
    folders = ("", "/_sidecars")
    return [
        status.path.removeprefix(f"{LOG}/")
        for folder in folders
        for status in made.store.list_from(LOG + folder)
    ]


def counts(plan: FsckPlan) -> dict[str, int]:
    return {each.kind: each.count for each in plan.counts}


NEEDED_BY_NOBODY = {
    "commit": commit_name(1),
    "classic checkpoint": classic_checkpoint_name(1),
    "compaction": compaction_name(1, 3),
    "checksum": checksum_name(3),
    "hint": LAST_CHECKPOINT,
}


@pytest.mark.parametrize("kind", NEEDED_BY_NOBODY)
def test_a_file_that_the_newest_version_does_not_need_is_named(check: Check, kind: str) -> None:
    path = f"{LOG}/{NEEDED_BY_NOBODY[kind]}"
    plan = check(path)
    assert counts(plan) == {"archived-log-file": 1}
    (found,) = plan.findings
    assert (found.path, found.severity) == (path, "warning")
    assert "DEEP_ARCHIVE and cannot be read at once" in found.problem
    assert "lifecycle" in found.remedy


def test_a_newest_commit_that_is_archived_makes_the_table_unreadable(check: Check) -> None:
    plan = check(f"{LOG}/{commit_name(4)}")
    assert counts(plan) == {"archived-log-file": 1, "unreadable-version": 1}
    (worst,) = (each for each in plan.findings if each.severity == "corrupt")
    assert "DEEP_ARCHIVE" in worst.problem and "retrieve it" in worst.remedy


def test_an_archived_sidecar_makes_only_its_checkpoint_unusable(check: Check) -> None:
    made = SoundTable()
    (path, _) = sorted(status.path for status in made.store.list_from(f"{LOG}/_sidecars"))
    plan = check(path)
    assert counts(plan) == {"archived-log-file": 1, "unreadable-checkpoint": 1}


def test_nothing_is_repaired_while_files_of_the_log_are_archived(check: Check) -> None:
    plan = check(f"{LOG}/{classic_checkpoint_name(1)}", repair=True, remove_missing_files=True)
    assert not plan.repairs
    assert "nothing is repaired while files of the log are archived" in plan.notes
