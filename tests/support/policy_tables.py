"""Tables in memory and the policies that they are held against."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from vacuum_tables import NOW, Folder

from delta_maintenance.clock import epoch_millis
from delta_maintenance.policies.assess import Assessment, assess
from delta_maintenance.policies.definition.policy import Policy, PolicyTable
from delta_maintenance.policies.environment import RunEnvironment
from delta_maintenance.policies.models import AssessedOperation, RunResult
from delta_maintenance.policies.run import run
from delta_maintenance.storage.memory.store import MemoryStore


def asked(**rules: Any) -> PolicyTable:
    """A table of a policy that asks for this."""
    entry = {"name": "t", "uri": "memory://t", **rules}
    return Policy.from_json({"version": 1, "tables": [entry]}).named_tables[0]


def assessed(table: Folder, *, now: datetime = NOW, **rules: Any) -> Assessment:
    """The table against a policy, with nothing remembered."""
    return assess(table.open().snapshot(), asked(**rules), now=now)


def only(assessment: Assessment) -> AssessedOperation:
    """The one operation that the policy asks for."""
    (operation,) = assessment.operations
    return operation


def run_on(
    table: Folder, policy_table: PolicyTable, *, now: Callable[[], datetime] | None = None, **o: Any
) -> RunResult:
    """Runs what is due, at the tests' instant unless a clock is given."""
    clock = now or (lambda: NOW)
    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(NOW)
    environment = RunEnvironment(
        now=clock, submit=o.pop("submit", None), lease=o.pop("lease", None)
    )
    return run(table.open(), policy_table, environment=environment, **o)


class Ticking:
    """A clock that moves on at every look."""

    def __init__(self, step: timedelta) -> None:
        self.at = NOW
        self.step = step

    def __call__(self) -> datetime:
        self.at += self.step
        return self.at
