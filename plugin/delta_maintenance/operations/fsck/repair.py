"""Applies the repairs of `proposals`.

At whatever point a repair stops, every version that could be opened before still opens, with the
files that it had or with those that the log proves: a hint proves nothing, a checkpoint is replaced
only if all commits since version 0 or an older checkpoint exist and nothing speaks against that
one, and entries without their files are removed in an ordinary commit.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from delta_maintenance.operations.fsck import FsckOptions, Repair, RepairOutcome
from delta_maintenance.operations.fsck.checks.presence import Presence, TableFiles, check_presence
from delta_maintenance.operations.fsck.doubled_files import commit_missing_removes
from delta_maintenance.operations.fsck.examination import TableExamination
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.fsck.inputs import read_live_files, read_live_rows
from delta_maintenance.operations.fsck.proposals import (
    APPEND_ONLY,
    HINT,
    OPERATION,
    SUSPENDED,
    checkpoint_path,
    is_append_only,
    is_suspended,
)
from delta_maintenance.protocol.actions.model import Metadata
from delta_maintenance.protocol.commit.conflicts import IsolationLevel
from delta_maintenance.protocol.commit.staged import removes_of
from delta_maintenance.protocol.delta_log.file_names import LogFileKind
from delta_maintenance.protocol.delta_log.last_checkpoint import parse_hint
from delta_maintenance.protocol.features.registry import Operation, supports
from delta_maintenance.storage.core.listing import STATUSES
from delta_maintenance.table.commit.guarded import guarded_commits
from delta_maintenance.table.commit.manifests import write_manifests
from delta_maintenance.table.commit.outcome import CommitOutcome, Conflicted, Landed
from delta_maintenance.table.commit.transaction import Transaction, Writer
from delta_maintenance.table.data.locations import copy_files
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.log_file import read_hint
from delta_maintenance.table.read.log_inventory import newest_sound_checkpoint
from delta_maintenance.table.read.segment import CheckpointFiles, hinted_version, list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.writable import require_writable
from delta_maintenance.table.write.log_deletion import put_hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairing:
    """Applies repairs to a table that has just been examined."""

    table: Table
    found: TableExamination
    options: FsckOptions
    now: datetime
    new_id: NewId

    def run(self, repair: Repair) -> RepairOutcome:
        """Applies one repair. Its outcome contains the reason if it is not made."""
        try:
            match repair.action:
                case "remove-checksums":
                    return self._remove_checksums(repair)
                case "replace-checkpoint":
                    return self._replace_checkpoint(repair)
                case "fill-empty-checkpoint":
                    return self._fill_empty_checkpoint(repair)
                case "remove-empty-checkpoint":
                    return self._remove_empty_checkpoint(repair)
                case "copy-misnamed-files":
                    return self._copy_misnamed_files(repair)
                case "write-manifests":
                    return self._write_manifests(repair)
                case "forget-overwritten-commits":
                    return self._forget_overwritten_commits(repair)
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

    def _remove_checksums(self, repair: Repair) -> RepairOutcome:
        statuses = [e.status for e in self.found.inventory.entries if e.path in repair.paths]
        snapshot = self._without_bad_checkpoints(self.found.version)
        require_writable(snapshot, Operation.CLEAN_LOG, repairs=True)
        columns = [[s.path for s in statuses], [s.size for s in statuses]]
        times = [status.modified_ms for status in statuses]
        unchanged = pa.table([*columns, times], schema=STATUSES)
        self._require_deleted(self.table.store.delete_unchanged(unchanged))
        return _outcome(repair, "done", count=len(statuses))

    def _replace_checkpoint(self, repair: Repair) -> RepairOutcome:
        examination, store = self.found, self.table.store
        checkpoints = examination.inventory.listing.checkpoints
        files = next(
            (files for files in checkpoints if checkpoint_path(files) == repair.path), None
        )
        # If size or time have changed, another process has repaired it.
        if files is None or files not in list_log(store, first_version=files.version).checkpoints:
            return _outcome(repair, "already-done", reason="the checkpoint has changed")
        snapshot = self._without_bad_checkpoints(files.version)
        require_writable(snapshot, Operation.CLEAN_LOG, repairs=True)
        # The new checkpoint must not be built on files that may be damaged as well.
        options = CheckpointOptions(
            kind=_kind(files, snapshot), engine="local", incremental="never"
        )
        plan = checkpoint.plan(snapshot, options, context=RunContext.at(self.now), repairs=True)
        # deltalake does not open a table whose hint names a version without a checkpoint.
        if hinted_version(store) == files.version:
            store.delete(HINT)
        if files.kind is LogFileKind.CLASSIC_CHECKPOINT:
            # The bad file occupies the name. Until it is replaced, readers use the older log.
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
        empty_checkpoints = {
            entry.path: entry.status for entry in self.found.inventory.empty_checkpoints
        }
        status = empty_checkpoints.get(repair.path or "")
        # If size or time have changed, another process has written a checkpoint.
        if status is None or store.stat(status.path) != status:
            return _outcome(repair, "already-done", reason="the file has changed")
        snapshot = self.table.snapshot()
        require_writable(snapshot, Operation.CLEAN_LOG, repairs=True)
        row = [[status.path], [status.size], [status.modified_ms]]
        self._require_deleted(store.delete_unchanged(pa.table(row, schema=STATUSES)))
        return _outcome(repair, "done", version=repair.version)

    def _without_bad_checkpoints(self, version: int) -> Snapshot:
        """Opens the version from a base without findings."""
        snapshot = self.table.snapshot(version=version)
        while (base := snapshot.log.checkpoint) is not None and self._is_bad(base.files):
            problem = "the checkpoint cannot be read, or differs from the log"
            snapshot = snapshot.avoiding(
                UnusableCheckpointError(problem, file=checkpoint_path(base.files))
            )
        return snapshot

    def _is_bad(self, files: CheckpointFiles) -> bool:
        # Compared by its files, not by name: a replaced checkpoint has the name of the bad one.
        is_known = files in self.found.inventory.listing.checkpoints
        return is_known and files.name in self.found.bad_checkpoints

    def _require_sound_base(self, snapshot: Snapshot) -> Snapshot:
        """Returns a snapshot to commit to; `RefusedError` if it rests on a bad checkpoint."""
        base = snapshot.log.checkpoint
        if base is not None and self._is_bad(base.files):
            raise RefusedError(
                f"the newest version is read from {base.files.name}, which is damaged",
                remedy="give --repair as well, which writes the checkpoint again",
            )
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
            hint = parse_hint(read_hint(store, HINT))
        except FileNotFoundError:
            return _outcome(repair, "already-done", reason="the hint no longer exists")
        differs = self.found.findings.counts["hint-differs"]
        if hint is not None and hint.version in versions and not differs:
            return _outcome(repair, "already-done", reason="the hint is valid now")
        good = tuple(files for files in listing.checkpoints if not self._is_bad(files))
        listing = replace(listing, checkpoints=good)
        sound, _ = newest_sound_checkpoint(store, listing, version=max(listing.commits, default=-1))
        if sound is None:
            store.delete(HINT)
            return _outcome(repair, "done", reason="no checkpoint exists that the hint could name")
        put_hint(store, sound)
        return _outcome(repair, "done", version=sound.checkpoint.files.version)

    def _copy_misnamed_files(self, repair: Repair) -> RepairOutcome:
        snapshot = self.table.snapshot()
        require_writable(snapshot, Operation.VACUUM, repairs=True)
        others = self._presence(snapshot).other_spellings
        chosen = pc.and_(
            pc.is_null(others["doubt"]),
            pc.is_in(others["path"], value_set=pa.array(repair.paths, pa.string())),
        )
        count = copy_files(self.table.store, others.filter(chosen))
        return _outcome(repair, "done" if count else "already-done", count=count)

    def _write_manifests(self, repair: Repair) -> RepairOutcome:
        snapshot = self._require_sound_base(self.table.snapshot())
        require_writable(snapshot, Operation.COMMIT)
        return _outcome(repair, "done", version=snapshot.version, count=write_manifests(snapshot))

    def _forget_overwritten_commits(self, repair: Repair) -> RepairOutcome:
        guards = guarded_commits(self.found.inventory.listing.guarded)
        paths = [p for guard in guards if guard.copy.path in repair.paths for p in guard.paths]
        self._require_deleted(self.table.store.delete_many(paths))
        return _outcome(repair, "done", count=len(repair.paths))

    def _presence(self, snapshot: Snapshot) -> Presence:
        """Lists the files again."""
        files = TableFiles(self.table.store)
        live = read_live_files(snapshot)
        return check_presence(files, live, Findings(), version=snapshot.version, kept_from_ms=0)

    def _remove_missing_files(self, repair: Repair) -> RepairOutcome:
        snapshot = self._require_sound_base(self.table.snapshot())
        rows = read_live_rows(snapshot, repair.paths)
        # Entries whose files exist now are kept.
        missing = self._presence(snapshot).missing
        rows = rows.filter(pc.is_in(rows["path"], value_set=missing["path"]))
        if not rows.num_rows:
            return _outcome(
                repair, "already-done", reason="the table no longer contains such an entry"
            )
        transaction = self._staged_removes(snapshot, removes_of(rows, data_change=True))
        return self._outcome_of_removal(repair, transaction.commit())

    def _remove_doubled_files(self, repair: Repair) -> RepairOutcome:
        assert self.found.snapshot is not None
        snapshot = self._require_sound_base(self.found.snapshot)
        rows = read_live_rows(snapshot, repair.paths)
        landed = commit_missing_removes(self.found, snapshot, rows, self._staged_removes)
        if not landed:
            return _outcome(repair, "already-done", reason="other writers have changed the files")
        count = sum(commit.num_removes for commit in landed)
        return replace(self._outcome_of_removal(repair, landed[-1]), count=count)

    def _staged_removes(self, snapshot: Snapshot, removes: pa.Table) -> Transaction:
        suspends = is_append_only(snapshot) and bool(pc.any(removes["dataChange"]).as_py())
        if suspends and not self.options.allow_append_only:
            raise RefusedError(
                "the table is append-only, and the commit would remove files with their rows",
                remedy="allow it explicitly, or set delta.appendOnly to false first",
            )
        size = pc.sum(removes["size"]).as_py() or 0
        parameters = {"numRemovedFiles": removes.num_rows, "numRemovedBytes": size}
        if suspends:
            parameters[SUSPENDED] = APPEND_ONLY
        transaction = self._transaction(snapshot, parameters)
        transaction.read_files(removes)
        transaction.stage_removes(removes)
        if suspends:
            transaction.stage_metadata(_with_append_only(snapshot, "false"))
        return transaction

    def _outcome_of_removal(self, repair: Repair, outcome: CommitOutcome) -> RepairOutcome:
        landed = self._require_landed(outcome)
        version = landed.version
        if is_suspended(landed.commit_info):
            version = self._set_append_only(self.table.snapshot())
        return _outcome(repair, "done", version=version, count=landed.num_removes)

    def _restore_append_only(self, repair: Repair) -> RepairOutcome:
        snapshot = self._require_sound_base(self.table.snapshot())
        if not is_suspended(snapshot.log.state.commit_info):
            return _outcome(repair, "already-done", reason="another writer has committed since")
        return _outcome(repair, "done", version=self._set_append_only(snapshot))

    def _set_append_only(self, snapshot: Snapshot) -> int:
        transaction = self._transaction(snapshot, {"restoredProperty": APPEND_ONLY})
        transaction.stage_metadata(_with_append_only(snapshot, "true"))
        return self._require_landed(transaction.commit()).version

    def _transaction(self, snapshot: Snapshot, parameters: dict[str, object]) -> Transaction:
        return Transaction(
            snapshot,
            OPERATION,
            parameters=parameters,
            # The files are missing, whatever other writers append in the meantime.
            isolation=IsolationLevel.SNAPSHOT_ISOLATION,
            writer=Writer(
                other_writers=self.options.other_writers,
                quiet=self.options.quiet,
                now=lambda: self.now,
                new_id=self.new_id,
                repairs=True,
            ),
        )

    def _require_landed(self, outcome: CommitOutcome) -> Landed:
        if isinstance(outcome, Conflicted):
            raise outcome.as_error(self.table.uri)
        if not isinstance(outcome, Landed):
            raise CommitConflictError(
                "other writers removed the same files first", remedy="run again to see what is left"
            )
        return outcome


def _kind(files: CheckpointFiles, snapshot: Snapshot) -> CheckpointKind:
    if files.kind is LogFileKind.UUID_CHECKPOINT:
        return "v2-json" if files.entries[0].file.encoding == "json" else "v2-parquet"
    return _classic_kind(snapshot)


def _classic_kind(snapshot: Snapshot) -> CheckpointKind:
    v2 = snapshot.properties.checkpoint_policy == "v2"
    return "v2-classic" if v2 and supports(snapshot.protocol, "v2Checkpoint") else "classic"


def _with_append_only(snapshot: Snapshot, value: str) -> Metadata:
    configuration = {**snapshot.metadata.configuration, APPEND_ONLY: value}
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
