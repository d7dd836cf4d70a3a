"""Clustered tables with rows in random order, and `cluster` on them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.operations import cluster
from delta_maintenance.operations.cluster import ClusterOptions, ClusterResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import (
    ROW_ID,
    ROW_TRACKING,
    ROW_VERSION,
    DataTable,
    field,
    schema_string,
)
from tests.support.rewrites.rewritten_tables import NOW, VECTORS, RacedRewrites
from tests.support.rewrites.table_rows import Row, actions_of, latest, live_adds, live_rows

DOMAIN = "delta.clustering"


def random_rows(rows: int, seed: int) -> pa.Table:
    """Rows with random numbers and texts; `id` is different in each row of each seed."""
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "id": np.arange(rows) + 1_000_000 * seed,
            "x": draw.integers(0, 10_000, rows),
            "t": pa.array([f"text {n:05d}" for n in draw.integers(0, 10_000, rows)]),
        }
    )


def statistics(rows: pa.Table) -> str:
    """The complete statistics of the rows."""
    bounds = {name: pc.min_max(rows[name]).as_py() for name in rows.column_names}
    return json.dumps(
        {
            "numRecords": rows.num_rows,
            "minValues": {name: each["min"] for name, each in bounds.items()},
            "maxValues": {name: each["max"] for name, each in bounds.items()},
            "nullCount": {name: rows[name].null_count for name in rows.column_names},
        }
    )


class ClusteredTable:
    """A table with row tracking and deletion vectors that is clustered by `x` and `t`."""

    def __init__(
        self, *, store: Any = None, columns: Any = (["x"], ["t"]), tracked: bool = True
    ) -> None:
        self.store = RacedRewrites() if store is None else store
        self.tracked = tracked
        domains = {}
        if columns is not None:
            domains = {DOMAIN: json.dumps({"clusteringColumns": columns, "domainName": DOMAIN})}
        features = ["deletionVectors", "domainMetadata", "clustering"]
        fields = field("id", "long"), field("x", "long"), field("t", "string")
        self.metadata = {"schema": schema_string(*fields)}
        self.table = DataTable(
            *fields,
            store=self.store,
            features=[*features, *(["rowTracking"] if tracked else [])],
            configuration=VECTORS | (ROW_TRACKING if tracked else {}),
            domains=domains,
        )
        self._seed = 0

    def append(self, files: int = 1, rows: int = 300, **fields: Any) -> list[str]:
        """Appends files of random rows in one commit each."""
        paths = []
        for _ in range(files):
            self._seed += 1
            made = random_rows(rows, self._seed)
            paths += self.table.append(made, stats=statistics(made), **fields)
        return paths

    def cluster(self, **options: Any) -> ClusterResult:
        """Clusters the table."""
        table = Table(self.store)
        settings = ClusterOptions(workers=1, **options)
        planned = cluster.plan(table.snapshot(), settings, context=RunContext.at(NOW))
        result = cluster.apply(table, planned, context=RunContext.at(NOW, sleep=lambda _: None))
        self.catch_up()
        return result

    def catch_up(self) -> None:
        """Follows commits of others, so that the table can be changed further."""
        commits = self.table.builder.commits
        for version in range(len(commits), latest(self.store) + 1):
            commits[version] = actions_of(self.store, version)
        self.table.live = live_adds(self.store)
        if self.tracked:
            self.table.continue_row_ids()

    def rows(self) -> list[Row]:
        """The live rows, with their row IDs."""
        hidden = {"row_id": ROW_ID, "row_version": ROW_VERSION} if self.tracked else {}
        return live_rows(self.store, **hidden)

    def tags(self, name: str) -> dict[str, str | None]:
        """A tag of each live file."""
        return {
            path: (add.get("tags") or {}).get(name) for path, add in live_adds(self.store).items()
        }
