"""The tables and plots of the benchmarks, from the files that they write.

A plot is drawn when the site is built, and not committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from benchmarks import results
from benchmarks.measure import Spread
from benchmarks.outcome import Row
from benchmarks.results import RecordedFigure
from benchmarks.scale import chart
from docs_site.markdown import code, table

BUSY_LOAD = 1.0
"""The load before a run above which other processes took a part of the two cores."""


def figures(_: str) -> str:
    """One table with the quantities of every recorded figure."""
    if not results.read():
        return "No figure has been recorded for this version.\n"
    rows = [
        (code(name), row.name, *_numbers(row), recorded.conditions.day + _mark(recorded))
        for name, recorded in results.read().items()
        for row in recorded.outcome.rows
    ]
    head = ("figure", "quantity", "ratio", "min .. max", "target", "ours", "peer", "measured")
    machines = sorted({recorded.conditions.machine for recorded in results.read().values()})
    return "\n".join(
        (
            f"![Time and memory in relation to the peer]({_path('ratios')})\n",
            table(head, rows),
            f"Machine: {'; '.join(machines)}. Behind a day marked by `busy` other processes took "
            "more than a core, so that times say little.\n",
        )
    )


def scale(_: str) -> str:
    """The plots and the table of the series by the number of files."""
    pictures = "\n\n".join(
        f"![{title}]({_path(name)})" for name, title in chart.QUANTITIES.values()
    )
    return f"{pictures}\n\n{chart.table(_scale_rows())}\n"


def names() -> list[str]:
    """The names of the plots, relative to the pages."""
    return [f"images/{name}.svg" for name in ("ratios", *(n for n, _ in chart.QUANTITIES.values()))]


def plots() -> Iterator[tuple[str, bytes]]:
    """Yields the name of each plot, relative to the pages, and its content."""
    ratios = [
        (f"{name}: {row.name}", row.ratio.median)
        for name, recorded in results.read().items()
        for row in recorded.outcome.rows
        if row.ratio is not None and row.name in ("wall time", "CPU time", "peak memory")
    ]
    yield "images/ratios.svg", chart.draw_ratios(ratios)
    for quantity, (name, title) in chart.QUANTITIES.items():
        yield f"images/{name}.svg", chart.draw(_scale_rows(), quantity, title)


def _path(name: str) -> str:
    """The target of a link from `benchmarks/README.md`."""
    return f"../docs/images/{name}.svg"


def _mark(recorded: RecordedFigure) -> str:
    return " `busy`" if recorded.conditions.load > BUSY_LOAD else ""


def _numbers(row: Row) -> tuple[str, str, str, str, str]:
    ours = _amount(Spread.of(row.ours).median, row.unit)
    if row.ratio is None or row.peer is None:
        return "", "", row.target, ours, ""
    spread = f"{row.ratio.low:.2f} .. {row.ratio.high:.2f}"
    peer = _amount(Spread.of(row.peer).median, row.unit)
    return f"{row.ratio.median:.2f}", spread, row.target, ours, peer


def _amount(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2f} {unit}"


def _scale_rows() -> list[Mapping[str, object]]:
    rows: list[Mapping[str, object]] = json.loads(chart.RESULTS.read_text())
    return rows
