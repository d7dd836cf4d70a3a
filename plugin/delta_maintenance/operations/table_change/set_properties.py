"""The `set-properties` operation: sets and removes properties, and adds the features they need.

A property that activates a table feature adds the feature, its required features, and the metadata
for enabling it, in one commit. Any other property changes nothing else.
"""

from __future__ import annotations

from typing import Any

from delta_maintenance.errors import InvalidRequestError, locating
from delta_maintenance.operations.set_properties import (
    SetPropertiesOptions,
    SetPropertiesPlan,
    SetPropertiesResult,
)
from delta_maintenance.operations.table_change.models import Decision
from delta_maintenance.operations.table_change.operation import (
    ChangeVerb,
    decide_change,
    require_changeable,
)
from delta_maintenance.protocol.changes.enable import ChangeRequest, TableChange
from delta_maintenance.protocol.features.properties import TableProperties
from delta_maintenance.table.read.snapshot import Snapshot


def _decide(snapshot: Snapshot, options: SetPropertiesOptions, operation_id: str) -> Decision:
    if not options.properties and not options.remove:
        raise InvalidRequestError(
            "no property is given", remedy="give --set NAME=VALUE or --unset NAME"
        )
    with locating(table=snapshot.table):
        request = ChangeRequest.of_properties(options.properties, options.remove)
    before = TableChange(protocol=snapshot.protocol, metadata=snapshot.metadata)
    after = decide_change(snapshot, request, operation_id=operation_id)
    decision = Decision(
        operation="SET TBLPROPERTIES" if options.properties else "UNSET TBLPROPERTIES",
        parameters=_parameters(options),
        before=before,
        after=after,
        notes=tuple(_notes(snapshot, options, after)),
    )
    if not decision.is_noop:
        require_changeable(snapshot, decision, writers=options)
    return decision


def _parameters(options: SetPropertiesOptions) -> dict[str, Any]:
    removed = {"properties": list(options.remove), "ifExists": True}
    if not options.properties:
        return removed
    parameters: dict[str, Any] = {"properties": dict(options.properties)}
    return parameters | ({"unset": list(options.remove)} if options.remove else {})


def _reason(_: Snapshot, decision: Decision) -> str:
    if decision.is_noop:
        return "the table already has these properties"
    if not decision.added_features:
        return "no table feature is needed"
    return f"the properties need {', '.join(decision.added_features)}"


def _notes(snapshot: Snapshot, options: SetPropertiesOptions, change: TableChange) -> list[str]:
    configuration = snapshot.metadata.configuration
    notes = [f"{name} is not set" for name in options.remove if name not in configuration]
    after = {name: value for name, value in configuration.items() if name not in options.remove}
    properties = TableProperties.from_configuration({**after, **options.properties})
    if properties.log_retention < properties.deleted_file_retention:
        notes.append(
            "delta.logRetentionDuration is shorter than delta.deletedFileRetentionDuration: "
            "clean-log will refuse"
        )
    if change.forbids_vectors is not None and snapshot.counts.num_files:
        notes.append(
            "existing data files are not changed: to make them readable for Iceberg, run REORG "
            "TABLE … APPLY (UPGRADE UNIFORM …) in Delta Spark"
        )
    return notes


_VERB = ChangeVerb(
    options_type=SetPropertiesOptions,
    plan_type=SetPropertiesPlan,
    result_type=SetPropertiesResult,
    decide=_decide,
    reason=_reason,
    planned=lambda _, decision: {"maps_columns": decision.changes_schema},
    done=lambda plan: {"changes": plan.changes},
)
plan = _VERB.plan
apply = _VERB.apply
