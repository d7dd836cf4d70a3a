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

import pytest
from kills.kill_points import Ended, nursery
from rewrites import killed_rewrites
from rewrites.data_files import ROW_ID, ROW_VERSION
from rewrites.rewritten_tables import Rewritten
from rewrites.table_rows import Row, live_adds, live_rows

from delta_maintenance.operations.rewriting.journal import FOLDER
from delta_maintenance.storage.local.store import LocalStore

KILLS = os.environ.get("DELTA_MAINTENANCE_KILLS", "4")
WORK = ("optimize_in_many_commits", "optimize_with_journal", "purge_with_journal")


def rows(root: Path) -> list[Row]:
    return live_rows(LocalStore(root), row_id=ROW_ID, row_version=ROW_VERSION)


def build(root: Path) -> None:
    """Three bins of four files, some of them with deleted rows."""
    made = Rewritten(store=LocalStore(root), files=4)
    for part in "xz":
        made.table.delete(made.paths[part][1], [1, 3])


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
    tmp_path: Path, work: str, count_cases: Callable[[str, int], None]
) -> None:
    build(tmp_path / "t")
    before = rows(tmp_path / "t")
    killed = adopted = 0
    with nursery(f"rewrites.killed_rewrites:{work}", tmp_path) as run:
        shutil.copytree(tmp_path / "t", tmp_path / "whole")
        whole = run(tmp_path / "whole")
        files = len(live_adds(LocalStore(tmp_path / "whole")))
        assert rows(tmp_path / "whole") == before
        for when in kills(whole):
            root = tmp_path / "killed"
            shutil.copytree(tmp_path / "t", root)
            ended = run(root, **when)
            killed += ended.killed
            assert ended.killed or "after" in when, f"{when} was not reached"
            assert rows(root) == before, when
            adopted += any((root / FOLDER).glob("*.json"))
            status = getattr(killed_rewrites, work.partition("_")[0] + "d")(str(root))
            assert status in ("rewritten", "nothing-to-do"), when
            assert rows(root) == before, f"after {when}"
            assert len(live_adds(LocalStore(root))) == files
            # A run that finds nothing to do writes nothing, so that it keeps a useless journal.
            kept = list((root / FOLDER).glob("*.json"))
            assert not kept or status == "nothing-to-do", when
            shutil.rmtree(root)
    assert killed
    # A few kills may all come before the first bin is in the journal.
    assert adopted or KILLS != "all" or work == "optimize_in_many_commits"
    count_cases(f"kills of {work.replace('_', ' ')}", killed)
