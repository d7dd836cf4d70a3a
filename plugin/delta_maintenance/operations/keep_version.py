"""Keeps a version readable under a name, until a time or until it is released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts, count_text
from delta_maintenance.operations.core.flags import Flag, option
from delta_maintenance.operations.core.operation import Effects, OperationRecord
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.record import Count, Instant, Record
from delta_maintenance.operations.holds.models import KeptVersion

if TYPE_CHECKING:
    from delta_maintenance.operations.holds.keep_version import apply, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepVersionOptions(Record):
    """The version to keep, or the name to release."""

    name: Annotated[
        str,
        Flag(
            "a name for the version, such as audit-2026: letters, digits, dots, underscores "
            "and hyphens",
            positional=True,
            example="audit-2026",
        ),
    ]
    """At most 64 characters, beginning with a letter."""
    keep: Count | None = option(
        None,
        "the version to keep, by default the latest",
        name="--version",
        metavar="N",
        group="common",
    )
    at: Instant | None = option(
        None,
        "keep the version that was current at this time (ISO 8601, with a time zone)",
        metavar="TIME",
        group="common",
    )
    until: Instant | None = option(
        None,
        "keep it until this time (ISO 8601, with a time zone), by default until it is released",
        metavar="TIME",
        group="common",
    )
    why: str | None = option(
        None, "the purpose, for plans and reports", metavar="TEXT", group="common"
    )
    release: bool = option(
        False,
        "no longer keep the version with this name; deletes no file of the table",
        group="common",
    )


Action = Literal["keep", "change", "release", "none"]
Status = Literal["kept", "released", "nothing-to-do"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepVersionPlan(Plan):
    """The kept version to add, to change or to release."""

    planned_at: Instant
    options: KeepVersionOptions
    action: Action
    kept: KeptVersion
    """The kept version as it will be, or the one to release."""
    others: tuple[KeptVersion, ...]
    """The other kept versions in the log."""
    only_here: int
    """The data files of the version that the latest version does not need."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would change nothing."""
        return self.action == "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepVersionResult(Result):
    """The kept or released version."""

    status: Status
    kept: KeptVersion


def plan_facts(plan: KeepVersionPlan) -> Facts:
    """The version to keep or to release, and the other kept versions."""
    return {
        plan.action: str(plan.kept),
        "reason": plan.reason,
        "needed only by this version": count_text(plan.only_here, "data file")
        if plan.only_here
        else None,
        "other kept versions": [str(kept_version) for kept_version in plan.others],
    }


def result_facts(result: KeepVersionResult) -> Facts:
    """The kept or released version."""
    return {"kept version": str(result.kept)}


RECORD = OperationRecord(
    name="keep-version",
    title="Keep a version",
    purpose="log",
    summary="keep the files and the log of a version under a name",
    description=(
        "Keep one version of the table under a name. Vacuums and log clean-ups then keep its files "
        "and its log until the given time, or until it is released. The name is "
        "stored beside the log, so every run on the table finds it."
    ),
    options=KeepVersionOptions,
    plan=KeepVersionPlan,
    result=KeepVersionResult,
    code="delta_maintenance.operations.holds.keep_version",
    outcomes={
        "kept": Outcome.DONE,
        "released": Outcome.DONE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(adds_files=True),
    runs_on_corrupt=True,
    requires=("clean-log",),
    subjects=("name",),
    decisive=("action", "kept"),
    asks_for_approval=lambda plan: plan.action == "release",
    plan_facts=plan_facts,
    result_facts=result_facts,
)

__getattr__, __dir__ = lazy_names(__name__, f"{__package__}.holds", keep_version="apply plan")
