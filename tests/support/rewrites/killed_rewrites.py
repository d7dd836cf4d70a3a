"""The work of a process that is killed in the middle of a rewrite."""

from __future__ import annotations

from functools import partial

from delta_maintenance import clock
from delta_maintenance.operations import cluster, optimize, purge, recompute_stats
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.rewriting import cluster_planning, contract, run
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.data.clustering.keys import Clustering
from delta_maintenance.table.data.copying import row_groups
from delta_maintenance.table.read import Table
from tests.support.kills.kill_points import watching
from tests.support.rewrites.rewritten_tables import COPIED_BYTES


def _many_commits() -> None:
    """Makes a commit for each bin."""
    run.COMMIT_BYTES, run.MOST_COMMITS = 1, 1 << 60


def copying() -> None:
    """Copies row groups of the large files of `Rewritten`."""
    contract.COPIED_GROUP_BYTES = COPIED_BYTES


def optimized(root: str, workers: int = 1) -> str:
    table = Table(LocalStore(root))
    options = optimize.OptimizeOptions(workers=workers)
    planned = optimize.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
    return optimize.apply(table, planned).status


def purged(root: str) -> str:
    table = Table(LocalStore(root))
    planned = purge.plan(
        table.snapshot(), purge.PurgeOptions(workers=1), context=RunContext.at(clock.now())
    )
    return purge.apply(table, planned).status


def clustered(root: str, workers: int = 1) -> str:
    table = Table(LocalStore(root))
    options = cluster.ClusterOptions(workers=workers, by=("b", "a"))
    planned = cluster.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
    return cluster.apply(table, planned).status


def recompute_in_many_commits(root: str) -> str:
    table = Table(LocalStore(root))
    options = recompute_stats.RecomputeStatsOptions(files_per_commit=2, workers=2)
    context = RunContext.at(clock.now())
    planned = recompute_stats.plan(table.snapshot(), options, context)
    return recompute_stats.apply(table, planned, context).status


AGAIN = {
    "optimize": optimized,
    "purge": purged,
    "cluster": clustered,
    "recompute": recompute_in_many_commits,
}
"""The next run after a kill, by the first word of the work."""


def cluster_in_many_commits(root: str) -> str:
    _many_commits()
    # Rows are divided between scratch files.
    # A function in the place of the class, for this process alone.
    cluster_planning.Clustering = partial(Clustering, sort_bytes=100)  # type: ignore[assignment,misc]
    return clustered(root, workers=2)


def optimize_in_one_commit(root: str) -> str:
    return optimized(root)


def optimize_in_many_commits(root: str) -> str:
    _many_commits()
    return optimized(root, workers=2)


def purge_in_one_commit(root: str) -> str:
    return purged(root)


@watching(row_groups, "_write", "copy_chunk", "read_back_copy")
def optimize_partly_copied(root: str) -> str:
    copying()
    return optimize_in_many_commits(root)


@watching(row_groups, "_write", "copy_chunk", "read_back_copy")
def purge_partly_copied(root: str) -> str:
    copying()
    return purge_in_one_commit(root)
