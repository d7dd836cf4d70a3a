"""The charts of the last 90 days, of one table or of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from delta_maintenance.ledger.trends import DAYS, Trends
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

Numbers = npt.NDArray[np.float64]
Text = Callable[[float], str]
_WEEK = 7


def trend_charts(
    trends: Trends, first: datetime, *, currency: str | None
) -> tuple[Chart, ...] | None:
    """The charts that have something to show; None if Pygal is not installed."""
    try:
        library()
    except ImportError:
        return None
    cost = {} if currency is None else {"Cost": trends.cost}
    found = (
        _line("Data files", "Live data files at the end of each day", trends.files, first, _count),
        _line(
            "Small files",
            "Their share of the live data files at the end of each day",
            trends.small_share,
            first,
            formats.percent,
        ),
        _line(
            "Log to open",
            "Bytes of log that a reader opens at the end of each day",
            trends.replay_bytes,
            first,
            _size,
        ),
        _weeks(
            "Reclaimed",
            "Bytes of deleted files by week, and whether their storage is still paid for",
            {"Deleted, not freed": trends.bytes_kept, "Freed": trends.bytes_freed},
            first,
            _size,
        ),
        _weeks(
            "Cost",
            f"Requests, received bytes and time by week, in {currency}",
            cost,
            first,
            money,
        ),
    )
    return tuple(each for each in found if each is not None)


def money(value: float) -> str:
    """`1,234.50`, and less than a hundredth with two significant digits."""
    return f"{value:,.2f}" if value >= 0.01 or not value else f"{value:.2g}"


def _count(value: float) -> str:
    return formats.count(round(value))


def _size(value: float) -> str:
    return formats.size(round(value))


def _line(
    title: str, explanation: str, values: Numbers, first: datetime, text: Text
) -> Chart | None:
    """A line through the days with a value; the explanation alone for a single day."""
    days = [int(day) for day in np.flatnonzero(~np.isnan(values))]
    if not days or not np.nanmax(values):
        return None
    times = [first + timedelta(days=day) for day in range(DAYS)]
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
    title: str, explanation: str, series: Mapping[str, Numbers], first: datetime, text: Text
) -> Chart | None:
    """A bar for each week; the explanation alone if only one week has any."""
    # The last week ends today, so the first one lacks some days.
    lacking = -DAYS % _WEEK
    weeks = {
        name: np.pad(values, (lacking, 0)).reshape(-1, _WEEK).sum(axis=1)
        for name, values in series.items()
    }
    starts = [
        first + timedelta(days=max(0, day - lacking)) for day in range(0, DAYS + lacking, _WEEK)
    ]
    total = np.sum(list(weeks.values()), axis=0) if weeks else np.zeros(1)
    filled = np.flatnonzero(total)
    if not len(filled):
        return None
    if len(filled) == 1:
        at = int(filled[0])
        parts = (f"{name.lower()} {text(each[at])}" for name, each in weeks.items() if each[at])
        return Chart(title, f"Only in the week from {formats.day(starts[at])}: {', '.join(parts)}")
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
    for name, each in weeks.items():
        chart.add(
            name,
            [
                {"value": float(value), "label": formats.day(start)} if value else None
                for value, start in zip(each, starts, strict=True)
            ],
        )
    rows = tuple(
        (formats.day(start), *(text(each[at]) for each in weeks.values()))
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
