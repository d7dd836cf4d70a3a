"""The one loop that rewrites data files, whatever the reason: some files in, new files out, proved.

A bin is the unit of work, of proof and of conflict. Its rows are read once and written in their
order; then what was written is read back from the store, and the digest of its rows has to be that
of the rows that went in, row IDs and commit versions included. What comes out has not been
committed: nobody sees it. Runs in threads of this process and on executors alike; all that goes in
and comes out can be pickled.

In memory there are, for one bin: a row group before it is encoded (`DataFileSpec.group_bytes`), the
compressed bytes of a row group of the file that is read (32 MB at most, or of the files read
ahead), and one batch.
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
"""What is compared before a commit: every value of every row, or the number of the rows."""

_READ_AHEAD = 4
"""Small files that are read while others are worked on, where a request takes its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteSpec:
    """What all bins of a run have in common."""

    files: DataFileSpec
    naming: FileNaming
    target_bytes: int
    """A new file is begun, between two sources, once one is half again as large."""
    proof: Proof = "rows"
    copied_group_bytes: int | None = None
    """The least average size of row groups that are copied without being decoded, if they are as
    new ones would be. Smaller ones are better merged. None: all rows are decoded."""
    copied_codec: str | None = None
    """The only codec of row groups that are copied; None for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Files of one partition that become one file, or a few."""

    number: int
    sources: tuple[SourceFile, ...]
    """In the order in which their rows are written."""
    reasons: tuple[tuple[str, ...], ...]
    """Why each of them is rewritten."""

    @property
    def partition_values(self) -> tuple[tuple[str, str | None], ...]:
        """The partition values of all of them, as in the log."""
        return self.sources[0].partition_values if self.sources else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where the live rows of a source lie, one behind the other."""

    source: int
    """Its number in the bin."""
    output: int
    """The number of the new file in the bin."""
    offset: int
    """The position of the first row in that file."""
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A source that cannot be rewritten, and why."""

    source: SourceFile
    problem: str
    damaged: bool = False
    """Whether the file is missing or damaged, and not only beyond this release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenBin:
    """A bin whose new files are in the store and proved. Nothing of it is committed."""

    bin: Bin
    """With the sources that were rewritten."""
    outputs: tuple[WrittenFile, ...]
    runs: tuple[Run, ...]
    """One for each source."""
    sums: RowSums
    """Of the live rows, as they were read and as they were read back."""
    refused: tuple[Refusal, ...] = ()
    copied: bool = False
    """Whether row groups were copied. The proof is then that of their bytes, and `sums` has the
    number of rows alone."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the new files, as the log will have them."""
        return tuple(log_path(output.name) for output in self.outputs)


def rewrite_bin(
    store: Store,
    work: Bin,
    spec: RewriteSpec,
    *,
    new_id: NewId = new_id,
    helpers: Helpers | None = None,
) -> RewrittenBin:
    """Rewrites one bin, in the calling thread and with the help of free workers.

    A source that cannot be carried on exactly is left out, and the bin begun anew without it. If
    none of the others has a reason of its own then, nothing is written: no outputs and no runs.
    `VerificationError` where the new files do not hold the rows of the sources; `StorageError`.
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
    """The bin made of copied row groups, None if rows have to be decoded."""
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
    """The sources of a bin, and what their footers have in common. `NotCopiedError`."""
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
    """The numbers of the sources of each new file, by the rule for rows that are decoded."""
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
    """A source that is not to be read again."""

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
        """The sums of the rows read; `VerificationError` where those written are others."""
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
        """The writer of the file under way; begins one where there is none."""
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
    """The bytes of each small source, some read ahead where the store is far; None for others."""
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
    """Whether fewer sources than planned are worth the work: two, or one with its own reason."""
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
                "files of two partitions are not to be merged",
                file=source.path,
                remedy="plan again",
            )
