"""Compares version checksum files with the log ("State Validation").

The sums of every version are known, so every checksum is compared. Histograms and lists of files
are compared only for the newest checksums, because each comparison needs all files.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.fsck.log_history import LogHistory
from delta_maintenance.protocol.delta_log.file_history import FileHistory
from delta_maintenance.protocol.delta_log.file_names import LogFileKind
from delta_maintenance.protocol.delta_log.replay import StateReplay
from delta_maintenance.protocol.delta_log.version_checksum import (
    FileSizeHistogram,
    VersionChecksum,
    deleted_record_counts,
    differences,
    parse_checksum,
)
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_file import LogEntry, read_ahead, read_hint
from delta_maintenance.table.read.log_inventory import LogInventory

_IN_DETAIL = 20
"""The number of newest checksums whose histograms and lists of files are compared."""


def check_checksums(
    store: Store,
    inventory: LogInventory,
    last: int,
    history: LogHistory | None,
    findings: Findings,
) -> None:
    """Reads every checksum, and compares those of versions that the history covers."""
    entries = [entry for entry in inventory.entries if entry.file.kind is LogFileKind.CHECKSUM]
    stated: dict[int, tuple[LogEntry, VersionChecksum]] = {}
    for entry, data in read_ahead(store, entries, lambda entry: read_hint(store, entry.path)):
        version = entry.file.version
        assert version is not None
        if version > last:
            problem = f"version {version} does not exist"
            findings.add("checksum-without-commit", problem, version=version, path=entry.path)
            continue
        try:
            stated[version] = entry, parse_checksum(data)
        except CorruptTableError as error:
            problem = error.problem
            findings.add("unreadable-checksum", problem, version=version, path=entry.path)
    if history is not None:
        _compare(history, stated, findings)


def _compare(
    history: LogHistory,
    stated: Mapping[int, tuple[LogEntry, VersionChecksum]],
    findings: Findings,
) -> None:
    totals = history.files.totals()
    times = {fact.version: fact.in_commit_timestamp for fact in history.commits}
    in_detail = set(sorted(stated)[-_IN_DETAIL:])
    for version, state in history.states(stated):
        entry, checksum = stated[version]
        at = version - totals.first
        found = VersionChecksum(
            num_files=int(totals.num_files[at]),
            table_size=int(totals.total_size[at]),
            num_deletion_vectors=int(totals.num_deletion_vectors[at]),
            num_deleted_records=int(totals.num_deleted_rows[at]),
            protocol=state.protocol,
            metadata=state.metadata,
            txns=tuple(state.txns.values()),
            domains=tuple(state.present_domains().values()),
            in_commit_timestamp=times.get(version) if _has_times(state) else None,
        )
        problems = list(differences(checksum, found))
        if checksum.in_commit_timestamp is not None and not _has_times(state):
            problems.append(
                "inCommitTimestampOpt is set, but the table has no in-commit timestamps"
            )
        if version in in_detail:
            problems.extend(_detailed(checksum, history.files, version))
        for problem in problems:
            findings.add("checksum-differs", problem, version=version, path=entry.path)


def _detailed(checksum: VersionChecksum, files: FileHistory, version: int) -> list[str]:
    rows, live = files.active_rows(version)
    sizes = np.maximum(files.field("size", rows[live]), 0)
    found = VersionChecksum(
        file_sizes=None
        if checksum.file_sizes is None
        else FileSizeHistogram.of(sizes, checksum.file_sizes.boundaries),
        deleted_record_counts=deleted_record_counts(np.maximum(files.cardinality(rows[live]), 0)),
    )
    problems = list(differences(checksum, found))
    if checksum.all_files is not None:
        paths = sorted(files.path(int(code)) for code in np.flatnonzero(live))
        if sorted(str(file.get("path")) for file in checksum.all_files) != paths:
            problems.append("allFiles differs from the live files")
    return problems


def _has_times(state: StateReplay) -> bool:
    if state.protocol is None or state.metadata is None:
        return False
    return in_commit_timestamps.is_active(state.protocol, state.metadata.configuration)
