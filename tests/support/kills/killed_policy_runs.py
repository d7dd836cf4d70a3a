"""The work of processes that are killed while they hold a lease or run a policy."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path

from delta_maintenance import clock, open_table
from delta_maintenance.policies import (
    AssessmentEntry,
    AssessmentStore,
    Leases,
    RunEnvironment,
    RunResult,
)
from delta_maintenance.policies.definition import Policy
from delta_maintenance.policies.run import run
from delta_maintenance.storage.local import LocalStore

HOLDER = "dag d, run r, task t"
RULES = {
    "optimize": True,
    "checkpoint": {"max_commits": 3},
    "compact_log": True,
    "clean_log": True,
    "vacuum": {"every": "1 days"},
}


def lease(root: str) -> None:
    """Takes, renews and releases the lease of a table."""
    leases = Leases(LocalStore(root))
    with leases.held("t", holder=HOLDER):
        leases.renew("t", holder=HOLDER)


def policy_run(root: str) -> None:
    """Runs what is due on a table, as the task of an orchestrator does."""
    run_policy(Path(root))


def run_policy(root: Path, *, holder: str = HOLDER, later: timedelta = timedelta(0)) -> RunResult:
    """Runs what is due on the table below the root, and records it.

    The clock of the lease is ahead by `later`.
    """
    entry = {"name": "t", "uri": str(root / "table"), **RULES}
    table = Policy.from_json({"version": 1, "tables": [entry]}).named_tables[0]
    store = AssessmentStore(str(root / "kept"))
    leases = Leases(store.store, now=lambda: clock.now() + later)
    known = store.load(table.uri)
    result = run(
        open_table(table.uri),
        table,
        last_runs=known.last_runs if isinstance(known, AssessmentEntry) else (),
        environment=RunEnvironment(lease=partial(leases.held, "t", uri=table.uri, holder=holder)),
    )
    assessment = result.after or result.before
    assert assessment is not None
    store.save(assessment, result)
    return result
