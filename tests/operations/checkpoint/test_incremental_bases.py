"""Bases of incremental checkpoints: expired tombstones, sidecars of other engines, damage."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

from delta_maintenance.address import Address
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.operations import checkpoint, fsck
from delta_maintenance.operations.checkpoint import CheckpointOptions, CheckpointPlan
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.protocol.columns import MembershipFilter, hash_texts
from delta_maintenance.protocol.delta_log import SUMMARY_TAG, SUMS_TAG, stated_summary
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.logs.checkpointing import LOG, NOW, write
from tests.support.operations.incremental_checkpoints import (
    based,
    begun,
    forged_locations,
    incremental,
    newest,
    planned,
    require_sound,
    rewritten_tags,
    sidecars_of,
)
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import Action, add, deletion_vector, remove, sidecar
from tests.support.tables.table_builder import EPOCH_MS, MINUTE_MS, TableBuilder

DAY_MS = 86_400_000
AT = NOW + timedelta(hours=1)
LATE = EPOCH_MS + DAY_MS + 30 * MINUTE_MS
EARLY = EPOCH_MS


@pytest.mark.conformance("REC-04")
def test_a_sidecar_of_expired_tombstones_is_left_out() -> None:
    table = begun(
        *(remove(f"r{number}", deletionTimestamp=LATE) for number in range(10)),
        properties={"delta.deletedFileRetentionDuration": "interval 1 days"},
    )
    write(table.open(), per_sidecar=10, now=NOW)
    later = NOW + timedelta(days=2)
    table.commit([add("new")], at_ms=epoch_millis(later))
    result = write(table.open(), per_sidecar=10, incremental="always", now=later)
    assert result.incremental and (result.expired_tombstones, result.num_tombstones) == (10, 0)
    assert result.expired_tombstones_kept == 0
    assert result.sidecars_taken_over == 4


@pytest.mark.conformance("REC-04")
@pytest.mark.parametrize(("expired", "kept"), [(2, 2), (6, 0)])
def test_some_expired_tombstones_stay_and_many_go(expired: int, kept: int) -> None:
    table = begun(
        *(
            remove(f"r{number}", deletionTimestamp=EARLY if number < expired else LATE)
            for number in range(10)
        ),
        properties={"delta.deletedFileRetentionDuration": "interval 1 days"},
    )
    write(table.open(), per_sidecar=10, now=NOW - timedelta(days=1))
    table.commit([add("new")], at_ms=epoch_millis(AT))
    result = write(table.open(), per_sidecar=10, incremental="always", now=AT)
    assert result.incremental
    assert result.expired_tombstones_kept == kept
    assert result.expired_tombstones == expired - kept
    assert result.num_tombstones == 10 - expired + kept


def test_the_sidecars_of_others_are_searched_by_their_paths() -> None:
    table = begun(remove("gone"))
    names = table.v2_checkpoint(sidecars=4)
    table.commit([remove("f004"), add("new")])
    result = incremental(table)
    assert result.sidecars_taken_over == 3
    taken = [each for each in sidecars_of(table) if f"_sidecars/{each.path}" in names]
    summaries = [stated_summary(each) for each in taken]
    # They get their sums, and have no filter that could spare the search the next time.
    assert all(summary is not None and summary.filter is None for summary in summaries)
    table.commit([remove("f005")])
    assert incremental(table).sidecars_taken_over >= 3


def test_sidecars_of_other_writers_without_statistics_are_not_reused() -> None:
    table = begun()

    def without_stats(columns: Any) -> Any:
        rows = columns["add"].to_pylist()
        for row in rows:
            if row is not None:
                del row["stats"]
        kept = [f for f in columns.schema.field("add").type if f.name != "stats"]
        return columns.set_column(0, "add", pa.array(rows, pa.struct(kept)))

    table.v2_checkpoint(sidecars=2, reshape=without_stats)
    table.commit([add("new")])
    assert "have no stats " in planned(table).reason


def test_sidecars_whose_file_actions_are_not_structs_are_not_reused() -> None:
    table = begun()

    def as_text(columns: Any) -> Any:
        texts = [None if row is None else "text" for row in columns["add"].to_pylist()]
        return columns.set_column(0, "add", pa.array(texts))

    table.v2_checkpoint(sidecars=2, reshape=as_text)
    table.commit([add("new")])
    plan = planned(table)
    assert not plan.incremental and "have no stats " in plan.reason
    result = write(table.open(), per_sidecar=10)
    assert (result.incremental, result.num_files) == (False, 41)
    require_sound(table, result)


def test_sidecars_with_several_columns_of_file_actions_are_not_reused() -> None:
    table = begun()
    table.v2_checkpoint(sidecars=2, reshape=lambda rows: rows.append_column("add", rows["add"]))
    table.commit([add("new")])
    plan = planned(table)
    assert not plan.incremental and "several columns named add" in plan.reason


@pytest.mark.conformance("CKPT-30")
def test_a_damaged_filter_costs_a_search_and_no_file() -> None:
    table = based()
    for each in sidecars_of(table):
        place = json.loads(each.tags[SUMMARY_TAG])["filter"]
        table.garbage(f"_sidecars/{each.path}", at=place[0], size=place[1])
    table.commit([remove("f005"), add("new")])
    assert incremental(table).sidecars_taken_over == 3


@pytest.mark.conformance("CKPT-30")
@pytest.mark.parametrize("place", [[2**62, 2**62], [0, 2**62], [2**62, 60], [4, 10**9]])
def test_a_filter_that_the_file_does_not_contain_costs_a_search(
    place: list[int], tmp_path: Path
) -> None:
    table = based(store=LocalStore(str(tmp_path)))
    rewritten_tags(table, lambda said: said.update(filter=place))
    table.commit([remove("f005"), add("new")])
    assert incremental(table).sidecars_taken_over == 3
    plan = fsck.plan(table.open(), FsckOptions(), context=RunContext.at(NOW))
    assert "sidecar-summary" in {each.kind for each in plan.counts}


def forged_filters(table: TableBuilder) -> None:
    other = MembershipFilter.of(hash_texts(pa.array([f"g{n:03d}" for n in range(10)]))).to_bytes()
    for each in sidecars_of(table):
        offset, length = json.loads(each.tags[SUMMARY_TAG])["filter"]
        assert length == len(other)
        name = f"_sidecars/{each.path}"
        data = table.read(name)
        table.write(name, data[:offset] + other + data[offset + length :])


@pytest.mark.conformance("CKPT-30")
@pytest.mark.parametrize("forge", [forged_locations, forged_filters])
def test_no_removed_file_comes_back_by_forged_tags(forge: Any) -> None:
    table = based()
    forge(table)
    table.commit([*(remove(f"f{number:03d}") for number in range(5)), add("new")])
    result = write(table.open(), per_sidecar=10, incremental="always")
    assert not result.incremental and "later commits remove 5 files" in result.notes[-1]
    require_sound(table, result)


@pytest.mark.conformance("CKPT-30")
def test_a_file_that_is_removed_and_comes_back_stands_once_whatever_the_tags_say() -> None:
    table = based()
    forged_locations(table)
    table.commit([remove("f005")])
    table.commit([add("f005", size=7)])
    result = write(table.open(), per_sidecar=10, incremental="always")
    assert not result.incremental
    require_sound(table, result)


@pytest.mark.conformance("CKPT-30")
def test_files_that_came_and_went_since_the_base_are_looked_for_in_no_sidecar() -> None:
    table = based()
    table.commit([add("brief"), remove("f005")])
    table.commit([remove("brief")])
    table.compaction(1, 2)
    assert incremental(table).sidecars_taken_over == 3


@pytest.mark.conformance("CKPT-30", "REC-04")
def test_live_files_are_not_left_out_as_expired_tombstones() -> None:
    table = begun(properties={"delta.deletedFileRetentionDuration": "interval 1 days"})
    write(table.open(), per_sidecar=10, now=NOW)
    forged = {"adds": 0, "tombstones": 10, "bytes": 0, "deleted": [EARLY, EARLY]}
    rewritten_tags(table, lambda said: said.update(forged))
    name = newest(table)
    table.write(name, table.read(name).replace(SUMS_TAG.encode(), b"other.sums"))
    table.commit([add("new")], at_ms=epoch_millis(AT))
    with pytest.raises(CorruptTableError, match="contradicts its tags"):
        write(table.open(), per_sidecar=10, now=AT)


@pytest.mark.conformance("CKPT-30")
@pytest.mark.parametrize("field", ["adds", "tombstones", "bytes"])
def test_sums_that_do_not_add_up_are_corruption(field: str) -> None:
    table = based()
    rewritten_tags(table, lambda said: said.update({field: said[field] + 1}))
    table.commit([add("new")])
    with pytest.raises(CorruptTableError, match="contradicts its tags"):
        planned(table)


@pytest.mark.conformance("CKPT-30")
def test_the_tags_of_another_sidecar_are_not_believed() -> None:
    table = based()
    first, second = sidecars_of(table)[:2]
    changed = {first.path: second.tags[SUMMARY_TAG], second.path: first.tags[SUMMARY_TAG]}
    name = newest(table)
    lines = [json.loads(line) for line in table.read(name).splitlines()]
    for line in lines:
        if line.get("sidecar", {}).get("path") in changed:
            line["sidecar"]["tags"][SUMMARY_TAG] = changed[line["sidecar"]["path"]]
    table.write(name, "".join(json.dumps(line) + "\n" for line in lines).encode())
    table.commit([remove("f005"), remove("f015"), add("new")])
    assert incremental(table).sidecars_taken_over == 2


@pytest.mark.conformance("CKPT-30")
def test_a_sidecar_with_other_actions_than_its_tags_is_corruption() -> None:
    table = based()
    # The sums of all are right, those of each are not.
    signs = iter((1, -1, 0, 0))
    rewritten_tags(table, lambda said: said.update(bytes=said["bytes"] + next(signs)))
    table.commit([remove("f005"), remove("f015"), add("new")])
    with pytest.raises(CorruptTableError, match="differ from its tags"):
        write(table.open(), per_sidecar=10, incremental="always")


@pytest.mark.conformance("CRC-03")
def test_a_version_checksum_that_disagrees_is_corruption() -> None:
    table = based()
    table.commit([remove("f005"), add("new")])
    table.checksum(1, {"numFiles": 41, "tableSizeBytes": 40})
    with pytest.raises(CorruptTableError, match="numFiles is 41, but 40 in the log"):
        write(table.open(), per_sidecar=10)
    table.commit([remove("f006")])
    table.checksum(2, {"numFiles": 39, "tableSizeBytes": 39})
    assert incremental(table)


class Vanishing(CountingStore):
    """Loses a file when another one appears."""

    victim: str = ""
    when: str = ""

    def create(self, path: str) -> Any:
        outer = super().create(path)
        store = self

        class Watched:
            def __enter__(self) -> BinaryIO:
                return outer.__enter__()

            def __exit__(self, *failure: Any) -> Any:
                result = outer.__exit__(*failure)
                if store.victim and store.when in path:
                    store.delete(store.victim)
                    store.victim = ""
                return result

        return Watched()


@pytest.mark.conformance("CLEAN-08", "CLEAN-10", "CKPT-25")
@pytest.mark.parametrize("when", ["/_sidecars/", ".checkpoint."])
def test_a_sidecar_that_a_clean_up_takes_meanwhile_is_written_anew(when: str) -> None:
    """The clean-up read its checkpoints before ours was there, and deletes what ours refers to."""
    store = Vanishing()
    table = based(store=store)
    table.commit([remove("f005"), add("new")])
    snapshot = table.open().snapshot()
    options = CheckpointOptions(actions_per_sidecar=10)
    plan = checkpoint.plan(snapshot, options, context=RunContext.at(NOW))
    assert plan.incremental
    opened = snapshot.log.checkpoint
    assert opened is not None
    # One that is taken over: nothing in it was named.
    store.victim, store.when = opened.sidecar_paths[2], when
    result = checkpoint.apply(table.open(), plan, context=RunContext.at(NOW), snapshot=snapshot)
    assert not store.victim, "it went in the middle of things"
    assert not result.incremental and "is missing" in " ".join(result.notes)
    require_sound(table, result)
    # What had become visible has been taken back.
    manifests = [
        name for name in table.names() if ".checkpoint." in name and name.startswith("0" * 19 + "1")
    ]
    assert manifests == [str(result.path).removeprefix(f"{LOG}/")]


@pytest.mark.conformance("CKPT-24")
def test_a_sidecar_of_another_size_is_not_reused() -> None:
    table = based()
    opened = table.open().snapshot().log.checkpoint
    assert opened is not None
    victim = opened.sidecar_paths[2]
    table.store.put(victim, table.store.read(victim) + b"more")
    table.commit([remove("f005"), add("new")])
    result = write(table.open(), per_sidecar=10)
    assert not result.incremental and "another size" in result.notes[-1]


@pytest.mark.conformance("FILE-02")
@pytest.mark.parametrize(
    ("root", "second"),
    [
        ("memory://twice/vector", add("f005", dv=deletion_vector())),
        ("memory://twice/absolute", add("memory://twice/absolute/f005")),
    ],
)
def test_a_file_added_twice_is_found_across_the_base(root: str, second: Action) -> None:
    others = [add("x", dv=deletion_vector("other")), add("memory://elsewhere/y")]
    table = based(*others, store=MemoryStore(Address.parse(root)))
    table.commit([second])
    for how in ("always", "never"):
        with pytest.raises(CorruptTableError, match=r"two (different paths|deletion vectors)"):
            write(table.open(), per_sidecar=10, incremental=how)


def test_tags_of_somebody_else_stay() -> None:
    table = begun()
    [name, *names] = table.v2_checkpoint(sidecars=2)
    lines = [json.loads(line) for line in table.read(name).splitlines()]
    for line in lines:
        if "sidecar" in line:
            line["sidecar"]["tags"] = {"theirs": "x"}
    table.write(name, "".join(json.dumps(line) + "\n" for line in lines).encode())
    table.commit([add("new")])
    incremental(table)
    tags = [each.tags for each in sidecars_of(table)]
    assert len([each for each in tags if each.get("theirs") == "x"]) == 2
    assert all(SUMMARY_TAG in each for each in tags)


def test_a_sidecar_named_twice_gives_nothing() -> None:
    table = begun(files=2)
    [name, *names] = table.v2_checkpoint(sidecars=1)
    size = len(table.read(names[0]))
    twice = sidecar(names[0].rpartition("/")[2], size)
    table.write(name, table.read(name) + json.dumps(twice).encode() + b"\n")
    table.commit([add("new")])
    with pytest.raises(CorruptTableError, match="has a file twice"):
        planned(table)


def test_a_plan_for_incremental_is_followed_by_whoever_applies_it() -> None:
    table = based()
    table.commit([remove("f005"), add("new")])
    plan = CheckpointPlan.from_json(planned(table).to_json())
    result = checkpoint.apply(Table(table.store), plan, context=RunContext.at(NOW))
    assert result.incremental and SUMS_TAG in table.read(newest(table)).decode()


@pytest.mark.conformance("CLEAN-08", "CLEAN-10")
def test_a_plan_that_was_approved_too_late_takes_no_sidecars_over() -> None:
    """A process that is killed after the publication makes no last check for lost sidecars."""
    table = based()
    table.commit([remove("f005"), add("new")])
    plan = planned(table)
    assert plan.incremental
    late = NOW + timedelta(days=40)
    result = checkpoint.apply(Table(table.store), plan, context=RunContext.at(late))
    assert not result.incremental and "log retention of version" in result.notes[-1]
    table.commit([add("newer")])
    strict = replace(planned(table), incremental_option="always")
    with pytest.raises(RefusedError, match="log retention of version"):
        checkpoint.apply(Table(table.store), strict, context=RunContext.at(late))
