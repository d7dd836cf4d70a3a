"""Decides which findings can be repaired, and repairs them.

At whatever point a repair stops, every version that could be opened before still has the same
files: a hint proves nothing, a checkpoint is replaced only if the log before it is complete, and
entries without their files are removed in an ordinary commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.clock import NewId
from delta_maintenance.errors import (
    CommitConflictError,
    DeltaMaintenanceError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import CheckpointKind, CheckpointOptions
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.fsck.checks.log import is_old
from delta_maintenance.operations.fsck.checks.presence import Presence, TableFiles, check_presence
from delta_maintenance.operations.fsck.doubled_files import (
    commit_missing_removes,
    propose_missing_removes,
)
from delta_maintenance.operations.fsck.examination import Examination
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.fsck.inputs import read_live_files, read_live_rows
from delta_maintenance.operations.fsck.options import FsckOptions, Repair, RepairOutcome
from delta_maintenance.protocol.actions.model import CommitInfo, Metadata
from delta_maintenance.protocol.commit.conflicts import IsolationLevel
from delta_maintenance.protocol.commit.staged import removes_of
from delta_maintenance.protocol.delta_log.file_names import LAST_CHECKPOINT, LogFileKind
from delta_maintenance.protocol.delta_log.last_checkpoint import parse_hint
from delta_maintenance.protocol.features.registry import Operation, require_supported, supports
from delta_maintenance.storage.core.listing import STATUSES
from delta_maintenance.table.commit.outcome import CommitOutcome, Conflicted, Landed
from delta_maintenance.table.commit.transaction import Transaction, Writer
from delta_maintenance.table.data.locations import copy_files
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, read_hint
from delta_maintenance.table.read.log_inventory import newest_sound_checkpoint
from delta_maintenance.table.read.segment import CheckpointFiles, list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.write.log_deletion import put_hint

OPERATION = "FSCK"
"""The operation name of repair commits."""

_HINT = f"{LOG_DIRECTORY}/{LAST_CHECKPOINT}"
_APPEND_ONLY = "delta.appendOnly"
_SUSPENDED = "suspendedProperty"
_NAMED = 20
"""The number of entries that notes name."""


def proposed_repairs(
    found: Examination, options: FsckOptions, *, now: datetime
) -> tuple[tuple[Repair, ...], tuple[str, ...]]:
    """Returns the repairs that the options permit, and the reasons why other findings are not
    repaired.
    """
    wants_repairs = options.repair or options.remove_missing_files or options.remove_doubled_files
    if found.archived and wants_repairs:
        return (), ("nothing is repaired while files of the log are archived",)
    repairs: list[Repair] = []
    notes: list[str] = []
    if options.repair:
        repairs.extend(_checkpoints(found, notes))
        repairs.extend(_empty_checkpoints(found, notes, now))
        repairs.extend(_hint(found))
        repairs.extend(_misnamed(found))
    if wants_repairs:
        repairs.extend(_append_only(found))
    if options.remove_doubled_files and found.snapshot is not None:
        append_only = _is_append_only(found.snapshot)
        repairs.extend(propose_missing_removes(found, options, notes, append_only=append_only))
    if options.remove_missing_files:
        repairs.extend(_missing_files(found, options, notes))
    return tuple(repairs), tuple(notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairing:
    """Applies repairs to a table that has just been examined."""

    table: Table
    found: Examination
    options: FsckOptions
    now: datetime
    new_id: NewId

    def run(self, repair: Repair) -> RepairOutcome:
        """Applies one repair. Its outcome contains the reason if it is not made."""
        try:
            match repair.action:
                case "replace-checkpoint":
                    return self._replace_checkpoint(repair)
                case "fill-empty-checkpoint":
                    return self._fill_empty_checkpoint(repair)
                case "remove-empty-checkpoint":
                    return self._remove_empty_checkpoint(repair)
                case "copy-misnamed-files":
                    return self._copy_misnamed_files(repair)
                case "rewrite-hint" | "remove-hint":
                    return self._write_hint(repair)
                case "restore-append-only":
                    return self._restore_append_only(repair)
                case "remove-missing-files":
                    return self._remove_missing_files(repair)
                case "remove-doubled-files":
                    return self._remove_doubled_files(repair)
        except (RefusedError, UnsupportedFeatureError) as error:
            return _outcome(repair, "refused", reason=str(error))
        except DeltaMaintenanceError as error:
            return _outcome(repair, "failed", reason=str(error))

    def _replace_checkpoint(self, repair: Repair) -> RepairOutcome:
        found, store = self.found, self.table.store
        checkpoints = found.inventory.listing.checkpoints
        files = next((files for files in checkpoints if _path(files) == repair.path), None)
        # If size or time have changed, another process has repaired it.
        if files is None or files not in list_log(store, first_version=files.version).checkpoints:
            return _outcome(repair, "already-done", reason="the checkpoint has changed")
        snapshot = self._without_bad_checkpoints(files.version)
        require_supported(snapshot.protocol, Operation.CLEAN_LOG, table=self.table.uri)
        # The new checkpoint must not be built on files that may be damaged as well.
        options = CheckpointOptions(
            kind=_kind(files, snapshot), engine="local", incremental="never"
        )
        plan = checkpoint.plan(snapshot, options, context=RunContext.at(self.now), repairs=True)
        if files.kind is LogFileKind.CLASSIC_CHECKPOINT:
            # The damaged file occupies the name. Until it is replaced, readers use the older log.
            self._delete(files)
        result = checkpoint.apply(
            self.table,
            plan,
            context=RunContext(new_id=self.new_id),
            snapshot=snapshot,
            repairs=True,
        )
        if files.kind is not LogFileKind.CLASSIC_CHECKPOINT:
            self._delete(files)
        return _outcome(repair, "done", version=files.version, reason=result.path)

    def _fill_empty_checkpoint(self, repair: Repair) -> RepairOutcome:
        assert repair.version is not None
        snapshot = self._without_bad_checkpoints(repair.version)
        options = CheckpointOptions(
            kind=_classic_kind(snapshot), engine="local", incremental="never"
        )
        plan = checkpoint.plan(snapshot, options, context=RunContext.at(self.now))
        result = checkpoint.apply(
            self.table, plan, context=RunContext(new_id=self.new_id), snapshot=snapshot
        )
        done = result.status == "written"
        return _outcome(
            repair,
            "done" if done else "already-done",
            version=repair.version,
            reason=result.path if done else "another writer has written the checkpoint",
        )

    def _remove_empty_checkpoint(self, repair: Repair) -> RepairOutcome:
        store = self.table.store
        found = {entry.path: entry.status for entry in self.found.inventory.empty_checkpoints}
        status = found.get(repair.path or "")
        # If size or time have changed, another process has written a checkpoint.
        if status is None or store.stat(status.path) != status:
            return _outcome(repair, "already-done", reason="the file has changed")
        snapshot = self.table.snapshot()
        require_supported(snapshot.protocol, Operation.CLEAN_LOG, table=self.table.uri)
        row = [[status.path], [status.size], [status.modified_ms]]
        self._require_deleted(store.delete_unchanged(pa.table(row, schema=STATUSES)))
        return _outcome(repair, "done", version=repair.version)

    def _without_bad_checkpoints(self, version: int) -> Snapshot:
        """Opens the version from a base without findings."""
        snapshot = self.table.snapshot(version=version)
        while (base := snapshot.log.checkpoint) is not None and (
            base.files.name in self.found.bad_checkpoints
        ):
            problem = "the checkpoint cannot be read, or differs from the log"
            snapshot = snapshot.avoiding(UnusableCheckpointError(problem, file=_path(base.files)))
        return snapshot

    def _delete(self, files: CheckpointFiles) -> None:
        self._require_deleted(self.table.store.delete_many(entry.path for entry in files.entries))

    @staticmethod
    def _require_deleted(kept: Mapping[str, StorageError]) -> None:
        if kept:
            path, error = next(iter(kept.items()))
            raise StorageError(f"it could not be deleted: {error.problem}", file=path)

    def _write_hint(self, repair: Repair) -> RepairOutcome:
        store = self.table.store
        listing = list_log(store)
        versions = {files.version for files in listing.checkpoints}
        try:
            hint = parse_hint(read_hint(store, _HINT))
        except FileNotFoundError:
            return _outcome(repair, "already-done", reason="the hint no longer exists")
        if hint is not None and hint.version in versions:
            return _outcome(repair, "already-done", reason="the hint is valid now")
        found = self.found.inventory.listing.checkpoints
        # Compared by their files, not by name: a replaced checkpoint has the name of the bad one.
        bad = [files for files in found if files.name in self.found.bad_checkpoints]
        good = tuple(files for files in listing.checkpoints if files not in bad)
        listing = replace(listing, checkpoints=good)
        sound, _ = newest_sound_checkpoint(store, listing, version=max(listing.commits, default=-1))
        if sound is None:
            store.delete(_HINT)
            return _outcome(repair, "done", reason="no checkpoint exists that the hint could name")
        put_hint(store, sound)
        return _outcome(repair, "done", version=sound.checkpoint.files.version)

    def _copy_misnamed_files(self, repair: Repair) -> RepairOutcome:
        snapshot = self.table.snapshot()
        require_supported(snapshot.protocol, Operation.VACUUM, table=self.table.uri)
        others = self._presence(snapshot).other_spellings
        chosen = pc.and_(
            pc.is_null(others["doubt"]),
            pc.is_in(others["path"], value_set=pa.array(repair.paths, pa.string())),
        )
        count = copy_files(self.table.store, others.filter(chosen))
        return _outcome(repair, "done" if count else "already-done", count=count)

    def _presence(self, snapshot: Snapshot) -> Presence:
        """Lists the files again."""
        files = TableFiles(self.table.store)
        live = read_live_files(snapshot)
        return check_presence(files, live, Findings(), version=snapshot.version, kept_from_ms=0)

    def _remove_missing_files(self, repair: Repair) -> RepairOutcome:
        snapshot = self.table.snapshot()
        rows = read_live_rows(snapshot, repair.paths)
        # Entries whose files exist now are kept.
        missing = self._presence(snapshot).missing
        rows = rows.filter(pc.is_in(rows["path"], value_set=missing["path"]))
        if not rows.num_rows:
            return _outcome(
                repair, "already-done", reason="the table no longer contains such an entry"
            )
        transaction = self._staged_removes(snapshot, removes_of(rows, data_change=True))
        return self._removed(repair, transaction.commit())

    def _remove_doubled_files(self, repair: Repair) -> RepairOutcome:
        snapshot = self.found.snapshot
        assert snapshot is not None
        rows = read_live_rows(snapshot, repair.paths)
        landed = commit_missing_removes(self.found, snapshot, rows, self._staged_removes)
        if not landed:
            return _outcome(repair, "already-done", reason="other writers have changed the files")
        count = sum(each.num_removes for each in landed)
        return replace(self._removed(repair, landed[-1]), count=count)

    def _staged_removes(self, snapshot: Snapshot, removes: pa.Table) -> Transaction:
        suspends = _is_append_only(snapshot) and bool(pc.any(removes["dataChange"]).as_py())
        if suspends and not self.options.allow_append_only:
            raise RefusedError(
                "the table is append-only, and the commit would remove files with their rows",
                remedy="allow it explicitly, or set delta.appendOnly to false first",
            )
        size = pc.sum(removes["size"]).as_py() or 0
        parameters = {"numRemovedFiles": removes.num_rows, "numRemovedBytes": size}
        if suspends:
            parameters[_SUSPENDED] = _APPEND_ONLY
        transaction = self._transaction(snapshot, parameters)
        transaction.read_files(removes)
        transaction.stage_removes(removes)
        if suspends:
            transaction.stage_metadata(_with_append_only(snapshot, "false"))
        return transaction

    def _removed(self, repair: Repair, outcome: CommitOutcome) -> RepairOutcome:
        landed = self._landed(outcome)
        version = landed.version
        if _suspends(landed.commit_info):
            version = self._set_append_only(self.table.snapshot())
        return _outcome(repair, "done", version=version, count=landed.num_removes)

    def _restore_append_only(self, repair: Repair) -> RepairOutcome:
        snapshot = self.table.snapshot()
        if not _left_suspended(snapshot):
            return _outcome(repair, "already-done", reason="another writer has committed since")
        return _outcome(repair, "done", version=self._set_append_only(snapshot))

    def _set_append_only(self, snapshot: Snapshot) -> int:
        transaction = self._transaction(snapshot, {"restoredProperty": _APPEND_ONLY})
        transaction.stage_metadata(_with_append_only(snapshot, "true"))
        return self._landed(transaction.commit()).version

    def _transaction(self, snapshot: Snapshot, parameters: dict[str, object]) -> Transaction:
        return Transaction(
            snapshot,
            OPERATION,
            parameters=parameters,
            # The files are missing, whatever other writers append in the meantime.
            isolation=IsolationLevel.SNAPSHOT_ISOLATION,
            writer=Writer(
                other_writers=self.options.other_writers,
                now=lambda: self.now,
                new_id=self.new_id,
                repairs=True,
            ),
        )

    def _landed(self, outcome: CommitOutcome) -> Landed:
        if isinstance(outcome, Conflicted):
            raise outcome.as_error(self.table.uri)
        if not isinstance(outcome, Landed):
            raise CommitConflictError(
                "other writers removed the same files first", remedy="run again to see what is left"
            )
        return outcome


def _checkpoints(found: Examination, notes: list[str]) -> Iterator[Repair]:
    history = found.history
    for files in found.inventory.listing.checkpoints:
        kind = found.bad_checkpoints.get(files.name)
        if kind is None:
            continue
        whole = history is not None and history.base is None
        if history is None or files.version not in found.inventory.listing.commits:
            notes.append(f"{files.name} stays: the log before it is incomplete")
        elif not whole and (kind == "checkpoint-differs" or files.version <= history.first):
            notes.append(
                f"{files.name} stays: the log does not reach back to version 0, so nothing proves "
                "whether the log or the checkpoint is right"
                if kind == "checkpoint-differs"
                else f"{files.name} stays: no older checkpoint is left to write it from"
            )
        else:
            base = "version 0" if whole else f"the checkpoint of version {history.first}"
            yield Repair(
                action="replace-checkpoint",
                path=_path(files),
                version=files.version,
                reason=f"every commit since {base} exists and is readable, so version "
                f"{files.version} can be computed without this checkpoint",
            )


def _empty_checkpoints(found: Examination, notes: list[str], now: datetime) -> Iterator[Repair]:
    if found.snapshot is None:
        return
    for entry in found.inventory.empty_checkpoints:
        version, commits = entry.file.version, found.inventory.listing.commits
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


def _hint(found: Examination) -> Iterator[Repair]:
    if not (found.findings.counts["damaged-hint"] or found.findings.counts["dangling-hint"]):
        return
    left = [c for c in found.inventory.listing.checkpoints if c.name not in found.bad_checkpoints]
    reason = "readers find the same state without a hint"
    yield Repair(action="rewrite-hint" if left else "remove-hint", path=_HINT, reason=reason)


def _append_only(found: Examination) -> Iterator[Repair]:
    if found.snapshot is not None and _left_suspended(found.snapshot):
        reason = "an earlier repair set delta.appendOnly to false and ended before setting it back"
        yield Repair(action="restore-append-only", version=found.version, reason=reason)


def _misnamed(found: Examination) -> Iterator[Repair]:
    if found.presence is None:
        return
    others = found.presence.other_spellings
    paths = others["path"].filter(pc.is_null(others["doubt"]))
    if len(paths):
        yield Repair(
            action="copy-misnamed-files",
            version=found.version,
            reason=f"{count_text(len(paths), 'file')} to copy to the names that readers look for; "
            "the originals are kept",
            paths=tuple(paths.to_pylist()),
        )


def _missing_files(found: Examination, options: FsckOptions, notes: list[str]) -> Iterator[Repair]:
    snapshot, presence = found.snapshot, found.presence
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
    if _is_append_only(snapshot) and not options.allow_append_only:
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


def _kind(files: CheckpointFiles, snapshot: Snapshot) -> CheckpointKind:
    if files.kind is LogFileKind.UUID_CHECKPOINT:
        return "v2-json" if files.entries[0].file.encoding == "json" else "v2-parquet"
    return _classic_kind(snapshot)


def _classic_kind(snapshot: Snapshot) -> CheckpointKind:
    v2 = snapshot.properties.checkpoint_policy == "v2"
    return "v2-classic" if v2 and supports(snapshot.protocol, "v2Checkpoint") else "classic"


def _path(files: CheckpointFiles) -> str:
    return f"{LOG_DIRECTORY}/{files.name}"


def _is_append_only(snapshot: Snapshot) -> bool:
    return snapshot.properties.append_only and supports(snapshot.protocol, "appendOnly")


def _left_suspended(snapshot: Snapshot) -> bool:
    """Returns whether the newest commit is the first of a repair's two commits."""
    return _suspends(snapshot.log.state.commit_info)


def _suspends(info: CommitInfo | None) -> bool:
    parameters = None if info is None else info.values.get("operationParameters")
    mine = info is not None and info.operation == OPERATION
    return mine and isinstance(parameters, dict) and parameters.get(_SUSPENDED) == _APPEND_ONLY


def _with_append_only(snapshot: Snapshot, value: str) -> Metadata:
    configuration = {**snapshot.metadata.configuration, _APPEND_ONLY: value}
    return replace(snapshot.metadata, configuration=configuration)


def _outcome(
    repair: Repair,
    status: Literal["done", "already-done", "refused", "failed"],
    *,
    version: int | None = None,
    count: int = 0,
    reason: str | None = None,
) -> RepairOutcome:
    return RepairOutcome(
        action=repair.action,
        path=repair.path,
        status=status,
        version=version,
        count=count,
        reason=reason,
    )
