"""A policy in which the files go after the rows have expired."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations import erasure_report
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.erasure_report import ErasureReportOptions
from delta_maintenance.policies import RunEnvironment
from delta_maintenance.policies.definition import Policy
from delta_maintenance.policies.run import run
from delta_maintenance.storage import MemoryStore
from tests.support.rewrites.data_files import parquet
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.policy_tables import asked
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago

DAY = 24 * 60 * 60
RULE = {
    "column": "id",
    "unit": "s",
    "older_than": "10 days",
    "mixed": "deletion-vectors",
    "every": "1 day",
    "approval": False,
}


def table() -> Folder:
    """A table with one file, whose rows were written each day of the last twenty."""
    configuration = {"delta.enableDeletionVectors": "true"}
    first = [features("deletionVectors"), metadata(configuration=configuration)]
    made = Folder(first=first)
    times = [days_ago(days) // 1000 for days in range(20)]
    data = parquet(pa.table({"id": pa.array(times, pa.int64()), "part": ["p"] * len(times)}))
    bounds = {"minValues": {"id": min(times)}, "maxValues": {"id": max(times)}}
    stats = json.dumps({"numRecords": len(times), "nullCount": {"id": 0}, **bounds})
    made.log(add("a.parquet", size=len(data), stats=stats))
    made.file("a.parquet", data=data)
    return made


def run_after(made: Folder, days: int, **expire: Any) -> list[tuple[str, str]]:
    """The operations of a run some days later, with their outcomes."""
    now = NOW + timedelta(days=days)
    assert isinstance(made.store, MemoryStore)
    made.store.now_ms = lambda: epoch_millis(now)
    result = run(
        made.open(), asked(expire=RULE | expire), environment=RunEnvironment(now=lambda: now)
    )
    return [(outcome.operation, outcome.status) for outcome in result.outcomes]


def places(made: Folder, days: int) -> set[str]:
    """The places of the rows that had expired at first, and of values of them."""
    context = RunContext.at(NOW + timedelta(days=days))
    options = ErasureReportOptions(where=f"id < {days_ago(10) // 1000}")
    planned = erasure_report.plan(made.open().snapshot(), options, context)
    return {each.place for each in erasure_report.apply(made.open(), planned, context).places}


def test_the_files_go_after_the_rows_without_further_rules() -> None:
    made = table()
    assert run_after(made, 0, then=["purge", "vacuum"]) == [
        ("expire", "done"),
        ("purge", "done"),
        ("vacuum", "nothing-to-do"),
    ]
    assert "a.parquet" in made.files() and places(made, 0) > {"log"}
    later = dict(run_after(made, 8, then=["purge", "vacuum"]))
    assert later["vacuum"] == "done"
    assert "a.parquet" not in made.files() and places(made, 8) == {"log"}


def test_it_asks_unless_the_rule_says_otherwise() -> None:
    made = table()
    assert run_after(made, 0, approval=True) == [("expire", "needs-approval")]
    default = asked(expire={name: RULE[name] for name in RULE if name != "approval"})
    assert default.rules.needs_approval("expire") and default.rules.asks
    # A person who asks for it has approved it.
    assert not default.rules.asking_for("expire").needs_approval("expire")
    assert "a.parquet" in made.files()
    assert not asked(expire=RULE).rules.asks


def test_nothing_follows_unasked() -> None:
    assert run_after(table(), 0) == [("expire", "done")]


@pytest.mark.parametrize(
    ("own", "purge", "vacuum"),
    [
        ({}, timedelta(days=1), timedelta(days=1)),
        ({"vacuum": {"every": "30 days"}}, timedelta(days=1), timedelta(days=30)),
        ({"vacuum": False}, timedelta(days=1), None),
    ],
)
def test_rules_of_their_own_take_precedence(
    own: dict[str, Any], purge: timedelta, vacuum: timedelta | None
) -> None:
    rule = RULE | {"then": ["purge", "vacuum"]}
    entry = {"name": "t", "uri": "memory://t", **own}
    for defaults, more in (({"expire": rule}, {}), ({}, {"expire": rule})):
        policy = Policy.from_json({"version": 1, "defaults": defaults, "tables": [entry | more]})
        rules = policy.named_tables[0].rules
        assert rules.purge.every == purge
        assert (rules.vacuum.every if rules.vacuum else None) == vacuum


def test_only_what_removes_files_can_follow() -> None:
    with pytest.raises(InvalidRequestError, match="then"):
        asked(expire=RULE | {"then": ["optimize"]})
