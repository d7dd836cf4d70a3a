"""Real tables get row IDs: everything else about them stays as it was, for us and for delta-rs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from delta_maintenance import open_table
from delta_maintenance.errors import DeltaMaintenanceError, RefusedError
from delta_maintenance.operations import backfill_row_ids
from delta_maintenance.operations.backfill_row_ids import BackfillRowIdsOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage.core import Put
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Snapshot, Table
from tests.support.operations.row_ids import check, commits, state
from tests.support.tables.corpus_tables import TABLES

NOW = datetime.now(UTC)
GIVEN = ("baseRowId", "defaultRowCommitVersion", "dataChange", "stats", "stats_parsed")


def files(snapshot: Snapshot) -> list[Any]:
    """Every field of the live files that a backfill must not touch, in the order of their keys."""
    kept = []
    for batch in snapshot.log.scan():
        for row in batch.adds.to_pylist():
            fields = {k: v for k, v in row.items() if v is not None and k not in GIVEN}
            # Checkpoints recompute these, and the version of a commit is a column of this library.
            for name in ("partitionValues_parsed", "_commit_version"):
                fields.pop(name, None)
            # The order of entries in maps has no meaning, and an empty map is equivalent to null.
            for name in ("partitionValues", "tags"):
                fields[name] = dict(fields.get(name) or [])
            kept.append(fields)
    return sorted(kept, key=lambda row: (row["path"], str(row.get("deletionVector"))))


def counts(snapshot: Snapshot) -> dict[tuple[str, str | None], int | None]:
    live = snapshot.live_files().select(["path", "dv", "num_records"])
    return {(path, dv): rows for path, dv, rows in zip(*live.to_pydict().values(), strict=True)}


@pytest.mark.conformance("RT-02", "RT-12", "PART-03", "DV-13")
@pytest.mark.parametrize("name", TABLES)
def test_a_real_table_keeps_everything_and_gets_row_ids(
    corpus: Path, tmp_path: Path, name: str, count_cases: Callable[[str, int], None]
) -> None:
    if not (corpus / name / "_delta_log").is_dir():
        pytest.skip("no log at all")
    shutil.copytree(corpus / name, tmp_path / "table", copy_function=shutil.copyfile)
    table = open_table(str(tmp_path / "table"))
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    try:
        snapshot = table.snapshot()
        plan = backfill_row_ids.plan(
            snapshot, BackfillRowIdsOptions(files_per_commit=3), context=RunContext.at(NOW)
        )
    except DeltaMaintenanceError as error:
        assert error.remedy
        assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
        pytest.skip(f"not for row IDs: {error.problem}")
    if plan.is_noop:
        pytest.skip(plan.reason)
    kept, known, configuration = files(snapshot), counts(snapshot), snapshot.metadata.configuration

    try:
        result = backfill_row_ids.apply(table, plan, snapshot=snapshot)
    except RefusedError as error:
        assert plan.changes_support and "cannot be counted" in error.problem
        assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
        pytest.skip("not for row IDs: data files are missing")
    assert result.status == ("incomplete" if result.uncounted else "enabled"), result.problem
    after = table.snapshot()
    assert files(after) == kept
    for key, rows in counts(after).items():
        assert known[key] in (None, rows)
    live = after.live_files()
    lacking = [p for p, b in zip(live["path"], live["base_row_id"], strict=True) if not b.is_valid]
    assert len(lacking) == len(result.uncounted)
    assert after.metadata.configuration.items() >= configuration.items()
    assert result.files_backfilled == plan.files_to_backfill - len(result.uncounted)
    assert backfill_row_ids.plan(after, context=RunContext.at(NOW)).is_noop == (
        result.status == "enabled"
    )
    count_cases("real tables with row IDs", 1)


def rows(path: Path) -> list[int]:
    found = DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist()
    return sorted(found)


def append(path: Path, *numbers: int) -> None:
    write_deltalake(path, pa.table({"id": pa.array(numbers, pa.int64())}), mode="append")


class RacedLocalStore(LocalStore):
    """Lets another writer act directly before a commit of ours."""

    race: Callable[[], None] | None = None

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.race is not None:
            race, self.race = self.race, None
            race()
        return super().put_if_absent(path, data)


@pytest.mark.conformance("RT-14", "RT-09")
def test_delta_rs_cannot_write_after_the_backfill(tmp_path: Path) -> None:
    path = tmp_path / "table"
    for number in range(4):
        append(path, number, number)
    store = RacedLocalStore(str(path))
    table = Table(store)
    plan = backfill_row_ids.plan(
        table.snapshot(), BackfillRowIdsOptions(files_per_commit=2), context=RunContext.at(NOW)
    )
    store.race = lambda: append(path, 7, 7, 7)
    result = backfill_row_ids.apply(table, plan)
    assert (result.status, result.files_backfilled) == ("enabled", 5)
    check(store)
    assert rows(path) == [0, 0, 1, 1, 2, 2, 3, 3, 7, 7, 7]
    assert len(state(store)) == 5
    versions = [version for version, _ in commits(store)]
    # It does not know the feature: whatever it added would have no row IDs.
    with pytest.raises(Exception, match="RowTracking|rowTracking"):
        append(path, 9)
    assert [version for version, _ in commits(store)] == versions


@pytest.mark.conformance("RT-12", "DV-14")
def test_footers_replace_missing_statistics(tmp_path: Path) -> None:
    path = tmp_path / "table"
    none = {"delta.dataSkippingNumIndexedCols": "0"}
    for number in range(3):
        write_deltalake(
            path, pa.table({"id": list(range(number + 2))}), mode="append", configuration=none
        )
    log = path / "_delta_log"
    for commit in log.glob("*.json"):
        lines = commit.read_text().splitlines()
        commit.write_text("".join(line_without_statistics(line) for line in lines))
    table = open_table(str(path))
    plan = backfill_row_ids.plan(table.snapshot(), context=RunContext.at(NOW))
    assert plan.files_to_count == 3
    result = backfill_row_ids.apply(table, plan)
    assert (result.status, result.high_water_mark) == ("enabled", 2 + 3 + 4 - 1)
    check(table.store)
    assert sorted(counts(table.snapshot()).values(), key=str) == [2, 3, 4]
    assert rows(path) == [0, 0, 0, 1, 1, 1, 2, 2, 3]


def line_without_statistics(line: str) -> str:
    action = json.loads(line)
    if "add" in action:
        action["add"].pop("stats", None)
    return json.dumps(action) + "\n"
