"""Checks whether the files of a log are consistent, and whether each commit is valid.

Implements the requirements of "Delta Log Entries", "Add File and Remove File", "Log Compaction
Files" and "In-Commit Timestamps" that can be checked with the log alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from datetime import datetime, timedelta

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.fsck.log_history import LogHistory
from delta_maintenance.protocol.delta_log.file_names import LogFileKind, commit_name
from delta_maintenance.protocol.delta_log.gaps import version_gaps
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_inventory import LogInventory
from delta_maintenance.table.read.segment import LOG_DIRECTORY, LogEntry, LogListing
from delta_maintenance.table.write.log_compactor import compare_compaction

_YOUNG = timedelta(days=1)
"""A younger file may belong to a writer that is still running."""


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


def check_gaps(
    listing: LogListing, last: int, history: LogHistory | None, findings: Findings
) -> None:
    """Finds missing commits, and checkpoints without the commit of their version."""
    oldest = min(listing.commits, default=last + 1)
    checkpoints = {checkpoint.version for checkpoint in listing.checkpoints}
    gaps = version_gaps([*listing.commits, last])
    if history is None and oldest > 0 and not gaps and oldest <= last:
        findings.add(
            "log-gap",
            f"the commits before {oldest} are missing, and no readable checkpoint replaces them",
            version=oldest,
            path=_commit_path(oldest - 1),
        )
    for first, end in version_gaps([*listing.commits, *checkpoints, last], first=oldest):
        commits = f"commit {first} is" if first == end else f"commits {first} to {end} are"
        findings.add(
            "log-gap" if history is None else "history-gap",
            f"{commits} missing",
            version=first,
            path=_commit_path(first),
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
        path = _commit_path(fact.version)
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
            path=_commit_path(first_met[name]),
        )
    for breach in history.files.violations(root=root):
        others = f" and {breach.count - 1} others" if breach.count > 1 else ""
        findings.add(
            breach.rule,
            f"{_BREACHES[breach.rule]} {breach.path}{others}",
            version=breach.version,
            path=_commit_path(breach.version),
        )
    _check_times(history, findings)


def check_compactions(store: Store, listing: LogListing, findings: Findings) -> None:
    """Finds log compactions that differ from their commits."""
    versions = sorted(listing.commits)
    for entry in listing.compactions:
        first, last = entry.file.version, entry.file.end_version
        assert first is not None and last is not None
        within = versions[bisect_left(versions, first) : bisect_right(versions, last)]
        if not entry.status.size:
            findings.add("unreadable-compaction", "the file is empty", path=entry.path)
        elif len(within) == last - first + 1:
            commits = [listing.commits[version] for version in within]
            try:
                problem = compare_compaction(store, commits, entry.file.name)
            except (CorruptTableError, RefusedError):
                # The commits themselves cannot be reconciled, which is reported for them.
                continue
            if problem is not None:
                findings.add("compaction-differs", problem, version=last, path=entry.path)


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
            path = _commit_path(version)
            findings.add("in-commit-timestamp", problem, version=version, path=path)
        previous = time if time is not None else previous


_BREACHES = {
    "repeated-file": "one commit adds or removes twice",
    "added-and-removed": "one commit adds and removes",
    "remove-of-absent-file": "the commit removes a file that was not live:",
    "two-live-vectors": "the commit leaves live with two deletion vectors",
}


def _commit_path(version: int) -> str:
    return f"{LOG_DIRECTORY}/{commit_name(version)}"


def is_old(entry: LogEntry, now: datetime) -> bool:
    """Returns whether a file is known to be older than a day, so that no writer is still working on
    it.
    """
    return 0 < entry.status.modified_ms < epoch_millis(now - _YOUNG)
