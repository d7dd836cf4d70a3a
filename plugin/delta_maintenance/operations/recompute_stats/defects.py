"""Finds the defects in the statistics of live files, from the log alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.operations.recompute_stats import ColumnAudit, RecomputeStatsOptions
from delta_maintenance.operations.rewriting.models import ReasonCount
from delta_maintenance.operations.rewriting.planning import archived_before
from delta_maintenance.protocol.columns import booleans, integers
from delta_maintenance.protocol.statistics.audit import (
    AUDITED,
    AuditedFiles,
    Mask,
    RequiredStatistics,
    audit,
    rounded_decimals,
)
from delta_maintenance.protocol.statistics.clustering import named_columns
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.active_files import ActiveFiles
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import adds_for_commits

NO_STATISTICS, UNREADABLE, NO_ROW_COUNT = "no-statistics", "unreadable", "no-row-count"
NULL_COUNTS, BOUNDS, WIDE = "null-counts", "bounds", "wide-bounds"
DECIMALS, WRITER, REQUESTED = "rounded-decimals", "writer", "requested"
COMPARED = "to-compare"
UNCERTAIN = (WRITER, COMPARED)
"""What may turn out to be right once the file is opened."""

_MOST_COLUMNS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Defects:
    """The defects of a batch of files. Masks have one element per file."""

    audited: AuditedFiles
    by_class: Mapping[str, Mask]
    without_null_count: tuple[Mask, ...]
    """One for each column that must have statistics."""
    without_bounds: tuple[Mask, ...]
    replaced: tuple[Mask, ...]
    """For each column: the files whose statistics of the column are replaced."""
    suspect: tuple[Mask, ...]
    """For each column: the files whose statistics of it are replaced unless their writer is
    trusted.
    """

    @classmethod
    def of(
        cls, adds: pa.Table, required: RequiredStatistics, options: RecomputeStatsOptions
    ) -> Self:
        """Examines live files."""
        audited, leaves = audit(adds, required), required.leaves
        nothing = np.zeros(adds.num_rows, np.bool_)
        every = np.full(adds.num_rows, options.all_files)
        nulls = tuple(audited.without_null_count(leaf) for leaf in leaves)
        bounds = tuple(audited.without_bounds(leaf) for leaf in leaves)
        decimals = tuple(rounded_decimals(adds, required, leaf) for leaf in leaves)
        suspect = tuple(audited.bounded_files(leaf) & ~audited.computed for leaf in leaves)
        is_whole = every | audited.wide
        replaced = tuple(
            is_whole | mask | bound | decimal
            for mask, bound, decimal in zip(nulls, bounds, decimals, strict=True)
        )
        broken = _any(replaced, nothing) | audited.uncounted
        # Without them, no new bounds of the file could be stated.
        replaced = tuple(
            mask | (broken & audited.lacks_boolean_bounds(leaf))
            for mask, leaf in zip(replaced, leaves, strict=True)
        )
        # Whether bounds are tight is stated for the whole file.
        replaced = tuple(mask | (broken & audited.has_vector) for mask in replaced)
        readable = ~audited.absent
        return cls(
            audited=audited,
            by_class={
                UNREADABLE: audited.unreadable,
                NO_STATISTICS: audited.absent & ~audited.unreadable,
                NO_ROW_COUNT: audited.uncounted & readable,
                NULL_COUNTS: _any(nulls, nothing) & readable,
                BOUNDS: _any(bounds, nothing) & readable,
                WIDE: audited.wide,
                DECIMALS: _any(decimals, nothing),
                WRITER: _any(suspect if options.check_writers else (), nothing),
                REQUESTED: every,
                COMPARED: np.full(adds.num_rows, options.check_files),
            },
            without_null_count=nulls,
            without_bounds=bounds,
            replaced=replaced,
            suspect=suspect,
        )

    @property
    def affected(self) -> Mask:
        """Files with any defect."""
        return _any(tuple(self.by_class.values()), self.audited.absent)

    @property
    def certain(self) -> Mask:
        """Files with a defect that the log shows."""
        masks = tuple(mask for name, mask in self.by_class.items() if name not in UNCERTAIN)
        return _any(masks, self.audited.absent)


class AuditTotals:
    """Sums the defects of all live files."""

    def __init__(self, required: RequiredStatistics) -> None:
        count = len(required.leaves)
        self._leaves = required.leaves
        self._classes: dict[str, list[int]] = {}
        self._columns = np.zeros((count, 3), np.int64)
        self.num_files = self.total_bytes = self.files = self.bytes = self.archived = 0
        self.files_without_bounds = self.bytes_without_bounds = 0

    def leave_out(self, sizes: pa.ChunkedArray) -> None:
        """Adds files that are archived, and are not examined."""
        self.num_files += len(sizes)
        self.total_bytes += pc.sum(sizes).as_py() or 0
        self.archived += len(sizes)

    def add(self, sizes: pa.ChunkedArray, defects: Defects) -> None:
        """Adds a batch of files."""
        size = np.nan_to_num(sizes.to_numpy()).astype(np.int64)
        self.num_files += len(size)
        self.total_bytes += int(size.sum())
        affected = defects.affected
        self.files += int(affected.sum())
        self.bytes += int(size[affected].sum())
        without = _any(defects.without_bounds, np.zeros(len(size), np.bool_))
        self.files_without_bounds += int(without.sum())
        self.bytes_without_bounds += int(size[without].sum())
        for name, mask in defects.by_class.items():
            total = self._classes.setdefault(name, [0, 0])
            total[0] += int(mask.sum())
            total[1] += int(size[mask].sum())
        for at, (nulls, bounds) in enumerate(
            zip(defects.without_null_count, defects.without_bounds, strict=True)
        ):
            self._columns[at] += (nulls.sum(), bounds.sum(), size[bounds].sum())

    @property
    def defects(self) -> tuple[ReasonCount, ...]:
        """Files by defect."""
        return tuple(
            ReasonCount(reason=name, files=files, bytes=size)
            for name, (files, size) in self._classes.items()
            if files
        )

    @property
    def columns(self) -> tuple[ColumnAudit, ...]:
        """Columns whose statistics are missing in any file, those with the most bytes first."""
        rows = self._columns
        order = np.lexsort((-rows[:, 0], -rows[:, 1], -rows[:, 2]))[:_MOST_COLUMNS]
        return tuple(
            ColumnAudit(
                column=self._leaves[at].name,
                clustered=self._leaves[at].clustered,
                files_without_null_count=int(rows[at, 0]),
                files_without_bounds=int(rows[at, 1]),
                bytes_without_bounds=int(rows[at, 2]),
            )
            for at in order.tolist()
            if rows[at].any()
        )


def audit_files(
    snapshot: Snapshot, options: RecomputeStatsOptions, *, now: datetime
) -> AuditTotals:
    """Examines all live files of a snapshot that are not archived. Reads the log once, and no data
    file.

    Raises the errors of `required_statistics`.
    """
    required = required_statistics(snapshot, options)

    is_archived = archived_files(snapshot, now)

    def examined(batch: ActiveFiles) -> tuple[pa.ChunkedArray, pa.ChunkedArray, Defects]:
        adds, archived = batch.adds, is_archived(batch.adds)
        left_out = adds["size"].filter(booleans(archived))
        if archived.any():
            adds = adds.filter(booleans(~archived))
        return left_out, adds["size"], Defects.of(adds, required, options)

    def totals(sound: Snapshot) -> AuditTotals:
        audit_totals = AuditTotals(required)
        batches = sound.log.scan(fields={"add": AUDITED})
        for left_out, sizes, defects in in_parallel(examined, batches):
            audit_totals.leave_out(left_out)
            audit_totals.add(sizes, defects)
        return audit_totals

    return snapshot.avoiding_damage(totals)


def affected_files(
    snapshot: Snapshot,
    required: RequiredStatistics,
    options: RecomputeStatsOptions,
    *,
    now: datetime,
) -> Iterator[pa.Table]:
    """Yields the adds of the files with a defect that are not archived, with every field as a
    commit contains it.

    Raises the errors of `adds_for_commits`, and `UnusableCheckpointError` like `Snapshot.scan`.
    """

    is_archived = archived_files(snapshot, now)

    def chosen(batch: ActiveFiles) -> pa.Table:
        defects = Defects.of(batch.adds, required, options)
        return batch.adds.filter(booleans(defects.affected & ~is_archived(batch.adds)))

    return adds_for_commits(snapshot, in_parallel(chosen, snapshot.log.scan()))


def archived_files(snapshot: Snapshot, now: datetime) -> Callable[[pa.Table], Mask]:
    """Returns a function that marks the adds of files that are archived according to the property
    `delta.timeUntilArchived`. These are not read.
    """
    before = archived_before(snapshot, now)

    def marked(adds: pa.Table) -> Mask:
        if before is None:
            return np.zeros(adds.num_rows, np.bool_)
        archived = pc.less_equal(adds["modificationTime"], before)
        is_archived: Mask = pc.fill_null(archived, False).to_numpy()
        return is_archived

    return marked


def required_statistics(
    snapshot: Snapshot, options: RecomputeStatsOptions, *, every_column: bool = False
) -> RequiredStatistics:
    """Returns the statistics that the files of a version should have, or those they can have.

    Raises `InvalidRequestError` if the options name a column that the table does not have.
    """
    protocol, metadata = snapshot.protocol, snapshot.metadata
    joining = named_columns(options.cluster_by, protocol, metadata)
    return RequiredStatistics.of(
        protocol,
        metadata,
        snapshot.domain_metadata,
        joining={column.path for column in joining},
        every_column=every_column,
    )


def _any(masks: tuple[Mask, ...], nothing: Mask) -> Mask:
    any_mask: Mask = np.logical_or.reduce([nothing, *masks])
    return any_mask


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
