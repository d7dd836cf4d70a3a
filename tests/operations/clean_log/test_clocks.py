"""Clocks of writers and stores that run ahead, behind and backwards: history inside the retention
stays whatever they say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.core import RunContext
from tests.support.tables.actions import add, commit_info, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

NOW = datetime(2026, 6, 30, tzinfo=UTC)
KEPT_MS = epoch_millis(NOW - timedelta(days=30))
"""Midnight 30 days ago, which is the retention of every table here."""

ages = st.integers(-5, 90)
"""In days: of commits on both sides of the retention, and of some that are still to come."""
clocks = st.tuples(ages, ages | st.none(), ages | st.none())
"""The time of a file, a `commitInfo.timestamp`, and an in-commit timestamp that is not enabled."""


def ago(days: int) -> int:
    return epoch_millis(NOW - timedelta(days=days))


def table_of(times: list[tuple[int, int | None, int | None]]) -> TableBuilder:
    table = TableBuilder()
    for version, (file, said, in_commit) in enumerate(times):
        fields = {} if in_commit is None else {"inCommitTimestamp": ago(in_commit)}
        info = commit_info(timestamp=None if said is None else ago(said), **fields)
        lines = [info, *((protocol(), metadata()) if not version else (add(f"f{version}"),))]
        table.commit(lines, at_ms=ago(file))
        table.checkpoint(version)
    return table


@pytest.mark.conformance("CLEAN-12")
def test_the_time_in_a_commit_protects_it() -> None:
    """A copied folder keeps old file times, and so does a store whose clock was behind."""
    times = [(60 - version, 60 - version, None) for version in range(6)]
    times[3] = (57, 29, None)
    planned = clean_log.plan(table_of(times).open().snapshot(), context=RunContext.at(NOW))
    assert planned.cut_off_commit == 2


@pytest.mark.conformance("CLEAN-12", "CLEAN-02")
@given(st.lists(clocks, min_size=1, max_size=12))
@settings(max_examples=60)
def test_a_commit_with_any_time_within_the_retention_is_kept(
    times: list[tuple[int, int | None, int | None]],
) -> None:
    planned = clean_log.plan(table_of(times).open().snapshot(), context=RunContext.at(NOW))
    young = [
        version
        for version, known in enumerate(times)
        if any(ago(age) > KEPT_MS for age in known if age is not None)
    ]
    oldest_young = min(young, default=len(times))
    # Version N - 1 was current until commit N came, and is within the retention too.
    kept_from = planned.oldest_version if planned.oldest_version is not None else 0
    assert kept_from <= max(oldest_young - 1, 0)
    if not young and len(times) > 1:
        assert not planned.is_noop, "and what is old by all its times does go"
