"""Rewritten bins that are not committed yet: their outcomes, adds, removes and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.commit.staged import removes_of, staged_removes
from delta_maintenance.protocol.data_files.tags import output_tags, with_compaction_tags
from delta_maintenance.protocol.statistics.clustering import ClusteringTags
from delta_maintenance.table.data.bins import RewrittenBin
from delta_maintenance.table.data.carried_deletions import LateDeletions

Fate = Literal[
    "committed",
    "remapped",
    "written-again",
    "superseded",
    "dropped",
    "contended",
    "refused",
    "failed",
    "not-proved",
    "table-changed",
    "unknown",
    "not-started",
]
"""The outcome of a bin. `remapped` and `written-again` bins are committed without rows that other
writers deleted in the meantime, by a deletion vector or by writing the file again. `superseded`:
another writer rewrote a source. `dropped`: other writers restored rows of a source, or removed all
of them. `contended`: other writers changed the sources again and again. `refused`: no source can be
rewritten exactly. `table-changed`: the table changed so that the new files are no longer valid.
`unknown`: the response to the commit was lost.
"""


@dataclass(slots=True, kw_only=True)
class Pending:
    """A rewritten bin that waits for its commit."""

    done: RewrittenBin
    adds: pa.Table
    """The current adds of the sources, in order."""
    fate: Fate | None = None
    problem: str | None = None
    version: int | None = None
    remaps: int = 0
    """How often deletion vectors were written for the new files."""
    written_again: int = 0
    """How often the new files were written again."""
    current: RewrittenBin | None = None
    """The bin without rows that were deleted since, if this is committed instead of `done`."""
    vectors: dict[int, DeletionVectorDescriptor] = field(default_factory=dict)
    """Deletion vectors of new files, by the number of the file."""
    removed: frozenset[int] = frozenset()
    """Sources that other writers removed with their rows; the commit has no removes for them."""
    late: frozenset[int] = frozenset()
    """Sources with rows that were deleted after the sources were read."""
    proved: LateDeletions | None = None
    """The rows whose positions in the new files were verified in an earlier attempt."""
    state: tuple[Any, ...] = ()
    """The state of the changed sources on which the fields above are based."""
    read: pa.Table = field(init=False)
    """The adds of the sources at the time when their rows were read."""

    def __post_init__(self) -> None:
        self.read = self.adds

    @property
    def result(self) -> RewrittenBin:
        """The bin to commit."""
        return self.current if self.current is not None else self.done


def bin_adds(
    pending: Pending,
    *,
    target_bytes: int,
    iceberg_compat: int | None,
    clustering: ClusteringTags | None = None,
) -> list[dict[str, Any]]:
    """Returns the adds of a bin's new files. `clustering` are the tags of sorted files."""
    result = pending.result
    tags = output_tags(
        [dict(tags or ()) for tags in pending.adds["tags"].to_pylist()],
        target_size=target_bytes,
        iceberg_compat=iceberg_compat,
    )
    provider = None
    if clustering is not None and result.clustered is not None:
        is_clustered = result.clustered.is_clustered
        tags |= clustering.of(result.clustered.group, is_clustered=is_clustered)
        provider = clustering.provider(is_clustered=is_clustered)
    adds = []
    for number, (output, path) in enumerate(zip(result.outputs, result.paths, strict=True)):
        add: dict[str, Any] = {
            "path": path,
            "partitionValues": dict(result.bin.partition_values),
            "size": output.size,
            "modificationTime": output.modified_ms,
            "dataChange": False,
            "stats": output.stats,
            "tags": tags,
        }
        if provider is not None:
            add["clusteringProvider"] = provider
        vector = pending.vectors.get(number)
        if vector is not None:
            add["stats"] = _with_wide_bounds(output.stats)
            add["deletionVector"] = vector.to_json()
        adds.append(add)
    return adds


def removes_of_bins(bins: Sequence[Pending]) -> pa.Table:
    """Returns the removes of the sources of bins, except for sources that other writers removed.

    If the rows of a source are contiguous in a new file, the tags of its remove contain their
    position.
    """
    parts: list[pa.Table] = []
    targets: list[str | None] = []
    offsets: list[int] = []
    physical: list[int] = []
    for pending in bins:
        result, paths = pending.result, pending.result.paths
        kept_rows = [row for row in range(pending.adds.num_rows) if row not in pending.removed]
        parts.append(pending.adds.take(pa.array(kept_rows, pa.int64())))
        runs = {run.source: run for run in result.runs}
        for row in kept_rows:
            # If rows of the source were deleted since then, the position would be wrong.
            run = None if row in pending.late or not paths else runs.get(row)
            targets.append(None if run is None else paths[run.output])
            offsets.append(0 if run is None else run.offset)
            physical.append(0 if run is None else run.rows + result.bin.sources[row].deleted_rows)
    if not parts:
        return staged_removes([])
    adds = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
    return with_compaction_tags(
        removes_of(adds, data_change=False),
        pa.array(targets, pa.string()),
        np.array(offsets, np.int64),
        np.array(physical, np.int64),
    )


def file_metrics(adds: Sequence[Mapping[str, Any]], removes: pa.Table) -> dict[str, str]:
    """Returns `operationMetrics` with the names of Delta Spark."""
    added = np.array([add["size"] for add in adds], np.int64)
    removed = np.array([size or 0 for size in removes["size"].to_pylist()], np.int64)
    vectors = removes["deletionVector"]
    metrics = {
        "numAddedFiles": len(added),
        "numRemovedFiles": len(removed),
        "numAddedBytes": int(added.sum()),
        "numRemovedBytes": int(removed.sum()),
        "numDeletionVectorsRemoved": len(vectors) - vectors.null_count,
    }
    sizes = {"minFileSize": 0, "p25FileSize": 25, "p50FileSize": 50, "p75FileSize": 75}
    for name, share in (*sizes.items(), ("maxFileSize", 100)):
        percentile = np.percentile(added, share, method="lower") if len(added) else 0
        metrics[name] = int(percentile)
    return {name: str(value) for name, value in metrics.items()}


def _with_wide_bounds(stats: str) -> str:
    """Marks bounds as not tight, because a bound can be the value of a deleted row."""
    text, closing = stats.rstrip().removesuffix("}"), "}"
    if '"tightBounds":true' in text:
        return text.replace('"tightBounds":true', '"tightBounds":false') + closing
    return f'{text},"tightBounds":false{closing}'
