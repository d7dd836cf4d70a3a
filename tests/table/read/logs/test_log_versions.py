"""File names in a log, gaps, and versions that do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from delta_maintenance.errors import CorruptTableError, NotADeltaTableError, VersionNotFoundError
from tests.support.logs.small_logs import live, started
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.table_builder import LOG, TableBuilder, log_text
from tests.table.failures import fails


@pytest.mark.conformance("LOG-01")
def test_reads_ignore_names_that_they_do_not_know_and_lose_none_of_them() -> None:
    table = started(add("a"))
    strangers = [
        "00000000000000000002.json.tmp",
        ".00000000000000000001.json.crc",
        ".s3-optimization-0",
        "00000000000000000001.0.stats.json",
        "0000000000000000002.json",
        "000000000000000000002.json",
        "2.json",
        "_commit_00000000-0000-4000-8000-000000000000.json.tmp",
        "00000000000000000000.00000000000000000001.compact.json",
        "00000000000000000001.00000000000000000001.compacted.json",
        "00000000000000000009.checkpoint.parquet.tmp",
        "00000000000000000009.checkpoint.not-a-uuid.json",
        "_last_vacuum_info",
        "readme.txt",
        "_staged_commits/00000000000000000002.00000000-0000-4000-8000-000000000000.json",
        "_commits/00000000000000000002.json",
    ]
    for name in strangers:
        table.write(name, log_text([add("stranger")]))
    before = table.names()

    snapshot = table.open().snapshot()

    assert (snapshot.version, snapshot.warnings) == (1, ())
    assert live(table) == ["a"]
    assert table.names() == before


@pytest.mark.conformance("CAT-04", "CAT-07", "LOG-02")
def test_unpublished_commits_of_a_catalog_are_not_versions() -> None:
    table = TableBuilder()
    managed = features("catalogManaged", "vacuumProtocolCheck", writer_only=["inCommitTimestamp"])
    table.commit([managed, metadata()])
    table.commit([add("published")])
    staged = f"_staged_commits/{2:020d}.00000000-0000-4000-8000-000000000000.json"
    table.write(staged, log_text([add("staged")]))
    assert (table.open().snapshot().version, live(table)) == (1, ["published"])
    table.commit([add("later")], version=3)
    with pytest.raises(CorruptTableError, match="commit 2 is missing"):
        table.open().snapshot()
    assert table.open().snapshot(version=1).version == 1


@pytest.mark.conformance("LOG-02")
@pytest.mark.parametrize("gap", range(1, 9))
def test_a_gap_is_named_by_the_first_missing_version_and_older_versions_open(gap: int) -> None:
    table = started()
    for version in range(1, 10):
        table.commit([add(f"f{version}")])
    table.drop(f"{gap:020d}.json")

    with fails(
        CorruptTableError,
        f"commit {gap} is missing",
        table=table,
        version=9,
        file=f"{LOG}/{gap:020d}.json",
    ):
        table.open().snapshot()
    assert table.open().snapshot(version=gap - 1).version == gap - 1


@pytest.mark.conformance("LOG-02")
def test_a_log_without_its_first_commits_names_version_0() -> None:
    table = started(add("a"))
    table.drop(f"{0:020d}.json")
    with fails(
        CorruptTableError,
        "commit 0 is missing",
        table=table,
        version=1,
        file=f"{LOG}/{0:020d}.json",
    ):
        table.open().snapshot()


@pytest.mark.conformance("LOG-02")
def test_cleaned_up_versions_are_distinguished_from_a_gap() -> None:
    table = started(add("a"))
    table.commit([add("b")])
    table.checkpoint(1)
    table.drop(f"{0:020d}.json")

    assert live(table) == ["a", "b"]
    with fails(VersionNotFoundError, "no longer retained", table=table, version=0, file=None):
        table.open().snapshot(version=0)


@pytest.mark.parametrize("version", [-1, 2, 2**63])
def test_a_nonexistent_version_is_not_found(version: int) -> None:
    table = started(add("a"))
    with fails(
        VersionNotFoundError,
        f"version {version} does not exist",
        table=table,
        version=None,
        file=None,
    ):
        table.open().snapshot(version=version)


def test_a_directory_without_a_log_is_no_table(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    with fails(
        NotADeltaTableError, "_delta_log is missing or empty", table=table, version=None, file=None
    ):
        table.open().snapshot()


def test_a_log_folder_without_a_commit_is_no_table() -> None:
    table = TableBuilder()
    table.write("readme.txt", b"nothing here")
    with fails(NotADeltaTableError, "no commit", table=table, version=None, file=None):
        table.open().snapshot()
