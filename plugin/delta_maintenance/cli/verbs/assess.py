"""`assess`: the operations that are due on the tables of a policy, with reasons and costs."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from typing import TYPE_CHECKING

from delta_maintenance.cli.arguments import Verbs
from delta_maintenance.cli.output import print_json, print_lines, print_named, print_table, warn
from delta_maintenance.cli.policy_tables import PolicyTables, add_policy_verb
from delta_maintenance.cli.run_budget import RunBudget, print_choice
from delta_maintenance.cli.run_report import report_failures, say_by_cause
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.facts import count_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from delta_maintenance.policies.acknowledgements import Acknowledgement
    from delta_maintenance.policies.models import AssessedOperation, Assessment

_WAITS, _THEY_WAIT = "needs approval", "need approval"
_CHECK = "to check"
"""Due by the calendar: a run looks whether there is work."""
_STATUSES = ("due", _WAITS, _CHECK, "blocked", "failed", "acknowledged", "nothing to do")


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_policy_verb(
        verbs,
        "assess",
        summary="which maintenance is due on the tables, and why",
        description=(
            "Compare each table with the policy: which operations are due, in which order, why, "
            "and their cost and benefit. Reads logs but no data, and changes nothing. A "
            "table or a pattern that cannot be read does not prevent the assessment of the others."
        ),
        json_help="print the Assessments as one JSON document, a list; with --budget the Selection",
        example="assess delta_maintenance.yaml --state state/",
    )
    parser.add_argument("--due", action="store_true", help="only tables with due operations")
    parser.add_argument(
        "--failed", action="store_true", help="only tables that could not be assessed"
    )
    parser.add_argument(
        "--reasons", action="store_true", help="a line for each operation, with its reason"
    )
    parser.add_argument(
        "--group-by",
        choices=("owner", "reason"),
        help="instead of the tables, how many each owner has in which state, or for how many each "
        "operation is in which state and why",
    )
    parser.add_argument(
        "--budget",
        action="store_true",
        help="instead of the tables, what the budget lets run, in order, and why the rest waits",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the assessments."""
    if arguments.json and arguments.group_by is not None:
        raise InvalidRequestError("--json has all assessments", remedy="omit --group-by")
    tables = PolicyTables(arguments)
    warn(tables.found.warnings())
    budget = RunBudget(tables) if arguments.budget else None
    assessments = tables.assessments() if budget is None else budget.assessments
    failed = [assessment for assessment in assessments if assessment.status == "failed"]
    acknowledged = tables.acknowledgements([(assessment, None) for assessment in failed])
    chosen = _chosen(assessments, arguments)
    if budget is not None:
        print_choice(budget, as_json=arguments.json)
    elif arguments.json:
        print_json([assessment.to_json() for assessment in chosen])
    elif arguments.group_by is not None:
        print_table(*_groups(chosen, acknowledged, by=arguments.group_by))
    elif arguments.reasons:
        print_named(
            ("table", "version", "operation", "status", "why", "brings"),
            [row for assessment in chosen for row in _rows(assessment, acknowledged)],
        )
    else:
        print_lines(
            ("table", "status", "due"), [_line(assessment, acknowledged) for assessment in chosen]
        )
    if not arguments.json and budget is None:
        hint = "" if arguments.reasons or arguments.group_by else "; see why with --reasons"
        print(f"{_sums(assessments, acknowledged)}{hint}")
        if tables.session.policy.budget is not None:
            print("the budget limits what a run does of this; see the order with --budget")
        say_by_cause((each.name, each.uri, note) for each in chosen for note in each.notes)
    return report_failures(
        ((a.name, a.uri, a.problem, a.exit_status) for a in failed), acknowledged
    )


def _chosen(
    assessments: Sequence[Assessment], arguments: argparse.Namespace
) -> Sequence[Assessment]:
    if not (arguments.due or arguments.failed):
        return assessments
    return [
        assessment
        for assessment in assessments
        if (arguments.due and assessment.due)
        or (arguments.failed and assessment.status == "failed")
    ]


def _status(assessment: Assessment, acknowledged: Mapping[str, Acknowledgement]) -> str:
    if assessment.name in acknowledged:
        return "acknowledged"
    states = {_state(operation) for operation in assessment.due}
    if states:
        return next(state for state in ("due", _WAITS, _CHECK) if state in states)
    return "nothing to do" if assessment.status == "nothing-due" else assessment.status


def _line(
    assessment: Assessment, acknowledged: Mapping[str, Acknowledgement]
) -> tuple[str, str, str]:
    """The name, the status, and every operation that is not up to date with what it brings."""
    operation_texts = []
    for operation in assessment.operations:
        if operation.status == "not-due":
            continue
        state = _state(operation)
        status_texts = () if state in ("due", _status(assessment, acknowledged)) else (state,)
        details = "; ".join(filter(None, [_gain(operation), *status_texts]))
        operation_texts.append(
            f"{operation.operation} ({details})" if details else operation.operation
        )
    if not operation_texts and assessment.next_due_at is not None:
        operation_texts.append(f"until {assessment.next_due_at:%F %R} UTC")
    if assessment.held:
        operation_texts.append(f"held by {', '.join(hold.holder for hold in assessment.held)}")
    return assessment.name, _status(assessment, acknowledged), ", ".join(operation_texts)


def _groups(
    assessments: Sequence[Assessment], acknowledged: Mapping[str, Acknowledgement], *, by: str
) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
    if by == "owner":
        owned = Counter(
            (assessment.owner or "no owner", _status(assessment, acknowledged))
            for assessment in assessments
        )
        owners = dict.fromkeys(owner for owner, _ in owned)
        return ("owner", *_STATUSES), [
            (owner, *(owned[owner, status] or "" for status in _STATUSES)) for owner in owners
        ]
    groups: dict[tuple[str, str, str], list[str]] = {}
    for assessment in assessments:
        for assessed in assessment.operations:
            if assessed.status != "not-due":
                key = (assessed.operation, _state(assessed), _kind_of_reason(assessed.reason))
                groups.setdefault(key, []).append(assessed.reason)
    return ("operation", "status", "tables", "why"), [
        (name, status, len(reasons), ("such as " if len({*reasons}) > 1 else "") + reasons[0])
        for (name, status, _), reasons in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]


def _state(operation: AssessedOperation) -> str:
    return operation.state.replace("-", " ")


def _kind_of_reason(reason: str) -> str:
    """Returns a reason without its amounts, by which those of several tables are compared."""
    return re.sub(r"\d[\d.,:TZ-]*(?: \w+)?", "N", reason)


def _sums(assessments: Sequence[Assessment], acknowledged: Mapping[str, Acknowledgement]) -> str:
    numbers = Counter(_status(assessment, acknowledged) for assessment in assessments)
    counts = [
        f"{numbers[status]:,} {_THEY_WAIT if status == _WAITS else status}"
        for status in _STATUSES
        if numbers[status]
    ]
    return f"{count_text(len(assessments), 'table')}: {', '.join(counts)}"


def _rows(
    assessment: Assessment, acknowledged: Mapping[str, Acknowledgement]
) -> Iterator[tuple[object, ...]]:
    version = assessment.health.version if assessment.health is not None else None
    operations = [operation for operation in assessment.operations if operation.status != "not-due"]
    for number, operation in enumerate(operations):
        yield (
            assessment.name if number == 0 else "",
            version if number == 0 else None,
            operation.operation,
            _state(operation),
            operation.reason,
            _gain(operation),
        )
    if not operations:
        reason = (
            "" if assessment.next_due_at is None else f"until {assessment.next_due_at:%F %R} UTC"
        )
        yield (
            assessment.name,
            version,
            "",
            _status(assessment, acknowledged),
            # A problem has a line of its own below the table.
            "" if assessment.problem is not None else reason,
            "",
        )
    for holder in assessment.held:
        yield "", None, "", "held", f"by {holder}", ""


def _gain(operation: AssessedOperation) -> str:
    if operation.commits_to_replay is not None:
        before, after = operation.commits_to_replay, operation.commits_to_replay_after
        return f"{before} → {after} log files to replay"
    if operation.reclaims_files:
        files = count_text(operation.reclaims_files, "file")
        return f"{files}, {size_text(operation.reclaims_bytes)}"
    return ""
