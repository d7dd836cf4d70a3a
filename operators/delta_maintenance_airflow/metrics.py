"""Metrics of runs through Airflow, which sends them where `[metrics]` of its configuration says."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from delta_maintenance_airflow.compat import Stats

if TYPE_CHECKING:
    from delta_maintenance.policies.models import RunResult

_log = logging.getLogger(__name__)


def report(result: RunResult) -> None:
    """Reports a run. Raises nothing: metrics never fail a task."""
    # Imported here because it loads PyArrow, which would slow down Dag parsing.
    from delta_maintenance.metrics.runs import measurements

    try:
        for measurement in measurements(result):
            if measurement.metric.kind == "histogram":
                span = timedelta(seconds=measurement.value)
                Stats.timing(measurement.metric.dotted, span, tags={**measurement.labels})
            else:
                Stats.incr(
                    measurement.metric.dotted, int(measurement.value), tags={**measurement.labels}
                )
    except Exception:
        _log.warning("the metrics of a run were not reported", exc_info=True)
