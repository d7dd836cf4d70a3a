"""Draws the results of the series: ``python -m benchmarks.scale.chart [FOLDER]``.

Writes one SVG per quantity, on logarithmic axes, into `docs/images`, and prints the results as a
Markdown table.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pygal
from pygal.style import Style

from benchmarks.scale.__main__ import RESULTS

_IMAGES = Path(__file__).parents[2] / "docs" / "images"
_QUANTITIES = {
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


def draw(rows: list[Mapping[str, Any]], quantity: str, title: str) -> bytes:
    """The chart of one quantity, with a line for each engine and step that has results."""
    style = Style(background="white", plot_background="white", colors=_COLOURS)
    chart = pygal.XY(
        width=940,
        height=620,
        margin_bottom=50,
        margin_right=70,
        style=style,
        title=f"{title}, by files of the table",
        js=[],
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
    for (engine, step), name in _LINES.items():
        points = [
            (math.log10(row["files"]), max(row[quantity], 0.001))
            for row in rows
            if (row["engine"], row["step"]) == (engine, step) and quantity in row
        ]
        if points:
            style_of_line = {"width": 2, "dasharray": "2, 4" if engine != "ours" else "0"}
            chart.add(name, sorted(points), stroke_style=style_of_line)
    tree = chart.render_tree()
    for parent in tree.iter():
        # The settings of a script that is left out.
        for script in [child for child in parent if str(child.tag).endswith("script")]:
            parent.remove(script)
    return ElementTree.tostring(tree, encoding="utf-8", xml_declaration=True)


def table(rows: list[Mapping[str, Any]]) -> str:
    """The results as Markdown: processor time, memory, and requests where they were counted."""
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
    cell = f"{row['cpu_seconds']:.2f} s, {row['peak_mb']:,.0f} MB, "
    cell += f"{row['read_mb']:,.0f} MB read, {row['written_mb']:,.0f} MB written"
    return f"{cell}, {row['requests']:,.0f} requests" if "requests" in row else cell


def main(folder: Path = _IMAGES) -> None:
    rows = json.loads(RESULTS.read_text())
    print(table(rows))
    for quantity, (name, title) in _QUANTITIES.items():
        (folder / f"{name}.svg").write_bytes(draw(rows, quantity, title))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
