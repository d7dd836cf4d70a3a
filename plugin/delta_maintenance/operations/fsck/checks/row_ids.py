"""Compares the row IDs of all live rows, including those that data files store.

Implements "Row Tracking": within a version, no row ID belongs to two rows. Rewrites and updates
store row IDs in data files, so that ranges of the log do not show whether they are unique. Row IDs
of deleted rows may occur again.

Files are read in rounds, by threads of this process or by executors, which return the row IDs as
ranges (`PARTS`). This process compares the ranges in the order of the files. The order and the
number of the compared ranges do not depend on the reader, and neither do the findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import DeltaMaintenanceError, RefusedError, StorageError
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.protocol.actions.file_columns import ADD_TYPES
from delta_maintenance.protocol.actions.paths import as_uris
from delta_maintenance.protocol.columns import integers
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.row_tracking.row_ids import (
    IdParts,
    IdRanges,
    Numbers,
    RowTrackingState,
    UsedRowIds,
    parts_of,
    row_tracking_state,
    smallest,
)
from delta_maintenance.protocol.schema.types import StructType
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.streams import StreamingPool
from delta_maintenance.table.data.data_file_reader import DataFileReader, SourceFile
from delta_maintenance.table.data.parquet.decoded_sizes import READING_BYTES
from delta_maintenance.table.data.parquet_input import GROUP_BYTES
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.snapshot import Snapshot

MOST_RANGES = 1 << 25
"""The number of ranges at which files are no longer compared: 512 MiB."""
RANGES_PER_ROUND = 1 << 21
"""The maximum number of ranges that a reader returns at a time."""
RANGES_PER_PART = 1 << 12
"""The maximum number of ranges of a part."""
_RANGES_PER_BLOCK = 1 << 16
_PARTS_PER_BLOCK = 1 << 12
"""Parts are compared in blocks, which end when they reach one of these numbers."""
_FILES_PER_ROUND = 512
_TOGETHER = 8
"""The number of files that a reader reads at a time."""
_SHARED_BYTES = 24 << 20
"""The maximum memory for decoding one of these files. A file that takes more is read while no other
such file is.
"""
MEMORY = _TOGETHER * (GROUP_BYTES + _SHARED_BYTES + 16 * RANGES_PER_ROUND) + READING_BYTES
"""The maximum memory of a reader in bytes."""

FILES = pa.schema(
    {
        "at": pa.int64(),
        "location": pa.string(),
        "size": pa.int64(),
        "deletionVector": ADD_TYPES["deletionVector"],
        "baseRowId": pa.int64(),
        "defaultRowCommitVersion": pa.int64(),
    }
)
"""The files to read, with their numbers; `location` is encoded as in the log."""
PARTS = pa.schema(
    {
        "at": pa.int64(),
        "part": pa.int64(),
        "firsts": pa.list_(pa.int64()),
        "lasts": pa.list_(pa.int64()),
        "repeated": pa.int64(),
        "complete": pa.bool_(),
    }
)
"""Row IDs of live rows: the number of the file, the number of the part, its ranges, and the
smallest row ID that is in it twice. `complete` is null if the file has further parts, and false if
the rest of the file cannot be read.
"""


_NO_IDS = IdRanges.of(np.zeros(0, np.int64))


class RowIdReader(Protocol):
    """Reads the row IDs of files, in this process or elsewhere."""

    files_per_round: int
    """The maximum number of files of a call."""

    def __call__(self, files: pa.Table, *, passed: int) -> pa.Table:
        """Returns parts (`PARTS`) of files (`FILES`), in any order.

        Omits the first `passed` parts of the first file. May omit further parts, to return at most
        `RANGES_PER_ROUND` ranges, but then omits all later ones of the same file, and returns at
        least one part of the first file.
        """


class LocalRowIds:
    """A `RowIdReader` on some threads of this process."""

    def __init__(
        self,
        store: Store,
        layout: DataFileLayout,
        *,
        files_per_round: int = _FILES_PER_ROUND,
        ranges_per_round: int = RANGES_PER_ROUND,
        ranges_per_part: int = RANGES_PER_PART,
    ) -> None:
        self._store = store
        self._reading = PartReading(
            layout=layout, most_ranges=ranges_per_round, per_part=ranges_per_part
        )
        self.files_per_round = files_per_round

    def __call__(self, files: pa.Table, *, passed: int) -> pa.Table:
        """See `RowIdReader`."""
        reading = replace(self._reading, first=files["at"][0].as_py(), passed=passed)
        return pa.Table.from_batches(reading.read(self._store, [files]), PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReading:
    """Reads the files of a round, or some of them. Can be sent to executors."""

    layout: DataFileLayout
    first: int = 0
    """The number of the first file of the round."""
    passed: int = 0
    """The number of its parts to omit."""
    most_ranges: int
    """The maximum number of ranges to return, at least `per_part`. A part without ranges counts as
    one range.
    """
    per_part: int

    def read(self, store: Store, files: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Yields `PARTS` of `FILES`, in the order of the files, until there are too many ranges.

        Holds at most `most_ranges` ranges for each of the files that it reads at a time. `files` is
        always read to its end. Errors of the store are raised.
        """
        ranges_left, alone = self.most_ranges, Lock()
        with StreamingPool(_TOGETHER) as pool:
            for table in files:
                parts: list[_Part] = []
                for first_row in range(0, table.num_rows, _TOGETHER):
                    if not ranges_left:
                        break
                    rows = table.slice(first_row, _TOGETHER).to_pylist()
                    for some_ranges in pool.map(
                        partial(self._some_parts, store, ranges_left, alone), rows
                    ):
                        fitting = _fitting(some_ranges, ranges_left)
                        parts += fitting
                        is_whole = bool(fitting) and fitting[-1].complete is not None
                        ranges_left = (
                            ranges_left - sum(part.cost for part in fitting) if is_whole else 0
                        )
                        if not ranges_left:
                            break
                if parts:
                    yield _batch(parts)

    def _some_parts(self, store: Store, most: int, alone: Lock, row: dict[str, Any]) -> list[_Part]:
        try:
            return _fitting(self._parts(store, row, _SHARED_BYTES), most)
        except RefusedError:
            with alone:
                return _fitting(self._parts(store, row, READING_BYTES), most)

    def _parts(self, store: Store, row: dict[str, Any], reading_bytes: int) -> Iterator[_Part]:
        at = row["at"]
        passed = self.passed if at == self.first else 0
        source = SourceFile.of_location(row)
        number, last = 0, _NO_IDS
        try:
            reader = DataFileReader(store, self.layout, reading_bytes=reading_bytes)
            batches = reader.read(source)
            row_ids = (rows.live().column(0).to_numpy() for rows in batches)
            for number, ranges in enumerate(parts_of(row_ids, self.per_part)):
                if number > passed:
                    yield _Part(at, number - 1, last, None)
                last = ranges
        except StorageError:
            raise
        except DeltaMaintenanceError as error:
            if isinstance(error, RefusedError) and reading_bytes < READING_BYTES:
                raise
            # The file may have changed since the last round.
            yield _Part(at, max(number, passed), _NO_IDS, complete=False)
        else:
            yield _Part(at, max(number, passed), last, complete=True)


@dataclass(frozen=True, slots=True)
class _Part:
    """A row of `PARTS`."""

    at: int
    number: int
    ranges: IdRanges
    complete: bool | None

    @property
    def cost(self) -> int:
        return max(1, len(self.ranges))


def _fitting(parts: Iterable[_Part], most: int) -> list[_Part]:
    """Returns the first parts, which have at most `most` ranges together."""
    fitting_parts = []
    for part in parts:
        most -= part.cost
        if most < 0:
            break
        fitting_parts.append(part)
    return fitting_parts


def _batch(parts: Sequence[_Part]) -> pa.RecordBatch:
    ranges = [part.ranges for part in parts]
    ends = pa.array(np.cumsum([0, *map(len, ranges)]), pa.int32())
    columns = [
        [part.at for part in parts],
        [part.number for part in parts],
        pa.ListArray.from_arrays(ends, _join([range_.firsts for range_ in ranges])),
        pa.ListArray.from_arrays(ends, _join([range_.lasts for range_ in ranges])),
        [range_.repeated for range_ in ranges],
        [part.complete for part in parts],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, PARTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PARTS)


def _join(numbers: Sequence[Numbers]) -> Numbers:
    return np.concatenate([_NO_IDS.firsts, *numbers])


def row_tracking_layout(snapshot: Snapshot) -> DataFileLayout | None:
    """Returns the layout for reading row IDs from data files; None if the table has none."""
    properties = snapshot.properties
    names = (
        properties.materialized_row_id_column,
        properties.materialized_row_commit_version_column,
    )
    state = row_tracking_state(snapshot.protocol, snapshot.metadata.configuration)
    if state is not RowTrackingState.ENABLED or not all(names):
        return None
    nothing = StructType(fields=())
    return DataFileLayout(
        columns=nothing,
        partition_columns=nothing,
        # The hidden columns are found by their names in every mode.
        mode="none",
        row_id_column=names[0],
        row_version_column=names[1],
    )


def check_row_ids(
    reader: RowIdReader,
    present: pa.Table,
    findings: Findings,
    *,
    version: int,
    progress: Progress | None = None,
) -> int:
    """Finds files with a row ID that another live row has too.

    `present` is as in `Presence`. Returns the number of files whose row IDs were not compared,
    because they cannot be read, which other checks report, or because there are too many ranges.
    Holds at most `MOST_RANGES` ranges and those of a block, and the ranges of a round.
    """
    total = int(present.num_rows)
    comparison = _Comparison(present["path"], findings, version)
    first_row = passed = 0
    most = size = reader.files_per_round
    while first_row < total and not comparison.is_full:
        files = _files(present.slice(first_row, size), first_row)
        parts, whole = _unbroken(reader(files, passed=passed), first_row)
        comparison.add(parts)
        if not parts.num_rows or parts["part"][0].as_py() != passed:
            # Otherwise the same files would be read without end.
            raise RuntimeError("the reader of row IDs omitted the part that was to come first")
        begun = int(np.count_nonzero(parts["at"].to_numpy() == first_row + whole))
        passed = begun if whole else passed + begun
        first_row += whole
        # Files with many ranges are read in small rounds, because the rest of a round is in vain.
        size = min(2 * size, most) if whole == files.num_rows else max(1, whole)
        if progress is not None:
            progress("row IDs", first_row, total)
    comparison.finish()
    return total - comparison.compared


class _Comparison:
    """Compares the parts of files, which are given in the order of the files."""

    def __init__(self, paths: pa.ChunkedArray, findings: Findings, version: int) -> None:
        self._paths = paths
        self._findings = findings
        self._version = version
        self._used = UsedRowIds()
        self._waiting = PARTS.empty_table()
        self._begun: tuple[Numbers, Numbers] = (_NO_IDS.firsts, _NO_IDS.firsts)
        """The file that continues in the next block and its smallest repeated row ID, if any."""
        self.compared = 0
        """The number of files that were compared completely."""

    @property
    def is_full(self) -> bool:
        """Whether there are too many ranges to compare further files."""
        return len(self._used) >= MOST_RANGES

    def add(self, parts: pa.Table) -> None:
        """Adds parts in the order of their files. Compares them in blocks."""
        self._waiting = pa.concat_tables([self._waiting, parts])
        ends = np.cumsum(pc.list_value_length(self._waiting["firsts"]).to_numpy())
        begin = 0
        while not self.is_full:
            before = int(ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(ends, before + _RANGES_PER_BLOCK)) + 1
            end = min(end, begin + _PARTS_PER_BLOCK)
            if end > len(ends):
                break
            self._compare(self._waiting.slice(begin, end - begin))
            begin = end
        self._waiting = self._waiting.slice(begin)

    def finish(self) -> None:
        """Compares the parts of the last block."""
        if self._waiting.num_rows and not self.is_full:
            self._compare(self._waiting)
        self._tell(*self._begun)

    def _compare(self, block: pa.Table) -> None:
        numbers = block["at"].to_numpy()
        firsts, lasts = (block[name].combine_chunks() for name in ("firsts", "lasts"))
        repeating = pc.indices_nonzero(pc.is_valid(block["repeated"])).to_numpy()
        parts = IdParts(
            firsts=firsts.flatten().to_numpy(),
            lasts=lasts.flatten().to_numpy(),
            counts=firsts.value_lengths().to_numpy(),
            repeating=repeating.astype(np.int64),
            repeated=block["repeated"].drop_null().to_numpy(),
        )
        is_used, ids = self._used.add(parts)
        self.compared += pc.sum(block["complete"]).as_py() or 0
        files, ids = smallest([self._begun, (numbers[is_used], ids)])
        ends_here = pc.is_valid(block["complete"][-1]).as_py()
        known = files < numbers[-1] + ends_here
        self._tell(files[known], ids[known])
        self._begun = files[~known], ids[~known]

    def _tell(self, files: Numbers, ids: Numbers) -> None:
        problem = pc.binary_join_element_wise(
            "another row also has the row ID", pa.array(ids).cast(pa.string()), " "
        )
        self._findings.add_files(
            "repeated-row-id",
            pa.chunked_array([problem]),
            paths=self._paths.take(integers(files)),
            version=self._version,
        )


def _files(present: pa.Table, first: int) -> pa.Table:
    """Returns the rows of `FILES`, which are numbered from `first` on."""
    columns = {
        "at": pa.array(np.arange(first, first + present.num_rows)),
        "location": as_uris(present["location"].combine_chunks()),
    }
    return pa.table(
        [columns[name] if name in columns else present[name] for name in FILES.names], schema=FILES
    )


def _unbroken(parts: pa.Table, first: int) -> tuple[pa.Table, int]:
    """Returns the parts up to the first file with an omitted one, in order, and the number of files
    before it. The files are numbered from `first` on.
    """
    parts = parts.sort_by([("at", "ascending"), ("part", "ascending")])
    whole = parts.filter(pc.is_valid(parts["complete"]))["at"].to_numpy()
    count = int(np.count_nonzero(whole == first + np.arange(len(whole))))
    return parts.filter(pc.less_equal(parts["at"], first + count)), count
