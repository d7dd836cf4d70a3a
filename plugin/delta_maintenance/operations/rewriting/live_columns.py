"""The live files of a snapshot as columns, from which the files to rewrite are chosen.

Only the log is read, except for the reasons that are found in footers. Each file needs about 200
bytes for its path, its partition and eight numbers, independent of the size of its statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError, RefusedError
from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    COMMIT_VERSION,
    REMOVE_TYPES,
    deletion_vector_ids,
)
from delta_maintenance.protocol.actions.paths import PathAudit
from delta_maintenance.protocol.columns import column_of, integers, to_bools
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.data_files.other_columns import (
    holds_other_columns,
    holds_other_names,
    holds_other_types,
    needs_widening,
)
from delta_maintenance.protocol.data_files.tags import COMPACTED_INTO, target_sizes
from delta_maintenance.protocol.row_tracking.row_ids import overlapping
from delta_maintenance.protocol.schema.types import DeltaType
from delta_maintenance.protocol.statistics.clustering import CLUSTERING_TAGS, GROUP
from delta_maintenance.protocol.statistics.stats import stated_row_counts
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.locations import location_of
from delta_maintenance.table.data.parquet.decoded_sizes import READING_BYTES
from delta_maintenance.table.data.parquet.footer_reader import SMALL_FOOTER
from delta_maintenance.table.data.parquet_input import ParquetInput
from delta_maintenance.table.data.row_batches import reading_error
from delta_maintenance.table.evidence.doubled_files import doubled_files
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.active_files import ActiveFiles, record_counts
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.partition_codes import (
    has_other_spelling,
    merge_spellings,
    partition_codes,
    partition_texts,
    partition_types,
)
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.writable import EXAMINE, FileRules

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_TYPES = {**REMOVE_TYPES, **ADD_TYPES}
_ADD_FIELDS = (
    "path",
    "deletionVector",
    "partitionValues",
    "size",
    "modificationTime",
    "stats",
    "stats_parsed",
    "tags",
    "clusteringProvider",
)
_REMOVE_FIELDS = (
    "path",
    "deletionVector",
    "deletionTimestamp",
    "partitionValues",
    "dataChange",
    "size",
    "tags",
)

_LARGEST = 1 << 44
"""Bytes; no store accepts larger files."""

DROPPED_COLUMNS, INT96, CODEC = "dropped-columns", "int96", "codec"
OLD_TYPES = "old-types"
NEEDS_WIDENING = "needs-widening"
PHYSICAL_NAMES = "physical-names"
_THREADS = 16
_AT_ONCE = 10_000
"""The number of files whose footers are read in one round, which bounds the memory."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """The tombstones of files that a rewrite replaced."""

    at: Numbers
    """The deletion times, in milliseconds since 1970-01-01 UTC."""
    size: Numbers
    """The sizes in bytes."""
    made: npt.NDArray[np.bool_]
    """Whether a replaced file was itself created by a rewrite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveColumns:
    """One row per live logical file, in the order of the log."""

    path: pa.ChunkedArray
    """As in the log."""
    vector: pa.ChunkedArray
    """The unique ID of the deletion vector; null for a file without deletion vector."""
    size: Numbers
    modified: Numbers
    """Milliseconds since 1970-01-01 UTC."""
    rows: Numbers
    """The number of physical rows; -1 if it is not in the statistics."""
    deleted: Numbers
    """The number of rows that the deletion vector marks as deleted."""
    target: Numbers
    """The target size of the rewrite that created the file; 0 for all other files."""
    provider: pa.ChunkedArray
    """The clustering provider of the file, or null."""
    tags: pa.Table
    """The tags `CLUSTERING_TAGS` of the file, one column for each; null for a missing tag."""
    partition: Numbers
    """The partition of the file, as an index into `partitions` and `last_write`."""
    partitions: Mapping[str, pa.Array]
    """The values of each partition column, by physical name, as strings of the log."""
    respelled: Mask
    """Whether a rewrite changes the spelling of a partition value of the file."""
    last_write: Numbers
    """For each partition, the time of the last write in the log that added or removed rows, in
    milliseconds since 1970-01-01 UTC. Rewrites do not count.
    """
    replaced: Replaced
    """The files that rewrites replaced and whose tombstones are still in the log."""
    doubled: Mask
    """Whether a commit removed each file under another key, so that it should not be live."""

    @property
    def count(self) -> int:
        """The number of files."""
        return len(self.size)

    @property
    def clustered(self) -> Mask:
        """Whether each file has a clustering provider, or belongs to a group of sorted files."""
        is_clustered = pc.or_(pc.is_valid(self.provider), pc.is_valid(self.tags[GROUP]))
        return to_bools(is_clustered.combine_chunks())

    @property
    def live_bytes(self) -> Numbers:
        """The estimated size of the live rows of each file in bytes."""
        if not self.deleted.any():
            return self.size
        rows, gone = np.maximum(self.rows, 1), np.minimum(self.deleted, np.maximum(self.rows, 1))
        share = np.where((self.deleted > 0) & (self.rows > 0), (rows - gone) / rows, 1.0)
        return np.ceil(self.size * share).astype(np.int64)

    def values(self, partition: int) -> dict[str, str | None]:
        """Returns the partition values of a partition."""
        return {name: texts[partition].as_py() for name, texts in self.partitions.items()}


def live_columns(snapshot: Snapshot) -> LiveColumns:
    """Reads the live files of a snapshot, and the times of deletions from its tombstones.

    Raises `CorruptTableError` if a file is live twice or has two different paths, because a rewrite
    would have to decide which entry is valid, if it breaks one of the `FileRules`, or if two files
    have a row ID in common. A damaged checkpoint is skipped.
    """
    rules = FileRules.of(snapshot)
    fields = {"add": (*_ADD_FIELDS, *rules.fields), "remove": _REMOVE_FIELDS}
    names = snapshot.log.physical_partition_columns
    while True:
        audit = PathAudit(snapshot.table)
        broken: list[str] = []

        def offered(
            batch: ActiveFiles, audit: PathAudit = audit, broken: list[str] = broken
        ) -> ActiveFiles:
            audit.add(
                batch.adds, batch.tombstones, key_hashes=batch.add_hashes, repeated=batch.repeated
            )
            if not broken and (problem := rules.problem(batch.adds)) is not None:
                broken.append(problem)
            return batch

        try:
            parts = list(
                in_parallel(
                    lambda batch: _part(batch, names, rules),
                    map(offered, snapshot.log.scan(fields=fields)),
                )
            )
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)
            continue
        problem = audit.problem() or next(iter(broken), None) or _shared_row_ids(parts)
        if problem is not None:
            raise CorruptTableError(
                problem, table=snapshot.table, version=snapshot.version, remedy=EXAMINE
            )
        files = _together(parts, names, partition_types(snapshot))
        suspects = audit.removed_elsewhere()
        if suspects is not None:
            rows = np.flatnonzero(suspects)
            files.doubled[rows] = doubled_files(
                snapshot, files.path.take(integers(rows)), files.vector.take(integers(rows))
            )
        return files


def doubled_files_error(snapshot: Snapshot) -> CorruptTableError:
    """The error of an operation that can leave out no file, for files whose removal failed."""
    return CorruptTableError(
        "a commit removed files under another key, so that their rows are still read",
        table=snapshot.table,
        version=snapshot.version,
        remedy=EXAMINE,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """One batch of the log."""

    files: pa.Table
    partitions: Mapping[str, pa.ChunkedArray]
    """Partition values of the live files by physical name."""
    removed: Mapping[str, pa.ChunkedArray]
    """Partition values of the removes that removed rows."""
    removed_at: Numbers
    """The time of each of these removes, in milliseconds since 1970-01-01 UTC."""
    replaced: Replaced
    base_row_ids: pa.ChunkedArray | None
    """None if row IDs have no meaning in the table."""


def _part(batch: ActiveFiles, names: Sequence[str], rules: FileRules) -> _Part:
    adds = batch.adds
    cardinality = pa.nulls(adds.num_rows, pa.int64())
    if "deletionVector" in adds.column_names:
        vectors = adds["deletionVector"].chunks
        counts = [pc.struct_field(chunk, "cardinality") for chunk in vectors]
        cardinality = pa.chunked_array(counts, pa.int64())
    columns = {
        "path": adds["path"],
        "vector": deletion_vector_ids(adds),
        "size": _sizes(adds),
        "modified": pc.fill_null(_column(adds, "modificationTime"), 0),
        "rows": pc.fill_null(_row_counts(adds), -1),
        "deleted": pc.fill_null(cardinality, 0),
        "target": pa.array(target_sizes(_column(adds, "tags"))),
        "provider": _column(adds, "clusteringProvider").dictionary_encode(),
    }
    tags = _column(adds, "tags")
    columns |= {
        # Dictionary-encoded at once, because many files share few values.
        name: pc.map_lookup(tags, name, "first").dictionary_encode()
        for name in CLUSTERING_TAGS
    }
    moved = _moved(batch.tombstones)
    removes = batch.tombstones.filter(pc.invert(moved))
    elsewhere = batch.tombstones.filter(moved)
    return _Part(
        files=pa.table(columns),
        partitions=partition_texts(adds, names),
        removed=partition_texts(removes, names),
        removed_at=pc.fill_null(_column(removes, "deletionTimestamp"), 0).to_numpy(),
        replaced=Replaced(
            at=pc.fill_null(_column(elsewhere, "deletionTimestamp"), 0).to_numpy(),
            size=_sizes(elsewhere).to_numpy(),
            made=target_sizes(_column(elsewhere, "tags")) > 0,
        ),
        base_row_ids=_column(adds, "baseRowId") if rules.has_row_ids else None,
    )


def _shared_row_ids(parts: Sequence[_Part]) -> str | None:
    """Returns two files with a row ID in common, as one clause.

    Files without a number of rows in the log do not count, because they may be empty; nor do those
    with an invalid base row ID, which a rewrite leaves out.
    """
    id_parts = [(part.base_row_ids, part.files) for part in parts if part.base_row_ids is not None]
    if not id_parts:
        return None
    base = np.concatenate([pc.fill_null(ids, -1).to_numpy() for ids, _ in id_parts])
    rows = np.concatenate([files["rows"].to_numpy() for _, files in id_parts])
    later, earlier = overlapping(base, np.where(base < 0, 0, rows))
    if not len(later):
        return None
    paths = pa.concat_tables([files.select(["path"]) for _, files in id_parts])["path"]
    one, other = (paths[int(at[0])].as_py() for at in (later, earlier))
    return f"the files {other} and {one} have row IDs in common"


def _row_counts(adds: pa.Table) -> pa.ChunkedArray:
    """Returns the physical rows of each file, or null.

    Only for files with a deletion vector does a decision depend on the count of a file, so only
    their statistics are parsed completely. All other counts serve estimates.
    """
    stated = record_counts(adds, stated=stated_row_counts)
    vectors = _column(adds, "deletionVector")
    if vectors.null_count == len(vectors):
        return stated
    with_vector = pc.is_valid(vectors)
    parsed = record_counts(adds.filter(with_vector))
    return pc.replace_with_mask(
        stated.combine_chunks(), with_vector.combine_chunks(), parsed.combine_chunks()
    )


def _sizes(files: pa.Table) -> pa.ChunkedArray:
    """Limits the sizes, so that invalid sizes in the log cannot overflow a sum."""
    sizes = pc.fill_null(_column(files, "size"), 0)
    return pc.min_element_wise(pc.max_element_wise(sizes, 0), _LARGEST)


def _moved(removes: pa.Table) -> pa.ChunkedArray:
    """Returns which removes are known from the log to have moved all rows to another file."""
    moved = pc.is_valid(pc.map_lookup(_column(removes, "tags"), COMPACTED_INTO, "first"))
    if COMMIT_VERSION in removes.column_names:
        # Only for removes in commits: in checkpoints, `dataChange` of every remove is false.
        is_moved = pc.equal(_column(removes, "dataChange"), False)
        moved = pc.or_(moved, pc.fill_null(is_moved, False))
    return moved


def _together(
    parts: Sequence[_Part], names: Sequence[str], types: Mapping[str, DeltaType]
) -> LiveColumns:
    files = pa.concat_tables([_FILES.empty_table(), *(part.files for part in parts)])
    removed_at = np.concatenate([np.zeros(0, np.int64), *(part.removed_at for part in parts)])
    rows = files.num_rows + len(removed_at)
    texts = [part.partitions for part in parts] + [part.removed for part in parts]
    codes, partitions = merge_spellings(*partition_codes(texts, names, rows), types)
    own_codes, modified = codes[: files.num_rows], files["modified"].to_numpy()
    last_writes = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    # A file of a rewrite contains no new rows.
    fresh = files["target"].to_numpy() == 0
    np.maximum.at(last_writes, own_codes[fresh], modified[fresh])
    np.maximum.at(last_writes, codes[files.num_rows :], removed_at)
    return LiveColumns(
        path=files["path"],
        vector=files["vector"],
        size=files["size"].to_numpy(),
        modified=modified,
        rows=files["rows"].to_numpy(),
        deleted=files["deleted"].to_numpy(),
        target=files["target"].to_numpy(),
        provider=files["provider"],
        tags=files.select(CLUSTERING_TAGS),
        partition=own_codes,
        partitions=partitions,
        respelled=np.concatenate(
            [
                np.zeros(0, np.bool_),
                *(has_other_spelling(p.partitions, types, p.files.num_rows) for p in parts),
            ]
        ),
        last_write=last_writes,
        replaced=Replaced(
            *(
                np.concatenate([np.zeros(0, kind), *(getattr(p.replaced, name) for p in parts)])
                for name, kind in (("at", np.int64), ("size", np.int64), ("made", np.bool_))
            )
        ),
        doubled=np.zeros(files.num_rows, np.bool_),
    )


_column = partial(column_of, types=_TYPES)


_FILES = pa.schema(
    [
        ("path", pa.string()),
        ("vector", pa.string()),
        *((name, pa.int64()) for name in ("size", "modified", "rows", "deleted", "target")),
        ("provider", pa.dictionary(pa.int32(), pa.string())),
        *((name, pa.dictionary(pa.int32(), pa.string())) for name in CLUSTERING_TAGS),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterReasons:
    """Finds the `wanted` reasons of each file from its footer.

    A file that cannot be read has no reason, because `fsck` reports it. With `strict`, its error is
    raised instead.
    """

    store: Store
    layout: DataFileLayout
    codec: str = ""
    """The codec of new files, for the reason `codec`."""
    wanted: Sequence[str]
    strict: bool = False

    def __call__(self, files: LiveColumns, mask: Mask) -> Mapping[str, Mask]:
        """Returns which files have each wanted reason; files outside the mask have none."""
        masks = {name: np.zeros(files.count, np.bool_) for name in self.wanted}
        rows = np.flatnonzero(mask) if self.wanted else np.zeros(0, np.int64)
        for row, reasons in zip(rows, self.of_paths(files.path.take(pa.array(rows))), strict=True):
            for name in reasons:
                masks[name][row] = True
        if OLD_TYPES in masks:
            # The partition values of such files have the spelling of the former type.
            masks[OLD_TYPES] |= mask & files.respelled
        return masks

    def of_paths(self, paths: pa.ChunkedArray) -> list[tuple[str, ...]]:
        """Returns the wanted reasons of each file."""
        reasons_of = partial(self._of, alone=Lock())
        reasons: list[tuple[str, ...]] = []
        with ThreadPoolExecutor(_THREADS) as pool:
            for start in range(0, len(paths), _AT_ONCE):
                reasons += pool.map(reasons_of, paths.slice(start, _AT_ONCE).to_pylist())
        return reasons

    def _of(self, path: str, alone: Lock) -> tuple[str, ...]:
        try:
            location = location_of(self.store, path)
            try:
                return self._reasons(location, 2 * SMALL_FOOTER)
            except RefusedError:
                with alone:
                    return self._reasons(location, READING_BYTES)
        except (DeltaMaintenanceError, OSError, pa.ArrowException) as error:
            if not self.strict:
                return ()
            if isinstance(error, DeltaMaintenanceError):
                raise error.locate(file=path) from error.__cause__
            raise reading_error(error, file=path) from None

    def _reasons(self, location: str, reading_bytes: int) -> tuple[str, ...]:
        source = self.store.open(location)
        with ParquetInput(source, reading_bytes=reading_bytes) as parquet:
            return tuple(name for name in self.wanted if self._has(name, parquet))

    def _has(self, name: str, parquet: ParquetInput) -> bool:
        test = _BY_SCHEMA.get(name)
        if test is not None:
            return test(parquet.schema, self.layout, parquet.stored_columns(self.layout.mode))
        match name:
            case "int96":
                return bool(parquet.int96)
        return bool(set(_codecs(parquet.metadata)) - {self.codec.upper()})


_BY_SCHEMA = {
    DROPPED_COLUMNS: holds_other_columns,
    OLD_TYPES: holds_other_types,
    NEEDS_WIDENING: needs_widening,
    PHYSICAL_NAMES: holds_other_names,
}


def _codecs(metadata: pq.FileMetaData) -> Iterator[str]:
    """Yields the codecs of the first row group; writers use the same codecs for all row groups."""
    if metadata.num_row_groups:
        group = metadata.row_group(0)
        yield from {group.column(at).compression for at in range(group.num_columns)}
