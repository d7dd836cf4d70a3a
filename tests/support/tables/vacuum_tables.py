"""Tables with data files for vacuum: a log and a folder, both of any age."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from delta_maintenance.address import Address
from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.vacuum import VacuumOptions, VacuumResult, VacuumSurvey
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.tables.actions import Action, metadata, protocol
from tests.support.tables.table_builder import Line, TableBuilder

NOW = datetime(2026, 6, 30, 12, tzinfo=UTC)
"""The time of a vacuum in tests on memory stores."""


def named_memory(address: str) -> MemoryStore:
    """Returns an empty store with an address, so that absolute paths can refer to its files."""
    store = MemoryStore(Address.parse(address))
    for batch in list(store.list_tree()):
        store.delete_many(batch["path"].to_pylist())
    return store


def days_ago(days: float, now: datetime = NOW) -> int:
    """An instant in milliseconds since 1970-01-01 UTC."""
    return epoch_millis(now - timedelta(days=days))


class Folder(TableBuilder):
    """A table whose files are created individually. Files are forty days old by default."""

    def __init__(
        self,
        store: Store | str | os.PathLike[str] | None = None,
        *,
        now: datetime = NOW,
        first: Sequence[Line] | None = None,
    ) -> None:
        super().__init__(store)
        self.now = now
        self.log(*(first if first is not None else (protocol(), metadata())), days=60)

    def log(self, *lines: Line, days: float = 40) -> int:
        """Makes a commit with this age, newer than all earlier commits."""
        version = self.open().latest_version() + 1 if self.commits else 0
        return self.commit(lines, version=version, at_ms=days_ago(days, self.now))

    def file(self, *paths: str, days: float = 40, data: bytes = b"x") -> None:
        """Creates files below the root, with literal names."""
        for path in paths:
            self.at(days_ago(days, self.now), path, data)

    def at(self, modified_ms: int, path: str, data: bytes = b"x") -> None:
        """Creates a file with a time in milliseconds since 1970-01-01 UTC."""
        if isinstance(self.store, MemoryStore):
            self.store.now_ms = lambda: modified_ms
        self.store.put(path, data)
        if isinstance(self.store, LocalStore):
            self.touch(path, modified_ms)

    def touch(self, path: str, modified_ms: int) -> None:
        """Sets the time of a file or directory on a local disk."""
        os.utime(Path(self.store.root) / path, ns=(modified_ms * 1_000_000,) * 2)

    def files(self) -> set[str]:
        """Every file outside the log."""
        found: set[str] = set()
        for batch in self.store.list_tree():
            rows = zip(batch["path"].to_pylist(), batch["kind"].to_pylist(), strict=True)
            found |= {path for path, kind in rows if kind == 0}
        return {path for path in found if not path.startswith("_delta_log/")}

    def survey(self, **options: Any) -> VacuumSurvey:
        """Returns the survey of a vacuum at this time."""
        snapshot = self.open().snapshot()
        return vacuum.survey(snapshot, VacuumOptions(**options), now=self.now)

    def going(self, **options: Any) -> set[str]:
        """Returns the paths that a vacuum would delete now. Live files may be missing."""
        return paths_of(self.survey(**{"ignore_missing_files": True, **options}))

    def vacuum(self, surveyed: VacuumSurvey | None = None, **options: Any) -> VacuumResult:
        """Runs a vacuum at this time."""
        surveyed = surveyed or self.survey(**{"ignore_missing_files": True, **options})
        if isinstance(self.store, MemoryStore):
            self.store.now_ms = lambda: epoch_millis(self.now)
        return vacuum.apply(
            Table(self.store), surveyed.plan, context=RunContext.at(self.now), surveyed=surveyed
        )


def paths_of(surveyed: VacuumSurvey) -> set[str]:
    """Returns the exact list of paths, without duplicates."""
    paths: list[str] = surveyed.found.files()["path"].to_pylist()
    assert len(paths) == len(set(paths))
    return set(paths)


def operations(table: TableBuilder) -> list[tuple[str, Action]]:
    """Returns the name and the `commitInfo` of every commit that has one, oldest first."""
    history = table.open().history()[::-1]
    return [(str(entry.operation), dict(entry.commit_info)) for entry in history]
