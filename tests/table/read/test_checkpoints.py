"""Checkpoints of every kind and in every state of damage: read right, or skipped and reported.

Every damage is met twice: in a log that has all its commits, where the answer must not change, and
in one where the checkpoint is all there is, where the error must tell everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suite.play import examples
from tests.properties.model import State, replay, state_of
from tests.table.failures import fails

from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError
from delta_maintenance.protocol.delta_log.file_names import Encoding
from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.testing.actions import (
    OMIT,
    Action,
    add,
    checkpoint_metadata,
    commit_info,
    deletion_vector,
    domain,
    features,
    metadata,
    protocol,
    remove,
    sidecar,
    txn,
)
from delta_maintenance.testing.table_builder import (
    LOG,
    UUID,
    TableBuilder,
    log_table,
    parquet_bytes,
)

CLASSIC = f"{4:020d}.checkpoint.parquet"
MANIFEST = f"{4:020d}.checkpoint.{UUID}.json"
Write = Callable[[TableBuilder], list[str]]


def new(path: str, **fields: Any) -> Action:
    """An add to the partition `x`."""
    return add(path, **({"partitionValues": {"part": "x"}} | fields))


def busy(store: MemoryStore | None = None) -> TableBuilder:
    """Five commits with every action that a checkpoint holds, and one behind them."""
    table = TableBuilder(store)
    table.commit(
        [
            commit_info("CREATE"),
            features("deletionVectors", "v2Checkpoint"),
            metadata(partitioned_by=["part"], configuration={"k": "v"}),
        ]
    )
    full: Action = {
        "size": 7,
        "stats": '{"numRecords":2}',
        "tags": {"t": "1"},
        "partitionValues": {"part": "x"},
        "baseRowId": 5,
        "defaultRowCommitVersion": 1,
        "clusteringProvider": "liquid",
        "shiny": {"n": [1, 2]},
    }
    table.commit([add("a", **full), add("b", dv=deletion_vector(), **full), txn("app", 9)])
    table.commit([new("c"), new("d"), domain("user", "x"), domain("gone", "y")])
    table.commit([remove("c"), remove("b", dv=deletion_vector()), new("b"), txn("app", 4)])
    table.commit([new("e"), new("f"), new("g"), domain("gone", "y", removed=True)])
    table.commit([remove("a"), new("h"), txn("app", 5)])
    return table


def expected(table: TableBuilder, version: int = 5) -> State:
    return replay([table.commits[number] for number in range(version + 1)])


def leave_only_the_checkpoint(table: TableBuilder) -> None:
    """Drops every commit that the checkpoint of version 4 makes superfluous."""
    table.drop(*(f"{version:020d}.json" for version in range(5)))


def check_falls_back(table: TableBuilder, problem: str, *, name: str = CLASSIC) -> None:
    """The damaged checkpoint `name` changes no answer, and is the error where it is needed."""
    for version in (4, 5):
        snapshot = table.open().snapshot(version=version)
        assert state_of(snapshot) == expected(table, version)
        assert snapshot.checkpoint is None
        [warning] = snapshot.warnings
        assert problem in warning
        assert name in warning
    leave_only_the_checkpoint(table)
    with fails(UnusableCheckpointError, problem, table=table, version=4, file=f"{LOG}/{name}"):
        table.open().snapshot()


KINDS: dict[str, Write] = {
    "classic": lambda table: table.checkpoint(4),
    "row groups of 1": lambda table: table.checkpoint(4, rows_per_group=1),
    "parts": lambda table: table.checkpoint(4, parts=3),
    "more parts than rows": lambda table: table.checkpoint(4, parts=40),
    "json": lambda table: table.v2_checkpoint(4),
    "json with sidecar": lambda table: table.v2_checkpoint(4, sidecars=1),
    "json with sidecars": lambda table: table.v2_checkpoint(4, sidecars=3),
    "json with empty sidecars": lambda table: table.v2_checkpoint(4, sidecars=30),
    "parquet": lambda table: table.v2_checkpoint(4, encoding="parquet"),
    "parquet with sidecars": lambda table: table.v2_checkpoint(4, encoding="parquet", sidecars=2),
    "v2 by classic name": lambda table: table.v2_checkpoint(4, uuid=None),
    "v2 by classic name with sidecars": lambda table: table.v2_checkpoint(4, uuid=None, sidecars=2),
}


@pytest.mark.conformance("CKPT-15", "CKPT-19", "CKPT-21", "CKPT-23", "CKPT-07")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_checkpoint_gives_the_state_without_the_commits_before_it(kind: str) -> None:
    table = busy()
    KINDS[kind](table)
    leave_only_the_checkpoint(table)

    for version in (4, 5):
        snapshot = table.open().snapshot(version=version)
        assert state_of(snapshot) == expected(table, version)
        assert snapshot.warnings == ()
        assert snapshot.checkpoint is not None
        assert snapshot.checkpoint.is_v2 == (
            kind not in ("classic", "row groups of 1") and "parts" not in kind
        )


@pytest.mark.conformance("CKPT-23")
@pytest.mark.parametrize("encoding", ["json", "parquet"])
def test_an_empty_table_has_a_manifest_without_sidecars(encoding: Encoding) -> None:
    table = TableBuilder()
    table.commit([features("v2Checkpoint"), metadata()])
    table.v2_checkpoint(encoding=encoding)
    snapshot = table.open().snapshot()
    assert snapshot.checkpoint is not None
    assert (snapshot.counts.num_files, snapshot.live_files().num_rows) == (0, 0)


@pytest.mark.conformance("CKPT-02")
def test_the_newest_checkpoint_not_newer_than_the_version_is_the_base() -> None:
    table = busy()
    for version in (1, 3, 5):
        table.checkpoint(version)
    bases = {
        version: table.open().snapshot(version=version).segment.base_version for version in range(6)
    }
    assert bases == {0: -1, 1: 1, 2: 1, 3: 3, 4: 3, 5: 5}


@pytest.mark.conformance("CKPT-16")
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_a_set_of_parts_counts_only_if_every_part_is_there(parts: int) -> None:
    for kept in range(parts):
        for present in itertools.combinations(range(parts), kept):
            table = busy()
            names = table.checkpoint(4, parts=parts)
            table.drop(*(name for at, name in enumerate(names) if at not in present))
            snapshot = table.open().snapshot()
            assert snapshot.checkpoint is None
            assert state_of(snapshot) == expected(table)
            leave_only_the_checkpoint(table)
            with fails(
                CorruptTableError, "commit 0 is missing", table=table, version=5,
                file=f"{LOG}/{0:020d}.json",
            ):  # fmt: skip
                table.open().snapshot()


@pytest.mark.conformance("CKPT-16")
def test_parts_of_two_sets_do_not_complete_each_other() -> None:
    table = busy()
    first, second = table.checkpoint(4, parts=2), table.checkpoint(4, parts=3)
    table.drop(first[0], second[2])
    assert table.open().snapshot().checkpoint is None
    assert state_of(table.open().snapshot()) == expected(table)


@pytest.mark.conformance("CKPT-16", "CKPT-32")
@pytest.mark.parametrize("part", range(3))
def test_an_empty_or_cut_part_makes_its_set_unusable(part: int) -> None:
    table = busy()
    names = table.checkpoint(4, parts=3)
    table.zero(names[part])
    assert state_of(table.open().snapshot()) == expected(table)
    assert table.open().snapshot().checkpoint is None

    table = busy()
    names = table.checkpoint(4, parts=3)
    table.truncate(names[part], -5)
    check_falls_back(table, names[part], name=names[0])


@pytest.mark.conformance("CKPT-32")
def test_a_checkpoint_of_no_bytes_does_not_exist() -> None:
    table = busy()
    table.zero(table.checkpoint(4)[0])
    snapshot = table.open().snapshot()
    assert (snapshot.checkpoint, state_of(snapshot)) == (None, expected(table))
    leave_only_the_checkpoint(table)
    with fails(CorruptTableError, CLASSIC, table=table, version=5, file=f"{LOG}/{0:020d}.json"):
        table.open().snapshot()


@pytest.mark.conformance("CKPT-32")
def test_a_log_of_nothing_but_an_incomplete_checkpoint_is_corrupt() -> None:
    table = busy()
    names = table.checkpoint(4, parts=2)
    table.drop(names[1], *(f"{version:020d}.json" for version in range(6)))
    with fails(
        CorruptTableError, "incomplete checkpoint", table=table, version=None,
        file=f"{LOG}/{names[0]}",
    ):  # fmt: skip
        table.open().snapshot()


@pytest.mark.conformance("CKPT-32")
@pytest.mark.parametrize("keep", [1, 4, 100, -1, -4, -8, -9, -200])
def test_a_cut_checkpoint_is_passed_over(keep: int) -> None:
    table = busy()
    table.truncate(table.checkpoint(4)[0], keep)
    check_falls_back(table, CLASSIC)


@pytest.mark.conformance("CKPT-32")
@pytest.mark.parametrize(("at", "size"), [(-4, 4), (-8, 4), (-300, 290), (0, None), (-60, 20)])
def test_garbage_in_the_footer_is_passed_over(at: int, size: int | None) -> None:
    table = busy()
    table.garbage(table.checkpoint(4)[0], at=at, size=size)
    check_falls_back(table, CLASSIC)


def damage_pages(table: TableBuilder, name: str, leaf: str) -> None:
    """Overwrites the pages of one leaf column of a Parquet file, and leaves its footer alone."""
    file = pa.parquet.ParquetFile(pa.BufferReader(table.read(name)))
    for group in range(file.metadata.num_row_groups):
        for index in range(file.metadata.num_columns):
            chunk = file.metadata.row_group(group).column(index)
            if chunk.path_in_schema == leaf:
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                table.garbage(name, at=start, size=chunk.total_compressed_size)


@pytest.mark.conformance("CKPT-32")
@pytest.mark.parametrize("leaf", ["protocol.minReaderVersion", "txn.appId", "metaData.id"])
def test_damaged_pages_of_small_actions_are_found_on_opening(leaf: str) -> None:
    table = busy()
    damage_pages(table, table.checkpoint(4)[0], leaf)
    check_falls_back(table, "cannot be used")


@pytest.mark.conformance("CKPT-32")
@pytest.mark.parametrize("leaf", ["add.path", "add.size", "add.stats", "remove.path"])
@pytest.mark.parametrize("sidecars", [None, 2])
def test_damaged_pages_of_files_are_found_on_the_way_and_read_from_elsewhere(
    leaf: str, sidecars: int | None
) -> None:
    table = busy()
    names = table.checkpoint(4) if sidecars is None else table.v2_checkpoint(4, sidecars=sidecars)
    damage_pages(table, names[-1], leaf)
    snapshot = table.open().snapshot()
    assert snapshot.checkpoint is not None

    with pytest.raises(UnusableCheckpointError) as failure:
        state_of(snapshot)
    other = snapshot.avoiding(failure.value)

    assert other.checkpoint is None
    assert state_of(other) == expected(table)
    assert names[0] in " ".join(other.warnings)
    live = sorted(snapshot.live_files()["path"].to_pylist())
    assert live == sorted(path for path, _ in expected(table).live)
    assert snapshot.counts.num_files == len(live)
    assert snapshot.tombstones().num_rows == len(expected(table).tombstones)
    batches = [batch["path"].to_pylist() for batch in snapshot.live_file_batches()]
    assert sorted(path for batch in batches for path in batch) == live

    leave_only_the_checkpoint(table)
    snapshot = table.open().snapshot()
    with fails(
        UnusableCheckpointError, "cannot be used", table=table, version=4,
        file=f"{LOG}/{names[0]}",
    ):  # fmt: skip
        snapshot.live_files()
        snapshot.tombstones()
        state_of(snapshot)


@pytest.mark.conformance("CKPT-32")
@settings(max_examples=examples(60))
@given(at=st.integers(0, 10**6), size=st.integers(1, 64), kind=st.sampled_from(sorted(KINDS)))
def test_no_damage_raises_anything_but_an_error_of_this_library(
    at: int, size: int, kind: str
) -> None:
    table = busy()
    names = KINDS[kind](table)
    name = names[at % len(names)]
    table.garbage(name, at=at % len(table.read(name)), size=size)
    leave_only_the_checkpoint(table)
    try:
        snapshot = table.open().snapshot()
        state_of(snapshot)
        snapshot.live_files()
    except DeltaMaintenanceError as error:
        assert isinstance(error, CorruptTableError) or error.exit_status == 3
        assert error.remedy or error.exit_status == 3


@pytest.mark.conformance("CKPT-27")
def test_of_two_checkpoints_of_one_version_a_damaged_one_gives_way_to_the_other() -> None:
    kinds = [KINDS["classic"], KINDS["parts"], KINDS["json with sidecars"]]
    for first, second in itertools.permutations(kinds, 2):
        table = busy()
        first(table), second(table)
        chosen = table.open().snapshot().checkpoint
        assert chosen is not None
        table.truncate(chosen.files.name, -3)
        leave_only_the_checkpoint(table)

        snapshot = table.open().snapshot()

        assert snapshot.checkpoint is not None
        assert snapshot.checkpoint.files.name != chosen.files.name
        assert state_of(snapshot) == expected(table)
        assert len(snapshot.warnings) == 1


@pytest.mark.conformance("CKPT-32")
def test_an_older_checkpoint_is_the_base_where_the_newest_is_damaged() -> None:
    table = busy()
    table.checkpoint(2)
    table.truncate(table.checkpoint(4)[0], 10)
    table.drop(f"{0:020d}.json", f"{1:020d}.json", f"{2:020d}.json")
    snapshot = table.open().snapshot()
    assert snapshot.segment.base_version == 2
    assert state_of(snapshot) == expected(table)


@pytest.mark.conformance("LOG-07", "CKPT-32")
@pytest.mark.parametrize("missing", ["protocol", "metaData"])
def test_a_readable_checkpoint_without_protocol_or_metadata_is_an_error(missing: str) -> None:
    table = busy()
    table.checkpoint(4, actions=[a for a in table.state(4) if missing not in a])
    with fails(
        CorruptTableError, f"the snapshot has no {missing}", table=table, version=5,
        file=f"{LOG}/{CLASSIC}",
    ):  # fmt: skip
        table.open().snapshot()


@pytest.mark.parametrize(
    "twice", [protocol(), metadata(), txn("app", 1), domain("user", "z")], ids=lambda a: [*a][0]
)
def test_a_checkpoint_with_two_actions_of_one_key_is_passed_over(twice: Action) -> None:
    table = busy()
    table.checkpoint(4, actions=[*table.state(4), twice])
    check_falls_back(table, "two actions for")


MANIFESTS: dict[str, tuple[Callable[[list[Action]], Sequence[Action]], str]] = {
    "none": (lambda rest: rest, "without checkpointMetadata"),
    "two": (
        lambda rest: [checkpoint_metadata(4), checkpoint_metadata(4), *rest],
        "several checkpointMetadata",
    ),
    "version": (lambda rest: [checkpoint_metadata(3), *rest], "speaks of version 3"),
    "draft": (
        lambda rest: [{"checkpointMetadata": {"flavor": "flat"}}, *rest],
        "pre-release V2 checkpoint",
    ),
    "mixed": (
        lambda rest: [checkpoint_metadata(4), *rest, add("inline")],
        "both inline and in sidecars",
    ),
    "mixed remove": (
        lambda rest: [checkpoint_metadata(4), *rest, remove("inline")],
        "both inline and in sidecars",
    ),
    "no path": (
        lambda rest: [checkpoint_metadata(4), *rest, {"sidecar": {"sizeInBytes": 1}}],
        "sidecar is missing its path",
    ),
    "draft sidecar": (
        lambda rest: [checkpoint_metadata(4), *rest, {"sidecar": {"fileName": "x"}}],
        "pre-release V2 checkpoint",
    ),
    "gone": (lambda rest: [checkpoint_metadata(4), *rest, sidecar("gone.parquet", 1)], "is gone"),
}


@pytest.mark.conformance("CKPT-21", "CKPT-23", "CKPT-24", "DRAFT-04")
@pytest.mark.parametrize("damage", MANIFESTS)
def test_a_manifest_that_breaks_a_rule_is_passed_over(damage: str) -> None:
    change, problem = MANIFESTS[damage]
    table = busy()
    [name, *sidecars] = table.v2_checkpoint(4, sidecars=2)
    others = [a for a in table.state(4) if not a.keys() & {"add", "remove"}]
    paths = [sidecar(path.rpartition("/")[2], len(table.read(path))) for path in sidecars]
    table.manifest(name, change([*others, *paths]))
    check_falls_back(table, problem, name=name)


@pytest.mark.conformance("CKPT-21", "CKPT-26")
@pytest.mark.parametrize("extra", [checkpoint_metadata(3), sidecar("x.parquet", 1)], ids=str)
def test_a_classic_name_does_not_excuse_wrong_v2_actions(extra: Action) -> None:
    table = busy()
    table.checkpoint(4, actions=[*table.state(4), extra])
    problem = (
        "speaks of version 3" if "checkpointMetadata" in extra else "with sidecars but without"
    )
    check_falls_back(table, problem)


@pytest.mark.conformance("CKPT-21")
def test_a_multi_part_checkpoint_is_never_v2() -> None:
    table = busy()
    names = table.checkpoint(4, parts=2, actions=[*table.state(4), checkpoint_metadata(4)])
    check_falls_back(table, "a multi-part checkpoint with checkpointMetadata", name=names[0])


@pytest.mark.conformance("CKPT-26")
def test_a_uuid_name_with_v1_content_is_passed_over() -> None:
    for encoding in ("json", "parquet"):
        table = busy()
        name = table.manifest(f"{4:020d}.checkpoint.{UUID}.{encoding}", table.state(4))
        check_falls_back(table, "without checkpointMetadata", name=name)


JSON_DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda data: data[: len(data) // 2], "not a line of JSON"),
    "cut in the last line": (lambda data: data[:-5], "not a line of JSON"),
    "garbage": (lambda _: b"\x00\x01garbage", "not a line of JSON"),
    "not UTF-8": (lambda data: data + b"\xff\n", "is not UTF-8"),
    "blank": (lambda _: b"\n\n", "the file is empty"),
}


@pytest.mark.conformance("CKPT-32", "CKPT-21")
@pytest.mark.parametrize("damage", JSON_DAMAGE)
@pytest.mark.parametrize("sidecars", [0, 2])
def test_a_damaged_json_manifest_is_passed_over(damage: str, sidecars: int) -> None:
    change, problem = JSON_DAMAGE[damage]
    table = busy()
    [name, *_] = table.v2_checkpoint(4, sidecars=sidecars)
    table.write(name, change(table.read(name)))
    snapshot = table.open().snapshot()
    if snapshot.checkpoint is not None:
        with pytest.raises(UnusableCheckpointError) as failure:
            state_of(snapshot)
        snapshot = snapshot.avoiding(failure.value)
    assert state_of(snapshot) == expected(table)
    leave_only_the_checkpoint(table)
    with fails(UnusableCheckpointError, problem, table=table, version=4, file=f"{LOG}/{name}"):
        state_of(table.open().snapshot())


@pytest.mark.conformance("CKPT-24")
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "garbage"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_or_damaged_sidecar_is_found_on_opening(damage: str, which: int) -> None:
    table = busy()
    [name, *sidecars] = table.v2_checkpoint(4, sidecars=2)
    match damage:
        case "gone":
            table.drop(sidecars[which])
        case "empty":
            table.zero(sidecars[which])
        case "cut":
            table.truncate(sidecars[which], -6)
        case "garbage":
            table.garbage(sidecars[which])
    check_falls_back(table, sidecars[which], name=name)


SPELLINGS = {
    "bare": "{name}",
    "encoded": "{encoded}",
    "relative to the log": "_sidecars/{name}",
    "relative to the table": "_delta_log/_sidecars/{name}",
    "absolute": "{root}/_delta_log/_sidecars/{name}",
    "encoded and absolute": "{root}/_delta_log/_sidecars/{encoded}",
    "encoded folder": "{root}/_delta_log/%5Fsidecars/{encoded}",
}


@pytest.mark.conformance("CKPT-24")
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    "root", ["memory://sidecar-spellings/a/table", "memory://sidecar-spellings"]
)
def test_a_sidecar_may_be_spelt_in_any_way_that_leads_to_its_folder(
    spelling: str, root: str
) -> None:
    name = "über 100%.parquet"
    table = busy(MemoryStore(f"{root}/{spelling.replace(' ', '-')}"))
    path = SPELLINGS[spelling].format(
        name=name.replace("%", "%25"),
        encoded="%C3%BCber%20100%25.parquet",
        root=table.store.root,
    )
    write_with_sidecar(table, name, path)
    leave_only_the_checkpoint(table)
    assert state_of(table.open().snapshot()) == expected(table)


def write_with_sidecar(table: TableBuilder, name: str | None, path: str) -> str:
    """A V2 checkpoint whose only sidecar is written as `name` and referred to as `path`."""
    files = [a for a in table.state(4) if a.keys() & {"add", "remove"}]
    others = [a for a in table.state(4) if not a.keys() & {"add", "remove"}]
    data = parquet_bytes(log_table(files).select(["add", "remove"]))
    if name is not None:
        table.write(f"_sidecars/{name}", data)
    return table.manifest(MANIFEST, [checkpoint_metadata(4), sidecar(path, len(data)), *others])


@pytest.mark.conformance("CKPT-24")
@pytest.mark.parametrize(
    "path",
    [
        "../x.parquet",
        "..",
        ".",
        "",
        "%2E%2E",
        "a%2F..%2F..%2Fx.parquet",
        "sub/x.parquet",
        "_sidecars/../x.parquet",
        "_sidecars/",
        "/x.parquet",
        "/elsewhere/_delta_log/_sidecars/x.parquet",
        "file:///elsewhere/_delta_log/_sidecars/x.parquet",
        "memory://other/table/_delta_log/_sidecars/x.parquet",
        "s3://bucket/table/_delta_log/_sidecars/x.parquet",
        "x%00.parquet",
        "x%5Cy.parquet",
        "x%FF.parquet",
    ],
)
def test_a_sidecar_outside_the_folder_is_never_opened(path: str) -> None:
    table = busy(MemoryStore("memory://outside/table"))
    name = write_with_sidecar(table, None, path)
    check_falls_back(table, "lies outside _delta_log/_sidecars", name=name)


@pytest.mark.conformance("CKPT-30")
def test_tags_of_manifest_and_sidecars_are_not_believed() -> None:
    table = busy()
    [name, *sidecars] = table.v2_checkpoint(4, sidecars=2)
    others = [a for a in table.state(4) if not a.keys() & {"add", "remove"}]
    lies = {"numOfAddFiles": "99", "sidecarFileSchema": "{", "n": None}
    for tags in (lies, {}, None):
        told = [
            sidecar(path.rpartition("/")[2], 99, tags=tags, type="fileaction", modificationTime=0)
            for path in sidecars
        ]
        table.manifest(name, [checkpoint_metadata(4, tags=tags), *told, *others])
        assert state_of(table.open().snapshot()) == expected(table)
        assert table.open().snapshot().warnings == ()


@pytest.mark.conformance("CKPT-05", "REC-03")
@pytest.mark.parametrize("kind", ["classic", "json", "parquet"])
def test_removed_domains_in_a_checkpoint_are_not_shown(kind: str) -> None:
    table = TableBuilder()
    table.commit([features("v2Checkpoint"), metadata(), domain("d", "old"), domain("e", "x")])
    table.commit([domain("d", "old", removed=True)])
    actions = table.reconciled(0, 1)
    if kind == "classic":
        table.checkpoint(1, actions=actions)
    else:
        table.manifest(f"{1:020d}.checkpoint.{UUID}.{kind}", [checkpoint_metadata(1), *actions])
    assert table.open().snapshot().domain_metadata == {"e": "x"}
    table.commit([domain("d", "new")])
    assert table.open().snapshot().domain_metadata == {"d": "new", "e": "x"}


def _without(column: str, *children: str) -> Callable[[pa.Table], pa.Table]:
    def reshape(table: pa.Table) -> pa.Table:
        array = table[column].combine_chunks()
        kept = [field for field in array.type if field.name not in children]
        return _replaced(table, column, [(f.name, pc.struct_field(array, f.name)) for f in kept])

    return reshape


def _cast(column: str, child: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    def reshape(table: pa.Table) -> pa.Table:
        array = table[column].combine_chunks()
        return _replaced(
            table,
            column,
            [
                (f.name, pc.struct_field(array, f.name).cast(kind if f.name == child else f.type))
                for f in array.type
            ],
        )

    return reshape


def _replaced(table: pa.Table, column: str, children: list[tuple[str, pa.Array]]) -> pa.Table:
    array = table[column].combine_chunks()
    fields = [pa.field(name, child.type) for name, child in children]
    made = pa.StructArray.from_arrays(
        [child for _, child in children], fields=fields, mask=pc.is_null(array)
    )
    return table.set_column(table.column_names.index(column), column, made)


def _with_child(column: str, name: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    def reshape(table: pa.Table) -> pa.Table:
        array = table[column].combine_chunks()
        children = [(f.name, pc.struct_field(array, f.name)) for f in array.type]
        made = value if isinstance(value, pa.Array) else pa.array([value] * len(array))
        return _replaced(table, column, [(name, made), *children])

    return reshape


LARGE_MAP = pa.map_(pa.large_string(), pa.large_string())
SAME_STATE: dict[str, Callable[[pa.Table], pa.Table]] = {
    "columns in another order": lambda table: table.select(list(reversed(table.column_names))),
    "an unknown column": lambda table: table.append_column(
        "shiny", pa.array([{"x": 1}] * table.num_rows)
    ),
    "a commitInfo column": lambda table: table.append_column(
        "commitInfo", pa.array([{"operation": "LIE"}] * table.num_rows)
    ),
    "a cdc column": lambda table: table.append_column(
        "cdc", pa.array([{"path": "cdc"}] * table.num_rows)
    ),
    "an empty draft mark": lambda table: table.append_column(
        "rowIdHighWaterMark",
        pa.array([{"value": None}] * table.num_rows, pa.struct([("value", pa.int64())])),
    ),
    "no domain column where there is none": lambda table: table,
    "large strings": _cast("add", "path", pa.large_string()),
    "binary strings": _cast("add", "path", pa.binary()),
    "large strings elsewhere": _cast("txn", "appId", pa.large_string()),
    "large maps": _cast("add", "partitionValues", LARGE_MAP),
    "a narrow size": _cast("add", "size", pa.int32()),
    "a wide version": _cast("protocol", "minReaderVersion", pa.int64()),
    "a narrow time": _cast("remove", "deletionTimestamp", pa.int32()),
    "remove.stats and remove.tags": lambda table: _with_child("remove", "tags", "t")(
        _with_child("remove", "stats", "{}")(table)
    ),
    "numbers as text": _cast("add", "size", pa.string()),
}


@pytest.mark.conformance("CKPT-04", "CKPT-06", "CKPT-08")
@pytest.mark.parametrize("shape", SAME_STATE)
def test_columns_may_come_in_any_order_width_and_company(shape: str) -> None:
    table = busy()
    table.checkpoint(4, reshape=SAME_STATE[shape])
    leave_only_the_checkpoint(table)
    plain = busy().open().snapshot()

    snapshot = table.open().snapshot()

    for view in ("live_files", "tombstones"):
        assert _sorted(getattr(snapshot, view)()) == _sorted(getattr(plain, view)())
    assert snapshot.counts == plain.counts
    assert (snapshot.txns, snapshot.domain_metadata) == (plain.txns, plain.domain_metadata)
    assert snapshot.state.draft_high_water_mark is None
    assert snapshot.protocol == plain.protocol
    assert snapshot.metadata == plain.metadata


def _sorted(files: pa.Table) -> list[Action]:
    rows: list[Action] = files.to_pylist()
    return sorted(rows, key=lambda row: (row["path"], row["dv"] or ""))


@pytest.mark.conformance("CKPT-06", "FILE-11")
@pytest.mark.parametrize("column", ["add", "remove"])
def test_every_child_column_but_the_path_may_be_missing(column: str) -> None:
    children = [field.name for field in log_table([]).schema.field(column).type]
    for lacking in [*([child] for child in children if child != "path"), children[1:]]:
        table = busy()
        table.checkpoint(4, reshape=_without(column, *lacking))
        snapshot = table.open().snapshot()
        assert snapshot.checkpoint is not None
        paths = {path for path, _ in expected(table).live}
        if "deletionVector" not in lacking:
            assert set(snapshot.live_files()["path"].to_pylist()) == paths
        assert snapshot.tombstones().num_rows
        assert snapshot.counts.num_files
        assert list(snapshot.scan())


@pytest.mark.conformance("CKPT-06")
@pytest.mark.parametrize("column", ["txn", "domainMetadata"])
def test_a_column_of_an_action_that_never_occurs_may_be_missing(column: str) -> None:
    table = TableBuilder()
    table.commit([protocol(), metadata(), add("a")])
    table.checkpoint(0, reshape=lambda rows: rows.drop_columns([column]))
    snapshot = table.open().snapshot()
    assert snapshot.checkpoint is not None
    assert (snapshot.txns, snapshot.domain_metadata) == ({}, {})
    assert snapshot.live_files()["path"].to_pylist() == ["a"]


def _with_null_paths(table: pa.Table) -> pa.Table:
    return _with_child("add", "path", pa.nulls(table.num_rows, pa.string()))(
        _without("add", "path")(table)
    )


def _with_adds_of_text(table: pa.Table) -> pa.Table:
    at = table.column_names.index("add")
    return table.set_column(at, "add", pa.array(["x"] * table.num_rows))


def _with_statistics_as_structs(table: pa.Table) -> pa.Table:
    return _with_child("add", "stats", {"numRecords": 1})(_without("add", "stats")(table))


def _with_broken_text(column: str, child: str) -> Callable[[pa.Table], pa.Table]:
    def reshape(table: pa.Table) -> pa.Table:
        texts = pc.struct_field(table[column].combine_chunks(), child)
        _, offsets, _ = texts.fill_null("").buffers()
        size = sum(len(text or "") for text in texts.to_pylist())
        broken = pa.StringArray.from_buffers(len(texts), offsets, pa.py_buffer(b"\xff" * size))
        return _with_child(column, child, broken)(_without(column, child)(table))

    return reshape


UNUSABLE: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "adds without path": (_without("add", "path"), "column add without paths"),
    "removes without path": (_without("remove", "path"), "column remove without paths"),
    "adds that are text": (_with_adds_of_text, "column add without paths"),
    "null paths": (_with_null_paths, "without its path"),
    "paths that are no UTF-8": (_with_broken_text("add", "path"), "UTF8"),
    "statistics that are no UTF-8": (_with_broken_text("add", "stats"), "UTF8"),
    "statistics that are structs": (_with_statistics_as_structs, "cannot be used"),
}


@pytest.mark.conformance("CKPT-06", "CKPT-32")
@pytest.mark.parametrize("shape", UNUSABLE)
def test_columns_that_make_no_sense_are_passed_over(shape: str) -> None:
    reshape, problem = UNUSABLE[shape]
    table = busy()
    table.checkpoint(4, reshape=reshape)
    live = sorted(path for path, _ in expected(table).live)
    assert sorted(table.open().snapshot().live_files()["path"].to_pylist()) == live
    leave_only_the_checkpoint(table)
    snapshot = table.open().snapshot()
    with fails(UnusableCheckpointError, problem, table=table, version=4, file=f"{LOG}/{CLASSIC}"):
        snapshot.live_files()


@pytest.mark.conformance("CKPT-32")
@pytest.mark.parametrize(("column", "child"), [("txn", "appId"), ("metaData", "id")])
def test_small_actions_that_are_no_utf_8_are_passed_over(column: str, child: str) -> None:
    table = busy()
    table.checkpoint(4, reshape=_with_broken_text(column, child))
    check_falls_back(table, "utf-8")


def test_parsed_statistics_tell_the_number_of_records_where_the_text_does_not() -> None:
    table = TableBuilder()
    text: Action = {"stats": '{"numRecords":1}'}
    table.commit([protocol(), metadata(), add("both", **text), add("parsed"), add("text", **text)])
    parsed = {"both": 2, "parsed": 3}

    def with_parsed(rows: pa.Table) -> pa.Table:
        paths = pc.struct_field(rows["add"].combine_chunks(), "path").to_pylist()
        counts = [{"numRecords": parsed.get(path)} for path in paths]
        return _with_child("add", "stats_parsed", pa.array(counts))(rows)

    table.checkpoint(reshape=with_parsed)
    files = table.open().snapshot().live_files()
    counts = dict(zip(files["path"].to_pylist(), files["num_records"].to_pylist(), strict=True))
    assert counts == {"both": 1, "parsed": 3, "text": 1}


@pytest.mark.conformance("CKPT-09", "FEAT-04")
@pytest.mark.parametrize(
    "action",
    [
        protocol(1, 2),
        protocol(1, 7, writer_features=[]),
        protocol(3, 7, reader_features=[], writer_features=[]),
        features("v2Checkpoint", writer_only=["appendOnly"]),
    ],
    ids=str,
)
def test_feature_lists_come_back_from_a_checkpoint_as_they_were(action: Action) -> None:
    table = TableBuilder()
    table.commit([action, metadata()])
    table.checkpoint()
    snapshot = table.open().snapshot()
    assert snapshot.checkpoint is not None
    assert snapshot.protocol.to_json() == action["protocol"]


@pytest.mark.conformance("REC-09", "CKPT-04")
def test_commit_info_comes_from_the_commit_of_the_version_alone() -> None:
    table = busy()
    table.commit([commit_info("LAST", userName="x")])
    table.checkpoint(6, reshape=SAME_STATE["a commitInfo column"])
    table.compaction(5, 6, lines=[commit_info("LIE"), *table.reconciled(5, 6)])
    table.drop(*(f"{version:020d}.json" for version in range(5)))

    info = table.open().snapshot().state.commit_info
    assert info is not None
    assert info.values == {"operation": "LAST", "userName": "x"}


@pytest.mark.conformance("REC-09")
def test_a_damaged_commit_under_its_checkpoint_costs_only_its_own_information() -> None:
    table = busy()
    table.checkpoint(5)
    for damage in (b"", b"{", b"\xff"):
        table.write(f"{5:020d}.json", damage)
        snapshot = table.open().snapshot()
        assert state_of(snapshot) == expected(table)
        assert snapshot.state.commit_info is None
        assert f"{5:020d}.json" in " ".join(snapshot.warnings)


@pytest.mark.conformance("REC-09", "LOG-11")
def test_a_checkpoint_without_its_commit_opens_with_an_unknown_time() -> None:
    table = busy()
    table.checkpoint(5)
    table.drop(*(f"{version:020d}.json" for version in range(6)))
    snapshot = table.open().snapshot()
    assert state_of(snapshot) == expected(table)
    assert (snapshot.timestamp, snapshot.state.commit_info) == (None, None)


@pytest.mark.conformance("REC-04", "REC-06", "REC-08")
def test_a_checkpoint_may_hold_one_path_live_and_removed_with_another_vector() -> None:
    table = TableBuilder()
    table.commit([features("deletionVectors"), metadata(), add("a")])
    table.commit([remove("a"), add("a", dv=deletion_vector("one"))])
    table.commit([remove("a", dv=deletion_vector("one")), add("a", dv=deletion_vector("two"))])
    table.checkpoint(2)
    table.drop(*(f"{version:020d}.json" for version in range(3)))
    snapshot = table.open().snapshot()
    assert snapshot.live_files()["dv"].to_pylist() == ["utwo@1"]
    assert set(snapshot.tombstones()["dv"].to_pylist()) == {None, "uone@1"}


@pytest.mark.conformance("DV-03", "CKPT-07")
def test_an_unused_max_row_index_is_not_carried_and_an_unknown_field_is() -> None:
    table = TableBuilder()
    vector = deletion_vector(offset=OMIT)
    table.commit([features("deletionVectors"), metadata(), add("a", dv=vector)])

    def with_more_fields(rows: pa.Table) -> pa.Table:
        vectors = pc.struct_field(rows["add"].combine_chunks(), "deletionVector")
        children = [(field.name, pc.struct_field(vectors, field.name)) for field in vectors.type]
        children.append(("maxRowIndex", pa.nulls(len(vectors), pa.int64())))
        children.append(("shiny", pa.array(["x"] * len(vectors))))
        made = pa.StructArray.from_arrays(
            [child for _, child in children],
            fields=[pa.field(name, child.type) for name, child in children],
            mask=pc.is_null(vectors),
        )
        return _with_child("add", "deletionVector", made)(_without("add", "deletionVector")(rows))

    table.checkpoint(reshape=with_more_fields)
    snapshot = table.open().snapshot()
    [batch] = [batch for batch in snapshot.scan() if batch.adds.num_rows]
    assert batch.adds["deletionVector"].to_pylist() == [vector | {"offset": None, "shiny": "x"}]
    assert snapshot.live_files()["dv"].to_pylist() == ["uab^-aqEH.-t@S}K{vb[*k^"]


@pytest.mark.conformance("PART-01", "LOG-12", "REC-08")
def test_partition_values_that_were_left_out_are_null_by_every_route() -> None:
    table = TableBuilder()
    table.commit([protocol(), metadata(partitioned_by=["part", "day"])])
    told = {"part": "x", "day": "1"}
    table.commit(
        [
            add("none", partitionValues={}),
            add("one", partitionValues={"day": "1"}),
            add("all", partitionValues=told),
            add("more", partitionValues=told | {"other": "y"}),
            remove("removed", partitionValues={"part": "x"}, extendedFileMetadata=True),
            remove("untold"),
        ]
    )
    by_commits = table.open().snapshot()
    table.checkpoint()
    by_checkpoint = table.open().snapshot()

    assert by_checkpoint.checkpoint is not None
    assert state_of(by_checkpoint) == state_of(by_commits)
    for snapshot in (by_commits, by_checkpoint):
        rows = [*_sorted(snapshot.live_files()), *_sorted(snapshot.tombstones())]
        values = {row["path"]: row["partition_values"] for row in rows}
        assert values["none"] == [("day", None), ("part", None)]
        assert values["one"] == [("day", "1"), ("part", None)]
        assert values["removed"] == [("day", None), ("part", "x")]
        assert values["untold"] is None
