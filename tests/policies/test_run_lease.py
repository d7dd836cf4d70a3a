"""The lease of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from delta_maintenance.errors import BusyError
from delta_maintenance.policies.approval import Approvals
from tests.support.tables.policy_tables import EVERYTHING, asked, neglected, run_on


class CountedLease:
    """A lease that counts how often it was taken, and says whether it is held."""

    def __init__(self, *, busy: bool = False) -> None:
        self.busy = busy
        self.taken = 0
        self.held = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self.busy:
            raise BusyError("somebody is at work on it")
        self.taken += 1
        self.held = True
        yield
        self.held = False


def test_the_lease_is_taken_once_before_the_first_change_and_ends_with_the_run() -> None:
    lease = CountedLease()
    result = run_on(neglected(), asked(**EVERYTHING), lease=lease)
    assert result.status == "done"
    assert lease.taken == 1 and not lease.held


@pytest.mark.parametrize("options", [{"plan_only": True}, {"approvals": Approvals()}])
def test_a_run_that_changes_nothing_takes_no_lease(options: dict[str, Any]) -> None:
    lease = CountedLease(busy=True)
    rules = {"checkpoint": {"max_commits": 3}, "approval": ["checkpoint"]}
    result = run_on(neglected(), asked(**rules), lease=lease, **options)
    assert result.status in ("planned", "blocked")


def test_a_table_on_which_nothing_is_due_takes_no_lease() -> None:
    result = run_on(
        neglected(), asked(checkpoint={"max_commits": 500}), lease=CountedLease(busy=True)
    )
    assert result.status == "nothing-due"


def test_another_running_process_is_an_error_and_nothing_is_changed() -> None:
    table = neglected()
    before = {each.path for each in table.store.list_from("")}
    with pytest.raises(BusyError):
        run_on(table, asked(checkpoint={"max_commits": 3}), lease=CountedLease(busy=True))
    assert {each.path for each in table.store.list_from("")} == before
