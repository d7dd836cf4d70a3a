"""A checkpoint of any kind holds exactly the state of its version."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import RefusedError
from tests.support.logs.checkpointing import (
    KEEP_TOMBSTONES,
    LOG,
    SHAPES,
    State,
    as_checkpointed,
    files_of,
    on_disk,
    only,
    state_of,
    without_nulls,
    write,
)
from tests.support.suite.play import examples
from tests.support.tables.actions import (
    Action,
    add,
    cdc,
    commit_info,
    deletion_vector,
    domain,
    dv_id,
    features,
    metadata,
    remove,
    txn,
)
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

SUPPORTED = features("v2Checkpoint", "deletionVectors")
TABLE = metadata(configuration=KEEP_TOMBSTONES)
PARTITIONED = metadata(configuration=KEEP_TOMBSTONES, partitioned_by=["part"])
VECTORS = [
    None,
    deletion_vector(),
    deletion_vector(offset=40),
    deletion_vector("wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", storage_type="i"),
]


def table_of(*commits: list[Action]) -> TableBuilder:
    table = TableBuilder()
    for commit in commits:
        table.commit(commit)
    return table


def expected(table: TableBuilder) -> State:
    """What a checkpoint of the newest version must hold, from the builder's own replay."""
    state = State(protocol={}, metadata={}, txns={}, domains={}, live={}, tombstones={})
    for action in copy.deepcopy(table.state()):
        [(name, value)] = action.items()
        value = without_nulls(value)
        match name:
            case "protocol":
                state.protocol = value
            case "metaData":
                state.metadata = value
            case "txn":
                state.txns[value["appId"]] = value
            case "domainMetadata":
                state.domains[value["domain"]] = value
            case "add":
                state.live[value["path"], dv_id(value)] = value
            case "remove":
                state.tombstones[value["path"], dv_id(value)] = value
    return as_checkpointed(state)


def check(table: TableBuilder, kind: str, per_sidecar: int) -> None:
    """Writes the checkpoint, and reads it back without any other way to its version."""
    result = write(table.open(), kind, per_sidecar)
    assert result.status == "written" and result.path is not None
    snapshot = only(table.store, result.path, table.version).snapshot()
    assert snapshot.log.segment.base_version == table.version
    wanted = expected(table)
    assert state_of(snapshot) == wanted
    counts = (result.num_files, result.num_tombstones)
    assert counts == (len(wanted.live), len(wanted.tombstones))


every_shape = pytest.mark.parametrize(("kind", "per_sidecar"), SHAPES)

EVERY_FIELD = {
    "partitionValues": {"part": "x"},
    "size": 2**62,
    "modificationTime": EPOCH_MS,
    "tags": {"INSERTION_TIME": "1", "odd tag": ""},
    "baseRowId": 0,
    "defaultRowCommitVersion": 5,
}


@pytest.mark.conformance(
    "CKPT-03", "CKPT-04", "CKPT-05", "CKPT-07", "CKPT-09", "CKPT-19", "CKPT-21",
    "CKPT-22", "CKPT-23", "CKPT-24", "FILE-02", "DOM-02", "CDC-01", "REC-06", "PART-03",
)  # fmt: skip
@every_shape
def test_every_action_and_field_is_kept_and_nothing_else(kind: str, per_sidecar: int) -> None:
    table = table_of(
        [SUPPORTED, PARTITIONED, commit_info(), add("gone"), domain("removed", "x"), txn("app", 9)],
        [
            metadata(
                configuration={**KEEP_TOMBSTONES, "user.key": "ü\n"},
                partitioned_by=["part"],
                name="n",
                description="d",
                createdTime=EPOCH_MS,
            ),
            add("plain", partitionValues={"part": "2024-01-01"}),
            add("100%25%20ü+#?", stats='{"numRecords":3, "odd":[1]}', **EVERY_FIELD),
            add("v", dv=VECTORS[1], clusteringProvider="liquid", **EVERY_FIELD),
            add("w", dv=VECTORS[2], partitionValues={"part": None}),
            add("x", dv=VECTORS[3], partitionValues={"part": ""}),
            remove("gone", stats="{}", extendedFileMetadata=True, **EVERY_FIELD),
            remove("v", dv=VECTORS[2], deletionTimestamp=EPOCH_MS),
            remove("v"),
            cdc("_change_data/c"),
            domain("removed", "x", removed=True),
            domain("delta.rowTracking", '{"rowIdHighWaterMark":  5}'),
            domain("user.domain", "not JSON"),
            txn("app", 3, lastUpdated=EPOCH_MS),
            txn("other", 2**62),
            {"odd": {"add": 1}},
        ],
    )
    check(table, kind, per_sidecar)


@pytest.mark.conformance("CKPT-23", "CKPT-03", "LOG-07")
@every_shape
def test_a_table_without_files_has_a_checkpoint_too(kind: str, per_sidecar: int) -> None:
    check(table_of([SUPPORTED, TABLE]), kind, per_sidecar)


@pytest.mark.conformance("CKPT-09", "CKPT-19")
@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 1, "minWriterVersion": 2},
        {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": []},
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": []},
        {"minReaderVersion": 2, "minWriterVersion": 7, "writerFeatures": ["columnMapping"]},
    ],
)
def test_feature_lists_are_absent_empty_or_filled_as_in_the_log(protocol: Action) -> None:
    check(table_of([{"protocol": protocol}, TABLE, add("a")]), "classic", 0)


# Files may have two actions in one commit only if their deletion vectors differ.
PATHS = ["a", "b", "part=1/c%20d", "é\u2028f"]
TEXT = st.sampled_from(["", "x", "2024-01-01", "2024-01-01T00:00:00Z", "1.5", 'q"\\\n', "é"])
LONG = st.integers(-(2**63), 2**63 - 1)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "size": LONG,
    "modificationTime": LONG,
    "tags": st.dictionaries(st.sampled_from(["T1", "T2"]), TEXT, min_size=1),
    "stats": st.sampled_from(['{"numRecords":3}', "{", "", '{"a":"\\u2028"}']),
    "baseRowId": LONG,
    "defaultRowCommitVersion": LONG,
    "number": st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e9, 1e9).map(lambda x: x + 0.5),
    "long": LONG,
    "flag": st.booleans(),
    "dateLike": TEXT,
    "list": st.lists(TEXT | st.none(), max_size=3),
    "deep": st.fixed_dictionaries({"when": TEXT}, optional={"n": LONG, "m": st.lists(TEXT)}),
}


@st.composite
def file_action(draw: st.DrawFn, action: Any, path: str, dv: Action | None) -> Action:
    """An add or remove with any optional fields, and with fields that nobody knows."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True))
    fields = {name: draw(FIELDS[name]) for name in names}
    part = draw(st.none() | TEXT)
    made: Action = action(path, dv=dv, partitionValues={"part": part}, **fields)
    return made


@st.composite
def histories(draw: st.DrawFn) -> list[list[Action]]:
    """Commits as any writer could leave them."""
    commits: list[list[Action]] = [[SUPPORTED, PARTITIONED]]
    live: dict[str, Action | None] = {}
    for version in range(draw(st.integers(1, 5))):
        commit = [commit_info()] if version else commits.pop()
        for path in draw(st.lists(st.sampled_from(PATHS), unique=True)):
            vector = draw(st.sampled_from(VECTORS))
            if path in live and live[path] != vector:
                commit.append(draw(file_action(remove, path, live.pop(path))))
            stays = draw(st.integers(0, 2)) > 0
            commit.append(draw(file_action(add if stays else remove, path, vector)))
            if stays:
                live[path] = vector
            else:
                live.pop(path, None)
        for app in draw(st.sets(st.sampled_from(["app", "other"]))):
            commit.append(txn(app, draw(LONG), odd=draw(LONG)))
        for name in draw(st.sets(st.sampled_from(["delta.x", "user"]))):
            commit.append(domain(name, draw(TEXT), removed=draw(st.booleans())))
        commits.append(commit)
    return commits


@pytest.mark.conformance("CKPT-03", "CKPT-07", "CKPT-02", "LOG-06", "LOG-12", "REC-02", "STAT-05")
@settings(max_examples=examples(40), deadline=None)
@given(
    commits=histories(),
    shape=st.sampled_from(SHAPES),
    base=st.none() | st.integers(0, 4),
    second=st.sampled_from(SHAPES),
)
def test_any_history_is_kept_by_any_kind(
    commits: list[list[Action]], shape: tuple[str, int], base: int | None, second: tuple[str, int]
) -> None:
    table = table_of(*commits)
    before = [
        as_checkpointed(state_of(table.open().snapshot(version=version)))
        for version in range(table.version + 1)
    ]
    if base is not None and base < table.version:
        # So the next one is made of another checkpoint and the commits since.
        write(table.open(), *second, version=base)
    check(table, *shape)
    for version, state in enumerate(before):
        # Versions in between lie on either side of the checkpoints.
        assert as_checkpointed(state_of(table.open().snapshot(version=version))) == state


UNKNOWN = {
    "a scalar": [add("a", odd=1), remove("b", odd=True)],
    "a large whole number": [add("a", odd=2**63 - 1)],
    "text like a date": [add("a", odd="2024-01-01"), add("b", odd="x")],
    "text like a time": [add("a", odd="2024-01-01 00:00:00")],
    "an object": [add("a", odd={"x": 1, "when": "2024-01-01"}), add("b", odd={"y": [1.5]})],
    "a list": [add("a", odd=[]), add("b", odd=[{"x": 1}, None])],
    "whole and broken numbers": [add("a", odd=1), add("b", odd=1.5)],
    "in a deletion vector": [add("a", dv=deletion_vector(odd="x", deep={"n": 1})), add("b")],
    "a name with a dot": [add("a", **{"odd.name": 1, "odd": 2})],
    "in remove alone": [remove("a", odd={"x": [1]})],
    "in other actions": [
        txn("a", 1, odd=1),
        txn("b", 1, deep={"x": 1}),
        txn("c", 1, deep={"y": "2024-01-01"}),
        {"domainMetadata": {"domain": "d", "configuration": "", "removed": False, "odd": [1]}},
    ],
}


@pytest.mark.conformance("LOG-06", "CKPT-06", "CKPT-07")
@pytest.mark.parametrize("actions", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize(("kind", "per_sidecar"), SHAPES[:4] + [("v2-json", 0), ("v2-json", 1)])
def test_unknown_fields_survive(actions: list[Action], kind: str, per_sidecar: int) -> None:
    protocol = {"protocol": SUPPORTED["protocol"] | {"odd": {"x": 1}}}
    table_metadata = {"metaData": TABLE["metaData"] | {"odd": "2024-01-01"}}
    check(
        table_of([protocol, table_metadata], *([action] for action in actions)), kind, per_sidecar
    )


@pytest.mark.conformance("LOG-06")
@pytest.mark.parametrize("kind", ["classic", "v2-json", "v2-parquet"])
def test_an_unknown_field_that_turns_up_late_is_kept(kind: str) -> None:
    # The columns of the first sidecar are chosen before the field is met in the base: start over.
    table = table_of([SUPPORTED, TABLE, add("old", odd={"x": 1}), remove("older", late=1.5)])
    table.checkpoint()
    table.commit([add("new", odd={"y": 2}), remove("newer", late=1)])
    check(table, kind, 1)


HALF = {f"odd{number}": number for number in range(501)}
MANY = {f"odd{number}": number for number in range(1001)}

REFUSED = {
    "several types": [add("a", odd=1), add("b", odd="x")],
    "several types in remove": [remove("a", odd=True), remove("b", odd={"x": 1})],
    "exceeds 64 bits": [add("a", odd=2**64)],
    "rounded beside a fraction": [add("a", odd=2**53 + 1), add("b", odd=0.5)],
    "rounded below": [add("a", odd=[{"x": 2**53 + 1}]), add("b", odd=[{"x": 0.5}])],
    "an empty object": [add("a", odd={})],
    "an empty object below": [add("a", odd=[{"x": {}}])],
    "in other actions, several types": [txn("a", 1, odd=1), txn("b", 1, odd="x")],
    "in other actions, exceeds 64 bits": [txn("a", 1, odd=2**64)],
    "in other actions, rounded": [txn("a", 1, odd=2**53 + 1), txn("b", 1, odd=0.5)],
    "in other actions, an empty object": [txn("a", 1, odd={"x": {}})],
    "too many values": [add("a", odd=MANY)],
    "too many values of a few fields": [add("a", **dict.fromkeys("stuvwxyz", [HALF]))],
    "too many fields": [add("a", odd=HALF), add("b", **HALF), add("c", **MANY)],
    "in a deletion vector, too many fields": [add("a", dv=deletion_vector() | MANY)],
    "in other actions, too many values": [txn("a", 1, odd=HALF, other=MANY)],
}


@pytest.mark.conformance("LOG-06")
@pytest.mark.parametrize("apart", [False, True], ids=["in commits", "in a checkpoint and a commit"])
@pytest.mark.parametrize("actions", REFUSED.values(), ids=REFUSED)
def test_unknown_fields_that_cannot_be_copied_are_refused(
    actions: list[Action], apart: bool
) -> None:
    table = table_of([SUPPORTED, TABLE], [actions[0]])
    if apart and len(actions) > 1:
        table.checkpoint()
    for action in actions[1:]:
        table.commit([action])
    before = files_of(table.store)
    with pytest.raises(RefusedError) as refusal:
        write(table.open())
    assert "unknown field" in str(refusal.value) and refusal.value.remedy
    assert files_of(table.store) == before


@pytest.mark.conformance("LOG-13")
@every_shape
def test_no_file_names_the_root_so_that_a_copy_is_the_same_table(
    tmp_path: Any, kind: str, per_sidecar: int
) -> None:
    built = table_of([SUPPORTED, TABLE, add("a"), add("b"), add("c")], [remove("a")])
    root = on_disk(built.store, tmp_path / "a-root-that-stands-out")
    table = TableBuilder(root)
    write(table.open(), kind, per_sidecar)
    for path, data in files_of(table.store).items():
        assert b"stands-out" not in data, path
    moved = TableBuilder(on_disk(table.store, tmp_path / "elsewhere"))
    assert state_of(moved.open().snapshot()) == expected(built)
    assert moved.open().snapshot().log.segment.base_version == 1


def test_a_checkpoint_of_an_older_version_leaves_newer_ones_alone() -> None:
    table = table_of([SUPPORTED, TABLE, add("a")], [add("b")], [remove("a")])
    before = files_of(table.store)
    result = write(table.open(), version=1)
    assert result.path == f"{LOG}/00000000000000000001.checkpoint.parquet"
    assert files_of(table.store).items() >= before.items()
    assert table.open().snapshot().live_files()["path"].to_pylist() == ["b"]
