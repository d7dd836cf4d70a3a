"""Real logs, made old: cleaned up, they say the same about every version that is to stay."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import open_table
from delta_maintenance.clock import epoch_millis, new_id
from delta_maintenance.errors import DeltaMaintenanceError, VersionNotFoundError
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.core import RunContext
from delta_maintenance.table.read import Snapshot, Table
from tests.support.tables.corpus_tables import TABLES

NOW = datetime.now(UTC)
NEWEST = NOW - timedelta(days=400)


def aged(corpus: Path, name: str, root: Path) -> Table:
    """A copy of the table whose files are a day apart in the order of their names, the newest more
    than a year old."""
    if not (corpus / name / "_delta_log").is_dir():
        pytest.skip("no log at all")
    shutil.copytree(
        corpus / name / "_delta_log", root / "_delta_log", copy_function=shutil.copyfile
    )
    files = sorted(path for path in root.glob("_delta_log/**/*") if path.is_file())
    for number, path in enumerate(files):
        instant = epoch_millis(NEWEST - timedelta(days=len(files) - number)) * 1_000_000
        os.utime(path, ns=(instant, instant))
    return open_table(str(root))


def view(snapshot: Snapshot) -> Any:
    """Returns the contents of a version. Statistics depend on the base."""
    keys = [("path", "ascending"), ("dv", "ascending")]
    files = snapshot.live_files().sort_by(keys).select(["path", "dv", "size"])
    return (
        snapshot.protocol,
        snapshot.metadata,
        snapshot.txns,
        snapshot.domain_metadata,
        files.to_pylist(),
    )


def views(table: Table, oldest: int, latest: int) -> dict[int, Any]:
    found = {}
    for version in range(oldest, latest + 1):
        try:
            found[version] = view(table.snapshot(version=version))
        except VersionNotFoundError:
            found[version] = None
    return found


@pytest.mark.conformance("CLEAN-03", "CLEAN-10", "CLEAN-16", "CAT-01")
@pytest.mark.parametrize("name", TABLES)
def test_every_version_that_is_to_stay_reads_the_same(
    corpus: Path, tmp_path: Path, name: str, count_cases: Any
) -> None:
    table = aged(corpus, name, tmp_path / "table")
    before = sorted(path for path in tmp_path.glob("table/_delta_log/**/*") if path.is_file())
    try:
        snapshot = table.snapshot()
        planned = clean_log.plan(snapshot, context=RunContext.at(NOW))
    except DeltaMaintenanceError as error:
        assert error.remedy
        assert sorted(p for p in tmp_path.glob("table/_delta_log/**/*") if p.is_file()) == before
        pytest.skip(f"not for cleaning up: {error.problem}")
    if planned.is_noop:
        clean_log.apply(table, planned, context=RunContext.at(NOW))
        assert sorted(p for p in tmp_path.glob("table/_delta_log/**/*") if p.is_file()) == before
        return
    count_cases("real logs cut off", 1)
    assert planned.oldest_version is not None
    promised = views(table, planned.oldest_version, snapshot.version)
    result = clean_log.apply(
        table, planned, context=RunContext.at(datetime.now(UTC), new_id=new_id)
    )
    assert result.status == "cleaned" and result.failed == 0
    assert views(table, planned.oldest_version, snapshot.version) == promised
    assert clean_log.plan(table.snapshot(), context=RunContext.at(NOW)).is_noop
    expected_gone = {tmp_path / "table/_delta_log" / n for g in planned.groups for n in g.names}
    assert {path for path in before if not path.exists()} == expected_gone
