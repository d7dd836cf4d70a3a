"""The charts of one table, drawn as SVG on the server."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from delta_maintenance_airflow.health_page import formats

if TYPE_CHECKING:
    from delta_maintenance.operations.health.models import CommitPoint, SizeBucket, TableHealth

_WIDTH, _HEIGHT = 620, 300
_SVG = "{http://www.w3.org/2000/svg}"
_TICKS = 6
"""The maximum number of labels on the axis of a chart."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, and the same information in words."""

    title: str
    explanation: str
    """Of a single value, which is not worth a drawing: all there is to say."""
    svg: Markup | None = None
    columns: tuple[str, ...] = ()
    """The headings of the rows."""
    rows: tuple[tuple[str, str, str], ...] = ()
    """The newest values, or all values, as text for screen readers."""


def charts(health: TableHealth) -> tuple[Chart, ...] | None:
    """The charts of a table; None if Pygal is not installed."""
    try:
        _library()
    except ImportError:
        return None
    found = []
    if len(health.commits) > 1:
        found += [_replay(health), _commits(health)]
    elif health.commits:
        found.append(_only_commit(health.commits[0]))
    if len(health.file_sizes) > 1:
        found.append(_sizes(health))
    elif health.file_sizes:
        found.append(_only_size(health))
    return tuple(found)


@cache
def _library() -> Any:
    """Pygal, imported for the first chart."""
    before = list(sys.meta_path)
    import pygal

    # Pygal installs a finder for its plugins that causes a warning of Python 3.11 at every further
    # import; later versions ignore it.
    sys.meta_path[:] = [
        finder
        for finder in sys.meta_path
        if finder in before or not type(finder).__module__.startswith("pygal")
    ]
    return pygal


def replayed(health: TableHealth) -> list[int | None]:
    """The number of commits that a reader of each version replays; None before the first known
    checkpoint."""
    commits = health.commits
    last: int | None = None
    if commits and commits[0].version == 0:
        last = -1
    elif commits and (health.checkpoint_version or 0) < commits[0].version:
        last = health.checkpoint_version
    found: list[int | None] = []
    for commit in commits:
        if commit.is_checkpoint:
            last = commit.version
        found.append(None if last is None else commit.version - last)
    return found


def _replay(health: TableHealth) -> Chart:
    counts = list(zip(health.commits, replayed(health), strict=True))
    known = [(commit, count) for commit, count in counts if count is not None]
    chart = _xy("Commits to replay", x_title="Version", y_title="Commits")
    chart.x_value_formatter = chart.value_formatter = lambda value: f"{value:,.0f}"
    chart.x_labels = _whole_ticks(health.commits[0].version, health.commits[-1].version)
    chart.y_labels = _whole_ticks(0, max([count for _, count in known], default=0))
    chart.add(
        "Commits to replay",
        [_point(commit.version, count, _of(commit)) for commit, count in known],
        fill=True,
        show_dots=False,
    )
    for name, marked in (
        ("Checkpoint", [pair for pair in known if pair[0].is_checkpoint]),
        ("Log compaction", [pair for pair in known if pair[0].is_compaction]),
    ):
        points = [_point(commit.version, count, _of(commit)) for commit, count in marked]
        chart.add(name, points, stroke=False, dots_size=3.5)
    rows = [
        (f"{commit.version:,}", formats.count(count), formats.instant(commit.timestamp))
        for commit, count in reversed(known[-20:])
    ]
    return Chart(
        "Commits to replay",
        "Commits that a reader of each version replays after its checkpoint",
        _drawn(chart),
        ("Version", "Commits", "Committed"),
        tuple(rows),
    )


def _commits(health: TableHealth) -> Chart:
    chart = _xy("Bytes of commits over time", x_title="Time (UTC)", y_title="Bytes", stroke=False)
    chart.logarithmic = True
    commits = health.commits
    times = [commit.timestamp.timestamp() for commit in commits]
    first, last = min(times), max(times)
    chart.x_value_formatter = lambda value: _moment(value, last - first)
    chart.value_formatter = lambda value: formats.size(int(value))
    chart.x_labels = _time_ticks(first, last)
    sizes = [max(1, commit.bytes) for commit in commits]
    chart.y_labels = _byte_ticks(min(sizes), max(sizes))
    kinds: dict[str, list[CommitPoint]] = {
        "Commit": [c for c in commits if not c.is_checkpoint and not c.is_compaction],
        "With checkpoint": [c for c in commits if c.is_checkpoint],
        "With log compaction": [c for c in commits if c.is_compaction and not c.is_checkpoint],
    }
    for name, some in kinds.items():
        points = [_point(c.timestamp.timestamp(), max(1, c.bytes), _of(c)) for c in some]
        chart.add(name, points, dots_size=2 if name == "Commit" else 3.5)
    rows = [
        (f"{commit.version:,}", formats.size(commit.bytes), formats.instant(commit.timestamp))
        for commit in reversed(commits[-20:])
    ]
    return Chart(
        "Commits over time",
        "Bytes of each commit, with checkpoints and log compactions",
        _drawn(chart),
        ("Version", "Bytes", "Committed"),
        tuple(rows),
    )


def _sizes(health: TableHealth) -> Chart:
    chart = _library().StackedBar(**_settings("Files by size"), x_title="From this size")
    chart.show_legend = False
    buckets = list(_filled(health.file_sizes))
    chart.value_formatter = lambda value: f"{value:,.0f}"
    chart.y_labels = _whole_ticks(0, max(bucket.files for bucket in buckets))
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
        _drawn(chart),
        ("From this size", "Files", "Bytes"),
        tuple(rows),
    )


def _only_commit(commit: CommitPoint) -> Chart:
    size, at = formats.size(commit.bytes), formats.instant(commit.timestamp)
    return Chart("Commits", f"Only one is retained: version {commit.version:,}, {size}, of {at}")


def _only_size(health: TableHealth) -> Chart:
    (bucket,) = health.file_sizes
    start, files = bucket.from_bytes, formats.count(bucket.files)
    between = f"{formats.size(start)} to {formats.size(2 * start)}" if start else "no bytes"
    what = "The only data file has" if bucket.files == 1 else f"All {files} data files have"
    small = ", which is small" if start < health.small_file_bytes else ""
    return Chart("File sizes", f"{what} {between}{small}")


def _filled(sizes: Sequence[SizeBucket]) -> Iterator[SizeBucket]:
    """Yields the buckets, including empty ones in between, which are part of the shape."""
    from delta_maintenance.operations.health.models import SizeBucket

    known = {bucket.from_bytes: bucket for bucket in sizes}
    start, end = sizes[0].from_bytes, sizes[-1].from_bytes
    while start <= end:
        yield known.get(start) or SizeBucket(from_bytes=start, files=0, bytes=0)
        start = start * 2 if start else sizes[1].from_bytes if len(sizes) > 1 else end + 1


def _xy(title: str, **settings: Any) -> Any:
    return _library().XY(**_settings(title), **settings)


def _settings(title: str) -> dict[str, Any]:
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        # Not drawn: the title of the drawing, for screen readers.
        "title": None,
        "no_data_text": f"{title}: no data",
        "legend_at_bottom": True,
        "legend_box_size": 9,
        "truncate_legend": -1,
        "margin": 6,
        "margin_bottom": 18,
        "legend_at_bottom_columns": 3,
        # No scripts and styles of the library: the page has its own styles for both themes.
        "js": (),
        "css": (),
    }


def _drawn(chart: Any) -> Markup:
    """The drawing without scripts and styles, with titles that browsers show as tooltips."""
    root = chart.render_tree()
    for parent in list(root.iter()):
        for child in list(parent):
            name = child.tag.removeprefix(_SVG) if isinstance(child.tag, str) else ""
            overlay = (child.get("class") or "").endswith(("text-overlay", "tooltip-overlay"))
            if not name or name in ("defs", "script", "style") or overlay:
                parent.remove(child)
        _with_tooltip(parent)
    for element in root.iter():
        # The page contains several drawings, and an empty `id` is invalid HTML.
        for attribute in ("id", "style"):
            element.attrib.pop(attribute, None)
        element.tag = element.tag.removeprefix(_SVG)
    title = root.find("title")
    if title is not None:
        root.remove(title)
    root.set("aria-hidden", "true")
    root.set("focusable", "false")
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _with_tooltip(parent: ElementTree.Element) -> None:
    """Browsers show `<title>`; the `<desc>` elements are for the library's own script."""
    found = {child.get("class"): child.text or "" for child in parent.findall(f"{_SVG}desc")}
    for child in parent.findall(f"{_SVG}desc"):
        parent.remove(child)
    if "value" not in found:
        return
    for title in parent.findall(f"{_SVG}title"):
        found.setdefault("x_label", title.text or "")
        parent.remove(title)
    title = ElementTree.SubElement(parent, f"{_SVG}title")
    parts = (found.get("x_label"), found["value"])
    title.text = " – ".join(dict.fromkeys(part for part in parts if part))


def _point(x: float, y: float, label: str) -> dict[str, Any]:
    return {"value": (x, y), "label": label}


def _of(commit: CommitPoint) -> str:
    operation = f" · {commit.operation}" if commit.operation else ""
    return f"version {commit.version:,}{operation}"


def _whole_ticks(first: int, last: int) -> list[int]:
    """Round whole numbers from `first` to `last`."""
    step = 1
    steps = (factor * 10**power for power in range(16) for factor in (1, 2, 5))
    for step in steps:
        if (last - first) / step < _TICKS:
            break
    start = -(-first // step) * step
    return list(range(start, last + 1, step)) or [first]


def _byte_ticks(smallest: int, largest: int) -> list[int]:
    ticks = [4**power for power in range(31) if smallest / 4 < 4**power < largest * 4]
    every = -(-len(ticks) // _TICKS)
    return ticks[::every]


_MINUTE = 60
_STEPS = [
    minutes * _MINUTE
    for minutes in (1, 5, 15, 30, 60, 180, 360, 720, 1440, 2880, 10_080, 40_320, 120_960, 483_840)
]


def _step(span: float) -> int:
    return next((step for step in _STEPS if span / step <= _TICKS), _STEPS[-1])


def _time_ticks(first: float, last: float) -> list[float]:
    step = _step(last - first)
    start = -(-int(first) // step) * step
    return [float(value) for value in range(start, int(last) + 1, step)] or [first]


def _moment(value: float, span: float) -> str:
    at = datetime.fromtimestamp(value, UTC)
    if span > 300 * 86_400:
        return f"{at:%Y-%m}"
    return f"{at:%m-%d}" if _step(span) >= 86_400 or f"{at:%H:%M}" == "00:00" else f"{at:%H:%M}"
