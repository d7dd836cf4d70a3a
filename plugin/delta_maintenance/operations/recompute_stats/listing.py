"""The exact list of the files with defects, which is too long for the Plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from delta_maintenance.operations.recompute_stats import RecomputeStatsOptions
from delta_maintenance.operations.recompute_stats.defects import (
    AUDITED,
    Defects,
    archived_files,
    required_statistics,
)
from delta_maintenance.protocol.columns import integers
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.active_files import ActiveFiles
from delta_maintenance.table.read.snapshot import Snapshot

_SHOWN = 20
"""The number of files that people see; reports and JSON have all of them."""
SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("defects", pa.list_(pa.string())),
        ("columns", pa.list_(pa.string())),
    ]
)
"""`columns` are those whose statistics are recomputed, by logical name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefectListing:
    """The files with defects of one version, read from the log again."""

    snapshot: Snapshot
    options: RecomputeStatsOptions
    now: datetime
    """When the plan was made."""
    files: int
    """Their number, according to the plan."""

    def batches(self) -> Iterator[pa.Table]:
        """Yields tables of `SCHEMA`."""
        required = required_statistics(self.snapshot, self.options)
        leaves = pa.array([leaf.name for leaf in required.leaves], pa.string())

        is_archived = archived_files(self.snapshot, self.now)

        def listed(batch: ActiveFiles) -> pa.Table:
            defects = Defects.of(batch.adds, required, self.options)
            rows = np.flatnonzero(defects.affected & ~is_archived(batch.adds))
            files = batch.adds.select(["path", "size"]).take(integers(rows))
            replaced = [
                mask | (suspect if self.options.check_writers else False)
                for mask, suspect in zip(defects.replaced, defects.suspect, strict=True)
            ]
            names = pa.array(defects.by_class.keys(), pa.string())
            lists = (
                _lists(list(defects.by_class.values()), names, rows),
                _lists(replaced, leaves, rows),
            )
            return pa.table([*files.columns, *lists], schema=SCHEMA)

        yield from in_parallel(listed, self.snapshot.log.scan(fields={"add": AUDITED}))

    def json_lists(self) -> Iterator[tuple[str, Iterable[Any]]]:
        """Yields `file_list`, with path, size, defects and columns of every file."""
        yield "file_list", self._rows()

    def lines(self, *, reported: bool) -> Iterator[str]:
        """Yields size, defects and path of the first files."""
        if reported:
            return
        for row in islice(self._rows(), _SHOWN):
            yield f"{row['size']}\t{', '.join(row['defects'])}\t{row['path']}"
        if self.files > _SHOWN:
            yield f"{self.files - _SHOWN:,} more files are in a --report, and in --json"

    def _rows(self) -> Iterator[dict[str, Any]]:
        for table in self.batches():
            for batch in table.to_batches(max_chunksize=10_000):
                yield from batch.to_pylist()


def _lists(masks: list[Any], names: pa.StringArray, rows: Any) -> pa.ListArray:
    """Returns for each of the rows the names whose mask marks it."""
    marked = np.stack([mask[rows] for mask in masks], axis=1) if masks else np.zeros((len(rows), 0))
    offsets = np.append(0, np.cumsum(marked.sum(axis=1)))
    chosen = np.nonzero(marked)[1]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), names.take(integers(chosen)))
