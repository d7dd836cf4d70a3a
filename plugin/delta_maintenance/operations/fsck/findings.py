"""The kinds of findings, and the collection of the findings of one check.

One damaged folder makes a million findings, so those about files are columns from the first to the
last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import shortened
from delta_maintenance.operations.fsck.options import Finding, Severity


@dataclass(frozen=True, slots=True)
class FindingKind:
    """How bad findings of one kind are, and what to do about them."""

    severity: Severity
    remedy: str


FINDINGS = pa.schema(
    [
        ("kind", pa.string()),
        ("severity", pa.string()),
        ("version", pa.int64()),
        ("path", pa.string()),
        ("problem", pa.string()),
        ("remedy", pa.string()),
    ]
)
"""Findings as columns."""


class Findings:
    """Collects findings in the order in which they are met."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """How many there are of each kind."""
        self._tables: list[pa.Table] = []
        self._single: list[Finding] = []

    def add(
        self,
        kind: str,
        problem: str,
        *,
        version: int | None = None,
        path: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """One finding; `remedy` only where there is a better one than the usual one of its kind."""
        rule = KINDS[kind]
        self.counts[kind] += 1
        self._single.append(
            Finding(
                kind=kind,
                severity=rule.severity,
                version=version,
                path=path if path is None else shortened(path, _MOST_PATH),
                problem=shortened(problem),
                remedy=remedy or rule.remedy,
            )
        )

    def add_files(
        self,
        kind: str,
        problem: str | pa.ChunkedArray,
        *,
        paths: pa.ChunkedArray,
        version: int | None = None,
    ) -> None:
        """One finding for each of some files, with one problem for all or one for each."""
        rows = len(paths)
        if not rows:
            return
        self._flush()
        self.counts[kind] += rows
        rule = KINDS[kind]
        constants = {"kind": kind, "severity": rule.severity, "remedy": rule.remedy}
        columns = {name: pa.repeat(pa.scalar(text), rows) for name, text in constants.items()}
        columns["version"] = pa.repeat(pa.scalar(version, pa.int64()), rows)
        columns["path"] = paths
        columns["problem"] = (
            pa.repeat(pa.scalar(problem), rows) if isinstance(problem, str) else problem
        )
        self._tables.append(pa.table([columns[name] for name in FINDINGS.names], schema=FINDINGS))

    def extend(self, found: pa.Table) -> None:
        """Findings (`FINDINGS`) that were collected elsewhere."""
        self._flush()
        for kind in found["kind"].value_counts().to_pylist():
            self.counts[kind["values"]] += kind["counts"]
        self._tables.append(found)

    def table(self) -> pa.Table:
        """All findings (`FINDINGS`)."""
        self._flush()
        return pa.concat_tables([FINDINGS.empty_table(), *self._tables])

    def first(self, per_kind: int) -> tuple[Finding, ...]:
        """The first few of each kind, the worst kinds first."""
        shown: list[Finding] = []
        table = self.table()
        kinds = table["kind"].combine_chunks()
        for kind in sorted(self.counts, key=lambda name: (_RANK[KINDS[name].severity], name)):
            rows = pc.indices_nonzero(pc.equal(kinds, kind))[:per_kind]
            shown.extend(Finding(**row) for row in table.take(rows).to_pylist())
        return tuple(shown)

    def _flush(self) -> None:
        if not self._single:
            return
        columns = [
            pa.array([getattr(finding, field.name) for finding in self._single], field.type)
            for field in FINDINGS
        ]
        self._tables.append(pa.table(columns, schema=FINDINGS))
        self._single = []


_MOST_PATH = 4096
_RANK: Mapping[Severity, int] = {"corrupt": 0, "warning": 1, "note": 2}

_RESTORE = "restore it from a backup"
_BY_WRITER = "look what wrote it, and have that writer commit the state that is meant once more"
_CHECKPOINT = "fsck --repair writes it anew, if the log before it is whole"
_EMPTY = "fsck --repair deletes it once it is a day old; then write a checkpoint"
_UPGRADE = "repair the protocol with upgrade-protocol"

KINDS: Mapping[str, FindingKind] = {
    # The log.
    "unopenable": FindingKind("corrupt", "restore what is damaged from a backup"),
    "log-gap": FindingKind(
        "corrupt", "restore the missing commits from a backup; until then open an older version"
    ),
    "history-gap": FindingKind(
        "warning", "nothing for readers of the newest version; clean-log cuts the old history off"
    ),
    "unreadable-commit": FindingKind("corrupt", f"{_RESTORE}; a commit is never edited"),
    "checkpoint-without-commit": FindingKind(
        "warning", "commit anything and write a checkpoint of that: Delta Spark asks for the commit"
    ),
    "repeated-action": FindingKind("corrupt", _BY_WRITER),
    "repeated-file": FindingKind("corrupt", _BY_WRITER),
    "added-and-removed": FindingKind("corrupt", _BY_WRITER),
    "remove-of-absent-file": FindingKind("warning", "look what wrote it, and why"),
    "two-live-vectors": FindingKind("corrupt", _BY_WRITER),
    "two-spellings": FindingKind(
        "corrupt", "rewrite the file under one path; readers disagree on whether these are two"
    ),
    "in-commit-timestamp": FindingKind(
        "corrupt", "upgrade the writer that left it out or turned it back"
    ),
    "unknown-action": FindingKind("note", "use a release that knows it"),
    "unknown-file": FindingKind("note", "look what wrote it; nothing of ours deletes it"),
    "abandoned-file": FindingKind("note", "clean-log deletes it when it is old enough"),
    "stale-hadoop-checksum": FindingKind(
        "warning", "delete the checksum; until then Hadoop's local file system refuses the file"
    ),
    # Checkpoints, hint, compactions, checksums.
    "empty-checkpoint": FindingKind("warning", _EMPTY),
    "incomplete-checkpoint": FindingKind("warning", "clean-log deletes it in time"),
    "unreadable-checkpoint": FindingKind("corrupt", _CHECKPOINT),
    "missing-sidecar": FindingKind("corrupt", _CHECKPOINT),
    "sidecar-size": FindingKind("warning", _CHECKPOINT),
    "sidecar-summary": FindingKind(
        "warning",
        "write a checkpoint with incremental never: one that takes the sidecar over goes by it",
    ),
    "orphan-sidecar": FindingKind("note", "clean-log deletes it when it is old enough"),
    "checkpoint-differs": FindingKind(
        "corrupt", f"{_CHECKPOINT}; find out first which of the two is right"
    ),
    "damaged-hint": FindingKind("warning", "fsck --repair writes it anew"),
    "dangling-hint": FindingKind(
        "warning", "fsck --repair points it at a checkpoint that is there"
    ),
    "unreadable-compaction": FindingKind("warning", "delete it: its commits stand beside it"),
    "compaction-differs": FindingKind(
        "corrupt", "delete it: its commits stand beside it, and readers may trust it instead"
    ),
    "unreadable-checksum": FindingKind("warning", "delete it: no reader needs it"),
    "checksum-differs": FindingKind(
        "corrupt",
        "find out whether the log was tampered with; if not, delete the checksum, which Delta "
        "Spark believes",
    ),
    "checksum-without-commit": FindingKind(
        "warning", "delete it, or the commit that gets this version will be held against it"
    ),
    # Protocol, metadata, schema.
    "misplaced-feature": FindingKind("warning", _UPGRADE),
    "missing-feature": FindingKind("warning", _UPGRADE),
    "draft-feature": FindingKind("note", _UPGRADE),
    "draft-row-ids": FindingKind("warning", "convert the table to today's row tracking"),
    "unreadable-property": FindingKind("warning", "set the property to a value that engines read"),
    "unreadable-schema": FindingKind("corrupt", _BY_WRITER),
    "unknown-partition-column": FindingKind("corrupt", _BY_WRITER),
    "repeated-column": FindingKind("corrupt", "rename one of the columns"),
    "repeated-column-id": FindingKind("corrupt", _BY_WRITER),
    "reused-physical-name": FindingKind(
        "warning", "add the column anew if it shows values of the one that was dropped"
    ),
    "type-without-feature": FindingKind("warning", _UPGRADE),
    "clustered-and-partitioned": FindingKind("warning", "drop one of the two"),
    "variant-layout": FindingKind("corrupt", _BY_WRITER),
    # What live files say of themselves.
    "vector-without-feature": FindingKind("corrupt", _UPGRADE),
    "vector-without-count": FindingKind(
        "warning", "have the statistics of these files computed again"
    ),
    "invalid-statistics": FindingKind(
        "warning", "have the statistics of these files computed again"
    ),
    "missing-row-id": FindingKind("corrupt", "run backfill-row-ids"),
    "overlapping-row-ids": FindingKind(
        "corrupt", "suspend row tracking, and enable it anew with other row IDs"
    ),
    "row-id-mark-too-low": FindingKind(
        "corrupt", "run backfill-row-ids, which goes on above the highest row ID in use"
    ),
    "future-row-commit-version": FindingKind("corrupt", _BY_WRITER),
    # Files.
    "missing-data-file": FindingKind(
        "corrupt",
        f"{_RESTORE}; if its rows are lost for good, fsck --remove-missing-files takes its entry "
        "out of the table",
    ),
    "data-file-size": FindingKind("corrupt", f"{_RESTORE}: it is not the file that was committed"),
    "missing-deletion-vector": FindingKind(
        "corrupt", f"{_RESTORE}: without it nobody knows which rows are deleted"
    ),
    "missing-removed-file": FindingKind(
        "note", "nothing for the newest version; older ones and change data cannot be read whole"
    ),
    "unreadable-data-file": FindingKind("corrupt", _RESTORE),
    "row-count-differs": FindingKind(
        "corrupt", "restore the file, or have its statistics computed again"
    ),
    "damaged-deletion-vector": FindingKind(
        "corrupt", f"{_RESTORE}: without it nobody knows which rows are deleted"
    ),
}
"""Every kind of finding."""
