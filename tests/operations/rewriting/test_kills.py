"""A process that is killed in the middle of a rewrite changes no row, and the next run completes.

`DELTA_MAINTENANCE_KILLS` is the number of kills of each kind of rewrite; `all` kills at every call
that changes the disk, and as often at random instants.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from delta_maintenance import clock
from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.kills.kill_points import Ended, fork_server
from tests.support.rewrites import killed_rewrites
from tests.support.rewrites.data_files import ROW_ID, ROW_VERSION
from tests.support.rewrites.rewritten_tables import COPIED_BYTES, Rewritten
from tests.support.rewrites.table_rows import Row, live_adds, live_rows

KILLS = os.environ.get("DELTA_MAINTENANCE_KILLS", "4")
COPYING = ("optimize_partly_copied", "purge_partly_copied")
WORK = (
    "optimize_in_many_commits",
    "cluster_in_many_commits",
    "recompute_in_many_commits",
    "optimize_partly_copied",
    "optimize_in_one_commit",
    "purge_in_one_commit",
    "purge_partly_copied",
)

GROUPS = {
    "optimize_partly_copied": [[2, 1, 2, 2, 7], [2, 1, 2, 2, 7], [2, 2, 2, 2, 7]],
    "purge_partly_copied": [[2, 1], [2, 1], [3], [3], [3]],
}
"""The rows of the row groups of each new file. Rows of small files are in the last one."""


def rows(root: Path) -> list[Row]:
    return live_rows(LocalStore(root), row_id=ROW_ID, row_version=ROW_VERSION)


def build(root: Path, *, mixed: bool) -> None:
    """Three bins of four files, some of them with deleted rows. With `mixed`, two files of each bin
    are large.
    """
    made = Rewritten(store=LocalStore(root), files=4, mixed=mixed)
    for part in "xz":
        made.table.delete(made.paths[part][1], [3] if mixed else [1, 3])
    if mixed:
        for part in "xyz":
            made.table.delete(made.paths[part][2], [0])


def groups(root: Path) -> list[list[int]]:
    """The rows of the row groups of each new file."""
    found = []
    for path in live_adds(LocalStore(root)):
        if "part-" in path:
            metadata = pq.read_metadata(root / unquote(path))
            every = range(metadata.num_row_groups)
            found.append([metadata.row_group(at).num_rows for at in every])
    return sorted(found)


def kills(whole: Ended) -> list[dict[str, float]]:
    """When to kill: at moments that are evenly spread, and at random instants."""
    count = whole.moments if KILLS == "all" else int(KILLS) // 2
    step = max(1, whole.moments - 1) / max(1, count - 1)
    chance = random.Random(0)
    moments = [{"at": 1 + round(number * step)} for number in range(count)]
    return [*moments, *({"after": chance.uniform(0, whole.seconds)} for _ in range(count))]


@pytest.mark.process
@pytest.mark.conformance("RW-19", "RW-37", "RW-44", "RW-45")
@pytest.mark.parametrize("work", WORK)
def test_a_killed_rewrite_changes_no_row(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: str,
    count_cases: Callable[[str, int], None],
) -> None:
    copying = work in COPYING
    if copying:
        monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", COPIED_BYTES)
    build(tmp_path / "t", mixed=copying)
    before = rows(tmp_path / "t")
    killed = 0
    with fork_server(f"{killed_rewrites.__name__}:{work}", tmp_path) as run:
        shutil.copytree(tmp_path / "t", tmp_path / "whole")
        whole = run(tmp_path / "whole")
        files = len(live_adds(LocalStore(tmp_path / "whole")))
        assert rows(tmp_path / "whole") == before
        assert not copying or groups(tmp_path / "whole") == GROUPS[work]
        for when in kills(whole):
            root = tmp_path / "killed"
            shutil.copytree(tmp_path / "t", root)
            ended = run(root, **when)
            killed += ended.killed
            assert ended.killed or "after" in when, f"{when} was not reached"
            assert rows(root) == before, when
            status = killed_rewrites.AGAIN[work.partition("_")[0]](str(root))
            assert status in ("rewritten", "recomputed", "nothing-to-do"), when
            assert rows(root) == before, f"after {when}"
            assert len(live_adds(LocalStore(root))) == files
            table = Table(LocalStore(root))
            assert not fsck.plan(
                table, FsckOptions(deep=True), context=RunContext.at(clock.now())
            ).findings, when
            shutil.rmtree(root)
    assert killed
    count_cases(f"kills of {work.replace('_', ' ')}", killed)
