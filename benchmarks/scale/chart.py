"""Plots and tables of results. `tools/docs_site` draws them when the site is built."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    import pygal

RESULTS = Path(__file__).with_name("results.json")
QUANTITIES = {
    "cpu_seconds": ("scale-time", "Processor time in seconds"),
    "peak_mb": ("scale-memory", "Peak memory in MB"),
    "read_mb": ("scale-read", "Bytes read in MB"),
}
_LINES = {
    ("ours", "checkpoint-incremental"): "checkpoint, incremental",
    ("ours", "checkpoint-full"): "checkpoint, full",
    ("ours", "open"): "open and count",
    ("ours", "list"): "list",
    ("ours", "clean-log"): "clean-log",
    ("ours", "vacuum-lite"): "vacuum lite, dry run",
    ("deltalake", "open"): "deltalake: open",
    ("deltalake", "list"): "deltalake: list",
    ("deltalake", "checkpoint-full"): "deltalake: checkpoint",
    ("deltalake", "vacuum-lite"): "deltalake: vacuum lite",
    ("delta-spark", "open"): "Delta Spark: open",
    ("delta-spark", "checkpoint-full"): "Delta Spark: checkpoint",
}
_COLOURS = (
    *("#0b7a4b", "#1f77b4", "#17a2b8", "#6f42c1", "#8c6d1f", "#495057"),
    *("#d9480f", "#f08c00", "#a61e4d", "#846358", "#c2255c", "#e64980"),
)


def draw(rows: Sequence[Mapping[str, Any]], quantity: str, title: str) -> bytes:
    """The chart of one quantity, with a line for each engine and step that has results."""
    import pygal

    chart = pygal.XY(
        **_looks(f"{title}, by files of the table"),
        height=620,
        margin_bottom=50,
        margin_right=70,
        logarithmic=True,
        dots_size=4,
        legend_at_bottom=True,
        legend_at_bottom_columns=3,
        truncate_legend=-1,
    )
    # The default is random, so that every drawing would differ.
    chart.uuid = f"scale-{quantity}"
    sizes = sorted({row["files"] for row in rows})
    chart.x_labels = [math.log10(size) for size in sizes]
    chart.x_value_formatter = lambda value: f"{10**value / 1e6:,.3g} million"
    chart.value_formatter = lambda value: f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
    amounts = [max(row[quantity], 0.001) for row in rows if quantity in row]
    powers = range(math.floor(math.log10(min(amounts))), math.ceil(math.log10(max(amounts))) + 1)
    chart.y_labels = [10.0**power for power in powers]
    for (engine, step), name in _LINES.items():
        points = [
            (math.log10(row["files"]), max(row[quantity], 0.001))
            for row in rows
            if (row["engine"], row["step"]) == (engine, step) and quantity in row
        ]
        if points:
            style_of_line = {"width": 2, "dasharray": "2, 4" if engine != "ours" else "0"}
            chart.add(name, sorted(points), stroke_style=style_of_line)
    return _svg(chart)


def draw_ratios(ratios: Sequence[tuple[str, float]]) -> bytes:
    """A chart with a bar for each name: below 1, ours took less than its peer."""
    import pygal

    chart = pygal.HorizontalBar(
        **_looks("Ours divided by deltalake: less than 1 is less time or memory"),
        height=140 + 26 * len(ratios),
        show_legend=False,
    )
    chart.uuid = "ratios"
    chart.value_formatter = lambda value: f"{value:.2f}"
    largest = max((ratio for _, ratio in ratios), default=1.0)
    chart.y_labels = [half / 2 for half in range(math.ceil(largest * 2) + 1)]
    chart.x_labels = [f"{name}: {ratio:.2f}" for name, ratio in reversed(ratios)]
    colours = (_COLOURS[0], _COLOURS[6])
    chart.add("", [{"value": v, "color": colours[v > 1]} for _, v in reversed(ratios)])
    return _svg(chart)


def _looks(title: str) -> dict[str, Any]:
    from pygal.style import Style

    style = Style(
        **{"background": "white", "plot_background": "white", "colors": _COLOURS},
        **{"label_font_size": 13, "major_label_font_size": 13, "title_font_size": 16},
    )
    return {"width": 940, "style": style, "title": title, "js": []}


def _svg(chart: pygal.Graph) -> bytes:
    tree = chart.render_tree()
    for parent in tree.iter():
        # The settings of a script that is left out.
        for script in [child for child in parent if str(child.tag).endswith("script")]:
            parent.remove(script)
    text: bytes = ElementTree.tostring(tree, encoding="utf-8", xml_declaration=True)
    return text


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results as Markdown: processor time and peak memory."""
    sizes = sorted({row["files"] for row in rows})
    headings = [f"{size / 1e6:,.3g} million files" for size in sizes]
    lines = [" | ".join(["| engine", "step", *headings]) + " |", "|---" * (2 + len(sizes)) + "|"]
    for engine, step in dict.fromkeys((row["engine"], row["step"]) for row in rows):
        found = {
            row["files"]: row for row in rows if (row["engine"], row["step"]) == (engine, step)
        }
        cells = [_cell(found[size]) if size in found else "not run" for size in sizes]
        lines.append(" | ".join([f"| {engine}", step, *cells]) + " |")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any]) -> str:
    if "failure" in row:
        return str(row["failure"])
    return f"{row['cpu_seconds']:.2f} s, {row['peak_mb']:,.0f} MB"
