"""Row ID backfill: files without row IDs, and the columns for adding them again.

Implements "Row IDs" and "Writer Requirements for Row Tracking" for files that are older than the
feature: they are committed again with `baseRowId` and `defaultRowCommitVersion` and are otherwise
unchanged. Row counts are physical, including rows that a deletion vector marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import ADD_TYPES
from delta_maintenance.protocol.columns import booleans, column_of, to_bools
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.protocol.row_tracking.row_ids import overlapping
from delta_maintenance.protocol.statistics.as_json import (
    align_statistics,
    num_records,
    read_statistics,
)

_TIGHT = pa.struct([("tightBounds", pa.bool_())])


def lacks_row_ids(adds: pa.Table) -> pa.ChunkedArray:
    """For each add, whether its base row ID or its row commit version is missing."""
    missing = [pc.is_null(_column(adds, name)) for name in ("baseRowId", "defaultRowCommitVersion")]
    return pc.or_(*missing)


def row_counts(adds: pa.Table) -> pa.Int64Array:
    """`numRecords` of each add, from JSON or struct statistics; null if neither contains it."""
    counts = num_records(_column(adds, "stats"))
    if "stats_parsed" not in adds.column_names or not counts.null_count:
        return counts
    parsed = [_parsed_counts(chunk) for chunk in adds["stats_parsed"].chunks]
    return pc.coalesce(counts, pa.concat_arrays([pa.array([], pa.int64()), *parsed]))


def row_counts_for_ids(adds: pa.Table) -> pa.Int64Array:
    """Returns the row counts that row IDs can rely on; null for files whose footer must be read.

    Some writers count only the visible rows of a file with a deletion vector, and do not know that
    its bounds can be wide.
    """
    counts = row_counts(adds)
    marked = to_bools(pc.is_valid(_column(adds, "deletionVector")).combine_chunks())
    if marked.any():
        marked[marked] = ~_are_wide(adds.filter(booleans(marked)))
    return pc.if_else(booleans(marked), pa.scalar(None, pa.int64()), counts)


def _are_wide(adds: pa.Table) -> npt.NDArray[np.bool_]:
    """Returns which files state that their bounds are not tight."""
    texts = _column(adds, "stats")
    wide = pa.chunked_array([read_statistics(chunk, _TIGHT) for chunk in texts.chunks], _TIGHT)
    tight = pc.struct_field(wide, 0)
    if "stats_parsed" in adds.column_names:
        parsed = [align_statistics(chunk, _TIGHT).values for chunk in adds["stats_parsed"].chunks]
        tight = pc.coalesce(tight, pc.struct_field(pa.chunked_array(parsed, _TIGHT), 0))
    return ~to_bools(pc.fill_null(tight, True).combine_chunks())


def with_row_counts(stats: pa.StringArray, counts: pa.Int64Array) -> pa.StringArray:
    """The JSON statistics with `numRecords` inserted where `counts` is not null.

    Intended for rows that lack it; other members stay unchanged. Text that is not a JSON object, or
    that has another value for `numRecords`, is replaced.
    """
    members = pc.replace_substring_regex(stats, r"^\s*\{\s*", "")
    opening = pc.binary_join_element_wise('{"numRecords":', counts.cast(pa.string()), "")
    separator = pc.if_else(pc.equal(members, "}"), pa.scalar(""), pa.scalar(","))
    spliced = pc.binary_join_element_wise(opening, separator, members, "")
    # Parsing the result shows whether the text was an object, and without another `numRecords`:
    # of two equal keys the last one counts.
    valid = pc.equal(num_records(spliced), counts)
    alone = pc.binary_join_element_wise(opening, "}", "")
    filled = pc.if_else(pc.fill_null(valid, False), spliced, alone)
    return pc.if_else(pc.is_valid(counts), filled, stats)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIdFindings:
    """The state of row IDs in the files of a snapshot."""

    files: int
    """Number of live files."""
    lacking: int
    """Live files without a base row ID or without a row commit version."""
    uncounted: int
    """Lacking files whose statistics do not contain the number of rows, or perhaps that of visible
    rows.
    """
    rows: int
    """Rows of the lacking files, as far as their number is known."""
    highest: int
    """The highest row ID of any file, including tombstones; `NO_ROW_ID` if there is none."""
    last_uncounted: str | None
    """The path of the file with the highest row ID if its number of rows is not in the log; it then
    counts as one row. Ranges of row IDs are disjoint, so that no other such file matters.
    """
    shared: int | None
    """A row ID that two live files have, or None."""

    def mark_above(self, mark: int) -> int:
        """Returns the mark if no known row ID is above it, otherwise one above all row IDs."""
        if self.highest <= mark:
            return mark
        return min(self.highest + (_MOST_ROWS if self.last_uncounted else 0), 2**63 - 1)


_MOST_ROWS = 1 << 40
"""More rows than a data file has. Row IDs that are left out harm nobody; repeated ones do."""


class RowIdAudit:
    """Computes `RowIdFindings` from batches of a snapshot's files.

    Uses 16 bytes of memory for each live file that has row IDs.
    """

    def __init__(self) -> None:
        self._starts: list[npt.NDArray[np.int64]] = []
        self._counts: list[npt.NDArray[np.int64]] = []
        self._files = self._lacking = self._uncounted = self._rows = 0
        self._highest = row_tracking.NO_ROW_ID
        self._last: tuple[int, str] | None = None
        """The highest base row ID of a file without a row count, and its path."""

    def add(self, adds: pa.Table, tombstones: pa.Table) -> None:
        """Adds the live files and the tombstones of one batch.

        Raises `CorruptTableError` if a row ID exceeds 64 bits.
        """
        self._files += adds.num_rows
        without = adds.filter(lacks_row_ids(adds))
        counts = row_counts(without)
        self._lacking += without.num_rows
        self._uncounted += row_counts_for_ids(without).null_count
        self._rows += pc.sum(counts).as_py() or 0
        self._add_ids(adds, live=True)
        self._add_ids(tombstones, live=False)

    def findings(self) -> RowIdFindings:
        """The findings for all batches added so far."""
        last_uncounted = self._last
        return RowIdFindings(
            files=self._files,
            lacking=self._lacking,
            uncounted=self._uncounted,
            rows=self._rows,
            highest=self._highest,
            last_uncounted=last_uncounted[1]
            if last_uncounted is not None and last_uncounted[0] == self._highest
            else None,
            shared=self._shared_row_id(),
        )

    def _add_ids(self, files: pa.Table, *, live: bool) -> None:
        with_ids = files.filter(pc.is_valid(_column(files, "baseRowId")))
        if not with_ids.num_rows:
            return
        counts = row_counts(with_ids)
        highest = row_tracking.highest_assigned_row_id(with_ids["baseRowId"], counts)
        self._highest = max(self._highest, highest)
        uncounted = with_ids.filter(pc.is_null(counts))
        if uncounted.num_rows:
            row = pc.index(uncounted["baseRowId"], pc.max(uncounted["baseRowId"])).as_py()
            last_uncounted = (uncounted["baseRowId"][row].as_py(), uncounted["path"][row].as_py())
            self._last = max(last_uncounted, self._last or last_uncounted)
        if live:
            self._starts.append(with_ids["baseRowId"].to_numpy())
            self._counts.append(pc.fill_null(counts, 1).to_numpy())

    def _shared_row_id(self) -> int | None:
        if not self._starts:
            return None
        starts = np.concatenate(self._starts)
        shared = starts[overlapping(starts, np.concatenate(self._counts))[0]]
        return int(shared[0]) if len(shared) else None


_column = partial(column_of, types=ADD_TYPES)


def _parsed_counts(parsed: pa.StructArray) -> pa.Int64Array:
    if parsed.type.get_field_index("numRecords") < 0:
        return pa.nulls(len(parsed), pa.int64())
    counts = pc.struct_field(parsed, "numRecords").cast(pa.int64())
    return pc.if_else(pc.greater_equal(counts, 0), counts, pa.scalar(None, pa.int64()))
