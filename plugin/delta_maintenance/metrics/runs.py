"""The values of the metrics of runs, from the result of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from delta_maintenance.metrics import definitions as metrics
from delta_maintenance.metrics.definitions import Metric
from delta_maintenance.policies.measuring import Cost
from delta_maintenance.policies.models import OperationOutcome, RunResult

_REQUESTS = "requests_"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What to add to a counter, or a value for a histogram."""

    metric: Metric
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def measurements(result: RunResult) -> Iterator[Measurement]:
    """Yields what a run reports; nothing for a run that was only to plan.

    No label has the name of a table, so that the number of series is small.
    """
    if result.status == "planned":
        return
    yield Measurement(metrics.RUNS, 1, {"status": result.status})
    if result.exit_status:
        yield Measurement(metrics.FAILED_RUNS, 1)
    for outcome in result.outcomes:
        yield from _of_operation(outcome)
        if outcome.cost is not None:
            yield from _of_cost(outcome.cost)


def _of_operation(outcome: OperationOutcome) -> Iterator[Measurement]:
    operation = {"operation": outcome.operation}
    yield Measurement(metrics.OPERATIONS, 1, {**operation, "outcome": outcome.status})
    if outcome.exit_status:
        yield Measurement(metrics.FAILED_OPERATIONS, 1, operation)
    if outcome.was_done:
        yield Measurement(metrics.DURATION, outcome.seconds, operation)
    _, done = outcome.amounts
    if done.deleted_bytes:
        yield Measurement(metrics.DELETED, done.deleted_bytes, operation)


def _of_cost(cost: Cost) -> Iterator[Measurement]:
    for name, number in cost.to_json().items():
        if name.startswith(_REQUESTS) and number:
            label = {"class": name.removeprefix(_REQUESTS)}
            yield Measurement(metrics.REQUESTS, number, label)
    if cost.bytes_read:
        yield Measurement(metrics.READ, cost.bytes_read)
    if cost.bytes_written:
        yield Measurement(metrics.WRITTEN, cost.bytes_written)
