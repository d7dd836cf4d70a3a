"""The text format of OpenMetrics 1.0, for gauges, which are all that the endpoint has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from delta_maintenance.metrics.tables import Family

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def render(families: Iterable[Family]) -> bytes:
    """Returns the text, with the line at its end by which readers know that it is complete."""
    lines = [line for family in families for line in _lines(family)]
    return "\n".join([*lines, "# EOF\n"]).encode()


def _lines(family: Family) -> Iterator[str]:
    metric = family.metric
    name = metric.in_prometheus
    yield f"# TYPE {name} {metric.kind}"
    if metric.unit:
        yield f"# UNIT {name} {metric.unit}"
    yield f"# HELP {name} {_escaped(metric.help)}"
    for label, number in family.samples:
        if label is None:
            yield f"{name} {number!r}"
        else:
            yield f'{name}{{{metric.labels[0]}="{_escaped(label)}"}} {number!r}'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
