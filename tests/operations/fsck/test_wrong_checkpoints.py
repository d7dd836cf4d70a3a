"""Wrong checkpoints are written again from what the log proves, and nothing else is changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, settings

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import fsck, vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckResult
from delta_maintenance.protocol.delta_log import classic_checkpoint_name, commit_name
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.faults import every_fault
from tests.support.faults.every_fault import distinct_faults, files_of, play_faults
from tests.support.faults.fault_store import FaultStore
from tests.support.operations.fsck_runs import NOW, REPAIR, outcomes, run
from tests.support.suite.play import examples, some
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, MINUTE_MS
from tests.support.tables.wrong_checkpoints import KINDS, RandomTable, WrongTable, wrong_tables

LATER = NOW + timedelta(days=60)


def live(table: Table, version: int | None = None) -> list[tuple[str, str | None]]:
    files = table.snapshot(version=version).live_files().to_pylist()
    return sorted(((row["path"], row["dv"]) for row in files), key=str)


def rows_for_deltalake(store: Store) -> tuple[int, int, list[str]]:
    """The version, the number of rows and the live files as deltalake reads them."""
    with TemporaryDirectory() as folder:
        for path, (data, _) in files_of(store).items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        table = deltalake.DeltaTable(folder)
        paths = sorted(pa.table(table.get_add_actions())["path"].to_pylist())
        query = deltalake.QueryBuilder().register("t", table).execute("select id from t")
        return table.version(), len(pa.table(query.read_all())), paths


@settings(max_examples=examples(30))
@given(case=wrong_tables())
def test_a_wrong_checkpoint_is_written_again_from_an_older_one_or_version_0(
    case: WrongTable | None,
) -> None:
    if case is None:
        return
    table, last = case.table, case.table.version
    found = run(table)
    assert found.status == "corrupt"
    assert "checkpoint-differs" in {count.kind for count in found.counts}

    result = run(table, REPAIR)

    assert result.status != "corrupt", (case, result)
    assert {outcome.status for outcome in result.repairs} == {"done"}
    for version in range(case.first, last + 1):
        assert live(table.open(), version) == case.truth(version), version
    assert run(table, REPAIR).repairs == ()
    assert rows_for_deltalake(table.store) == (last, case.rows, case.paths)
    table.store.now_ms = lambda: epoch_millis(LATER)
    plan = vacuum.plan(table.open().snapshot(), context=RunContext.at(LATER))
    vacuum.apply(table.open(), plan, RunContext.at(LATER))
    assert all(table.store.stat(path) is not None for path in case.paths)


_CHANGES = ("put", "put_if_absent", "create", "delete")
STEPS = 6
"""The newest version of `scenario`."""


def scenario(kind: str = "classic", damage: str = "both", *, into: Store | None = None) -> Any:
    """Version 1 has a right checkpoint, version 4 a wrong one, and the log begins at 1."""
    table = RandomTable(into=into)
    table.commit([table.remove("f2", table.live.pop("f2")), table.new("g1")])
    table.commit([table.new("g2")])
    table.commit([table.remove("g2", table.live.pop("g2")), log.txn("app", 3)])
    table.commit([table.new("g4")])
    table.write_checkpoint("classic", 1)
    state = table.state(4)
    if damage in ("lost", "both"):
        state = [a for a in state if a.get("add", {}).get("path") != "f0"]
    if damage in ("resurrected", "both"):
        state = [a for a in state if a.get("remove", {}).get("path") != "g2"]
        state.append(table.add("g2", 0))
    if damage == "tombstones":
        state = [a for a in state if "remove" not in a]
    table.write_checkpoint(kind, 4, state)
    table.commit([log.commit_info()])
    table.commit([log.commit_info()])
    table.hint(4)
    table.drop(commit_name(0))
    return table


@pytest.mark.parametrize("kind", some(KINDS, 2))
def test_wherever_the_repair_stops_every_reader_opens_a_state_that_was_written(
    kind: str, count_cases: Callable[[str, int], None]
) -> None:
    table = scenario(kind)
    files = files_of(table.store)
    right = sorted(table.live)
    wrong = sorted({*right, "g2"} - {"f0"})

    def make() -> MemoryStore:
        return every_fault.store_of(files, now_ms=lambda: epoch_millis(NOW))

    surveyed = fsck.survey(Table(make()), REPAIR, now=NOW)

    def repair(store: Store) -> FsckResult:
        context = RunContext.at(NOW)
        return fsck.apply(Table(store), surveyed.plan, context=context, surveyed=surveyed)

    trial = FaultStore(make())
    repair(trial)
    changes = [at for at, step in enumerate(trial.trace) if step.kind in _CHANGES]
    cases = [(at, fault) for at, fault in distinct_faults(trial.trace) if at in changes]
    assert len(changes) >= 3
    for outcome in play_faults(repair, make, cases):
        if not outcome.is_new:
            continue
        version, _, paths = rows_for_deltalake(outcome.store)
        assert (version, paths) in ((STEPS, right), (STEPS, wrong)), outcome.where
        ours = [path for path, _ in live(Table(outcome.store))]
        assert ours in (right, wrong), outcome.where
        result = run(Table(outcome.store), REPAIR)
        assert result.status != "corrupt", outcome.where
        assert rows_for_deltalake(outcome.store)[2] == right, outcome.where
    count_cases(f"fsck: faults at the repair of a wrong {kind} checkpoint", len(cases))


def test_what_was_written_from_a_wrong_checkpoint_is_named() -> None:
    table = scenario(damage="resurrected")
    table.commit([table.remove("g2", 0), table.new("h7")])

    result = run(table, REPAIR)

    (note,) = [note for note in result.notes if "may have been written" in note]
    assert note.startswith("versions 5 to 7 ")
    assert note.endswith("they removed files that were not live in 7")
    assert [path for path, _ in live(table.open())] == sorted(table.live)


def test_checksums_that_repeat_a_wrong_checkpoint_are_removed_and_others_stay() -> None:
    table = scenario()
    size = 4 * len(table.store.read("f0"))
    numbers = {"numMetadata": 1, "numProtocol": 1}
    table.checksum(1, {"tableSizeBytes": size // 4 * 3, "numFiles": 3, **numbers})
    table.checksum(5, {"tableSizeBytes": size * 2, "numFiles": 8, **numbers})
    table.checksum(6, {"tableSizeBytes": size, "numFiles": 4, **numbers})

    result = run(table, REPAIR)

    assert outcomes(result) == {"remove-checksums": "done", "replace-checkpoint": "done"}
    assert result.status != "corrupt"
    assert [name for name in table.names() if name.endswith(".crc")] == [
        f"{1:020d}.crc",
        f"{6:020d}.crc",
    ]


def _older_lacks_a_file(table: RandomTable) -> None:
    state = [a for a in table.state(1) if a.get("add", {}).get("path") != "f1"]
    table.write_checkpoint("classic", 1, state)


def _checksum_contradicts_the_older(table: RandomTable) -> None:
    table.checksum(2, {"tableSizeBytes": 1, "numFiles": 9, "numMetadata": 1, "numProtocol": 1})


def _commit_removes_what_the_older_lacks(table: RandomTable) -> None:
    table.commit([table.remove("f9", 0)], version=2)


@pytest.mark.parametrize("delete", ["older", "newer"])
@pytest.mark.parametrize(
    ("damage", "doubt"),
    [
        (None, _older_lacks_a_file),
        ("lost", _checksum_contradicts_the_older),
        ("lost", _commit_removes_what_the_older_lacks),
    ],
)
def test_of_two_checkpoints_that_contradict_each_other_none_is_replaced_without_proof(
    damage: str, doubt: Callable[[RandomTable], None], delete: str
) -> None:
    table = scenario("v2-json", damage)
    doubt(table)
    before = files_of(table.store)

    result = run(table, REPAIR)

    assert (result.status, result.repairs) == ("corrupt", ())
    assert files_of(table.store) == before
    (note,) = [note for note in result.notes if "nothing proves" in note]
    assert classic_checkpoint_name(1) in note
    # The remedy, for either of them.
    wrong = [n for n in table.names() if ".checkpoint." in n and n.startswith(f"{4:020d}")]
    table.drop(*(wrong if delete == "newer" else [classic_checkpoint_name(1)]), "_last_checkpoint")
    kinds = {count.kind for count in run(table).counts}
    assert "checkpoint-differs" not in kinds
    assert rows_for_deltalake(table.store)[0] == STEPS


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_without_unexpired_tombstones_is_written_again_with_them(kind: str) -> None:
    table = scenario(kind, "tombstones")
    found = run(table)
    assert {count.kind: count.severity for count in found.counts if count.severity != "note"} == {
        "missing-tombstones": "warning"
    }

    result = run(table, REPAIR)

    assert outcomes(result) == {"replace-checkpoint": "done"}
    assert result.status == "sound"
    tombstones = table.open().snapshot().tombstones()["path"].to_pylist()
    assert sorted(tombstones) == ["f2", "g2"]


@pytest.mark.parametrize(
    ("property_before", "property_after", "days", "is_missing"),
    [
        (None, None, 6.9, True),
        (None, None, 7.1, False),
        # A raised retention does not bring back what was dropped before, and no later vacuum needs
        # what a lowered one releases.
        ("interval 1 day", "interval 30 days", 3, False),
        ("interval 30 days", "interval 1 day", 3, False),
        ("interval 30 days", None, 20, False),
        ("interval 30 days", "interval 30 days", 20, True),
        ("interval 0 seconds", None, 0.01, False),
    ],
)
def test_only_tombstones_that_every_writer_had_to_keep_are_missed(
    property_before: str | None, property_after: str | None, days: float, is_missing: bool
) -> None:
    def retention(value: str | None) -> log.Action:
        known = {} if value is None else {"delta.deletedFileRetentionDuration": value}
        return log.metadata(configuration=known)

    table = RandomTable()
    table.commit([retention(property_before), table.remove("f2", 0)])
    state = [action for action in table.state() if "remove" not in action]
    table.checkpoint(actions=state)
    table.commit([retention(property_after)])

    removed_at_ms = EPOCH_MS + MINUTE_MS
    now = NOW + timedelta(milliseconds=removed_at_ms - epoch_millis(NOW), days=days)
    kinds = {count.kind for count in run(table, now=now).counts}

    assert kinds == ({"missing-tombstones"} if is_missing else set())
