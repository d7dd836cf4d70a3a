"""Live files without row IDs, and the adds that assign row IDs to them.

Streams a snapshot: memory holds the keys of its replay and one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.row_tracking.backfill import (
    RowIdAudit,
    RowIdFindings,
    lacks_row_ids,
    row_counts_for_ids,
    with_row_counts,
)
from delta_maintenance.protocol.statistics.as_json import num_records
from delta_maintenance.table.data.footers import RowCounter, count_rows, with_last_count
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import adds_for_commits

_AUDITED = {
    "add": (
        "path",
        "stats",
        "stats_parsed",
        "deletionVector",
        "baseRowId",
        "defaultRowCommitVersion",
    ),
    "remove": ("path", "stats", "baseRowId"),
}


def audit_row_ids(snapshot: Snapshot) -> RowIdFindings:
    """Audits the row IDs of all files of the snapshot. Opens at most one data file, to count its
    rows.

    A damaged checkpoint is skipped.
    """

    def audited(sound: Snapshot) -> RowIdFindings:
        audit = RowIdAudit()
        for batch in sound.log.scan(fields=_AUDITED):
            audit.add(batch.adds, batch.tombstones)
        return audit.findings()

    found = snapshot.avoiding_damage(audited)
    return with_last_count(found, partial(count_rows, snapshot.log.store))


def files_without_row_ids(snapshot: Snapshot, *, files_per_batch: int) -> Iterator[pa.Table]:
    """The adds to commit again, with every field as in the log except `dataChange`.

    Raises the errors of `adds_for_commits`, and `UnusableCheckpointError` like `Snapshot.scan`.
    """
    lacking = (batch.adds.filter(lacks_row_ids(batch.adds)) for batch in snapshot.log.scan())
    return in_batches(adds_for_commits(snapshot, lacking), files_per_batch)


def in_batches(tables: Iterable[pa.Table], most: int) -> Iterator[pa.Table]:
    """Yields the rows of tables in batches of `most` rows; only the last one is smaller."""
    waiting: list[pa.Table] = []
    count = 0
    for table in tables:
        waiting.append(table)
        count += table.num_rows
        while count >= most:
            together = pa.concat_tables(waiting, promote_options="permissive")
            yield together.slice(0, most)
            waiting, count = [together.slice(most)], count - most
    if count:
        yield pa.concat_tables(waiting, promote_options="permissive")


def counted(adds: pa.Table, count_rows: RowCounter) -> tuple[pa.Table, tuple[str, ...]]:
    """Adds `numRecords` where it is missing or, beside a deletion vector, not that of the footer.

    Returns the adds whose rows could be counted, and the reasons why others could not.
    """
    stated = row_counts_for_ids(adds)
    uncounted = pc.is_null(stated)
    if not pc.any(uncounted).as_py():
        return adds, ()
    paths = pa.concat_arrays(adds["path"].filter(uncounted).chunks)
    row_counts = count_rows(paths)
    nothing = pa.nulls(adds.num_rows, pa.int64())
    counts = pc.replace_with_mask(nothing, uncounted, row_counts.counts)
    differs = pc.fill_null(pc.not_equal(counts, num_records(adds["stats"])), True)
    corrected = pc.if_else(differs, counts, pa.scalar(None, pa.int64()))
    stats = with_row_counts(pa.concat_arrays(adds["stats"].chunks), corrected)
    filled = adds.set_column(adds.column_names.index("stats"), "stats", stats)
    is_counted = pc.or_(pc.invert(uncounted), pc.is_valid(counts))
    return filled.filter(is_counted), row_counts.problems
