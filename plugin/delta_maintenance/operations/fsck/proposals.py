"""Decides which findings can be repaired, and by which repairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.fsck import FsckOptions, Repair, RepairOutcome
from delta_maintenance.operations.fsck.checks.log import is_old
from delta_maintenance.operations.fsck.doubled_files import propose_missing_removes
from delta_maintenance.operations.fsck.examination import TableExamination
from delta_maintenance.operations.holds.hold import commit_notes
from delta_maintenance.protocol.actions.model import CommitInfo
from delta_maintenance.protocol.delta_log.file_names import LAST_CHECKPOINT, LogFileKind
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.table.commit.manifests import MANIFESTS
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.segment import CheckpointFiles
from delta_maintenance.table.read.snapshot import Snapshot

OPERATION = "FSCK"
"""The operation name of repair commits."""

HINT = f"{LOG_DIRECTORY}/{LAST_CHECKPOINT}"
APPEND_ONLY = "delta.appendOnly"
SUSPENDED = "suspendedProperty"
_NAMED = 20
"""The number of entries that notes name."""
_DIFFERS = "checkpoint-differs"


def proposed_repairs(
    examination: TableExamination, options: FsckOptions, *, now: datetime
) -> tuple[tuple[Repair, ...], tuple[str, ...]]:
    """Returns the repairs that the options permit, and the reasons why other findings are not
    repaired.
    """
    wants_repairs = options.repair or options.remove_missing_files or options.remove_doubled_files
    if examination.archived and wants_repairs:
        return (), ("nothing is repaired while files of the log are archived",)
    repairs: list[Repair] = []
    notes: list[str] = []
    if options.forget_overwritten_commits:
        repairs.extend(_forget_overwritten(examination))
    if options.repair:
        checkpoints = list(_checkpoints(examination, notes))
        repairs.extend(_checksums(examination, checkpoints))
        repairs.extend(checkpoints)
        notes.extend(commits_after_wrong_checkpoints(examination, checkpoints))
        repairs.extend(_empty_checkpoints(examination, notes, now))
        repairs.extend(_hint(examination, notes))
        repairs.extend(_copy_misnamed(examination))
        repairs.extend(_manifests(examination))
    if wants_repairs:
        repairs.extend(_append_only(examination))
    if options.remove_doubled_files and examination.snapshot is not None:
        append_only = is_append_only(examination.snapshot)
        repairs.extend(
            propose_missing_removes(examination, options, notes, append_only=append_only)
        )
    if options.remove_missing_files:
        repairs.extend(_missing_files(examination, options, notes))
    removes = {"remove-missing-files", "remove-doubled-files"}.intersection(
        r.action for r in repairs
    )
    if removes and examination.snapshot is not None:
        notes.extend(commit_notes(examination.snapshot))
    return tuple(repairs), tuple(notes)


def _checkpoints(examination: TableExamination, notes: list[str]) -> Iterator[Repair]:
    history, is_refuted = examination.history, False
    doubt = _doubt_of_base(examination)
    for files in examination.inventory.listing.checkpoints:
        problem = examination.bad_checkpoints.get(files.name)
        if problem is None:
            continue
        # Later checkpoints repeat the errors of earlier ones, never the reverse.
        is_refuted |= problem.is_refuted
        whole = history is not None and history.base is None
        why = doubt or (None if is_refuted else problem.disputed)
        if history is None or files.version not in examination.inventory.listing.commits:
            notes.append(f"{files.name} stays: the log before it is incomplete")
        elif not whole and files.version <= history.first:
            notes.append(f"{files.name} stays: no older checkpoint is left to write it from")
        elif not whole and problem.kind == _DIFFERS and why is not None:
            assert history.base is not None
            notes.append(
                f"{files.name} stays: it contradicts the older {history.base.files.name}, and "
                f"nothing proves which of them is right: {why}; find that out, then delete "
                f"the files of the wrong one and {LAST_CHECKPOINT}"
            )
        else:
            base = "version 0" if whole else f"the checkpoint of version {history.first}"
            yield Repair(
                action="replace-checkpoint",
                path=checkpoint_path(files),
                version=files.version,
                reason=f"every commit since {base} exists and is readable, so version "
                f"{files.version} can be computed without this checkpoint",
            )


def _doubt_of_base(examination: TableExamination) -> str | None:
    """Returns what speaks against the checkpoint with which the history begins, as one clause.

    Checksums and commits count only before the first wrong checkpoint, from which later ones may
    have been made.
    """
    if examination.history is None or examination.history.base is None:
        return None
    first, wrong = (
        examination.history.first,
        min(_wrong_checkpoints(examination).values(), default=-1),
    )
    for kind, last in (
        ("sidecar-size", first),
        ("sidecar-differs", first),
        ("hint-differs", first),
        ("checksum-differs", wrong - 1),
        ("remove-of-absent-file", wrong),
    ):
        rows = _findings_between(examination, kind, first, last)
        if rows.num_rows:
            return f"{rows['path'][0]} contradicts the older one: {rows['problem'][0]}"
    return None


def _wrong_checkpoints(examination: TableExamination) -> dict[str | None, int]:
    """Returns the versions of the checkpoints that differ from the log, by path."""
    return {
        checkpoint_path(files): files.version
        for files in examination.inventory.listing.checkpoints
        if (problem := examination.bad_checkpoints.get(files.name)) and problem.kind == _DIFFERS
    }


def _findings_between(examination: TableExamination, kind: str, first: int, last: int) -> pa.Table:
    findings = examination.findings.table()
    versions = findings["version"]
    within = pc.and_(pc.greater_equal(versions, first), pc.less_equal(versions, last))
    return findings.filter(pc.and_(pc.equal(findings["kind"], kind), within))


def commits_after_wrong_checkpoints(
    examination: TableExamination, repairs: Iterable[Repair | RepairOutcome]
) -> Iterator[str]:
    """Yields what a person has to check if these repairs replace wrong checkpoints."""
    wrong, last = _wrong_checkpoints(examination), examination.version
    first = min((wrong[r.path] for r in repairs if r.path in wrong), default=last) + 1
    if first > last:
        return
    removes = _findings_between(examination, "remove-of-absent-file", first, last)
    versions = ", ".join(map(str, pc.unique(removes["version"]).to_pylist()[:_NAMED]))
    yield (
        f"versions {first} to {last} may have been written from the wrong checkpoint: check "
        "whether they deleted and rewrote the right rows"
        + (f"; they removed files that were not live in {versions}" if versions else "")
    )


def _checksums(examination: TableExamination, checkpoints: Sequence[Repair]) -> Iterator[Repair]:
    """Yields the removal of checksums that were carried forward from a wrong checkpoint.

    It comes first: with a wrong checksum beside it, a right checkpoint looks wrong.
    """
    wrong = _wrong_checkpoints(examination)
    first = min((wrong[r.path] for r in checkpoints if r.path in wrong), default=None)
    if first is None:
        return
    rows = _findings_between(examination, "checksum-differs", first, examination.version)
    if paths := tuple(pc.unique(rows["path"]).to_pylist()):
        yield Repair(
            action="remove-checksums",
            version=first,
            reason=f"{count_text(len(paths), 'checksum')} from the wrong checkpoint on; no reader "
            "needs them",
            paths=paths,
        )


def _empty_checkpoints(
    examination: TableExamination, notes: list[str], now: datetime
) -> Iterator[Repair]:
    if examination.snapshot is None:
        return
    for entry in examination.inventory.empty_checkpoints:
        version, commits = entry.file.version, examination.inventory.listing.commits
        if entry.file.kind is LogFileKind.CLASSIC_CHECKPOINT and version in commits:
            yield Repair(
                action="fill-empty-checkpoint",
                path=entry.path,
                version=version,
                reason="the file is empty, and a complete checkpoint of its version takes its "
                "place in one step",
            )
        elif is_old(entry, now):
            yield Repair(
                action="remove-empty-checkpoint",
                path=entry.path,
                version=entry.file.version,
                reason="the file is empty, and no reader uses it",
            )
        else:
            notes.append(
                f"{entry.file.name} stays: its writer may still be running until the file is "
                "a day old"
            )


def _hint(examination: TableExamination, notes: list[str]) -> Iterator[Repair]:
    counts, history = examination.findings.counts, examination.history
    if counts["hint-differs"]:
        version = _findings_between(examination, "hint-differs", 0, examination.version)["version"][
            0
        ].as_py()
        named = [c for c in examination.inventory.listing.checkpoints if c.version == version][-1]
        if named.name in examination.bad_checkpoints:
            # The repair of the checkpoint also writes the hint.
            return
        if history is None or not (history.base is None or history.first < version):
            notes.append(
                f"{LAST_CHECKPOINT} stays: it contradicts {named.name}, and nothing proves which "
                "of them is right; find that out, then delete the wrong one"
            )
            return
    elif not (counts["damaged-hint"] or counts["dangling-hint"]):
        return
    left = [
        c
        for c in examination.inventory.listing.checkpoints
        if c.name not in examination.bad_checkpoints
    ]
    reason = "readers find the same state without a hint"
    yield Repair(action="rewrite-hint" if left else "remove-hint", path=HINT, reason=reason)


def _append_only(examination: TableExamination) -> Iterator[Repair]:
    if examination.snapshot is not None and is_suspended(
        examination.snapshot.log.state.commit_info
    ):
        reason = "an earlier repair set delta.appendOnly to false and ended before setting it back"
        yield Repair(action="restore-append-only", version=examination.version, reason=reason)


def _copy_misnamed(examination: TableExamination) -> Iterator[Repair]:
    if examination.presence is None:
        return
    others = examination.presence.other_spellings
    paths = others["path"].filter(pc.is_null(others["doubt"]))
    if len(paths):
        yield Repair(
            action="copy-misnamed-files",
            version=examination.version,
            reason=f"{count_text(len(paths), 'file')} to copy to the names that readers look for; "
            "the originals are kept",
            paths=tuple(paths.to_pylist()),
        )


def _manifests(examination: TableExamination) -> Iterator[Repair]:
    if number := examination.findings.counts["stale-manifest"]:
        yield Repair(
            action="write-manifests",
            path=MANIFESTS,
            version=examination.version,
            reason=f"{count_text(number, 'manifest')} of other files than the live ones, which the "
            "log states",
        )


def _forget_overwritten(examination: TableExamination) -> Iterator[Repair]:
    rows = _findings_between(examination, "overwritten-commit", 0, examination.version)
    if rows.num_rows:
        yield Repair(
            action="forget-overwritten-commits",
            reason="the copies are evidence that no reader opens, and nothing brings the commits "
            "back into the log",
            paths=tuple(rows["path"].to_pylist()),
        )


def _missing_files(
    examination: TableExamination, options: FsckOptions, notes: list[str]
) -> Iterator[Repair]:
    snapshot, presence = examination.snapshot, examination.presence
    if snapshot is None or presence is None:
        return
    others = presence.other_spellings
    for row in others.select(["path", "found"]).slice(0, _NAMED).to_pylist():
        notes.append(f"the entry {row['path']} stays: its file may be {row['found']}")
    if others.num_rows > _NAMED:
        notes.append(f"{others.num_rows - _NAMED} other entries stay for the same reason")
    if not presence.missing.num_rows:
        return
    count = presence.missing.num_rows
    if is_append_only(snapshot) and not options.allow_append_only:
        notes.append(
            f"{count} entries without data files stay: the table is append-only, so "
            "--allow-append-only is required"
        )
        return
    reason = f"entries whose data files do not exist: {count}"
    if snapshot.properties.enable_change_data_feed:
        notes.append("the change data feed shows the rows of the removed entries as deleted")
    yield Repair(
        action="remove-missing-files",
        version=snapshot.version,
        reason=reason,
        paths=tuple(presence.missing["path"].to_pylist()),
    )


def checkpoint_path(files: CheckpointFiles) -> str:
    """Returns the path by which findings and repairs name a checkpoint."""
    return f"{LOG_DIRECTORY}/{files.name}"


def is_append_only(snapshot: Snapshot) -> bool:
    """Returns whether the table allows no deletions of rows."""
    return snapshot.properties.append_only and supports(snapshot.protocol, "appendOnly")


def is_suspended(info: CommitInfo | None) -> bool:
    """Returns whether a commit is the first of a repair's two commits."""
    parameters = None if info is None else info.values.get("operationParameters")
    mine = info is not None and info.operation == OPERATION
    return mine and isinstance(parameters, dict) and parameters.get(SUSPENDED) == APPEND_ONLY
