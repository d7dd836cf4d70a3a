"""Repairs of a table that has changed since they were planned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delta_maintenance.errors import StorageError
from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.protocol.delta_log.last_checkpoint import parse_hint
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import CONFIGURATION, SoundTable
from tests.support.tables.table_builder import EPOCH_MS

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(days=2)


def test_the_hint_never_names_a_bad_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SoundTable()
    # It can be read, and is wrong.
    table.v2_checkpoint(3, actions=[a for a in table.state(3) if "add" not in a])
    table.hint("{")
    surveyed = fsck.survey(table.open(), FsckOptions(repair=True), now=NOW)

    def fail(path: str) -> None:
        raise StorageError("the disk is full", file=path)

    monkeypatch.setattr(table.store, "create", fail)
    result = fsck.apply(table.open(), surveyed.plan, context=RunContext.at(NOW), surveyed=surveyed)

    assert [(outcome.action, outcome.status) for outcome in result.repairs] == [
        ("replace-checkpoint", "failed"),
        ("rewrite-hint", "done"),
    ]
    hint = parse_hint(table.read("_last_checkpoint"))
    assert hint is not None and hint.version == 2


@pytest.mark.conformance("CONS-01")
def test_a_table_that_has_become_append_only_keeps_its_entries() -> None:
    table = SoundTable(extras=False)
    table.store.delete("c")
    options = FsckOptions(remove_missing_files=True)
    surveyed = fsck.survey(table.open(), options, now=NOW)
    table.step(log.metadata(configuration=CONFIGURATION | {"delta.appendOnly": "true"}))

    result = fsck.apply(table.open(), surveyed.plan, context=RunContext.at(NOW), surveyed=surveyed)

    (outcome,) = result.repairs
    assert (outcome.action, outcome.status) == ("remove-missing-files", "refused")
    assert outcome.reason is not None and "append-only" in outcome.reason
    snapshot = table.open().snapshot()
    assert snapshot.version == 5 and "c" in snapshot.live_files()["path"].to_pylist()
