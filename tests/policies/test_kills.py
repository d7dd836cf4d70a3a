"""Processes killed with `kill -9` at each step of a lease and of the run of a policy.

`DELTA_MAINTENANCE_KILLS` is the number of kills of a run; `all` kills it at every call that changes
the disk.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from delta_maintenance import clock
from delta_maintenance.errors import BusyError
from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.policies import AssessmentEntry, AssessmentStore
from delta_maintenance.policies.leases import LIFE, Lease, Leases
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.operations.visible_kills import Judge, build, commits
from tests.support.kills import killed_policy_runs
from tests.support.kills.kill_points import fork_server
from tests.support.kills.killed_policy_runs import HOLDER, run_policy

KILLS = os.environ.get("DELTA_MAINTENANCE_KILLS", "6")

pytestmark = pytest.mark.process


def lease_of(holder: str, *, age: timedelta) -> bytes:
    until = clock.now() - age + LIFE
    return json.dumps(Lease(name="t", holder=holder, until=until, nonce="n").to_json()).encode()


FOUND: dict[str, Callable[[], bytes] | None] = {
    "none": None,
    "its own": lambda: lease_of(HOLDER, age=timedelta(minutes=1)),
    "expired": lambda: lease_of("another", age=timedelta(hours=1)),
    "damaged": lambda: b'{"name": "t", "hol',
}
"""The lease that the killed process finds."""


def test_a_process_that_is_killed_with_a_lease_blocks_nobody_for_longer_than_stated(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    root, kills = tmp_path / "root", 0
    name = lease_file(tmp_path / "named")
    with fork_server(f"{killed_policy_runs.__name__}:lease", tmp_path) as run:
        for found in FOUND.values():
            at = killed = 1
            while killed:
                root.mkdir()
                if found is not None:
                    (root / name).write_bytes(found())
                killed = run(root, at=at).killed
                kills, at = kills + killed, at + 1
                left = shutil.copytree(root, tmp_path / "left")
                for folder, holder, later in (
                    (root, HOLDER, timedelta(0)),
                    (left, "another task", LIFE),
                ):
                    try:
                        with leases_at(left, timedelta(0)).held("t", holder="a third task"):
                            pass
                    except BusyError as busy:
                        assert HOLDER in str(busy)
                    with leases_at(folder, later).held("t", holder=holder):
                        pass
                    assert list(folder.glob("*.lease")) == []
                shutil.rmtree(root)
                shutil.rmtree(left)
    assert kills > 40
    count_cases("kills of the holder of a lease", kills)


def leases_at(root: Path, later: timedelta) -> Leases:
    return Leases(LocalStore(root), now=lambda: clock.now() + later)


def lease_file(root: Path) -> str:
    root.mkdir()
    with leases_at(root, timedelta(0)).held("t", holder=HOLDER):
        return next(root.glob("*.lease")).name


def test_the_run_after_a_killed_one_finishes_its_work_and_repeats_no_commit(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    whole = tmp_path / "whole"
    build(whole / "table", clock.now(), damaged=False)
    judge = Judge(whole / "table")
    with fork_server(f"{killed_policy_runs.__name__}:policy_run", tmp_path) as run:
        undisturbed = shutil.copytree(whole, tmp_path / "undisturbed")
        moments = run(undisturbed).moments
        judge.check(undisturbed / "table")
        once = made(undisturbed)
        assert once["OPTIMIZE"] == 1
        assert run_policy(undisturbed).status == "nothing-due"
        count = moments if KILLS == "all" else min(moments, int(KILLS))
        for number in range(count):
            at = 1 + round(number * (moments - 1) / max(1, count - 1))
            root = shutil.copytree(whole, tmp_path / "killed")
            assert run(root, at=at).killed, f"moment {at} was not reached"
            judge.check(root / "table")
            # In turn the next attempt of the same task, and another task once the lease is over.
            same = number % 2 == 0
            result = run_policy(
                root,
                holder=HOLDER if same else "another task",
                later=timedelta(0) if same else LIFE,
            )
            assert result.status in ("done", "nothing-due"), (at, result.problem)
            judge.check(root / "table")
            assert run_policy(root).status == "nothing-due", at
            assert made(root)["OPTIMIZE"] == 1, at
            assert live(root) == live(undisturbed), at
            entry = AssessmentStore(str(root / "kept")).load(str(root / "table"))
            assert isinstance(entry, AssessmentEntry) and entry.run is not None
            # A run that has nothing to do takes no lease, and leaves that of the killed process.
            leases, uri = leases_at(root / "kept", LIFE), str(root / "table")
            with leases.held("t", uri=uri, holder="a third task"):
                pass
            assert list((root / "kept").glob("*.lease")) == []
            table = Table(LocalStore(root / "table"))
            found = fsck.plan(table, context=RunContext.at(clock.now()))
            assert found.status != "corrupt", at
            shutil.rmtree(root)
    count_cases("kills of the run of a policy", count)


def made(root: Path) -> Counter[str]:
    """The number of commits of each operation."""
    lines = (line for text in commits(root / "table").values() for line in text.splitlines())
    actions = (json.loads(line) for line in lines)
    return Counter(each["commitInfo"].get("operation") for each in actions if "commitInfo" in each)


def live(root: Path) -> int:
    return Table(LocalStore(root / "table")).snapshot().live_files().num_rows
