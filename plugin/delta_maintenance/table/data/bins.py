"""Bins of data files that are rewritten together, their rows, and the results of rewriting them.

A bin is the unit of work, of proof and of conflict. All values can be pickled. Small sources are
read ahead, and errors tell which source must be left out.

Rows that keep their order are proved by a digest of their sequence, which costs least. If deleted
rows are left out, rows are sorted, or rows are taken out of a new file later, sums are needed: the
writer filters rows, and sums subtract those of deleted rows, so that neither relies on the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    StorageError,
    VerificationError,
)
from delta_maintenance.protocol.data_files.names import FileNaming, log_path
from delta_maintenance.protocol.data_files.ordered_digest import OrderedDigest, OrderedSum
from delta_maintenance.protocol.data_files.row_digest import LiveRowSums, RowDigest, RowSums
from delta_maintenance.protocol.statistics.ranks import Depth, is_better
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.streams import StreamingPool
from delta_maintenance.table.data.clustering.keys import Clustering
from delta_maintenance.table.data.data_file_reader import DataFileReader, FileRows, SourceFile
from delta_maintenance.table.data.data_file_writer import DataFileSpec, WrittenFile
from delta_maintenance.table.parallel import IdleWorkers, ParallelChain

RowsSum: TypeAlias = RowSums | OrderedSum
"""The digest of rows, or only their number."""
DigestKind = Literal["in-order", "sums", "counts"]

_NONE_DELETED = np.zeros(0, np.int64)


class RowsDigest:
    """The digest of the rows that are added. Not thread-safe."""

    def __init__(
        self, schema: pa.Schema, partition: Mapping[str, str | None], kind: DigestKind
    ) -> None:
        """`partition` are the partition values of the rows in the log."""
        self.kind = kind
        self._rows = schema, partition
        self._parts: list[RowsDigest] = []
        self.rows = 0
        """The number of live rows so far."""
        self.ordered = OrderedDigest(schema, partition) if kind == "in-order" else None
        """The digest of the sequence. Its columns may be added separately; then `rows` must be
        counted."""
        self._sums = LiveRowSums(RowDigest(schema), partition) if kind == "sums" else None

    def add(self, batch: pa.RecordBatch, deleted: npt.NDArray[np.int64] = _NONE_DELETED) -> None:
        """Adds a batch, without the rows at the positions `deleted`."""
        self.rows += batch.num_rows - len(deleted)
        if self._sums is not None:
            self._sums.add(batch, deleted)
        elif self.ordered is not None:
            if len(deleted):
                raise ValueError("a digest of a sequence cannot leave out rows")
            self.ordered.add(batch)

    def part(self) -> RowsDigest:
        """Returns a digest of sums for another thread, which `total` adds to this one."""
        partial_digest = RowsDigest(*self._rows, self.kind)
        self._parts.append(partial_digest)
        return partial_digest

    def total(self) -> RowsSum:
        """Returns the digest of the rows so far."""
        if self._sums is not None:
            totals = (digest.total() for digest in self._parts)
            return sum(
                (part_total for part_total in totals if isinstance(part_total, RowSums)),
                self._sums.total(),
            )
        return RowSums(rows=self.rows) if self.ordered is None else self.ordered.result(self.rows)


def render_digests(sums: list[RowsSum]) -> str:
    """Returns the digests of several bins as text: one sum for each algorithm."""
    kinds = sorted(
        {type(rows_sum) for rows_sum in sums}, key=lambda kind: kind.__name__, reverse=True
    )
    return "+".join(
        str(sum((rows_sum for rows_sum in sums if isinstance(rows_sum, kind)), kind()))
        for kind in kinds
    )


Proof = Literal["rows", "counts"]
"""What is compared before a commit: every value of every row, or only the number of rows."""

_READ_AHEAD = 4
"""The number of small files that are read ahead from a store with slow requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteSpec:
    """The settings that all bins of a run share."""

    files: DataFileSpec
    naming: FileNaming
    target_bytes: int
    """The size of new files in bytes. Once a file has 1.5 times this size, the next source begins
    another file.
    """
    proof: Proof = "rows"
    subtracts: bool = False
    """Whether rows may be taken out of the digest later, which a digest of their order cannot."""
    copied_group_bytes: int | None = None
    """The minimum average size in bytes of row groups that are copied without decoding, if they
    have the form of new ones. Smaller row groups are merged instead. None: all rows are decoded.
    """
    required_filters: frozenset[str] = frozenset()
    """The leaves without whose bloom filters no row group is copied."""
    copied_codec: str | None = None
    """The only codec of row groups that are copied; None for any."""
    clustering: Clustering | None = None
    """The order of the rows in new files; None for the order of the sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Files of one partition that are rewritten to one or a few files."""

    number: int
    sources: tuple[SourceFile, ...]
    """In the order in which their rows are written."""
    reasons: tuple[tuple[str, ...], ...]
    """The reasons for rewriting each source."""

    @property
    def partition_values(self) -> tuple[tuple[str, str | None], ...]:
        """The partition values that all sources share, as in the log."""
        return self.sources[0].partition_values if self.sources else ()

    def digest_kind(self, spec: RewriteSpec) -> DigestKind:
        """Returns the digest by which rows that keep their order are proved."""
        if spec.proof == "counts":
            return "counts"
        leaves_out = any(source.deletion_vector is not None for source in self.sources)
        return "sums" if leaves_out or spec.subtracts else "in-order"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The contiguous range of a new file that contains the live rows of a source."""

    source: int
    """The number of the source in the bin."""
    output: int
    """The number of the new file in the bin."""
    offset: int
    """The position of the first row in the new file."""
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSource:
    """A source that cannot be rewritten, and the reason."""

    source: SourceFile
    problem: str
    damaged: bool = False
    """Whether the file is missing or damaged, as opposed to unsupported by this release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredOutcome:
    """How well the new files of a bin are clustered."""

    group: str
    """The ID of the new files, which were sorted together."""
    before: Depth
    """What readers of the sources read for the values of one row on average."""
    after: Depth
    """The same for the new files, according to their statistics."""
    unbounded: str | None = None
    """A clustering column of which a new file has no bounds."""

    @property
    def is_clustered(self) -> bool:
        """Whether the new files may be called clustered."""
        return self.unbounded is None and is_better(self.before, self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenBin:
    """A bin whose new files are stored and proved, but not committed."""

    bin: Bin
    """Contains only the sources that were rewritten."""
    outputs: tuple[WrittenFile, ...]
    runs: tuple[Run, ...]
    """One run per source; empty if the rows have another order than in the sources."""
    sums: RowsSum
    """The digest of the live rows, which is the same for the sources and the new files."""
    refused: tuple[RefusedSource, ...] = ()
    copied: bool = False
    """Whether row groups were copied. Then the proof compared their bytes, and `sums` contains only
    the number of rows.
    """
    clustered: ClusteredOutcome | None = None
    """Set if the rows have the order of a curve."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the new files for the log."""
        return tuple(log_path(output.name) for output in self.outputs)


class SourceError(Exception):
    """A source that must be left out of the bin."""

    def __init__(self, source: int, problem: str, *, damaged: bool) -> None:
        self.source = source
        self.problem = problem
        self.damaged = damaged


def source_rows(
    reader: DataFileReader,
    file_bin: Bin,
    number: int,
    *,
    data: bytes | None = None,
    groups: Sequence[int] | None = None,
) -> Generator[FileRows, None, None]:
    """Yields the rows of a source of the bin, or of some of its row groups.

    `data` is the content of the file, if it was read before. Raises `SourceError` if the source
    cannot be read exactly, and `StorageError`.
    """
    batches = reader.read(file_bin.sources[number], data=data, groups=groups)
    while True:
        try:
            batch = next(batches, None)
        except StorageError:
            raise
        except DeltaMaintenanceError as error:
            damaged = isinstance(error, CorruptTableError)
            raise SourceError(number, str(error), damaged=damaged) from None
        if batch is None:
            return
        yield batch


def rows_of_sources(
    store: Store,
    reader: DataFileReader,
    file_bin: Bin,
    *,
    ahead_bytes: int,
    idle_workers: IdleWorkers | None,
    prepare: Callable[[int, pa.RecordBatch], pa.RecordBatch] | None = None,
) -> ParallelChain[tuple[FileRows, pa.RecordBatch]]:
    """Returns the rows of each source of the bin, one source after another; see `source_rows`.

    Beside them are the live rows, or what `prepare` returns for the number of the source and its
    live rows; it is called in the thread that decodes. An idle worker decodes up to `ahead_bytes`
    in advance, once it is asked for.
    """

    def prepare_source(
        number: int, data: bytes | None
    ) -> Generator[tuple[FileRows, pa.RecordBatch], None, None]:
        for file_rows in source_rows(reader, file_bin, number, data=data):
            live = file_rows.live()
            yield file_rows, live if prepare is None else prepare(number, live)

    def size(item: tuple[FileRows, pa.RecordBatch]) -> int:
        batch, live = item[0].batch, item[1]
        # Without deleted rows, both share their memory.
        return int(batch.nbytes + (live.nbytes if live.num_rows < batch.num_rows else 0))

    contents = enumerate(fetch_sources(store, reader, file_bin.sources))
    return ParallelChain(
        (prepare_source(number, data) for number, data in contents),
        count=len(file_bin.sources),
        size=size,
        max_held=ahead_bytes,
        idle_workers=idle_workers,
    )


def fetch_sources(
    store: Store, reader: DataFileReader, sources: Sequence[SourceFile]
) -> Iterator[bytes | None]:
    """Yields the content of each source, or None to read it later.

    Only small files of a remote store are read ahead.
    """
    if store.is_near or len(sources) < 2:
        yield from (None for _ in sources)
        return
    with StreamingPool(_READ_AHEAD) as pool:
        waiting: deque[Future[bytes | None]] = deque()
        upcoming = iter(sources)
        for source in upcoming:
            waiting.append(pool.submit(reader.fetch, source))
            if len(waiting) > _READ_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def require_rows(file_bin: Bin, written: int) -> None:
    """Raises `VerificationError` if the log states another number of live rows for the bin."""
    stated = [source.num_records for source in file_bin.sources]
    deleted = sum(source.deleted_rows for source in file_bin.sources)
    counted = [count for count in stated if count is not None]
    if len(counted) == len(stated) and written != sum(counted) - deleted:
        raise VerificationError(
            f"{written} rows were written where the log has {sum(counted) - deleted}",
            file=file_bin.sources[0].path,
        )
