"""The record of the operation `keep-version`."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import Facts, count_text
from delta_maintenance.operations.core.operation import Effects, OperationRecord
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.keep_version.options import (
    KeepVersionOptions,
    KeepVersionPlan,
    KeepVersionResult,
)


def plan_facts(plan: KeepVersionPlan) -> Facts:
    """The version to keep or to release, and the other kept versions."""
    return {
        "table": plan.table,
        "version": plan.version,
        plan.action: str(plan.kept),
        "reason": plan.reason,
        "needed only by this version": count_text(plan.only_here, "data file")
        if plan.only_here
        else None,
        "other kept versions": [str(each) for each in plan.others],
        "notes": plan.notes,
    }


def result_facts(result: KeepVersionResult) -> Facts:
    """The kept or released version."""
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "kept version": str(result.kept),
        "notes": result.notes,
    }


RECORD = OperationRecord(
    name="keep-version",
    title="Keep a version",
    summary="keep the files and the log of a version under a name, whatever the retention",
    description=(
        "Keep one version of the table under a name. Vacuums and log clean-ups then keep its files "
        "and its log until the given time, or until it is released. The name is "
        "stored beside the log, so every run on the table finds it."
    ),
    options=KeepVersionOptions,
    plan=KeepVersionPlan,
    result=KeepVersionResult,
    code="delta_maintenance.operations.keep_version.operation",
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
