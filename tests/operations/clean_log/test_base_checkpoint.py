"""The checkpoint that the remaining versions need."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.delta_log import checksum_name, commit_name, uuid_checkpoint_name
from tests.support.operations.log_clean_ups import build, clean, day, names, plan, promised
from tests.support.tables.actions import features, remove
from tests.support.tables.table_builder import UUID, TableBuilder


def _two(table: TableBuilder) -> str:
    return table.checkpoint(18)[0]


def _remnant(table: TableBuilder) -> None:
    table.drop(*table.checkpoint(18, parts=3)[1:])


def _empty(table: TableBuilder) -> None:
    table.zero(_two(table))


def _garbage(table: TableBuilder) -> None:
    table.garbage(_two(table), at=40)


def _damaged_pages(table: TableBuilder) -> None:
    table.garbage(_two(table), at=4, size=400)


def _without_protocol(table: TableBuilder) -> None:
    table.checkpoint(18, actions=[a for a in table.state(18) if "protocol" not in a])


def _without_metadata(table: TableBuilder) -> None:
    table.checkpoint(18, actions=[a for a in table.state(18) if "metaData" not in a])


def _without_a_sidecar(table: TableBuilder) -> None:
    table.drop(table.v2_checkpoint(18, sidecars=2)[-1])


def _damaged_sidecar(table: TableBuilder) -> None:
    table.garbage(table.v2_checkpoint(18, sidecars=2)[-1])


def _of_another_version(table: TableBuilder) -> None:
    (name,) = table.v2_checkpoint(17)
    table.manifest(
        uuid_checkpoint_name(18, UUID, "json"),
        [json.loads(line) for line in table.read(name).splitlines()],
    )
    table.drop(name)


def _empty_manifest(table: TableBuilder) -> None:
    table.write(uuid_checkpoint_name(18, UUID, "json"), b"")


DAMAGES = [
    _remnant,
    _empty,
    _garbage,
    _damaged_pages,
    _without_a_sidecar,
    _damaged_sidecar,
    _of_another_version,
    _empty_manifest,
]


@pytest.mark.conformance("CLEAN-03", "CLEAN-10")
@pytest.mark.parametrize("damage", DAMAGES)
def test_an_unreadable_checkpoint_is_not_the_boundary(damage: Any) -> None:
    """deltalake 1.6.6 trusts the name, and destroys the table (D2)."""
    table = build(listed=features("v2Checkpoint"))
    damage(table)
    before = names(table)
    planned = plan(table, day(51))
    assert planned.is_noop and "complete and readable" in planned.reason
    with promised(table, 0):
        assert clean(table, day(51)).status == "nothing-to-do"
    assert names(table) == before
    table.checkpoint(7)
    with promised(table, 7):
        assert clean(table, day(51)).oldest_version == 7
    assert commit_name(7) in names(table) and commit_name(6) not in names(table)


@pytest.mark.conformance("CLEAN-03")
@pytest.mark.parametrize("damage", [_without_protocol, _without_metadata])
def test_a_checkpoint_without_protocol_or_metadata_is_not_the_boundary(damage: Any) -> None:
    table = build()
    damage(table)
    table.checkpoint(40)
    assert plan(table, day(51)).is_noop
    table.checkpoint(7)
    planned = plan(table, day(51))
    assert planned.oldest_version == 7
    assert any("skipped" in note and "has no" in note for note in planned.notes)


def _without_a_file(table: TableBuilder) -> None:
    state = table.state(18)
    files = [action for action in state if "add" in action]
    sizes = [action["add"]["size"] for action in files]
    table.checksum(18, {"numFiles": len(files), "tableSizeBytes": sum(sizes)})
    table.checkpoint(18, actions=[action for action in state if action is not files[0]])


def _without_a_file_and_without_a_checksum(table: TableBuilder) -> None:
    _without_a_file(table)
    table.drop(checksum_name(18))


def _with_another_file(table: TableBuilder) -> None:
    state = table.state(18)
    action = next(action for action in state if "add" in action)
    other = {"add": action["add"] | {"path": f"x{action['add']['path'][1:]}"}}
    table.checkpoint(18, actions=[other if each is action else each for each in state])


@pytest.mark.conformance("CLEAN-03")
@pytest.mark.parametrize("damage", [_without_a_file_and_without_a_checksum, _with_another_file])
def test_a_checkpoint_that_differs_from_the_history_before_it_ends_the_clean_up(
    damage: Any,
) -> None:
    table = build()
    damage(table)
    table.checkpoint(40)
    before = names(table)
    with pytest.raises(CorruptTableError, match=r"history before it leaves .*; run fsck"):
        plan(table, day(51))
    assert names(table) == before


def _with_a_file_twice(table: TableBuilder) -> None:
    state = table.state(18)
    table.checkpoint(18, actions=[*state, next(action for action in state if "add" in action)])


def _with_a_file_and_its_tombstone(table: TableBuilder) -> None:
    state = table.state(18)
    path = next(action for action in state if "add" in action)["add"]["path"]
    table.checkpoint(18, actions=[*state, remove(path)])


@pytest.mark.conformance("CLEAN-03")
@pytest.mark.parametrize(
    "damage", [_without_a_file, _with_a_file_twice, _with_a_file_and_its_tombstone]
)
def test_the_commits_that_prove_a_checkpoint_wrong_are_kept(damage: Any) -> None:
    table = build()
    damage(table)
    with pytest.raises(CorruptTableError, match="contradicts the commits"):
        plan(table, day(51))
    table.checkpoint(40)
    assert plan(table, day(51)).is_noop
    table.checkpoint(7)
    planned = plan(table, day(51))
    assert planned.oldest_version == 7
    assert any("skipped" in note for note in planned.notes)


@pytest.mark.conformance("CLEAN-03")
def test_without_a_checkpoint_nothing_is_deleted() -> None:
    table = build()
    table.write(".stale.tmp", b"x", at_ms=1)
    assert plan(table, day(500)).is_noop
    table.checkpoint(40)
    assert plan(table, day(51)).is_noop


@pytest.mark.conformance("CLEAN-03", "CLEAN-04")
def test_a_checkpoint_without_its_commit_is_passed_over() -> None:
    table = build()
    table.checkpoint(7)
    table.checkpoint(18)
    table.drop(*(commit_name(version) for version in range(19)))
    planned = plan(table, day(51))
    assert planned.is_noop and any("commit of its version was deleted" in n for n in planned.notes)


@pytest.mark.conformance("CLEAN-10", "CLEAN-15")
def test_a_log_with_a_gap_above_the_cut_off_is_not_touched() -> None:
    table = build()
    table.checkpoint(18)
    table.checkpoint(30)
    table.drop(commit_name(25))
    with pytest.raises(CorruptTableError, match="commit 25 is missing"):
        plan(table, day(51))
