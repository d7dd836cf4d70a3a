"""Removes a table feature from a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance_airflow.operators.base import DeltaMaintenanceOperator, Prepared

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.operations.drop_feature import DropFeatureOptions, DropFeatureResult
    from delta_maintenance_airflow.progress import LoggedProgress


class DeltaDropFeatureOperator(DeltaMaintenanceOperator):
    """Switches a table feature off, takes its traces out of the table, and drops it.

    Versions that used it are kept from clients that would misread them, or with `truncate_history`
    cleaned away. That takes a second run once they are old enough: until then `status` is
    `waiting`, and `ready_at` says from when on another run can drop the feature. Running it again
    ends what an earlier run began.

    `status` is `dropped`, `waiting` or `nothing-to-do`. Takes the parameters of
    `DeltaMaintenanceOperator`, and:

    :param feature: the table feature, by its name in the protocol. (templated)

    `options` are fields of `DropFeatureOptions`: `truncate_history`, `files_per_commit`, `as_of`,
    `other_writers`, `operation_id`, `operation_since`.
    """

    operation = "drop-feature"
    subjects = ("feature",)
    names_commits = True
    template_fields: Sequence[str] = (*DeltaMaintenanceOperator.template_fields, "feature")

    def __init__(self, *, feature: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.feature = feature

    def read_options(self, given: Mapping[str, Any]) -> DropFeatureOptions:
        from delta_maintenance.operations import drop_feature

        return drop_feature.DropFeatureOptions.from_json(given)

    def prepare(
        self, table: Table, options: DropFeatureOptions, progress: LoggedProgress
    ) -> Prepared:
        from delta_maintenance.operations import drop_feature

        plan = drop_feature.plan(table.snapshot(), options, now=clock.now())
        return Prepared(plan, lambda: drop_feature.apply(table, plan, progress=progress))

    def summary(self, result: DropFeatureResult) -> str:
        if result.status == "waiting":
            when = "once history is old enough" if result.ready_at is None else result.ready_at
            return f"{result.feature} is switched off but not dropped yet: run again {when}"
        return f"{result.feature} {result.status} as version {result.version}"
