"""Wherever a repair stops, every version opens as before, and the next run ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions, FsckResult, FsckSurvey
from delta_maintenance.protocol.delta_log import (
    classic_checkpoint_name,
    multipart_checkpoint_name,
    parse_log_file_name,
)
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.faults import every_fault
from tests.support.faults.every_fault import Files, files_of, play_faults
from tests.support.faults.fault_store import Fault, FaultStore, Step, faults
from tests.support.tables.sound_tables import SoundTable
from tests.support.tables.table_builder import EPOCH_MS

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(hours=1)
MANIFEST = "00000000000000000003.checkpoint.00000000-0000-4000-8000-000000000000.json"
ALL = FsckOptions(repair=True, remove_missing_files=True, allow_append_only=True)


def damaged() -> Files:
    """A table with only bad checkpoints, a bad hint and a missing data file."""
    table = SoundTable(configuration={"delta.appendOnly": "true"})
    table.truncate(classic_checkpoint_name(1), -9)
    table.garbage(multipart_checkpoint_name(2, 1, 2), at=-20)
    table.v2_checkpoint(3, actions=[a for a in table.state(3) if "add" not in a])
    table.hint("{")
    table.store.delete("c")
    return files_of(table.store)


def sound_states() -> list[Any]:
    """The versions of that table without the damage."""
    return states(SoundTable(configuration={"delta.appendOnly": "true"}).store, range(5))


def store_of(files: Files) -> MemoryStore:
    return every_fault.store_of(files, now_ms=lambda: epoch_millis(NOW))


def states(store: Store, versions: range) -> list[Any]:
    found = []
    for version in versions:
        snapshot = Table(store).snapshot(version=version)
        live = snapshot.live_files().to_pylist()
        found.append((snapshot.log.state, sorted(live, key=lambda row: str(row["path"]))))
    return found


def repair(store: Store, surveyed: FsckSurvey) -> FsckResult:
    """The repairs of what was found on a sound disk, so that the steps are those of the repairs."""
    return fsck.apply(Table(store), surveyed.plan, context=RunContext.at(NOW), surveyed=surveyed)


def _cases(trace: Sequence[Step]) -> list[tuple[int, Fault]]:
    """Every fault of every write, and some of the many reads between them."""
    writes = [at for at, step in enumerate(trace) if step.kind in _WRITES]
    return [
        (at, fault)
        for at, fault in faults(trace)
        if at in writes or (at < writes[-1] and at % _SOME == 0)
    ]


_WRITES = ("put", "put_if_absent", "create", "delete")
_SOME = 17


@pytest.mark.conformance("LOG-09", "LOG-10", "CKPT-32")
def test_a_fault_at_any_step_leaves_every_version_as_it_was(
    count_cases: Callable[[str, int], None],
) -> None:
    files = damaged()
    good, spoilt = sound_states(), states(store_of(files), range(5))
    assert [version for version in range(5) if good[version] != spoilt[version]] == [3, 4]
    surveyed = fsck.survey(Table(store_of(files)), ALL, now=NOW)
    recorded = FaultStore(store_of(files))
    result = repair(recorded, surveyed)
    assert [(o.action, o.status) for o in result.repairs] == [
        ("replace-checkpoint", "done"),
        ("replace-checkpoint", "done"),
        ("replace-checkpoint", "done"),
        ("remove-hint", "already-done"),
        ("remove-missing-files", "done"),
    ]

    cases = _cases(recorded.trace)
    play = play_faults(lambda store: repair(store, surveyed), lambda: store_of(files), cases)
    for outcome in play:
        if not outcome.is_new:
            continue
        store, where = outcome.store, outcome.where
        for version, state in enumerate(states(store, range(5))):
            assert state in (good[version], spoilt[version]), where
        for path, (data, _) in files.items():
            is_checkpoint = ".checkpoint." in path or path.endswith("_last_checkpoint")
            assert is_checkpoint or store.read(path) == data, where

        again = repair(store, fsck.survey(Table(store), ALL, now=NOW))
        bad = {count.kind for count in again.counts if count.severity != "note"}
        assert bad <= {"incomplete-checkpoint"}, where
        assert states(store, range(5)) == good, where
        snapshot = Table(store).snapshot()
        assert snapshot.properties.append_only, where
        assert sorted(snapshot.live_files()["path"].to_pylist()) == ["b", "d%20e"], where
    count_cases("fsck: faults at steps of repairs", len(cases))


def test_two_repairs_at_a_time_do_no_harm() -> None:
    files = damaged()
    store = store_of(files)
    surveyed = fsck.survey(Table(store), ALL, now=NOW)

    first = fsck.apply(Table(store), surveyed.plan, context=RunContext.at(NOW), surveyed=surveyed)
    second = fsck.apply(Table(store), surveyed.plan, context=RunContext.at(NOW), surveyed=surveyed)

    assert {outcome.status for outcome in second.repairs} == {"already-done"}
    assert (first.status, second.status) == ("sound", "sound")
    assert first.version == second.version == 6
    assert states(store, range(5)) == sound_states()


def test_only_files_of_checkpoints_are_ever_deleted() -> None:
    files = damaged()
    recorded = FaultStore(store_of(files))

    repair(recorded, fsck.survey(Table(store_of(files)), ALL, now=NOW))

    deleted = [step.path for step in recorded.trace if step.kind == "delete"]
    kinds = {parse_log_file_name(path.removeprefix("_delta_log/")).kind.name for path in deleted}
    assert kinds == {"CLASSIC_CHECKPOINT", "MULTIPART_CHECKPOINT", "UUID_CHECKPOINT"}
    assert f"_delta_log/{MANIFEST}" in deleted


def test_a_checkpoint_is_deleted_only_after_its_replacement_unless_in_its_way() -> None:
    files = damaged()
    recorded = FaultStore(store_of(files))

    repair(recorded, fsck.survey(Table(store_of(files)), ALL, now=NOW))

    order: dict[int, list[str]] = {1: [], 2: [], 3: []}
    for step in recorded.trace:
        file = parse_log_file_name(step.path.removeprefix("_delta_log/"))
        if file.kind.name.endswith("CHECKPOINT") and step.kind in ("create", "delete"):
            order[file.version or 0].append(step.kind)
    assert order == {
        1: ["delete", "create"],
        2: ["create", "delete", "delete"],
        3: ["create", "delete"],
    }
