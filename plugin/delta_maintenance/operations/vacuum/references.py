"""The files that a version of a table refers to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.paths import ABSOLUTE, PathAudit, locations
from delta_maintenance.protocol.columns.arrays import booleans, to_bools
from delta_maintenance.protocol.delta_log.checkpoint_rows import deletion_times
from delta_maintenance.protocol.vacuum.protected_paths import (
    PathSet,
    ProtectedPaths,
    deletion_vector_paths,
    hash_spellings,
    spellings_of,
)
from delta_maintenance.protocol.vacuum.visibility import Reason, VisibilityRules, reasons
from delta_maintenance.table.read.active_files import ActiveFiles
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.sidecar_writer import commit_times

REFERENCE_FIELDS = {
    "add": ("path", "deletionVector", "size"),
    "remove": ("path", "deletionVector", "deletionTimestamp"),
}
"""The fields of file actions that contain references."""


@dataclass(slots=True)
class FileReferences:
    """The referenced files of one or several versions, each under every spelling."""

    in_use: ProtectedPaths
    """Files of live adds, and of unexpired tombstones."""
    expired: list[pa.BinaryArray] = field(default_factory=list)
    """Files of expired tombstones, and `recorded` ones; some of them may also be live."""
    live: list[pa.StringArray] = field(default_factory=list)
    """The files of live adds, with their paths as written; empty unless `keeps_live`."""
    keeps_live: bool = True
    live_bytes: int = 0
    num_live: int = 0
    ageless_tombstones: int = 0
    """The number of tombstones of unknown age. They protect their files, because they may be
    unexpired.
    """

    @classmethod
    def none(cls, roots: tuple[str, ...], *, keeps_live: bool = True) -> FileReferences:
        """Returns empty references; `roots` are the addresses of the table."""
        return cls(ProtectedPaths(roots), keeps_live=keeps_live)

    def record(self, removed: pa.Table, *, rules: VisibilityRules) -> None:
        """Adds files that the log records as removed, if their names alone do not make them
        candidates.
        """
        for places in spellings_of(removed, roots=self.in_use.roots).places:
            unusual = rules.hidden(places) | (reasons(places, expired=None) == Reason.FOREIGN)
            self.expired.append(places.filter(booleans(unusual)))

    @staticmethod
    def live_paths(adds: pa.Table) -> list[pa.StringArray]:
        """Returns the data files of adds, and the files of their vectors below the root."""
        vectors = adds["deletionVector"].chunks if "deletionVector" in adds.column_names else []
        return [*adds["path"].chunks, *(deletion_vector_paths(chunk)[0] for chunk in vectors)]

    def unlisted(self, listed: Sequence[pa.StringArray]) -> list[tuple[str, str]]:
        """Returns the live files below the root that the listing does not contain under any
        spelling that readers use: decoded once, or as written. They must have been kept.

        Each is a pair of the path in the log and the location relative to the root.
        """
        there = PathSet(hash_spellings)
        there.add(listed)
        found: list[tuple[str, str]] = []
        for paths in self.live:
            known = there.has(paths)
            if known.all():
                continue
            for root in self.in_use.roots:
                places = locations(paths, root=root)
                below = ~to_bools(pc.match_substring_regex(places, ABSOLUTE))
                known |= there.has(places)
                missing = booleans(below & ~known)
                known |= below
                found += zip(
                    paths.filter(missing).to_pylist(),
                    map(_readable, places.filter(missing).to_pylist()),
                    strict=True,
                )
        return found


def read_references(
    snapshot: Snapshot,
    *,
    deleted_before_ms: int,
    kept_versions: Iterable[Snapshot] = (),
    keeps_live: bool = True,
) -> tuple[FileReferences, str | None]:
    """Reads the references of a snapshot, and of other versions whose live files must be kept.

    A tombstone is expired if its file was removed before `deleted_before_ms`, in milliseconds since
    1970-01-01 UTC. A tombstone without a deletion time has the age of its commit, and never expires
    if that is unknown. With `keeps_live`, the paths of live files are kept for `unlisted`; they are
    most of the memory. The second returned value is one clause that forbids deletions: paths that
    readers interpret differently.
    """

    def collected(sound: Snapshot) -> tuple[FileReferences, str | None]:
        references = FileReferences.none(sound.store.addresses, keeps_live=keeps_live)
        audit = PathAudit(sound.table)
        for batch in sound.scan(fields=REFERENCE_FIELDS):
            audit.add(
                batch.adds, batch.tombstones, key_hashes=batch.add_hashes, repeated=batch.repeated
            )
            take_references(
                references,
                batch,
                deleted_before_ms=deleted_before_ms,
                commit_times=commit_times(sound),
            )
        return references, audit.problem()

    references, problem = snapshot.avoiding_damage(collected)
    for kept in kept_versions:
        protect_live_files(references.in_use, kept)
    return references, problem


def protect_live_files(protected: ProtectedPaths, snapshot: Snapshot) -> None:
    """Adds the live files of another version, with their deletion vectors."""

    def protect(sound: Snapshot) -> None:
        for batch in sound.scan(fields={"add": ("path", "deletionVector"), "remove": ()}):
            protected.add(batch.adds)

    snapshot.avoiding_damage(protect)


def take_references(
    references: FileReferences,
    batch: ActiveFiles,
    *,
    deleted_before_ms: int,
    commit_times: Mapping[int, int],
) -> None:
    """Adds the references of one batch of a version's actions."""
    adds, tombstones = batch.adds, batch.tombstones
    references.in_use.add(adds)
    references.num_live += adds.num_rows
    if "size" in adds.column_names:
        references.live_bytes += pc.sum(adds["size"]).as_py() or 0
    if references.keeps_live:
        references.live += FileReferences.live_paths(adds)
    if not tombstones.num_rows:
        return
    times = deletion_times(tombstones, commit_times=commit_times)
    protects = pc.fill_null(pc.greater_equal(times, deleted_before_ms), True)
    references.in_use.add(tombstones.filter(protects))
    expired = tombstones.filter(pc.invert(protects))
    references.expired += spellings_of(expired, roots=references.in_use.roots).places
    references.ageless_tombstones += times.null_count


def _readable(place: bytes) -> str:
    return place.decode(errors="replace")
