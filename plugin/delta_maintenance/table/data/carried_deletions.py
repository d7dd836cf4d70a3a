"""Carries rows that were deleted during a rewrite over to the new files.

The new files either get deletion vectors or are written again without these rows. Both results are
verified: a vector is read back, and the rows that it marks must have the digest of the rows that
were deleted from the sources; the digest of a file that was written again must equal the former
digest minus that of the deleted rows. If a clustering changed the order of the rows, they are found
by their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from delta_maintenance.clock import NewId
from delta_maintenance.errors import VerificationError
from delta_maintenance.protocol.actions.deletion_vectors import (
    STORED_RELATIVE,
    DeletionVectorDescriptor,
    encode_bitmap,
    write_file,
    z85_encode,
)
from delta_maintenance.protocol.data_files.row_digest import RowDigest, RowSums, row_sums
from delta_maintenance.storage.core.base import Store, new_file
from delta_maintenance.table.data.bins import Bin, RewriteSpec, RewrittenBin, RowsDigest, Run
from delta_maintenance.table.data.data_file_reader import DataFileReader, SourceFile
from delta_maintenance.table.data.deleted_rows import (
    DeletedRows,
    all_rows,
    carry_over,
    deleted_between,
    newly_deleted,
)
from delta_maintenance.table.data.read_back import read_back
from delta_maintenance.table.data.rewrite import rewrite_bin

Hashes = npt.NDArray[np.uint64]

_NONE = np.zeros(0, np.uint64)
COMPLETE = "all rows"
"""The state of a source whose rows were all removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateDeletions:
    """The rows of a bin that were deleted after the bin was read."""

    by_source: Mapping[int, BitMap64]
    """Physical positions in each source with such rows, by the number of the source in the bin."""
    new_positions: Mapping[int, BitMap64]
    """The positions of the same rows in the new file with the rows of this source."""
    by_output: Mapping[int, BitMap64]
    """The positions of all such rows in the new files, by the number of the file in the bin."""


def late_deletions(
    store: Store, done: RewrittenBin, now: Mapping[int, DeletionVectorDescriptor | None | str]
) -> LateDeletions | None:
    """Returns the rows that were deleted from the sources of a bin since it was read.

    `now` maps each changed source to its current deletion vector or to `COMPLETE`. None if deleted
    rows were restored, or if the sources do not match the bin; the bin cannot be used then.
    """
    vectors = DeletedRows(store)
    by_source: dict[int, BitMap64] = {}
    new_positions: dict[int, BitMap64] = {}
    by_output: dict[int, BitMap64] = {}
    for number, state in now.items():
        source, run = done.bin.sources[number], done.runs[number]
        rows = source.num_records
        physical = run.rows + source.deleted_rows if rows is None else rows
        read = vectors.of(source.deletion_vector, physical)
        if isinstance(state, str):
            gone: BitMap64 | None = all_rows(0, physical) - read
            moved: BitMap64 | None = all_rows(run.offset, run.rows)
        else:
            gone = newly_deleted(read, vectors.of(state, physical))
            if gone is None:
                return None
            moved = carry_over(gone, read=read, offset=run.offset, live=run.rows)
        if gone is None or moved is None or len(gone) != len(moved):
            return None
        if gone:
            by_source[number], new_positions[number] = gone, moved
            by_output[run.output] = by_output.get(run.output, BitMap64()) | moved
    return LateDeletions(by_source=by_source, new_positions=new_positions, by_output=by_output)


def late_deletions_by_value(
    store: Store,
    done: RewrittenBin,
    now: Mapping[int, DeletionVectorDescriptor | None | str],
    spec: RewriteSpec,
) -> LateDeletions | None:
    """Like `late_deletions`, for a bin whose rows have another order than in the sources.

    Reads the deleted rows from the sources, and finds rows with the same hashes in the new files.
    Rows that are equal in every column can be exchanged. None as in `late_deletions`, and if the
    log does not contain the number of rows of a source. `VerificationError` if a row is not found.
    """
    vectors = DeletedRows(store)
    layout, partition = spec.files.layout, dict(done.bin.partition_values)
    digest, sources = RowDigest(layout.schema), DataFileReader(store, layout)
    by_source: dict[int, BitMap64] = {}
    hashes: list[Hashes] = []
    for number, state in now.items():
        source = done.bin.sources[number]
        rows = source.num_records
        if rows is None:
            return None
        read = vectors.of(source.deletion_vector, rows)
        gone = (
            all_rows(0, rows) - read
            if isinstance(state, str)
            else newly_deleted(read, vectors.of(state, rows))
        )
        if gone is None:
            return None
        if gone:
            by_source[number] = gone
            hashes += _hashes_at(sources, source, gone, digest, partition)
    sought, counts_left = np.unique(np.concatenate([_NONE, *hashes]), return_counts=True)
    outputs = DataFileReader(store, layout.written)
    by_output: dict[int, BitMap64] = {}
    for number, (output, path) in enumerate(zip(done.outputs, done.paths, strict=True)):
        if not counts_left.any():
            break
        file = _as_source(output.name, path, output.rows, None, spec, done)
        deleted_rows = BitMap64()
        for file_rows in outputs.read(file):
            taken_rows = _take(digest.hashes(file_rows.batch, partition), sought, counts_left)
            deleted_rows |= BitMap64((file_rows.first + taken_rows).tolist())
        if deleted_rows:
            by_output[number] = deleted_rows
    if counts_left.any():
        raise VerificationError(
            f"{counts_left.sum()} rows that another writer deleted are not in the new files",
            file=done.bin.sources[0].path,
        )
    return LateDeletions(by_source=by_source, new_positions={}, by_output=by_output)


def prove_positions(
    store: Store,
    done: RewrittenBin,
    late: LateDeletions,
    spec: RewriteSpec,
    *,
    proved: LateDeletions | None,
) -> None:
    """Verifies that the new positions are those of the rows that were deleted from the sources.

    `proved` are the rows of the same bin that were verified before. Only row groups with other rows
    are read. `VerificationError` if the digests of these rows differ.
    """
    if spec.proof != "rows":
        return
    partition = dict(done.bin.partition_values)
    digest = RowDigest(spec.files.layout.schema)
    sources = DataFileReader(store, spec.files.layout)
    outputs = DataFileReader(store, spec.files.layout.written)
    expected = dict.fromkeys(range(len(done.outputs)), RowSums())
    positions: dict[int, BitMap64] = {}
    for number, gone in late.by_source.items():
        moved = late.new_positions[number]
        if proved is not None and number in proved.by_source:
            gone, moved = gone - proved.by_source[number], moved - proved.new_positions[number]
        if not gone:
            continue
        run = done.runs[number]
        positions[run.output] = positions.get(run.output, BitMap64()) | moved
        source = done.bin.sources[number]
        for hashes in _hashes_at(sources, source, gone, digest, partition):
            expected[run.output] += row_sums(hashes)
    for number, rows in positions.items():
        output, path = done.outputs[number], done.paths[number]
        file = _as_source(output.name, path, output.rows, None, spec, done)
        output_sums = RowSums()
        for hashes in _hashes_at(outputs, file, rows, digest, partition):
            output_sums += row_sums(hashes)
        if output_sums != expected[number]:
            raise VerificationError(
                f"the rows to delete from the new file are not those that were deleted from its "
                f"sources: {output_sums} instead of {expected[number]}",
                file=output.name,
            )


def write_vectors(
    store: Store, positions: Sequence[BitMap64], *, new_id: NewId
) -> tuple[DeletionVectorDescriptor, ...]:
    """Writes a file with one deletion vector per set of rows, and reads it back."""
    identifier = UUID(new_id())
    data, offsets = write_file(positions)
    vectors = tuple(
        DeletionVectorDescriptor(
            storage_type=STORED_RELATIVE,
            path_or_inline_dv=z85_encode(identifier.bytes),
            offset=offset,
            size_in_bytes=len(encode_bitmap(bitmap)),
            cardinality=len(bitmap),
        )
        for bitmap, offset in zip(positions, offsets, strict=True)
    )
    name = f"deletion_vector_{identifier}.bin"
    with new_file(store, name) as file:
        file.write(data)
    reading = DeletedRows(store)
    for vector, rows in zip(vectors, positions, strict=True):
        if reading.of(vector, 1 << 62) != rows:
            raise VerificationError("a new deletion vector does not read back", file=name)
    return vectors


def without_rows(
    store: Store, done: RewrittenBin, late: LateDeletions, spec: RewriteSpec, *, new_id: NewId
) -> RewrittenBin:
    """Writes the new files of a bin again, without the rows that were deleted since.

    `VerificationError` if the remaining rows are not the former rows minus the deleted ones.
    """
    again = Bin(
        number=done.bin.number,
        sources=tuple(
            _as_source(output.name, path, output.rows, late.by_output.get(number), spec, done)
            for number, (output, path) in enumerate(zip(done.outputs, done.paths, strict=True))
        ),
        reasons=(("deleted-rows",),) * len(done.outputs),
    )
    files = replace(spec.files, layout=spec.files.layout.written)
    # The digest of all rows is needed, which copied row groups do not have. Sorted rows keep their
    # order.
    decoding = replace(spec, files=files, copied_group_bytes=None, clustering=None, subtracts=True)
    written = rewrite_bin(store, again, decoding, new_id=new_id)
    if written.refused:
        raise VerificationError(
            f"a new file cannot be written again: {written.refused[0].problem}",
            file=done.outputs[0].name,
        )
    if spec.proof == "rows":
        before = done.sums
        if done.copied or not isinstance(before, RowSums):
            before = _sums_of_outputs(store, done, spec)
        expected = before - _sums_of(store, done, late, spec)
        if written.sums != expected:
            raise VerificationError(
                f"the remaining rows are not the former rows without the deleted ones: "
                f"{written.sums} instead of {expected}",
                file=done.outputs[0].name,
            )
    return replace(
        done,
        outputs=written.outputs,
        runs=_shorter(done, late, written),
        sums=written.sums,
        copied=False,
    )


def _as_source(
    name: str, path: str, rows: int, gone: BitMap64 | None, spec: RewriteSpec, done: RewrittenBin
) -> SourceFile:
    vector = None if gone is None else DeletionVectorDescriptor.inline(gone)
    # The file already contains the row ID of every row, so these values are never used.
    tracked = 0 if spec.files.layout.tracks_rows else None
    size = next(output.size for output in done.outputs if output.name == name)
    return SourceFile(
        path=path,
        partition_values=done.bin.partition_values,
        size=size,
        deletion_vector=vector,
        num_records=rows,
        base_row_id=tracked,
        default_row_commit_version=tracked,
    )


def _hashes_at(
    reader: DataFileReader,
    file: SourceFile,
    rows: BitMap64,
    digest: RowDigest,
    partition: Mapping[str, str | None],
) -> Iterator[Hashes]:
    """Yields the hashes of the rows at these physical positions."""
    for file_rows in reader.read(file, holding=rows):
        places = deleted_between(rows, file_rows.first, file_rows.batch.num_rows)
        if len(places):
            yield digest.hashes(file_rows.batch.take(pa.array(places)), partition)


def _take(
    hashes: Hashes, sought: Hashes, counts_left: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Returns the positions of rows with the hashes `sought`, each as often as `counts_left`.

    `sought` is ascending; `counts_left` is reduced.
    """
    places = np.minimum(np.searchsorted(sought, hashes), len(sought) - 1)
    rows = np.flatnonzero(sought[places] == hashes)
    rows = rows[np.argsort(places[rows], kind="stable")]
    of = places[rows]
    # The number of earlier rows with the same hash.
    earlier = np.arange(len(of)) - np.searchsorted(of, of)
    taken_rows: npt.NDArray[np.int64] = rows[earlier < counts_left[of]].astype(np.int64)
    counts_left -= np.bincount(places[taken_rows], minlength=len(counts_left))
    return taken_rows


def _sums_of(store: Store, done: RewrittenBin, late: LateDeletions, spec: RewriteSpec) -> RowSums:
    """Computes the digest of the rows that were deleted since, from the sources."""
    layout, partition = spec.files.layout, dict(done.bin.partition_values)
    digest, reader = RowDigest(layout.schema), DataFileReader(store, layout)
    sums = RowSums()
    for number, gone in late.by_source.items():
        for hashes in _hashes_at(reader, done.bin.sources[number], gone, digest, partition):
            sums += row_sums(hashes)
    return sums


def _sums_of_outputs(store: Store, done: RewrittenBin, spec: RewriteSpec) -> RowSums:
    """Computes the digest of all rows of the new files."""
    layout = spec.files.layout
    digest = RowsDigest(layout.schema, dict(done.bin.partition_values), "sums")
    for output in done.outputs:
        read_back(store, output, layout, digest)
    row_sums = digest.total()
    assert isinstance(row_sums, RowSums)
    return row_sums


def _shorter(done: RewrittenBin, late: LateDeletions, written: RewrittenBin) -> tuple[Run, ...]:
    """Returns the positions of the rows of each source in the files that were written again."""
    starts = {run.source: run for run in written.runs}
    runs, filled = [], dict.fromkeys(range(len(done.outputs)), 0)
    # The order of the rows, which may differ from that of the sources.
    for run in sorted(done.runs, key=lambda unordered: (unordered.output, unordered.offset)):
        rows = run.rows - len(late.by_source.get(run.source, ()))
        again = starts.get(run.output)
        runs.append(
            Run(
                source=run.source,
                output=again.output if again is not None else 0,
                offset=(again.offset if again is not None else 0) + filled.get(run.output, 0),
                rows=rows,
            )
        )
        filled[run.output] = filled.get(run.output, 0) + rows
    return tuple(sorted(runs, key=lambda moved: moved.source))
