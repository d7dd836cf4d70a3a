"""The metrics of runs, and the way to report them through the API of OpenTelemetry, if it is
installed.

Only the API is used: it does nothing until the user's process has an SDK with an exporter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from delta_maintenance import __version__
from delta_maintenance.metrics import definitions as metrics
from delta_maintenance.metrics.definitions import OF_RUNS, PREFIX, Metric
from delta_maintenance.policies.measuring import Cost
from delta_maintenance.policies.models import OperationOutcome, RunResult

_REQUESTS = "requests_"
_UNITS = {"bytes": "By", "seconds": "s", "ratio": "1", "": ""}
_log = logging.getLogger(__name__)


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


def report(result: RunResult) -> None:
    """Reports a run. Raises nothing: metrics never fail a run."""
    try:
        add = _instruments()
        for measurement in measurements(result) if add else ():
            add[measurement.metric.name](measurement.value, {**measurement.labels})
    except Exception:
        _log.warning("the metrics of a run were not reported", exc_info=True)


@cache
def _instruments() -> Mapping[str, Callable[[float, dict[str, Any]], None]]:
    try:
        from opentelemetry.metrics import get_meter
    except ImportError:
        return {}
    meter = get_meter(PREFIX, __version__)
    instruments: dict[str, Callable[[float, dict[str, Any]], None]] = {}
    for metric in OF_RUNS:
        name, unit = metric.in_otel, _UNITS[metric.unit]
        if metric.kind == "histogram":
            instruments[metric.name] = meter.create_histogram(name, unit, metric.help).record
        else:
            instruments[metric.name] = meter.create_counter(name, unit, metric.help).add
    return instruments
