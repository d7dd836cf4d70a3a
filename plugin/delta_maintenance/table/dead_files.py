"""Finding the files of a table's folder that nothing refers to, on this machine.

The folder is listed as a whole, or an inventory or the log says what may be there; then what the
log refers to is taken away. Files are columns throughout, and only those that are left are looked
at one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.protocol.arrays import booleans, integers, to_bools
from delta_maintenance.protocol.protected_paths import ProtectedPaths
from delta_maintenance.protocol.vacuum_rules import (
    Mask,
    Reason,
    VisibilityRules,
    checksums_of,
    folded,
    reasons,
    unclean,
)
from delta_maintenance.storage.base import Store
from delta_maintenance.storage.tree import STATUSES, TREE, EntryKind, directories_of
from delta_maintenance.table.file_references import FileReferences

DEAD_FILES = pa.schema([*STATUSES, ("reason", pa.uint8())])
"""Files that may go, each with its `Reason`."""

HIDDEN = "hidden: a name that begins with _ or ."
_LOOKED_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to look for. Instants are milliseconds since 1970-01-01 UTC."""

    rules: VisibilityRules
    modified_before_ms: int
    """Files of this instant or later may belong to a commit under way."""
    foreign_files: bool
    """Whether files go too whose names are not those of Delta's files."""


@dataclass(slots=True)
class DeadFiles:
    """What may go, and how many of the others stay for which reason."""

    files: pa.Table = field(default_factory=DEAD_FILES.empty_table)
    directories: tuple[str, ...] = ()
    """Those that have nothing in them once the files are gone, and have been there for long."""
    kept: dict[str, int] = field(default_factory=dict)
    listed: int = 0
    """Files that were looked at, hidden ones included."""

    def keep(self, why: str, count: int) -> None:
        """Counts files that stay."""
        if count:
            self.kept[why] = self.kept.get(why, 0) + count


def list_folder(store: Store, rules: VisibilityRules) -> pa.Table:
    """Everything below the root (`tree.TREE`) but what is in hidden directories, if it has any."""
    batches = store.list_tree(skip=rules.is_hidden_directory)
    return pa.concat_tables([TREE.empty_table(), *batches]).combine_chunks()


def find_dead_files(
    store: Store, entries: pa.Table, references: FileReferences, search: Search
) -> DeadFiles:
    """What of a listing (`tree.TREE`) may go.

    `RefusedError` where there is another table inside this one.
    """
    rules = search.rules
    everything = _one(entries["path"])
    nested = rules.nested_log(everything)
    if nested is not None:
        raise RefusedError(
            "there is another table inside this one, whose files this one knows nothing of",
            file=nested,
            remedy="move it elsewhere",
        )
    dead = DeadFiles()
    is_file = to_bools(pc.equal(_one(entries["kind"]), int(EntryKind.FILE)))
    is_other = to_bools(pc.equal(_one(entries["kind"]), int(EntryKind.OTHER)))
    files = entries.filter(booleans(is_file))
    paths = _one(files["path"])
    dead.listed = len(paths)
    dead.keep("links and other things that are no files", int(is_other.sum()))
    candidates = sift(paths, references, search, dead)
    found = old_enough(store, files, candidates, search, dead)
    checksums = _checksums(store, files, found, search)
    # Counted as hidden, which they are but for this.
    dead.keep(HIDDEN, -checksums.num_rows)
    dead.files = pa.concat_tables([found, checksums])
    dead.directories = _emptied(entries, dead.files, search)
    return dead


def sift(paths: pa.Array, references: FileReferences, search: Search, dead: DeadFiles) -> pa.Table:
    """The paths that nothing refers to and no rule keeps: their `row` and `reason`, of any age.

    Counts the others in `dead`.
    """
    standing = np.ones(len(paths), np.bool_)

    def leave(mask: Mask, why: str) -> None:
        dead.keep(why, int((standing & mask).sum()))
        np.logical_and(standing, ~mask, out=standing)

    leave(search.rules.hidden(paths), HIDDEN)
    leave(_is_in(paths, references.in_use.places()), "in use")
    rows = np.flatnonzero(standing)
    paths = paths.take(integers(rows))
    standing = np.ones(len(paths), np.bool_)
    leave(unclean(paths), "a name that stores and readers could take for another one")
    leave(_in_use_otherwise(references.in_use, paths), "perhaps in use under another spelling")
    found = reasons(paths, expired=booleans(_is_in(paths, references.expired.places())))
    if not search.foreign_files:
        leave(found == Reason.FOREIGN, "foreign: no name of a data file")
    kept = booleans(standing)
    return pa.table({"row": integers(rows), "reason": pa.array(found)}).filter(kept)


def uses_any(protected: ProtectedPaths, paths: pa.ChunkedArray) -> Mask:
    """Which of the paths are protected, under any spelling."""
    texts = _one(paths)
    return _is_in(texts, protected.places()) | _in_use_otherwise(protected, texts)


def _in_use_otherwise(protected: ProtectedPaths, paths: pa.Array) -> Mask:
    """Which of the paths could be others that are protected.

    There are file systems that mind neither case nor Unicode's forms, and addresses of the table
    that nobody has mentioned.
    """
    if not len(paths):
        return np.empty(0, np.bool_)
    alike = _is_in(folded(paths), folded(pc.unique(protected.places())))
    outside = protected.names_outside()
    if len(outside):
        alike |= _is_in(pc.replace_substring_regex(paths, "^.*/", ""), outside)
    return alike


def old_enough(
    store: Store, files: pa.Table, candidates: pa.Table, search: Search, dead: DeadFiles
) -> pa.Table:
    """The candidates (rows of `files`, reasons) that no commit under way can have written.

    Asks the store for the times of those that came without one.
    """
    found = files.select(STATUSES.names).take(candidates["row"])
    found = found.append_column("reason", candidates["reason"])
    untold = pc.is_null(found["modified_ms"])
    if pc.any(untold).as_py():
        asked = found.filter(untold)
        told = store.statuses(asked["path"])
        at = pc.index_in(told["path"], value_set=asked["path"])
        told = told.append_column("reason", asked["reason"].take(at))
        found = pa.concat_tables([found.filter(pc.invert(untold)), told.cast(DEAD_FILES)])
    known = pc.greater(found["modified_ms"], 0)
    old = pc.less(found["modified_ms"], search.modified_before_ms)
    dead.keep(
        "young: of the last retention, or of a commit under way",
        pc.sum(pc.and_(known, pc.invert(old))).as_py() or 0,
    )
    dead.keep("of unknown age", pc.sum(pc.invert(known)).as_py() or 0)
    return found.filter(pc.and_(known, old)).cast(DEAD_FILES)


def require_no_missing(store: Store, references: FileReferences, listed: pa.Array) -> None:
    """`CorruptTableError` where live files are not there.

    Either the table is broken, or this is not how its paths are to be read; and then what seems to
    be dead may be alive under another name.
    """
    missing = references.missing(listed)
    for first in range(0, missing.num_rows, _LOOKED_AT_ONCE):
        batch = missing.slice(first, _LOOKED_AT_ONCE)
        places = [_readable(place) for place in batch["place"].to_pylist()]
        names = pa.chunked_array([pa.array([*places, *batch["path"].to_pylist()], pa.string())])
        clean = names.filter(booleans(~unclean(_one(names))))
        # Listed before the log was read, or hidden; a look at the file itself decides.
        there = set(store.statuses(clean)["path"].to_pylist())
        for path, place in zip(batch["path"].to_pylist(), places, strict=True):
            if path not in there and place not in there:
                raise CorruptTableError(
                    f"a file of the table is not there, one of {missing.num_rows} that were not "
                    "listed",
                    file=path,
                    remedy="find out why with fsck; to vacuum all the same, ignore missing files",
                )


def _checksums(store: Store, files: pa.Table, found: pa.Table, search: Search) -> pa.Table:
    paths = _one(files["path"])
    rows = np.flatnonzero(checksums_of(paths, _one(found["path"])))
    if not len(rows):
        return DEAD_FILES.empty_table()
    reason = pa.repeat(pa.scalar(int(Reason.CHECKSUM), pa.uint8()), len(rows))
    candidates = pa.table({"row": integers(rows), "reason": reason})
    return old_enough(store, files, candidates, search, DeadFiles())


def _emptied(entries: pa.Table, going: pa.Table, search: Search) -> tuple[str, ...]:
    """The directories below which nothing stays and nothing has changed for long."""
    is_directory = pc.equal(entries["kind"], int(EntryKind.DIRECTORY))
    directories = entries.filter(is_directory)
    if not directories.num_rows:
        return ()
    times = directories["modified_ms"]
    old = pc.and_(pc.greater(times, 0), pc.less(times, search.modified_before_ms))
    candidates = directories["path"].filter(pc.fill_null(old, False)).to_pylist()
    staying = entries["path"].filter(pc.invert(is_directory))
    staying = staying.filter(pc.invert(pc.is_in(staying, value_set=_one(going["path"]))))
    held = set(pc.unique(directories_of(staying)).to_pylist())
    held |= set(directories["path"].to_pylist()) - set(candidates)
    for path in list(held):
        while path and (path := path.rpartition("/")[0]):
            held.add(path)
    return tuple(path for path in candidates if path not in held)


def _is_in(paths: pa.Array, places: pa.Array | pa.ChunkedArray) -> Mask:
    return to_bools(pc.is_in(paths.cast(places.type), value_set=places))


def _readable(place: bytes) -> str:
    return place.decode(errors="replace")


def _one(column: pa.ChunkedArray) -> pa.Array:
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays([pa.array([], column.type), *column.chunks])
    )
