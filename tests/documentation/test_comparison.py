"""The rows of the comparison in README.md that concern `deltalake` are what it does.

Those of Delta Spark are played by tests/oracle, and those of predictive optimization are only read.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaRsTable
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from delta_maintenance import DeltaTable

ROOT = Path(__file__).parents[2]


@pytest.fixture
def table(tmp_path: Path) -> str:
    """The path of a table of five commits and five files, without a checkpoint."""
    path = str(tmp_path / "table")
    for hour in range(5):
        write_deltalake(path, pa.table({"hour": [hour]}), mode="append")
    return path


def test_the_readme_names_the_version_that_is_compared() -> None:
    numbers = ".".join(version("deltalake").split(".")[:2])
    assert f"`deltalake` {numbers}" in (ROOT / "README.md").read_text()


def test_deltalake_merges_files_and_deletes_the_old_ones(table: str) -> None:
    assert DeltaRsTable(table).optimize.compact()["numFilesRemoved"] == 5
    deleted = DeltaRsTable(table).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False
    )
    assert len(deleted) == 5


def test_deltalake_removes_entries_of_missing_files(table: str) -> None:
    missing = next(Path(table).glob("*.parquet"))
    missing.unlink()
    assert DeltaRsTable(table).repair()["files_removed"] == [missing.name]


def test_a_hint_that_points_nowhere_is_repaired_here(table: str) -> None:
    hint = Path(table) / "_delta_log" / "_last_checkpoint"
    hint.write_text(json.dumps({"version": 3, "size": 5}))
    with pytest.raises(DeltaError, match="checkpoint"):
        DeltaRsTable(table)
    assert DeltaTable(table).fsck(repair=True).status == "sound"
    assert DeltaRsTable(table).version() == 4
