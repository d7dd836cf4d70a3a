"""Finding unreferenced files in the folder of a table, on this machine.

The candidates come from a listing of the whole folder, from an inventory or from the log; then all
files that the log refers to are removed. Files are columns throughout, and only the remaining ones
are checked individually.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.operations.vacuum.references import FileReferences
from delta_maintenance.protocol.columns.arrays import booleans, integers
from delta_maintenance.protocol.vacuum.visibility import (
    Reason,
    VisibilityRules,
    checksums_of,
    reasons,
)
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import STATUSES, EntryKind, directories_of, unclean

DEAD_FILES = pa.schema([*STATUSES, ("reason", pa.uint8())])
"""Files that may go, each with its `Reason`."""

HIDDEN = "hidden: a name that begins with _ or ."
_LOOKED_AT_ONCE = 100
_SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The search criteria. Instants are milliseconds since 1970-01-01 UTC."""

    rules: VisibilityRules
    modified_before_ms: int
    """Files of this instant or later may belong to a commit under way."""
    foreign_files: bool
    """Whether to delete also files whose names are not those of Delta's files."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many files may go for one reason."""

    reason: Reason
    count: int
    bytes: int
    samples: tuple[tuple[str, int], ...]
    """The path and the size of a few of them."""


@dataclass(slots=True)
class DeadFiles:
    """The files to delete, and the number of kept files by reason."""

    files: pa.Table = field(default_factory=DEAD_FILES.empty_table)
    directories: tuple[str, ...] = ()
    """Those that have nothing in them once the files are gone, and have been there for long."""
    kept: dict[str, int] = field(default_factory=dict)
    listed: int = 0
    """Examined files, including hidden ones."""

    def tallies(self) -> tuple[Tally, ...]:
        """The files by the reasons for which they may go."""
        found = []
        for reason in Reason:
            files = self.files.filter(pc.equal(self.files["reason"], int(reason)))
            if files.num_rows:
                first = files.slice(0, _SAMPLES)
                pairs = zip(first["path"].to_pylist(), first["size"].to_pylist(), strict=True)
                size = pc.sum(files["size"]).as_py() or 0
                found.append(Tally(reason, files.num_rows, size, tuple(pairs)))
        return tuple(found)

    def keep(self, why: str, count: int) -> None:
        """Counts files that stay."""
        if count:
            self.kept[why] = self.kept.get(why, 0) + count


def list_folder(store: Store, rules: VisibilityRules) -> list[pa.Table]:
    """The listing below the root (`tree.TREE`) without the contents of hidden directories."""
    return list(store.list_tree(skip=rules.is_hidden_directory))


def find_dead_files(
    store: Store, entries: Sequence[pa.Table], references: FileReferences, search: Search
) -> DeadFiles:
    """The files of a listing (`tree.TREE`) that may be deleted.

    Raises `RefusedError` if another table is inside this one.
    """
    dead = DeadFiles()
    for batch in entries:
        require_no_table_inside(batch, search)
    loose = [out_of_use(batch, references, search, dead) for batch in entries]
    candidates = with_reasons(
        pa.concat_tables([STATUSES.empty_table(), *loose]), references, search, dead
    )
    found = old_enough(store, candidates, search, dead)
    checksums = old_enough(store, _checksums(entries, found), search, DeadFiles())
    # Counted as hidden, which they are but for this.
    dead.keep(HIDDEN, -checksums.num_rows)
    dead.files = pa.concat_tables([found, checksums])
    dead.directories = emptied(*directories_in(entries, dead.files, search))
    return dead


def require_no_table_inside(entries: pa.Table, search: Search) -> None:
    """`RefusedError` where a listing shows the log of another table."""
    for paths in entries["path"].chunks:
        nested = search.rules.nested_log(paths)
        if nested is not None:
            raise RefusedError(
                "there is another table inside this one, whose files this one knows nothing of",
                file=nested,
                remedy="move it elsewhere",
            )


def out_of_use(
    entries: pa.Table, references: FileReferences, search: Search, dead: DeadFiles
) -> pa.Table:
    """The visible files (`tree.STATUSES`) of a listing that are unreferenced.

    Counts the others in `dead`.
    """
    kinds = entries["kind"]
    dead.keep(
        "links and other things that are no files",
        pc.sum(pc.equal(kinds, int(EntryKind.OTHER))).as_py() or 0,
    )
    files = entries.filter(pc.equal(kinds, int(EntryKind.FILE))).select(STATUSES.names)
    paths = _one(files["path"])
    dead.listed += len(paths)
    hidden = search.rules.hidden(paths)
    dead.keep(HIDDEN, int(hidden.sum()))
    in_use = ~hidden & references.in_use.covers(paths)
    dead.keep("in use", int(in_use.sum()))
    files = files.filter(booleans(~(hidden | in_use)))
    odd = unclean(_one(files["path"]))
    dead.keep("a name that stores and readers could take for another one", odd.true_count)
    return files.filter(pc.invert(odd))


def with_reasons(
    files: pa.Table, references: FileReferences, search: Search, dead: DeadFiles
) -> pa.Table:
    """Unreferenced files (`tree.STATUSES`) as `DEAD_FILES`, without foreign files."""
    paths = _one(files["path"])
    removed = pa.chunked_array(references.expired, pa.binary())
    found = reasons(paths, expired=pc.is_in(paths.cast(pa.binary()), value_set=removed))
    files = files.append_column(DEAD_FILES.field("reason"), pa.array(found, pa.uint8()))
    if search.foreign_files:
        return files
    foreign = found == Reason.FOREIGN
    dead.keep("foreign: no name of a data file", int(foreign.sum()))
    return files.filter(booleans(~foreign))


def old_enough(store: Store, files: pa.Table, search: Search, dead: DeadFiles) -> pa.Table:
    """The files (`DEAD_FILES`) that no commit in progress can have written.

    Reads missing times from the store.
    """
    untold = pc.is_null(files["modified_ms"])
    if pc.any(untold).as_py():
        asked = files.filter(untold)
        told = store.statuses(asked["path"])
        at = pc.index_in(told["path"], value_set=_one(asked["path"]))
        told = told.append_column(DEAD_FILES.field("reason"), asked["reason"].take(at))
        files = pa.concat_tables([files.filter(pc.invert(untold)), told])
    known = pc.greater(files["modified_ms"], 0)
    old = pc.less(files["modified_ms"], search.modified_before_ms)
    dead.keep(
        "young: of the last retention, or of a commit under way",
        pc.sum(pc.and_(known, pc.invert(old))).as_py() or 0,
    )
    dead.keep("of unknown age", pc.sum(pc.invert(known)).as_py() or 0)
    return files.filter(pc.and_(known, old))


def require_no_missing(
    store: Store, references: FileReferences, entries: Sequence[pa.Table]
) -> None:
    """Raises `CorruptTableError` if live files are missing.

    Either the table is damaged, or its paths are interpreted wrongly; then apparently unreferenced
    files could be live under another name.
    """
    missing = references.unlisted([chunk for batch in entries for chunk in batch["path"].chunks])
    for first in range(0, len(missing), _LOOKED_AT_ONCE):
        batch = missing[first : first + _LOOKED_AT_ONCE]
        names = pa.array([name for pair in batch for name in pair], pa.string())
        clean = names.filter(pc.invert(unclean(names)))
        # Written after the listing, or hidden; the status of the file itself decides.
        there = set(store.statuses(pa.chunked_array([clean]))["path"].to_pylist())
        for path, place in batch:
            if path not in there and place not in there:
                raise CorruptTableError(
                    f"a file of the table is not there, one of {len(missing)} that were not listed",
                    file=path,
                    remedy="find out why with fsck; to vacuum all the same, ignore missing files",
                )


def _checksums(entries: Sequence[pa.Table], going: pa.Table) -> pa.Table:
    """Hadoop's checksums of files that go."""
    found = [DEAD_FILES.empty_table()]
    owners = _one(going["path"])
    for batch in entries:
        rows = np.flatnonzero(checksums_of(_one(batch["path"]), owners))
        if len(rows):
            reason = pa.repeat(pa.scalar(int(Reason.CHECKSUM), pa.uint8()), len(rows))
            files = batch.select(STATUSES.names).take(integers(rows))
            found.append(files.append_column(DEAD_FILES.field("reason"), reason))
    return pa.concat_tables(found)


def directories_in(
    entries: Sequence[pa.Table], going: pa.Table, search: Search
) -> tuple[set[str], set[str]]:
    """The directories that nothing has changed for long, and those in which something stays."""
    old: set[str] = set()
    held: set[str] = set()
    gone = _one(going["path"])
    for batch in entries:
        is_directory = pc.equal(batch["kind"], int(EntryKind.DIRECTORY))
        directories = batch.filter(is_directory)
        times = directories["modified_ms"]
        aged = pc.and_(pc.greater(times, 0), pc.less(times, search.modified_before_ms))
        aged = pc.fill_null(aged, False)
        old.update(directories["path"].filter(aged).to_pylist())
        held.update(directories["path"].filter(pc.invert(aged)).to_pylist())
        staying = batch["path"].filter(pc.invert(is_directory))
        staying = staying.filter(pc.invert(pc.is_in(staying, value_set=gone)))
        held.update(pc.unique(directories_of(staying)).to_pylist())
    return old, held


def emptied(old: set[str], held: set[str]) -> tuple[str, ...]:
    """The old directories below which nothing stays."""
    above = set(held)
    for path in held:
        while path and (path := path.rpartition("/")[0]) not in above:
            above.add(path)
    return tuple(sorted(old - above))


def _one(column: pa.ChunkedArray) -> pa.Array:
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays([pa.array([], column.type), *column.chunks])
    )
