"""The `checksum` operation: writes missing version checksums.

Readers get protocol, metadata and counts from them without replaying the log, but many writers do
not write them. The operation adds no version and never changes an existing checksum.
"""

from __future__ import annotations

from delta_maintenance.errors import DeltaMaintenanceError, VersionNotFoundError
from delta_maintenance.operations.checksum import (
    ChecksumOptions,
    ChecksumPlan,
    ChecksumResult,
    VersionOutcome,
)
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    not_due,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.protocol.delta_log.file_names import LogFileKind, checksum_name
from delta_maintenance.protocol.delta_log.version_checksum import VersionChecksum, render_checksum
from delta_maintenance.protocol.features.registry import Operation
from delta_maintenance.storage.core.base import Put
from delta_maintenance.table.commit.checksums import computed_checksum
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.log_inventory import take_inventory
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.writable import require_writable


def plan(
    snapshot: Snapshot, options: ChecksumOptions | None = None, context: RunContext | None = None
) -> ChecksumPlan:
    """Plans which missing checksums to write. Lists the log and reads no files.

    Raises `UnsupportedFeatureError` if the table must not be written to.
    """
    context = context or RunContext()
    options = (options or ChecksumOptions()).validated()
    require_writable(snapshot, Operation.CHECKSUM)
    inventory = take_inventory(snapshot.log.store)
    there = {
        entry.file.version for entry in inventory.entries if entry.file.kind is LogFileKind.CHECKSUM
    }
    commits = inventory.listing.commits
    versions = {snapshot.version}
    if options.checkpoints:
        versions |= {files.version for files in inventory.listing.checkpoints}
    # A checksum contains the transaction ID of its commit, so it needs the commit.
    missing = tuple(
        version
        for version in sorted(versions - there)
        if version in commits and version <= snapshot.version
    )
    which = "the latest version" + (" and every checkpoint" if options.checkpoints else "")
    return ChecksumPlan(
        table=snapshot.table,
        version=snapshot.version,
        planned_at=context.started,
        versions=missing,
        reason=f"{count_text(len(missing), 'version')} without a checksum"
        if missing
        else f"{which} has a checksum already",
        log_bytes=snapshot.log.size_bytes,
        notes=snapshot.warnings,
    )


def apply(
    table: Table,
    plan: ChecksumPlan,
    context: RunContext | None = None,
    *,
    snapshot: Snapshot | None = None,
) -> ChecksumResult:
    """Writes the planned checksums that are still missing. Repeated runs do no harm.

    `snapshot` is the snapshot of the plan, if it is still in memory. Raises `RefusedError` if a
    count would be uncertain.
    """
    context = context or RunContext()
    if plan.is_noop:
        return ChecksumResult(
            table=plan.table,
            version=plan.version,
            status="nothing-to-do",
            notes=(plan.reason, *plan.notes),
        )
    done: list[VersionOutcome] = []
    for version in plan.versions:
        same_snapshot = snapshot if snapshot is not None and snapshot.version == version else None
        try:
            done.append(_write(table, version, same_snapshot))
        except VersionNotFoundError:
            done.append(VersionOutcome(version=version, status="gone"))
        except DeltaMaintenanceError as error:
            raise error.locate(table=table.uri, version=version) from error.__cause__
        if context.progress is not None:
            context.progress("checksums", len(done), len(plan.versions))
    return ChecksumResult(
        table=plan.table,
        version=plan.version,
        status="written" if any(one.status == "written" for one in done) else "already-there",
        versions=tuple(done),
        bytes_written=sum(one.bytes_written for one in done),
        notes=plan.notes,
    )


def _write(table: Table, version: int, snapshot: Snapshot | None) -> VersionOutcome:
    snapshot = snapshot or table.snapshot(version=version)
    require_writable(snapshot, Operation.CHECKSUM)
    checksum = _compute(snapshot)
    data = render_checksum(checksum)
    path = f"{LOG_DIRECTORY}/{checksum_name(version)}"
    written = table.store.put_if_absent(path, data) is Put.DONE
    return VersionOutcome(
        version=version,
        status="written" if written else "already-there",
        path=path,
        bytes_written=len(data) if written else 0,
        num_files=checksum.num_files or 0,
        total_size=checksum.table_size or 0,
    )


def _compute(snapshot: Snapshot) -> VersionChecksum:
    while True:
        try:
            return computed_checksum(snapshot)
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due while the latest version, or one with a checkpoint, has no checksum."""
    if not context.rule("checksum", bool):
        return None
    options = ChecksumOptions()
    planned = plan(context.snapshot, options, context=RunContext.at(context.now))
    if planned.is_noop:
        return not_due("checksum", planned.reason)
    return AssessedOperation(
        operation="checksum",
        status="due",
        reason=planned.reason,
        engine="local",
        options=options,
        bytes_to_read=planned.log_bytes * len(planned.versions),
        requests=context.health.files_to_open + len(planned.versions),
    )
