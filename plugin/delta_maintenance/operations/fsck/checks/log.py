"""Checks the files of a log except its checkpoints, against each other and against the protocol.

Implements the requirements of "Delta Log Entries", "Add File and Remove File", "Log Compaction
Files", "In-Commit Timestamps", "State Validation" and "Field Path" that can be checked with the log
alone.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

import numpy as np

from delta_maintenance.address import StoreKind
from delta_maintenance.checksums import crc32
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import CorruptTableError, RefusedError, UnsupportedFeatureError
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.fsck.inputs import LogHistory
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.delta_log.file_history import FileHistory
from delta_maintenance.protocol.delta_log.file_names import (
    LogFileKind,
    commit_name,
    hadoop_checksum_name,
)
from delta_maintenance.protocol.delta_log.replay import StateReplay
from delta_maintenance.protocol.delta_log.retention import version_gaps
from delta_maintenance.protocol.delta_log.version_checksum import (
    FileSizeHistogram,
    VersionChecksum,
    deleted_record_counts,
    differences,
    parse_checksum,
)
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.protocol.schema.column_mapping import COLUMN_ID, PHYSICAL_NAME
from delta_maintenance.protocol.schema.types import column_mapping_mode, parse_schema, walk
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.evidence.overwritten_commits import describe_loss, states_of
from delta_maintenance.table.read.log_file import (
    LOG_DIRECTORY,
    LogEntry,
    commit_path,
    read_ahead,
    read_hint,
)
from delta_maintenance.table.read.log_inventory import LogInventory
from delta_maintenance.table.read.managed_log import LOST_COMMIT, ManagedStore
from delta_maintenance.table.read.segment import LogListing
from delta_maintenance.table.write.log_compactor import compare_compaction

_YOUNG = timedelta(days=1)
"""A younger file may belong to a writer that is still running."""
_HEADER = struct.Struct(">4sI")
"""The magic number, and the number of bytes that each of the following checksums covers."""
_MAGIC = b"crc\0"
_MOST_BYTES = 4 << 20
"""The maximum size in bytes of a file that is read for this check; for larger ones only the length
is compared.
"""
_IN_DETAIL = 20
"""The number of newest checksums whose histograms and lists of files are compared."""
_Path = tuple[str, ...]
"""The physical names of a column and of those that contain it."""


def check_names(inventory: LogInventory, findings: Findings, *, now: datetime) -> None:
    """Finds files with unknown names, and files that killed writers left behind."""
    for entry in inventory.entries:
        if entry.file.kind is LogFileKind.UNKNOWN:
            findings.add("unknown-file", "no rule of the protocol covers the name", path=entry.path)
        elif entry.file.kind is LogFileKind.TEMPORARY and is_old(entry, now):
            problem = "a temporary file that is more than a day old"
            findings.add("abandoned-file", problem, path=entry.path)
    empty = {entry.path for entry in inventory.empty_checkpoints}
    for name in inventory.listing.incomplete:
        path = f"{LOG_DIRECTORY}/{name}"
        if path in empty:
            findings.add("empty-checkpoint", "the file is empty", path=path)
        else:
            problem = "other parts of the checkpoint are missing"
            findings.add("incomplete-checkpoint", problem, path=path)


def check_guarded(store: Store, listing: LogListing, findings: Findings) -> None:
    """Finds commits of this library that Delta Spark overwrote on S3, and what was lost."""
    for guard, state in states_of(store, listing.guarded, listing.commits):
        version, path = guard.version, guard.copy.path
        if state == "uncertain":
            problem = "another commit has the version, and this one may have had it before"
            findings.add("uncertain-commit", problem, version=version, path=path)
        elif state == "overwritten":
            lost = describe_loss(store, guard)
            kind = "needed-overwritten-commit" if lost.needed_by else "overwritten-commit"
            findings.add(kind, lost.problem, version=version, path=path)
            for paths, problem in (
                (lost.removed, "an overwritten commit removed the file"),
                (lost.added, "an overwritten commit added the file"),
            ):
                findings.add_files(
                    "file-of-overwritten-commit", problem, paths=paths, version=version
                )


def check_stated_version(store: Store, last_version: int, findings: Findings) -> None:
    """Finds a version that the catalog of the table states, and that the log does not have."""
    lost = store.lost_commit(last_version) if isinstance(store, ManagedStore) else None
    if lost is not None:
        findings.add(
            "lost-commit", lost.problem, version=lost.version, path=lost.file, remedy=lost.remedy
        )


def check_gaps(
    store: Store,
    listing: LogListing,
    last_version: int,
    history: LogHistory | None,
    findings: Findings,
) -> None:
    """Finds missing commits, and checkpoints without the commit of their version."""
    oldest = min(listing.commits, default=last_version + 1)
    checkpoints = {checkpoint.version for checkpoint in listing.checkpoints}
    gaps = version_gaps([*listing.commits, last_version])
    if history is None and oldest > 0 and not gaps and oldest <= last_version:
        findings.add(
            "log-gap",
            f"the commits before {oldest} are missing, and no readable checkpoint replaces them",
            version=oldest,
            path=commit_path(oldest - 1),
        )
    for first_missing, end in version_gaps(
        [*listing.commits, *checkpoints, last_version], first=oldest
    ):
        commits = (
            f"commit {first_missing} is"
            if first_missing == end
            else f"commits {first_missing} to {end} are"
        )
        staged = store.staged_files(first_missing, end) if isinstance(store, ManagedStore) else ""
        findings.add(
            "log-gap" if history is None else "history-gap",
            f"{commits} missing; {staged}" if staged else f"{commits} missing",
            version=first_missing,
            path=commit_path(first_missing),
            remedy=LOST_COMMIT if staged and history is None else None,
        )
    for checkpoint in listing.checkpoints:
        if checkpoint.version not in listing.commits:
            findings.add(
                "checkpoint-without-commit",
                "the commit of the same version is missing",
                version=checkpoint.version,
                path=f"{LOG_DIRECTORY}/{checkpoint.name}",
            )


def check_commits(history: LogHistory, findings: Findings, *, root: str) -> None:
    """Finds forbidden and unknown actions in commits."""
    unknown: Counter[str] = Counter()
    first_met: dict[str, int] = {}
    for fact in history.commits:
        path = commit_path(fact.version)
        for name in sorted(fact.actions.repeated):
            problem = f"the commit contains two actions for {name}"
            findings.add("repeated-action", problem, version=fact.version, path=path)
        for name in fact.actions.unknown:
            unknown[name] += 1
            first_met.setdefault(name, fact.version)
    for name, count in sorted(unknown.items()):
        findings.add(
            "unknown-action",
            f"the unknown action {name}, in {count_text(count, 'commit')} from this one on",
            version=first_met[name],
            path=commit_path(first_met[name]),
        )
    for breach in history.files.violations(root=root):
        others = f" and {breach.count - 1} others" if breach.count > 1 else ""
        findings.add(
            breach.rule,
            f"{_BREACHES[breach.rule]} {breach.path}{others}",
            version=breach.version,
            path=commit_path(breach.version),
        )
    _check_times(history, findings)


def check_compactions(store: Store, listing: LogListing, findings: Findings) -> None:
    """Finds log compactions that differ from their commits."""
    versions = sorted(listing.commits)
    for entry in listing.compactions:
        first_version, last_version = entry.file.version, entry.file.end_version
        assert first_version is not None and last_version is not None
        within = versions[
            bisect_left(versions, first_version) : bisect_right(versions, last_version)
        ]
        if not entry.status.size:
            findings.add("unreadable-compaction", "the file is empty", path=entry.path)
        elif len(within) == last_version - first_version + 1:
            commits = [listing.commits[version] for version in within]
            try:
                problem = compare_compaction(store, commits, entry.file.name)
            except (CorruptTableError, RefusedError):
                # The commits themselves cannot be reconciled, which is reported for them.
                continue
            if problem is not None:
                findings.add("compaction-differs", problem, version=last_version, path=entry.path)


def _check_times(history: LogHistory, findings: Findings) -> None:
    previous: int | None = None
    facts = {fact.version: fact for fact in history.commits}
    for version, state in history.states(facts):
        if state.protocol is None or state.metadata is None:
            continue
        configuration = state.metadata.configuration
        if not in_commit_timestamps.is_active(state.protocol, configuration):
            previous = None
            continue
        time = facts[version].in_commit_timestamp
        problem = None
        if time is None:
            problem = "its first action is not a commitInfo with an in-commit timestamp"
        elif previous is not None and time <= previous:
            problem = (
                f"its in-commit timestamp {time} is not after {previous}, that of the previous "
                "commit"
            )
        if problem is not None:
            path = commit_path(version)
            findings.add("in-commit-timestamp", problem, version=version, path=path)
        previous = time if time is not None else previous


_BREACHES = {
    "repeated-file": "one commit adds or removes twice",
    "added-and-removed": "one commit adds and removes",
    "remove-of-absent-file": "the commit removes a file that was not live:",
    "two-live-vectors": "the commit leaves live with two deletion vectors",
}


def is_old(entry: LogEntry, now: datetime) -> bool:
    """Returns whether a file is known to be older than a day, so that no writer is still working on
    it.
    """
    return 0 < entry.status.modified_ms < epoch_millis(now - _YOUNG)


def check_mapping(history: LogHistory, findings: Findings) -> None:
    """Finds physical paths that belonged to another column in an earlier version of the history.

    The values of a dropped column stay in the data files, and a new column with the same physical
    name would show them again. Columns are identified by their IDs. If column mapping was off in
    between, all files were rewritten, and earlier names no longer matter.
    """
    earlier_paths: dict[_Path, object] = {}
    changed = {fact.version for fact in history.commits if fact.actions.metadata is not None}
    for version, state in history.states({history.first, *changed}):
        if state.protocol is None or state.metadata is None:
            continue
        columns = dict(_columns(state.protocol, state.metadata))
        if not columns:
            earlier_paths.clear()
        for path, number in columns.items():
            before = earlier_paths.setdefault(path, number)
            if before != number:
                findings.add(
                    "reused-physical-name",
                    f"the columns with the IDs {before} and {number} have the same physical name "
                    f"{'.'.join(path)}",
                    version=version,
                    path=commit_path(version),
                )
        earlier_paths |= columns


def _columns(protocol: Protocol, metadata: Metadata) -> Iterator[tuple[_Path, object]]:
    """Yields the physical path of each mapped column, with its ID."""
    try:
        if column_mapping_mode(protocol, metadata.configuration) == "none":
            return
        schema = parse_schema(metadata.schema_string or "")
    except (CorruptTableError, UnsupportedFeatureError):
        # The check of the latest state reports this, if it is the newest version.
        return
    physical: dict[_Path, _Path] = {(): ()}
    for path, field in walk(schema):
        name = field.metadata.get(PHYSICAL_NAME)
        above = next(path[:at] for at in range(len(path) - 1, -1, -1) if path[:at] in physical)
        physical[path] = (*physical[above], *path[len(above) : -1], str(name))
        if name is not None and COLUMN_ID in field.metadata:
            yield physical[path], field.metadata[COLUMN_ID]


def check_hadoop_checksums(store: Store, inventory: LogInventory, findings: Findings) -> None:
    """Finds files of the log that Hadoop's local file system refuses to read.

    Hadoop writes `.<name>.crc` beside every file, and refuses to read a file that another program
    replaced without updating the checksum.
    """
    if store.address.kind not in (StoreKind.LOCAL, StoreKind.MEMORY):
        # Only the local file system uses these files; copies in a bucket have no effect.
        return
    sizes = {entry.path: entry.status.size for entry in inventory.entries}
    checksum_paths = {
        e.path for e in inventory.entries if e.file.kind is LogFileKind.HADOOP_CHECKSUM
    }
    for path, size in sizes.items():
        name = hadoop_checksum_name(path)
        # Checked twice, because the hint and then its checksum may be replaced between the two
        # reads.
        if (
            name in checksum_paths
            and _differs(store, path, size, name)
            and _differs(store, path, size, name)
        ):
            findings.add(
                "stale-hadoop-checksum", f"the checksum {name} belongs to another file", path=path
            )


def _differs(store: Store, path: str, size: int, name: str) -> bool:
    try:
        stated = store.read(name)
        data = store.read(path) if size <= _MOST_BYTES else None
    except FileNotFoundError:
        return False
    if len(stated) < _HEADER.size:
        return True
    magic, length = _HEADER.unpack_from(stated)
    if magic != _MAGIC or not length:
        return True
    if data is None:
        expected: int = _HEADER.size + 4 * -(-size // length)
        return len(stated) != expected
    sums = [crc32(data[at : at + length]) for at in range(0, len(data), length)]
    return stated[_HEADER.size :] != struct.pack(f">{len(sums)}I", *sums)


def check_checksums(
    store: Store, inventory: LogInventory, last: int, history: LogHistory | None, findings: Findings
) -> None:
    """Reads every checksum, and compares those of versions that the history covers.

    The sums of every version are known, so every checksum is compared. Histograms and lists of
    files are compared only for the newest checksums, because each comparison needs all files.
    """
    entries = [entry for entry in inventory.entries if entry.file.kind is LogFileKind.CHECKSUM]
    files = (entry.file for entry in inventory.entries)
    staged = {file.version for file in files if file.kind is LogFileKind.STAGED_COMMIT}
    stated: dict[int, tuple[LogEntry, VersionChecksum]] = {}
    for entry, data in read_ahead(store, entries, lambda entry: read_hint(store, entry.path)):
        version = entry.file.version
        assert version is not None
        if version > last:
            # That of a commit which its catalog states helps to find the commit again.
            if version not in staged and not isinstance(store, ManagedStore):
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
    history: LogHistory, stated: Mapping[int, tuple[LogEntry, VersionChecksum]], findings: Findings
) -> None:
    totals = history.files.totals()
    times = {fact.version: fact.in_commit_timestamp for fact in history.commits}
    in_detail = set(sorted(stated)[-_IN_DETAIL:])
    for version, state in history.states(stated):
        entry, checksum = stated[version]
        at = version - totals.first
        computed = VersionChecksum(
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
        problems = list(differences(checksum, computed))
        if checksum.in_commit_timestamp is not None and not _has_times(state):
            problems.append(
                "inCommitTimestampOpt is set, but the table has no in-commit timestamps"
            )
        if version in in_detail:
            problems.extend(_compare_details(checksum, history.files, version))
        for problem in problems:
            findings.add("checksum-differs", problem, version=version, path=entry.path)


def _compare_details(checksum: VersionChecksum, files: FileHistory, version: int) -> list[str]:
    rows, live = files.active_rows(version)
    sizes = np.maximum(files.field("size", rows[live]), 0)
    computed = VersionChecksum(
        file_sizes=None
        if checksum.file_sizes is None
        else FileSizeHistogram.of(sizes, checksum.file_sizes.boundaries),
        deleted_record_counts=deleted_record_counts(np.maximum(files.cardinality(rows[live]), 0)),
    )
    problems = list(differences(checksum, computed))
    if checksum.all_files is not None:
        paths = sorted(files.path(int(code)) for code in np.flatnonzero(live))
        if sorted(str(file.get("path")) for file in checksum.all_files) != paths:
            problems.append("allFiles differs from the live files")
    return problems


def _has_times(state: StateReplay) -> bool:
    if state.protocol is None or state.metadata is None:
        return False
    return in_commit_timestamps.is_active(state.protocol, state.metadata.configuration)
