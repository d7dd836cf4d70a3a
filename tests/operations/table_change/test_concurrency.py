"""Commits of other writers, repeated tasks, and tables and requests that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError, RefusedError, UnsupportedFeatureError
from delta_maintenance.operations import set_properties, upgrade_protocol
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from tests.support.operations.table_changes import (
    NOW,
    RacedStore,
    apply_properties,
    apply_upgrade,
    built,
    plan_properties,
    plan_upgrade,
    race,
    set_,
    upgrade,
)
from tests.support.tables import actions as log


@pytest.mark.conformance("RT-11")
def test_a_concurrent_file_prevents_enabling_row_tracking() -> None:
    for lines_ in ([log.add("late")],):
        table = built()
        race(table, *lines_)
        result = set_(table.open(), enableRowTracking="true")
        assert result.status == "conflict" and "late" in (result.problem or "")
        assert not table.open().snapshot().properties.enable_row_tracking
    table = built()
    plan = plan_properties(table.open(), enableRowTracking="true")
    table.commit([log.add("between")])
    with pytest.raises(RefusedError, match="backfill-row-ids"):
        apply_properties(table.open(), plan)


@pytest.mark.conformance("TXN-04")
@pytest.mark.parametrize(
    "winner",
    [
        [log.metadata(configuration={"delta.checkpointInterval": "9"})],
        [log.metadata(partitioned_by=["part"])],
        [log.features("deletionVectors")],
        [log.protocol(1, 3)],
    ],
    ids=["property", "partitioning", "features", "versions"],
)
@pytest.mark.parametrize("when", ["between", "racing"])
def test_the_first_change_of_protocol_or_metadata_wins(winner: list[log.Action], when: str) -> None:
    table = built(log.add("a"))
    plan = plan_properties(table.open(), enableChangeDataFeed="true")
    if when == "racing":
        race(table, *winner)
    else:
        table.commit(winner)
    result = apply_properties(table.open(), plan)
    # Only metadata that the plan concerns matters, unless another writer is racing.
    may_follow = when == "between" and "metaData" in winner[0]
    assert result.status == ("committed" if may_follow else "conflict")
    assert table.open().snapshot().properties.enable_change_data_feed is may_follow
    if not may_follow:
        assert "again" in (result.problem or "")
        assert table.open().snapshot().version == 1
        assert set_(table.open(), enableChangeDataFeed="true").status == "committed"


@pytest.mark.conformance("TXN-04", "FEAT-07")
def test_a_plan_is_not_carried_out_where_it_would_mean_something_else() -> None:
    table = built()
    raised = plan_upgrade(table.open(), "deletionVectors")
    table.commit([log.features("v2Checkpoint", writer_only=["appendOnly", "invariants"])])
    result = apply_upgrade(table.open(), raised)
    assert result.status == "conflict" and "plan again" in (result.problem or "")
    changed = plan_properties(table.open(), checkpointInterval="5")
    table.commit([log.metadata(configuration={"delta.checkpointInterval": "7"})])
    assert apply_properties(table.open(), changed).status == "conflict"
    assert table.version == 2


def test_appends_of_others_are_followed() -> None:
    table = built()
    race(table, log.add("a"))
    race(table, log.add("b"))
    result = upgrade(table.open(), "deletionVectors")
    assert (result.status, result.version, result.attempts) == ("committed", 3, 3)
    assert table.open().snapshot().counts.num_files == 2


@pytest.mark.conformance("META-04")
def test_a_plan_is_void_after_the_table_was_replaced() -> None:
    table = built()
    plan = plan_properties(table.open(), checkpointInterval="5")
    table.commit([log.metadata(id="another")])
    with pytest.raises(RefusedError, match="was replaced"):
        apply_properties(table.open(), plan)
    upgraded = plan_upgrade(table.open(), "deletionVectors")
    table.commit([log.metadata(id="a third")])
    with pytest.raises(RefusedError, match="was replaced"):
        apply_upgrade(table.open(), upgraded)


@pytest.mark.conformance("TXN-08")
def test_the_same_task_twice_ends_as_done() -> None:
    table = built()
    plan = plan_properties(table.open(), checkpointInterval="5")
    assert apply_properties(table.open(), plan).status == "committed"
    assert apply_properties(table.open(), plan).status == "already-done"
    table.commit([log.commit_info("WRITE"), log.add("a")], version=2)
    assert apply_properties(table.open(), plan).status == "already-done"
    # Another writer undid the change; the first run still counts as done.
    table.commit([log.metadata()], version=3)
    assert apply_properties(table.open(), plan).status == "already-done"
    assert table.open().snapshot().version == 3


@pytest.mark.conformance("TXN-08")
def test_two_runs_of_one_task_at_once_make_one_commit() -> None:
    table = built()
    store = table.store
    assert isinstance(store, RacedStore)
    plan = plan_upgrade(table.open(), "deletionVectors")
    store.races.append(lambda: upgrade_protocol.apply(table.open(), plan))
    result = apply_upgrade(table.open(), plan)
    assert (result.status, result.version) == ("already-done", 1)
    assert table.open().snapshot().version == 1


@pytest.mark.parametrize("kind", ["set", "upgrade"])
def test_on_s3_the_other_writers_are_required(kind: str) -> None:
    table = built()
    table.store.address = Address.parse("s3://lake/t")
    plan: Any
    if kind == "set":
        plan = plan_properties(table.open(), checkpointInterval="5")
        with pytest.raises(RefusedError, match="other writers of this table on S3"):
            apply_properties(table.open(), plan)
        options = SetPropertiesOptions(
            properties={"delta.checkpointInterval": "5"}, other_writers="spark"
        )
        with pytest.raises(RefusedError, match="could overwrite"):
            set_properties.plan(table.open().snapshot(), options, context=RunContext.at(NOW))
    else:
        plan = plan_upgrade(table.open(), "deletionVectors")
        with pytest.raises(RefusedError, match="other writers of this table on S3"):
            apply_upgrade(table.open(), plan)
        allowed = upgrade(table.open(), "deletionVectors", other_writers="conditional_put")
        assert allowed.status == "committed"


@pytest.mark.conformance("CAT-01", "ICE-06", "TXN-11", "FEAT-01")
@pytest.mark.parametrize(
    "names",
    [
        ["catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck"],
        ["rowIds"],
        ["fooBar"],
        ["liquid"],
        ["icebergCompatV3", "columnMapping", "rowTracking", "domainMetadata"],
        ["coordinatedCommits-preview", "inCommitTimestamp", "vacuumProtocolCheck"],
    ],
    ids=lambda names: names[0],
)
def test_unsupported_tables_are_not_changed(names: list[str]) -> None:
    readers = [name for name in names if name in ("catalogManaged", "vacuumProtocolCheck")]
    if "columnMapping" in names:
        readers.append("columnMapping")
    protocol = log.protocol(3, 7, reader_features=readers, writer_features=names)
    table = built(protocol=protocol)
    named = "catalog-managed" if names[0] == "catalogManaged" else names[0]
    for change in (
        lambda: set_(table.open(), checkpointInterval="5"),
        lambda: upgrade(table.open(), "deletionVectors"),
    ):
        with pytest.raises(UnsupportedFeatureError, match=named):
            change()
    assert len(table.names()) == 1


def test_empty_requests_are_refused() -> None:
    table = built().open()
    with pytest.raises(InvalidRequestError):
        plan_properties(table)
    with pytest.raises(InvalidRequestError):
        plan_upgrade(table)
