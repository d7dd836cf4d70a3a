"""A table whose queries read every file, and the same table clustered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from rich.table import Table as Grid
from telling import console

from delta_maintenance import DeltaTable

FILES = 32
ROWS = 10_000
TARGET_BYTES = 110_000
"""About the size of the first files, so that only the order of the rows makes the difference."""
COLUMNS = ("zone", "distance")
QUERIES = ("zone = 117", "distance > 99", "zone < 10 AND distance < 9")
_CELLS = 12


def write_rides(path: Path) -> None:
    """Writes the table with deltalake: a file for each hour, with rides of all zones."""
    random = np.random.default_rng(seed=9)
    for hour in range(FILES):
        rides = pa.table(
            {
                "ride": np.arange(hour * ROWS, (hour + 1) * ROWS),
                "zone": random.integers(0, 256, ROWS),
                "distance": (random.random(ROWS) * 100).round(2),
            }
        )
        write_deltalake(path, rides, mode="append")


def cluster_rides(path: Path) -> float:
    """Sets clustering columns and clusters the table; returns the depth afterwards."""
    table = DeltaTable(str(path))
    table.set_clustering(by=COLUMNS)
    (done,) = table.cluster(target_bytes=TARGET_BYTES).bins
    return done.depth_after or 0.0


def files_read(path: Path) -> Mapping[str, tuple[int, int]]:
    """Returns for each query the number of files that a reader opens, and that of all files."""
    report = DeltaTable(str(path)).layout(where=QUERIES)
    return {each.condition: (each.files, report.files) for each in report.conditions}


def show_reading(
    before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]
) -> None:
    """Shows the files that each query opens before and after."""
    grid = Grid("   SELECT … WHERE", "files opened before", "after", box=None, pad_edge=False)
    for condition in QUERIES:
        grid.add_row(f"   {condition}", _shown(*before[condition]), _shown(*after[condition]))
    console.print(grid)


def _shown(opened: int, files: int) -> str:
    full = max(1, round(_CELLS * opened / files)) if opened else 0
    return f"[yellow]{'█' * full}[/][dim]{'░' * (_CELLS - full)}[/] {opened} of {files}"
