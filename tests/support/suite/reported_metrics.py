"""The metrics that this process reports through OpenTelemetry, read with its SDK."""

from __future__ import annotations

from functools import cache
from typing import Any

from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader

DELTA = {Counter: AggregationTemporality.DELTA, Histogram: AggregationTemporality.DELTA}
Values = dict[str, dict[tuple[str, ...], Any]]


def new_reader() -> InMemoryMetricReader:
    """A reader of what is reported since the last reading."""
    return InMemoryMetricReader(preferred_temporality={**DELTA})


@cache
def _reader() -> InMemoryMetricReader:
    reader = new_reader()
    # A process can do this once.
    set_meter_provider(MeterProvider([reader]))
    return reader


def reported() -> Values:
    """What this process has reported since the last call."""
    return values_of(_reader())


def values_of(reader: InMemoryMetricReader) -> Values:
    """The values by name and by the values of the labels; of histograms the numbers of values."""
    data: Any = reader.get_metrics_data()
    found: Values = {}
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    labels = tuple(point.attributes[name] for name in sorted(point.attributes))
                    value = point.count if hasattr(point, "count") else point.value
                    found.setdefault(metric.name, {})[labels] = value
    return found
