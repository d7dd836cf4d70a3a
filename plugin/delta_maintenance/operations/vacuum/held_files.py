"""The files that a vacuum keeps for the holders of versions and files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from delta_maintenance.operations.holds.hold import Hold
from delta_maintenance.operations.vacuum.references import protect_live_files, protect_removed
from delta_maintenance.protocol.vacuum import ProtectedPaths
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.commit.manifests import MANIFESTS, read_manifests
from delta_maintenance.table.read.log_file import relisting
from delta_maintenance.table.read.segment import list_log
from delta_maintenance.table.read.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFiles:
    """The files of one holder."""

    holder: str
    version: Snapshot | None = None
    """The version whose live files are kept."""
    paths: ProtectedPaths | None = None
    """Further files."""

    def as_protected_paths(self, roots: Sequence[str]) -> ProtectedPaths:
        """Returns all of these files; `roots` are the addresses of the table."""
        protected_paths = ProtectedPaths(roots)
        if self.version is not None:
            protect_live_files(protected_paths, self.version)
        if self.paths is not None:
            protected_paths.update(self.paths)
        return protected_paths


def files_of(store: Store, holds: Sequence[Hold]) -> tuple[HeldFiles, ...]:
    """Returns the files of holds.

    A hold without a last version also keeps the files that later commits removed, and their change
    data files. Raises `CorruptTableError` if such a commit cannot be read.
    """
    return tuple(
        HeldFiles(
            holder=hold.holder,
            version=hold.snapshot,
            paths=None if hold.last is not None else relisting(partial(_removals, store, hold)),
        )
        for hold in holds
    )


def files_in_manifests(store: Store) -> Iterator[HeldFiles]:
    """Yields the files that symlink manifests name: their readers know nothing of the log."""
    paths = ProtectedPaths(store.addresses)
    for _, files in read_manifests(store):
        paths.add(pa.table({"path": files}))
    if any(map(len, paths.hashes())):
        yield HeldFiles(holder=f"manifests in {MANIFESTS}", paths=paths)


def _removals(store: Store, hold: Hold) -> ProtectedPaths:
    listing = list_log(store, first_version=hold.first + 1)
    entries = [listing.commits[version] for version in sorted(listing.commits)]
    removed_paths = ProtectedPaths(store.addresses)
    protect_removed(removed_paths, store, entries)
    return removed_paths
