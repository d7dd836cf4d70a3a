"""The columns of a row ID backfill: which files lack row tracking, and how they are added again.

Implements "Row IDs" and "Writer Requirements for Row Tracking" for files that were there before
row tracking was: they are committed anew, unchanged but for `baseRowId` and
`defaultRowCommitVersion`. Counts of rows are physical, rows deleted by a vector included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import ADD_TYPES
from delta_maintenance.protocol.row_tracking import domain as row_tracking
from delta_maintenance.protocol.statistics.stats import num_records


def lacks_row_ids(adds: pa.Table) -> pa.ChunkedArray:
    """For each add, whether it lacks its base row ID or its commit version."""
    missing = [pc.is_null(_column(adds, name)) for name in ("baseRowId", "defaultRowCommitVersion")]
    return pc.or_(*missing)


def row_counts(adds: pa.Table) -> pa.Int64Array:
    """`numRecords` of each add, from either form of its statistics; null where neither tells."""
    counts = num_records(_column(adds, "stats"))
    if "stats_parsed" not in adds.column_names or not counts.null_count:
        return counts
    parsed = [_parsed_counts(chunk) for chunk in adds["stats_parsed"].chunks]
    return pc.coalesce(counts, pa.concat_arrays([pa.array([], pa.int64()), *parsed]))


def with_row_counts(stats: pa.StringArray, counts: pa.Int64Array) -> pa.StringArray:
    """The JSON statistics with `numRecords` put in wherever `counts` is not null.

    Meant for rows that lack it. Whatever else the statistics say stays as it is; text that is no
    JSON object, or holds something else for `numRecords`, is replaced.
    """
    members = pc.replace_substring_regex(stats, r"^\s*\{\s*", "")
    opening = pc.binary_join_element_wise('{"numRecords":', counts.cast(pa.string()), "")
    separator = pc.if_else(pc.equal(members, "}"), pa.scalar(""), pa.scalar(","))
    spliced = pc.binary_join_element_wise(opening, separator, members, "")
    # Reading it back tells whether the text was an object, and one without another such member:
    # of two, the last counts.
    sound = pc.equal(num_records(spliced), counts)
    alone = pc.binary_join_element_wise(opening, "}", "")
    filled = pc.if_else(pc.fill_null(sound, False), spliced, alone)
    return pc.if_else(pc.is_valid(counts), filled, stats)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIdFindings:
    """What the row IDs of a snapshot's files come to."""

    files: int
    """Live ones."""
    lacking: int
    """Live files without a base row ID or without a commit version."""
    uncounted: int
    """Of the lacking ones, those whose statistics do not tell their number of rows."""
    rows: int
    """Of the lacking ones, as far as they are counted."""
    highest: int
    """The highest row ID of any file, tombstones included; `NO_ROW_ID` without any."""
    shared: int | None
    """A row ID that belongs to two live files."""


class RowIdAudit:
    """Collects the files of a snapshot batch by batch, then says what their row IDs come to.

    Keeps 16 bytes for each live file that has row IDs.
    """

    def __init__(self) -> None:
        self._starts: list[npt.NDArray[np.int64]] = []
        self._ends: list[npt.NDArray[np.int64]] = []
        self._files = self._lacking = self._uncounted = self._rows = 0
        self._highest = row_tracking.NO_ROW_ID

    def offer(self, adds: pa.Table, tombstones: pa.Table) -> None:
        """Takes in the live files and the tombstones of one batch.

        `CorruptTableError` where an ID is beyond 64 bits.
        """
        self._files += adds.num_rows
        without = adds.filter(lacks_row_ids(adds))
        counts = row_counts(without)
        self._lacking += without.num_rows
        self._uncounted += counts.null_count
        self._rows += pc.sum(counts).as_py() or 0
        self._offer_ids(adds, live=True)
        self._offer_ids(tombstones, live=False)

    def findings(self) -> RowIdFindings:
        """What has been found in everything offered so far."""
        return RowIdFindings(
            files=self._files,
            lacking=self._lacking,
            uncounted=self._uncounted,
            rows=self._rows,
            highest=self._highest,
            shared=self._shared(),
        )

    def _offer_ids(self, files: pa.Table, *, live: bool) -> None:
        known = files.filter(pc.is_valid(_column(files, "baseRowId")))
        if not known.num_rows:
            return
        counts = row_counts(known)
        highest = row_tracking.highest_assigned_row_id(known["baseRowId"], counts)
        self._highest = max(self._highest, highest)
        if live:
            starts = known["baseRowId"].to_numpy()
            self._starts.append(starts)
            self._ends.append(starts + pc.fill_null(counts, 1).to_numpy())

    def _shared(self) -> int | None:
        if not self._starts:
            return None
        starts, ends = np.concatenate(self._starts), np.concatenate(self._ends)
        order = np.argsort(starts, kind="stable")
        # A file without rows has no IDs, wherever it starts.
        order = order[ends[order] > starts[order]]
        starts, furthest = starts[order], np.maximum.accumulate(ends[order])
        shared = starts[1:][starts[1:] < furthest[:-1]]
        return int(shared[0]) if len(shared) else None


def _column(batch: pa.Table, name: str) -> pa.ChunkedArray:
    if name in batch.column_names:
        return batch[name]
    return pa.chunked_array([pa.nulls(batch.num_rows, ADD_TYPES[name])])


def _parsed_counts(parsed: pa.StructArray) -> pa.Int64Array:
    if parsed.type.get_field_index("numRecords") < 0:
        return pa.nulls(len(parsed), pa.int64())
    counts = pc.struct_field(parsed, "numRecords").cast(pa.int64())
    return pc.if_else(pc.greater_equal(counts, 0), counts, pa.scalar(None, pa.int64()))
