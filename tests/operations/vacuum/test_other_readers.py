"""Files that readers need who know nothing of the log: symlink manifests, and Iceberg (UniForm)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance import DeltaTable
from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import set_properties
from delta_maintenance.operations.core import registry
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from tests.support.operations.vacuum_cases import removed
from tests.support.rewrites.data_files import DataTable, field
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.vacuum_tables import NOW, Folder

MANIFEST = "_symlink_format_manifest/p=a%2Fb/manifest"
FORMATS = "delta.universalFormat.enabledFormats"
OLD = ("p=a%2Fb/one two%.parquet", "p=a%2Fb/ü.parquet")
IN_LOG = ("p=a%252Fb/one%20two%25.parquet", "p=a%252Fb/%C3%BC.parquet")


@pytest.fixture
def table() -> Folder:
    """A table from which all files were removed long ago."""
    return removed_from()


def removed_from(**configuration: str) -> Folder:
    table = Folder(first=[protocol(), metadata(configuration=configuration)])
    table.log(*map(add, IN_LOG), days=50)
    table.log(*(removed(path, 45) for path in IN_LOG), days=45)
    table.file(*OLD)
    return table


@pytest.mark.parametrize("mode", ["full", "lite"])
@pytest.mark.parametrize("root", ["memory:", "s3a://some/other/address"])
def test_vacuum_keeps_what_a_manifest_names(table: Folder, mode: str, root: str) -> None:
    assert table.going(mode=mode) == set(OLD)
    table.file(MANIFEST, data=f"{root}/{OLD[0]}\n".encode())
    planned = table.survey(mode=mode).plan
    assert table.going(mode=mode) == {OLD[1]}
    [held] = planned.held
    assert (held.holder, held.files) == ("manifests in _symlink_format_manifest", 1)
    # A later lite vacuum goes through the same commits again.
    assert planned.last_commit is None
    table.vacuum(mode=mode)
    assert table.files() == {OLD[0], MANIFEST}
    table.store.delete(MANIFEST)
    assert table.going(mode=mode) == {OLD[0]}


def metadata_file(number: int, version: object) -> tuple[str, bytes]:
    text = json.dumps({"format-version": 2, "properties": {"delta-version": version}})
    return f"metadata/{number:05d}-0b1c.metadata.json", text.encode()


def describe(table: Folder, *versions: object) -> None:
    for number, version in enumerate(versions):
        path, data = metadata_file(number, version)
        table.file(path, data=data)


@pytest.mark.parametrize(
    ("versions", "holds"),
    [(("1",), True), (("0", "1", "2"), True), (("1", "2", "2"), False), ((), False)],
)
def test_vacuum_keeps_the_version_that_readers_of_iceberg_see(
    versions: tuple[str, ...], holds: bool
) -> None:
    table = removed_from(**{FORMATS: "iceberg"})
    describe(table, *versions)
    assert table.going() == (set() if holds else set(OLD))
    names = [held.holder for held in table.survey().plan.held]
    assert names == (["Iceberg metadata (UniForm)"] if holds else [])


@pytest.mark.parametrize("version", ["77", "x", None, {}])
def test_an_unknown_version_of_iceberg_stops_the_vacuum_until_the_property_is_unset(
    version: object,
) -> None:
    table = removed_from(**{FORMATS: "iceberg"})
    describe(table, version, version)
    with pytest.raises(RefusedError, match="readers of Iceberg see") as caught:
        table.going()
    assert FORMATS in str(caught.value) and "Delta Spark" in str(caught.value)
    opened = table.open()
    options = SetPropertiesOptions(remove=(FORMATS,))
    set_properties.apply(opened, set_properties.plan(opened.snapshot(), options))
    assert table.going() == set(OLD)


COMMITS: dict[str, dict[str, Any]] = {
    "backfill-row-ids": {},
    "cluster": {"by": ["a"]},
    "drop-feature": {"feature": "deletionVectors"},
    "expire": {"column": "t", "older_than": "30d", "allow_large_delete": True},
    "fsck": {"remove_missing_files": True},
    "optimize": {},
    "purge": {},
    "recompute-stats": {},
}
"""The options of each verb that commits files; a verb that is not here commits none."""


def test_each_plan_that_commits_files_says_what_readers_of_iceberg_see(tmp_path: Path) -> None:
    notes: dict[str, dict[str, str]] = {}
    for formats in ("iceberg", ""):
        made = DataTable(
            field("a", "long"),
            field("t", "timestamp"),
            store=str(tmp_path / f"formats-{formats}"),
            features=["deletionVectors"],
            configuration={FORMATS: formats} if formats else {},
        )
        times = pa.array([NOW, NOW], pa.timestamp("us", tz="UTC"))
        made.append(pa.table({"a": [1, 2], "t": times}))
        made.builder.commit([add("lost.parquet")])
        table = DeltaTable(str(tmp_path / f"formats-{formats}"))
        notes[formats] = {
            name: " ".join(getattr(table, name.replace("-", "_"))(**options, dry_run=True).notes)
            for name, options in COMMITS.items()
        }
    assert all("UniForm" in text for text in notes["iceberg"].values()), notes["iceberg"]
    assert not any("UniForm" in text for text in notes[""].values())
    committing = {record.name for record in registry.operations() if record.effects.commits}
    others = {"add-constraint", "set-clustering", "set-properties", "upgrade-protocol", "vacuum"}
    assert committing - others == set(COMMITS)
