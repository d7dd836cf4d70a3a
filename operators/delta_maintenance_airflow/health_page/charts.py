"""The charts of one table, drawn as SVG on the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

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


def charts(health: TableHealth) -> tuple[Chart, ...] | None:
    """The charts of a table; None if Pygal is not installed."""
    try:
        library()
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
    chart = xy("Commits to replay", x_title="Version", y_title="Commits")
    chart.x_value_formatter = chart.value_formatter = lambda value: f"{value:,.0f}"
    chart.x_labels = whole_ticks(health.commits[0].version, health.commits[-1].version)
    chart.y_labels = whole_ticks(0, max([count for _, count in known], default=0))
    chart.add(
        "Commits to replay",
        [point(commit.version, count, _of(commit)) for commit, count in known],
        fill=True,
        show_dots=False,
    )
    for name, marked in (
        ("Checkpoint", [pair for pair in known if pair[0].is_checkpoint]),
        ("Log compaction", [pair for pair in known if pair[0].is_compaction]),
    ):
        points = [point(commit.version, count, _of(commit)) for commit, count in marked]
        chart.add(name, points, stroke=False, dots_size=3.5)
    rows = [
        (f"{commit.version:,}", formats.count(count), formats.instant(commit.timestamp))
        for commit, count in reversed(known[-20:])
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
    first, last = min(times), max(times)
    chart.x_value_formatter = lambda value: moment(value, last - first)
    chart.value_formatter = lambda value: formats.size(int(value))
    chart.x_labels = time_ticks(first, last)
    sizes = [max(1, commit.bytes) for commit in commits]
    chart.y_labels = byte_ticks(min(sizes), max(sizes))
    kinds: dict[str, list[CommitPoint]] = {
        "Commit": [c for c in commits if not c.is_checkpoint and not c.is_compaction],
        "With checkpoint": [c for c in commits if c.is_checkpoint],
        "With log compaction": [c for c in commits if c.is_compaction and not c.is_checkpoint],
    }
    for name, some in kinds.items():
        points = [point(c.timestamp.timestamp(), max(1, c.bytes), _of(c)) for c in some]
        chart.add(name, points, dots_size=2 if name == "Commit" else 3.5)
    rows = [
        (f"{commit.version:,}", formats.size(commit.bytes), formats.instant(commit.timestamp))
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
    buckets = list(_filled(health.file_sizes))
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


def _of(commit: CommitPoint) -> str:
    operation = f" · {commit.operation}" if commit.operation else ""
    return f"version {commit.version:,}{operation}"
