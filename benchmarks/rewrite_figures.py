"""What rewriting data files costs: `optimize` and `cluster` as processes, against `deltalake`. And
what `recompute-stats` and `layout` cost, which nothing else offers.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import NormalDist

from benchmarks import tables
from benchmarks.figures import CHECKPOINT
from benchmarks.measure import Run, run_pairs, run_process
from benchmarks.outcome import Figure, Outcome, Row, Settings, agreement, time_and_memory

OPTIMIZE = [CHECKPOINT[0], "optimize"]
AS_SHIPPED = "as-shipped"
"""In place of a codec: that of `deltalake` itself."""
TARGET_BYTES = 128 << 20
_PLANNED_FILES = 1_000_000
_MEMORY_FILES = (700, 7_000)
"""Files of about 1.5 MB: 1 GB and 10 GB."""


CLUSTER = [CHECKPOINT[0], "cluster"]
COLUMNS = ("user", "amount")
CLUSTERED_BYTES = 32 << 20
_FOOTERS = 100_000
_BOXES = 1_000
_PREDICATES = 100
_SIDE = 0.1
"""The share of the values of each of the two columns in a box, so that it has 1% of the rows."""


def many_files(settings: Settings) -> Outcome:
    """400 files of 20,000 rows."""
    return _compared(settings, "optimize", ("1.15", "0.8"), files=400, rows_per_file=20_000)


def as_shipped(settings: Settings) -> Outcome:
    """The same files, with the codec and the level that each tool chooses by itself."""
    return _as_shipped(settings, "optimize-shipped")


def independent(settings: Settings) -> Outcome:
    """As many files of eight columns, those of a check that others made, as both tools ship."""
    return _as_shipped(settings, "optimize-independent", independent=1)


def t1(settings: Settings) -> Outcome:
    """2,000 files of 1 MB, with the proof and without it."""
    return _compared(settings, "optimize-t1", ("1.15", ""), files=2000, rows_per_file=13_500)


def t2(settings: Settings) -> Outcome:
    """400 partitions of 20 files of 0.5 MB."""
    return _compared(
        settings, "optimize-t2", ("1.2", ""), files=8000, rows_per_file=6_700, partitions=400
    )


def t3(settings: Settings) -> Outcome:
    """40 files of 64 MB, each of one row group, which ours copies without decoding it."""
    shape = {"files": 40, "rows_per_file": 1_048_576, "different": 4}
    return _compared(settings, "optimize-t3", ("0.2", ""), codec="SNAPPY", proof="1.1", **shape)


def mixed(settings: Settings) -> Outcome:
    """20 files of 64 MB, and 200 files of 20,000 rows among them, which ours decodes."""
    shape = {"files": 20, "rows_per_file": 1_048_576, "different": 4, "small_files": 200}
    return _compared(settings, "optimize-mixed", ("0.45", ""), codec="SNAPPY", **shape)


def memory(settings: Settings) -> Outcome:
    """10 GB of input against 1 GB, both ours, with two workers."""
    small, large = (
        _generated(settings, files=files, rows_per_file=20_000) for files in _MEMORY_FILES
    )
    runs = run_pairs(
        partial(_ours, large, "rows"),
        partial(_ours, small, "rows"),
        runs=settings.runs,
        label="optimize-memory",
    )
    return Outcome(rows=time_and_memory(*runs, prefix="10 GB and 1 GB: ", targets=("", "1.2")))


def planning(settings: Settings) -> Outcome:
    """The plan for a million files without a checkpoint."""
    table = tables.generated(settings.work, commits=1000, adds=_PLANNED_FILES, removes=0)
    tables.warm(table)
    runs = [
        run_process([*OPTIMIZE, str(table), "--dry-run", "--json"]) for _ in range(settings.runs)
    ]
    report = runs[0].report
    return Outcome(
        rows=_alone(runs, ("5 s", "", "1074 MB")),
        # The generated log names data files that do not exist, so that none can be opened.
        notes=[f"{report['files']} of {report['num_files']} files are to be rewritten"],
    )


def statistics(settings: Settings) -> Outcome:
    """The statistics of many files from their footers."""
    table = _generated(settings, files=_FOOTERS, rows_per_file=100, floats=0)
    runs = []
    for _ in range(settings.runs):
        with tables.linked_whole(table) as copy:
            runs.append(run_process([CHECKPOINT[0], "recompute-stats", str(copy), "--json"]))
    report = runs[0].report
    return Outcome(
        rows=_alone(runs, ("", "60 s", "1000 MB")),
        notes=[f"{report['files_recomputed']} files, {report['files_decoded']} of them decoded"],
    )


def layout(settings: Settings) -> Outcome:
    """The report for a million files in a checkpoint, and the files alone."""
    table = tables.generated(settings.work, by="generate_state", files=_PLANNED_FILES)
    tables.warm(table)
    runs = run_pairs(
        lambda: run_process([CHECKPOINT[0], "layout", str(table), "--json"]),
        lambda: run_process(
            [sys.executable, "-m", "benchmarks.subjects", "files-ours", str(table)]
        ),
        runs=settings.runs,
        label="layout",
    )
    return Outcome(rows=[*_alone(runs[0], ("", "5 s", "")), _cpu(*runs, "over the files alone: ")])


def z_order(settings: Settings) -> Outcome:
    """1 GB by two columns, with the proof of every row."""
    table = _generated(settings, files=_MEMORY_FILES[0], rows_per_file=20_000)
    runs = run_pairs(
        partial(_clustered, table), partial(_z_ordered, table), runs=settings.runs, label="cluster"
    )
    ours, peer = runs
    return Outcome(
        rows=[
            *time_and_memory(*runs, prefix="", targets=("1.0", "0.5")),
            _cpu(ours, peer, ""),
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


def cluster_memory(settings: Settings) -> Outcome:
    """10 GB of input against 1 GB, both ours."""
    small, large = (
        _generated(settings, files=files, rows_per_file=20_000) for files in _MEMORY_FILES
    )
    runs = run_pairs(
        partial(_clustered, large),
        partial(_clustered, small),
        runs=settings.runs,
        label="cluster-memory",
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

    def side(share: float) -> tuple[tuple[float, float], tuple[float, float]]:
        user, amount = (chance.uniform(0.001, 0.999 - share) for _ in COLUMNS)
        return (
            (user * 1_000_000, (user + share) * 1_000_000),
            (amounts.inv_cdf(amount), amounts.inv_cdf(amount + share)),
        )

    def touched(box: tuple[tuple[float, float], ...]) -> tuple[int, int]:
        sizes = [
            adds["size_bytes"][at]
            for at, bounds in enumerate(files)
            if all(
                low <= to and high >= since
                for (low, high), (since, to) in zip(bounds, box, strict=True)
            )
        ]
        return len(sizes), sum(sizes)

    found = [touched(side(_SIDE)) for _ in range(_BOXES)]
    everything = (-math.inf, math.inf)
    predicates = []
    for number in range(_PREDICATES):
        user, amount = side(_SIDE if number % 2 else _SIDE**2)
        box = ((user, amount), (user, everything), (user, amount), (everything, amount))[number % 4]
        predicates.append(touched(box)[1])
    return {
        "files": len(files),
        "files_touched": sum(count for count, _ in found) / _BOXES,
        "mb_touched": sum(size for _, size in found) / _BOXES / 1e6,
        "percent_touched": sum(size for _, size in found) / _BOXES / sum(adds["size_bytes"]) * 100,
        "mb_of_predicates": sum(predicates) / 1e6,
    }


def _compared(
    settings: Settings,
    name: str,
    targets: tuple[str, str],
    codec: str = "ZSTD",
    proof: str = "1.2",
    **shape: int,
) -> Outcome:
    """Ours with the proof against deltalake, and ours with the proof against ours without it.

    `codec` is that of deltalake, and the same as in the new files of ours.
    """
    table = _generated(settings, **shape)
    ours, peer = run_pairs(
        partial(_ours, table, "rows"),
        partial(_deltalake, table, codec),
        runs=settings.runs,
        label=name,
    )
    proved, counted = run_pairs(
        partial(_ours, table, "rows"),
        partial(_ours, table, "counts"),
        runs=settings.runs,
        label=f"{name}, proof",
    )
    return Outcome(
        rows=[
            *time_and_memory(ours, peer, prefix="", targets=targets),
            _cpu(ours, peer, ""),
            *time_and_memory(proved, counted, prefix="proof on and off: ", targets=(proof, "")),
            _cpu(proved, counted, "proof on and off: "),
        ],
        notes=agreement("files before", {"files": ours[0].report["files_before"]}, peer[0].report)
        + [f"{ours[0].report['files_after']} files afterwards, and {peer[0].report['after']}"],
    )


def _as_shipped(settings: Settings, name: str, **shape: int) -> Outcome:
    table = _generated(settings, files=400, rows_per_file=20_000, **shape)
    ours, peer = run_pairs(
        partial(_ours, table, "rows"),
        partial(_deltalake, table, AS_SHIPPED),
        runs=settings.runs,
        label=name,
    )
    rows = time_and_memory(ours, peer, prefix="", targets=("0.9", "0.6"))
    return Outcome(rows=[*rows, _cpu(ours, peer, "")])


def _alone(runs: list[Run], targets: tuple[str, str, str]) -> list[Row]:
    """Wall time, CPU time and memory, without a peer."""
    return [
        Row(name=name, unit=unit, ours=amounts, peer=None, target=target)
        for name, unit, amounts, target in [
            ("wall time", "s", [run.seconds for run in runs], targets[0]),
            ("CPU time", "s", [run.cpu_seconds for run in runs], targets[1]),
            ("peak memory", "MB", [run.peak_mb for run in runs], targets[2]),
        ]
    ]


def _cpu(ours: list[Run], peer: list[Run], prefix: str) -> Row:
    return Row(
        name=f"{prefix}CPU time",
        unit="s",
        ours=[run.cpu_seconds for run in ours],
        peer=[run.cpu_seconds for run in peer],
    )


def _ours(table: Path, proof: str) -> Run:
    options = ["--target-bytes", str(TARGET_BYTES), "--proof", proof, "--workers", "2", "--json"]
    with _linked(table) as copy:
        return run_process([*OPTIMIZE, str(copy), *options])


def _deltalake(table: Path, codec: str) -> Run:
    argv = [sys.executable, "-m", "benchmarks.subjects", "optimize-deltalake"]
    with _linked(table) as copy:
        return run_process([*argv, str(copy), str(TARGET_BYTES), codec])


def _clustered(table: Path) -> Run:
    options = [
        *(word for name in COLUMNS for word in ("--by", name)),
        "--target-bytes",
        str(CLUSTERED_BYTES),
        "--json",
    ]
    with tables.linked_whole(table) as copy:
        return _measured([*CLUSTER, str(copy), *options], copy)


def _z_ordered(table: Path) -> Run:
    argv = [sys.executable, "-m", "benchmarks.subjects", "z-order-deltalake"]
    with tables.linked_whole(table) as copy:
        return _measured([*argv, str(copy), str(CLUSTERED_BYTES), *COLUMNS], copy)


def _measured(argv: list[str], table: Path) -> Run:
    run = run_process(argv)
    boxes = run_process([sys.executable, "-m", "benchmarks.subjects", "boxes", str(table)]).report
    return Run(seconds=run.seconds, peak_mb=run.peak_mb, cpu_seconds=run.cpu_seconds, report=boxes)


def _generated(settings: Settings, **shape: int) -> Path:
    return tables.generated(settings.work, by="data_files", **shape)


@contextmanager
def _linked(table: Path) -> Iterator[Path]:
    """The table under another name, its files as hard links: no file of a table is ever changed."""
    copy = table.with_name(f"{table.name}.copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(table, copy, copy_function=os.link)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


FIGURES: Mapping[str, Figure] = {
    name: Figure(title=title, needs="import delta_maintenance.cli.main", measure=measure)
    for name, title, measure in [
        ("optimize", "`optimize` of 400 files of 20,000 rows, against deltalake", many_files),
        (
            "optimize-shipped",
            "`optimize` of 400 files of 20,000 rows against `optimize.compact` of deltalake, "
            "as both tools are shipped",
            as_shipped,
        ),
        (
            "optimize-independent",
            "`optimize` of 400 files of 8 columns against `optimize.compact` of deltalake, "
            "as both tools are shipped",
            independent,
        ),
        ("optimize-t1", "`optimize` of 2,000 files of 1 MB, against deltalake", t1),
        ("optimize-t2", "`optimize` of 400 partitions of 20 files, against deltalake", t2),
        ("optimize-t3", "`optimize` of 40 files of 64 MB, against deltalake", t3),
        ("optimize-mixed", "`optimize` of 20 files of 64 MB and 200 small ones", mixed),
        ("optimize-memory", "`optimize` of 10 GB, and of 1 GB", memory),
        ("cluster", "`cluster` of 1 GB by two columns, against deltalake", z_order),
        ("cluster-memory", "`cluster` of 10 GB, and of 1 GB", cluster_memory),
        ("statistics", f"`recompute-stats` of {_FOOTERS:,} files from footers", statistics),
        ("layout", f"`layout` of {_PLANNED_FILES:,} files", layout),
        ("optimize-plan", f"the plan of `optimize` for {_PLANNED_FILES:,} files", planning),
    ]
}
