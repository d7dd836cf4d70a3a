"""What an incremental checkpoint takes over and writes anew, and when it is written in full."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, BinaryIO

import pytest
from checkpointing import (
    KEEP_TOMBSTONES,
    LOG,
    NOW,
    SIDECARS,
    as_checkpointed,
    only,
    state_of,
    write,
)

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import (
    CheckpointOptions,
    CheckpointPlan,
    CheckpointResult,
)
from delta_maintenance.protocol.delta_log.checkpoint_tags import SCHEMA_TAG, SUMS_TAG, stated_sums
from delta_maintenance.protocol.delta_log.sidecar_summary import (
    SUMMARY_TAG,
    SidecarSummary,
    _check,
    stated_summary,
)
from delta_maintenance.protocol.delta_log.tally import Tally
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.table.read.segment import hinted_version
from delta_maintenance.table.read.table import Table
from delta_maintenance.testing.actions import (
    Action,
    add,
    deletion_vector,
    features,
    metadata,
    remove,
    sidecar,
    txn,
)
from delta_maintenance.testing.counting_store import CountingStore
from delta_maintenance.testing.table_builder import EPOCH_MS, MINUTE_MS, TableBuilder

DAY_MS = 86_400_000
V2 = {"delta.checkpointPolicy": "v2"}


def begun(
    *more: Action,
    files: int = 40,
    store: Store | None = None,
    properties: dict[str, str] | None = None,
) -> TableBuilder:
    """A table of some files under the policy `v2`, without a checkpoint."""
    table = TableBuilder(store)
    configuration = {**V2, **(KEEP_TOMBSTONES if properties is None else properties)}
    supported = features("v2Checkpoint", "deletionVectors")
    adds = [add(f"f{number:03d}") for number in range(files)]
    table.commit([supported, metadata(configuration=configuration), *adds, *more])
    return table


def based(*more: Action, **options: Any) -> TableBuilder:
    """The same with a checkpoint of ours of version 0, of ten file actions a sidecar."""
    table = begun(*more, **options)
    assert write(table.open(), per_sidecar=10).incremental is False
    return table


def planned(table: TableBuilder, **options: Any) -> CheckpointPlan:
    chosen = CheckpointOptions(actions_per_sidecar=10, **options)
    return checkpoint.plan(table.open().snapshot(), chosen, now=NOW)


def incremental(table: TableBuilder, **options: Any) -> CheckpointResult:
    """An incremental checkpoint, which holds what the commits come to."""
    result = write(table.open(), per_sidecar=10, incremental="always", **options)
    require_sound(table, result)
    assert result.incremental, result.notes
    return result


def require_sound(table: TableBuilder, result: CheckpointResult) -> None:
    assert result.status == "written" and result.path is not None
    alone = only(table.store, result.path, result.version).snapshot()
    expected = TableBuilder()
    for version in range(result.version + 1):
        expected.commit(table.commits[version])
    # What others have written into a sidecar stays, and they may say there that data changed.
    found = as_checkpointed(state_of(alone))
    assert found == as_checkpointed(state_of(expected.open().snapshot()))
    assert hinted_version(table.store) == result.version


def sidecars_of(table: TableBuilder) -> tuple[Any, ...]:
    opened = table.open().snapshot().checkpoint
    assert opened is not None
    return opened.sidecars


def paths_in(table: TableBuilder, name: str) -> list[str]:
    opened = table.open().snapshot().checkpoint
    assert opened is not None
    keys: Any = table.open().snapshot().map_keys()
    batches = opened.file_actions(keys=keys, only={f"{SIDECARS}/{name}"})
    return [p for batch in batches for p in (*batch.adds["path"], *batch.removes["path"])]


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
    plan = checkpoint.plan(snapshot, CheckpointOptions(actions_per_sidecar=10), now=NOW)
    filters = [each for each in store.requests if each.startswith(f"open {SIDECARS}")]
    store.requests.clear()
    result = checkpoint.apply(table.open(), plan, snapshot=snapshot)
    again = [each for each in store.requests if each.startswith(f"open {SIDECARS}")]
    assert (result.sidecars_taken_over, result.sidecars) == (4, 5)
    # One footer for the columns of all, and where places may match, the filters.
    assert len(filters) <= 1 + 4 and len(again) <= 4
    assert not [each for each in store.requests if each.startswith("read")][4:]


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
    table.commit([add("gone", size=7), remove("f000"), add("f000", size=5), remove("f001")])
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


def test_never_and_always_do_as_they_are_told() -> None:
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
    plan = checkpoint.plan(table.open().snapshot(version=1), options, now=NOW)
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


def newest(table: TableBuilder) -> str:
    return sorted(name for name in table.names() if ".checkpoint." in name)[-1]


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


def expiring(*more: Action) -> TableBuilder:
    """Tombstones expire after a day; those of the base are two days old, or one minute."""
    retention = {"delta.deletedFileRetentionDuration": "interval 1 days"}
    return based(*more, properties=retention)


AT = NOW + timedelta(hours=1)
LATE = EPOCH_MS + DAY_MS + 30 * MINUTE_MS
EARLY = EPOCH_MS


@pytest.mark.conformance("REC-04")
def test_a_sidecar_of_expired_tombstones_goes_unread() -> None:
    store = CountingStore()
    table = begun(
        *(remove(f"r{number}", deletionTimestamp=LATE) for number in range(10)),
        store=store,
        properties={"delta.deletedFileRetentionDuration": "interval 1 days"},
    )
    write(table.open(), per_sidecar=10, now=NOW)
    table.commit([add("new")])
    later = NOW + timedelta(days=2)
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
    table.commit([add("new")])
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


def test_sidecars_of_others_that_lack_statistics_are_not_taken_over() -> None:
    table = begun()

    def without_stats(columns: Any) -> Any:
        rows = columns["add"].to_pylist()
        for row in rows:
            if row is not None:
                del row["stats"]
        import pyarrow as pa

        kept = [f for f in columns.schema.field("add").type if f.name != "stats"]
        return columns.set_column(0, "add", pa.array(rows, pa.struct(kept)))

    table.v2_checkpoint(sidecars=2, reshape=without_stats)
    table.commit([add("new")])
    assert "have no stats " in planned(table).reason


@pytest.mark.conformance("CKPT-30")
def test_a_damaged_filter_costs_a_search_and_no_file() -> None:
    table = based()
    for each in sidecars_of(table):
        place = json.loads(each.tags[SUMMARY_TAG])["filter"]
        table.garbage(f"_sidecars/{each.path}", at=place[0], size=place[1])
    table.commit([remove("f005"), add("new")])
    assert incremental(table).sidecars_taken_over == 3


def rewritten_tags(table: TableBuilder, change: Any) -> None:
    """The manifest of the base, with other tags."""
    name = newest(table)
    lines = [json.loads(line) for line in table.read(name).splitlines()]
    for line in lines:
        if "sidecar" in line:
            said = json.loads(line["sidecar"]["tags"][SUMMARY_TAG])
            del said["check"]
            change(said)
            said["check"] = _check(line["sidecar"]["path"], said)
            line["sidecar"]["tags"][SUMMARY_TAG] = json.dumps(said)
    table.write(name, "".join(json.dumps(line) + "\n" for line in lines).encode())


@pytest.mark.conformance("CKPT-30")
@pytest.mark.parametrize("field", ["adds", "tombstones", "bytes"])
def test_sums_that_do_not_add_up_take_a_full_checkpoint(field: str) -> None:
    table = based()
    rewritten_tags(table, lambda said: said.update({field: said[field] + 1}))
    table.commit([add("new")])
    plan = planned(table)
    assert not plan.incremental and "do not add up" in plan.reason
    require_sound(table, write(table.open(), per_sidecar=10))


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
def test_a_sidecar_that_holds_something_else_takes_a_full_checkpoint() -> None:
    table = based()
    # The sums of all are right, those of each are not.
    signs = iter((1, -1, 0, 0))
    rewritten_tags(table, lambda said: said.update(bytes=said["bytes"] + next(signs)))
    table.commit([remove("f005"), remove("f015"), add("new")])
    result = write(table.open(), per_sidecar=10, incremental="always")
    assert not result.incremental
    assert "differ from its tags" in result.notes[-1]
    require_sound(table, result)


@pytest.mark.conformance("CRC-03")
def test_a_version_checksum_that_disagrees_takes_a_full_checkpoint() -> None:
    table = based()
    table.commit([remove("f005"), add("new")])
    table.checksum(1, {"numFiles": 41, "tableSizeBytes": 40})
    result = write(table.open(), per_sidecar=10)
    assert not result.incremental and "the version checksum has 41 of 40" in result.notes[-1]
    require_sound(table, result)
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
    plan = checkpoint.plan(snapshot, options, now=NOW)
    assert plan.incremental
    opened = snapshot.checkpoint
    assert opened is not None
    # One that is taken over: nothing in it was named.
    store.victim, store.when = opened.sidecar_paths[2], when
    result = checkpoint.apply(table.open(), plan, snapshot=snapshot)
    assert not store.victim, "it went in the middle of things"
    assert not result.incremental and "is gone" in " ".join(result.notes)
    require_sound(table, result)
    # What had become visible has been taken back.
    manifests = [
        name for name in table.names() if ".checkpoint." in name and name.startswith("0" * 19 + "1")
    ]
    assert manifests == [str(result.path).removeprefix(f"{LOG}/")]


@pytest.mark.conformance("CKPT-24")
def test_a_sidecar_of_another_size_is_not_taken_over() -> None:
    table = based()
    opened = table.open().snapshot().checkpoint
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
def test_a_file_that_stands_twice_is_found_across_the_base(root: str, second: Action) -> None:
    others = [add("x", dv=deletion_vector("other")), add("memory://elsewhere/y")]
    table = based(*others, store=MemoryStore(root))
    table.commit([second])
    for how in ("always", "never"):
        with pytest.raises(RefusedError, match=r"two (spellings|deletion vectors)"):
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
    assert "names a sidecar twice" in planned(table).reason


def test_a_plan_for_incremental_is_followed_by_whoever_applies_it() -> None:
    table = based()
    table.commit([remove("f005"), add("new")])
    plan = CheckpointPlan.from_json(planned(table).to_json())
    result = checkpoint.apply(Table(table.store), plan)
    assert result.incremental and SUMS_TAG in table.read(newest(table)).decode()
