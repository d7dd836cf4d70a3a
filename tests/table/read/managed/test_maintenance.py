"""What an operation may do to a catalog-managed table, and what its catalog must permit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from delta_maintenance.clock import instant
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations.checkpoint import CheckpointOptions, CheckpointResult
from delta_maintenance.operations.checksum import ChecksumOptions
from delta_maintenance.operations.compact_log import CompactLogOptions
from delta_maintenance.operations.core import RunContext, find, names
from delta_maintenance.operations.health import TableHealth, measure
from delta_maintenance.protocol.features.registry import MAINTENANCE_PERMISSIONS
from tests.support.faults.every_fault import files_of
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.managed import LOG, STAGED, Managed, commit_path, info, live_paths
from tests.support.tables.table_builder import log_text

NOW = RunContext.at(instant(2_000))
ALL = frozenset(MAINTENANCE_PERMISSIONS.values())
WITHOUT_COMMIT = ("checkpoint", "checksum", "compact-log", "clean-staged", "publish")
"""The operations that this release offers for catalog-managed tables."""
CHANGES = [
    name for name in names() if name not in WITHOUT_COMMIT and not find(name).effects.only_reads
]
PERMISSIONS = {
    "recompute-stats": "DATA_REORGANIZATION",
    "cluster": "DATA_REORGANIZATION",
    "expire": "DATA_REORGANIZATION",
    "optimize": "DATA_REORGANIZATION",
    "purge": "DATA_REORGANIZATION",
    # It adds files again, with statistics.
    "set-clustering": "DATA_REORGANIZATION",
    "vacuum": "DATA_CLEANUP",
    "clean-log": "METADATA_CLEANUP",
    "keep-version": "METADATA_CLEANUP",
    "fsck": "DATA_REORGANIZATION",
    # Changes of metadata are no maintenance; a table without row tracking first gets it.
    "backfill-row-ids": None,
    "add-constraint": None,
    "drop-feature": None,
    "set-properties": None,
    "upgrade-protocol": None,
}
_REQUESTS: dict[str, dict[str, object]] = {
    "upgrade-protocol": {"features": ["v2Checkpoint"]},
    "set-properties": {"properties": {"delta.appendOnly": "true"}},
    "set-clustering": {"by": ["id"]},
    "add-constraint": {"expression": "id > 0"},
    "fsck": {"remove_missing_files": True},
}


@pytest.mark.conformance("CAT-01", "CAT-05")
@pytest.mark.parametrize("permitted", [False, True], ids=["absent", "permitted"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_the_catalog_must_permit_is_refused_in_one_line(name: str, permitted: bool) -> None:
    record = find(name)
    managed = Managed()
    managed.allowed = ALL if permitted else frozenset()
    managed.ratify()
    before = files_of(managed.store)
    options = record.options.from_json({**record.example, **_REQUESTS.get(name, {})})
    table = managed.table()
    try:
        prepared = record.prepare(table, options, NOW)
        assert prepared is not None
        # fsck examines the table, and refuses the repairs.
        text = str(prepared.apply().to_json())
        assert name == "fsck"
    except DeltaMaintenanceError as error:
        assert error.exit_status == 3
        text = str(error)
    permission = PERMISSIONS[name]
    if permission is None or permitted:
        assert "this release neither commits through catalogs" in text
    else:
        assert f"ask its owner for {permission}, and wait for a release that commits" in text
        assert "the catalog does not permit" in text
    assert "wait for a release that commits through catalogs" in text
    # No engine may do it unless the catalog says so.
    assert "use an engine" not in text
    assert files_of(managed.store) == before


@pytest.mark.conformance("CAT-05")
def test_a_policy_shows_the_permission_that_an_operation_needs() -> None:
    managed = Managed()
    refused = {r.operation: r.problem for r in _health(managed).refused}
    assert {*refused} == {"clean-log", "vacuum", "commit", "change-metadata"}
    assert "ask its owner for DATA_CLEANUP" in refused["vacuum"]
    managed.allowed = ALL
    refused = {r.operation: r.problem for r in _health(managed).refused}
    assert all("this release neither commits" in problem for problem in refused.values())


def _health(managed: Managed) -> TableHealth:
    return measure(managed.table().snapshot(), now=instant(5_000))


@pytest.mark.conformance("CAT-01", "CAT-02")
@pytest.mark.parametrize("name", [name for name in WITHOUT_COMMIT if name != "publish"])
def test_a_table_that_is_opened_by_its_address_is_only_read(name: str) -> None:
    managed = Managed()
    managed.allowed = ALL
    record = find(name)
    with pytest.raises(UnsupportedFeatureError, match="open the table by its name in the catalog"):
        record.prepare(managed.builder.open(), record.options(), NOW)


def _published(versions: int, *, listed: int = 0) -> Managed:
    """A table of which the newest versions are published and still listed by the catalog."""
    managed = Managed()
    configuration = {"delta.enableInCommitTimestamps": "true", "delta.checkpointPolicy": "v2"}
    protocol = features(
        "catalogManaged",
        "deletionVectors",
        "vacuumProtocolCheck",
        "v2Checkpoint",
        writer_only=["inCommitTimestamp"],
    )
    first = [info(0), protocol, metadata(configuration=configuration), add("f0")]
    managed.builder.commit(first, version=0)
    for version in range(1, versions + 1):
        managed.ratify()
        managed.publish()
        if version <= versions - listed:
            managed.report()
    return managed


def _checkpoint(managed: Managed, version: int | None = None, **options: Any) -> CheckpointResult:
    context = replace(NOW, version=version)
    prepared = find("checkpoint").prepare(
        managed.table(), CheckpointOptions.from_json(options), context
    )
    assert prepared is not None
    return prepared.apply()


@pytest.mark.conformance("CAT-05", "CKPT-01")
@pytest.mark.parametrize("listed", [0, 3])
@pytest.mark.parametrize("kind", ["auto", "v2-parquet", "v2-classic", "classic"])
def test_a_published_version_gets_a_checkpoint(listed: int, kind: str) -> None:
    managed = _published(5, listed=listed)
    result = _checkpoint(managed, kind=kind)
    assert (result.status, result.version, result.hint_updated) == ("written", 5, True)
    assert result.kind == ("v2-json" if kind == "auto" else kind)
    for table in (managed.table(), managed.builder.open()):
        snapshot = table.snapshot()
        assert snapshot.log.segment.base_version == 5
        assert {*snapshot.live_files()["path"].to_pylist()} == {f"f{n}" for n in range(6)}
    assert managed.reports == []


def test_a_checkpoint_takes_over_the_sidecars_of_the_one_before() -> None:
    managed = _published(11, listed=2)
    assert _checkpoint(managed, actions_per_sidecar=4).sidecars == 3
    managed.ratify()
    managed.publish()
    result = _checkpoint(managed, actions_per_sidecar=4, incremental="always")
    assert result.incremental and result.sidecars_taken_over == 3
    assert live_paths(managed.table()) == {f"f{version}" for version in range(13)}


@pytest.mark.conformance("CAT-05", "COMP-11")
def test_published_versions_are_compacted() -> None:
    managed = _published(6, listed=2)
    prepared = find("compact-log").prepare(
        managed.table(), CompactLogOptions(commits_per_file=3), NOW
    )
    assert prepared is not None
    result = prepared.apply()
    assert [(w.first_version, w.last_version, w.status) for w in result.windows] == [
        (0, 2, "written"),
        (3, 5, "written"),
    ]
    assert live_paths(managed.table()) == {f"f{version}" for version in range(7)}


@pytest.mark.conformance("CAT-05")
def test_a_version_that_is_not_published_gets_a_checksum() -> None:
    managed = _published(2)
    managed.ratify()
    prepared = find("checksum").prepare(managed.table(), ChecksumOptions(), NOW)
    assert prepared is not None
    assert [each.status for each in prepared.apply().versions] == ["written"]
    assert managed.store.stat(f"{LOG}/{3:020}.crc") is not None
    assert managed.table().snapshot().version == 3
    # It is no evidence of a version that readers by address do not see yet.
    assert managed.builder.open().snapshot().version == 2


@pytest.mark.conformance("CAT-05")
def test_a_run_publishes_first_what_is_not_published() -> None:
    managed = _published(4)
    for _ in range(2):
        managed.ratify()
    planned = find("checkpoint").prepare(
        managed.table(), CheckpointOptions(), replace(NOW, plan_only=True)
    )
    assert planned is not None and planned.plan.version == 6
    assert "version 4 is the newest published one" in planned.plan.notes[-1]
    assert managed.reports == [] and managed.store.stat(commit_path(5)) is None
    assert _checkpoint(managed).version == 6
    assert managed.reports == [6] and managed.store.stat(commit_path(6)) is not None
    assert {*managed.builder.open().snapshot().live_files()["path"].to_pylist()} == {
        f"f{version}" for version in range(7)
    }
    managed.ratify()
    compaction = find("compact-log").prepare(
        managed.table(), CompactLogOptions(first_version=5, commits_per_file=3), NOW
    )
    assert compaction is not None
    [window] = compaction.apply().windows
    assert (window.first_version, window.last_version, window.status) == (5, 7, "written")
    assert managed.reports == [6, 7]


def test_nothing_is_written_if_publication_fails() -> None:
    managed = _published(4)
    managed.ratify()
    managed.store.put(commit_path(5), log_text([info(5), add("another")]))
    managed.ratify()
    before = files_of(managed.store)
    prepared = find("checkpoint").prepare(managed.table(), CheckpointOptions(), NOW)
    assert prepared is not None
    with pytest.raises(CorruptTableError, match="differs from the ratified one"):
        prepared.apply()
    assert files_of(managed.store) == before


def test_an_older_version_needs_no_publication() -> None:
    managed = _published(3)
    managed.ratify()
    assert _checkpoint(managed, version=2).version == 2
    assert (managed.published, managed.reports) == (3, [])


def _staged(version: int, end: str = "00") -> str:
    return f"{STAGED}/{version:020}.{version:08}-0000-4000-8000-0000000000{end}.json"


def test_a_store_keeps_the_staged_files_that_may_be_the_only_copy() -> None:
    managed = _published(3, listed=1)
    managed.allowed = ALL
    managed.ratify()
    store = managed.managed_store()
    managed.store.put(_staged(5), b"{}")
    managed.store.delete(commit_path(1))
    kept = store.delete_many([_staged(version) for version in range(1, 6)])
    assert {*kept} == {_staged(version) for version in (1, 3, 4, 5)}
    assert all(isinstance(error, StorageError) for error in kept.values())
    assert managed.store.stat(_staged(2)) is None
    with pytest.raises(StorageError, match="not published and reported"):
        store.delete(_staged(3))
    managed.allowed = frozenset()
    with pytest.raises(UnsupportedFeatureError):
        store.delete(_staged(2, "ff"))


def test_a_store_deletes_a_checkpoint_only_if_it_has_just_written_it() -> None:
    managed = _published(2)
    managed.allowed = ALL
    paths = [
        f"{LOG}/{2:020}.checkpoint.00000000-0000-4000-8000-00000000000{end}.json" for end in "12"
    ]
    managed.store.put(paths[0], b"{}")
    store = managed.managed_store()
    with store.create(paths[1]) as file:
        file.write(b"{}")
    store.delete(paths[1])
    for path in (paths[0], commit_path(1), f"{LOG}/_last_checkpoint", "f1"):
        with pytest.raises(UnsupportedFeatureError, match="only the catalog"):
            store.delete(path)
        assert managed.store.stat(path) is not None or not path.startswith(f"{LOG}/0")
