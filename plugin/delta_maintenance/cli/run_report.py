"""The report of `run` and `approve`: a line for each table that changed or waits, and the sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.output import print_lines, print_named, say
from delta_maintenance.operations.core.facts import count_text, size_text

if TYPE_CHECKING:
    from delta_maintenance.policies.acknowledgements import Acknowledgement
    from delta_maintenance.policies.models import AssessedOperation, OperationOutcome, RunResult

_NOTHING = "nothing to do"
_MOST_NAMES = 10


def print_results(
    results: Sequence[RunResult], acknowledged: Mapping[str, Acknowledgement], *, with_reasons: bool
) -> None:
    """Prints the tables that changed or wait, or with reasons each operation of each table, and
    the sums.
    """
    if with_reasons:
        print_named(
            ("table", "operation", "status", "seconds", "why"),
            [row for result in results for row in _rows(result, acknowledged)],
        )
    else:
        lines = [(result.name, text) for result in results if (text := _text(result))]
        if lines:
            print_lines(("table", "outcome"), lines)
        for line in _waiting_lines(results):
            print(line)
    for line in _sums(results, acknowledged):
        print(line)


def report_failures(
    failures: Iterable[tuple[str, str, str | None, int]],
    acknowledged: Mapping[str, Acknowledgement] | None = None,
) -> int:
    """Reports failed tables, those with the same cause in one line. Returns their common exit
    status, or 1 if they differ.

    A failure is the name of a table, its address, the problem and the exit status. Acknowledged
    ones do not count.
    """
    statuses: set[int] = set()
    causes: list[tuple[str, str, str]] = []
    for name, uri, problem, status in failures:
        text = problem or ""
        if (acknowledgement := (acknowledged or {}).get(name)) is not None:
            say(f"{name}: {acknowledgement}: {text}")
            continue
        statuses.add(status)
        causes.append((name, uri, text))
    say_by_cause(causes)
    return 0 if not statuses else statuses.pop() if len(statuses) == 1 else 1


def say_by_cause(problems: Iterable[tuple[str, str, str]]) -> None:
    """Prints the problems of tables to stderr, those with the same cause in one line, with the text
    of the first one. A problem is the name of the table, its address and the text.
    """
    from delta_maintenance.policies.acknowledgements import Failure

    causes: dict[str, list[tuple[str, str]]] = {}
    for name, uri, text in problems:
        cause = Failure.of("", text.replace(uri or name, "").replace(name, "")).kind
        causes.setdefault(cause, []).append((name, text))
    for tables in causes.values():
        names = [name for name, _ in tables]
        more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
        text = f"{', '.join(names[:_MOST_NAMES])}{more}: {tables[0][1]}"
        say(text if len(names) == 1 else f"{len(names):,} tables, {text}")


def _text(result: RunResult) -> str:
    return "; ".join(_outcome_text(outcome) for outcome in result.outcomes if not outcome.is_idle)


def _outcome_text(outcome: OperationOutcome) -> str:
    if outcome.reports_corruption:
        return f"{outcome.operation} reports corruption"
    status = {"done": "", "needs-approval": "needs approval"}.get(outcome.status, outcome.status)
    name = f"{outcome.operation} {status}".rstrip()
    details = ", ".join(_details(outcome))
    return f"{name} ({details})" if details else name


def _details(outcome: OperationOutcome) -> Iterator[str]:
    """How many files there were before and after, and how many are deleted."""
    planned, done = outcome.amounts
    amounts = planned if outcome.status in ("needs-approval", "planned") else done
    before, after = outcome.before, outcome.after
    if before and after and after.files < before.files:
        yield f"{count_text(before.files, 'file')} became {after.files:,}"
    if amounts.deleted_files:
        yield f"{count_text(amounts.deleted_files, 'file')}, {size_text(amounts.deleted_bytes)}"


def _waiting_lines(results: Sequence[RunResult]) -> Iterator[str]:
    """One line for each cause that blocks operations, with their names, and one for each operation
    that the budget defers, with the reason of the first table.
    """
    waiting: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for result in results:
        for operation in _waiting(result):
            cause = operation.reason.rpartition(", but ")[2]
            key = cause if operation.status == "blocked" else operation.operation
            causes = waiting.setdefault((operation.status, key), {})
            causes[result.name, operation.operation] = cause.removeprefix("deferred ")
    for (state, _), causes in waiting.items():
        tables, operations = (list(dict.fromkeys(names)) for names in zip(*causes, strict=True))
        where = tables[0] if len(tables) == 1 else f"{len(tables):,} tables, such as {tables[0]}"
        yield f"{state} on {where}: {', '.join(operations)}: {next(iter(causes.values()))}"


def _waiting(result: RunResult) -> Sequence[AssessedOperation]:
    assessment = result.newest_assessment
    operations = assessment.operations if assessment is not None else ()
    return [operation for operation in operations if operation.status in ("blocked", "deferred")]


def _status(result: RunResult, acknowledged: Mapping[str, Acknowledgement]) -> str:
    if result.name in acknowledged:
        return "acknowledged"
    if result.status in ("done", "planned", "nothing-due") and not _text(result):
        return _NOTHING
    return result.shown_status.replace("-", " ")


def _rows(
    result: RunResult, acknowledged: Mapping[str, Acknowledgement]
) -> Iterator[tuple[object, ...]]:
    for number, outcome in enumerate(result.outcomes):
        # A problem has a line of its own below the table.
        reason = "" if outcome.reason == result.problem else outcome.reason
        yield (
            result.name if number == 0 else "",
            outcome.operation,
            _NOTHING if outcome.is_idle else outcome.status.replace("-", " "),
            f"{outcome.seconds:.1f}",
            "; ".join(filter(None, (*_details(outcome), reason))),
        )
    if not result.outcomes:
        yield result.name, "", _status(result, acknowledged), "", ""
    for operation in _waiting(result):
        yield "", operation.operation, operation.status, "", operation.reason


def _sums(
    results: Sequence[RunResult], acknowledged: Mapping[str, Acknowledgement]
) -> Iterator[str]:
    """The outcomes of all tables, what was gained, and what waits for an approval."""
    from delta_maintenance.operations.core.freed import unfreed_texts
    from delta_maintenance.policies.approval import pending_of, waiting_texts
    from delta_maintenance.policies.entries import PastRun, gain_texts

    statuses = Counter(_status(result, acknowledged) for result in results)
    counts = ", ".join(f"{number:,} {status}" for status, number in statuses.most_common())
    yield f"{count_text(len(results), 'table')}: {counts}"
    runs, now = [PastRun.of(result, None) for result in results], clock.now()
    if gains := gain_texts(runs, now=now):
        yield "; ".join(gains)
    yield from unfreed_texts([freed for run in runs for freed in run.freed], now)
    yield from waiting_texts([plan for result in results for plan in pending_of(result)])
