"""Repairs of the hint and of checkpoints."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import checkpoint, fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import (
    classic_checkpoint_name,
    commit_name,
    multipart_checkpoint_name,
    uuid_checkpoint_name,
)
from delta_maintenance.protocol.delta_log.last_checkpoint import parse_hint
from delta_maintenance.storage import MemoryStore
from tests.support.faults.fault_store import FaultStore
from tests.support.operations.fsck_runs import NOW, REPAIR, files_of, outcomes, run
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import SoundTable

MANIFEST = "00000000000000000003.checkpoint.00000000-0000-4000-8000-000000000000.json"


def states(table: SoundTable) -> list[Any]:
    """Every version, as it opens."""
    found = []
    for version in range(table.open().latest_version() + 1):
        snapshot = table.open().snapshot(version=version)
        live = snapshot.live_files().to_pylist()
        found.append((snapshot.log.state, sorted(live, key=lambda row: str(row["path"]))))
    return found


@pytest.mark.conformance("CKPT-32")
@pytest.mark.parametrize("hint", [b"{", b"", b'{"version":2,"size":1}', b'{"version":77,"size":1}'])
def test_a_bad_hint_is_pointed_at_the_newest_sound_checkpoint(hint: bytes) -> None:
    table = SoundTable()
    table.drop(multipart_checkpoint_name(2, 1, 2))
    table.hint(hint)

    result = run(table, REPAIR)

    assert outcomes(result) == {"rewrite-hint": "done"}
    found = parse_hint(table.read("_last_checkpoint"))
    assert found is not None
    assert (found.version, found.v2_path) == (3, MANIFEST)
    assert run(table, REPAIR).repairs == ()


def test_a_hint_without_any_checkpoint_is_deleted() -> None:
    table = SoundTable(extras=False)
    table.hint(77)

    result = run(table, REPAIR)

    assert outcomes(result) == {"remove-hint": "done"}
    assert result.status == "sound"
    assert "_last_checkpoint" not in table.names()


def test_a_hint_repaired_by_another_process_is_not_touched() -> None:
    table = SoundTable()
    table.hint("{")
    plan = fsck.plan(table.open(), REPAIR, context=RunContext.at(NOW))
    surveyed = fsck.survey(table.open(), REPAIR, now=NOW)
    table.hint(1)

    result = fsck.apply(table.open(), plan, context=RunContext.at(NOW), surveyed=surveyed)

    assert outcomes(result) == {"rewrite-hint": "already-done"}
    assert json.loads(table.read("_last_checkpoint"))["version"] == 1


def _spoilt(name: str, *, differs: bool, extras: bool = True) -> SoundTable:
    table = SoundTable(extras=extras)
    version = int(name[:20])
    if not differs:
        table.truncate(name, -9)
    elif ".json" in name:
        table.v2_checkpoint(version, actions=[a for a in table.state(version) if "txn" not in a])
    else:
        parts = 2 if name != classic_checkpoint_name(version) else 1
        state = [a for a in table.state(version) if "add" not in a]
        table.checkpoint(version, actions=state, parts=parts)
    return table


NAMES = (classic_checkpoint_name(1), multipart_checkpoint_name(2, 1, 2), MANIFEST)


@pytest.mark.conformance("LOG-10", "CKPT-32")
@pytest.mark.parametrize("differs", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_bad_checkpoint_is_rewritten_from_a_complete_log(name: str, differs: bool) -> None:
    table = _spoilt(name, differs=differs)
    commits = {n: data for n, data in files_of(table).items() if n.endswith(".json")}
    good = states(SoundTable())

    result = run(table, REPAIR)

    assert outcomes(result) == {"replace-checkpoint": "done"}
    assert result.status == "sound"
    assert states(table) == good
    (outcome,) = result.repairs
    new = outcome.reason
    assert new is not None
    assert new.removeprefix("_delta_log/") in table.names()
    if name == NAMES[0]:
        assert new.endswith(name)
    else:
        assert name not in table.names()
    assert all(files_of(table)[n] == data for n, data in commits.items() if "checkpoint" not in n)
    assert run(table, REPAIR).repairs == ()


def test_a_checkpoint_with_a_missing_sidecar_is_rewritten() -> None:
    table = SoundTable()
    sidecar = next(name for name in files_of(table) if "_sidecars/" in name)
    table.store.delete(sidecar)

    result = run(table, REPAIR)

    assert outcomes(result) == {"replace-checkpoint": "done"}
    assert result.status == "sound"
    # The other sidecars of the old checkpoint are left to clean-log.
    assert {count.kind for count in result.counts} == {"orphan-sidecar"}


@pytest.mark.parametrize("differs", [False, True])
def test_without_a_complete_log_a_bad_checkpoint_is_kept(differs: bool) -> None:
    table = _spoilt(MANIFEST, differs=differs)
    table.drop(commit_name(0), commit_name(1), classic_checkpoint_name(1), commit_name(2))
    table.drop(*(multipart_checkpoint_name(2, part, 2) for part in (1, 2)))
    before = files_of(table)

    result = run(table, REPAIR)

    assert result.repairs == ()
    if differs:
        # Without an older base the checkpoint cannot be compared.
        assert "checkpoint-differs" not in {count.kind for count in result.counts}
    else:
        assert result.status == "corrupt"
        assert any("the log before it is incomplete" in note for note in result.notes)
    assert files_of(table) == before


@pytest.mark.parametrize("differs", [False, True])
def test_a_bad_checkpoint_is_rewritten_from_an_older_one(differs: bool) -> None:
    table = _spoilt(MANIFEST, differs=differs)
    table.drop(commit_name(0))

    result = run(table, REPAIR)

    assert outcomes(result) == {"replace-checkpoint": "done"}
    assert states_from(table, 1) == states(SoundTable())[1:]


def states_from(table: SoundTable, first: int) -> list[Any]:
    found = []
    for version in range(first, table.open().latest_version() + 1):
        snapshot = table.open().snapshot(version=version)
        live = snapshot.live_files().to_pylist()
        found.append((snapshot.log.state, sorted(live, key=lambda row: str(row["path"]))))
    return found


def test_the_only_base_checkpoint_is_never_touched() -> None:
    table = SoundTable()
    table.drop(commit_name(0))
    table.truncate(classic_checkpoint_name(1), -9)
    table.drop(*(multipart_checkpoint_name(2, part, 2) for part in (1, 2)), MANIFEST)
    table.drop("_last_checkpoint")
    before = files_of(table)

    result = run(table, REPAIR)

    assert (result.status, result.repairs) == ("corrupt", ())
    assert files_of(table) == before


@pytest.mark.parametrize("hours", [0, 30])
def test_an_empty_checkpoint_is_replaced_at_any_age_and_never_deleted(hours: int) -> None:
    """A writer may still hold the file open, and a reader may open it at any time."""
    table = SoundTable(FaultStore(MemoryStore()), extras=False)
    name = classic_checkpoint_name(2)
    table.write(name, b"")
    before = states(table)
    table.store.trace.clear()

    result = run(table, REPAIR, now=NOW - timedelta(hours=hours))

    assert outcomes(result) == {"fill-empty-checkpoint": "done"}
    assert result.status == "sound" and table.read(name)
    assert states(table) == before
    steps = [step.kind for step in table.store.trace if step.path.endswith(name)]
    assert "put" in steps and "delete" not in steps
    assert checkpoint.plan(table.open().snapshot(version=2), context=RunContext.at(NOW)).is_noop


def test_a_checkpoint_is_written_over_an_empty_file() -> None:
    table = SoundTable(extras=False)
    plan = checkpoint.plan(table.open().snapshot(version=2), context=RunContext.at(NOW))
    table.write(classic_checkpoint_name(2), b"")
    assert checkpoint.apply(table.open(), plan).status == "written"
    assert run(table).status == "sound"
    table.write(classic_checkpoint_name(2), b"PAR1")
    with pytest.raises(RefusedError, match="run fsck --repair"):
        checkpoint.apply(table.open(), plan)


def test_an_empty_checkpoint_with_another_name_is_deleted_once_it_is_old() -> None:
    table = SoundTable(extras=False)
    name = uuid_checkpoint_name(2, "1b671a64-40d5-491e-99b0-da01ff1f3341", "parquet")
    table.write(name, b"")

    young = run(table, REPAIR, now=NOW - timedelta(hours=30))
    assert (young.repairs, table.read(name)) == ((), b"")
    assert any("day old" in note for note in young.notes)
    result = run(table, REPAIR)

    assert outcomes(result) == {"remove-empty-checkpoint": "done"}
    assert (result.status, name in table.names()) == ("sound", False)


def test_an_empty_checkpoint_that_its_writer_finished_is_not_touched() -> None:
    table = SoundTable(extras=False)
    name = classic_checkpoint_name(2)
    table.write(name, b"")
    surveyed = fsck.survey(table.open(), REPAIR, now=NOW)
    table.checkpoint(2)
    theirs = table.read(name)

    result = fsck.apply(table.open(), surveyed.plan, context=RunContext.at(NOW), surveyed=surveyed)

    assert outcomes(result) == {"fill-empty-checkpoint": "already-done"}
    assert table.read(name) == theirs


def test_a_checkpoint_replaced_in_the_meantime_is_not_touched() -> None:
    table = _spoilt(NAMES[0], differs=False)
    surveyed = fsck.survey(table.open(), REPAIR, now=NOW)
    table.checkpoint(1)
    theirs = table.read(NAMES[0])

    result = fsck.apply(table.open(), surveyed.plan, context=RunContext.at(NOW), surveyed=surveyed)

    assert outcomes(result) == {"replace-checkpoint": "already-done"}
    assert table.read(NAMES[0]) == theirs


def test_features_that_forbid_deleting_from_the_log_forbid_the_repair() -> None:
    table = SoundTable(extras=False)
    table.step(
        log.features(
            "catalogManaged",
            "vacuumProtocolCheck",
            "deletionVectors",
            writer_only=["inCommitTimestamp", "domainMetadata", "rowTracking"],
        )
    )
    table.checkpoint()
    table.truncate(classic_checkpoint_name(5), -9)
    before = files_of(table)

    result = run(table, REPAIR)

    assert outcomes(result) == {"replace-checkpoint": "refused"}
    assert files_of(table) == before
