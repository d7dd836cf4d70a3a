"""The adds and removes of rewritten bins ("Add File and Remove File"), and their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from delta_maintenance.operations.rewriting.pending import Pending
from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.commit.staged import removes_of
from delta_maintenance.protocol.data_files.tags import output_tags, with_compaction_tags


def bin_adds(
    pending: Pending, *, target_bytes: int, iceberg_compat: int | None
) -> list[dict[str, Any]]:
    """Returns the adds of a bin's new files."""
    result = pending.result
    tags = output_tags(
        [dict(tags or ()) for tags in pending.adds["tags"].to_pylist()],
        target_size=target_bytes,
        iceberg_compat=iceberg_compat,
    )
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
        vector = pending.vectors.get(number)
        if vector is not None:
            add["stats"] = _with_wide_bounds(output.stats)
            add["deletionVector"] = _descriptor(vector)
        adds.append(add)
    return adds


def bin_removes(pending: Pending) -> pa.Table:
    """Returns the removes of a bin's sources, except for sources that other writers removed.

    If the rows of a source are contiguous in a new file, the tags of its remove contain their
    position.
    """
    result = pending.result
    kept = [row for row in range(pending.adds.num_rows) if row not in pending.removed]
    removes = removes_of(pending.adds.take(pa.array(kept, pa.int64())), data_change=False)
    runs = {run.source: run for run in result.runs}
    targets: list[str | None] = []
    offsets, physical = np.zeros(len(kept), np.int64), np.zeros(len(kept), np.int64)
    for at, row in enumerate(kept):
        source, run = result.bin.sources[row], runs.get(row)
        # If rows of the source were deleted since then, the position in the tags would be wrong.
        described = run is not None and result.outputs and row not in pending.late
        targets.append(result.paths[run.output] if described and run is not None else None)
        if described and run is not None:
            offsets[at] = run.offset
            physical[at] = run.rows + source.deleted_rows
    return with_compaction_tags(removes, pa.array(targets, pa.string()), offsets, physical)


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
        found = np.percentile(added, share, method="lower") if len(added) else 0
        metrics[name] = int(found)
    return {name: str(value) for name, value in metrics.items()}


def _descriptor(vector: DeletionVectorDescriptor) -> dict[str, Any]:
    return {
        "storageType": vector.storage_type,
        "pathOrInlineDv": vector.path_or_inline_dv,
        "offset": vector.offset,
        "sizeInBytes": vector.size_in_bytes,
        "cardinality": vector.cardinality,
    }


def _with_wide_bounds(stats: str) -> str:
    """Marks bounds as not tight, because a bound can be the value of a deleted row."""
    text, closing = stats.rstrip().removesuffix("}"), "}"
    if '"tightBounds":true' in text:
        return text.replace('"tightBounds":true', '"tightBounds":false') + closing
    return f'{text},"tightBounds":false{closing}'
