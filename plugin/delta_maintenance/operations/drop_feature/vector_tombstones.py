"""Tombstones for deletion vector files, for writers without support for deletion vectors.

After a table has dropped deletion vectors, such a writer may vacuum it. It would delete the vector
files that older versions still need as unreferenced, unless `remove` actions name them like data
files.
"""

from __future__ import annotations

from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import REMOVE_TYPES
from delta_maintenance.protocol.vacuum.protected_paths import deletion_vector_paths
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.snapshot import Snapshot

_FIELDS = {"add": (), "remove": ("path", "deletionVector", "deletionTimestamp")}
_NAME = "deletion_vector_"
_PLAIN = r"^[A-Za-z0-9._~/-]*$"


def missing_vector_tombstones(snapshot: Snapshot, *, deleted_after_ms: int) -> pa.Table:
    """Returns `remove` actions for the vector files that only unexpired tombstones refer to.

    Vector files that already have such an action are left out.
    A tombstone without a deletion time counts as unexpired. Instants are in milliseconds since
    1970-01-01 UTC. Memory grows with the number of vector files.
    """
    while True:
        try:
            return _missing(snapshot, deleted_after_ms)
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)


def _missing(snapshot: Snapshot, deleted_after_ms: int) -> pa.Table:
    needed: list[pa.StringArray] = []
    named: list[pa.Array] = []
    for batch in snapshot.scan(fields=_FIELDS):
        tombstones = batch.tombstones
        if "deletionVector" not in tombstones.column_names:
            tombstones = tombstones.append_column(
                "deletionVector", pa.nulls(tombstones.num_rows, REMOVE_TYPES["deletionVector"])
            )
        vectors = tombstones["deletionVector"]
        plain = tombstones.filter(pc.is_null(vectors))["path"]
        named.extend(plain.filter(pc.match_substring(plain, _NAME)).chunks)
        fresh = pc.fill_null(_deleted(tombstones, deleted_after_ms), True)
        for chunk in vectors.filter(pc.and_(pc.is_valid(vectors), fresh)).chunks:
            relative, absolute = deletion_vector_paths(chunk)
            needed.extend((_encoded(relative), absolute))
    paths = pc.unique(pa.chunked_array(needed, pa.string()))
    known = pa.chunked_array(named, pa.string())
    paths = paths.filter(pc.invert(pc.is_in(paths, value_set=known)))
    return pa.table({"path": paths, "dataChange": pa.repeat(pa.scalar(False), len(paths))})


def _deleted(tombstones: pa.Table, after_ms: int) -> pa.ChunkedArray:
    if "deletionTimestamp" not in tombstones.column_names:
        return pa.chunked_array([pa.nulls(tombstones.num_rows, pa.bool_())])
    return pc.greater(tombstones["deletionTimestamp"], after_ms)


def _encoded(paths: pa.StringArray) -> pa.StringArray:
    """Encodes paths as URIs for actions. Only prefixes that a user chose need encoding."""
    odd = pc.invert(pc.match_substring_regex(paths, _PLAIN))
    if not pc.any(odd).as_py():
        return paths
    spelt = pa.array([quote(path) for path in paths.filter(odd).to_pylist()], pa.string())
    return pc.replace_with_mask(paths, odd, spelt)
