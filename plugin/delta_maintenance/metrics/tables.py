"""The values of the metrics of tables, from what is known of each table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from delta_maintenance.metrics import definitions as metrics
from delta_maintenance.metrics.definitions import MOST_TABLES, Metric
from delta_maintenance.operations.core.rendering import printable
from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance.redaction import redact, redact_address

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
    for measured in _MEASURED:
        yield _single(measured.all, measured.sum_of(healths))
    yield _single(metrics.FAILING, sum(table.is_failing for table in tables))
    yield _single(metrics.WAITING, sum(table.waiting_plans for table in tables))
    if has_series:
        yield from _by_table(tables)


@dataclass(frozen=True, slots=True)
class _Measured:
    """A number in the health of tables."""

    all: Metric
    of_table: Metric
    of: Callable[[TableHealth], float]
    whole: Callable[[TableHealth], int] | None = None
    """For a share: the number whose share it is."""

    def sum_of(self, healths: Sequence[TableHealth]) -> float:
        if self.whole is None:
            return sum(map(self.of, healths))
        part = sum(self.of(health) * self.whole(health) for health in healths)
        return part / (sum(map(self.whole, healths)) or 1)


_MEASURED = (
    _Measured(metrics.REPLAY_BYTES, metrics.TABLE_REPLAY_BYTES, lambda h: h.bytes_to_open),
    _Measured(metrics.COMMITS, metrics.TABLE_COMMITS, lambda h: h.commits_since_checkpoint),
    _Measured(
        metrics.SMALL_FILES,
        metrics.TABLE_SMALL_FILES,
        lambda h: h.small_file_share,
        lambda h: h.num_files,
    ),
    _Measured(metrics.RECLAIMABLE, metrics.TABLE_RECLAIMABLE, lambda h: h.reclaimable_bytes),
)


def _by_table(tables: Sequence[TableFacts]) -> Iterator[Family]:
    labelled = _labelled(tables)
    healths = {label: table.health for label, table in labelled.items() if table.health is not None}
    for measured in _MEASURED:
        yield Family(
            measured.of_table, [(label, measured.of(health)) for label, health in healths.items()]
        )
    yield Family(
        metrics.TABLE_FAILING, [(label, int(table.is_failing)) for label, table in labelled.items()]
    )
    yield Family(
        metrics.TABLE_WAITING, [(label, table.waiting_plans) for label, table in labelled.items()]
    )


def _labelled(tables: Iterable[TableFacts]) -> Mapping[str, TableFacts]:
    """Returns the tables by label. Names that are equal without their secrets get numbers, because
    two samples of one series make the whole text invalid.
    """
    found: dict[str, TableFacts] = {}
    used: Counter[str] = Counter()
    for table in tables:
        label = name = printable(redact(redact_address(table.name)))[:_LONGEST]
        while label in found:
            used[name] += 1
            label = f"{name} ({used[name] + 1})"
        found[label] = table
    return found


def _single(metric: Metric, number: float) -> Family:
    return Family(metric, [(None, number)])
