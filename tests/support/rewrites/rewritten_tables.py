"""Tables for rewriting, and helpers that rewrite them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from delta_maintenance.clock import NewId, epoch_millis
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions, OptimizeResult
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put, Store
from delta_maintenance.table.read import Table
from tests.support.operations.row_ids import RacedStore
from tests.support.rewrites.data_files import ROW_ID, ROW_TRACKING, ROW_VERSION, DataTable, field
from tests.support.rewrites.table_rows import Row, actions_of, latest, live_adds, live_rows
from tests.support.tables.table_builder import EPOCH_MS

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(days=30)
VECTORS = {"delta.enableDeletionVectors": "true"}
COPIED_BYTES = 2000
"""The least average size of copied row groups with which large files are copied, and small ones
decoded.
"""


def ids(prefix: int = 0) -> NewId:
    numbers = itertools.count()
    return lambda: f"{prefix:08d}-0000-4000-8000-{next(numbers):012d}"


def numbers(first: int, count: int = 4) -> pa.Table:
    """Returns rows with the numbers from `first` on."""
    values = range(first, first + count)
    return pa.table({"a": pa.array(values, pa.int64()), "b": [f"text {n}" for n in values]})


def large(rows: pa.Table) -> pa.Table:
    """Returns the rows with long texts that do not compress well."""
    texts = rows["b"].to_pylist()
    noise = [hashlib.shake_128(text.encode()).hexdigest(1000) for text in texts]
    return rows.set_column(1, "b", pa.array(map(" ".join, zip(texts, noise, strict=True))))


class RacedRewrites(RacedStore):
    """Runs other writers directly before one of our files with this prefix is created."""

    prefix = "_delta_log/"

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if path.startswith(self.prefix):
            return super().put_if_absent(path, data)
        return MemoryStore.put_if_absent(self, path, data)


class Rewritten:
    """A table with a bin of four small files in each of three partitions."""

    mixed = False
    """Whether every second file is large. Files have row groups of two rows then."""

    def __init__(
        self,
        *,
        vectors: bool = True,
        tracked: bool = True,
        store: Store | None = None,
        partitions: str = "xyz",
        files: int = 4,
        mixed: bool | None = None,
    ) -> None:
        if mixed is not None:
            self.mixed = mixed
        features = ["deletionVectors"] + (["rowTracking", "domainMetadata"] if tracked else [])
        self.store = RacedRewrites() if store is None else store
        self.tracked = tracked
        self.table = DataTable(
            field("a", "long"),
            field("b", "string"),
            field("p", "string"),
            store=self.store,
            features=features,
            configuration=(VECTORS if vectors else {}) | (ROW_TRACKING if tracked else {}),
            partitioned_by=["p"],
        )
        self.paths: dict[str, list[str]] = {}
        for at, part in enumerate(partitions):
            made = [numbers(100 * at + 10 * n) for n in range(files)]
            writing = {}
            if self.mixed:
                made = [large(rows) if n % 2 else rows for n, rows in enumerate(made)]
                writing = {"row_group_size": 2}
            self.paths[part] = self.table.append(
                *made, partitionValues={"p": part}, writing=writing
            )

    def rows(self) -> list[Row]:
        hidden = {"row_id": ROW_ID, "row_version": ROW_VERSION} if self.tracked else {}
        return live_rows(self.store, **hidden)

    def optimize(self, *, seed: int = 0, **options: Any) -> OptimizeResult:
        self.store.now_ms = lambda: epoch_millis(NOW)
        table = Table(self.store)
        settings = OptimizeOptions(workers=1, **options)
        planned = optimize.plan(table.snapshot(), settings, context=RunContext.at(NOW))
        result = optimize.apply(
            table, planned, context=RunContext.at(NOW, new_id=ids(seed), sleep=lambda _: None)
        )
        self.catch_up()
        return result

    def catch_up(self) -> None:
        """Follows commits of others, so that the table can be changed further."""
        commits = self.table.builder.commits
        for version in range(len(commits), latest(self.store) + 1):
            commits[version] = actions_of(self.store, version)
        self.table.live = live_adds(self.store)


def without(rows: Sequence[Row], *values: int) -> list[Row]:
    """Returns the rows except those with these values of `a`."""
    return [row for row in rows if dict(row[0])["a"] not in values]
