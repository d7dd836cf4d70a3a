"""Contents of an incremental checkpoint, and conditions under which it is written in full."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import CheckpointOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import SCHEMA_TAG, SidecarSummary, Tally, stated_sums
from delta_maintenance.table.evidence.contradictions import find_contradiction
from tests.support.logs.checkpointing import KEEP_TOMBSTONES, NOW, SIDECARS, write
from tests.support.operations.incremental_checkpoints import (
    V2,
    based,
    begun,
    incremental,
    newest,
    planned,
    require_sound,
    sidecars_of,
)
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import add, deletion_vector, metadata, remove, txn
from tests.support.tables.table_builder import TableBuilder


@pytest.mark.conformance("CKPT-03", "CKPT-24")
def test_only_sidecars_with_a_named_file_are_written_anew() -> None:
    table = based()
    before = {each.path for each in sidecars_of(table)}
    table.commit([remove("f005"), add("new")])
    plan = planned(table)
    assert plan.incremental and "3 of 4 sidecars" in plan.reason
    assert plan.expected_bytes == plan.expected_incremental_bytes
    assert 0 < (plan.expected_incremental_bytes or 0) < (plan.expected_full_bytes or 0)
    result = incremental(table)
    after = {each.path for each in sidecars_of(table)}
    assert result.sidecars_taken_over == len(before & after) == 3
    # The file without f005, the one that is new, and the tombstone.
    assert len(after - before) == result.sidecars - 3 == 3
    assert result.bytes_written < result_bytes(table)


def result_bytes(table: TableBuilder) -> int:
    return sum(each.size_in_bytes for each in sidecars_of(table))


def test_appends_alone_read_no_file_action_of_the_base() -> None:
    store = CountingStore()
    table = based(store=store)
    table.commit([add("new"), txn("app", 1)])
    snapshot = table.open().snapshot()
    assert find_contradiction(snapshot) is None
    store.requests.clear()
    plan = checkpoint.plan(
        snapshot, CheckpointOptions(actions_per_sidecar=10), context=RunContext.at(NOW)
    )
    filters = [each for each in store.requests if each.startswith(f"open {SIDECARS}")]
    store.requests.clear()
    result = checkpoint.apply(table.open(), plan, context=RunContext.at(NOW), snapshot=snapshot)
    again = [each for each in store.requests if each.startswith(f"open {SIDECARS}")]
    assert (result.sidecars_taken_over, result.sidecars) == (4, 5)
    # One footer for the columns of all, and where places may match, the filters.
    assert len(filters) <= 1 + 4 and len(again) <= 4
    assert not [each for each in store.requests if each.startswith("read")][4:]


def test_a_base_that_loses_a_sidecar_after_the_plan_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = based()
    base = newest(table)
    table.commit([remove("f005"), add("new")])
    opened = table.open()
    snapshot, plan = opened.snapshot(), planned(table)
    for sidecar in [*table.store.list_from(SIDECARS)]:
        table.store.delete(sidecar.path)
    result = checkpoint.apply(opened, plan, context=RunContext.at(NOW), snapshot=snapshot)
    assert (result.status, result.incremental) == ("written", False)
    skipped = [text for text in caplog.messages if "no longer exists" in text]
    assert skipped and all(f"skipped _delta_log/{base}: " in text for text in skipped)


def test_opening_asks_for_no_sidecar_and_files_for_each_once() -> None:
    store = CountingStore()
    table = based(store=store)
    store.requests.clear()
    snapshot = table.open().snapshot()
    assert not [each for each in store.requests if SIDECARS in each]
    assert snapshot.counts.num_files == 40
    # The footer and the columns of each.
    assert len([each for each in store.requests if each.startswith(f"open {SIDECARS}")]) == 8


@pytest.mark.conformance("REC-02", "DV-13")
def test_files_that_come_back_or_change_their_vector_stand_once() -> None:
    table = based(add("dv", dv=deletion_vector("one")), remove("gone"))
    table.commit([remove("dv", dv=deletion_vector("one")), add("dv", dv=deletion_vector("two"))])
    table.commit([add("gone", size=7), remove("f000"), remove("f001")])
    table.commit([add("f000", size=5)])
    result = incremental(table)
    assert (result.num_files, result.num_tombstones) == (41, 2)


@pytest.mark.conformance("CKPT-28")
@pytest.mark.parametrize("kind", ["v2-classic", "v2-json", "v2-parquet"])
def test_every_v2_kind_can_be_incremental_on_every_other(kind: str) -> None:
    for base in ("v2-classic", "v2-json", "v2-parquet"):
        table = begun()
        write(table.open(), base, per_sidecar=10)
        table.commit([remove("f005"), add("new")])
        assert incremental(table, kind=kind).sidecars_taken_over == 3


def test_incremental_checkpoints_follow_each_other() -> None:
    table = based()
    for number in range(12):
        table.commit([add(f"n{number}"), remove(f"f{3 * number:03d}"), txn("app", number)])
        assert incremental(table).sidecars_taken_over
    # Twelve of each kind, which are merged as they come.
    assert len(sidecars_of(table)) <= 10


@pytest.mark.conformance("CKPT-30")
def test_sums_and_tags_of_all_sidecars_are_carried_along() -> None:
    table = based()
    table.commit([remove("f005"), add("new", size=9)])
    result = incremental(table)
    assert result.path is not None
    lines = [json.loads(line) for line in table.store.read(result.path).splitlines()]
    tags = lines[0]["checkpointMetadata"]["tags"]
    each = [line["sidecar"] for line in lines if "sidecar" in line]
    assert tags["sidecarNumActions"] == "41" and tags["numOfAddFiles"] == "40"
    assert tags["sidecarSizeInBytes"] == str(sum(one["sizeInBytes"] for one in each))
    schema = json.loads(tags[SCHEMA_TAG])
    assert [field["name"] for field in schema["fields"]] == ["add", "remove"]
    summaries = [SidecarSummary.from_tags(one["tags"], one["path"]) for one in each]
    assert stated_sums(tags) == Tally.total(one.tally for one in summaries if one is not None)
    # New ones first: readers take the columns of the first for those of all.
    assert [one["path"] for one in each][3:] == [one.path for one in sidecars_of(table)[3:]]
    hint = json.loads(table.read("_last_checkpoint"))
    assert hint["size"] == len(lines) + 41
    assert all("tags" not in one for one in hint["v2Checkpoint"]["sidecarFiles"])


def test_never_and_always_are_followed() -> None:
    table = based()
    table.commit([add("new")])
    never = planned(table, incremental="never")
    assert not never.incremental and never.reason.endswith("in full, as asked for")
    table.commit([remove(f"f{number:03d}") for number in range(0, 40, 5)])
    auto, always = planned(table), planned(table, incremental="always")
    assert not auto.incremental and "0 of 4 sidecars" in auto.reason
    assert (auto.expected_incremental_bytes or 0) > 0.7 * (auto.expected_full_bytes or 0)
    assert always.incremental
    assert incremental(table).sidecars_taken_over == 0


@pytest.mark.parametrize(
    ("kind", "per_sidecar", "because"),
    [
        ("classic", 10, "has no sidecars to take over"),
        ("v2-json", 0, "has no sidecars to take over"),
        ("v2-json", 10, "the table has no checkpoint yet"),
    ],
)
def test_what_cannot_be_incremental_is_refused_or_written_in_full(
    kind: Any, per_sidecar: int, because: str
) -> None:
    table = begun()
    with pytest.raises(RefusedError, match=because):
        write(table.open(), kind, per_sidecar, incremental="always")
    assert write(table.open(), kind, per_sidecar).incremental is False


@pytest.mark.parametrize(
    ("base", "because"),
    [
        ({"kind": "classic"}, "is not a V2 checkpoint"),
        ({"kind": "v2-json", "per_sidecar": 0}, "has no sidecars"),
    ],
)
def test_a_base_without_sidecars_gives_nothing(base: dict[str, Any], because: str) -> None:
    table = begun()
    write(table.open(), **base)
    table.commit([add("new")])
    assert because in planned(table).reason
    with pytest.raises(RefusedError, match=because):
        planned(table, incremental="always")


def test_a_checkpoint_older_than_the_newest_is_written_in_full() -> None:
    table = based()
    table.commit([add("one")])
    table.commit([add("two")])
    write(table.open(), per_sidecar=10)
    options = CheckpointOptions(actions_per_sidecar=10)
    plan = checkpoint.plan(table.open().snapshot(version=1), options, context=RunContext.at(NOW))
    assert not plan.incremental and "is newer" in plan.reason


@pytest.mark.conformance("CKPT-10", "CKPT-12")
def test_another_form_of_statistics_takes_a_full_checkpoint() -> None:
    structs = {**KEEP_TOMBSTONES, "delta.checkpoint.writeStatsAsStruct": "true"}
    for before, after, because in [
        (KEEP_TOMBSTONES, structs, "have no stats_parsed"),
        ({**structs, "delta.checkpoint.writeStatsAsJson": "false"}, structs, "have no stats "),
    ]:
        table = based(properties=before)
        table.commit([metadata(configuration={**V2, **after}), add("new")])
        plan = planned(table)
        assert not plan.incremental and because in plan.reason
        result = write(table.open(), per_sidecar=10)
        require_sound(table, result)
    # Structs that are no longer asked for may stay where they are.
    table = based(properties=structs)
    table.commit([metadata(configuration={**V2, **KEEP_TOMBSTONES}), add("new")])
    incremental(table)
    tags = json.loads(table.read(newest(table)).splitlines()[0])["checkpointMetadata"]["tags"]
    assert "stats_parsed" not in tags[SCHEMA_TAG]


@pytest.mark.conformance("CKPT-12")
def test_a_schema_that_changes_the_structs_takes_a_full_checkpoint() -> None:
    structs = {**KEEP_TOMBSTONES, "delta.checkpoint.writeStatsAsStruct": "true"}
    table = based(properties=structs)
    table.commit([add("new")])
    assert incremental(table).sidecars_taken_over == 4
    fields = [{"name": "other", "type": "long", "nullable": True, "metadata": {}}]
    schema = json.dumps({"type": "struct", "fields": fields})
    table.commit([metadata(schema=schema, configuration={**V2, **structs})])
    assert "have no stats_parsed" in planned(table).reason


@pytest.mark.conformance("FILE-11")
def test_unknown_fields_of_either_side_are_kept() -> None:
    table = based(add("strange", fresh={"a": 1}))
    table.commit([add("stranger", other="x"), remove("f000", more=3)])
    incremental(table)
    table.commit([remove("f001")])
    incremental(table)
