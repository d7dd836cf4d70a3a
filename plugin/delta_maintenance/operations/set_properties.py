"""Sets and removes table properties, with the features they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core.facts import Facts
from delta_maintenance.operations.core.flags import Flag, option
from delta_maintenance.operations.core.operation import Effects, OperationRecord, PolicyPart
from delta_maintenance.operations.table_change.documents import (
    DECISIVE,
    OUTCOMES,
    ChangeOptions,
    ChangePlan,
    ChangeResult,
    PropertyChange,
    change_facts,
    commits_of,
    conclusion,
    planned_amounts,
    raises_protocol,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.table_change.set_properties import apply, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPropertiesOptions(ChangeOptions):
    """The properties to set and to remove, in one commit."""

    properties: Annotated[
        Mapping[str, str],
        Flag(
            "table properties and their values, such as delta.enableDeletionVectors=true",
            name="--set",
            in_policy=True,
            group="common",
        ),
    ] = field(default_factory=dict)
    """`delta.feature.NAME=supported`, `delta.minReaderVersion` and `delta.minWriterVersion` request
    a protocol and are not stored."""
    remove: tuple[str, ...] = option(
        (),
        "properties to remove; a missing property is not an error",
        name="--unset",
        metavar="K",
        group="common",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPropertiesPlan(ChangePlan):
    """The planned change, and the clients that it concerns."""

    options: SetPropertiesOptions
    maps_columns: bool
    """Whether every column gets an ID and a physical name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPropertiesResult(ChangeResult):
    """The change that was made."""

    changes: tuple[PropertyChange, ...] = ()


def plan_facts(plan: SetPropertiesPlan) -> Facts:
    """The properties, the protocol that they need, and the clients that lose access."""
    mapped = "every column gets an ID and a physical name" if plan.maps_columns else None
    return change_facts(plan) | {"columns": mapped}


def result_facts(result: SetPropertiesResult) -> Facts:
    """The present values of the properties."""
    return {
        "properties": {
            change.name: change.after if change.after is not None else "(removed)"
            for change in result.changes
        },
        "added features": result.added_features,
        "problem": result.problem,
    }


RECORD = OperationRecord(
    name="set-properties",
    title="Set table properties",
    purpose="table",
    summary="set and remove properties, with their features",
    description=(
        "Set and remove properties of a table in one commit. Names and values are checked "
        "first. A property that activates a table feature adds the feature as well; other "
        "properties never change the protocol."
    ),
    prints="Prints the result; --dry-run prints the plan and the clients that would lose access.",
    options=SetPropertiesOptions,
    plan=SetPropertiesPlan,
    result=SetPropertiesResult,
    code="delta_maintenance.operations.table_change.set_properties",
    outcomes=OUTCOMES,
    effects=Effects(commits=True, changes_table=True),
    runs_on_corrupt=True,
    requires=("change-metadata",),
    subjects=("properties", "remove"),
    policy=PolicyPart(
        key="protocol",
        rule="delta_maintenance.operations.table_change.policy:ProtocolRule",
        description="Features that the table must support, and its properties.",
        due="delta_maintenance.operations.table_change.policy:due_set_properties",
    ),
    decisive=(*DECISIVE, "maps_columns"),
    asks_for_approval=raises_protocol,
    planned_amounts=planned_amounts,
    done_amounts=lambda result: commits_of(result.status),
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)

__getattr__, __dir__ = lazy_names(
    __name__, f"{__package__}.table_change", set_properties="apply plan"
)
