"""Damaged checkpoints: skipped and reported.

Every damage is tested twice: in a log with all its commits, where the result must not change, and
in a log with only the checkpoint, where the error must describe it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import BinaryIO

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError, StorageAccessError
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from tests.properties.model import state_of
from tests.support.logs.checkpointed_logs import (
    CLASSIC,
    KINDS,
    busy,
    check_falls_back,
    expected,
    leave_only_the_checkpoint,
)
from tests.support.suite.play import examples
from tests.support.tables.actions import (
    Action,
    add,
    checkpoint_metadata,
    domain,
    features,
    metadata,
    protocol,
    remove,
    sidecar,
    txn,
)
from tests.support.tables.table_builder import LOG, UUID, TableBuilder
from tests.table.failures import fails


@pytest.mark.conformance("CKPT-16", "CKPT-32")
@pytest.mark.parametrize("part", range(3))
def test_an_empty_or_cut_part_makes_its_set_unusable(part: int) -> None:
    table = busy()
    names = table.checkpoint(4, parts=3)
    table.zero(names[part])
    assert state_of(table.open().snapshot()) == expected(table)
    assert table.open().snapshot().log.checkpoint is None

    table = busy()
    names = table.checkpoint(4, parts=3)
    table.truncate(names[part], -5)
    check_falls_back(table, names[part], name=names[0])


@pytest.mark.conformance("CKPT-32")
def test_a_checkpoint_of_no_bytes_does_not_exist() -> None:
    table = busy()
    table.zero(table.checkpoint(4)[0])
    snapshot = table.open().snapshot()
    assert (snapshot.log.checkpoint, state_of(snapshot)) == (None, expected(table))
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
def test_damaged_pages_are_found_and_another_base_is_read(leaf: str, sidecars: int | None) -> None:
    table = busy()
    names = table.checkpoint(4) if sidecars is None else table.v2_checkpoint(4, sidecars=sidecars)
    damage_pages(table, names[-1], leaf)
    snapshot = table.open().snapshot()
    assert snapshot.log.checkpoint is not None

    with pytest.raises(UnusableCheckpointError) as failure:
        state_of(snapshot)
    other = snapshot.avoiding(failure.value)

    assert other.log.checkpoint is None
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
def test_a_damaged_checkpoint_is_replaced_by_another_of_its_version() -> None:
    kinds = [KINDS["classic"], KINDS["parts"], KINDS["json with sidecars"]]
    for first, second in itertools.permutations(kinds, 2):
        table = busy()
        first(table), second(table)
        chosen = table.open().snapshot().log.checkpoint
        assert chosen is not None
        table.truncate(chosen.files.name, -3)
        leave_only_the_checkpoint(table)

        snapshot = table.open().snapshot()

        assert snapshot.log.checkpoint is not None
        assert snapshot.log.checkpoint.files.name != chosen.files.name
        assert state_of(snapshot) == expected(table)
        assert len(snapshot.warnings) == 1


@pytest.mark.conformance("CKPT-32")
def test_an_older_checkpoint_is_the_base_where_the_newest_is_damaged() -> None:
    table = busy()
    table.checkpoint(2)
    table.truncate(table.checkpoint(4)[0], 10)
    table.drop(f"{0:020d}.json", f"{1:020d}.json", f"{2:020d}.json")
    snapshot = table.open().snapshot()
    assert snapshot.log.segment.base_version == 2
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
    "version": (lambda rest: [checkpoint_metadata(3), *rest], "states version 3"),
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
    "gone": (
        lambda rest: [checkpoint_metadata(4), *rest, sidecar("gone.parquet", 1)],
        "no longer exists",
    ),
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


@pytest.mark.conformance("CKPT-21", "CKPT-23")
@pytest.mark.parametrize("extra", [add("inline"), remove("inline")], ids=["add", "remove"])
def test_a_parquet_manifest_with_file_actions_beside_sidecars_is_passed_over(extra: Action) -> None:
    table = busy()
    [name, *sidecars] = table.v2_checkpoint(4, sidecars=2, encoding="parquet")
    others = [a for a in table.state(4) if not a.keys() & {"add", "remove"}]
    paths = [sidecar(path.rpartition("/")[2], len(table.read(path))) for path in sidecars]
    table.manifest(name, [checkpoint_metadata(4), *others, *paths, extra])
    check_falls_back(table, "both inline and in sidecars", name=name)


@pytest.mark.conformance("CKPT-21", "CKPT-26")
@pytest.mark.parametrize("extra", [checkpoint_metadata(3), sidecar("x.parquet", 1)], ids=str)
def test_a_classic_name_does_not_excuse_wrong_v2_actions(extra: Action) -> None:
    table = busy()
    table.checkpoint(4, actions=[*table.state(4), extra])
    problem = "states version 3" if "checkpointMetadata" in extra else "with sidecars but without"
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


def in_six_sidecars() -> tuple[TableBuilder, list[str]]:
    """A table with eight files, and the names of the sidecars of its only checkpoint."""
    table = TableBuilder()
    table.commit([features("v2Checkpoint"), metadata(), *(add(f"f{n}") for n in range(8))])
    return table, table.v2_checkpoint(0, sidecars=6)[1:]


@pytest.mark.conformance("CKPT-32")
@pytest.mark.parametrize("part", range(6))
def test_a_stream_of_files_goes_on_without_repetition_where_a_sidecar_is_damaged(part: int) -> None:
    table, sidecars = in_six_sidecars()
    damage_pages(table, sidecars[part], "add.path")
    snapshot = table.open().snapshot()
    found = [path for batch in snapshot.live_file_batches() for path in batch["path"].to_pylist()]
    assert sorted(found) == [f"f{n}" for n in range(8)]


def test_a_store_that_fails_is_no_damage_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is neither passed over nor called damaged: the store may answer again."""
    table, sidecars = in_six_sidecars()
    snapshot = table.open().snapshot()
    original = snapshot.log.store.open

    def failing(path: str) -> BinaryIO:
        if path.endswith(sidecars[3]):
            raise StorageAccessError("access denied", file=path)
        return original(path)

    monkeypatch.setattr(snapshot.log.store, "open", failing)
    with pytest.raises(StorageAccessError, match="access denied"):
        snapshot.live_files()
