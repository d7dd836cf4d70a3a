"""A bucket of S3 beside Delta Spark, whose requests a test steps through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from delta_maintenance.address import Address
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import FileStatus, Put
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder, log_text

WINDOW = timedelta(minutes=10)
MINUTE = 60_000
"""In milliseconds."""
SPARK: dict[str, Any] = {"other_writers": "spark", "quiet": WINDOW}
ENGINE = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"


class SteppedStore(MemoryStore):
    """A bucket of S3 that counts requests, and calls a function before each of them."""

    def __init__(self) -> None:
        super().__init__(now_ms=lambda: self.clock_ms)
        self.address = Address.parse("s3://bucket/t")
        self.clock_ms = EPOCH_MS
        self.requests: list[str] = []
        self.before: Callable[[str], object] = lambda request: None

    def _note(self, request: str) -> None:
        self.requests.append(request)
        self.before(request)

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        self._note(f"list {directory}")
        return super().list_from(directory, start)

    def stat(self, path: str) -> FileStatus | None:
        self._note(f"stat {path}")
        return super().stat(path)

    def read(self, path: str) -> bytes:
        self._note(f"read {path}")
        return super().read(path)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        self._note(f"put {path}")
        return super().put_if_absent(path, data)

    def delete(self, path: str) -> None:
        self._note(f"delete {path}")
        super().delete(path)

    def spark_commits(self, *lines: log.Action, version: int | None = None) -> int:
        """Commits as Delta Spark does after its check: by a put that replaces what is there."""
        names = [status.path for status in MemoryStore.list_from(self, "_delta_log", "0")]
        newest = max(int(Path(name).stem) for name in names if name.endswith(".json"))
        version = newest + 1 if version is None else version
        info = log.commit_info(operation="WRITE", engineInfo=ENGINE)
        MemoryStore.put(self, f"_delta_log/{version:020d}.json", log_text([info, *lines]))
        return version

    def names(self) -> list[str]:
        """The guarded files, without their versions and IDs."""
        paths = [status.path for status in MemoryStore.list_from(self, "_delta_log", "_guarded")]
        return [path.rpartition(".")[2] for path in paths]


def quiet_table() -> tuple[TableBuilder, SteppedStore]:
    """A table with the files a and b, to which nobody has committed for half an hour."""
    store = SteppedStore()
    builder = TableBuilder(store)
    builder.commit([log.protocol(), log.metadata(), log.add("a"), log.add("b")])
    store.now_ms = lambda: store.clock_ms
    store.clock_ms += 30 * MINUTE
    return builder, store
