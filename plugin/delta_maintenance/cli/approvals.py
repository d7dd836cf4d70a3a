"""Approvals on the command line: by the name of an operation, or plan by plan in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delta_maintenance.cli.arguments import ArgumentParser
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.registry import policy_operations

if TYPE_CHECKING:
    from delta_maintenance.policies.approval import ApprovedPlan
    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.models import OperationOutcome, RunResult

_MOST_BYTES = 256 << 20
"""The maximum size of a file with plans; a table takes some kilobytes."""


def add_approvals(parser: ArgumentParser) -> None:
    """Adds the options to a verb."""
    parser.add_argument(
        "--approve",
        metavar="OPERATION",
        action="append",
        default=[],
        choices=[record.name for record in policy_operations()],
        help="approve this operation, whatever its plan; repeatable",
    )
    parser.add_argument(
        "--approve-from",
        metavar="FILE",
        help="approve the plans in this file, each for its table, its options and its effect: the "
        "output of --json, without the plans that are not approved",
    )


NamedPlans = Mapping[str, Sequence["ApprovedPlan"]]
"""Plans by the name of their table."""


def read_plans(file: str | None) -> NamedPlans:
    """Reads the plans of `--approve-from`.

    `InvalidRequestError` names the file if it is not a list of RunResults with plans.
    """
    from delta_maintenance.policies.approval import ApprovedPlan

    found: dict[str, list[ApprovedPlan]] = {}
    for result in _results(file) if file is not None else ():
        try:
            plans = [ApprovedPlan.of(each) for each in result.outcomes if _has_plan(each)]
        except InvalidRequestError as error:
            raise _wrong(str(file), f"{result.name}: {error.problem}") from None
        found.setdefault(result.name, []).extend(plans)
    return found


def plans_by_table(
    plans: NamedPlans, tables: Sequence[PolicyTable], *, file: str | None
) -> NamedPlans:
    """Returns the plans for the tables of a run, by the name that each table has now.

    A plan for none of their addresses goes to the table of the same name, whose run states the
    difference. `InvalidRequestError` if no plan is for any of the tables.
    """
    found: dict[str, list[ApprovedPlan]] = {}
    for name, each in plans.items():
        for plan in each:
            at = [table.name for table in tables if plan.is_for(table.uri)]
            for table in at or [table.name for table in tables if table.name == name]:
                found.setdefault(table, []).append(plan)
    if any(plans.values()) and not found:
        names = ", ".join([*plans][:3])
        raise _wrong(str(file), f"its plans are for {names}, which are no tables of this run")
    return found


def _has_plan(outcome: OperationOutcome) -> bool:
    return outcome.status in ("needs-approval", "planned") and outcome.result is not None


def _results(file: str) -> list[RunResult]:
    from delta_maintenance.policies.models import RunResult

    try:
        if os.stat(file).st_size > _MOST_BYTES:
            raise _wrong(file, f"it is longer than {_MOST_BYTES:,} bytes")
        with open(file, "rb") as opened:
            values = json.load(opened)
    except OSError as error:
        raise _wrong(file, f"it cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise _wrong(file, "it is not JSON") from None
    if not isinstance(values, list):
        raise _wrong(file, "it is not a list")
    try:
        return [_read(RunResult, value) for value in values]
    except InvalidRequestError as error:
        raise _wrong(file, error.problem) from None


def _read(kind: type[RunResult], value: Any) -> RunResult:
    # The plans of a dry run are in the outcomes; the assessments are long and not needed.
    short = {**value, "before": None, "after": None} if isinstance(value, dict) else value
    return kind.from_json(short)


def _wrong(file: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"no plans can be approved from this file: {problem[:300]}",
        file=file,
        remedy="give what `delta-maintenance run CONFIG --dry-run --json` printed",
    )
