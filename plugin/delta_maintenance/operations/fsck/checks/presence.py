"""Checks whether the files that a version needs exist, with the sizes in the log.

One listing of the whole table covers all files. Files outside the table's root, as in shallow
clones, are counted and not checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.fsck.inputs import LiveFiles
from delta_maintenance.protocol.actions.deletion_vectors import STORED_ABSOLUTE, STORED_RELATIVE
from delta_maintenance.protocol.actions.paths import as_uris, locations_below
from delta_maintenance.protocol.columns import booleans, integers
from delta_maintenance.protocol.vacuum import deletion_vector_paths
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import ARCHIVES, TREE, EntryKind
from delta_maintenance.table.data.locations import find_other_spellings, reached_by_the_store
from delta_maintenance.table.read.log_file import LOG_DIRECTORY

_LOOKED_UP = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """The live files of a table compared with a listing."""

    present: pa.Table
    """The rows of `LiveFiles.adds` whose files exist and can be read at once, with their locations
    relative to the root in the column `location`.
    """
    missing: pa.Table
    """The rows whose data files do not exist under any spelling of their paths."""
    other_spellings: pa.Table
    """Missing data files and vector files of which another spelling exists (`OTHER_SPELLINGS`)."""
    external: int
    """The number of data files outside the root, which are not checked."""
    opened: int = 0
    """The number of files that were opened."""


class TableFiles:
    """All files below the root of a table except its log, as of one listing."""

    def __init__(self, store: Store) -> None:
        batches = store.list_tree(skip=lambda directory: directory == LOG_DIRECTORY)
        tree = pa.concat_tables([TREE.empty_table(), *batches])
        self._files = tree.filter(pc.equal(tree["kind"], int(EntryKind.FILE)))
        self._names = self._files["path"].cast(pa.binary())
        self._used: list[pa.ChunkedArray] = []
        """The found files."""
        self._store = store

    def find(self, paths: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Finds paths of the log in the listing.

        Returns the location of each file, null if it does not exist, and whether it is outside the
        root.
        """
        raw = _one_array(paths)
        location, external = self._locate(raw)
        indices = pc.index_in(location, value_set=self._names)
        if indices.null_count:
            # Some writers do not encode paths.
            indices = pc.coalesce(
                indices, pc.index_in(raw.cast(pa.binary()), value_set=self._names)
            )
        where = self._files["path"].take(indices)
        self._used.append(where.drop_null())
        return where, pa.chunked_array([external])

    def find_other_spellings(self, missing: pa.Table) -> pa.Table:
        """Finds missing files among those that `find` has never returned (`OTHER_SPELLINGS`).

        The columns are `path` and `size`, null if unknown.
        """
        location, _ = self._locate(_one_array(missing["path"]))
        used = pa.chunked_array([c for part in self._used for c in part.chunks], pa.string())
        files = self._files.select(["path", "size"])
        files = files.filter(pc.invert(pc.is_in(files["path"], value_set=used)))
        wanted = missing.append_column("location", pa.chunked_array([location]))
        spellings = find_other_spellings(wanted, files)
        if spellings["found_size"].null_count:
            # A local disk lists no sizes, without which a file of another size is not in doubt.
            rows = pc.index_in(files["path"], value_set=spellings["found"])
            files = files.set_column(1, "size", self.sizes(spellings["found"]).take(rows))
            spellings = find_other_spellings(wanted, files)
        return spellings

    def reaches(self, files: pa.Table) -> npt.NDArray[np.bool_]:
        """Marks the other spellings that the store takes for the name that readers use."""
        return reached_by_the_store(self._store, files)

    def _locate(self, raw: pa.StringArray) -> tuple[pa.BinaryArray, pa.BooleanArray]:
        return locations_below(raw, roots=self._store.addresses)

    def sizes(self, locations: pa.ChunkedArray) -> pa.ChunkedArray:
        """Returns the sizes in bytes of existing files."""
        rows = pc.index_in(locations.cast(pa.binary()), value_set=self._names)
        sizes = self._files["size"].take(rows)
        if not sizes.null_count:
            return sizes
        # In batches ordered by folder, because most stores list every folder of a batch.
        order = pc.sort_indices(locations).to_numpy()
        batches = [order[at : at + _LOOKED_UP] for at in range(0, len(order), _LOOKED_UP)]
        looked_up = [self._look_up(locations.take(integers(part))) for part in batches]
        ordered = pa.chunked_array([c for part in looked_up for c in part.chunks], pa.int64())
        return ordered.take(integers(np.argsort(order)))

    def archive(self, locations: pa.ChunkedArray) -> pa.ChunkedArray:
        """Returns the `listing.TREE` column `archive` of existing files."""
        rows = pc.index_in(locations.cast(pa.binary()), value_set=self._names)
        return self._files["archive"].take(rows)

    def _look_up(self, locations: pa.ChunkedArray) -> pa.ChunkedArray:
        statuses = self._store.statuses(locations)
        return statuses["size"].take(pc.index_in(locations, value_set=statuses["path"]))


def check_presence(
    files: TableFiles, live: LiveFiles, findings: Findings, *, version: int, kept_from_ms: int
) -> Presence:
    """Checks the data files and deletion vectors of live files and of unexpired tombstones.

    A tombstone is unexpired if it was removed at or after `kept_from_ms` (milliseconds since
    1970-01-01 UTC).
    """
    adds = live.adds
    locations, external = files.find(adds["path"])
    lost = adds.filter(pc.and_(pc.is_null(locations), pc.invert(external)))
    _check_removed(files, live.tombstones, findings, version, kept_from_ms)
    vectors = _missing_vectors(files, adds, findings, version)
    wanted = [lost.select(["path", "size"]), _without_size(pc.unique(vectors["uri"]))]
    spellings = files.find_other_spellings(pa.concat_tables(wanted))
    reached = booleans(files.reaches(spellings))
    there, others = spellings.filter(reached), spellings.filter(pc.invert(reached))
    rows = pc.index_in(adds["path"], value_set=there["path"])
    locations = pc.coalesce(locations, there["found"].take(rows))
    missing = lost.filter(pc.invert(pc.is_in(lost["path"], value_set=spellings["path"])))
    problem = "the data file does not exist"
    findings.add_files("missing-data-file", problem, paths=missing["path"], version=version)
    vectors = vectors.filter(pc.invert(pc.is_in(vectors["uri"], value_set=spellings["path"])))
    _add_vectors("missing-deletion-vector", vectors, findings, version)
    _add_other_spellings(others, findings, version)
    present = adds.append_column("location", locations).filter(pc.is_valid(locations))
    _check_sizes(files, present, findings, version)
    present = _check_archived(files, present, findings, version)
    return Presence(
        present=present,
        missing=missing,
        other_spellings=others,
        external=pc.sum(external).as_py() or 0,
    )


def _check_sizes(files: TableFiles, present: pa.Table, findings: Findings, version: int) -> None:
    sizes = files.sizes(present["location"])
    wrong = pc.fill_null(pc.not_equal(sizes, present["size"]), False)
    text = pc.binary_join_element_wise(
        "the file has",
        sizes.filter(wrong).cast(pa.string()),
        "bytes, but the log states",
        present["size"].filter(wrong).cast(pa.string()),
        " ",
    )
    paths = present["path"].filter(wrong)
    findings.add_files("data-file-size", text, paths=paths, version=version)


def _check_archived(
    files: TableFiles, present: pa.Table, findings: Findings, version: int
) -> pa.Table:
    """Returns the files that can be read at once."""
    archive = files.archive(present["location"])
    if archive.null_count == len(archive):
        return present
    archived = pc.is_valid(archive)
    names = pa.array(ARCHIVES).take(archive.filter(archived).combine_chunks())
    problem = pc.binary_join_element_wise(
        "the file is in the storage class", names, "and cannot be read at once", " "
    )
    findings.add_files(
        "archived-data-file",
        pa.chunked_array([problem]),
        paths=present["path"].filter(archived),
        version=version,
    )
    return present.filter(pc.invert(archived))


def _missing_vectors(
    files: TableFiles, actions: pa.Table, findings: Findings, version: int
) -> pa.Table:
    """Returns the `path` of each data file whose vector file does not exist, with the vector's path
    as text and as `uri`.
    """
    vectors = actions["deletionVector"]
    storage, texts = (pc.struct_field(vectors, n) for n in ("storageType", "pathOrInlineDv"))
    parts = [pa.schema(dict.fromkeys(("path", "vector", "uri"), pa.string())).empty_table()]
    for stored in (STORED_RELATIVE, STORED_ABSOLUTE):
        chosen = pc.fill_null(pc.equal(storage, stored), False)
        names = _one_array(pc.unique(texts.filter(chosen)))
        if not len(names):
            continue
        try:
            paths = _vector_paths(stored, names)
        except (CorruptTableError, UnsupportedFeatureError) as error:
            findings.add("damaged-deletion-vector", error.problem, version=version)
            continue
        # A relative path is a path of the store and not encoded.
        encoded = as_uris(paths) if stored == STORED_RELATIVE else paths
        where, external = files.find(pa.chunked_array([encoded]))
        missing = _one_array(pc.and_(pc.is_null(where), pc.invert(external)))
        lost = pc.index_in(texts, value_set=names.filter(missing))
        rows = pc.and_(chosen, pc.is_valid(lost))
        at = lost.filter(rows)
        columns = [paths.filter(missing).take(at), encoded.filter(missing).take(at)]
        table = pa.table([actions["path"].filter(rows), *columns], schema=parts[0].schema)
        parts.append(table)
    return pa.concat_tables(parts)


def _add_vectors(kind: str, missing: pa.Table, findings: Findings, version: int) -> None:
    problem = pc.binary_join_element_wise(
        "the file of its deletion vector does not exist:", missing["vector"], " "
    )
    findings.add_files(kind, problem, paths=missing["path"], version=version)


def _add_other_spellings(others: pa.Table, findings: Findings, version: int) -> None:
    sure = others.filter(pc.is_null(others["doubt"]))
    problem = pc.binary_join_element_wise(
        "the file is stored under another spelling of its name:", sure["found"], " "
    )
    findings.add_files("misnamed-file", problem, paths=sure["path"], version=version)
    doubtful = others.filter(pc.is_valid(others["doubt"]))
    start = "the file does not exist, but there is another spelling of its name:"
    problem = pc.binary_join_element_wise(start, doubtful["found"], " ")
    problem = pc.binary_join_element_wise(problem, doubtful["doubt"], "; ")
    findings.add_files("doubtful-file", problem, paths=doubtful["path"], version=version)


def _check_removed(
    files: TableFiles, tombstones: pa.Table, findings: Findings, version: int, kept_from_ms: int
) -> None:
    # Files of expired tombstones may exist, too, and are then no other spelling of a live file.
    locations, external = files.find(tombstones["path"])
    since = pc.greater_equal(tombstones["deletionTimestamp"], kept_from_ms)
    is_kept = pc.fill_null(since, False)
    missing = pc.and_(is_kept, pc.and_(pc.is_null(locations), pc.invert(external)))
    problem = "the file of an unexpired tombstone does not exist"
    paths = tombstones["path"].filter(missing)
    findings.add_files("missing-removed-file", problem, paths=paths, version=version)
    kept = tombstones.filter(is_kept)
    _add_vectors(
        "missing-removed-file", _missing_vectors(files, kept, findings, version), findings, version
    )


def _without_size(paths: pa.Array | pa.ChunkedArray) -> pa.Table:
    return pa.table({"path": paths, "size": pa.nulls(len(paths), pa.int64())})


def _vector_paths(stored: str, names: pa.StringArray) -> pa.StringArray:
    kinds = pa.array([stored] * len(names), pa.string())
    fields = [kinds, names]
    struct = pa.StructArray.from_arrays(fields, names=["storageType", "pathOrInlineDv"])
    relative, absolute = deletion_vector_paths(struct)
    return relative if stored == STORED_RELATIVE else absolute


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
