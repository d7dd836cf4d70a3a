"""What clustering costs, and what queries gain from it: `cluster` against `deltalake`."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import NormalDist

from benchmarks import tables
from benchmarks.figures import CHECKPOINT
from benchmarks.measure import Run, run_pairs, run_process
from benchmarks.outcome import Figure, Outcome, Row, Settings, time_and_memory

CLUSTER = [CHECKPOINT[0], "cluster"]
COLUMNS = ("user", "amount")
TARGET_BYTES = 32 << 20
_FILES = (700, 7_000)
"""Files of about 1.5 MB: 1 GB and 10 GB."""
_BOXES = 1_000
_SIDE = 0.1
"""The share of the values of each of the two columns in a box, so that it has 1% of the rows."""


def z_order(settings: Settings) -> Outcome:
    """1 GB by two columns, with the proof of every row."""
    table = _generated(settings, _FILES[0])
    runs = run_pairs(
        partial(_ours, table), partial(_deltalake, table), runs=settings.runs, label="cluster"
    )
    ours, peer = runs
    cpu = Row(
        name="CPU time",
        unit="s",
        ours=[run.cpu_seconds for run in ours],
        peer=[run.cpu_seconds for run in peer],
    )
    return Outcome(
        rows=[
            *time_and_memory(*runs, prefix="", targets=("1.0", "0.5")),
            cpu,
            *(
                Row(
                    name=f"{what} that a box of 1% of the rows touches",
                    unit=unit,
                    ours=[float(run.report[key]) for run in ours],
                    peer=[float(run.report[key]) for run in peer],
                    target="1.0" if key == "files_touched" else "",
                )
                for what, unit, key in (
                    ("files", "", "files_touched"),
                    ("bytes", "MB", "mb_touched"),
                )
            ),
        ],
        notes=[f"{ours[0].report['files']} files afterwards, and {peer[0].report['files']}"],
    )


def memory(settings: Settings) -> Outcome:
    """10 GB of input against 1 GB, both ours."""
    small, large = (_generated(settings, files) for files in _FILES)
    runs = run_pairs(
        partial(_ours, large), partial(_ours, small), runs=settings.runs, label="cluster-memory"
    )
    return Outcome(rows=time_and_memory(*runs, prefix="10 GB and 1 GB: ", targets=("", "1.1")))


def touched_by_boxes(table: Path) -> Mapping[str, float]:
    """Returns how many files and megabytes a box touches on average, by the bounds in the log."""
    import pyarrow as pa
    from deltalake import DeltaTable

    adds = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pydict()
    files = [
        tuple((adds[f"min.{name}"][at], adds[f"max.{name}"][at]) for name in COLUMNS)
        for at in range(len(adds["path"]))
    ]
    chance, amounts = random.Random(0), NormalDist(100, 30)
    count, size = 0, 0
    for _ in range(_BOXES):
        user, amount = (chance.uniform(0.001, 0.999 - _SIDE) for _ in COLUMNS)
        box = (
            (user * 1_000_000, (user + _SIDE) * 1_000_000),
            (amounts.inv_cdf(amount), amounts.inv_cdf(amount + _SIDE)),
        )
        for at, bounds in enumerate(files):
            if all(
                low <= to and high >= since
                for (low, high), (since, to) in zip(bounds, box, strict=True)
            ):
                count += 1
                size += adds["size_bytes"][at]
    return {
        "files": len(files),
        "files_touched": count / _BOXES,
        "mb_touched": size / _BOXES / 1e6,
    }


def _ours(table: Path) -> Run:
    options = ["--by", ",".join(COLUMNS), "--target-bytes", str(TARGET_BYTES), "--json"]
    with tables.linked_whole(table) as copy:
        return _measured([*CLUSTER, str(copy), *options], copy)


def _deltalake(table: Path) -> Run:
    argv = [sys.executable, "-m", "benchmarks.subjects", "z-order-deltalake"]
    with tables.linked_whole(table) as copy:
        return _measured([*argv, str(copy), str(TARGET_BYTES), *COLUMNS], copy)


def _measured(argv: list[str], table: Path) -> Run:
    run = run_process(argv)
    boxes = run_process([sys.executable, "-m", "benchmarks.subjects", "boxes", str(table)]).report
    shutil.rmtree(table, ignore_errors=True)
    return Run(seconds=run.seconds, peak_mb=run.peak_mb, cpu_seconds=run.cpu_seconds, report=boxes)


def _generated(settings: Settings, files: int) -> Path:
    return tables.generated(settings.work, by="data_files", files=files, rows_per_file=20_000)


FIGURES: Mapping[str, Figure] = {
    name: Figure(title=title, needs="import delta_maintenance.cli.main", measure=measure)
    for name, title, measure in [
        ("cluster", "`cluster` of 1 GB by two columns, against deltalake", z_order),
        ("cluster-memory", "`cluster` of 10 GB, and of 1 GB", memory),
    ]
}
