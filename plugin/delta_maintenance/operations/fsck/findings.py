"""The kinds of findings, and the collection of the findings of one check.

A damaged folder can cause a million findings, so findings about files are kept as columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import shorten
from delta_maintenance.operations.fsck import Finding, Severity
from delta_maintenance.protocol.schema.data_columns import ADD_WIDENING
from delta_maintenance.table.commit.manifests import PURGE
from delta_maintenance.table.read.managed_log import LOST_COMMIT


@dataclass(frozen=True, slots=True)
class FindingKind:
    """The severity and the usual remedy of the findings of one kind."""

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
    """Collects findings in the order of their detection."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """The number of findings of each kind."""
        self._tables: list[pa.Table] = []
        self._single: list[Finding] = []
        self.archived: frozenset[str] = frozenset()
        """Files of the log that are reported as archived, and not once more as unreadable."""

    def add(
        self,
        kind: str,
        problem: str,
        *,
        version: int | None = None,
        path: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """Adds a finding; `remedy` replaces the usual remedy of its kind."""
        if path in self.archived and kind in _UNREAD:
            return
        rule = KINDS[kind]
        self.counts[kind] += 1
        self._single.append(
            Finding(
                kind=kind,
                severity=rule.severity,
                version=version,
                path=path if path is None else shorten(path, _MOST_PATH),
                problem=shorten(problem),
                remedy=remedy or rule.remedy,
            )
        )

    def add_files(
        self,
        kind: str,
        problem: str | pa.ChunkedArray,
        *,
        paths: pa.ChunkedArray,
        version: int | pa.Array | None = None,
        remedy: str | None = None,
    ) -> None:
        """Adds a finding for each file, with a common problem and version or one for each.

        `remedy` replaces the usual remedy of the kind.
        """
        rows = len(paths)
        if not rows:
            return
        self._flush()
        self.counts[kind] += rows
        rule = KINDS[kind]
        remedy = remedy or rule.remedy
        constants = {"kind": kind, "severity": rule.severity, "remedy": remedy}
        columns = {name: pa.repeat(pa.scalar(text), rows) for name, text in constants.items()}
        columns["version"] = (
            version
            if isinstance(version, pa.Array)
            else pa.repeat(pa.scalar(version, pa.int64()), rows)
        )
        columns["path"] = paths
        columns["problem"] = (
            pa.repeat(pa.scalar(problem), rows) if isinstance(problem, str) else problem
        )
        self._tables.append(pa.table([columns[name] for name in FINDINGS.names], schema=FINDINGS))

    def extend(self, rows: pa.Table) -> None:
        """Adds findings (`FINDINGS`) that were collected elsewhere."""
        self._flush()
        for kind in rows["kind"].value_counts().to_pylist():
            self.counts[kind["values"]] += kind["counts"]
        self._tables.append(rows)

    def table(self) -> pa.Table:
        """All findings (`FINDINGS`)."""
        self._flush()
        return pa.concat_tables([FINDINGS.empty_table(), *self._tables])

    def first(self, per_kind: int) -> tuple[Finding, ...]:
        """The first findings of each kind, ordered by severity."""
        shown: list[Finding] = []
        table = self.table()
        kinds = table["kind"].combine_chunks()
        for kind in sorted(self.counts, key=_order):
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


def _order(kind: str) -> tuple[int, bool, str]:
    return _RANK[KINDS[kind].severity], kind not in _CAUSES, kind


_CAUSES = ("needed-overwritten-commit", "overwritten-commit")
"""Kinds from which other findings follow, such as checksums of commits that were overwritten."""
_MOST_PATH = 4096
_RANK: Mapping[Severity, int] = {"corrupt": 0, "warning": 1, "note": 2}

_RESTORE = "restore it from the versions of the store or from a backup"
_AGED = "; the finding ends when clean-log deletes the commit, after a new checkpoint"
_BY_WRITER = "find the writer of the commit, and let it commit the intended state again"
_IN_HISTORY = f"{_BY_WRITER}{_AGED}"
_UNORDERED = (
    f"{_BY_WRITER} and write a checkpoint; the finding ends when clean-log deletes the commit"
)
DOUBTFUL = (
    "find out which rows the commit meant, and let its writer commit that state again; rewrites "
    "leave the file out"
)
_NOT_NULL = (
    "write the rows again with values, or allow nulls with ALTER TABLE … ALTER COLUMN … DROP NOT "
    "NULL; until then, rewrites leave the file out, and Delta Spark may refuse to read it"
)
_CHECKPOINT = (
    "run fsck --repair, which writes the checkpoint again if version 0 or an older checkpoint, and "
    "all commits since, prove its contents"
)
_EMPTY = (
    "run fsck --repair, which puts a complete checkpoint in its place, or deletes a file with "
    "another name than that of a classic checkpoint once it is a day old"
)
_LEFTOVER = "run clean-log after a checkpoint, which deletes the file once it is old"
_UPGRADE = (
    "run upgrade-protocol --feature with the final name of the feature that the finding names"
)
_STATISTICS = "run recompute-stats"
_COMPARE = "run recompute-stats --check-files, which replaces statistics that differ from the file"

_UNREAD = (
    "compaction-differs",
    "damaged-hint",
    "orphan-sidecar",
    "unreadable-checkpoint",
    "unreadable-checksum",
    "unreadable-commit",
    "unreadable-compaction",
)
"""What is found in a file that cannot be read."""

KINDS: Mapping[str, FindingKind] = {
    # The log.
    "unreadable-version": FindingKind("corrupt", "restore the damaged files from a backup"),
    "log-gap": FindingKind(
        "corrupt", "restore the missing commits from a backup; until then, open an older version"
    ),
    "lost-commit": FindingKind("corrupt", LOST_COMMIT),
    "overwritten-commit": FindingKind(
        "corrupt",
        "run fsck --forget-overwritten-commits, and the operation again: after a lost rewrite, the "
        "files that it removed contain the same rows",
    ),
    "needed-overwritten-commit": FindingKind(
        "corrupt",
        "stop all writers, put the copy back under the name of the commit, and repeat the commit "
        "that replaced it (docs/safety/other-writers.md#a-quiet-window)",
    ),
    "file-of-overwritten-commit": FindingKind(
        "note", "run fsck --forget-overwritten-commits, once the loss of the commit was dealt with"
    ),
    "uncertain-commit": FindingKind(
        "warning",
        "compare the history with the record of the run; after a day, the next commit deletes the "
        "copy, and so does clean-log after a checkpoint",
    ),
    "history-gap": FindingKind(
        "warning",
        "no action is needed to read the newest version; clean-log deletes the older history",
    ),
    "unreadable-commit": FindingKind("corrupt", f"{_RESTORE}; never edit a commit"),
    "archived-log-file": FindingKind(
        "warning",
        "retrieve it, and exclude the log from the lifecycle rules of the store: readers that need "
        "the file fail",
    ),
    "checkpoint-without-commit": FindingKind(
        "warning",
        "commit to the table and write a checkpoint of that version: Delta Spark needs the commit",
    ),
    "repeated-action": FindingKind("corrupt", _IN_HISTORY),
    "repeated-file": FindingKind("corrupt", _UNORDERED),
    "added-and-removed": FindingKind("corrupt", _UNORDERED),
    "remove-of-absent-file": FindingKind(
        "warning",
        "find out from the writer of the commit which file it meant, and let it remove that file "
        f"if it is still live{_AGED}",
    ),
    "doubled-file": FindingKind(
        "corrupt",
        "run fsck --remove-doubled-files, which commits the missing remove; until then, rewrites "
        "leave the file out",
    ),
    "two-live-vectors": FindingKind("corrupt", _IN_HISTORY),
    "two-spellings": FindingKind(
        "corrupt",
        "remove both entries, one commit each, and add a copy of the file under a new path with "
        "the engine that wrote them, because readers disagree whether these are two files",
    ),
    "in-commit-timestamp": FindingKind(
        "corrupt", f"upgrade the writer that omitted the timestamp or set it back{_AGED}"
    ),
    "unknown-action": FindingKind("note", "use a release of this library that knows the action"),
    "unknown-file": FindingKind(
        "note",
        "find out which writer needs the file, and delete it if none does; no operation of this "
        "library deletes it",
    ),
    "abandoned-file": FindingKind("note", _LEFTOVER),
    "stale-hadoop-checksum": FindingKind(
        "warning",
        "delete the checksum, because Hadoop's local file system refuses the file until then",
    ),
    # Checkpoints, hint, compactions, checksums.
    "empty-checkpoint": FindingKind("warning", _EMPTY),
    "incomplete-checkpoint": FindingKind(
        "warning", "run clean-log, which deletes the parts once they are old"
    ),
    "unreadable-checkpoint": FindingKind("corrupt", _CHECKPOINT),
    "missing-sidecar": FindingKind("corrupt", _CHECKPOINT),
    "sidecar-size": FindingKind("corrupt", _CHECKPOINT),
    "sidecar-differs": FindingKind("corrupt", _CHECKPOINT),
    "sidecar-summary": FindingKind(
        "warning",
        "run checkpoint --incremental never after the next commit: incremental checkpoints rely on "
        "the summary",
    ),
    "orphan-sidecar": FindingKind("note", _LEFTOVER),
    "checkpoint-differs": FindingKind(
        "corrupt", f"change nothing in the table before the repair; {_CHECKPOINT}"
    ),
    "missing-tombstones": FindingKind(
        "warning",
        "run no vacuum of Delta Spark before the repair, because it deletes files that only "
        f"tombstones protect; {_CHECKPOINT}",
    ),
    "damaged-hint": FindingKind("warning", "run fsck --repair, which writes the hint again"),
    "hint-differs": FindingKind(
        "corrupt",
        "change nothing in the table before the repair; run fsck --repair, which writes the "
        "checkpoint or the hint again if the log proves which of them is wrong",
    ),
    "dangling-hint": FindingKind(
        "warning", "run fsck --repair, which writes a hint to an existing checkpoint"
    ),
    "unreadable-compaction": FindingKind(
        "warning", "delete the log compaction, because it is empty"
    ),
    "compaction-differs": FindingKind(
        "corrupt", "delete the log compaction: its commits exist, and readers may prefer it to them"
    ),
    "unreadable-checksum": FindingKind("warning", "delete the checksum, which no reader needs"),
    "checksum-differs": FindingKind(
        "corrupt",
        "find out whether the log was changed; if not, delete the checksum, because Delta Spark "
        "trusts it",
    ),
    "checksum-without-commit": FindingKind(
        "warning", "delete the checksum, or readers compare the next commit of this version with it"
    ),
    # Protocol, metadata, schema.
    "misplaced-feature": FindingKind("warning", _UPGRADE),
    "missing-feature": FindingKind("warning", _UPGRADE),
    "draft-feature": FindingKind("note", _UPGRADE),
    "draft-row-ids": FindingKind("warning", "run upgrade-protocol --convert-draft"),
    "unreadable-property": FindingKind(
        "warning", "set the property to a valid value with set-properties"
    ),
    "unreadable-schema": FindingKind("corrupt", _BY_WRITER),
    "unknown-partition-column": FindingKind("corrupt", _BY_WRITER),
    "repeated-column": FindingKind("corrupt", "rename one of the columns"),
    "repeated-column-id": FindingKind("corrupt", _BY_WRITER),
    "reused-physical-name": FindingKind(
        "warning",
        "if the column shows values of the dropped column, copy its own values to a new column "
        "and drop it",
    ),
    "type-without-feature": FindingKind("warning", _UPGRADE),
    "clustered-and-partitioned": FindingKind(
        "warning", "run set-clustering --none, or write the table again without partitions"
    ),
    "lost-clustering": FindingKind(
        "warning",
        "find the columns in the history (CLUSTER BY, clusterBy) or ask the owner of the table, "
        "and run set-clustering --by COLUMN, or --none if there are none",
    ),
    "variant-layout": FindingKind("corrupt", _BY_WRITER),
    # Live files, by their actions.
    "vector-without-feature": FindingKind(
        "corrupt", "run set-properties --set delta.enableDeletionVectors=true"
    ),
    "partition-value-spelling": FindingKind(
        "warning",
        "run optimize, which writes the canonical value for the files that it merges, and then "
        "checkpoint; write the other files again with the engine that wrote them",
    ),
    "invalid-partition-value": FindingKind(
        "warning",
        "find out which value was meant, and write the files again with the engine that wrote them",
    ),
    "missing-not-null-column": FindingKind("corrupt", _NOT_NULL),
    "null-in-not-null-column": FindingKind("corrupt", _NOT_NULL),
    "vector-without-count": FindingKind("warning", _STATISTICS),
    "invalid-statistics": FindingKind("warning", _STATISTICS),
    "missing-row-id": FindingKind("corrupt", "run backfill-row-ids"),
    "overlapping-row-ids": FindingKind(
        "corrupt",
        "run fsck --deep, which compares the row IDs of all rows; keep them unless it finds "
        "repeated-row-id",
    ),
    "repeated-row-id": FindingKind(
        "corrupt",
        "run drop-feature --feature rowTracking, which removes all row IDs, and then "
        "backfill-row-ids, which assigns new ones",
    ),
    "row-id-mark-too-low": FindingKind(
        "corrupt", "run backfill-row-ids, which continues after the highest row ID in use"
    ),
    "future-row-commit-version": FindingKind("corrupt", _BY_WRITER),
    # Files of other readers.
    "stale-manifest": FindingKind("warning", "run fsck --repair, which writes the manifests again"),
    "unwritable-manifest": FindingKind("warning", PURGE),
    "old-manifest": FindingKind(
        "note",
        "set delta.compatibility.symlinkFormatManifest.enabled to true with set-properties, which "
        "writes them, or generate them again in Delta Spark; vacuum keeps the files that they name",
    ),
    # Files.
    "archived-data-file": FindingKind(
        "warning",
        "retrieve it before a query needs it, and exclude live files from the lifecycle rule of "
        "the store",
    ),
    "missing-data-file": FindingKind(
        "corrupt",
        f"{_RESTORE}; if there is none, see with files how many rows it had in which partition, "
        "and write them again from their source or from an older version; run fsck "
        "--remove-missing-files only then, because it removes the entry, and with it the rows",
    ),
    "misnamed-file": FindingKind(
        "corrupt", "run fsck --repair, which copies the file to the name that readers look for"
    ),
    "doubtful-file": FindingKind(
        "corrupt",
        "find out which file was committed, and copy it to the name that readers look for; "
        "--remove-missing-files does not remove the entry while such a file exists",
    ),
    "data-file-size": FindingKind(
        "corrupt", f"{_RESTORE}, because it is not the file that was committed"
    ),
    "missing-deletion-vector": FindingKind(
        "corrupt", f"{_RESTORE}, because the deleted rows are recorded nowhere else"
    ),
    "missing-removed-file": FindingKind(
        "note",
        "find out what deleted the file before its retention ended, such as a lifecycle rule or a "
        "vacuum with a shorter retention, because it can also delete files that the newest version "
        f"needs; to read older versions, {_RESTORE}; the finding ends with the retention",
    ),
    "unreadable-data-file": FindingKind("corrupt", _RESTORE),
    "unsupported-data-file": FindingKind(
        "note", "examine the file with the engine that wrote it, or that has its keys"
    ),
    "widened-without-feature": FindingKind("corrupt", ADD_WIDENING),
    "row-count-differs": FindingKind(
        "corrupt", f"if the file is the one that was committed, {_COMPARE}; otherwise {_RESTORE}"
    ),
    "wrong-statistics": FindingKind(
        "corrupt", f"{_COMPARE}; until then, readers that rely on them can omit rows"
    ),
    "loose-bounds": FindingKind("warning", _COMPARE),
    "damaged-deletion-vector": FindingKind(
        "corrupt", f"{_RESTORE}, because the deleted rows are recorded nowhere else"
    ),
}
"""Every kind of finding."""
