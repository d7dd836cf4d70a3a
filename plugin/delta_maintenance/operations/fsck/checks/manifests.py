"""Compares the symlink manifests of a table with its live files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.table.commit.manifests import (
    ENTRIES,
    MANIFESTS,
    live_entries,
    manifest_path,
    require_readable,
    stored_entries,
    stored_manifests,
)
from delta_maintenance.table.read.snapshot import Snapshot

_UNUSED = (
    "find out who reads the manifests: their readers ignore deletion vectors; if nobody does, "
    "delete the folder, because vacuum keeps the files that they name"
)


def check_manifests(snapshot: Snapshot, findings: Findings) -> None:
    """Checks the manifests if the table promises to keep them up to date, or has any."""
    store, is_promised = snapshot.log.store, snapshot.properties.symlink_manifests
    if not is_promised and not len(stored_manifests(store)):
        return
    try:
        require_readable(snapshot)
    except RefusedError as error:
        findings.add("unwritable-manifest", error.problem, path=MANIFESTS, remedy=error.remedy)
        return
    live, stored = live_entries(snapshot), stored_entries(store)
    differing = _differing_folders(live, stored)
    if not is_promised:
        if len(differing):
            problem = f"{count_text(len(differing), 'manifest')} differ from the live files"
            # The property is refused on such a table, and Delta Spark generates no manifests.
            remedy = _UNUSED if snapshot.properties.enable_deletion_vectors else None
            version = snapshot.version
            findings.add("old-manifest", problem, path=MANIFESTS, version=version, remedy=remedy)
        return
    unwritable = pc.unique(live["folder"].filter(live["has_vector"]))
    stale = differing.filter(pc.invert(pc.is_in(differing, value_set=unwritable)))
    for kind, folders, problem in (
        ("stale-manifest", stale, "the manifest does not name exactly the live files"),
        (
            "unwritable-manifest",
            unwritable,
            "readers of the manifest ignore the deletion vectors of live files",
        ),
    ):
        paths = pa.chunked_array([list(map(manifest_path, folders.to_pylist()))], pa.string())
        findings.add_files(kind, problem, paths=paths, version=snapshot.version)


def _differing_folders(live: pa.Table, stored: pa.Table) -> pa.Array:
    """Returns the folders whose files are not the same, or not as often."""
    signed = [
        table.select(ENTRIES.names).append_column("times", pa.repeat(pa.scalar(sign), len(table)))
        for table, sign in ((live, 1), (stored, -1))
    ]
    sums = pa.concat_tables(signed).group_by(ENTRIES.names).aggregate([("times", "sum")])
    return pc.unique(sums["folder"].filter(pc.not_equal(sums["times_sum"], 0)).combine_chunks())
