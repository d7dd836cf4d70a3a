"""The charts: of the log of one table, and of the last 90 days of one table or of all. Drawn as SVG
on the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from delta_maintenance import clock
from delta_maintenance.ledger.trends import DAYS, Trends
from delta_maintenance_airflow.health_page import formats
from delta_maintenance_airflow.health_page.drawing import (
    Chart,
    byte_ticks,
    drawn,
    library,
    moment,
    point,
    settings,
    time_ticks,
    whole_ticks,
    xy,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.health.models import CommitPoint, SizeBucket, TableHealth

Numbers = npt.NDArray[np.float64]
Text = Callable[[float], str]
_WEEK = 7


def charts(health: TableHealth) -> tuple[Chart, ...] | None:
    """The charts of a table; None if Pygal is not installed."""
    try:
        library()
    except ImportError:
        return None
    drawn_charts = []
    if len(health.commits) > 1:
        drawn_charts += [_replay(health), _commits(health)]
    elif health.commits:
        drawn_charts.append(_only_commit(health.commits[0]))
    if len(health.file_sizes) > 1:
        drawn_charts.append(_sizes(health))
    elif health.file_sizes:
        drawn_charts.append(_only_size(health))
    return tuple(drawn_charts)


def replayed_commits(health: TableHealth) -> list[int | None]:
    """The number of commits that a reader of each version replays; None before the first known
    checkpoint."""
    commits = health.commits
    checkpoint_version: int | None = None
    if commits and commits[0].version == 0:
        checkpoint_version = -1
    elif commits and (health.checkpoint_version or 0) < commits[0].version:
        checkpoint_version = health.checkpoint_version
    counts: list[int | None] = []
    for commit in commits:
        if commit.is_checkpoint:
            checkpoint_version = commit.version
        counts.append(None if checkpoint_version is None else commit.version - checkpoint_version)
    return counts


def _replay(health: TableHealth) -> Chart:
    counts = list(zip(health.commits, replayed_commits(health), strict=True))
    known_counts = [(commit, count) for commit, count in counts if count is not None]
    chart = xy("Commits to replay", x_title="Version", y_title="Commits")
    chart.x_value_formatter = chart.value_formatter = lambda value: f"{value:,.0f}"
    chart.x_labels = whole_ticks(health.commits[0].version, health.commits[-1].version)
    chart.y_labels = whole_ticks(0, max([count for _, count in known_counts], default=0))
    chart.add(
        "Commits to replay",
        [point(commit.version, count, _of(commit)) for commit, count in known_counts],
        fill=True,
        show_dots=False,
    )
    for name, marked in (
        ("Checkpoint", [pair for pair in known_counts if pair[0].is_checkpoint]),
        ("Log compaction", [pair for pair in known_counts if pair[0].is_compaction]),
    ):
        points = [point(commit.version, count, _of(commit)) for commit, count in marked]
        chart.add(name, points, stroke=False, dots_size=3.5)
    rows = [
        (f"{commit.version:,}", formats.count(count), clock.minute_text(commit.timestamp))
        for commit, count in reversed(known_counts[-20:])
    ]
    return Chart(
        "Commits to replay",
        "Commits that a reader of each version replays after its checkpoint",
        drawn(chart),
        ("Version", "Commits", "Committed"),
        tuple(rows),
    )


def _commits(health: TableHealth) -> Chart:
    chart = xy("Bytes of commits over time", x_title="Time (UTC)", y_title="Bytes", stroke=False)
    chart.logarithmic = True
    commits = health.commits
    times = [commit.timestamp.timestamp() for commit in commits]
    earliest, latest = min(times), max(times)
    chart.x_value_formatter = lambda value: moment(value, latest - earliest)
    chart.value_formatter = lambda value: formats.size(int(value))
    chart.x_labels = time_ticks(earliest, latest)
    sizes = [max(1, commit.bytes) for commit in commits]
    chart.y_labels = byte_ticks(min(sizes), max(sizes))
    kinds: dict[str, list[CommitPoint]] = {
        "Commit": [c for c in commits if not c.is_checkpoint and not c.is_compaction],
        "With checkpoint": [c for c in commits if c.is_checkpoint],
        "With log compaction": [c for c in commits if c.is_compaction and not c.is_checkpoint],
    }
    for name, commits_of_kind in kinds.items():
        points = [point(c.timestamp.timestamp(), max(1, c.bytes), _of(c)) for c in commits_of_kind]
        chart.add(name, points, dots_size=2 if name == "Commit" else 3.5)
    rows = [
        (f"{commit.version:,}", formats.size(commit.bytes), clock.minute_text(commit.timestamp))
        for commit in reversed(commits[-20:])
    ]
    return Chart(
        "Commits over time",
        "Bytes of each commit, with checkpoints and log compactions",
        drawn(chart),
        ("Version", "Bytes", "Committed"),
        tuple(rows),
    )


def _sizes(health: TableHealth) -> Chart:
    chart = library().StackedBar(**settings("Files by size"), x_title="From this size")
    chart.show_legend = False
    buckets = list(_without_gaps(health.file_sizes))
    chart.value_formatter = lambda value: f"{value:,.0f}"
    chart.y_labels = whole_ticks(0, max(bucket.files for bucket in buckets))
    chart.x_labels = [formats.size(bucket.from_bytes) for bucket in buckets]
    chart.truncate_label = -1
    chart.x_label_rotation = 40 if len(buckets) > 8 else 0
    for name, small in (("Small files", True), ("Other files", False)):
        chart.add(
            name,
            [
                {"value": bucket.files, "label": formats.size(bucket.bytes)}
                if (bucket.from_bytes < health.small_file_bytes) is small
                else None
                for bucket in buckets
            ],
        )
    rows = [
        (formats.size(bucket.from_bytes), formats.count(bucket.files), formats.size(bucket.bytes))
        for bucket in health.file_sizes
    ]
    return Chart(
        "File sizes",
        f"Live data files; those below {formats.size(health.small_file_bytes)} are small",
        drawn(chart),
        ("From this size", "Files", "Bytes"),
        tuple(rows),
    )


def _only_commit(commit: CommitPoint) -> Chart:
    size, at = formats.size(commit.bytes), clock.minute_text(commit.timestamp)
    return Chart("Commits", f"Only one is retained: version {commit.version:,}, {size}, of {at}")


def _only_size(health: TableHealth) -> Chart:
    (bucket,) = health.file_sizes
    start, files = bucket.from_bytes, formats.count(bucket.files)
    between = f"{formats.size(start)} to {formats.size(2 * start)}" if start else "no bytes"
    subject = "The only data file has" if bucket.files == 1 else f"All {files} data files have"
    small = ", which is small" if start < health.small_file_bytes else ""
    return Chart("File sizes", f"{subject} {between}{small}")


def _without_gaps(sizes: Sequence[SizeBucket]) -> Iterator[SizeBucket]:
    """Yields the buckets, including empty ones in between, which are part of the shape."""
    from delta_maintenance.operations.health.models import SizeBucket

    buckets = {bucket.from_bytes: bucket for bucket in sizes}
    start, end = sizes[0].from_bytes, sizes[-1].from_bytes
    while start <= end:
        yield buckets.get(start) or SizeBucket(from_bytes=start, files=0, bytes=0)
        start = start * 2 if start else sizes[1].from_bytes if len(sizes) > 1 else end + 1


def _of(commit: CommitPoint) -> str:
    operation = f" · {commit.operation}" if commit.operation else ""
    return f"version {commit.version:,}{operation}"


def trend_charts(
    trends: Trends, first_day: datetime, *, currency: str | None
) -> tuple[Chart, ...] | None:
    """The charts that have something to show; None if Pygal is not installed."""
    try:
        library()
    except ImportError:
        return None
    cost = {} if currency is None else {"Cost": trends.cost}
    candidates = (
        _line(
            "Data files", "Live data files at the end of each day", trends.files, first_day, _count
        ),
        _line(
            "Small files",
            "Their share of the live data files at the end of each day",
            trends.small_share,
            first_day,
            formats.percent,
        ),
        _line(
            "Log to open",
            "Bytes of log that a reader opens at the end of each day",
            trends.replay_bytes,
            first_day,
            _size,
        ),
        _weeks(
            "Reclaimed",
            "Bytes of deleted files by week, and whether their storage is still paid for",
            {"Deleted, not freed": trends.bytes_kept, "Freed": trends.bytes_freed},
            first_day,
            _size,
        ),
        _weeks(
            "Cost",
            f"Requests, received bytes and time by week, in {currency}",
            cost,
            first_day,
            money,
        ),
    )
    return tuple(chart for chart in candidates if chart is not None)


def money(value: float) -> str:
    """`1,234.50`, and less than a hundredth with two significant digits."""
    return f"{value:,.2f}" if value >= 0.01 or not value else f"{value:.2g}"


def _count(value: float) -> str:
    return formats.count(round(value))


def _size(value: float) -> str:
    return formats.size(round(value))


def _line(
    title: str, explanation: str, values: Numbers, first_day: datetime, text: Text
) -> Chart | None:
    """A line through the days with a value; the explanation alone for a single day."""
    days = [int(day) for day in np.flatnonzero(~np.isnan(values))]
    if not days or not np.nanmax(values):
        return None
    times = [first_day + timedelta(days=day) for day in range(DAYS)]
    start, end = times[days[0]].timestamp(), times[-1].timestamp()
    chart = xy(title, x_title="Day (UTC)")
    chart.show_legend = False
    chart.x_value_formatter = lambda value: moment(value, max(end - start, 7 * 86_400))
    chart.value_formatter = text
    chart.x_labels = time_ticks(start, end)
    chart.y_labels = _ticks(float(np.nanmax(values)), text)
    chart.add(
        title,
        [
            point(times[day].timestamp(), float(values[day]), formats.day(times[day]))
            for day in days
        ],
        fill=True,
        show_dots=False,
    )
    rows = tuple((formats.day(times[day]), text(values[day])) for day in days[::-_WEEK])
    if len(days) == 1:
        return Chart(title, f"{explanation}: {rows[0][1]}")
    return Chart(title, explanation, drawn(chart), ("Day", title), rows)


def _weeks(
    title: str, explanation: str, series: Mapping[str, Numbers], first_day: datetime, text: Text
) -> Chart | None:
    """A bar for each week; the explanation alone if only one week has any."""
    # The last week ends today, so the first one lacks some days.
    lacking = -DAYS % _WEEK
    weeks = {
        name: np.pad(values, (lacking, 0)).reshape(-1, _WEEK).sum(axis=1)
        for name, values in series.items()
    }
    starts = [
        first_day + timedelta(days=max(0, day - lacking)) for day in range(0, DAYS + lacking, _WEEK)
    ]
    total = np.sum(list(weeks.values()), axis=0) if weeks else np.zeros(1)
    filled = np.flatnonzero(total)
    if not len(filled):
        return None
    if len(filled) == 1:
        at = int(filled[0])
        sums = (
            f"{name.lower()} {text(weekly_values[at])}"
            for name, weekly_values in weeks.items()
            if weekly_values[at]
        )
        return Chart(title, f"Only in the week from {formats.day(starts[at])}: {', '.join(sums)}")
    kind = library().StackedBar if len(weeks) > 1 else library().Bar
    chart = kind(**settings(title), x_title="Week from")
    chart.show_legend = len(weeks) > 1
    chart.value_formatter = text
    chart.x_labels = [f"{start:%m-%d}" for start in starts]
    chart.truncate_label = -1
    chart.x_label_rotation = 40
    # Pygal counts the height of rotated labels too low, so that the legend would be cut off.
    chart.margin_bottom = 40 if len(weeks) > 1 else 18
    chart.y_labels = _ticks(float(total.max()), text)
    for name, weekly_values in weeks.items():
        chart.add(
            name,
            [
                {"value": float(value), "label": formats.day(start)} if value else None
                for value, start in zip(weekly_values, starts, strict=True)
            ],
        )
    rows = tuple(
        (formats.day(start), *(text(weekly_values[at]) for weekly_values in weeks.values()))
        for at, start in reversed([*enumerate(starts)])
    )
    return Chart(title, explanation, drawn(chart), ("Week from", *weeks), rows)


def _ticks(top: float, text: Text) -> list[float]:
    """Round numbers from 0 to `top`, which is more than 0."""
    if text is _size:
        unit = float(1024 ** int(math.log(max(top, 1), 1024)))
        unit = unit if top >= 4 * unit else unit / 4
    else:
        unit = 10.0 ** (math.floor(math.log10(top)) - 1)
    return [tick * unit for tick in whole_ticks(0, math.ceil(top / unit))]
