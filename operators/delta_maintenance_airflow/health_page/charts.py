"""The charts: of the log of one table, and of the last 90 days of one table or of all. Drawn as SVG
on the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from delta_maintenance import clock
from delta_maintenance.ledger.trends import DAYS, Trends
from delta_maintenance.operations.core.facts import money_text
from delta_maintenance_airflow.health_page import formats
from delta_maintenance_airflow.health_page.drawing import (
    Chart,
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
_HOUR, _DAY = 3_600, 86_400
_MOST_BARS = 60
_MOST_ROWS = 20
_LEAST_WEEKS = 4
_LEAST_BARS = 3
LEAST_POINTS = 10
"""With fewer values, words say more than a drawing."""


def charts(health: TableHealth) -> tuple[Chart, ...] | None:
    """The charts of a table; None if Pygal is not installed."""
    try:
        library()
    except ImportError:
        return None
    drawn_charts = []
    if len(health.commits) >= LEAST_POINTS:
        drawn_charts += [_replay(health), _commits(health)]
    elif health.commits:
        drawn_charts.append(_few_commits(health.commits))
    if health.num_files >= LEAST_POINTS and len(health.file_sizes) > 1:
        drawn_charts.append(_sizes(health))
    elif health.file_sizes:
        drawn_charts.append(_few_sizes(health))
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
        "To replay",
        [point(commit.version, count, _of(commit)) for commit, count in known_counts],
        fill=True,
        show_dots=False,
    )
    for name, marked in (
        ("Checkpoint", [pair for pair in known_counts if pair[0].is_checkpoint]),
        ("Compaction", [pair for pair in known_counts if pair[0].is_compaction]),
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
    commits = health.commits
    seconds = np.array([int(commit.timestamp.timestamp()) for commit in commits])
    span = int(np.ptp(seconds))
    weeks = max(1, math.ceil(span / _MOST_BARS / (_WEEK * _DAY)))
    step = next((s for s in (_HOUR, _DAY) if span / s <= _MOST_BARS), weeks * _WEEK * _DAY)
    unit = {_HOUR: "hour", _DAY: "day", _WEEK * _DAY: "week"}.get(step, f"{weeks} weeks")
    bars = seconds // step
    bars, first = bars - bars.min(), float(bars.min() * step)
    counts = np.bincount(bars)
    if len(counts) < _LEAST_BARS:
        return _few_commits(commits)
    sizes = np.bincount(bars, [commit.bytes for commit in commits])
    starts = first + step * np.arange(len(counts))
    chart = library().Bar(**settings("Commits over time"), x_title="Time (UTC)")
    chart.show_legend = False
    chart.value_formatter = _count
    chart.y_labels = whole_ticks(0, int(counts.max()))
    ticks = time_ticks(first, starts[-1])
    chart.x_labels = [moment(start, span) if start in ticks else "" for start in starts]
    chart.truncate_label = -1
    rows = [
        (f"{datetime.fromtimestamp(start, UTC):%Y-%m-%d %H:%M}", _count(number), _size(size))
        for start, number, size in zip(starts, counts, sizes, strict=True)
    ]
    chart.add(
        "Commits",
        [
            {"value": int(number), "label": f"{row[0]}, {row[2]}"} if number else None
            for number, row in zip(counts, rows, strict=True)
        ],
    )
    return Chart(
        "Commits over time",
        f"Commits in each {unit}",
        drawn(chart),
        ("From (UTC)", "Commits", "Bytes"),
        tuple(row for row in rows[::-1] if row[1] != "0")[:_MOST_ROWS],
    )


def _sizes(health: TableHealth) -> Chart:
    chart = library().StackedBar(**settings("Files by size"))
    chart.show_legend = False
    buckets = list(_without_gaps(health.file_sizes))
    chart.value_formatter = lambda value: f"{value:,.0f}"
    chart.y_labels = whole_ticks(0, max(bucket.files for bucket in buckets))
    chart.x_labels = [formats.size(bucket.from_bytes) for bucket in buckets]
    chart.truncate_label = -1
    if len(buckets) > 8:
        chart.x_label_rotation = 40
        chart.margin_bottom = 36
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
    small_below = formats.size(health.small_file_bytes)
    return Chart(
        "File sizes",
        f"Live data files from each size on; those below {small_below} are small",
        drawn(chart),
        ("From this size", "Files", "Bytes"),
        tuple(rows),
    )


def _few_commits(commits: Sequence[CommitPoint]) -> Chart:
    at = clock.minute_text(commits[-1].timestamp)
    total = formats.size(sum(commit.bytes for commit in commits))
    if len(commits) == 1:
        only = f"version {commits[0].version:,}, {total}, of {at}"
        return Chart("Commits", f"Only one is retained: {only}")
    began = clock.minute_text(commits[0].timestamp)
    return Chart("Commits", f"{len(commits)} are retained, {total}: from {began} to {at}")


def _few_sizes(health: TableHealth) -> Chart:
    def between(bucket: SizeBucket) -> str:
        start = bucket.from_bytes
        return f"{formats.size(start)} to {formats.size(2 * start)}" if start else "no bytes"

    number, buckets = formats.count(health.num_files), health.file_sizes
    if len(buckets) == 1:
        subject = "The only data file has" if health.num_files == 1 else f"All {number} files have"
        return Chart("File sizes", f"{subject} {between(buckets[0])}")
    sizes = (f"{formats.count(bucket.files)} of {between(bucket)}" for bucket in buckets)
    return Chart("File sizes", f"{number} data files: {', '.join(sizes)}")


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
        _line("Data files", "Live data files at the end of a day", trends.files, first_day, _count),
        _line(
            "Small files",
            "Their share of the live data files at the end of a day",
            trends.small_share,
            first_day,
            formats.percent,
        ),
        _line(
            "Log to open",
            "Bytes of log that a reader opens at the end of a day",
            trends.replay_bytes,
            first_day,
            _size,
        ),
        _weeks(
            "Reclaimed",
            "Bytes of deleted files by week, and whether their storage is still paid for",
            {"Not freed": trends.bytes_kept, "Freed": trends.bytes_freed},
            first_day,
            _size,
        ),
        _weeks(
            "Cost",
            "Requests, received bytes and time by week",
            cost,
            first_day,
            lambda value: money_text(value, currency or ""),
        ),
    )
    return tuple(chart for chart in candidates if chart is not None)


def _count(value: float) -> str:
    return formats.count(round(value))


def _size(value: float) -> str:
    return formats.size(round(value))


def _line(
    title: str, explanation: str, values: Numbers, first_day: datetime, text: Text
) -> Chart | None:
    """A line through the days with a value; for few days, the first and the last value in words."""
    days = [int(day) for day in np.flatnonzero(~np.isnan(values))]
    if not days or not np.nanmax(values):
        return None
    times = [first_day + timedelta(days=day) for day in range(DAYS)]
    if len(days) < LEAST_POINTS:
        first, last = text(values[days[0]]), text(values[days[-1]])
        day = formats.day(times[days[0]])
        change = f"{last} since {day}" if first == last else f"{last}, and {first} on {day}"
        return Chart(title, f"{explanation}: {change}")
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
    return Chart(title, explanation, drawn(chart), ("Day", title), rows)


def _weeks(
    title: str, explanation: str, series: Mapping[str, Numbers], first_day: datetime, text: Text
) -> Chart | None:
    """A bar for each week since the first with any; for few weeks, words."""
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
    measured = range(int(filled[0]), len(starts))
    rows = tuple(
        (formats.day(starts[at]), *(text(weekly_values[at]) for weekly_values in weeks.values()))
        for at in reversed(measured)
    )
    if len(measured) < _LEAST_WEEKS:
        sums = (
            f"{formats.day(starts[at])}: "
            + ", ".join(
                text(values[at]) if len(weeks) == 1 else f"{text(values[at])} {name.lower()}"
                for name, values in weeks.items()
                if values[at]
            )
            for at in reversed(measured)
            if total[at]
        )
        return Chart(title, f"{explanation}. Week from {'; from '.join(sums)}")
    kind = library().StackedBar if len(weeks) > 1 else library().Bar
    chart = kind(**settings(title), x_title="Week from")
    chart.show_legend = len(weeks) > 1
    chart.value_formatter = text
    chart.x_labels = [f"{starts[at]:%m-%d}" for at in measured]
    chart.truncate_label = -1
    chart.x_label_rotation = 40
    # Pygal counts the height of rotated labels too low, so that the legend would be cut off.
    chart.margin_bottom = 40 if len(weeks) > 1 else 18
    chart.y_labels = _ticks(float(total.max()), text)
    for name, weekly_values in weeks.items():
        chart.add(
            name,
            [
                {"value": float(weekly_values[at]), "label": formats.day(starts[at])}
                if weekly_values[at]
                else None
                for at in measured
            ],
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
