"""Files that the store archives, by `delta.timeUntilArchived`, are not read for a rewrite."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import cluster, optimize, purge
from delta_maintenance.operations.cluster import ClusterOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions
from delta_maintenance.table.read import Table
from tests.support.rewrites.clustered_tables import DOMAIN, random_rows, statistics
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.rewritten_tables import NOW

KINDS: dict[str, Any] = {
    "optimize": (optimize, OptimizeOptions(workers=1)),
    "purge": (purge, PurgeOptions(workers=1)),
    "cluster": (cluster, ClusterOptions(workers=1)),
}


def table(age: str | None, *, deletes: bool) -> DataTable:
    """Three files that are forty days old, and three of this day."""
    columns = {"clusteringColumns": [["x"]], "domainName": DOMAIN}
    made = DataTable(
        field("id", "long"),
        field("x", "long"),
        field("t", "string"),
        features=["deletionVectors", "domainMetadata", "clustering"],
        configuration={} if age is None else {"delta.timeUntilArchived": age},
        domains={DOMAIN: json.dumps(columns)},
    )
    for seed in range(6):
        rows = random_rows(50, seed)
        days = timedelta(days=40 if seed < 3 else 0)
        stamp = epoch_millis(NOW - days)
        [path] = made.append(rows, stats=statistics(rows), modificationTime=stamp)
        if deletes:
            made.delete(path, [0])
    return made


@pytest.mark.parametrize("name", KINDS)
def test_files_beyond_the_age_are_left_alone_and_counted(name: str) -> None:
    operation, options = KINDS[name]

    def plan(age: str | None) -> Any:
        snapshot = Table(table(age, deletes=name == "purge").store).snapshot()
        return operation.plan(snapshot, options, context=RunContext.at(NOW))

    assert plan(None).files == plan("41 days").files == 6
    planned = plan("interval 30 days")
    assert planned.files == 3
    assert ("archived", 3) in [(each.reason, each.files) for each in planned.left_alone]
    assert any("3 files archived" in note for note in planned.notes)
