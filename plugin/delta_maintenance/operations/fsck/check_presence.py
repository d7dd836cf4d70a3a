"""Checks whether the files that a version needs exist, with the sizes in the log.

One listing of the whole table covers all files. Files outside the table's root, as in shallow
clones, are counted and not checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.operations.fsck.check_live_files import LiveFiles
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.protocol.actions.deletion_vectors import STORED_ABSOLUTE, STORED_RELATIVE
from delta_maintenance.protocol.actions.paths import ABSOLUTE, locations
from delta_maintenance.protocol.columns.arrays import integers
from delta_maintenance.protocol.vacuum.protected_paths import deletion_vector_paths
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import TREE, EntryKind
from delta_maintenance.table.read.segment import LOG_DIRECTORY

_LOOKED_UP = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """The live files of a table compared with a listing."""

    present: pa.Table
    """The rows of `LiveFiles.adds` whose files exist, with their locations relative to the root in
    the column `place`.
    """
    missing: pa.Table
    """The rows whose data files do not exist."""
    external: int
    """The number of data files outside the root, which are not checked."""


class TableFiles:
    """All files below the root of a table except its log, as of one listing."""

    def __init__(self, store: Store) -> None:
        batches = store.list_tree(skip=lambda directory: directory == LOG_DIRECTORY)
        tree = pa.concat_tables([TREE.empty_table(), *batches])
        self._files = tree.filter(pc.equal(tree["kind"], int(EntryKind.FILE)))
        self._names = self._files["path"].cast(pa.binary())
        self._store = store

    def find(self, paths: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Finds paths of the log in the listing.

        Returns the location of each file, null if it does not exist, and whether it is outside the
        root.
        """
        raw = _one_array(paths)
        absolute = pc.match_substring_regex(raw, ABSOLUTE)
        place = locations(raw, root=self._store.root)
        for address in self._store.addresses[1:]:
            # The log may use another address for the table than the user.
            outside = pc.and_(absolute, _is_absolute(place))
            place = pc.if_else(outside, locations(raw, root=address), place)
        external = pc.and_(absolute, _is_absolute(place))
        found = pc.index_in(place, value_set=self._names)
        if found.null_count:
            # Some writers do not encode paths.
            found = pc.coalesce(found, pc.index_in(raw.cast(pa.binary()), value_set=self._names))
        where = self._files["path"].take(found)
        return where, pa.chunked_array([external])

    def sizes(self, places: pa.ChunkedArray) -> pa.ChunkedArray:
        """Returns the sizes in bytes of existing files."""
        rows = pc.index_in(places.cast(pa.binary()), value_set=self._names)
        sizes = self._files["size"].take(rows)
        if not sizes.null_count:
            return sizes
        # In batches ordered by folder, because most stores list every folder of a batch.
        order = pc.sort_indices(places).to_numpy()
        parts = [order[at : at + _LOOKED_UP] for at in range(0, len(order), _LOOKED_UP)]
        found = [self._look_up(places.take(integers(part))) for part in parts]
        ordered = pa.chunked_array([c for part in found for c in part.chunks], pa.int64())
        return ordered.take(integers(np.argsort(order)))

    def _look_up(self, places: pa.ChunkedArray) -> pa.ChunkedArray:
        statuses = self._store.statuses(places)
        return statuses["size"].take(pc.index_in(places, value_set=statuses["path"]))


def check_presence(
    files: TableFiles, live: LiveFiles, findings: Findings, *, version: int, kept_from_ms: int
) -> Presence:
    """Checks the data files and deletion vectors of live files and of unexpired tombstones.

    A tombstone is unexpired if it was removed at or after `kept_from_ms` (milliseconds since
    1970-01-01 UTC).
    """
    adds = live.adds
    places, external = files.find(adds["path"])
    there = pc.is_valid(places)
    missing = adds.filter(pc.and_(pc.invert(there), pc.invert(external)))
    problem = "the data file does not exist"
    findings.add_files("missing-data-file", problem, paths=missing["path"], version=version)
    present = adds.append_column("place", places).filter(there)
    _check_sizes(files, present, findings, version)
    _check_vectors(files, adds, "missing-deletion-vector", findings, version)
    kept = live.tombstones.filter(
        pc.fill_null(pc.greater_equal(live.tombstones["deletionTimestamp"], kept_from_ms), False)
    )
    _check_removed(files, kept, findings, version)
    return Presence(present=present, missing=missing, external=pc.sum(external).as_py() or 0)


def as_uris(paths: pa.StringArray, *, absolute: bool = False) -> pa.StringArray:
    """Encodes literal paths as in the log, so that decoding restores them."""
    uris = pc.replace_substring(paths, "%", "%25")
    return uris if absolute else pc.replace_substring(uris, ":", "%3A")


def _check_sizes(files: TableFiles, present: pa.Table, findings: Findings, version: int) -> None:
    sizes = files.sizes(present["place"])
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


def _check_vectors(
    files: TableFiles, actions: pa.Table, kind: str, findings: Findings, version: int
) -> None:
    vectors = actions["deletionVector"]
    storage, texts = (pc.struct_field(vectors, n) for n in ("storageType", "pathOrInlineDv"))
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
        missing = pc.and_(pc.is_null(where), pc.invert(external))
        lost = pc.index_in(texts, value_set=names.filter(_one_array(missing)))
        rows = pc.and_(chosen, pc.is_valid(lost))
        named = paths.filter(_one_array(missing)).take(_one_array(lost.filter(rows)))
        problem = pc.binary_join_element_wise(
            "the file of its deletion vector does not exist:", named, " "
        )
        findings.add_files(
            kind,
            pa.chunked_array([problem]),
            paths=actions["path"].filter(rows),
            version=version,
        )


def _check_removed(files: TableFiles, kept: pa.Table, findings: Findings, version: int) -> None:
    places, external = files.find(kept["path"])
    missing = pc.and_(pc.is_null(places), pc.invert(external))
    problem = "the file of an unexpired tombstone does not exist"
    paths = kept["path"].filter(missing)
    findings.add_files("missing-removed-file", problem, paths=paths, version=version)
    _check_vectors(files, kept, "missing-removed-file", findings, version)


def _vector_paths(stored: str, names: pa.StringArray) -> pa.StringArray:
    kinds = pa.array([stored] * len(names), pa.string())
    fields = [kinds, names]
    struct = pa.StructArray.from_arrays(fields, names=["storageType", "pathOrInlineDv"])
    relative, absolute = deletion_vector_paths(struct)
    return relative if stored == STORED_RELATIVE else absolute


def _is_absolute(places: pa.BinaryArray) -> pa.BooleanArray:
    return pc.match_substring_regex(places, ABSOLUTE)


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
