"""The commits of a row ID backfill, made one by one beside those of other writers.

There are three phases, each of which leaves a valid table, so that a later run can continue an
interrupted one. First, the table gets support for row tracking. Then its files are committed again
in batches, with row IDs. Finally, row tracking is enabled, on top of a version whose live files all
have row IDs. The content of a batch follows from the files without row IDs, never from the memory
of a run, so no row ID is assigned twice.

By the operation name, other writers recognise that such a commit changes nothing else.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance import clock
from delta_maintenance.errors import CommitConflictError, CorruptTableError, RefusedError
from delta_maintenance.operations.backfill_row_ids import BackfillRowIdsPlan
from delta_maintenance.operations.backfill_row_ids.batches import counted, files_without_row_ids
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.protocol.actions.model import DomainMetadata
from delta_maintenance.protocol.changes.row_tracking_support import (
    RowTrackingSources,
    SupportChange,
    enable_row_tracking,
    support_change,
)
from delta_maintenance.protocol.columns import hash_texts
from delta_maintenance.protocol.commit.conflicts import BACKFILL, highest_row_id
from delta_maintenance.protocol.commit.staged import StagedActions
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.protocol.row_tracking.backfill import RowIdFindings, lacks_row_ids
from delta_maintenance.protocol.row_tracking.row_ids import RowTrackingState
from delta_maintenance.table.commit.beside_writers import (
    BesideWriters,
    TouchedFiles,
    commit_beside_writers,
    restart_reading,
)
from delta_maintenance.table.commit.concurrent_commits import Advance, advance
from delta_maintenance.table.commit.outcome import AlreadyDone, Landed, require_committable
from delta_maintenance.table.commit.transaction import RowIds, Transaction, Writer
from delta_maintenance.table.data.footers import RowCounter, count_rows
from delta_maintenance.table.read.log_view import VanishedFileError
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

T = TypeVar("T")

SUPPORT, ENABLE = "support", "enable"
"""The first and the last commit of a backfill."""


class RowIdBackfill:
    """One run on one table. Counts its work, whether it succeeds or fails."""

    def __init__(self, table: Table, plan: BackfillRowIdsPlan, context: RunContext) -> None:
        self._table = table
        self._plan = plan
        self._options = plan.options
        self._context = context
        self._count_rows: RowCounter = context.engine or partial(count_rows, table.store)
        # The highest row ID of any file, in case the table's mark is too low.
        self._highest_row_id = plan.high_water_mark
        self.commits = 0
        self.batches = 0
        self.files = 0
        """Files that got row IDs in this run."""
        self.problems: dict[str, None] = {}
        """The distinct reasons why files were skipped."""

    def require_countable(self, snapshot: Snapshot) -> None:
        """Raises `RefusedError` if the rows of a file without row IDs cannot be counted."""
        problems = restart_reading(self._table, snapshot, self._uncountable)
        if problems:
            raise RefusedError(
                f"the rows of {count_text(len(problems), 'file')} cannot be counted, so that row "
                f"tracking could not be enabled in the end: {problems[0]}",
                table=snapshot.table,
                version=snapshot.version,
                remedy="restore missing and damaged files, and rewrite the others with an engine "
                "that reads them; nothing was committed",
            )

    def support(
        self, snapshot: Snapshot, *, convert_draft: bool, lift_suspension: bool
    ) -> Snapshot:
        """Adds support for row tracking, and returns a version that has it.

        `RefusedError` as in `support_change`.
        """

        def move_on() -> Snapshot:
            nonlocal snapshot
            try:
                snapshot = advance(snapshot).snapshot
            except VanishedFileError:
                snapshot = self._table.snapshot()
            return snapshot

        def stage(base: Snapshot) -> Transaction | None:
            try:
                change = support_change(
                    sources_of(base), convert_draft=convert_draft, lift_suspension=lift_suspension
                )
            except RefusedError as error:
                raise error.locate(table=base.table, version=base.version) from None
            return None if change is None else self._stage_support(base, change)

        outcome = commit_beside_writers(snapshot.table, move_on, stage)
        if outcome is not None:
            self.commits += isinstance(outcome, Landed)
            # Do not override a writer that disabled row tracking since then.
            self.require_support(move_on())
        return snapshot

    def require_support(self, snapshot: Snapshot) -> RowTrackingState:
        """Returns whether the table has row tracking enabled, or only supports it.

        `CommitConflictError` if it does neither: another writer disabled or suspended it.
        """
        state = sources_of(snapshot).state
        if state in (RowTrackingState.SUPPORTED, RowTrackingState.ENABLED):
            return state
        raise CommitConflictError(
            f"row tracking is {state.value} after a commit of another writer",
            table=snapshot.table,
            version=snapshot.version,
            remedy="decide whether the table should have it, then run again",
        )

    def fill(self, snapshot: Snapshot) -> None:
        """Assigns row IDs to every file of the snapshot that has none and is still live.

        Files whose rows cannot be counted are skipped and listed in `problems`. Later changes to a
        file by other writers win. Raises `CommitConflictError` if another writer disabled row
        tracking.
        """
        restart_reading(self._table, snapshot, self._fill)

    def enable(self, snapshot: Snapshot, findings: RowIdFindings) -> int | None:
        """Enables row tracking, names its columns, and raises a high-water mark that is too low;
        `findings` are those of the snapshot, and no file lacks row IDs.

        Returns the version of the commit; None if other writers have added files without row IDs
        since, so that nothing was committed.
        """
        is_lacking = False

        def follow(moved: Advance) -> None:
            nonlocal is_lacking
            for commit in moved.commits:
                is_lacking |= pc.any(lacks_row_ids(commit.adds)).as_py() or False

        def stage(snapshot: Snapshot, _: TouchedFiles) -> Transaction | AlreadyDone | None:
            if is_lacking:
                return None
            self.require_support(snapshot)
            sources = sources_of(snapshot)
            mark = findings.mark_above(sources.high_water_mark)
            raises_mark = mark > sources.high_water_mark
            if sources.is_enabled and not raises_mark:
                return AlreadyDone(version=snapshot.version)
            properties = {} if sources.is_enabled else {row_tracking.ENABLED_PROPERTY: "true"}
            txn = self._transaction(
                snapshot,
                BACKFILL if sources.is_enabled else "SET TBLPROPERTIES",
                parameters={"properties": _json(properties)},
                what=ENABLE,
                planned_version=self._plan.version,
            )
            if not sources.is_enabled:
                metadata = enable_row_tracking(snapshot.metadata, new_id=self._context.new_id)
                txn.stage_metadata(metadata)
            if raises_mark:
                configuration = row_tracking.render_domain_configuration(mark)
                txn.stage_domain(row_tracking.DOMAIN, configuration)
            # Concurrent commits must be checked before this is true.
            tags = {} if sources.is_enabled else {"rowTrackingEnablementOnly": "true"}
            txn.stage_info(metrics={}, tags=tags)
            return txn

        outcome = BesideWriters(snapshot, follow=follow).commit(stage, only_next=True)
        self.commits += isinstance(outcome, Landed)
        return None if outcome is None else outcome.version

    def _stage_support(self, snapshot: Snapshot, change: SupportChange) -> Transaction:
        if change.protocol is None and change.unset:
            operation, parameters = "UNSET TBLPROPERTIES", {"properties": _json(change.unset)}
        else:
            protocol = change.protocol or snapshot.protocol
            operation, parameters = ("UPGRADE PROTOCOL", {"newProtocol": _json(protocol.to_json())})
        txn = self._transaction(
            snapshot,
            operation,
            parameters=parameters,
            what=SUPPORT,
            planned_version=self._plan.version,
        )
        if change.protocol is not None:
            txn.stage_protocol(change.protocol, drops=change.drops)
        if change.metadata is not None:
            txn.stage_metadata(change.metadata)
        if change.high_water_mark is not None:
            mark = max(change.high_water_mark, self._highest_row_id)
            txn.stage_domain(row_tracking.DOMAIN, row_tracking.render_domain_configuration(mark))
        return txn

    def _uncountable(self, snapshot: Snapshot) -> list[str]:
        problems: dict[str, None] = {}
        for batch in files_without_row_ids(
            snapshot, files_per_batch=self._options.files_per_commit
        ):
            problems |= dict.fromkeys(counted(batch, self._count_rows)[1])
        return list(problems)

    def _fill(self, snapshot: Snapshot) -> None:
        beside = BesideWriters(snapshot, follow=self._follow)
        stream = files_without_row_ids(snapshot, files_per_batch=self._options.files_per_commit)
        for batch in stream:
            files, problems = counted(batch, self._count_rows)
            self.problems |= dict.fromkeys(problems)
            landed = beside.commit_files(files, self._stage_batch)
            if landed is not None:
                self.commits += 1
                self.batches += 1
                self.files += landed.num_adds
                self._tell()

    def _follow(self, moved: Advance) -> None:
        # Some writers leave the mark below the row IDs that they assigned.
        given = map(highest_row_id, moved.commits)
        self._highest_row_id = max([self._highest_row_id, *given])
        self.require_support(moved.snapshot)

    def _stage_batch(self, base: Snapshot, files: pa.Table) -> Transaction:
        digest = int(np.bitwise_xor.reduce(hash_texts(pa.concat_arrays(files["path"].chunks))))
        txn = self._transaction(
            base,
            BACKFILL,
            parameters={"batchId": self.batches},
            # The same files have the same ID; another batch of this run has another one.
            what=f"batch-{digest:016x}",
            row_ids=RowIds(highest=self._highest_row_id),
        )
        txn.read_files(files)
        txn.stage_adds(files)
        txn.stage_info(metrics={"numFiles": files.num_rows})
        return txn

    def _transaction(
        self, snapshot: Snapshot, operation: str, *, what: str, **options: Any
    ) -> Transaction:
        task = self._options.operation_id
        return Transaction(
            snapshot,
            operation,
            operation_id=None if task is None else commit_id(task, what),
            writer=self._context.writer(self._options),
            **options,
        )

    def _tell(self) -> None:
        if self._context.progress is not None:
            self._context.progress("files", self.files, self._plan.files_to_backfill)


def commit_id(operation_id: str, what: str) -> str:
    """Returns the ID of one commit of a task: `SUPPORT`, `ENABLE` or a batch."""
    return f"{operation_id}/{what}"


def planned_support(
    snapshot: Snapshot, *, convert_draft: bool, lift_suspension: bool
) -> SupportChange | None:
    """Returns the change that adds support for row tracking, or None if the table supports it.

    Raises `UnsupportedFeatureError` or `RefusedError`, from the snapshot alone, for a table that a
    backfill must not write to. The setting for other writers is checked at the first commit.
    """
    try:
        change = support_change(
            sources_of(snapshot), convert_draft=convert_draft, lift_suspension=lift_suspension
        )
        later = enable_row_tracking(snapshot.metadata, new_id=clock.new_id)
    except RefusedError as error:
        raise error.locate(table=snapshot.table, version=snapshot.version) from None
    domain = DomainMetadata(domain=row_tracking.DOMAIN, configuration="")
    writes_mark = change is not None and change.high_water_mark is not None
    require_committable(
        snapshot,
        StagedActions(
            protocol=None if change is None else change.protocol,
            metadata=later,
            domains=(domain,) if writes_mark else (),
        ),
        drops=() if change is None else change.drops,
        writers=Writer(other_writers="none"),
    )
    return change


def require_unique(snapshot: Snapshot, findings: RowIdFindings) -> None:
    """Raises `CorruptTableError` if two live files share a row ID, because enabled row tracking
    guarantees unique IDs.
    """
    if findings.shared is not None:
        raise CorruptTableError(
            f"the row ID {findings.shared} belongs to two live files",
            table=snapshot.table,
            version=snapshot.version,
            remedy="drop the table feature rowTracking, which removes all row IDs, and start again",
        )


def sources_of(snapshot: Snapshot) -> RowTrackingSources:
    """The parts of the snapshot that row tracking depends on."""
    state = snapshot.log.state
    domain = state.domains.get(row_tracking.DOMAIN)
    return RowTrackingSources(
        protocol=state.protocol,
        metadata=state.metadata,
        domain=domain,
        # If the domain exists, it contains the mark.
        draft_high_water_mark=state.draft_high_water_mark if domain is None else None,
    )


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
