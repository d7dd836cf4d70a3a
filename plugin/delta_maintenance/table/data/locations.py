"""The names in the store of the paths in the log.

Some writers encode the names of their files once more, or once less, than the paths in the log.
Copies between stores can change letter case or the Unicode form of names. Readers then miss a file
that still exists; it is found here under the other spelling.
"""

from __future__ import annotations

import re
import shutil

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import InvalidRequestError, RefusedError, StorageError
from delta_maintenance.protocol.actions.paths import ABSOLUTE, below_root, file_locations
from delta_maintenance.protocol.columns import Hashes, booleans, integers, to_bools, valid_texts
from delta_maintenance.protocol.vacuum import hash_paths, hash_spellings
from delta_maintenance.storage.core.base import Store, new_file
from delta_maintenance.storage.core.listing import unclean
from delta_maintenance.storage.core.paths import check_path
from delta_maintenance.table.parallel import in_parallel

_PLAIN = re.compile(r"[\w=-][\w=.-]*(?:/[\w=-][\w=.-]*)*", re.ASCII)
"""Relative paths that need no conversion: no encoded characters, no scheme, no `.` or `..`."""

OTHER_SPELLINGS = pa.schema(
    {
        "path": pa.string(),
        "target": pa.string(),
        "found": pa.string(),
        "found_size": pa.int64(),
        "doubt": pa.string(),
    }
)
"""Missing files: the path in the log, the name that readers look for, an existing file with another
spelling of that name and its size, and the reason why it may be another file, if there is one.
"""
_COPIED_AT_ONCE = 4
_COPIED_BYTES = 1 << 20
_LOOKED_UP_AT_ONCE = 16


def location_of(store: Store, path: str) -> str:
    """Returns the name in the store of a data file or a deletion vector file.

    `RefusedError` for a path that is not below the table's root.
    """
    if _PLAIN.fullmatch(path):
        return check_path(path)
    paths = pa.array([path], pa.string())
    roots = [store.root]
    if pc.match_substring_regex(paths, ABSOLUTE)[0].as_py():
        roots = [root for root in store.addresses if below_root(paths, root=root)[0].is_valid]
    try:
        if roots:
            return check_path(file_locations(paths, root=roots[0])[0].as_py().decode())
    except (UnicodeDecodeError, InvalidRequestError):
        pass
    raise RefusedError(
        f"{path} is not below the table's root, and this release reads data only there",
        remedy="let the engine that cloned the table do it",
    )


def find_other_spellings(missing: pa.Table, files: pa.Table) -> pa.Table:
    """Returns the missing files that have another spelling (`OTHER_SPELLINGS`).

    `missing` contains for each missing file its `path` in the log, its `location` relative to the
    root, and its `size`, null if unknown. `files` contains the `path` and the `size` of each file
    that the table does not refer to.
    """
    # A file with such a name cannot exist in any store.
    missing = missing.filter(_are_texts(missing["location"]))
    keys = _hash_paths(missing["location"])
    theirs = _hash_paths(files["path"])
    rows = np.flatnonzero(np.isin(theirs, keys))
    files, theirs = files.take(integers(rows)), theirs[rows]
    distinct, first_rows, counts = np.unique(theirs, return_index=True, return_counts=True)
    rows = np.flatnonzero(np.isin(keys, distinct))
    missing, keys = missing.take(integers(rows)), keys[rows]
    at = np.searchsorted(distinct, keys)
    spelt_files = files.take(integers(first_rows[at]))
    _, of_key, claims = np.unique(keys, return_inverse=True, return_counts=True)
    target = missing["location"].cast(pa.string())
    doubts = [
        (to_bools(_one(unclean(_one(target)))), "the store cannot have a file of that name"),
        (counts[at] > 1, "several files have such a name"),
        (claims[of_key] > 1, "several missing files could be this one"),
        (
            to_bools(_one(pc.fill_null(pc.not_equal(missing["size"], spelt_files["size"]), False))),
            "the log states another size",
        ),
    ]
    doubt = pa.nulls(len(keys), pa.string())
    for applies, reason in doubts:
        doubt = pc.if_else(booleans(applies), reason, doubt)
    columns = [missing["path"], target, spelt_files["path"], spelt_files["size"], doubt]
    return pa.table(columns, schema=OTHER_SPELLINGS)


def reached_by_the_store(store: Store, spellings: pa.Table) -> npt.NDArray[np.bool_]:
    """Marks the files (`OTHER_SPELLINGS`) that the store finds under the name that readers use.

    Some file systems ignore letter case or Unicode normalisation.
    """
    alike: npt.NDArray[np.bool_] = hash_spellings(_one(spellings["target"])) == hash_spellings(
        _one(spellings["found"])
    )
    rows = np.flatnonzero(alike)
    names = spellings["target"].take(integers(rows)).to_pylist()
    there = in_parallel(store.stat, names, threads=_LOOKED_UP_AT_ONCE)
    alike[rows] = [status is not None for status in there]
    return alike


def copy_files(store: Store, spellings: pa.Table) -> int:
    """Copies files (`OTHER_SPELLINGS`) to the names that readers look for.

    The originals are kept: the writer of the table may read them. An existing file is never
    changed. Returns the number of copies. `StorageError` if a copy is incomplete.
    """
    rows = zip(*(spellings[name].to_pylist() for name in ("found", "target")), strict=True)
    return sum(in_parallel(lambda row: _copy(store, *row), rows, threads=_COPIED_AT_ONCE))


def _copy(store: Store, source: str, target: str) -> bool:
    try:
        with store.open(source) as original, new_file(store, target) as copy:
            shutil.copyfileobj(original, copy, _COPIED_BYTES)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise StorageError("the file no longer exists", file=source, remedy="run again") from None
    before, after = store.stat(source), store.stat(target)
    if before is None or after is None or before.size != after.size:
        raise StorageError(
            "the copy differs from the original file in size",
            file=target,
            remedy="find the other process that writes to this folder",
        )
    return True


def _are_texts(locations: pa.ChunkedArray) -> pa.BooleanArray:
    """Marks the locations that are valid UTF-8."""
    return pc.is_in(locations, value_set=valid_texts(_one(locations)).cast(pa.binary()))


def _hash_paths(paths: pa.ChunkedArray) -> Hashes:
    return np.concatenate([np.empty(0, np.uint64), *map(hash_paths, paths.chunks)])


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
