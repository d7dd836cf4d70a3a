"""The `set-properties` operation: set and remove table properties, with the features they need.

A property that activates a table feature brings the feature, what it requires, and the metadata
that enabling it takes, all in one commit. Every other property changes itself and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.record import Record
from delta_maintenance.operations.table_change import (
    CutOff,
    Decision,
    PropertyChange,
    ProtocolVersions,
    Status,
    carry_out,
    decide_change,
    essence_of,
    require_changeable,
)
from delta_maintenance.protocol.feature_enablement import ChangeRequest, TableChange
from delta_maintenance.protocol.properties import TableProperties
from delta_maintenance.table.commit_gates import OtherWriters
from delta_maintenance.table.snapshot import Snapshot
from delta_maintenance.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPropertiesOptions(Record):
    """What is to be set and removed, in one commit."""

    properties: Mapping[str, str] = field(default_factory=dict)
    """`delta.feature.NAME=supported`, `delta.minReaderVersion` and `delta.minWriterVersion` ask for
    a protocol and are not stored."""
    remove: tuple[str, ...] = ()
    """Properties to be removed; one that is not there is no error."""
    other_writers: OtherWriters | None = None
    """Who else commits to the table; has to be said of tables on S3."""
    operation_id: str | None = None
    """Of the task: run again, it ends as done. By default a new one for each plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPropertiesPlan(Record):
    """What `apply` will change, and for whom."""

    table: str
    table_id: str | None
    version: int
    planned_at: datetime
    operation_id: str
    options: SetPropertiesOptions
    is_noop: bool
    """Whether `apply` would commit nothing."""
    reason: str
    """One sentence."""
    changes: tuple[PropertyChange, ...]
    """Those that follow from others included."""
    maps_columns: bool
    """Whether every column gets an id and a physical name."""
    protocol_before: ProtocolVersions
    protocol_after: ProtocolVersions
    added_features: tuple[str, ...]
    """Those that were implied before are not among them."""
    cut_off: tuple[CutOff, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPropertiesResult(Record):
    """What was changed."""

    table: str
    version: int
    """Of the commit; where none was made, the newest one that was looked at."""
    status: Status
    attempts: int = 0
    """Versions tried."""
    changes: tuple[PropertyChange, ...] = ()
    added_features: tuple[str, ...] = ()
    problem: str | None = None
    """Why there is a conflict, and what to do."""
    notes: tuple[str, ...] = ()


def plan(
    snapshot: Snapshot,
    options: SetPropertiesOptions,
    *,
    now: datetime,
    new_id: clock.NewId = clock.new_id,
) -> SetPropertiesPlan:
    """What the properties make of the latest snapshot. Writes nothing.

    `InvalidRequestError` for names and values that cannot be; `RefusedError` and
    `UnsupportedFeatureError` where this table cannot be so.
    """
    options = SetPropertiesOptions.from_json(asdict(options))
    operation_id = options.operation_id or new_id()
    decision = _decide(snapshot, options, operation_id)
    return SetPropertiesPlan(
        table=snapshot.table,
        table_id=snapshot.metadata.id,
        version=snapshot.version,
        planned_at=now,
        operation_id=operation_id,
        options=options,
        is_noop=decision.is_noop,
        reason=_reason(decision),
        changes=decision.changes,
        maps_columns=decision.changes_schema,
        protocol_before=decision.protocol_before,
        protocol_after=decision.protocol_after,
        added_features=decision.added_features,
        cut_off=decision.cut_off,
        notes=(*decision.notes, *snapshot.warnings),
    )


def apply(
    table: Table,
    plan: SetPropertiesPlan,
    *,
    now: Callable[[], datetime] = clock.now,
    new_id: clock.NewId = clock.new_id,
    sleep: Callable[[float], None] = time.sleep,
) -> SetPropertiesResult:
    """Commits what was planned, if the table would still be changed in that way.

    `RefusedError` where the table is another one, or must not be changed any more;
    `CommitUnknownError` where nobody can tell whether the commit was made.
    """
    if plan.is_noop:
        return SetPropertiesResult(
            table=plan.table, version=plan.version, status="nothing-to-do", notes=(plan.reason,)
        )
    try:
        ending = carry_out(
            table,
            lambda snapshot: _decide(snapshot, plan.options, plan.operation_id),
            table_id=plan.table_id,
            planned_version=plan.version,
            planned=essence_of(plan.protocol_before, plan.protocol_after, plan.changes),
            operation_id=plan.operation_id,
            other_writers=plan.options.other_writers,
            now=now,
            new_id=new_id,
            sleep=sleep,
        )
    except DeltaMaintenanceError as error:
        raise error.located(table=table.uri) from error.__cause__
    done = ending.status == "committed"
    return SetPropertiesResult(
        table=plan.table,
        version=ending.version,
        status=ending.status,
        attempts=ending.attempts,
        changes=plan.changes if done else (),
        added_features=plan.added_features if done else (),
        problem=ending.problem,
        notes=plan.notes,
    )


def _decide(snapshot: Snapshot, options: SetPropertiesOptions, operation_id: str) -> Decision:
    if not options.properties and not options.remove:
        raise InvalidRequestError(
            "no property is named", remedy="name properties to be set or to be removed"
        )
    try:
        request = ChangeRequest.of_properties(options.properties, options.remove)
    except DeltaMaintenanceError as error:
        raise error.located(table=snapshot.table) from None
    before = TableChange(protocol=snapshot.protocol, metadata=snapshot.metadata)
    decision = Decision(
        operation="SET TBLPROPERTIES" if options.properties else "UNSET TBLPROPERTIES",
        parameters=_parameters(options),
        before=before,
        after=decide_change(snapshot, request, operation_id=operation_id),
        notes=tuple(_notes(before, options)),
    )
    if not decision.is_noop:
        require_changeable(snapshot, decision, other_writers=options.other_writers)
    return decision


def _parameters(options: SetPropertiesOptions) -> dict[str, Any]:
    removed = {"properties": list(options.remove), "ifExists": True}
    if not options.properties:
        return removed
    parameters: dict[str, Any] = {"properties": dict(options.properties)}
    return parameters | ({"unset": list(options.remove)} if options.remove else {})


def _reason(decision: Decision) -> str:
    if decision.is_noop:
        return "the table has these properties already"
    if not decision.added_features:
        return "no table feature is needed"
    return f"the properties need {', '.join(decision.added_features)}"


def _notes(before: TableChange, options: SetPropertiesOptions) -> list[str]:
    configuration = before.metadata.configuration
    notes = [f"{name} is not set" for name in options.remove if name not in configuration]
    after = {name: value for name, value in configuration.items() if name not in options.remove}
    properties = TableProperties.from_configuration({**after, **options.properties})
    if properties.log_retention < properties.deleted_file_retention:
        notes.append(
            "delta.logRetentionDuration is shorter than delta.deletedFileRetentionDuration: "
            "clean-log will refuse"
        )
    return notes
