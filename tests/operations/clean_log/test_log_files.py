"""Every kind of file in a log: files that are deleted, sidecars, the classic name and the hint."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.clean_log import CleanLogPlan, compatible_checkpoint
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import (
    checksum_name,
    classic_checkpoint_name,
    commit_name,
    compaction_name,
    multipart_checkpoint_name,
    uuid_checkpoint_name,
)
from delta_maintenance.table.read import hinted_version
from tests.support.operations.log_clean_ups import (
    at,
    build,
    clean,
    day,
    names,
    plan,
    promised,
    with_sidecars,
)
from tests.support.tables.actions import features
from tests.support.tables.table_builder import LOG, UUID, TableBuilder


def going(planned: CleanLogPlan) -> dict[str, tuple[str, ...]]:
    return {group.kind: group.names for group in planned.groups}


def litter(table: TableBuilder) -> tuple[set[str], set[str]]:
    """Files of every kind around version 18: those that go, and those that stay."""
    old, new = epoch_millis(day(1)), epoch_millis(day(50.5))
    going: dict[str, int] = {}
    staying: dict[str, int] = {}
    for version in range(50):
        target = going if version < 18 else staying
        target[checksum_name(version)] = old
        target[f".{commit_name(version)}.crc"] = old
    for name in [
        compaction_name(0, 9),
        compaction_name(15, 22),
        compaction_name(18, 24),
        multipart_checkpoint_name(12, 1, 2),
        multipart_checkpoint_name(12, 2, 2),
        multipart_checkpoint_name(13, 2, 3),
        uuid_checkpoint_name(14, UUID, "json"),
        uuid_checkpoint_name(15, UUID, "parquet"),
        f".{classic_checkpoint_name(9)}.crc",
        f".{checksum_name(3)}.crc",
        f"_staged_commits/{17:020}.{UUID}.json",
        f"_staged_commits/{18:020}.{UUID}.json",
        f"_staged_commits/.{18:020}.{UUID}.json.tmp",
        f".{commit_name(51)}.{UUID}.tmp",
        f"_commit_{UUID}.json.tmp",
        f"{7:020}.{UUID}.tmp",
        "_sidecars/.under-way.tmp",
        "_sidecars/nobody.parquet",
        f"_sidecars/{9:020}.checkpoint.0000000001.0000000001.{UUID}.parquet",
    ]:
        going[name] = old
    for name in [
        compaction_name(19, 24),
        multipart_checkpoint_name(18, 1, 2),
        multipart_checkpoint_name(30, 2, 3),
        f"_staged_commits/{19:020}.{UUID}.json",
        f".{commit_name(50)}.{UUID}-2.tmp",
        "_last_vacuum_info",
        "._last_checkpoint.crc",
        ".s3-optimization-0",
        "00000000000000000003.json.bak",
        "3.json",
        f"{3:020}.{4:020}.compact.json",
        f"{3:020}.checkpoint.parquet.tmp2",
        "99999999999999999999.json",
        "_sidecars/odd.txt",
        "_sidecars/.hidden.parquet",
        "notes.txt",
    ]:
        staying[name] = old
    staying["_sidecars/young.parquet"] = staying[f".{commit_name(52)}.x.tmp"] = new
    staying.pop(f".{commit_name(50)}.{UUID}-2.tmp")
    staying["_sidecars/dateless.parquet"] = staying[".dateless.tmp"] = 0
    staying["_sidecars/future.parquet"] = epoch_millis(day(99))
    for name, at_ms in {**going, **staying}.items():
        table.write(name, b"" if "checkpoint.0" in name and name[0] != "_" else b"{}", at_ms=at_ms)
    return set(going), set(staying)


# Every kind of file


@pytest.mark.conformance(
    "CLEAN-05", "CLEAN-06", "CLEAN-07", "CLEAN-09", "CLEAN-14", "CLEAN-15", "CRC-09", "LOG-09"
)
def test_exactly_the_outdated_files_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """deltalake 1.6.6 never deletes other files than plain commits and checkpoints (D6)."""
    table = build(listed=features("v2Checkpoint"))
    expected_gone, expected_kept = litter(table)
    table.checkpoint(9)
    referenced = table.v2_checkpoint(18, sidecars=2, uuid=None)
    before = set(names(table))
    now = day(51)
    planned = plan(table, now)
    with promised(table, 18):
        result = clean(table, now)
    gone = before - set(names(table))
    expected_gone |= {commit_name(version) for version in range(18)} | {classic_checkpoint_name(9)}
    assert gone == expected_gone
    assert expected_kept <= set(names(table)) and set(referenced) <= set(names(table))
    assert {name for group in planned.groups for name in group.names} == gone
    assert result.status == "cleaned" and sum(group.deleted for group in result.groups) == len(gone)
    assert [group.kind for group in planned.groups] == [
        *("compactions", "commits", "checksums", "checkpoints", "staged-commits"),
        *("hadoop-checksums", "temporary-files", "sidecars"),
    ]
    kept = {group.kind: group.kept for group in planned.groups}
    assert kept["compactions"] == compaction_name(19, 24)
    assert kept["checksums"] == checksum_name(18)
    assert kept["checkpoints"] == multipart_checkpoint_name(18, 1, 2)
    assert all((group.kept is None) == (group.kept_because is None) for group in planned.groups)


def sidecars(table: TableBuilder) -> list[str]:
    return [name for name in names(table) if name.startswith("_sidecars/")]


# Sidecars


@pytest.mark.conformance("CLEAN-08", "CLEAN-09", "CKPT-24")
def test_sidecars_are_deleted_after_their_checkpoints() -> None:
    table = with_sidecars()
    with promised(table, 18):
        result = clean(table, day(51))
    assert [name[10:12] for name in sidecars(table)] == ["18", "18", "30", "30"]
    assert result.groups[-1].kind == "sidecars" and result.groups[-1].deleted == 2


@pytest.mark.conformance("CLEAN-09")
@pytest.mark.parametrize(("at_ms", "gone"), [(-1, True), (0, False)])
def test_a_sidecar_of_yesterday_may_belong_to_a_checkpoint_under_way(
    at_ms: int, gone: bool
) -> None:
    table = with_sidecars()
    now = day(51)
    midnight = datetime(2024, 4, 20, tzinfo=UTC)
    assert timedelta(days=1) <= now - midnight < timedelta(days=2)
    table.write("_sidecars/n.parquet", b"x", at_ms=epoch_millis(midnight) + at_ms)
    clean(table, now)
    assert ("_sidecars/n.parquet" not in sidecars(table)) == gone


@pytest.mark.conformance("CLEAN-08")
@pytest.mark.parametrize("damage", ["garbage", "zero", "drop-commit"])
def test_an_unreadable_checkpoint_keeps_all_sidecars(damage: str) -> None:
    table = with_sidecars()
    manifest = uuid_checkpoint_name(30, f"{UUID[:-2]}30", "json")
    if damage == "garbage":
        table.write(manifest, b'{"sidecar": {')
    elif damage == "zero":
        table.zero(manifest)
    else:
        table.write(classic_checkpoint_name(40), b"PAR1 or not")
    planned = plan(table, day(51))
    assert "sidecars" not in going(planned) and "commits" in going(planned)
    assert any("no sidecar is deleted" in note for note in planned.notes)
    with promised(table, 18):
        clean(table, day(51))
    assert len(sidecars(table)) == 6


@pytest.mark.conformance("CLEAN-08")
def test_a_concurrent_checkpoint_keeps_its_sidecars() -> None:
    table = with_sidecars()
    table.write("_sidecars/slow-1.parquet", b"x", at_ms=1)
    planned = plan(table, day(51))
    assert "_sidecars/slow-1.parquet" in going(planned)["sidecars"]
    old = [
        json.loads(line)
        for line in table.read(uuid_checkpoint_name(30, f"{UUID[:-2]}30", "json")).splitlines()
    ]
    slow = {"sidecar": {"path": "slow-1.parquet", "sizeInBytes": 1, "modificationTime": 1}}
    table.manifest(
        uuid_checkpoint_name(30, UUID, "json"), [*(a for a in old if "sidecar" not in a), slow]
    )
    result = clean_log.apply(table.open(), planned, context=RunContext.at(at(table, day(51))))
    assert result.status == "cleaned"
    assert "_sidecars/slow-1.parquet" in sidecars(table)


# Clients that do not know V2


@pytest.mark.conformance("CKPT-28", "CLEAN-10")
@pytest.mark.parametrize("encoding", ["json", "parquet"])
@pytest.mark.parametrize("count", [0, 2])
def test_the_oldest_checkpoint_gets_a_name_that_old_clients_see(encoding: Any, count: int) -> None:
    table = build(listed=features("v2Checkpoint"))
    table.v2_checkpoint(18, sidecars=count, encoding=encoding)
    classic = classic_checkpoint_name(18)
    assert plan(table, day(51)).needs_classic_name
    with promised(table, 18):
        result = clean(table, day(51))
        assert result.compatible_checkpoint == f"{LOG}/{classic}" and classic in names(table)
        table.drop(uuid_checkpoint_name(18, UUID, encoding))
    checkpoint = table.open().snapshot(version=18).log.checkpoint
    assert checkpoint is not None and checkpoint.is_v2 and len(checkpoint.sidecars) == count
    assert not plan(table, day(52)).needs_classic_name


@pytest.mark.conformance("CKPT-28")
@pytest.mark.parametrize("version", [17, 19])
def test_the_classic_name_is_only_for_a_checkpoint_of_its_version(version: int) -> None:
    """Under the name of version 19, the checkpoint of version 18 would be a wrong state."""
    table = build(listed=features("v2Checkpoint"))
    table.v2_checkpoint(18, sidecars=1)
    before = names(table)
    snapshot = table.open().snapshot(version=version)
    with pytest.raises(RefusedError, match="the checkpoint of this version cannot be used"):
        compatible_checkpoint.write_compatible_checkpoint(snapshot, new_id=lambda: UUID)
    assert names(table) == before


@pytest.mark.conformance("CKPT-28")
def test_an_existing_classic_name_is_enough() -> None:
    table = build(listed=features("v2Checkpoint"))
    table.v2_checkpoint(18)
    (name,) = table.v2_checkpoint(18, uuid=None)
    before = table.read(name)
    assert clean(table, day(51)).compatible_checkpoint is None and table.read(name) == before


@pytest.mark.conformance("CKPT-28")
@pytest.mark.parametrize("encoding", ["json", "parquet"])
def test_nothing_is_deleted_if_the_classic_name_vanishes_again(
    encoding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = build(listed=features("v2Checkpoint"))
    table.v2_checkpoint(18, sidecars=2, encoding=encoding)
    before = names(table)
    classic = f"{LOG}/{classic_checkpoint_name(18)}"
    original = compatible_checkpoint.publish

    def published(*given: Any) -> None:
        original(*given)
        table.store.delete(classic)

    monkeypatch.setattr(compatible_checkpoint, "publish", published)
    with pytest.raises(RefusedError, match="it was deleted again") as caught:
        clean(table, day(51))
    assert caught.value.file == classic
    assert set(before) <= set(names(table))


def test_an_empty_file_under_the_classic_name_is_replaced() -> None:
    table = build(listed=features("v2Checkpoint"))
    table.v2_checkpoint(18)
    (empty,) = table.checkpoint(18)
    table.zero(empty)
    with promised(table, 18):
        assert clean(table, day(51)).status == "cleaned"
    assert table.read(empty)


# The hint


@pytest.mark.conformance("LAST-02")
@pytest.mark.parametrize("kind", ["classic", "parts", "v2"])
def test_the_hint_never_points_at_a_deleted_checkpoint(kind: str) -> None:
    table = build(listed=features("v2Checkpoint") if kind == "v2" else None)
    table.checkpoint(9)
    table.hint(9)
    if kind == "v2":
        table.v2_checkpoint(18, sidecars=1)
    else:
        table.checkpoint(18, parts=3 if kind == "parts" else 1)
    planned = plan(table, day(51))
    assert planned.stale_hint == 9
    with promised(table, 18):
        assert clean(table, day(51)).hint_updated
    assert hinted_version(table.store) == 18
    hint = json.loads(table.read("_last_checkpoint"))
    assert hint.get("parts") == (3 if kind == "parts" else None)
    # With the protocol, the metadata and 18 tombstones; of a V2 checkpoint, with two actions more.
    assert (hint["numOfAddFiles"], hint["size"]) == (1, 23 if kind == "v2" else 21)
    parts = [name for name in names(table) if f"{18:020}.checkpoint" in name]
    files = [name for name in parts if kind != "v2" or UUID in name] + sidecars(table)
    assert hint["sizeInBytes"] == sum(len(table.read(name)) for name in files)


def test_a_correct_hint_is_not_touched() -> None:
    table = build()
    table.checkpoint(18)
    table.checkpoint(40)
    table.hint(40)
    before = table.read("_last_checkpoint")
    assert not clean(table, day(51)).hint_updated and table.read("_last_checkpoint") == before
