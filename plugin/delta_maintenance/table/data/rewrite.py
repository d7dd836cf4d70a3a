"""Rewrites data files, for any reason, and proves that the new files contain the same rows.

A bin is the unit of work, of proof and of conflict. Its rows are read once and written in the same
order. The new files are then read back from the store, and the digest of their rows must equal that
of the rows that were read, including row IDs and commit versions. The new files are not committed
here, so readers do not see them. This module runs in threads of this process and on executors; all
arguments and results can be pickled.

For one bin, memory holds a row group before it is encoded (`DataFileSpec.group_bytes`), the
compressed bytes of a row group of the current source (at most 32 MiB, or the files read ahead), and
one batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from delta_maintenance.clock import NewId, new_id
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
    StorageError,
    VerificationError,
)
from delta_maintenance.protocol.data_files.names import FileNaming, log_path
from delta_maintenance.protocol.data_files.row_digest import LiveRowSums, RowDigest, RowSums
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.copy_source import CopySource, FileFrame
from delta_maintenance.table.data.data_file_reader import DataFileReader, SourceFile
from delta_maintenance.table.data.data_file_writer import (
    DataFileSpec,
    DataFileWriter,
    WrittenFile,
)
from delta_maintenance.table.data.helpers import Helpers
from delta_maintenance.table.data.places import place_of
from delta_maintenance.table.data.read_back import read_back
from delta_maintenance.table.data.row_group_copy import (
    MOST_CHUNKS,
    NotCopiedError,
    copy_file,
    reading_sources,
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
    copied_group_bytes: int | None = None
    """The minimum average size in bytes of row groups that are copied without decoding, if they
    have the form of new ones. Smaller row groups are merged instead. None: all rows are decoded.
    """
    copied_codec: str | None = None
    """The only codec of row groups that are copied; None for any."""


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
class Refusal:
    """A source that cannot be rewritten, and the reason."""

    source: SourceFile
    problem: str
    damaged: bool = False
    """Whether the file is missing or damaged, as opposed to unsupported by this release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenBin:
    """A bin whose new files are stored and proved, but not committed."""

    bin: Bin
    """Contains only the sources that were rewritten."""
    outputs: tuple[WrittenFile, ...]
    runs: tuple[Run, ...]
    """One run per source."""
    sums: RowSums
    """The digest of the live rows, which is the same for the sources and the new files."""
    refused: tuple[Refusal, ...] = ()
    copied: bool = False
    """Whether row groups were copied. Then the proof compared their bytes, and `sums` contains only
    the number of rows.
    """

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the new files for the log."""
        return tuple(log_path(output.name) for output in self.outputs)


def rewrite_bin(
    store: Store,
    work: Bin,
    spec: RewriteSpec,
    *,
    new_id: NewId = new_id,
    helpers: Helpers | None = None,
) -> RewrittenBin:
    """Rewrites one bin, in the calling thread and in idle workers.

    A source that cannot be preserved exactly is left out, and the bin is started again without it.
    If the remaining sources are then not worth rewriting, nothing is written: the result has
    neither outputs nor runs. Raises `VerificationError` if the new files do not contain the rows of
    the sources, and `StorageError`.
    """
    refused: list[Refusal] = []
    while True:
        if not work.sources or (refused and not _still_worth(work)):
            nothing = replace(work, sources=(), reasons=())
            return RewrittenBin(
                bin=nothing, outputs=(), runs=(), sums=RowSums(), refused=tuple(refused)
            )
        _require_one_partition(work)
        copied = _copied_bin(store, work, spec, new_id)
        if copied is not None:
            return replace(copied, refused=tuple(refused))
        attempt = _Attempt(store, work, spec, new_id, helpers)
        try:
            attempt.run()
        except _SourceError as error:
            source = work.sources[error.source]
            refusal = Refusal(source=source, problem=error.problem, damaged=error.damaged)
            refused.append(refusal)
            work = _without(work, error.source)
            continue
        return RewrittenBin(
            bin=work,
            outputs=tuple(attempt.outputs),
            runs=tuple(attempt.runs),
            sums=attempt.proved(),
            refused=tuple(refused),
        )


def _copied_bin(store: Store, work: Bin, spec: RewriteSpec, new_id: NewId) -> RewrittenBin | None:
    """Rewrites the bin by copying row groups; None if rows must be decoded."""
    least = spec.copied_group_bytes
    if least is None or any(
        source.size < least or source.deletion_vector is not None for source in work.sources
    ):
        return None
    if any(reason != "small" for reasons in work.reasons for reason in reasons):
        return None
    outputs: list[WrittenFile] = []
    runs: list[Run] = []
    try:
        sources, frame = _copy_sources(store, work, spec)
        codec = min(frame.codecs).lower()
        for part in _parts([source.size for source in work.sources], spec.target_bytes):
            name = spec.naming.name(dict(work.partition_values), len(outputs), new_id(), codec)
            offset = 0
            for number in part:
                rows = sources[number].metadata.num_rows
                run = Run(source=number, output=len(outputs), offset=offset, rows=rows)
                runs.append(run)
                offset += rows
            copies = [sources[number] for number in part]
            proves = spec.proof == "rows"
            outputs.append(copy_file(store, name, copies, frame, spec.files, proves=proves))
    except NotCopiedError:
        return None
    return RewrittenBin(
        bin=work,
        outputs=tuple(outputs),
        runs=tuple(runs),
        sums=RowSums(rows=sum(output.rows for output in outputs)),
        copied=True,
    )


def _copy_sources(store: Store, work: Bin, spec: RewriteSpec) -> tuple[list[CopySource], FileFrame]:
    """Opens the sources of a bin, and returns them with their common frame.

    Raises `NotCopiedError` if their rows must be decoded.
    """
    sources: list[CopySource] = []
    frame: FileFrame | None = None
    chunks = 0
    for source in work.sources:
        with reading_sources():
            opened = partial(store.open, place_of(store, source.path))
            found = CopySource.of(opened, spec.files, least=spec.copied_group_bytes or 0)
        if found is None or source.num_records not in (None, found.metadata.num_rows):
            raise NotCopiedError("its row groups differ from those of a new file")
        chunks += found.chunks
        frame = found.frame if frame is None else frame.joined(found.frame)
        if frame is None or chunks > MOST_CHUNKS:
            raise NotCopiedError("the footers differ, or are too large together")
        sources.append(found)
    codec = spec.copied_codec
    if frame is None or (codec is not None and frame.codecs != {codec.upper()}):
        raise NotCopiedError("the table asks for another codec")
    return sources, frame


def _parts(sizes: Sequence[int], target: int) -> Iterator[list[int]]:
    """Yields the numbers of the sources of each new file, by the same rule as for decoded rows."""
    part: list[int] = []
    written = 0
    for number, size in enumerate(sizes):
        if part and written >= target * 3 // 2:
            yield part
            part, written = [], 0
        part.append(number)
        written += size
    if part:
        yield part


class _SourceError(Exception):
    """A source that must be left out of the bin."""

    def __init__(self, source: int, problem: str, *, damaged: bool) -> None:
        self.source = source
        self.problem = problem
        self.damaged = damaged


class _Attempt:
    def __init__(
        self,
        store: Store,
        work: Bin,
        spec: RewriteSpec,
        new_id: NewId,
        helpers: Helpers | None,
    ) -> None:
        self._store = store
        self._work = work
        self._spec = spec
        self._new_id = new_id
        self._helpers = helpers
        self._partition: Mapping[str, str | None] = dict(work.partition_values)
        self._digest = RowDigest(spec.files.layout.schema)
        self._digested = LiveRowSums(self._digest, self._partition)
        self._read = RowSums()
        self._writers: list[DataFileWriter] = []
        self.outputs: list[WrittenFile] = []
        self.runs: list[Run] = []

    def run(self) -> None:
        """Writes the new files."""
        reader = DataFileReader(self._store, self._spec.files.layout)
        with ExitStack() as open_file:
            for number, data in enumerate(_fetched(self._store, reader, self._work.sources)):
                if self._writers and self._writers[-1].written >= self._spec.target_bytes * 3 // 2:
                    open_file.close()
                self._copy(number, data, reader, open_file)
        self._read += self._digested.total()
        self.outputs = [writer.result() for writer in self._writers]

    def proved(self) -> RowSums:
        """Returns the digest of the rows; `VerificationError` if the written rows differ."""
        expected = self._read
        stated = [source.num_records for source in self._work.sources]
        deleted = sum(source.deleted_rows for source in self._work.sources)
        counted = [count for count in stated if count is not None]
        written = sum(output.rows for output in self.outputs)
        if len(counted) == len(stated) and written != sum(counted) - deleted:
            raise VerificationError(
                f"{written} rows were written where the log has {sum(counted) - deleted}",
                file=self._work.sources[0].path,
            )
        found = RowSums()
        for output, writer in zip(self.outputs, self._writers, strict=True):
            found += read_back(
                self._store,
                output,
                self._spec.files.layout,
                self._digest if self._spec.proof == "rows" else None,
                partition=self._partition,
                dictionaries=writer.dictionaries,
                helpers=self._helpers,
            )
        if found != expected:
            raise VerificationError(
                f"the rows that were written are not those that were read: {found} instead of "
                f"{expected}",
                file=self._work.sources[0].path,
            )
        return expected

    def _copy(
        self, number: int, data: bytes | None, reader: DataFileReader, open_file: ExitStack
    ) -> None:
        source = self._work.sources[number]
        offset: int | None = None
        rows = 0
        batches = reader.read(source, data=data)
        while True:
            try:
                found = next(batches, None)
            except StorageError:
                raise
            except DeltaMaintenanceError as error:
                damaged = isinstance(error, CorruptTableError)
                raise _SourceError(number, str(error), damaged=damaged) from None
            if found is None:
                break
            if self._spec.proof == "rows":
                self._digested.add(found.batch, found.gone())
            else:
                self._read += RowSums(rows=found.batch.num_rows - len(found.gone()))
            live = found.live()
            if not live.num_rows:
                continue
            writer = self._writer(open_file)
            offset = writer.rows if offset is None else offset
            writer.write(live)
            rows += live.num_rows
            reader.dictionaries = writer.dictionaries
        output = max(0, len(self._writers) - 1)
        self.runs.append(Run(source=number, output=output, offset=offset or 0, rows=rows))

    def _writer(self, open_file: ExitStack) -> DataFileWriter:
        """Returns the writer of the current file; begins a new file if there is none."""
        if not self._writers or self._writers[-1].is_closed:
            codec = self._spec.files.codec
            name = self._spec.naming.name(
                self._partition, len(self._writers), self._new_id(), codec
            )
            writer = DataFileWriter(self._store, name, self._spec.files, self._helpers)
            self._writers.append(open_file.enter_context(writer))
        return self._writers[-1]


def _fetched(
    store: Store, reader: DataFileReader, sources: Sequence[SourceFile]
) -> Iterator[bytes | None]:
    """Yields the content of each source, or None to read it later.

    Only small files of a remote store are read ahead.
    """
    if store.is_near or len(sources) < 2:
        yield from (None for _ in sources)
        return
    with ThreadPoolExecutor(_READ_AHEAD) as pool:
        waiting: deque[Future[bytes | None]] = deque()
        upcoming = iter(sources)
        for source in upcoming:
            waiting.append(pool.submit(reader.fetch, source))
            if len(waiting) > _READ_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _still_worth(work: Bin) -> bool:
    """Whether the remaining sources are worth rewriting: two, or one with a reason of its own."""
    return len(work.sources) > 1 or any(reason != "small" for reason in work.reasons[0])


def _without(work: Bin, number: int) -> Bin:
    kept = [at for at in range(len(work.sources)) if at != number]
    return replace(
        work,
        sources=tuple(work.sources[at] for at in kept),
        reasons=tuple(work.reasons[at] for at in kept),
    )


def _require_one_partition(work: Bin) -> None:
    for source in work.sources:
        if source.partition_values != work.partition_values:
            raise RefusedError(
                "files of different partitions must not be merged",
                file=source.path,
                remedy="plan again",
            )
