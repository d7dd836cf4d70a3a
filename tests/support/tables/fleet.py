"""Forty-five tables of a policy, of which ten are broken, slow, silent or huge."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance import clock
from delta_maintenance.storage.local import LocalStore
from tests.support.operations.vacuum_cases import removed
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.vacuum_tables import Folder

HEALTHY = {f"t{number:02}" for number in range(35)}
BAD = {
    *(f"broken{number}" for number in range(3)),
    *(f"slow{number}" for number in range(3)),
    *(f"silent{number}" for number in range(3)),
    "huge",
}
"""Their names come before those of the others."""
RULES = {"checkpoint": {"max_commits": 2}, "vacuum": True, "limits": {"max_deleted_share": 1}}
_GIVES_UP = 120.0


def write_fleet(folder: Path) -> None:
    """Writes the tables: each needs a checkpoint, and has a file for a vacuum."""
    now = clock.now()
    for name in sorted(HEALTHY | BAD):
        table = Folder(folder / name, now=now, first=[protocol(), metadata()])
        table.log(add("old.parquet"), add("live.parquet"))
        table.log(removed("old.parquet", 90))
        table.file("old.parquet", "live.parquet")
        if name.startswith("broken"):
            os.unlink(folder / name / "_delta_log" / f"{1:020}.json")


def fleet_policy(folder: Path) -> Path:
    """Writes their policy."""
    path = folder / "policy.yaml"
    document = {
        "version": 1,
        "defaults": RULES,
        "tables": [{"name": name, "uri": str(folder / name)} for name in sorted(HEALTHY | BAD)],
    }
    path.write_text(yaml.safe_dump(document))
    return path


class StuckStores:
    """Lets the stores of tables wait until they are released.

    Silent ones answer nothing, slow ones wait at each request; the store of the huge table waits
    while it is written to.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released = threading.Event()
        self.names = {name for name in BAD if not name.startswith("broken")}
        self.gave_up = False
        for call in ("list_from", "read", "read_head", "stat", "open"):
            self._patch(monkeypatch, call, ("slow", "silent"))
        for call in ("put_if_absent", "create", "delete_many"):
            self._patch(monkeypatch, call, ("slow", "silent", "huge"))

    def _patch(self, monkeypatch: pytest.MonkeyPatch, call: str, kinds: tuple[str, ...]) -> None:
        real = getattr(LocalStore, call)

        def wait_then(store: LocalStore, *arguments: Any, **named: Any) -> Any:
            if os.path.basename(store.root).startswith(kinds) and not self.released.wait(_GIVES_UP):
                self.gave_up = True
            return real(store, *arguments, **named)

        monkeypatch.setattr(LocalStore, call, wait_then)
