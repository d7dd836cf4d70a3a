"""The values of the metrics of tables, and their text in OpenMetrics 1.0: gauges are all that there
are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from delta_maintenance.metrics import definitions as metrics
from delta_maintenance.metrics.definitions import HEALTH_MEASURES, MOST_TABLES, Metric
from delta_maintenance.operations.core.documents import printable
from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance.redaction import redact, redact_address

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_LONGEST = 200
"""The most characters of a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What is known of one table."""

    name: str
    status: str
    assessed_at: datetime | None
    health: TableHealth | None
    is_failing: bool
    waiting_plans: int


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with its samples: the value of its label, if it has one, and a number."""

    metric: Metric
    samples: Sequence[tuple[str | None, float]]


def families(
    tables: Sequence[TableFacts], *, statuses: Iterable[str], unlisted: int
) -> Iterator[Family]:
    """Yields all metrics of tables. `statuses` are those that there can be."""
    counted = Counter(table.status for table in tables)
    assessed = [table.assessed_at for table in tables if table.assessed_at is not None]
    has_series = len(tables) <= MOST_TABLES
    yield Family(metrics.TABLES, [(status, counted[status]) for status in statuses])
    yield _single(metrics.UNLISTED, unlisted)
    if assessed:
        yield _single(metrics.OLDEST_ASSESSMENT, min(assessed).timestamp())
    yield _single(metrics.WITHOUT_SERIES, 0 if has_series else len(tables))
    healths = [table.health for table in tables if table.health is not None]
    for measure in HEALTH_MEASURES:
        yield _single(measure.of_all, measure.sum_of(healths))
    yield _single(metrics.FAILING, sum(table.is_failing for table in tables))
    yield _single(metrics.WAITING, sum(table.waiting_plans for table in tables))
    if has_series:
        yield from _by_table(tables)


def _by_table(tables: Sequence[TableFacts]) -> Iterator[Family]:
    labelled = _tables_by_label(tables)
    healths = {label: table.health for label, table in labelled.items() if table.health is not None}
    for measure in HEALTH_MEASURES:
        yield Family(
            measure.of_table,
            [
                (label, number)
                for label, health in healths.items()
                if (number := measure.number(health)) is not None
            ],
        )
    yield Family(
        metrics.TABLE_FAILING, [(label, int(table.is_failing)) for label, table in labelled.items()]
    )
    yield Family(
        metrics.TABLE_WAITING, [(label, table.waiting_plans) for label, table in labelled.items()]
    )


def _tables_by_label(tables: Iterable[TableFacts]) -> Mapping[str, TableFacts]:
    """Returns the tables by label. Names that are equal without their secrets get numbers, because
    two samples of one series make the whole text invalid.
    """
    labelled: dict[str, TableFacts] = {}
    used: Counter[str] = Counter()
    for table in tables:
        label = name = printable(redact(redact_address(table.name)))[:_LONGEST]
        while label in labelled:
            used[name] += 1
            label = f"{name} ({used[name] + 1})"
        labelled[label] = table
    return labelled


def _single(metric: Metric, number: float) -> Family:
    return Family(metric, [(None, number)])


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
    yield f"# HELP {name} {_with_escapes(metric.help)}"
    for label, number in family.samples:
        if label is None:
            yield f"{name} {number!r}"
        else:
            yield f'{name}{{{metric.labels[0]}="{_with_escapes(label)}"}} {number!r}'


def _with_escapes(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
