"""Files whose removal failed are left out of every rewrite, and stay live until fsck ends them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations import cluster, drop_feature, expire, optimize, purge
from delta_maintenance.operations.cluster import ClusterOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.drop_feature import DropFeatureOptions
from delta_maintenance.operations.expire import ExpireOptions
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions
from delta_maintenance.table.read import Table
from tests.support.operations.fsck_runs import run
from tests.support.rewrites.clustered_tables import DOMAIN
from tests.support.rewrites.data_files import DataTable, field, removed
from tests.support.rewrites.rewritten_tables import NOW
from tests.support.tables import actions as log

DAY = 86_400_000_000
VERBS: dict[str, Any] = {
    "optimize": (optimize, OptimizeOptions(workers=1, full=True)),
    "purge": (purge, PurgeOptions(workers=1)),
    "cluster": (cluster, ClusterOptions(workers=1)),
    **{
        f"expire {mixed}": (
            expire,
            ExpireOptions(column="t", older_than=timedelta(days=10), mixed=mixed, workers=1),
        )
        for mixed in ("rewrite", "deletion-vectors")
    },
}


def rows(first: int, now_us: int) -> pa.Table:
    """An expired row and three others."""
    times = pa.array([now_us - 100 * DAY, *[now_us - DAY] * 3], pa.timestamp("us", "UTC"))
    return pa.table({"id": pa.array(range(first, first + 4), pa.int64()), "t": times})


def doubled_table() -> tuple[DataTable, str]:
    """Four files with a deleted row each. A compaction removed the first without its vector."""
    columns = {"clusteringColumns": [["id"]], "domainName": DOMAIN}
    table = DataTable(
        field("id", "long"),
        field("t", "timestamp"),
        features=["deletionVectors", "domainMetadata", "clustering"],
        configuration={"delta.enableDeletionVectors": "true"},
        domains={DOMAIN: json.dumps(columns)},
    )
    now_us = int(NOW.timestamp()) * 1_000_000
    for first in (0, 10, 20, 30):
        [path] = table.append(rows(first, now_us))
        table.delete(path, [1])
    doubled = next(iter(table.live))
    remove = removed(table.live[doubled])
    del remove["deletionVector"]
    [copy] = table.append(rows(0, now_us).take([0, 2, 3]), commit=False)
    table.builder.commit(
        [log.commit_info("OPTIMIZE"), {"remove": remove}, {"add": table.live[copy]}]
    )
    return table, doubled


def live(table: DataTable) -> list[str]:
    paths: list[str] = Table(table.store).snapshot().live_files()["path"].to_pylist()
    return paths


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", VERBS)
def test_a_file_whose_removal_failed_is_left_out_and_named(name: str, checkpointed: bool) -> None:
    table, doubled = doubled_table()
    if checkpointed:
        table.builder.checkpoint()
    operation, options = VERBS[name]
    table.store.now_ms = lambda: epoch_millis(NOW)
    context = RunContext.at(NOW)

    plan = operation.plan(Table(table.store).snapshot(), options, context=context)
    result = operation.apply(Table(table.store), plan, context=context)

    assert any("left out, see fsck: 1 file" in note for note in plan.notes)
    assert result.status in ("rewritten", "expired")
    assert doubled in live(table)
    add = next(
        each
        for batch in Table(table.store).snapshot().log.scan()
        for each in batch.adds.to_pylist()
        if each["path"] == doubled
    )
    vector = table.live[doubled]["deletionVector"]
    assert add["deletionVector"]["pathOrInlineDv"] == vector["pathOrInlineDv"]
    repaired = run(Table(table.store), FsckOptions(remove_doubled_files=True), now=NOW)
    assert [(each.status, each.count) for each in repaired.repairs] == [("done", 1)]
    assert doubled not in live(table)


def test_a_vector_of_a_correct_writer_is_no_obstacle() -> None:
    """The commit that adds a vector leaves a tombstone of the same path, also in checkpoints."""
    table, doubled = doubled_table()
    for checkpoint in (False, True):
        if checkpoint:
            table.builder.checkpoint()
        plan = purge.plan(Table(table.store).snapshot(), PurgeOptions(), context=RunContext.at(NOW))
        assert plan.files == 3
        assert [(each.reason, each.files) for each in plan.left_alone] == [("doubled", 1)]


def test_a_feature_that_needs_every_file_rewritten_is_not_dropped() -> None:
    table, _ = doubled_table()

    with pytest.raises(CorruptTableError, match="run fsck"):
        drop_feature.plan(
            Table(table.store).snapshot(),
            DropFeatureOptions(feature="deletionVectors"),
            context=RunContext.at(NOW),
        )
