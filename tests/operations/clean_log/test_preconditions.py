"""Properties, table features and checkpoint protection that limit or prevent a log clean-up."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError, UnsupportedFeatureError
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import classic_checkpoint_name
from tests.support.operations.log_clean_ups import at, build, clean, day, names, plan, promised
from tests.support.tables.actions import Action, add, features, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

SHORT = {"allow_short_retention": True, "no_other_writers": True}


# Gates


@pytest.mark.conformance("CLEAN-13")
def test_a_table_that_disables_clean_up_is_not_cleaned_up() -> None:
    table = build(configuration={"delta.enableExpiredLogCleanup": "false"})
    table.checkpoint(18)
    planned = plan(table, day(51))
    assert planned.is_noop and "enableExpiredLogCleanup" in planned.reason


@pytest.mark.conformance("CLEAN-13")
@pytest.mark.parametrize(
    ("configuration", "problem"),
    [
        ({"delta.logRetentionDuration": "interval 6 days"}, "shorter than delta.deletedFile"),
        ({"delta.deletedFileRetentionDuration": "interval 31 days"}, "shorter than delta.deleted"),
        ({"delta.logRetentionDuration": "interval 2 months"}, "cannot be read"),
        ({"delta.logRetentionDuration": "interval -1 days"}, "cannot be read"),
        ({"delta.deletedFileRetentionDuration": "soon"}, "cannot be read"),
        ({"delta.enableExpiredLogCleanup": "maybe"}, "cannot be read"),
        ({"delta.requireCheckpointProtectionBeforeVersion": "x"}, "cannot be read"),
        ({"delta.enableInCommitTimestamps": "perhaps"}, "cannot be read"),
    ],
)
def test_contradictory_or_invalid_properties_are_refused(
    configuration: dict[str, str], problem: str
) -> None:
    table = build(configuration=configuration)
    table.checkpoint(18)
    with pytest.raises(RefusedError, match=problem):
        plan(table, day(51))


def test_an_unrelated_property_may_be_invalid() -> None:
    table = build(configuration={"delta.checkpointInterval": "often"})
    table.checkpoint(18)
    assert not plan(table, day(51)).is_noop


def test_a_retention_beyond_the_calendar_keeps_everything() -> None:
    table = build(configuration={"delta.logRetentionDuration": "interval 900000 days"})
    table.checkpoint(18)
    assert "exceeds the range of the calendar" in plan(table, day(51)).reason


@pytest.mark.conformance("CLEAN-13")
def test_the_last_day_and_the_tables_own_retention_are_kept_without_two_flags() -> None:
    none = {
        "delta.logRetentionDuration": "interval 0 days",
        "delta.deletedFileRetentionDuration": "interval 0 days",
    }
    table = build(configuration=none)
    for version in range(50):
        table.checkpoint(version)
    planned = plan(table, day(49.2))
    assert planned.oldest_version == 47 and any("are kept nevertheless" in n for n in planned.notes)
    hour = timedelta(hours=1)
    for flags in ({}, {"allow_short_retention": True}, {"no_other_writers": True}):
        with pytest.raises(RefusedError, match="shorter than 1 day"):
            plan(table, day(49.2), log_retention=hour, **flags)
    assert plan(table, day(49.2), log_retention=hour, **SHORT).oldest_version == 48
    longer = build()
    longer.checkpoint(10)
    with pytest.raises(RefusedError, match="shorter than 30 days"):
        plan(longer, day(51), log_retention=timedelta(days=29))
    assert plan(longer, day(51), log_retention=timedelta(days=41)).cut_off_commit == 9


@pytest.mark.conformance("CLEAN-16", "CAT-01")
@pytest.mark.parametrize(
    ("listed", "feature"),
    [
        (protocol(1, 7, writer_features=["fromTheFuture"]), "fromTheFuture"),
        (protocol(1, 8), "writer version 8"),
        (
            features("catalogManaged", "vacuumProtocolCheck", writer_only=["inCommitTimestamp"]),
            "catalog-managed",
        ),
        (protocol(1, 7, writer_features=["coordinatedCommits-preview"]), "coordinatedCommits"),
    ],
)
def test_a_table_that_is_not_fully_understood_is_refused_untouched(
    listed: Action, feature: str
) -> None:
    table = build()
    table.checkpoint(18)
    planned = plan(table, day(51))
    table.commit([listed], at_ms=epoch_millis(day(50)))
    before = names(table)
    with pytest.raises(UnsupportedFeatureError, match=feature):
        plan(table, day(51))
    with pytest.raises(UnsupportedFeatureError, match=feature):
        clean_log.apply(table.open(), planned, context=RunContext.at(at(table, day(51))))
    assert names(table) == before


def test_actions_that_no_checkpoint_has_are_not_cleaned_away() -> None:
    table = build()
    table.checkpoint(18)
    table.commit([{"fromTheFuture": {}}], at_ms=epoch_millis(day(50)))
    with pytest.raises(RefusedError, match="fromTheFuture"):
        plan(table, day(51))


def protected(before: int) -> TableBuilder:
    listed = protocol(1, 7, writer_features=["checkpointProtection"])
    boundary = {"delta.requireCheckpointProtectionBeforeVersion": str(before)}
    table = build(listed=listed, configuration=boundary)
    for version in (5, 10, 18):
        table.checkpoint(version)
    return table


# Checkpoint protection


@pytest.mark.conformance("CPROT-01", "CPROT-03")
@pytest.mark.parametrize("before", [19, 30, 49])
def test_a_clean_up_that_stops_short_of_the_boundary_deletes_nothing(before: int) -> None:
    table = protected(before)
    planned = plan(table, day(51))
    assert planned.is_noop and f"before version {before} are protected" in planned.reason
    held = names(table)
    assert clean(table, day(51)).status == "nothing-to-do" and names(table) == held


@pytest.mark.conformance("CPROT-03")
def test_history_of_unknown_features_is_cleaned_entirely_or_not() -> None:
    table = protected(20)
    future = protocol(1, 7, writer_features=["checkpointProtection", "fromTheFuture"])
    known = protocol(1, 7, writer_features=["checkpointProtection"])
    table.commit([future, add("f3")], version=3, at_ms=epoch_millis(day(3)))
    table.commit([known, add("f4")], version=4, at_ms=epoch_millis(day(4)))
    table.checkpoint(18)
    assert plan(table, day(51)).is_noop
    table.checkpoint(20)
    with promised(table, 20):
        assert clean(table, day(51)).oldest_version == 20


@pytest.mark.conformance("CPROT-01", "CPROT-04")
@pytest.mark.parametrize("before", [0, 1, 18])
def test_history_up_to_the_boundary_can_be_deleted_at_once(before: int) -> None:
    table = protected(before)
    with promised(table, 18):
        assert clean(table, day(51)).oldest_version == 18
    assert names(table)[0] == classic_checkpoint_name(18)


@pytest.mark.conformance("CPROT-04")
def test_the_boundary_is_kept_when_the_metadata_changes() -> None:
    table = protected(30)
    table.commit(
        [
            metadata(
                configuration={"delta.requireCheckpointProtectionBeforeVersion": "30"}, name="n"
            )
        ],
        at_ms=epoch_millis(day(50)),
    )
    assert plan(table, day(51)).is_noop
