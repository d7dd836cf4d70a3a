"""Directories and links of a table on a local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.vacuum import VacuumResult
from tests.support.tables.actions import add
from tests.support.tables.table_builder import LOG
from tests.support.tables.vacuum_tables import Folder, days_ago, paths_of

CLOCK_CHECK = "delta_maintenance.operations.vacuum.operation.require_same_clock"


@pytest.mark.conformance("VAC-10", "VAC-12")
def test_links_are_neither_followed_nor_deleted(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs.parquet").write_bytes(b"x")
    table = Folder(tmp_path / "t")
    table.file("p=1/dead.parquet", "q/dead.parquet")
    root = tmp_path / "t"
    (root / "linked").symlink_to(outside)
    (root / "p=1" / "link.parquet").symlink_to(outside / "theirs.parquet")
    (root / "q" / "inward").symlink_to(root / "p=1")
    planned = table.survey()
    assert paths_of(planned) == {"p=1/dead.parquet", "q/dead.parquet"}
    assert ("links and special files", 3) in [
        (group.why, group.count) for group in planned.plan.kept
    ]
    for directory in ("p=1", "q"):
        table.touch(directory, days_ago(40))
    assert table.survey().found.directories == (), "a link in it keeps a directory"
    assert _apply(table, planned).deleted == 2
    assert (outside / "theirs.parquet").exists() and (root / "q" / "inward").is_symlink()


@pytest.mark.conformance("VAC-15")
def test_old_empty_directories_are_deleted_bottom_up(tmp_path: Path) -> None:
    table = Folder(tmp_path)
    table.file("a/b/c/dead.parquet", "d/dead.parquet", "d/e/live.parquet", "_tmp/x/dead.parquet")
    table.log(add("d/e/live.parquet"))
    (tmp_path / "empty" / "nested").mkdir(parents=True)
    (tmp_path / "fresh").mkdir()
    table.file("writing/now.parquet", days=0)
    for path in ("a/b/c", "a/b", "a", "d", "d/e", "empty/nested", "empty", "writing", "_tmp"):
        table.touch(path, days_ago(40))
    planned = table.survey()
    assert set(planned.found.directories) == {"a", "a/b", "a/b/c", "empty", "empty/nested"}
    # Another writer is faster: a directory that is no longer empty is kept, with all its parents.
    table.file("a/late.parquet", days=0)
    result = _apply(table, planned)
    assert result.directories == 4
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()}
    assert left == {"a", "d", "d/e", "writing", "fresh", "_tmp", "_tmp/x", LOG}


@pytest.mark.conformance("VAC-15")
def test_a_directory_that_has_just_changed_is_kept(tmp_path: Path) -> None:
    table = Folder(tmp_path)
    table.file("p=1/dead.parquet")
    planned = table.survey()
    assert planned.found.directories == () and _apply(table, planned).deleted == 1
    assert (tmp_path / "p=1").is_dir()


def _apply(table: Folder, planned: vacuum.VacuumSurvey) -> VacuumResult:
    """On a disk, which uses the real clock: only the clock of the check is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CLOCK_CHECK, lambda *_, **__: None)
        return vacuum.apply(
            table.open(), planned.plan, context=RunContext.at(table.now), surveyed=planned
        )


@pytest.mark.conformance("VAC-17")
def test_a_file_that_changed_after_the_listing_is_kept(tmp_path: Path) -> None:
    table = Folder(tmp_path)
    table.file("a.parquet", "b.parquet", "c.parquet")
    planned = table.survey()
    table.file("a.parquet", data=b"of another size")
    table.file("b.parquet", days=39)
    result = _apply(table, planned)
    assert table.files() == {"a.parquet", "b.parquet"} and result.status == "partly"
    assert all("has changed" in failure for failure in result.failures)
