"""Adds table features to the protocol of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core.facts import Facts
from delta_maintenance.operations.core.flags import option, policy_option
from delta_maintenance.operations.core.operation import Effects, OperationRecord, PolicyPart
from delta_maintenance.operations.table_change.documents import (
    DECISIVE,
    OUTCOMES,
    ChangeOptions,
    ChangePlan,
    ChangeResult,
    ProtocolVersions,
    change_facts,
    commits_of,
    conclusion,
    planned_amounts,
    protocol_text,
    raises_protocol,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.table_change.upgrade_protocol import apply, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeProtocolOptions(ChangeOptions):
    """The features that the table should support."""

    features: tuple[str, ...] = policy_option(
        (),
        "table features, by their names in the protocol; required features are added as well",
        name="--feature",
        metavar="NAME",
        group="common",
        example="deletionVectors",
    )
    reader_version: int | None = option(
        None, "support all features that reader version N implies", group="common"
    )
    writer_version: int | None = option(
        None, "support all features that writer version N implies", group="common"
    )
    convert_draft: bool = option(
        False,
        "convert the remains of a 2023 draft of row tracking: the high-water mark moves "
        "into its domain, and maps that represent the text of a domain become text",
        group="common",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeProtocolPlan(ChangePlan):
    """The planned change, and the clients that it concerns.

    The only properties that change are those of a draft that contradict their present meaning.
    """

    options: UpgradeProtocolOptions
    converted_domains: tuple[str, ...] = ()
    """Domains that are written again because they have the format of a draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeProtocolResult(ChangeResult):
    """The change that was made."""

    protocol: ProtocolVersions | None = None
    """The new protocol; None if nothing was committed."""
    converted_domains: tuple[str, ...] = ()


def plan_facts(plan: UpgradeProtocolPlan) -> Facts:
    """The protocol before and after, and the clients that lose access."""
    return change_facts(plan) | {"converted domains": plan.converted_domains}


def result_facts(result: UpgradeProtocolResult) -> Facts:
    """The present protocol."""
    return {
        "protocol": None if result.protocol is None else protocol_text(result.protocol),
        "added features": result.added_features,
        "converted domains": result.converted_domains,
        "problem": result.problem,
    }


RECORD = OperationRecord(
    name="upgrade-protocol",
    title="Upgrade the protocol",
    purpose="table",
    summary="add table features to the protocol",
    description=(
        "Add table features and the features that they require to the protocol of a table, in "
        "one commit. All supported features stay supported, including implied ones, and no "
        "property changes: to activate a feature, set its property with set-properties."
    ),
    prints="Prints the result; --dry-run prints the plan and the clients that would lose access.",
    options=UpgradeProtocolOptions,
    plan=UpgradeProtocolPlan,
    result=UpgradeProtocolResult,
    code="delta_maintenance.operations.table_change.upgrade_protocol",
    outcomes=OUTCOMES,
    effects=Effects(commits=True, changes_table=True),
    runs_on_corrupt=True,
    requires=("change-metadata",),
    subjects=("features",),
    policy=PolicyPart(
        key="protocol",
        rule="delta_maintenance.operations.table_change.policy:ProtocolRule",
        description="Features that the table must support, and its properties.",
        due="delta_maintenance.operations.table_change.policy:due_upgrade_protocol",
    ),
    decisive=DECISIVE,
    asks_for_approval=raises_protocol,
    planned_amounts=planned_amounts,
    done_amounts=lambda result: commits_of(result.status),
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)

__getattr__, __dir__ = lazy_names(
    __name__, f"{__package__}.table_change", upgrade_protocol="apply plan"
)
