"""Compares the statistics of live files with their footers and, where these do not decide, with the
live rows.

Implements the requirements of "Per-file Statistics" that only the contents of files show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_maintenance.errors import CorruptTableError, RefusedError, UnsupportedFeatureError
from delta_maintenance.operations.backfill_row_ids.batches import in_batches
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.fsck.inputs import LogHistory
from delta_maintenance.protocol.actions.file_columns import ADD_TYPES, logical_file_keys
from delta_maintenance.protocol.columns import booleans, column_of, integers, to_bools
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.statistics.as_json import render_statistics
from delta_maintenance.protocol.statistics.audit import (
    AuditedFiles,
    Mask,
    RequiredStatistics,
    audit,
)
from delta_maintenance.protocol.statistics.columns import StatisticsLeaf
from delta_maintenance.protocol.statistics.comparison import compare_column
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.data_file_reader import SourceFile, row_statistics
from delta_maintenance.table.data.footers import FooterReader, FooterStatistics
from delta_maintenance.table.read.snapshot import Snapshot

_FILES_PER_PART = 50_000
"""The number of files whose statistics are in memory at a time."""
_SCANNED = {
    "add": ("path", "deletionVector", "stats", "stats_parsed"),
    "remove": ("path", "deletionVector"),
}
_UNKNOWN_WRITER = "its writer is unknown"
_CLAUSES = {
    "wrong-statistics": "its rows contradict the statistics of",
    "loose-bounds": "bounds that are said to be exact are wider than the values of",
}
_MOST_NAMES = 200
"""The number of characters of the column names in a finding."""


def statistics_of_every_column(snapshot: Snapshot) -> RequiredStatistics | None:
    """Returns the columns that can have statistics; None if the schema is damaged, or the
    clustering columns are not known, which other checks report.
    """
    try:
        return RequiredStatistics.of(
            snapshot.protocol, snapshot.metadata, snapshot.domain_metadata, every_column=True
        )
    except (CorruptTableError, RefusedError):
        return None


def files_with_statistics(
    snapshot: Snapshot, present: pa.Table, required: RequiredStatistics, history: LogHistory | None
) -> Iterator[pa.Table]:
    """Yields live files in parts, with the columns `stats` and `writer`, which the log is read
    again for. `present` is as in `Presence`, and `snapshot` one that was read to its end.
    """
    keys = pa.concat_arrays([pa.array([], pa.string()), *logical_file_keys(present).chunks])
    writers = _writers(history, keys)
    is_left = np.ones(present.num_rows, np.bool_)

    def part(rows: np.ndarray, texts: pa.Array | pa.ChunkedArray) -> pa.Table:
        is_left[rows] = False
        at = integers(rows)
        files = present.take(at).append_column("stats", texts)
        return files.append_column("writer", writers.take(at))

    def parts() -> Iterator[pa.Table]:
        for batch in snapshot.log.scan(fields=_SCANNED):
            at = pc.index_in(logical_file_keys(batch.adds), value_set=keys)
            is_listed = pc.is_valid(at)
            adds = batch.adds.filter(is_listed)
            if adds.num_rows:
                yield part(at.filter(is_listed).to_numpy(), _texts(adds, required))
        rest = np.flatnonzero(is_left)
        if len(rest):
            yield part(rest, pa.nulls(len(rest), pa.string()))

    yield from in_batches(parts(), _FILES_PER_PART)


def _texts(adds: pa.Table, required: RequiredStatistics) -> pa.ChunkedArray:
    """Returns the statistics of files as JSON, whichever form the log has."""
    texts = column_of(adds, "stats", ADD_TYPES).cast(pa.string())
    if "stats_parsed" not in adds.column_names or not texts.null_count:
        return texts
    parsed = audit(adds, required).parsed
    return pc.coalesce(texts, render_statistics(parsed, required.parsed_type).values)


def _writers(history: LogHistory | None, keys: pa.StringArray) -> pa.StringArray:
    """Returns which engine added each file, in which version, as a clause."""
    if history is None or not len(keys):
        return pa.repeat(_UNKNOWN_WRITER, len(keys))
    rows, _ = history.files.active_rows(history.last)
    codes = history.files.codes_of(pa.chunked_array([keys]))
    rows = np.where(codes >= 0, np.append(rows, -1)[codes], -1)
    versions = np.where(history.files.are_committed(rows), history.files.versions(rows), -1)
    commits = np.array([-1, *(commit.version for commit in history.commits)], np.int64)
    texts = [_UNKNOWN_WRITER]
    texts += [
        f"added by {commit.engine_info or 'an unnamed engine'} in version {commit.version}"
        for commit in history.commits
    ]
    at = np.searchsorted(commits, versions)
    return pa.array(texts, pa.string()).take(integers(np.minimum(at, len(commits) - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsCheck:
    """Compares the statistics of files of one table. Can be sent to executors."""

    layout: DataFileLayout
    required: RequiredStatistics

    def of(self, store: Store, files: pa.Table, locations: pa.StringArray) -> ComparedFiles:
        """Returns the comparison of some files, at `locations` that are encoded as in the log."""
        audited = audit(files, self.required)
        leaves = audited.stated_columns(self.required.leaves)
        at = files.column_names.index("location")
        return ComparedFiles(
            store, self.layout, files.set_column(at, "location", locations), audited, leaves
        )


class ComparedFiles:
    """Some files, whose statistics are compared."""

    def __init__(
        self,
        store: Store,
        layout: DataFileLayout,
        files: pa.Table,
        audited: AuditedFiles,
        leaves: Sequence[StatisticsLeaf],
    ) -> None:
        self._store = store
        self._layout = layout
        self._files = files
        self._audited = audited
        self._leaves = leaves
        """The columns of which any file states something."""
        self._footers = FooterReader(store, layout, leaves)

    def read_footer(self, metadata: pq.FileMetaData) -> FooterStatistics:
        """Returns what the footer of a file says about the columns. Thread-safe."""
        return self._footers.statistics(metadata, nan_aware=False)

    def with_writers(
        self, problems: pa.ChunkedArray, affected: pa.Array | pa.ChunkedArray
    ) -> pa.ChunkedArray:
        """Adds the writers to the problems of the affected files."""
        writers = self._files["writer"].filter(affected)
        return pc.binary_join_element_wise(problems, writers, "; ")

    def add_findings(
        self, footers: Sequence[FooterStatistics | None], findings: Findings, *, version: int
    ) -> None:
        """Adds the files whose statistics their contents contradict. `footers` are those of the
        files; None for files that cannot be read.
        """
        count, leaves = self._files.num_rows, self._leaves
        rows = pa.array([None if footer is None else footer.rows for footer in footers], pa.int64())
        names = {kind: pa.repeat("", count) for kind in _CLAUSES}
        doubtful = np.zeros((len(leaves), count), np.bool_)
        for at, leaf in enumerate(leaves):
            contents = [None if footer is None else footer.bounds[at] for footer in footers]
            differences = compare_column(
                self._audited, leaf, contents, physical_rows=rows, live=False
            )
            names["wrong-statistics"] = _mark(names["wrong-statistics"], leaf, differences.wrong)
            names["loose-bounds"] = _mark(names["loose-bounds"], leaf, differences.loose)
            doubtful[at] = differences.doubtful
        doubtful &= to_bools(pc.is_valid(rows))
        for row in np.flatnonzero(doubtful.any(axis=0)).tolist():
            some = [leaves[at] for at in np.flatnonzero(doubtful[:, row]).tolist()]
            for leaf in self._wrong_columns(row, rows.slice(row, 1), some):
                mask = np.arange(count) == row
                names["wrong-statistics"] = _mark(names["wrong-statistics"], leaf, mask)
        for kind, clause in _CLAUSES.items():
            affected = pc.not_equal(names[kind], "")
            listed = pc.utf8_slice_codeunits(names[kind].filter(affected), 2, _MOST_NAMES)
            problems = pa.chunked_array([pc.binary_join_element_wise(clause, listed, " ")])
            findings.add_files(
                kind,
                self.with_writers(problems, affected),
                paths=self._files["path"].filter(affected),
                version=version,
            )

    def _wrong_columns(
        self, row: int, physical_rows: pa.Int64Array, leaves: Sequence[StatisticsLeaf]
    ) -> list[StatisticsLeaf]:
        """Returns the columns whose statistics the live rows of one file contradict."""
        file = SourceFile.of_location(self._files.slice(row, 1).to_pylist()[0])
        try:
            bounds = row_statistics(self._store, self._layout, file, leaves, live=True)
        except (CorruptTableError, RefusedError, UnsupportedFeatureError):
            # Damage is reported by the checks of data files and deletion vectors.
            return []
        one = self._audited.take(np.array([row]))
        return [
            leaf
            for leaf in leaves
            if compare_column(
                one, leaf, [bounds[leaf.path]], physical_rows=physical_rows, live=True
            ).wrong[0]
        ]


def _mark(names: pa.StringArray, leaf: StatisticsLeaf, affected: Mask) -> pa.StringArray:
    """Adds the name of a column to those of the affected files."""
    if not affected.any():
        return names
    return pc.binary_join_element_wise(
        names, pc.if_else(booleans(affected), f", {leaf.name}", ""), ""
    )
