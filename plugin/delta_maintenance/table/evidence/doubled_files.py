"""The live files of a version whose removal failed, which a rewrite would make permanent.

A remove without the deletion vector of a file, or with another spelling of its path, removes
nothing ("Action Reconciliation"). Only commits prove this: a tombstone at the location of a live
file with a vector is usual, because the commit that adds the vector removes the file without it. So
commits are read, and only for the files that have such a tombstone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    COMMIT_VERSION,
    DELETION_VECTOR,
    deletion_vector_ids,
    logical_file_keys,
)
from delta_maintenance.protocol.actions.paths import PathAudit, intended_locations
from delta_maintenance.protocol.columns import booleans, column_of, to_bools
from delta_maintenance.protocol.delta_log.file_history import FileActions, FileHistory
from delta_maintenance.protocol.delta_log.retention import start_of_run
from delta_maintenance.table.read.active_files import ActiveFiles, view_keys
from delta_maintenance.table.read.log_file import LogEntry
from delta_maintenance.table.read.log_reader import LogTail, TailBatch
from delta_maintenance.table.read.segment import list_log
from delta_maintenance.table.read.snapshot import Snapshot

_FIELDS = {action: ("path", "deletionVector", "dataChange") for action in ("add", "remove")}
_MOST_COMMITS, _MOST_BYTES = 1000, 32 << 20
"""Of commits before the checkpoint, at most these are read. `fsck` reads all."""


class DoubledFileSearch:
    """Finds the files whose removal failed, beside another use of the files of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._audit = PathAudit(snapshot.table)

    def watch(self, batches: Iterator[ActiveFiles]) -> Iterator[ActiveFiles]:
        """Yields the batches of a scan of the snapshot."""
        for batch in batches:
            self._audit.add(batch.adds, batch.tombstones, key_hashes=batch.add_hashes)
            yield batch

    def keys(self) -> pa.Array:
        """Returns the keys of the files (`logical_file_keys`), after the whole scan.

        Reads the log again if any file has a tombstone at its location.
        """
        suspects = self._audit.removed_elsewhere()
        if suspects is None:
            return pa.array([], pa.string())
        start, file_keys = 0, []
        for batch in self._snapshot.log.scan(fields={"add": (), "remove": ()}):
            rows = slice(start, start + batch.adds.num_rows)
            adds = batch.adds.filter(booleans(suspects[rows]))
            file_keys.append(pa.table({"path": adds["path"], "dv": deletion_vector_ids(adds)}))
            start = rows.stop
        files = pa.concat_tables(file_keys)
        doubled = doubled_files(self._snapshot, files["path"], files["dv"])
        keys: pa.Array = view_keys(files.filter(booleans(doubled))).combine_chunks()
        return keys


def doubled_files(
    snapshot: Snapshot, paths: pa.ChunkedArray, vectors: pa.ChunkedArray
) -> npt.NDArray[np.bool_]:
    """Returns which of the files failed to be removed.

    They are the live files with a tombstone at their location (`PathAudit.removed_elsewhere`), by
    their paths and the unique IDs of their deletion vectors. Raises the errors of `LogView.scan`.
    """
    root, newest = snapshot.table, snapshot.version
    suspects = _adds(paths, vectors)
    keys, places = logical_file_keys(suspects), _places(suspects, root)
    tail, first_version, begun = list[FileActions](), newest + 1, pa.chunked_array([], pa.string())
    for batch in _batches(snapshot):
        adds, removes = (
            actions.filter(pc.is_in(_places(actions, root), value_set=places))
            for actions in (batch.adds, batch.removes)
        )
        tail.append(FileActions(adds=adds, removes=removes))
        oldest = [pc.min(files[COMMIT_VERSION]).as_py() for files in (batch.adds, batch.removes)]
        first_version = min(first_version, *(version for version in oldest if version is not None))
        # Without a change of data, a live file may only have been added again.
        changes = pc.fill_null(column_of(adds, "dataChange", ADD_TYPES), True)
        chunks = logical_file_keys(adds.filter(changes)).chunks
        begun = pa.chunked_array([*begun.chunks, *chunks], pa.string())
        if pc.all(pc.is_in(keys, value_set=begun)).as_py():
            break
    # The other files were live before these commits.
    older = suspects.filter(pc.invert(pc.is_in(keys, value_set=begun)))
    base = FileActions(adds=older, removes=older.slice(0, 0), version=first_version - 1)
    history = FileHistory(
        base if older.num_rows else None, tail, first=first_version - 1, last=newest
    )
    doubled = pc.is_in(keys, value_set=history.doubled_files(root=root).keys)
    return to_bools(doubled.combine_chunks())


def _adds(paths: pa.ChunkedArray, vectors: pa.ChunkedArray) -> pa.Table:
    """Returns adds with the keys of the files. The unique ID is all that a key has of a vector."""
    ids = pa.concat_arrays([pa.array([], pa.string()), *vectors.chunks])
    empty_texts = pc.if_else(pc.is_valid(ids), "", pa.scalar(None, pa.string()))
    numbers = [pa.nulls(len(ids), field.type) for field in list(DELETION_VECTOR)[2:]]
    add_keys = pa.StructArray.from_arrays(
        [ids, empty_texts, *numbers], fields=list(DELETION_VECTOR), mask=pc.is_null(ids)
    )
    return pa.table({"path": paths, "deletionVector": add_keys})


def _batches(snapshot: Snapshot) -> Iterator[TailBatch]:
    """Yields the file actions of commits, newest first, those before the checkpoint last."""
    log = snapshot.log
    tail, keys = log.tail, log.map_keys()
    if any(entry.file.end_version is not None for entry in tail.entries):
        # A log compaction omits what its own commits undo.
        tail = LogTail(log.store, log.segment.commits)
    yield from log.locate_errors(tail.batches(keys=keys, fields=_FIELDS))
    if log.segment.base_version < 0:
        return
    try:
        older = LogTail(log.store, _older_commits(snapshot))
        yield from older.batches(keys=keys, fields=_FIELDS)
    except (CorruptTableError, FileNotFoundError):
        # The version needs none of these commits; they may be damaged, or deleted meanwhile.
        return


def _older_commits(snapshot: Snapshot) -> Sequence[LogEntry]:
    base_version = snapshot.log.segment.base_version
    listing = list_log(snapshot.log.store, first_version=max(0, base_version + 1 - _MOST_COMMITS))
    first_version, size = start_of_run(listing.commits, base_version), 0
    commits: list[LogEntry] = []
    for version in range(base_version, first_version - 1, -1):
        size += listing.commits[version].status.size
        if size > _MOST_BYTES:
            break
        commits.append(listing.commits[version])
    return commits[::-1]


def _places(actions: pa.Table, root: str) -> pa.ChunkedArray:
    chunks = actions["path"].chunks
    return pa.chunked_array([intended_locations(chunk, root=root) for chunk in chunks], pa.binary())
