"""Real tables of many writers have the same rows afterwards, read by delta-rs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from delta_maintenance import open_table
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import optimize
from delta_maintenance.operations.optimize import OptimizeOptions

CORPUS = Path(
    os.environ.get("DELTA_MAINTENANCE_CORPUS", Path(__file__).parents[4] / "shared" / "tables")
)
TABLES = sorted(path.stem for path in (CORPUS / "expected").glob("*.json"))


def rows(path: Path) -> list[str] | None:
    """All rows as delta-rs reads them, sorted; None where it cannot."""
    try:
        found = DeltaTable(str(path)).to_pyarrow_table()
    except Exception:
        # Its errors for unknown features, types and paths are of many classes.
        return None
    return sorted(str(sorted(row.items())) for row in found.to_pylist())


@pytest.mark.conformance("RW-03", "RW-08", "RW-13", "RW-14", "PART-03", "PART-09", "CONS-04")
@pytest.mark.parametrize("name", TABLES)
def test_a_real_table_keeps_its_rows(
    corpus: Path, tmp_path: Path, name: str, count_cases: Callable[[str, int], None]
) -> None:
    if not (corpus / name / "_delta_log").is_dir():
        pytest.skip("no log at all")
    shutil.copytree(corpus / name, tmp_path / "table", copy_function=shutil.copyfile)
    table = open_table(str(tmp_path / "table"))
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    options = OptimizeOptions(full=True, int96=True, other_codecs=True, workers=1)
    try:
        planned = optimize.plan(table.snapshot(), options, now=datetime.now(UTC))
    except DeltaMaintenanceError as error:
        assert error.remedy and len(str(error)) < 1000
        assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == files
        pytest.skip(f"not rewritten: {error.problem}")
    if planned.is_noop:
        pytest.skip(planned.reason)
    before = rows(tmp_path / "table")
    result = optimize.apply(table, planned)
    lost = [file for file in result.refused if not file.damaged]
    assert result.status == "rewritten" or result.refused, result.problem
    after = rows(tmp_path / "table")
    assert after == before
    if not result.refused:
        again = optimize.plan(table.snapshot(), options, now=datetime.now(UTC))
        assert again.is_noop, again.reason
    if before is not None and result.status == "rewritten":
        count_cases("real tables rewritten and read by delta-rs", 1)
    beyond = ("shredded", "below the table's root")
    assert all(any(text in file.problem for text in beyond) for file in lost)
