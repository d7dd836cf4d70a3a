"""Every metric with its kind, its unit and its labels: the only place that describes them.

The names also make sense without labels, because plain StatsD drops them: what matters by itself,
such as failures, has a name of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from delta_maintenance.operations.health.models import TableHealth

PREFIX = "delta_maintenance"
Unit = Literal["", "bytes", "seconds", "ratio"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric."""

    name: str
    """Without the prefix, and without a unit of time."""
    kind: Literal["gauge", "counter", "histogram"] = "gauge"
    unit: Unit = ""
    help: str
    labels: tuple[str, ...] = ()

    @property
    def in_otel(self) -> str:
        """The name in Airflow and OpenTelemetry."""
        return f"{PREFIX}.{self.name}"

    @property
    def in_prometheus(self) -> str:
        """The name in OpenMetrics, without the suffix of a counter; exporters of OpenTelemetry
        form the same.
        """
        name = f"{PREFIX}_{self.name}"
        is_named = not self.unit or name.endswith(f"_{self.unit}")
        return name if is_named else f"{name}_{self.unit}"


MOST_TABLES = 2_000
"""The number of tables above which there are only sums over all tables."""

TABLES = Metric(
    name="tables",
    labels=("status",),
    help="The tables of the policy by their status on the health page.",
)
UNLISTED = Metric(
    name="unlisted_patterns",
    help="Patterns and parts of catalogs that cannot be listed, so that their tables are unknown.",
)
OLDEST_ASSESSMENT = Metric(
    name="oldest_assessment_timestamp",
    unit="seconds",
    help="The time of the oldest among the last assessments of all tables, in seconds since 1970.",
)
WITHOUT_SERIES = Metric(
    name="tables_without_series",
    help=f"Tables without series of their own: all of them if there are more than {MOST_TABLES}.",
)


@dataclass(frozen=True, slots=True)
class HealthMeasure:
    """A number in the health of tables."""

    of_all: Metric
    of_table: Metric
    number: Callable[[TableHealth], float | None]
    """None for a table to which it does not apply, which then has no series."""
    whole: Callable[[TableHealth], int] | None = None
    """For a share: the number whose share it is."""

    def sum_of(self, healths: Sequence[TableHealth]) -> float:
        """The number of all tables."""
        if self.whole is None:
            return sum(self.number(health) or 0 for health in healths)
        total = sum((self.number(health) or 0) * self.whole(health) for health in healths)
        return total / (sum(map(self.whole, healths)) or 1)


def _pair(
    name: str, text: str, all_tables: str = ", of all tables", *, unit: Unit = ""
) -> tuple[Metric, Metric]:
    return (
        Metric(name=name, unit=unit, help=f"{text}{all_tables}."),
        Metric(name=f"table_{name}", unit=unit, labels=("table",), help=f"{text}."),
    )


HEALTH_MEASURES = (
    HealthMeasure(
        *_pair(
            "replay_bytes",
            "Bytes of the log that a reader of the newest version opens",
            unit="bytes",
        ),
        lambda health: health.bytes_to_open,
    ),
    HealthMeasure(
        *_pair("commits_since_checkpoint", "Commits after the last checkpoint"),
        lambda health: health.commits_since_checkpoint,
    ),
    HealthMeasure(
        *_pair(
            "small_files_ratio",
            "The share of small files among the data files",
            " of all tables",
            unit="ratio",
        ),
        lambda health: health.small_file_share,
        lambda health: health.num_files,
    ),
    HealthMeasure(
        *_pair(
            "reclaimable_bytes",
            "Bytes that a vacuum may delete, as far as the log tells",
            unit="bytes",
        ),
        lambda health: health.reclaimable_bytes,
    ),
    HealthMeasure(
        *_pair("unpublished_commits", "Commits that the catalog ratified, not published yet"),
        lambda health: health.unpublished_commits,
    ),
    HealthMeasure(
        *_pair("unreported_commits", "Commits that the catalog does not know to be published"),
        lambda health: health.unreported_commits,
    ),
)
FAILING = Metric(
    name="failing_tables",
    help="Tables that failed or whose assessment is unreadable, without acknowledged failures.",
)
WAITING, TABLE_WAITING = _pair("waiting_plans", "Plans that wait for an approval")
TABLE_FAILING = Metric(
    name="table_failing",
    labels=("table",),
    help="1 if the table failed or its assessment is unreadable, and nobody acknowledged it.",
)
OF_TABLES = (
    *(TABLES, UNLISTED, OLDEST_ASSESSMENT, WITHOUT_SERIES),
    *(measure.of_all for measure in HEALTH_MEASURES),
    *(FAILING, WAITING),
    *(measure.of_table for measure in HEALTH_MEASURES),
    *(TABLE_FAILING, TABLE_WAITING),
)
"""The metrics of the last assessments, in the order of the endpoint."""

RUNS = Metric(
    name="runs", kind="counter", labels=("status",), help="Runs on one table, by their status."
)
FAILED_RUNS = Metric(
    name="failed_runs",
    kind="counter",
    help="Runs on one table that failed, were stopped by a limit or are incomplete.",
)
OPERATIONS = Metric(
    name="operations",
    kind="counter",
    labels=("operation", "outcome"),
    help="Operations in runs, with those that were only planned for an approval.",
)
FAILED_OPERATIONS = Metric(
    name="failed_operations",
    kind="counter",
    labels=("operation",),
    help="Operations that failed, were stopped by a limit or are incomplete.",
)
DURATION = Metric(
    name="operation_duration",
    kind="histogram",
    unit="seconds",
    labels=("operation",),
    help="The time that an operation took.",
)
DELETED = Metric(
    name="deleted_bytes",
    kind="counter",
    unit="bytes",
    labels=("operation",),
    help="Bytes of files that operations deleted.",
)
REQUESTS = Metric(
    name="store_requests",
    kind="counter",
    labels=("class",),
    help="Requests to the stores of tables: read, write, list, delete or other. Without those of "
    "Spark jobs, and of stores that do not count them.",
)
READ = Metric(
    name="store_read_bytes",
    kind="counter",
    unit="bytes",
    help="Bytes read from the stores of tables, with the same exceptions.",
)
WRITTEN = Metric(
    name="store_written_bytes",
    kind="counter",
    unit="bytes",
    help="Bytes written to the stores of tables, with the same exceptions.",
)

OF_RUNS = (
    *(RUNS, FAILED_RUNS, OPERATIONS, FAILED_OPERATIONS, DURATION),
    *(DELETED, REQUESTS, READ, WRITTEN),
)
"""The metrics of runs, which the process of a run reports."""
