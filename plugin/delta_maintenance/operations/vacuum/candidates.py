"""Finds unreferenced files in the folder of a table, in this process.

The candidates come from a listing of the whole folder, from an inventory or from the log; then all
files that the log refers to are removed. Files are columns throughout, and only the remaining ones
are checked individually.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance import clock
from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.operations.vacuum import DeadFolder
from delta_maintenance.operations.vacuum.references import FileReferences
from delta_maintenance.protocol.columns import (
    booleans,
    hash_texts,
    integers,
    one_array,
    rows_by_group,
    to_bools,
    valid_texts,
)
from delta_maintenance.protocol.vacuum import (
    Reason,
    VisibilityRules,
    checksums_for,
    checksums_of,
    in_a_log,
    reasons,
)
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import (
    ARCHIVES,
    STATUSES,
    TREE,
    EntryKind,
    directories_of,
    unclean,
)

DEAD_FILES = pa.schema([*STATUSES, ("reason", pa.uint8())])
"""Files that may be deleted, each with its `Reason`."""

LIVE = "live: the newest version needs them"
IN_RETENTION = "in retention: removed from the table, and older versions need them"
HELD = "held: see the holders"
HIDDEN = "hidden: a name that begins with _ or ."
_LOOKED_AT_ONCE = 100
_SAMPLES = 5
_FOLDERS = 10
GROUPS = 256
"""The number of groups of paths of which a digest is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The search criteria. Instants are milliseconds since 1970-01-01 UTC."""

    rules: VisibilityRules
    modified_before_ms: int
    """Files modified at or after this instant may belong to a commit in progress."""
    foreign_files: bool
    """Whether to delete also files whose names do not look like files of Delta."""
    lists_folder: bool = False
    """Whether the candidates are a listing of the folder, without the contents of hidden
    directories.
    """
    archived: bool = False
    """Whether to delete also files in storage classes from which no file can be read at once."""


@dataclass(frozen=True, slots=True)
class ReasonTally:
    """The number of files that may be deleted for one reason."""

    reason: Reason
    count: int
    bytes: int
    samples: tuple[tuple[str, int], ...]
    """The paths and sizes of some of these files."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A number of files, and their size in bytes."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.files + other.files, self.bytes + other.bytes)


@dataclass(slots=True)
class DeadFiles:
    """The files to delete, and the number of kept files by reason."""

    files: pa.Table = field(default_factory=DEAD_FILES.empty_table)
    directories: tuple[str, ...] = ()
    """Old directories that are empty once the files are deleted."""
    kept: dict[str, int] = field(default_factory=dict)
    held: dict[str, Sum] = field(default_factory=dict)
    """The files that are kept for each holder. A file can be kept for several."""
    archived: dict[str, Sum] = field(default_factory=dict)
    """The files in storage classes from which no file can be read at once, by class. They are kept
    or deleted as the search says."""
    listed: int = 0
    """Examined files, including hidden ones."""

    def tallies(self) -> tuple[ReasonTally, ...]:
        """Counts the files by the reason for their deletion."""
        found = []
        for reason in Reason:
            files = self.files.filter(pc.equal(self.files["reason"], int(reason)))
            if files.num_rows:
                first_files = files.slice(0, _SAMPLES)
                pairs = zip(
                    first_files["path"].to_pylist(), first_files["size"].to_pylist(), strict=True
                )
                size = pc.sum(files["size"]).as_py() or 0
                found.append(ReasonTally(reason, files.num_rows, size, tuple(pairs)))
        return tuple(found)

    def oldest(self) -> datetime | None:
        """When the first of the files was modified; None if the listing does not tell."""
        return _instant(pc.min(self.files["modified_ms"]).as_py())

    def largest_folders(self) -> tuple[DeadFolder, ...]:
        """The folders with the most bytes to delete."""
        folder = directories_of(self.files["path"])
        sums = [("path", "count"), ("size", "sum"), ("modified_ms", "min"), ("modified_ms", "max")]
        grouped = self.files.append_column("folder", folder).group_by("folder").aggregate(sums)
        grouped = grouped.sort_by([("size_sum", "descending"), ("folder", "ascending")])
        return tuple(
            DeadFolder(
                folder=row["folder"],
                count=row["path_count"],
                bytes=row["size_sum"] or 0,
                oldest=_instant(row["modified_ms_min"]),
                newest=_instant(row["modified_ms_max"]),
            )
            for row in grouped.slice(0, _FOLDERS).to_pylist()
        )

    def keep(self, why: str, count: int) -> None:
        """Counts files that are kept."""
        if count:
            self.kept[why] = self.kept.get(why, 0) + count


def _instant(millis: int | None) -> datetime | None:
    return None if millis is None else clock.instant(millis)


def list_folder(store: Store, rules: VisibilityRules) -> list[pa.Table]:
    """Returns the listing below the root (`listing.TREE`) without the contents of hidden
    directories.
    """
    return list(store.list_tree(skip=rules.is_hidden_directory))


def find_dead_files(
    store: Store, entries: Sequence[pa.Table], references: FileReferences, search: Search
) -> DeadFiles:
    """Returns the files of a listing (`listing.TREE`) that may be deleted.

    Raises `RefusedError` if another table is inside this one.
    """
    dead = DeadFiles()
    for batch in entries:
        require_no_table_inside(batch, search)
    recorded = recorded_in_hidden_folders(references, search)
    if search.lists_folder:
        entries = [*entries, list_missed(store, entries, recorded)]
    loose = [out_of_use(batch, references, search, dead, recorded) for batch in entries]
    candidates = with_reasons(
        pa.concat_tables([STATUSES.empty_table(), *loose]), references, search, dead
    )
    old_files = old_enough(store, candidates, search, dead)
    old_files = without_other_tables(store, old_files, recorded, dead)
    old_files = not_held(old_files, references, dead)
    old_files = not_archived(store, old_files, entries, search, dead)
    checksums = old_enough(store, _checksums(entries, old_files), search, DeadFiles())
    # Their names made them count as hidden before.
    dead.keep(HIDDEN, -checksums.num_rows)
    dead.files = pa.concat_tables([old_files, checksums])
    dead.directories = emptied_directories(*directories_in(entries, dead.files, search))
    return dead


def require_no_table_inside(entries: pa.Table, search: Search) -> None:
    """Raises `RefusedError` if a listing contains the log of another table."""
    for paths in entries["path"].chunks:
        nested = search.rules.nested_log(paths)
        if nested is not None:
            raise RefusedError(
                "the folder contains another table, to whose files this table does not refer",
                file=nested,
                remedy="move it elsewhere",
            )


def recorded_in_hidden_folders(references: FileReferences, search: Search) -> pa.StringArray:
    """Returns the files with hidden names that the log records as removed.

    They are data files nevertheless, such as those in the folder of a former partition column whose
    name begins with `_`.
    """
    locations = pc.unique(pa.chunked_array(references.expired, pa.binary()))
    texts = valid_texts(locations.filter(booleans(search.rules.hidden(locations))))
    return texts.filter(booleans(~in_a_log(texts) & ~to_bools(unclean(texts))))


def list_missed(store: Store, entries: Sequence[pa.Table], recorded: pa.StringArray) -> pa.Table:
    """Returns those of the recorded files that exist and that a listing omits, with their
    checksums (`listing.TREE`).
    """
    names = pa.concat_arrays([recorded, checksums_for(recorded)])
    for batch in entries:
        names = names.filter(pc.invert(pc.is_in(names, value_set=_one(batch["path"]))))
    statuses = store.statuses(pa.chunked_array([names]))
    kinds = pa.repeat(pa.scalar(int(EntryKind.FILE), pa.uint8()), statuses.num_rows)
    statuses = statuses.append_column(TREE.field("kind"), kinds)
    return statuses.append_column(TREE.field("archive"), pa.nulls(statuses.num_rows, pa.uint8()))


def without_other_tables(
    store: Store, files: pa.Table, recorded: pa.StringArray, dead: DeadFiles
) -> pa.Table:
    """Returns the files except recorded ones below the root of another table, which may need them.

    Tables in hidden directories do not stop a vacuum.
    """
    paths = _one(files["path"])
    folders: set[str] = set()
    hidden = paths.filter(pc.is_in(paths, value_set=recorded))
    for folder in pc.unique(directories_of(hidden)).to_pylist():
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    others = [f for f in sorted(folders) if next(store.list_from(f"{f}/_delta_log"), None)]
    for other in others:
        inside = pc.starts_with(files["path"], f"{other}/")
        dead.keep("in the folder of another table", pc.sum(inside).as_py() or 0)
        files = files.filter(pc.invert(inside))
    return files


def out_of_use(
    entries: pa.Table,
    references: FileReferences,
    search: Search,
    dead: DeadFiles,
    recorded: pa.StringArray,
) -> pa.Table:
    """Returns the visible and the recorded files (`listing.STATUSES`) of a listing that are
    unreferenced.

    Counts the others in `dead`.
    """
    kinds = entries["kind"]
    dead.keep("links and special files", pc.sum(pc.equal(kinds, int(EntryKind.OTHER))).as_py() or 0)
    files = entries.filter(pc.equal(kinds, int(EntryKind.FILE))).select(STATUSES.names)
    paths = _one(files["path"])
    dead.listed += len(paths)
    hidden = search.rules.hidden(paths)
    if len(recorded):
        hidden &= ~to_bools(pc.is_in(paths, value_set=recorded))
    dead.keep(HIDDEN, int(hidden.sum()))
    in_use = ~hidden & references.in_use.covers(paths)
    dead.keep(LIVE, int(in_use.sum()))
    in_retention = ~(hidden | in_use) & references.in_retention.covers(paths)
    dead.keep(IN_RETENTION, int(in_retention.sum()))
    files = files.filter(booleans(~(hidden | in_use | in_retention)))
    odd = unclean(_one(files["path"]))
    dead.keep(
        "ambiguous: a name that stores or readers could mistake for another one", odd.true_count
    )
    return files.filter(pc.invert(odd))


def not_held(files: pa.Table, references: FileReferences, dead: DeadFiles) -> pa.Table:
    """Returns the files (`DEAD_FILES`) that no holder keeps. Counts the others by holder."""
    held = np.zeros(files.num_rows, np.bool_)
    for holder, protected in references.held:
        covered = protected.covers(_one(files["path"]))
        held |= covered
        size = pc.sum(files["size"].filter(booleans(covered))).as_py() or 0
        dead.held[holder] = dead.held.get(holder, Sum()) + Sum(int(covered.sum()), size)
    dead.keep(HELD, int(held.sum()))
    return files.filter(booleans(~held)) if held.any() else files


def not_archived(
    store: Store, files: pa.Table, entries: Sequence[pa.Table], search: Search, dead: DeadFiles
) -> pa.Table:
    """Returns the files (`DEAD_FILES`) without archived ones, unless the search includes them.

    Counts the archived files by their storage class.
    """
    if files.num_rows and not search.lists_folder:
        # Entries from a log or an inventory have no storage class.
        entries = [store.list_archived(files["path"])]
    for number, name in enumerate(ARCHIVES):
        paths = [
            chunk
            for batch in entries
            if batch["archive"].null_count < batch.num_rows
            for chunk in batch["path"].filter(pc.equal(batch["archive"], number)).chunks
        ]
        if not paths:
            continue
        inside = pc.is_in(files["path"], value_set=pa.concat_arrays(paths))
        there = files.filter(inside)
        if not there.num_rows:
            continue
        dead.archived[name] = Sum(there.num_rows, pc.sum(there["size"]).as_py() or 0)
        if not search.archived:
            dead.keep(f"archived: in the storage class {name}", there.num_rows)
            files = files.filter(pc.invert(inside))
    return files


def with_reasons(
    files: pa.Table, references: FileReferences, search: Search, dead: DeadFiles
) -> pa.Table:
    """Returns unreferenced files (`listing.STATUSES`) as `DEAD_FILES`, without foreign files."""
    paths = _one(files["path"])
    removed = pa.chunked_array(references.expired, pa.binary())
    file_reasons = reasons(paths, expired=pc.is_in(paths.cast(pa.binary()), value_set=removed))
    files = files.append_column(DEAD_FILES.field("reason"), pa.array(file_reasons, pa.uint8()))
    if search.foreign_files:
        return files
    foreign = file_reasons == Reason.FOREIGN
    dead.keep("foreign: not the name of a data file", int(foreign.sum()))
    return files.filter(booleans(~foreign))


def old_enough(store: Store, files: pa.Table, search: Search, dead: DeadFiles) -> pa.Table:
    """Returns the files (`DEAD_FILES`) that no commit in progress can have written.

    Reads missing times from the store.
    """
    unknown = pc.is_null(files["modified_ms"])
    if pc.any(unknown).as_py():
        asked = files.filter(unknown)
        found_statuses = store.statuses(asked["path"])
        at = pc.index_in(found_statuses["path"], value_set=_one(asked["path"]))
        found_statuses = found_statuses.append_column(
            DEAD_FILES.field("reason"), asked["reason"].take(at)
        )
        files = pa.concat_tables([files.filter(pc.invert(unknown)), found_statuses])
    has_time = pc.greater(files["modified_ms"], 0)
    old = pc.less(files["modified_ms"], search.modified_before_ms)
    dead.keep(
        "recent: unreferenced, but a commit in progress may still add them",
        pc.sum(pc.and_(has_time, pc.invert(old))).as_py() or 0,
    )
    dead.keep("of unknown age", pc.sum(pc.invert(has_time)).as_py() or 0)
    return files.filter(pc.and_(has_time, old))


def require_no_missing(
    store: Store, references: FileReferences, entries: Sequence[pa.Table]
) -> None:
    """Raises `CorruptTableError` if live files are missing.

    Either the table is damaged, or its paths are interpreted wrongly; then files that look
    unreferenced could be live under another name.
    """
    missing = references.missing([chunk for batch in entries for chunk in batch["path"].chunks])
    for first_row in range(0, len(missing), _LOOKED_AT_ONCE):
        batch = missing[first_row : first_row + _LOOKED_AT_ONCE]
        names = pa.array([name for pair in batch for name in pair], pa.string())
        clean = names.filter(pc.invert(unclean(names)))
        # It may be hidden, or newer than the listing, so its status decides.
        there = set(store.statuses(pa.chunked_array([clean]))["path"].to_pylist())
        for path, location in batch:
            if path not in there and location not in there:
                raise CorruptTableError(
                    "a file of the table is missing"
                    + (f", and {len(missing):,} were not listed" if len(missing) > 1 else ""),
                    file=path,
                    remedy="find the cause with fsck, and restore the file; to vacuum "
                    "nevertheless, give --ignore-missing-files",
                )


def _checksums(entries: Sequence[pa.Table], deleted_files: pa.Table) -> pa.Table:
    """Returns Hadoop's checksums of files that are deleted."""
    batches = [DEAD_FILES.empty_table()]
    owners = _one(deleted_files["path"])
    for batch in entries:
        rows = np.flatnonzero(checksums_of(_one(batch["path"]), owners))
        if len(rows):
            reason = pa.repeat(pa.scalar(int(Reason.CHECKSUM), pa.uint8()), len(rows))
            files = batch.select(STATUSES.names).take(integers(rows))
            batches.append(files.append_column(DEAD_FILES.field("reason"), reason))
    return pa.concat_tables(batches)


def directories_in(
    entries: Sequence[pa.Table], deleted_files: pa.Table, search: Search
) -> tuple[set[str], set[str]]:
    """Returns the directories without recent changes, and those with a remaining file."""
    old: set[str] = set()
    held: set[str] = set()
    deleted = _one(deleted_files["path"])
    for batch in entries:
        is_directory = pc.equal(batch["kind"], int(EntryKind.DIRECTORY))
        directories = batch.filter(is_directory)
        times = directories["modified_ms"]
        aged = pc.and_(pc.greater(times, 0), pc.less(times, search.modified_before_ms))
        aged = pc.fill_null(aged, False)
        old.update(directories["path"].filter(aged).to_pylist())
        held.update(directories["path"].filter(pc.invert(aged)).to_pylist())
        remaining = batch["path"].filter(pc.invert(is_directory))
        remaining = remaining.filter(pc.invert(pc.is_in(remaining, value_set=deleted)))
        held.update(pc.unique(directories_of(remaining)).to_pylist())
    return old, held


def emptied_directories(old: set[str], held: set[str]) -> tuple[str, ...]:
    """Returns the old directories without remaining files at any depth."""
    above = set(held)
    for path in held:
        while path and (path := path.rpartition("/")[0]) not in above:
            above.add(path)
    return tuple(sorted(old - above))


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else one_array(column)


def path_digest(batches: Iterable[pa.Array]) -> str:
    """Returns a digest of paths in any order, so that an approval covers exactly these files.

    The paths are divided into groups by their hashes. The digest of a group is the SHA-256 of its
    sorted paths, and the digest of all is the SHA-256 of the groups' digests. It depends neither on
    the order of the paths nor on the engine, which may sort one group at a time.
    """
    paths = pa.chunked_array(list(batches), pa.string())
    paths = paths.take(pc.sort_indices(paths))
    sorted_paths = paths.cast(pa.large_string()).combine_chunks()
    digests = {}
    for group, rows in grouped(paths):
        digests[group] = _digest_of_sorted(sorted_paths.take(integers(rows)))
    return combined_digest(digests)


def grouped(paths: pa.ChunkedArray) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yields the row numbers of the paths in each group."""
    if not len(paths):
        return
    hashes = np.concatenate([hash_texts(chunk) for chunk in paths.chunks])
    yield from rows_by_group((hashes >> np.uint64(56)).astype(np.int64), GROUPS)


def group_digest(batches: Iterable[pa.Array | pa.ChunkedArray]) -> bytes:
    """Returns the digest of all paths of one group."""
    chunks = [
        chunk.cast(pa.large_string())
        for batch in batches
        for chunk in (batch.chunks if isinstance(batch, pa.ChunkedArray) else [batch])
    ]
    paths = pa.concat_arrays(chunks)
    return _digest_of_sorted(paths.take(pc.array_sort_indices(paths)))


def _digest_of_sorted(paths: pa.LargeStringArray) -> bytes:
    lengths = pc.binary_length(paths).to_numpy().astype("<i8")
    digest = hashlib.sha256(len(paths).to_bytes(8, "little"))
    # The lengths are included, because different paths can have the same concatenation.
    digest.update(lengths.tobytes())
    _, offsets, data = paths.buffers()
    first_offset, last_offset = np.frombuffer(offsets, np.int64)[
        [paths.offset, paths.offset + len(paths)]
    ]
    digest.update(memoryview(data)[first_offset:last_offset])
    return digest.digest()


def combined_digest(groups: Mapping[int, bytes]) -> str:
    """Combines the digests of the non-empty groups to a hexadecimal number."""
    whole = hashlib.sha256()
    for number, digest in sorted(groups.items()):
        whole.update(number.to_bytes(2, "little"))
        whole.update(digest)
    return whole.hexdigest()
