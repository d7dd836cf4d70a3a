"""The `checkpoint` operation: writes the state of a version, which readers load instead of the log.

A checkpoint changes no version and deletes nothing. It is verified before any reader can see it, so
a failure at any point leaves the table as it was.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from delta_maintenance import clock
from delta_maintenance.clock import NewId, epoch_millis
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError, RefusedError
from delta_maintenance.operations.checkpoint import (
    CheckpointOptions,
    CheckpointPlan,
    CheckpointResult,
    Incremental,
)
from delta_maintenance.operations.checkpoint.incremental import decide, foresee
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import size_text
from delta_maintenance.operations.core.published import note_unpublished, publish_up_to
from delta_maintenance.protocol.delta_log.file_names import LogFileKind, classic_checkpoint_name
from delta_maintenance.protocol.delta_log.sidecars import sidecar_size
from delta_maintenance.protocol.features.registry import Operation, supported_features
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.store_clock import passed_time
from delta_maintenance.table.writable import require_writable
from delta_maintenance.table.write.checkpoint_spec import (
    CheckpointSpec,
    ParquetStyle,
    WrittenKind,
    layout_of,
)
from delta_maintenance.table.write.checkpoint_writer import WrittenCheckpoint, write_checkpoint
from delta_maintenance.table.write.sidecar_reuse import NotReusableError, ReuseSurvey, survey_reuse
from delta_maintenance.table.write.sidecar_writer import SidecarEngine


def plan(
    snapshot: Snapshot,
    options: CheckpointOptions | None = None,
    context: RunContext | None = None,
    *,
    repairs: bool = False,
) -> CheckpointPlan:
    """Plans a checkpoint of this snapshot.

    Reads only the snapshot's small state. If sidecars might be taken over, it also reads the file
    actions of the commits since, and the filters of the sidecars. `repairs` is as in
    `require_writable`.

    Raises `UnsupportedFeatureError` or `RefusedError` if the table must not be written to, and
    `InvalidRequestError` for an option that does not apply.
    """
    context = context or RunContext()
    # Callers may ignore the types, and a misspelt kind must not write another kind.
    options = (options or CheckpointOptions()).validated()
    _zone(options.time_zone)
    _require_checkpointable(snapshot, repairs=repairs)
    kind = _kind(snapshot, options)
    chosen, engine_reason = _engine(snapshot, options, kind)
    existing = _existing(snapshot, options, kind)
    retention = snapshot.properties.set_transaction_retention
    tombstones_from, notes = _tombstones_from(snapshot, context.started)
    passed = passed_time(snapshot, context.started)
    planned = CheckpointPlan(
        table=snapshot.table,
        version=snapshot.version,
        kind=None if existing else kind,
        engine=chosen,
        reason=existing or f"{_why(snapshot, options)}; {engine_reason}",
        log_bytes=snapshot.log.size_bytes,
        commits_since_checkpoint=len(snapshot.log.segment.commits),
        actions_per_sidecar=_sidecar_size(snapshot, options, kind),
        time_zone=options.time_zone,
        tombstones_from=tombstones_from,
        transactions_from=None if retention is None else _before(passed, retention),
        notes=(*notes, *_notes(snapshot), *note_unpublished(snapshot)),
    )
    return (
        planned
        if existing
        else _with_decision(snapshot, planned, options.incremental, context.started)
    )


def _with_decision(
    snapshot: Snapshot, planned: CheckpointPlan, wanted: Incremental, now: datetime
) -> CheckpointPlan:
    if not planned.actions_per_sidecar:
        if wanted == "always":
            raise snapshot.refusal(
                f"a {planned.kind} checkpoint as planned has no sidecars to take over",
                "ask for a V2 kind with sidecars, or leave incremental at auto",
            )
        return planned
    spec = _spec(snapshot, planned)
    choose = foresee if planned.engine == "spark" else decide
    decision = choose(snapshot, spec, wanted, now=now)
    expected = decision.incremental_bytes if decision.incremental else decision.full_bytes
    return replace(
        planned,
        reason=f"{planned.reason}; {decision.reason}",
        incremental=decision.incremental,
        incremental_option=wanted,
        expected_bytes=expected,
        expected_full_bytes=decision.full_bytes,
        expected_incremental_bytes=decision.incremental_bytes,
    )


def _sidecar_size(snapshot: Snapshot, options: CheckpointOptions, kind: str) -> int:
    if kind == "classic" or not options.actions_per_sidecar:
        return 0
    actions = sum(entry.status.size for entry in snapshot.log.segment.tail) // _LOG_BYTES_PER_ACTION
    if snapshot.log.checkpoint is not None:
        actions += snapshot.log.checkpoint.row_count
    return sidecar_size(actions, at_most=options.actions_per_sidecar)


_LOG_BYTES_PER_ACTION = 600
"""The approximate size of a line with typical statistics."""


def apply(
    table: Table,
    plan: CheckpointPlan,
    context: RunContext | None = None,
    *,
    snapshot: Snapshot | None = None,
    repairs: bool = False,
) -> CheckpointResult:
    """Writes the planned checkpoint. Repeated and concurrent runs do no harm.

    If the version of a catalog-managed table is not published, it is published first.

    `engine` writes the sidecars of a plan for Spark; plans for the local engine need none.
    `snapshot` is the snapshot of the plan, if it is still in memory, which avoids opening it again.
    """
    context = context or RunContext()
    if plan.kind is None:
        return CheckpointResult(
            table=plan.table, version=plan.version, status="nothing-to-do", notes=(plan.reason,)
        )
    context.require_engine(plan)
    if snapshot is None or snapshot.version != plan.version:
        snapshot = table.snapshot(version=plan.version)
    try:
        _require_checkpointable(snapshot, repairs=repairs)
        publish_up_to(table, plan.version, context)
        written, reused, notes = _write(
            snapshot,
            plan,
            context.engine,
            context.new_id,
            context.progress,
            now=clock.as_clock(context.now)(),
        )
    except FileExistsError:
        return _already_there(table, plan)
    except DeltaMaintenanceError as error:
        raise error.locate(table=table.uri, version=plan.version) from error.__cause__
    return CheckpointResult(
        table=plan.table,
        version=plan.version,
        status="written",
        kind=plan.kind,
        engine=plan.engine,
        path=written.path,
        incremental=reused is not None,
        sidecars=len(written.sidecars),
        sidecars_taken_over=written.taken_over,
        bytes_written=written.bytes_written,
        actions=written.actions,
        num_files=written.tally.adds,
        num_tombstones=written.tally.tombstones,
        expired_tombstones=written.expired_tombstones,
        expired_tombstones_kept=reused.kept_expired if reused is not None else 0,
        hint_updated=written.hint_updated,
        notes=(*plan.notes, *notes),
    )


def _write(
    snapshot: Snapshot,
    plan: CheckpointPlan,
    engine: SidecarEngine | None,
    new_id: NewId,
    progress: Progress | None,
    *,
    now: datetime,
) -> tuple[WrittenCheckpoint, ReuseSurvey | None, tuple[str, ...]]:
    """Writes the checkpoint; returns it, the survey of the sidecars taken over, and notes."""
    write = partial(write_checkpoint, new_id=new_id, engine=engine, progress=progress)
    spec = _spec(snapshot, plan)
    notes: tuple[str, ...] = ()
    if plan.incremental:
        survey = survey_reuse if engine is None else engine.survey
        try:
            # Decide again: the log may be newer than the plan, an approval may have taken days, and
            # a plan for Spark has no survey.
            decision = decide(snapshot, spec, plan.incremental_option, now=now, survey=survey)
            if decision.survey is not None:
                return write(snapshot, spec, reuse=decision.survey), decision.survey, ()
            notes = (f"written {decision.reason}",)
        except NotReusableError as error:
            notes = (f"written in full, since {error}",)
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)
    while True:
        try:
            return write(snapshot, spec), None, notes
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)


def _spec(snapshot: Snapshot, plan: CheckpointPlan) -> CheckpointSpec:
    assert plan.kind is not None
    properties = snapshot.properties
    return CheckpointSpec(
        kind=plan.kind,
        actions_per_sidecar=plan.actions_per_sidecar,
        layout=layout_of(snapshot, zone=_zone(plan.time_zone)),
        style=ParquetStyle.of_table(
            properties.parquet_compression_codec, properties.parquet_format_version
        ),
        # A tombstone expires when its retention is exceeded, not when it is reached.
        deleted_after_ms=None
        if plan.tombstones_from is None
        else epoch_millis(plan.tombstones_from) - 1,
        txns_updated_after_ms=None
        if plan.transactions_from is None
        else epoch_millis(plan.transactions_from),
    )


def _require_checkpointable(snapshot: Snapshot, *, repairs: bool = False) -> None:
    require_writable(snapshot, Operation.CHECKPOINT, repairs=repairs)
    state = snapshot.log.state
    # A converted table has its high-water mark in the domain; the draft action is obsolete.
    if state.draft_high_water_mark is not None and row_tracking.DOMAIN not in state.domains:
        raise snapshot.refusal(
            "the log contains the rowIdHighWaterMark action of a 2023 draft, "
            "which a checkpoint would lose",
            "migrate the table to row tracking first",
        )
    if snapshot.log.segment.last_commit is None:
        raise snapshot.refusal(
            "the commit of this version no longer exists, so the version cannot be verified",
            "checkpoint a version whose commit is still in the log",
        )
    if _loses_statistics(snapshot) and (needed := _needing_statistics(snapshot)):
        raise snapshot.refusal(
            f"the table's properties exclude statistics from checkpoints, but {needed} needs them",
            "set delta.checkpoint.writeStatsAsJson to true",
        )


def require_possible(snapshot: Snapshot, options: CheckpointOptions) -> None:
    """Raises an error if this engine cannot write a checkpoint of this kind for the table.

    For callers whose Spark job makes the plan, because its driver takes long to start.
    """
    _require_checkpointable(snapshot)
    _engine(snapshot, options, _kind(snapshot, options))


def _kind(snapshot: Snapshot, options: CheckpointOptions) -> WrittenKind:
    supported = "v2Checkpoint" in supported_features(snapshot.protocol)
    if options.kind == "auto":
        policy = snapshot.properties.checkpoint_policy
        return "v2-json" if policy == "v2" and supported else "classic"
    if options.kind != "classic" and not supported:
        raise snapshot.refusal(
            "V2 checkpoints need the table feature v2Checkpoint, which the table does not support",
            "request the kind classic, or enable the feature first",
        )
    return options.kind


def _engine(
    snapshot: Snapshot, options: CheckpointOptions, kind: WrittenKind
) -> tuple[Literal["local", "spark"], str]:
    sidecars = kind != "classic" and options.actions_per_sidecar > 0
    size = snapshot.log.size_bytes
    if options.engine == "spark":
        if not sidecars:
            raise snapshot.refusal(
                f"Spark writes sidecars, but a {kind} checkpoint as planned has none",
                "request a V2 kind with sidecars, or the local engine",
            )
        return "spark", "Spark was asked for"
    if options.engine == "local":
        return "local", "the local engine was asked for"
    if sidecars and size >= options.auto_spark_bytes:
        return "spark", f"{size_text(size)} of log are more than one process should read"
    return "local", f"{size_text(size)} of log are little enough for one process"


def _why(snapshot: Snapshot, options: CheckpointOptions) -> str:
    if options.kind != "auto":
        return f"the kind {options.kind} was asked for"
    return f"the table's checkpoint policy is {snapshot.properties.checkpoint_policy}"


def _existing(snapshot: Snapshot, options: CheckpointOptions, kind: WrittenKind) -> str | None:
    checkpoint = snapshot.log.checkpoint
    if checkpoint is None or checkpoint.files.version != snapshot.version:
        return None
    uuid_named = checkpoint.files.kind is LogFileKind.UUID_CHECKPOINT
    if options.kind == "auto" or uuid_named == (kind in ("v2-json", "v2-parquet")):
        return f"{checkpoint.files.name} is a sound checkpoint of this version already"
    return None


def _tombstones_from(snapshot: Snapshot, now: datetime) -> tuple[datetime | None, tuple[str, ...]]:
    newest = max((entry.status.modified_ms for entry in snapshot.log.segment.commits), default=None)
    if newest is not None and newest > epoch_millis(now):
        return None, ("the newest commit is dated in the future, so no tombstone expires",)
    if any("deletedFileRetention" in problem for problem in snapshot.properties.problems):
        return None, ("the tombstone retention cannot be read, so no tombstone expires",)
    # A fast clock of this machine must not make them older.
    return _before(passed_time(snapshot, now), snapshot.properties.deleted_file_retention), ()


def _notes(snapshot: Snapshot) -> tuple[str, ...]:
    notes = [*snapshot.warnings, *snapshot.properties.problems]
    if snapshot.log.state.unknown_actions:
        names = ", ".join(sorted(snapshot.log.state.unknown_actions))
        notes.append(f"unknown actions are not part of the state and are left out: {names}")
    if _loses_statistics(snapshot):
        notes.append("the table's properties exclude statistics from checkpoints")
    if any(domain.draft_map for domain in snapshot.log.state.domains.values()):
        notes.append("domain configurations written as maps are kept as their JSON text")
    return tuple(notes)


def _loses_statistics(snapshot: Snapshot) -> bool:
    properties = snapshot.properties
    return not properties.write_stats_as_json and not properties.write_stats_as_struct


def _needing_statistics(snapshot: Snapshot) -> str | None:
    features = supported_features(snapshot.protocol)
    needing = (
        "rowTracking",
        "deletionVectors",
        "clustering",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
    )
    return next((name for name in needing if name in features), None)


def _already_there(table: Table, plan: CheckpointPlan) -> CheckpointResult:
    """Returns the result for a classic checkpoint of another writer, which must be readable."""
    snapshot = table.snapshot(version=plan.version)
    checkpoint = snapshot.log.checkpoint
    if checkpoint is None or checkpoint.files.version != plan.version:
        raise RefusedError(
            "there is a checkpoint file of this version that cannot be read",
            table=table.uri,
            version=plan.version,
            file=f"_delta_log/{classic_checkpoint_name(plan.version)}",
            remedy="run fsck --repair, which replaces a damaged checkpoint if the log before it is "
            "complete; or checkpoint the next version",
        )
    return CheckpointResult(
        table=plan.table,
        version=plan.version,
        status="already-there",
        path=checkpoint.files.entries[0].path,
        sidecars=len(checkpoint.sidecars),
        notes=("another writer's checkpoint of this version came first",),
    )


def _before(now: datetime, retention: timedelta) -> datetime | None:
    # Some tables set a retention longer than the calendar, to keep everything.
    try:
        return now - retention
    except OverflowError:
        return None


def _zone(name: str | None) -> ZoneInfo | None:
    try:
        return None if name is None else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRequestError(
            f"{name!r} is not a time zone", remedy="give an IANA name such as Europe/Berlin or UTC"
        ) from None
