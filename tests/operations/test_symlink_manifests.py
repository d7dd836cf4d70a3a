"""Every verb that commits files leaves symlink manifests of the live files, and remedies work."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest

from delta_maintenance import DeltaTable
from delta_maintenance.storage.core import Store
from delta_maintenance.table.commit.manifests import manifest_path
from tests.support.operations.fsck_runs import run
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.mapped_tables import HIGHEST, MODE, mapped
from tests.support.rewrites.table_rows import live_adds
from tests.support.tables.droppable_tables import Clock, drop
from tests.table.commit.test_manifests import PROPERTY, Addressed, manifests_in, spark_folder

ENABLED = {PROPERTY: "true"}
OLD, NEW = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)

BOUND = {"t": "2020-01-01T00:00:00.000Z"}
OLD_STATS = json.dumps(
    {"numRecords": 2, "minValues": BOUND, "maxValues": BOUND, "nullCount": {"t": 0}}
)


def rows(first: int, time: datetime = NEW) -> pa.Table:
    return pa.table(
        {"a": [first, first + 1], "t": pa.array([time] * 2, pa.timestamp("us", tz="UTC"))}
    )


def expected(store: Store, columns: tuple[str, ...], root: str) -> dict[str, list[str]]:
    """The lines of each manifest, from the adds in the log."""
    found = defaultdict(list, {} if columns else {"": []})
    for path, add in live_adds(store).items():
        values = tuple(add["partitionValues"].get(column) for column in columns)
        found[spark_folder(columns, values)].append(root + unquote(path))
    return {folder: sorted(lines) for folder, lines in found.items()}


def manifest_findings(table: Any) -> list[str]:
    return [finding.kind for finding in run(table).findings if "manifest" in finding.kind]


@pytest.mark.parametrize("columns", [("p",), ()], ids=["partitioned", "whole"])
def test_each_verb_leaves_manifests_of_the_live_files(
    tmp_path: Path, columns: tuple[str, ...]
) -> None:
    path = tmp_path / "ta ble%20"
    path.mkdir()
    made = DataTable(
        field("a", "long"),
        field("t", "timestamp"),
        field("p", "string"),
        store=str(path),
        features=["deletionVectors"],
        configuration=ENABLED,
        partitioned_by=columns,
    )
    paths = {}
    for value in ("a b", "x/y", None) if columns else ("",):
        values = {"p": value} if columns else {}
        small = [rows(n) for n in range(0, 8, 2)]
        made.append(rows(90, OLD), partitionValues=values, stats=OLD_STATS)
        paths[value] = made.append(*small, partitionValues=values)
    table = DeltaTable(str(path))

    def lose_a_file() -> None:
        lost = next(iter(live_adds(made.store)))
        made.store.delete(unquote(lost))
        table.fsck(remove_missing_files=True)

    def purge() -> None:
        last = paths[None if columns else ""][-1]
        made.live = live_adds(made.store)
        made.builder.commits.update(dict.fromkeys(range(latest_version(table) + 1), []))
        made.delete(next(iter(made.live)) if last not in made.live else last, [0])
        assert manifest_findings(made.builder.open()) == ["unwritable-manifest"]
        table.purge()

    steps: dict[str, Callable[[], Any]] = {
        "expire": lambda: table.expire(column="t", older_than="30d", allow_large_delete=True),
        "optimize": lambda: table.optimize(full=True),
        "purge": purge,
        "cluster": lambda: table.cluster(by=["a"], full=True),
        "recompute-stats": lambda: table.recompute_stats(),
        "backfill-row-ids": table.backfill_row_ids,
        "fsck": lose_a_file,
    }
    for name, step in steps.items():
        before = latest_version(table)
        if name == "backfill-row-ids":
            # It adds the same files again.
            for folder in manifests_in(made.store):
                made.store.put(manifest_path(folder), b"stale\n")
        step()
        assert latest_version(table) > before or name == "recompute-stats", name
        found = manifests_in(made.store)
        assert found == expected(made.store, columns, f"file:{path}/"), name
        assert found
        assert manifest_findings(made.builder.open()) == [], name


def latest_version(table: DeltaTable) -> int:
    return table.snapshot().version


def test_column_mapping_is_dropped_before_manifests_are_written() -> None:
    made = DataTable(
        mapped("number", "long", 1, "c1"),
        mapped("part", "string", 2, "c2"),
        store=Addressed(),
        features=["columnMapping"],
        configuration={MODE: "name", HIGHEST: "2", **ENABLED},
        partitioned_by=["part"],
    )
    made.append(pa.table({"c1": [1, 2]}), partitionValues={"c2": "x"})
    table = made.builder.open()
    [finding] = [f for f in run(table).findings if "manifest" in f.kind]
    assert finding.kind == "unwritable-manifest" and "drop-feature" in finding.remedy
    clock = Clock()
    clock.govern(made.store)
    assert drop(made.store, clock, "columnMapping").status == "dropped"
    assert manifests_in(made.store) == expected(made.store, ("part",), f"{made.store.address}/")
    assert manifest_findings(table) == []
