"""The tables and plots of the benchmarks, from the files that they write.

A plot is drawn when the site is built, and not committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from benchmarks import results
from benchmarks.scale import chart
from docs_site.markdown import sentence

BUSY_LOAD = 1.0
"""The load average at the start of a run above which a figure is marked. It still counts processes
that ended in the minute before, such as those of other figures.
"""


BESIDE_DELTALAKE = (
    *("checkpoint", "open", "compact-log", "vacuum", "optimize-shipped", "optimize", "optimize-t1"),
    *("optimize-independent", "optimize-t2", "optimize-t3", "optimize-mixed", "cluster"),
)
"""The figures with `deltalake` as the peer, which the plot shows."""


def figures(_: str) -> str:
    """The plot, and a section for each recorded figure."""
    recorded_figures = results.read()
    if not recorded_figures:
        return "No figure has been recorded for this version.\n"
    machines = sorted({recorded.conditions.machine for recorded in recorded_figures.values()})
    parts = [
        f"![Time and memory in relation to deltalake]({_path('ratios')})\n",
        f"Machine: {'; '.join(machines)}. A figure marked as *busy* began with a load above one "
        "process: of others, or of the figures before it.\n",
    ]
    for name, recorded in recorded_figures.items():
        conditions = recorded.conditions
        busy = ", *busy*" if conditions.load > BUSY_LOAD else ""
        parts += [
            f"### `{name}`\n",
            f"{sentence(recorded.title)} Measured on {conditions.day}{busy}.\n",
            f"{recorded.outcome.to_markdown()}\n",
        ]
    return "\n".join(parts)


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
        (f"{name}, {row.name.removeprefix(f'{name}, ')}", row.ratio.median)
        for name, recorded in results.read().items()
        for row in recorded.outcome.rows
        if name in BESIDE_DELTALAKE
        and row.ratio is not None
        and row.name.endswith(("wall time", "peak memory"))
        and not row.name.startswith("proof on and off")
    ]
    yield "images/ratios.svg", chart.draw_ratios(ratios)
    for quantity, (name, title) in chart.QUANTITIES.items():
        yield f"images/{name}.svg", chart.draw(_scale_rows(), quantity, title)


def _path(name: str) -> str:
    """The target of a link from `benchmarks/README.md`."""
    return f"../docs/images/{name}.svg"


def _scale_rows() -> list[Mapping[str, object]]:
    rows: list[Mapping[str, object]] = json.loads(chart.RESULTS.read_text())
    return rows
