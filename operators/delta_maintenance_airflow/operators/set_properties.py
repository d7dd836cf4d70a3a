"""Sets and removes properties of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import CommitConflictError, DeltaMaintenanceError
from delta_maintenance_airflow.operators.base import DeltaMaintenanceOperator, Prepared

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.operations.set_properties import (
        SetPropertiesOptions,
        SetPropertiesResult,
    )
    from delta_maintenance_airflow.progress import LoggedProgress


class DeltaTablePropertiesOperator(DeltaMaintenanceOperator):
    """Sets and removes table properties in one commit, with the table features that they need.

    Names and values are checked first. A property that activates a feature brings it with it; any
    other one never touches the protocol.

    `status` is `committed`, `already-done` or `nothing-to-do`; a conflict fails the task, and may
    be retried. Takes the parameters of `DeltaMaintenanceOperator`, and:

    :param properties: the properties to set, with their values as text. (templated)
    :param remove: the properties to remove; one that is not there is no error. (templated)

    `options` are fields of `SetPropertiesOptions`: `other_writers`, `operation_id`,
    `operation_since`.
    """

    operation = "set-properties"
    subjects = ("properties", "remove")
    names_commits = True
    template_fields: Sequence[str] = (
        *DeltaMaintenanceOperator.template_fields,
        "properties",
        "remove",
    )
    template_fields_renderers = {"options": "json", "properties": "json"}

    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        remove: Sequence[str] | str = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.properties = properties
        self.remove = remove

    def read_options(self, given: Mapping[str, Any]) -> SetPropertiesOptions:
        from delta_maintenance.operations import set_properties

        return set_properties.SetPropertiesOptions.from_json(given)

    def prepare(
        self, table: Table, options: SetPropertiesOptions, progress: LoggedProgress
    ) -> Prepared:
        from delta_maintenance.operations import set_properties

        plan = set_properties.plan(table.snapshot(), options, now=clock.now())
        return Prepared(plan, lambda: set_properties.apply(table, plan))

    def summary(self, result: SetPropertiesResult) -> str:
        changed = ", ".join(change.name for change in result.changes) or "none"
        return f"{result.status} as version {result.version}, properties changed: {changed}"

    def failure(self, document: Any) -> DeltaMaintenanceError | None:
        if getattr(document, "status", None) != "conflict":
            return None
        return CommitConflictError(document.problem)
