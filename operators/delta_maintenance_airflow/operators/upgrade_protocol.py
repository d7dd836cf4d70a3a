"""Adds table features to the protocol of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import CommitConflictError, DeltaMaintenanceError
from delta_maintenance_airflow.operators.base import DeltaMaintenanceOperator, Prepared

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.operations.upgrade_protocol import (
        UpgradeProtocolOptions,
        UpgradeProtocolResult,
    )
    from delta_maintenance_airflow.progress import LoggedProgress


class DeltaProtocolUpgradeOperator(DeltaMaintenanceOperator):
    """Adds table features to the protocol of a table, in one commit, without losing an implied one.

    Changes the protocol and nothing else: a feature that is added is supported, not active. The
    plan says which clients are cut off; look at it with `plan_only` first.

    `status` is `committed`, `already-done` or `nothing-to-do`; a conflict fails the task, and may
    be retried. Takes the parameters of `DeltaMaintenanceOperator`, and:

    :param features: what the table is to support, by the names of the protocol; what they require
        comes along. (templated)

    `options` are fields of `UpgradeProtocolOptions`: `reader_version`, `writer_version`,
    `convert_draft`, `other_writers`, `operation_id`, `operation_since`.
    """

    operation = "upgrade-protocol"
    subjects = ("features",)
    names_commits = True
    template_fields: Sequence[str] = (*DeltaMaintenanceOperator.template_fields, "features")

    def __init__(self, *, features: Sequence[str] | str = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.features = features

    def read_options(self, given: Mapping[str, Any]) -> UpgradeProtocolOptions:
        from delta_maintenance.operations import upgrade_protocol

        return upgrade_protocol.UpgradeProtocolOptions.from_json(given)

    def prepare(
        self, table: Table, options: UpgradeProtocolOptions, progress: LoggedProgress
    ) -> Prepared:
        from delta_maintenance.operations import upgrade_protocol

        plan = upgrade_protocol.plan(table.snapshot(), options, now=clock.now())
        return Prepared(plan, lambda: upgrade_protocol.apply(table, plan))

    def summary(self, result: UpgradeProtocolResult) -> str:
        added = ", ".join(result.added_features) or "none"
        return f"{result.status} as version {result.version}, features added: {added}"

    def failure(self, document: Any) -> DeltaMaintenanceError | None:
        if getattr(document, "status", None) != "conflict":
            return None
        return CommitConflictError(document.problem)
