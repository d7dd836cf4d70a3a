"""Metrics of runs through the API of OpenTelemetry, if it is installed.

Only the API is used: it does nothing until the user's process has an SDK with an exporter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from delta_maintenance import __version__
from delta_maintenance.metrics.definitions import OF_RUNS, PREFIX
from delta_maintenance.metrics.runs import measurements
from delta_maintenance.policies.models import RunResult

_UNITS = {"bytes": "By", "seconds": "s", "ratio": "1", "": ""}
_log = logging.getLogger(__name__)


def report(result: RunResult) -> None:
    """Reports a run. Raises nothing: metrics never fail a run."""
    try:
        add = _instruments()
        for each in measurements(result) if add else ():
            add[each.metric.name](each.value, {**each.labels})
    except Exception:
        _log.warning("the metrics of a run were not reported", exc_info=True)


@cache
def _instruments() -> Mapping[str, Callable[[float, dict[str, Any]], None]]:
    try:
        from opentelemetry.metrics import get_meter
    except ImportError:
        return {}
    meter = get_meter(PREFIX, __version__)
    found: dict[str, Callable[[float, dict[str, Any]], None]] = {}
    for metric in OF_RUNS:
        name, unit = metric.dotted, _UNITS[metric.unit]
        if metric.kind == "histogram":
            found[metric.name] = meter.create_histogram(name, unit, metric.help).record
        else:
            found[metric.name] = meter.create_counter(name, unit, metric.help).add
    return found
