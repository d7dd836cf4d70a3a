"""Row groups that are encoded in memory, to stand between copied ones in a new data file.

They are those of `DataFileWriter`, which writes them to a file in memory. Memory holds one row
group before and after it is encoded.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.checksums import crc32
from delta_maintenance.protocol.statistics.collect import StatisticsCollector
from delta_maintenance.protocol.statistics.columns import StatisticsColumns
from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.table.compact_protocol import Struct, read_struct
from delta_maintenance.table.data.copying.chunks import COLUMNS, ROW_GROUPS, NotCopiedError
from delta_maintenance.table.data.copying.frames import OwnFile
from delta_maintenance.table.data.data_file_writer import (
    GROUP_ROWS,
    DataFileSpec,
    DataFileWriter,
    memory_bytes,
)
from delta_maintenance.table.parquet_footer import read_footer

_NAME = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedGroup:
    """An encoded row group."""

    file: io.BytesIO
    tree: Struct
    metadata: pq.RowGroupMetaData
    created_by: str

    @property
    def columns(self) -> list[Struct]:
        """The column chunks."""
        return self.tree.structs(COLUMNS)


class GroupEncoder:
    """Encodes rows as row groups of the usual size."""

    def __init__(self, spec: DataFileSpec, *, names_calendar: bool) -> None:
        """`names_calendar` says whether the footer of the new file names a calendar, without which
        Spark 3 does not read early dates.
        """
        self.statistics = StatisticsCollector(spec.statistics, spec.layout.schema)
        self.dictionaries: Sequence[str] = ()
        """String columns of the last row group that repeat their values."""
        self._spec = spec
        self._names_calendar = names_calendar
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0

    def write(self, batch: pa.RecordBatch) -> Iterator[EncodedGroup]:
        """Adds rows; yields a row group once there are enough of them."""
        self._waiting.append(batch)
        self._bytes += memory_bytes(batch)
        self._rows += batch.num_rows
        if self._bytes >= self._spec.group_bytes or self._rows >= GROUP_ROWS:
            yield from self.flush()

    def flush(self) -> Iterator[EncodedGroup]:
        """Yields the remaining rows.

        Raises `NotCopiedError` if they include early dates, and the file names no calendar.
        """
        batches, self._waiting = self._waiting, []
        self._bytes = self._rows = 0
        if not batches:
            return
        data, self.dictionaries, early = _encoded(self._spec, batches, self.statistics)
        if early and not self._names_calendar:
            raise NotCopiedError("the copied row groups come from a file without a calendar")
        yield from _groups(data)


@dataclass(slots=True)
class TrackingChecksums:
    """The CRC-32 of row IDs and of row commit versions, in the order of the rows."""

    rows: int = 0
    crcs: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, batch: pa.RecordBatch | pa.Table) -> bool:
        """Adds rows with these two columns. Returns False, and adds nothing, if a value is null."""
        if any(column.null_count for column in batch.columns):
            return False
        self.rows += batch.num_rows
        for at, column in enumerate(batch.columns):
            for chunk in getattr(column, "chunks", [column]):
                values = chunk.to_numpy(zero_copy_only=True)
                self.crcs[at] = crc32(values.data.cast("B"), self.crcs[at])
        return True


def encoded_row_tracking(
    rows: pa.Table, spec: DataFileSpec
) -> tuple[EncodedGroup, TrackingChecksums]:
    """Encodes the row IDs and row commit versions of one row group, none of which is null."""
    checksums = TrackingChecksums()
    if not checksums.add(rows):
        raise AssertionError("readers complete missing row IDs")
    sink = io.BytesIO()
    _, version = rows.column_names
    pq.write_table(
        rows,
        sink,
        row_group_size=rows.num_rows,
        version="2.6",
        data_page_version=spec.page_version,
        compression=spec.codec,
        use_dictionary=[version],
        store_schema=False,
        write_page_index=True,
    )
    [group] = _groups(sink.getvalue())
    return group, checksums


def own_file(spec: DataFileSpec) -> OwnFile:
    """Returns the footer of a file with encoded row groups."""
    files = [spec.layout, spec.layout.untracked]
    nothing = StatisticsColumns(leaves=(), tight_bounds=False)
    tracked, untracked = (
        _encoded(
            DataFileSpec(layout=layout, statistics=nothing),
            (),
            StatisticsCollector(nothing, layout.schema),
        )[0]
        for layout in files
    )
    return OwnFile.of(tracked, untracked)


def _encoded(
    spec: DataFileSpec, batches: Sequence[pa.RecordBatch], statistics: StatisticsCollector
) -> tuple[bytes, Sequence[str], bool]:
    store = MemoryStore()
    with DataFileWriter(store, _NAME, spec, statistics=statistics) as writer:
        for batch in batches:
            writer.write(batch)
    return store.read(_NAME), writer.dictionaries, writer.has_early_days


def _groups(data: bytes) -> Iterator[EncodedGroup]:
    file = io.BytesIO(data)
    metadata = pq.read_metadata(file)
    footer, _ = read_footer(file)
    for at, tree in enumerate(read_struct(footer)[0].structs(ROW_GROUPS)):
        yield EncodedGroup(
            file=file,
            tree=tree,
            metadata=metadata.row_group(at),
            created_by=metadata.created_by,
        )
