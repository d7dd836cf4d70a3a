"""Compares what operations were expected to take with what they took.

`python -m benchmarks.scale.estimates` plays ten tables of different sizes. In each round, commits
are added to each of them, and `optimize`, `checkpoint`, `compact-log` and `vacuum` run by a policy
with a ledger. Prints the errors of the rounds that had at least
one run to learn from.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from delta_maintenance import clock, open_table
from delta_maintenance.ledger.costs import known_costs
from delta_maintenance.ledger.rows import Origin, rows_of
from delta_maintenance.ledger.table import Delivery, LedgerTable
from delta_maintenance.policies.budget.account import BudgetAccount
from delta_maintenance.policies.budget.estimates import CostHistory
from delta_maintenance.policies.budget.selection import TableBudget
from delta_maintenance.policies.definition.budget import BudgetRule
from delta_maintenance.policies.definition.policy import Policy, PolicyTable
from delta_maintenance.policies.execute import RunEnvironment
from delta_maintenance.policies.models import LastRun, RunResult
from delta_maintenance.policies.run import run
from delta_maintenance.storage import open_store

_COMMITS = 60
_RULES: tuple[dict[str, Any], ...] = (
    {"compact_log": True},
    {"optimize": {"min_files_saved": 2, "every": "1 second"}, "checkpoint": {"max_commits": 5}},
    {"vacuum": {"every": "1 second"}},
)
"""One after the other: where a checkpoint is due, no log is compacted."""
_DAYS_AGO = (8, 8, 0)
"""When each of them runs, so that a vacuum deletes what was merged."""


def add_commits(table: Path, rows: int, seed: int) -> None:
    """Appends files of so many rows."""
    chance = np.random.default_rng(seed)
    for number in range(_COMMITS):
        columns = {
            "id": np.arange(rows) + number * rows,
            "value": chance.normal(size=rows),
            "text": [f"{value:x}" for value in chance.integers(0, 1 << 60, rows)],
        }
        write_deltalake(str(table), pa.table(columns), mode="append")


def play(folder: Path, tables: int, rounds: int) -> list[tuple[str, int, float, float]]:
    """Returns the operation, the round, and the expected and the taken seconds of CPU time."""
    ledger = LedgerTable(open_store(str(folder / "ledger")))
    uris = [str(folder / f"table{number}") for number in range(tables)]
    policies = [
        Policy.model_validate(
            {"version": 1, "defaults": rules, "tables": [{"uri": uri} for uri in uris]}
        )
        for rules in _RULES
    ]
    last_runs: dict[str, tuple[LastRun, ...]] = {}
    pairs = []
    for round_number in range(rounds):
        history, problem = known_costs(lambda: ledger, now=clock.now(), prices=None)
        assert problem is None, problem
        for number, uri in enumerate(uris):
            add_commits(Path(uri), round(500 * 1.6**number), 100 * number + round_number)
            _age(Path(uri))
            for policy, days in zip(policies, _DAYS_AGO, strict=True):
                table = policy.named_tables[number]
                now = clock.now() - timedelta(days=days)
                result = _run(table, history, last_runs.get(uri, ()), now)
                last_runs[uri] = result.last_runs
                run_id = clock.new_id()
                rows = rows_of(result, Origin(done_by="python", run_id=run_id))
                ledger.append(Delivery(run_id=run_id, rows=rows))
                pairs += [
                    (each.operation, round_number, expected.costs["cpu_seconds"], taken)
                    for each in result.outcomes
                    if each.status == "done"
                    and (expected := each.expected)
                    and (taken := each.cost and each.cost.cpu_seconds)
                ]
    return pairs


def _age(table: Path) -> None:
    """Gives the files of a table the age that a vacuum requires."""
    old = (clock.now() - timedelta(days=9)).timestamp()
    for file in table.glob("**/*"):
        os.utime(file, (old, old))


def _run(
    table: PolicyTable, history: CostHistory, last_runs: tuple[LastRun, ...], now: datetime
) -> RunResult:
    rule = BudgetRule.model_validate({"day": {"requests": 10**9}})
    account = BudgetAccount(rule=rule, run_id="run", now=lambda: now)
    environment = RunEnvironment(
        budget=TableBudget(table=table, account=account, history=history), now=lambda: now
    )
    return run(open_table(table.uri), table, last_runs=last_runs, environment=environment)


def main() -> None:
    """Prints the median error of each operation, and the share of runs within 30%."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="estimates"))
    try:
        pairs = play(folder, arguments.tables, arguments.rounds)
    finally:
        shutil.rmtree(folder)
    print("| operation | round | runs | median error | within 30% |\n|---|---|---|---|---|")
    for operation in (*dict.fromkeys(pair[0] for pair in pairs), "all"):
        for label, first in (("first", 0), ("later", 1)):
            errors = np.array(
                [
                    abs(expected / taken - 1)
                    for name, number, expected, taken in pairs
                    if operation in (name, "all") and taken and (number > 0) == (first > 0)
                ]
            )
            if len(errors):
                print(
                    f"| {operation} | {label} | {len(errors)} | {np.median(errors):.0%} | "
                    f"{np.mean(errors <= 0.3):.0%} |"
                )


if __name__ == "__main__":
    main()
