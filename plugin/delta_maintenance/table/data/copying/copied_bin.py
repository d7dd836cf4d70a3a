"""Rewrites a bin by copying row groups, and by decoding only the rows that cannot be copied.

Row groups are decoded if they are too small, if some of their rows are deleted, or if their file
differs from a new one. The order of the sources is kept, except that small decoded ones between
copied ones are written last, so that their rows share row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from delta_maintenance.clock import NewId
from delta_maintenance.errors import VerificationError
from delta_maintenance.protocol.data_files.row_digest import RowSums
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.bins import (
    Bin,
    RewriteSpec,
    RewrittenBin,
    RowsDigest,
    Run,
    fetch_sources,
    require_rows,
    source_rows,
)
from delta_maintenance.table.data.copying.row_groups import (
    EncodedGroup,
    GroupEncoder,
    GroupSource,
    copy_file,
    encoded_row_tracking,
    own_file,
)
from delta_maintenance.table.data.copying.sources import (
    CopyBudget,
    CopySource,
    FileFrame,
    NotCopiedError,
    OwnFile,
    reading_sources,
)
from delta_maintenance.table.data.data_file_reader import (
    DataFileReader,
    FileRows,
    has_bloom_filters,
    require_bloom_filters,
)
from delta_maintenance.table.data.data_file_writer import DataFileSpec, WrittenFile, leaf_paths
from delta_maintenance.table.data.deleted_rows import DeletedRows
from delta_maintenance.table.data.locations import location_of
from delta_maintenance.table.data.parquet.footers import (
    COLUMNS,
    doubtful_columns,
    leaves_with_nan,
    without_bounds,
)
from delta_maintenance.table.data.parquet.thrift import Struct
from delta_maintenance.table.data.parquet_input import ParquetInput

_BUDGET = CopyBudget(chunks=10_000, index_bytes=32 << 20)
"""The metadata of copied row groups that a bin holds; sources beyond it are decoded."""
_MOST_TRACKED = 1 << 22
"""The maximum number of rows of a row group whose row IDs are encoded; 64 MiB before encoding."""
_COPIED_REASONS = frozenset({"small", "deleted-rows"})
"""The reasons for rewriting a file whose row groups may be copied."""
_CODECS = {
    "SNAPPY": "snappy",
    "ZSTD": "zstd",
    "GZIP": "gzip",
    "BROTLI": "brotli",
    "UNCOMPRESSED": "none",
}
"""The names of codecs in properties by their names in Arrow, for codecs that can be written."""


def copied_bin(
    store: Store, file_bin: Bin, spec: RewriteSpec, *, new_id: NewId
) -> RewrittenBin | None:
    """Rewrites a bin; None if no row group can be copied, so that all rows must be decoded.

    Raises `SourceError` for a source that must be left out, `VerificationError` if the new files do
    not contain the rows of the sources, `LostBloomFilters` if encoded rows would lack filters of a
    source, and `StorageError`.
    """
    min_bytes = spec.copied_group_bytes
    if min_bytes is None or all(source.size < min_bytes for source in file_bin.sources):
        return None
    try:
        choice = _chosen(store, file_bin, spec, min_bytes)
        if choice is None:
            return None
        _require_bloom_filters(choice.sources, spec.files)
        return _Copy(store, file_bin, spec, choice, new_id).run()
    except NotCopiedError:
        return None


def copied_sources(store: Store, file_bin: Bin, spec: RewriteSpec) -> frozenset[int]:
    """Returns the numbers of the sources of which `copied_bin` copies row groups.

    Raises `SourceError` for a damaged source, and `StorageError`.
    """
    min_bytes = spec.copied_group_bytes
    try:
        choice = None if min_bytes is None else _chosen(store, file_bin, spec, min_bytes)
    except NotCopiedError:
        choice = None
    sources = () if choice is None else choice.sources
    return frozenset(source.number for source in sources if source.copy is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A source of a bin, and what happens to its row groups."""

    number: int
    size: int
    copy: CopySource | None
    """None if the whole file is decoded."""
    copied: tuple[int, ...] = ()
    decoded: tuple[int, ...] = ()
    """Row groups of which some rows are deleted. Those without live rows are in neither tuple."""

    @property
    def is_tracked(self) -> bool:
        """Whether copied row groups contain all row IDs, or need none."""
        return self.copy is None or all(self.copy.tracked[at] for at in self.copied)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    sources: Sequence[_Source]
    """In the order in which they are written."""
    frame: FileFrame
    codec: str
    """The codec of the new files, as in properties."""


def _chosen(store: Store, file_bin: Bin, spec: RewriteSpec, min_bytes: int) -> _Choice | None:
    """Opens the sources and chooses the row groups to copy; None if there are none.

    Raises `NotCopiedError` if the other rows cannot be added to the copied ones.
    """
    own_frame = own_file(spec.files)
    codecs = _required_codecs(file_bin, spec)
    deleted = DeletedRows(store)
    sources = []
    budget = _BUDGET
    for number, source in enumerate(file_bin.sources):
        copy = _open_source(store, file_bin, number, spec, own_frame, min_bytes, budget)
        candidate = _Source(number=number, size=source.size, copy=None)
        if copy is not None and codecs in (None, copy.frame.codecs):
            with reading_sources():
                gone = deleted.of(source.deletion_vector, copy.metadata.num_rows)
            candidate = _divide_groups(candidate, copy, gone)
        if candidate.copy is not None:
            budget = budget.without(candidate.copy)
        sources.append(candidate)
    frame, together = _largest_family(sources)
    if frame is None:
        return None
    copied = {source.number: source for source in together}
    decoded_sources = (replace(member, copy=None, copied=(), decoded=()) for member in sources)
    ordered = _order_sources(
        [copied.get(member.number, member) for member in decoded_sources], min_bytes
    )
    encodes = any(source.copy is None or source.decoded for source in ordered)
    if encodes or not all(source.is_tracked for source in ordered):
        joined = frame.with_encoded(own_frame.frame, rows=encodes)
        if joined is None or not frame.codecs <= _CODECS.keys() or len(frame.codecs) != 1:
            raise NotCopiedError("encoded columns do not fit the copied row groups")
        frame = joined
    codec = min(frame.codecs)
    return _Choice(sources=ordered, frame=frame, codec=_CODECS.get(codec, codec.lower()))


def _largest_family(sources: Sequence[_Source]) -> tuple[FileFrame | None, list[_Source]]:
    """Returns the sources with most bytes whose row groups fit into one file, and their frame.

    If not all sources fit, only row groups to which encoded ones can be added are copied.
    """
    families: list[tuple[FileFrame, list[_Source]]] = []
    for source in sources:
        if source.copy is None:
            continue
        for at, (frame, members) in enumerate(families):
            joined = frame.join(source.copy.frame)
            if joined is not None:
                families[at] = joined, [*members, source]
                break
        else:
            families.append((source.copy.frame, [source]))
    usable = [family for family in families if family[0].is_own or len(family[1]) == len(sources)]
    if not usable:
        return None, []
    return max(usable, key=lambda family: sum(source.size for source in family[1]))


def _order_sources(sources: Sequence[_Source], min_bytes: int) -> list[_Source]:
    """Moves decoded sources that would make a small row group to the end."""
    ahead: list[_Source] = []
    behind: list[_Source] = []
    for is_decoded, group in groupby(sources, key=lambda source: source.copy is None):
        members = list(group)
        is_small = is_decoded and sum(source.size for source in members) < min_bytes
        (behind if is_small else ahead).extend(members)
    return [*ahead, *behind]


def _required_codecs(file_bin: Bin, spec: RewriteSpec) -> frozenset[str] | None:
    """Returns the only codecs of row groups that are copied, by their names in Arrow.

    None for any. If a property of the footer is a reason, new files have the codec of the run.
    """
    codec = spec.copied_codec
    if codec is None and not all(
        _COPIED_REASONS.issuperset(bin_reasons) for bin_reasons in file_bin.reasons
    ):
        codec = spec.files.codec
    names = {of: name for name, of in _CODECS.items()}
    return None if codec is None else frozenset({names.get(codec.lower(), codec.upper())})


def _open_source(
    store: Store,
    file_bin: Bin,
    number: int,
    spec: RewriteSpec,
    own_frame: OwnFile,
    min_bytes: int,
    budget: CopyBudget,
) -> CopySource | None:
    """Opens a source; None if its rows must be decoded, which then reports any errors."""
    source = file_bin.sources[number]
    if source.size < min_bytes or not _COPIED_REASONS.issuperset(file_bin.reasons[number]):
        return None
    if spec.files.layout.tracks_rows and None in source.row_ids:
        return None
    try:
        with reading_sources():
            opened = partial(store.open, location_of(store, source.path))
            copy_source = CopySource.of(
                opened, spec.files, own_frame, size=source.size, min_bytes=min_bytes, budget=budget
            )
    except NotCopiedError:
        return None
    if copy_source is None or source.num_records not in (None, copy_source.metadata.num_rows):
        return None
    if not has_bloom_filters(copy_source.metadata, spec.required_filters):
        return None
    return copy_source


def _divide_groups(source: _Source, copy: CopySource, deleted: BitMap64) -> _Source:
    """Divides the row groups of a source into copied and decoded ones."""
    metadata = copy.metadata
    rows = np.array([metadata.row_group(at).num_rows for at in range(len(copy.groups))])
    ends = [*copy.starts, metadata.num_rows]
    gone = np.diff([deleted.rank(end - 1) if end else 0 for end in ends])
    is_copied = (gone == 0) & (rows > 0)
    is_copied &= np.array(copy.tracked) | (rows <= _MOST_TRACKED)
    copied = tuple(np.flatnonzero(is_copied).tolist())
    if not copied:
        return source
    decoded = tuple(np.flatnonzero(~is_copied & (gone < rows)).tolist())
    return replace(source, copy=copy, copied=copied, decoded=decoded)


def _require_bloom_filters(sources: Sequence[_Source], files: DataFileSpec) -> None:
    """Demands for encoded rows the bloom filters of copied row groups."""
    if any(source.copy is None or source.decoded for source in sources):
        for source in sources:
            if source.copy is not None:
                metadata = source.copy.metadata
                require_bloom_filters(metadata, files.layout.schema, names=files.bloom_filters)


class _Copy:
    def __init__(
        self, store: Store, file_bin: Bin, spec: RewriteSpec, choice: _Choice, new_id: NewId
    ) -> None:
        self._store = store
        self._work = file_bin
        self._spec = spec
        self._choice = choice
        self._new_id = new_id
        self._files = replace(spec.files, codec=choice.codec)
        layout = spec.files.layout
        untracked = layout.untracked.schema
        self._untracked = len(leaf_paths(untracked, untracked.names))
        self._partition = dict(file_bin.partition_values)
        self._digest_kind = file_bin.digest_kind(spec)
        self._reader = DataFileReader(store, layout, bloom_filters=self._files.bloom_filters)
        self._tracking_reader = DataFileReader(store, layout.row_tracking)
        # Row IDs of deleted rows are read as well, and needed for none.
        self._whole = replace(
            file_bin,
            sources=tuple(replace(source, deletion_vector=None) for source in file_bin.sources),
        )
        self._runs: list[Run] = []
        self._outputs: list[WrittenFile] = []
        self._written = 0

    def run(self) -> RewrittenBin:
        """Writes and proves the new files."""
        for group in _parts(self._choice.sources, self._spec.target_bytes):
            self._outputs.append(self._write(group))
        rows = sum(output.rows for output in self._outputs)
        require_rows(self._work, rows)
        return RewrittenBin(
            bin=self._work,
            outputs=tuple(self._outputs),
            runs=tuple(sorted(self._runs, key=lambda run: run.source)),
            sums=RowSums(rows=rows),
            copied=True,
        )

    def _write(self, group: Sequence[_Source]) -> WrittenFile:
        name = self._spec.naming.name(
            self._partition, len(self._outputs), self._new_id(), self._choice.codec
        )
        frame = self._choice.frame
        encoder = GroupEncoder(self._files, names_calendar=frame.names_calendar)
        digest = RowsDigest(self._files.layout.schema, self._partition, self._digest_kind)
        self._written = 0
        written, sums_read = copy_file(
            self._store,
            name,
            self._groups(group, encoder, digest),
            frame,
            self._files,
            encoded=encoder.statistics,
            partition=self._partition,
            kind=self._digest_kind,
        )
        expected = digest.total()
        if sums_read != expected:
            raise VerificationError(
                f"the rows that were encoded are not those that were read: {sums_read} instead of "
                f"{expected}",
                file=name,
            )
        if not written.rows:
            raise NotCopiedError("a new file would have no rows")
        if written.rows != self._written:
            raise VerificationError(
                f"{written.rows} rows were written where {self._written} were read", file=name
            )
        return written

    def _groups(
        self, group: Sequence[_Source], encoder: GroupEncoder, digest: RowsDigest
    ) -> Iterator[GroupSource]:
        """Yields all row groups of a new file."""
        decoded = [self._work.sources[member.number] for member in group if member.copy is None]
        contents = fetch_sources(self._store, self._reader, decoded)
        for source in group:
            offset = self._written
            if source.copy is None:
                rows = source_rows(self._reader, self._work, source.number, data=next(contents))
                yield from self._encode_rows(rows, encoder, digest)
            else:
                yield from self._mix_groups(source, source.copy, encoder, digest)
            run = Run(
                source=source.number,
                output=len(self._outputs),
                offset=offset,
                rows=self._written - offset,
            )
            self._runs.append(run)
        yield from map(_of_encoded, encoder.flush())

    def _mix_groups(
        self, source: _Source, copy: CopySource, encoder: GroupEncoder, digest: RowsDigest
    ) -> Iterator[GroupSource]:
        missing = [at for at in source.copied if not copy.tracked[at]]
        tracking = source_rows(self._tracking_reader, self._whole, source.number, groups=missing)
        copied = frozenset(source.copied)
        order = sorted(copied.union(source.decoded))
        with reading_sources():
            created_by = copy.metadata.created_by
            file = copy.opened()
        with file:
            for is_copied, groups in groupby(order, key=copied.__contains__):
                if not is_copied:
                    rows = source_rows(self._reader, self._work, source.number, groups=list(groups))
                    yield from self._encode_rows(rows, encoder, digest)
                    continue
                yield from map(_of_encoded, encoder.flush())
                for at in groups:
                    group_source = GroupSource(
                        tree=copy.groups[at],
                        metadata=copy.metadata.row_group(at),
                        created_by=created_by,
                        chunks=[(file, chunk) for chunk in self._chunks(copy, at)],
                        origin="first" if at == source.copied[0] else "next",
                    )
                    self._written += group_source.metadata.num_rows
                    yield (
                        group_source
                        if copy.tracked[at]
                        else self._add_row_tracking(group_source, tracking)
                    )

    def _chunks(self, copy: CopySource, group: int) -> list[Struct]:
        """Returns the column chunks of a row group, without the bounds of those with NaN."""
        chunks, schema = copy.groups[group].structs(COLUMNS), self._spec.files.layout.schema
        columns = doubtful_columns(chunks, schema, copy.metadata.created_by)
        if columns:
            with reading_sources(), ParquetInput(copy.opened()) as parquet:
                for batch in parquet.batches(columns, (group,)):
                    for leaf in leaves_with_nan(batch, schema):
                        chunks[leaf] = without_bounds(chunks[leaf])
        return chunks

    def _add_row_tracking(self, group: GroupSource, tracking: Iterator[FileRows]) -> GroupSource:
        """Adds the columns of row tracking to a copied row group."""
        batches, missing = [], group.metadata.num_rows
        while missing > 0:
            batch = next(tracking).batch
            batches.append(batch)
            missing -= batch.num_rows
        rows = pa.Table.from_batches(batches)
        encoded, checksums = encoded_row_tracking(rows, self._files)
        return replace(
            group,
            chunks=[
                *group.chunks[: self._untracked],
                *((encoded.file, chunk) for chunk in encoded.columns),
            ],
            tracking=checksums,
        )

    def _encode_rows(
        self, batches: Iterator[FileRows], encoder: GroupEncoder, digest: RowsDigest
    ) -> Iterator[GroupSource]:
        """Encodes decoded rows; yields row groups that are complete."""
        for rows in batches:
            digest.add(rows.batch, rows.gone())
            live = rows.live()
            if live.num_rows:
                self._written += live.num_rows
                yield from map(_of_encoded, encoder.write(live))
                self._reader.dictionaries = encoder.dictionaries


def _of_encoded(group: EncodedGroup) -> GroupSource:
    return GroupSource(
        tree=group.tree,
        metadata=group.metadata,
        created_by=group.created_by,
        chunks=[(group.file, chunk) for chunk in group.columns],
        origin="encoded",
    )


def _parts(sources: Sequence[_Source], target: int) -> Iterator[list[_Source]]:
    """Yields the sources of each new file, by the same rule as if all rows were decoded."""
    group: list[_Source] = []
    written = 0
    for source in sources:
        if group and written >= target * 3 // 2:
            yield group
            group, written = [], 0
        group.append(source)
        written += source.size
    if group:
        yield group
