"""What a version of a table refers to, as far as deleting files depends on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.checkpoint import deletion_times
from delta_maintenance.protocol.path_audit import ABSOLUTE, PathAudit, locations
from delta_maintenance.protocol.protected_paths import ProtectedPaths, deletion_vector_paths
from delta_maintenance.table.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.sidecar_writer import commit_times
from delta_maintenance.table.snapshot import Snapshot
from delta_maintenance.table.standing_files import StandingFiles

_FIELDS = {
    "add": ("path", "deletionVector", "size"),
    "remove": ("path", "deletionVector", "deletionTimestamp"),
}


@dataclass(slots=True)
class FileReferences:
    """The files of one or several versions, each under every spelling."""

    in_use: ProtectedPaths
    """Files of live adds, and of tombstones whose retention is not over."""
    expired: ProtectedPaths
    """Files of tombstones whose retention is over; some of them may be in use all the same."""
    live: list[pa.Table] = field(default_factory=list)
    """Of live adds below the root: `path` as written, and `place`, where it points."""
    live_bytes: int = 0
    num_live: int = 0
    ageless_tombstones: int = 0
    """Of unknown age: they protect, since nothing tells that they have expired."""

    @classmethod
    def none(cls, roots: tuple[str, ...]) -> FileReferences:
        """Of no version yet; `roots` are the addresses of the table."""
        return cls(ProtectedPaths(roots), ProtectedPaths(roots))

    def missing(self, listed: pa.Array) -> pa.Table:
        """The live files that are not among the listed ones under any spelling."""
        if not self.live:
            return pa.table({"path": pa.array([], pa.string()), "place": pa.array([], pa.binary())})
        live = pa.concat_tables(self.live)
        listed = listed.cast(pa.binary())
        live = live.filter(pc.invert(pc.is_in(live["place"], value_set=listed)))
        raw = live["path"].cast(pa.binary())
        return live.filter(pc.invert(pc.is_in(raw, value_set=listed)))


def read_references(
    snapshot: Snapshot, *, deleted_before_ms: int, kept_versions: Iterable[Snapshot] = ()
) -> tuple[FileReferences, str | None]:
    """What a snapshot refers to, and other versions whose live files are to stay with theirs.

    A tombstone expires when it was deleted before an instant, in milliseconds since 1970-01-01 UTC;
    one that does not say when is as old as its commit, and never expires where that is not known.
    The second value says what forbids deletions, as one clause: paths on which readers disagree.
    """
    while True:
        references = FileReferences.none(snapshot.store.addresses)
        audit = PathAudit(snapshot.table)
        try:
            for batch in snapshot.scan(fields=_FIELDS):
                audit.offer(batch.adds, batch.tombstones)
                _take(references, batch, snapshot, deleted_before_ms)
            break
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)
    for kept in kept_versions:
        protect_live_files(references.in_use, kept)
    return references, audit.problem()


def protect_live_files(protected: ProtectedPaths, snapshot: Snapshot) -> None:
    """Adds the live files of another version, with their deletion vectors."""
    while True:
        try:
            for batch in snapshot.scan(fields={"add": ("path", "deletionVector"), "remove": ()}):
                protected.offer(batch.adds)
            return
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)


def _take(
    references: FileReferences, batch: StandingFiles, snapshot: Snapshot, deleted_before_ms: int
) -> None:
    adds, tombstones = batch.adds, batch.tombstones
    references.in_use.offer(adds)
    references.num_live += adds.num_rows
    if "size" in adds.column_names:
        references.live_bytes += pc.sum(adds["size"]).as_py() or 0
    references.live += _live(adds, snapshot.table)
    if not tombstones.num_rows:
        return
    times = deletion_times(tombstones, commit_times=commit_times(snapshot))
    protects = pc.fill_null(pc.greater_equal(times, deleted_before_ms), True)
    references.in_use.offer(tombstones.filter(protects))
    references.expired.offer(tombstones.filter(pc.invert(protects)))
    references.ageless_tombstones += times.null_count


def _live(adds: pa.Table, root: str) -> list[pa.Table]:
    """The data files and deletion vectors of adds that lie below the root."""
    found = []
    for paths in adds["path"].chunks:
        found.append(pa.table({"path": paths, "place": locations(paths, root=root)}))
    if "deletionVector" in adds.column_names:
        for vectors in adds["deletionVector"].chunks:
            relative, _ = deletion_vector_paths(vectors)
            found.append(pa.table({"path": relative, "place": relative.cast(pa.binary())}))
    return [
        table.filter(pc.invert(pc.match_substring_regex(table["place"], ABSOLUTE)))
        for table in found
    ]
