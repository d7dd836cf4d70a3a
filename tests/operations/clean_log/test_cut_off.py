"""The cut-off of a log clean-up, and the ages of commits."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.clean_log import CleanLogPlan, CleanLogResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import classic_checkpoint_name, commit_name
from tests.support.operations.log_clean_ups import (
    FIRST,
    at,
    build,
    clean,
    day,
    names,
    plan,
    promised,
)
from tests.support.tables.actions import Action, add, commit_info, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

# The cut-off


@pytest.mark.conformance("CLEAN-01")
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles", "Asia/Kolkata"])
@pytest.mark.parametrize(
    ("now", "midnight"),
    [
        (datetime(2024, 4, 20, 0, 0, tzinfo=UTC), datetime(2024, 3, 21, tzinfo=UTC)),
        (datetime(2024, 4, 20, 23, 59, 59, 999_999, tzinfo=UTC), datetime(2024, 3, 21, tzinfo=UTC)),
        (datetime(2024, 4, 21, 0, 0, tzinfo=UTC), datetime(2024, 3, 22, tzinfo=UTC)),
        (
            datetime(2024, 4, 21, 8, 0, tzinfo=timezone(timedelta(hours=14))),
            datetime(2024, 3, 21, tzinfo=UTC),
        ),
    ],
)
def test_the_cut_off_is_midnight_utc_wherever_the_machine_is(
    monkeypatch: pytest.MonkeyPatch, zone: str, now: datetime, midnight: datetime
) -> None:
    table = build()
    for version in (10, 19, 20, 21):
        table.checkpoint(version)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        planned = plan(table, now)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert planned.cut_off_instant == midnight
    # Version v is of noon of the day v after the first of March.
    assert planned.cut_off_commit == planned.oldest_version == (midnight - FIRST).days


@pytest.mark.conformance("CLEAN-02")
@pytest.mark.parametrize(("late_ms", "commit"), [(0, 6), (1, 5)])
def test_a_commit_of_the_very_midnight_is_the_cut_off(late_ms: int, commit: int) -> None:
    table = TableBuilder()
    midnight = epoch_millis(datetime(2024, 3, 10, tzinfo=UTC))
    for version in range(10):
        first = [protocol(), metadata()] if version == 0 else []
        at_ms = midnight + (version - 6) * 1000 + late_ms
        table.commit([*first, add(f"f{version}")], at_ms=at_ms)
    table.checkpoint(5)
    table.checkpoint(6)
    planned = plan(table, datetime(2024, 4, 9, 7, tzinfo=UTC))
    assert (planned.cut_off_commit, planned.oldest_version) == (commit, commit)


@pytest.mark.conformance("CLEAN-02", "CLEAN-04", "CLEAN-05", "CLEAN-10", "ICT-10")
def test_the_version_at_the_cut_off_and_its_checkpoint_are_kept() -> None:
    table = build()
    table.checkpoint(9)
    table.checkpoint(18)
    now = day(51)
    planned = plan(table, now)
    assert planned.cut_off_commit == 20 and planned.oldest_version == 18
    commits = next(group for group in planned.groups if group.kind == "commits")
    assert (commits.count, commits.first, commits.last) == (18, commit_name(0), commit_name(17))
    assert commits.kept == commit_name(18) and "belongs to the cut-off checkpoint" in str(
        commits.kept_because
    )
    assert commits.bytes == sum(len(table.read(name)) for name in commits.names)
    with promised(table, 18):
        result = clean(table, now)
    assert result.status == "cleaned" and result.oldest_version == 18
    assert names(table) == [
        classic_checkpoint_name(18),
        *(commit_name(version) for version in range(18, 50)),
    ]
    again = clean(table, now)
    assert again.status == "nothing-to-do"


def test_plans_and_results_travel_as_json() -> None:
    table = build()
    table.checkpoint(18)
    planned = plan(table, day(51))
    assert CleanLogPlan.from_json(json.loads(json.dumps(planned.to_json()))) == planned
    result = clean_log.apply(table.open(), planned, context=RunContext.at(at(table, day(51))))
    assert CleanLogResult.from_json(json.loads(json.dumps(result.to_json()))) == result


# Ages


@pytest.mark.conformance("CLEAN-12")
def test_a_copied_table_has_the_age_of_the_copy() -> None:
    table = build()
    table.checkpoint(18)
    for version in range(50):
        table.write(
            commit_name(version), table.read(commit_name(version)), at_ms=epoch_millis(day(50))
        )
    planned = plan(table, day(51))
    assert planned.is_noop and "no commit is as old as" in planned.reason
    assert any("only as old as the copy" in note for note in planned.notes)


@pytest.mark.conformance("CLEAN-12")
def test_a_commit_that_states_a_later_time_than_its_file_is_named_with_both() -> None:
    table = build()
    table.checkpoint(18)
    stated = commit_info(timestamp=epoch_millis(day(50)))
    first = table.read(commit_name(0)) + json.dumps(stated).encode() + b"\n"
    table.write(commit_name(0), first, at_ms=epoch_millis(day(0)))
    planned = plan(table, day(51))
    assert planned.is_noop and "no commit is as old as" in planned.reason
    (note,) = planned.notes
    assert f"is from {clock.text(day(0))}, and the commit itself states" in note
    assert f"{clock.text(day(50))}: the later time counts" in note


@pytest.mark.conformance("CLEAN-12")
@pytest.mark.parametrize(
    ("at_ms", "oldest"), [(epoch_millis(day(49)), 2), (0, 2), (epoch_millis(day(500)), 2)]
)
def test_a_commit_that_is_not_known_to_be_old_protects_all_that_follow(
    at_ms: int, oldest: int
) -> None:
    table = build()
    table.checkpoint(2)
    table.checkpoint(18)
    table.write(commit_name(5), table.read(commit_name(5)), at_ms=at_ms)
    assert plan(table, day(51)).oldest_version == oldest
    assert plan(table, day(51)).cut_off_commit == 4


@pytest.mark.conformance("CLEAN-12", "ICT-08")
@pytest.mark.parametrize(
    ("enabled_at", "own", "commit"),
    [
        (0, lambda v: day(v), 20),
        (0, lambda v: day(v + 10), 10),
        (0, lambda v: day(v - 10), 20),
        (0, lambda v: day(v + 100), None),
        (15, lambda v: day(v + 10), 14),
        (15, lambda v: day(v + 2), 18),
        (30, lambda v: day(v + 100), 20),
    ],
)
def test_the_later_of_two_times_protects_a_commit(
    enabled_at: int, own: Any, commit: int | None
) -> None:
    configuration = {"delta.enableInCommitTimestamps": "true"}
    if enabled_at:
        configuration["delta.inCommitTimestampEnablementVersion"] = str(enabled_at)

    def info(version: int) -> Sequence[Action]:
        if version < enabled_at:
            return [commit_info()]
        return [commit_info(inCommitTimestamp=epoch_millis(own(version)))]

    listed = protocol(1, 7, writer_features=["inCommitTimestamp"])
    table = build(listed=listed, configuration=configuration, info=info)
    for version in range(0, 50, 2):
        table.checkpoint(version)
    planned = plan(table, day(51))
    assert planned.cut_off_commit == commit
    assert planned.oldest_version == (None if commit is None else commit // 2 * 2)


def test_a_commit_without_its_required_time_stops_the_clean_up() -> None:
    listed = protocol(1, 7, writer_features=["inCommitTimestamp"])
    table = build(listed=listed, configuration={"delta.enableInCommitTimestamps": "true"})
    table.checkpoint(18)
    with pytest.raises(CorruptTableError, match="no inCommitTimestamp"):
        plan(table, day(51))
