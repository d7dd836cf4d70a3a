"""When a policy has rows sorted, and what its rule for `optimize` does on the same table."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.operations.cluster import ClusterOptions
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.policies import AssessedOperation, LastRun
from delta_maintenance.policies.assess import assess
from delta_maintenance.table.read import Table
from tests.support.rewrites.clustered_tables import ClusteredTable
from tests.support.rewrites.rewritten_tables import NOW
from tests.support.tables.policy_tables import asked

NEVER = {"above_depth": 1000, "above_share": 1, "min_files_saved": 1000}
"""Limits that no table of this module exceeds."""


def assessed(made: ClusteredTable, *runs: LastRun, **rules: Any) -> dict[str, AssessedOperation]:
    """The operations of a policy, by name."""
    snapshot = Table(made.store).snapshot()
    found = assess(snapshot, asked(**rules), now=NOW, last_runs=runs).operations
    return {each.operation: each for each in found}


def clustered(**given: Any) -> ClusteredTable:
    """A table of sorted files and one new file with about a tenth of the bytes."""
    made = ClusteredTable(**given)
    made.append(5)
    made.cluster(target_bytes=4000, by=() if given.get("columns", True) else ("x", "t"))
    made.append(1, rows=150)
    return made


@pytest.mark.parametrize(
    "limit, reason",
    [
        ({"above_depth": 2}, "a reader of one value opens"),
        ({"above_share": 0.05}, "of the bytes are not clustered"),
        ({"min_files_saved": 1}, "are sorted"),
    ],
)
def test_each_limit_alone_makes_clustering_due(limit: dict[str, Any], reason: str) -> None:
    made = clustered()
    made.append(2, rows=20)
    rule = NEVER | {"target_bytes": 4000} | limit
    due = assessed(made, cluster=rule)["cluster"]
    assert (due.status, due.options) == ("due", ClusterOptions(target_bytes=4000))
    assert reason in due.reason and due.bytes_to_read
    assert assessed(made, cluster=NEVER)["cluster"].status == "not-due"


def test_the_rule_sets_the_options_of_a_run() -> None:
    made = clustered()
    rules = {
        "cluster": {
            "curve": "linear",
            "above_share": 0,
            "quiet_for": "0 s",
            "max_bytes": "1 GiB",
            "max_duration": "1 h",
        },
        "approval": ["cluster"],
        "hours": {"windows": ["13:00-14:00"]},
    }
    found = assessed(made, **rules)["cluster"]
    assert (found.status, found.needs_approval) == ("blocked", True)
    assert "the maintenance hours begin" in found.reason
    assert found.options == ClusterOptions(
        curve="linear", quiet_for=timedelta(), max_bytes=1 << 30, max_duration=timedelta(hours=1)
    )
    quiet = assessed(made, cluster={"quiet_for": "9999 days"})["cluster"]
    assert (quiet.status, "are left alone" in quiet.reason) == ("not-due", True)
    lately = LastRun(operation="cluster", at=NOW, version=9, status="rewritten")
    waiting = assessed(made, lately, **rules)["cluster"]
    assert (waiting.status, waiting.due_at) == ("not-due", NOW + timedelta(days=1))


def test_clustered_tables_and_those_with_named_columns_are_sorted() -> None:
    plain = clustered(columns=None)
    unnamed = assessed(plain, cluster={"above_share": 0})["cluster"]
    assert (unnamed.status, "names none" in unnamed.reason) == ("not-due", True)
    rule = {"above_share": 0, "by": ["x", "t"]}
    named = assessed(plain, cluster=rule)["cluster"]
    assert (named.status, named.options) == ("due", ClusterOptions(by=("x", "t")))
    # The clustering columns of a table precede those of the rule.
    own = assessed(clustered(), cluster=rule)["cluster"]
    assert (own.status, own.options) == ("due", ClusterOptions())
    wrong = assessed(plain, cluster={"by": ["y"]})["cluster"]
    assert (wrong.status, "no column y" in wrong.reason) == ("blocked", True)


@pytest.mark.parametrize("columns", [(["x"], ["t"]), None])
def test_optimize_leaves_a_table_to_cluster(columns: Any) -> None:
    made = clustered(columns=columns)
    made.append(3)
    optimize = {"min_files_saved": 1}
    sorting = NEVER | {"by": ["x", "t"]}
    assert assessed(made, optimize=optimize)["optimize"].options == OptimizeOptions()
    both = assessed(made, optimize=optimize, cluster=sorting)
    assert {each.status for each in both.values()} == {"not-due"}
    assert "cluster also merges" in both["optimize"].reason
    # Without columns to sort by, cluster takes no table.
    unsorted = assessed(ClusteredTable(columns=None), optimize=optimize, cluster=True)
    assert "a run would save" in unsorted["optimize"].reason
    # Files that were sorted are never merged.
    made.cluster(target_bytes=4000, by=() if columns else ("x", "t"))
    assert assessed(made, optimize=optimize)["optimize"].status == "not-due"
