"""What is measured: each figure runs its subject and a peer in pairs and gives rows to print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks import tables
from benchmarks.measure import Run, Spread, run_pairs, run_process
from benchmarks.outcome import (
    Figure,
    Outcome,
    Row,
    Settings,
    agreement,
    airflow_home,
    time_and_memory,
)

CHECKPOINT = [str(Path(sys.executable).parent / "delta-maintenance"), "checkpoint"]
"""Our command line; the table and the options follow."""

BACKFILL = [CHECKPOINT[0], "backfill-row-ids"]
VACUUM = [CHECKPOINT[0], "vacuum"]

COMPACT_LOG = [CHECKPOINT[0], "compact-log"]

V1_OPTIONS = ["--kind", "classic"]
V2_OPTIONS = ["--kind", "v2-json"]

_COMPACTED_ADDS = 100_000
_COMPACTED_REMOVES = 10_000

_SPARK_FILES = 1_000_000

_TAIL_COMMITS = 100
_TAIL_ADDS = 100 * _TAIL_COMMITS
_TAIL_REMOVES = 10 * _TAIL_COMMITS


def checkpoint(settings: Settings) -> Outcome:
    """A checkpoint of a log that has none, against ``create_checkpoint`` of deltalake."""
    table = tables.generated(
        settings.work, commits=settings.commits, adds=settings.adds, removes=settings.removes
    )
    return _checkpoints(
        table,
        settings,
        ours=lambda copy: [*CHECKPOINT, str(copy), "--json"],
        peer=lambda copy: _subject("checkpoint-deltalake", copy),
        targets=("0.25", "0.5", "0.35"),
    )


def v2(settings: Settings) -> Outcome:
    """A V2 checkpoint with sidecars, against our own V1 checkpoint of the same table."""
    table = tables.generated(
        settings.work, commits=settings.commits, adds=settings.adds, removes=settings.removes
    )
    return _checkpoints(
        table,
        settings,
        ours=lambda copy: [*CHECKPOINT, str(copy), *V2_OPTIONS, "--json"],
        peer=lambda copy: [*CHECKPOINT, str(copy), *V1_OPTIONS, "--json"],
        targets=("1.0", "", ""),
        v2=True,
    )


def opening(settings: Settings) -> Outcome:
    """A table opened from a checkpoint that deltalake wrote, with small commits after it."""
    table = tables.generated(
        settings.work,
        commits=settings.commits,
        adds=settings.adds,
        removes=_TAIL_REMOVES,
        tail_commits=_TAIL_COMMITS,
        tail_adds=_TAIL_ADDS,
    )
    rows: list[Row] = []
    notes: list[str] = []
    with tables.linked(table, versions=settings.commits) as copy:
        run_process(_subject("checkpoint-deltalake", copy))
        tables.link_commits(table, copy)
        tables.warm(copy)
        for what, name in [("open", "open, count files"), ("files", "open, list paths and sizes")]:
            ours, peer = run_pairs(
                partial(run_process, _subject(f"{what}-ours", copy)),
                partial(run_process, _subject(f"{what}-deltalake", copy)),
                runs=settings.runs,
                label=name,
            )
            rows += time_and_memory(ours, peer, prefix=f"{name}: ", targets=("0.5", ""))
            notes += agreement(name, ours[0].report, peer[0].report)
    return Outcome(rows=rows, notes=notes)


def backfill(settings: Settings) -> Outcome:
    """Row IDs for every file of a log without a checkpoint, and what its log costs to open then.

    No peer outside of Delta Spark can do this. Opening is compared with the same table that got a
    checkpoint and nothing else.
    """
    table = tables.generated(settings.work, commits=settings.commits, adds=settings.adds, removes=0)
    tables.warm(table)
    runs: list[Run] = []
    after: list[Run] = []
    before: list[Run] = []
    for number in range(settings.runs):
        with tables.linked(table) as copy:
            runs.append(run_process([*BACKFILL, str(copy), "--json"]))
            after.append(run_process(_subject("open-ours", copy)))
        with tables.linked(table) as copy:
            run_process([*CHECKPOINT, str(copy)])
            before.append(run_process(_subject("open-ours", copy)))
        print(
            f"backfill {number + 1}/{settings.runs}: {runs[-1].seconds:.2f} s, "
            f"{runs[-1].cpu_seconds:.2f} s of CPU, {runs[-1].peak_mb:.0f} MB",
            file=sys.stderr,
            flush=True,
        )
    report = runs[0].report
    notes = [
        f"{report['files_backfilled']} files in {report['num_commits']} commits, those that change "
        f"protocol and property included; the result is {report['status']!r}",
        *agreement("files", {"files": after[0].report["files"]}, before[0].report),
    ]
    rows = [
        Row(name=name, unit=unit, ours=amounts, peer=None, target=target)
        for name, unit, amounts, target in [
            ("wall time", "s", [run.seconds for run in runs], ""),
            ("CPU time", "s", [run.cpu_seconds for run in runs], "60 s"),
            ("peak memory", "MB", [run.peak_mb for run in runs], "2147 MB"),
        ]
    ]
    opened = time_and_memory(after, before, prefix="open, after and before: ", targets=("1.0", ""))
    return Outcome(rows=[*rows, *opened], notes=notes)


def compaction(settings: Settings) -> Outcome:
    """All commits of a table in one compaction, against ``compact_logs`` of deltalake."""
    table = tables.generated(
        settings.work, commits=settings.commits, adds=_COMPACTED_ADDS, removes=_COMPACTED_REMOVES
    )
    sizes: tuple[list[float], list[float]] = ([], [])

    def measured(side: int, *argv: str, options: tuple[str, ...] = ()) -> Run:
        with tables.linked(table) as copy:
            tables.warm(copy)
            run = run_process([*argv, str(copy), *options])
            sizes[side].append(tables.compaction_mb(copy))
        return run

    runs = run_pairs(
        partial(measured, 0, *COMPACT_LOG, f"--commits-per-file={settings.commits}"),
        partial(measured, 1, *_subject("compact-deltalake")),
        runs=settings.runs,
        label="compact-log",
    )
    rows = [
        *time_and_memory(*runs, prefix="", targets=("0.33", "0.5")),
        Row(name="file size", unit="MB", ours=list(sizes[0]), peer=list(sizes[1])),
    ]
    ours, peer = run_pairs(
        partial(measured, 0, *_subject("compact-ours"), options=(str(settings.commits),)),
        partial(measured, 1, *_subject("compact-deltalake")),
        runs=settings.runs,
        label="compact-log, without its start",
    )
    rows.append(
        Row(
            name="open and compact, without the start of the process",
            unit="s",
            ours=[run.report["seconds"] for run in ours],
            peer=[run.report["seconds"] for run in peer],
            target="0.33",
        )
    )
    return Outcome(rows=rows)


def vacuum(settings: Settings) -> Outcome:
    """A dry run over a folder on the local disk, against that of deltalake."""
    table = tables.generated(
        settings.work, by="dead_files", files=120_000, dead=29_900, partitions=336
    )
    tables.warm(table)
    # For the note, and so that neither side is the first to read the folder.
    listed = run_process([*VACUUM, str(table), "--dry-run", "--json"]).report
    ours, peer = run_pairs(
        partial(run_process, [*VACUUM, str(table), "--dry-run"]),
        partial(run_process, _subject("vacuum-deltalake", table)),
        runs=settings.runs,
        label="vacuum",
    )
    return Outcome(
        rows=time_and_memory(ours, peer, prefix="", targets=("0.8", "1.0")),
        notes=agreement("vacuum", {"files": listed["files"]}, peer[0].report),
    )


def vacuum_spark(settings: Settings) -> Outcome:
    """What the driver of a dry run on a cluster holds, of ten times the files and of the files."""
    small, large = (
        tables.generated(settings.work, by="dead_files", files=n, dead=n // 4, partitions=336)
        for n in (_SPARK_FILES // 10, _SPARK_FILES)
    )
    argv = [sys.executable, "-m", "benchmarks.spark_vacuum"]
    runs = run_pairs(
        partial(run_process, [*argv, str(large)]),
        partial(run_process, [*argv, str(small)]),
        runs=settings.runs,
        label="vacuum-spark",
    )
    quantities = {
        "heap after the run": "heap_mb",
        "heap at most after any collection": "heap_peak_mb",
        "peak memory of the JVM": "jvm_mb",
        "peak memory of the Python driver": "python_mb",
    }
    rows = [
        Row(
            name=name,
            unit="MB",
            ours=[run.report[key] for run in runs[0]],
            peer=[run.report[key] for run in runs[1]],
            target="1.1",
        )
        for name, key in quantities.items()
    ]
    local = run_process([*VACUUM, str(large), "--dry-run", "--json"]).report
    return Outcome(
        rows=rows, notes=agreement("vacuum", {"files": local["files"]}, runs[0][0].report)
    )


def imports(settings: Settings) -> Outcome:
    """The import of our operators, against what Airflow itself has to import for them."""
    env = airflow_home(settings)
    # Neither side pays for the first start of Airflow, which writes its configuration.
    run_process(_subject("import-ours"), env=env)
    ours, peer = run_pairs(
        partial(run_process, _subject("import-ours"), env=env),
        partial(run_process, _subject("import-airflow"), env=env),
        runs=settings.runs,
        label="import",
    )
    added = Spread.of([run.report["added_ms"] for run in ours])
    heavy = ours[0].report["heavy"]
    notes = [
        f"our import adds {added.median:.0f} ms ({added.low:.0f} .. {added.high:.0f}) "
        "after Airflow's own; the target is 100 ms",
        f"of pyarrow and pyspark it loads {' and '.join(heavy) if heavy else 'neither'}",
    ]
    return Outcome(rows=time_and_memory(ours, peer, prefix="", targets=("", "")), notes=notes)


FIGURES: Mapping[str, Figure] = {
    "checkpoint": Figure(
        title="`delta-maintenance checkpoint` against deltalake's open and `create_checkpoint`",
        needs="import delta_maintenance.cli.main",
        measure=checkpoint,
    ),
    "open": Figure(
        title=f"Opening from a checkpoint and {_TAIL_COMMITS} commits, against deltalake",
        needs="from delta_maintenance import open_table",
        measure=opening,
    ),
    "v2": Figure(
        title="Our V2 checkpoint with sidecars against our V1 checkpoint",
        needs="import delta_maintenance.cli.main",
        measure=v2,
    ),
    "backfill": Figure(
        title="`delta-maintenance backfill-row-ids`, which no peer can do",
        needs="import delta_maintenance.cli.main",
        measure=backfill,
    ),
    "compact-log": Figure(
        title="`delta-maintenance compact-log` of a whole log against deltalake's `compact_logs`",
        needs="import delta_maintenance.cli.main",
        measure=compaction,
    ),
    "vacuum": Figure(
        title="`delta-maintenance vacuum --dry-run` against deltalake's `vacuum(full=True)`",
        needs="import delta_maintenance.cli.main",
        measure=vacuum,
    ),
    "vacuum-spark": Figure(
        title=f"The driver of a Spark vacuum of {_SPARK_FILES} files, and of a tenth of them",
        needs="import pyspark",
        measure=vacuum_spark,
    ),
    "import": Figure(
        title="`import delta_maintenance_airflow.operators` against Airflow's own imports",
        needs="import delta_maintenance_airflow.operators",
        measure=imports,
    ),
}


def _checkpoints(
    table: Path,
    settings: Settings,
    *,
    ours: Callable[[Path], list[str]],
    peer: Callable[[Path], list[str]],
    targets: tuple[str, str, str],
    v2: bool = False,
) -> Outcome:
    """Two ways to checkpoint one log: wall time, memory, size; and whether they say the same."""
    sizes: tuple[list[float], list[float]] = ([], [])
    adds: tuple[list[int | None], list[int | None]] = ([], [])

    def measured(side: int, argv: Callable[[Path], list[str]]) -> Run:
        with tables.linked(table, v2=v2) as copy:
            run = run_process(argv(copy))
            sizes[side].append(tables.checkpoint_mb(copy))
            adds[side].append(tables.checkpointed_adds(copy))
        return run

    tables.warm(table)
    runs = run_pairs(
        partial(measured, 0, ours),
        partial(measured, 1, peer),
        runs=settings.runs,
        label="v2" if v2 else "checkpoint",
    )
    rows = [
        *time_and_memory(*runs, prefix="", targets=targets[:2]),
        Row(name="file size", unit="MB", ours=sizes[0], peer=sizes[1], target=targets[2]),
    ]
    return Outcome(rows=rows, notes=agreement("add", {"files": adds[0][0]}, {"files": adds[1][0]}))


def _subject(name: str, *args: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.subjects", name, *map(str, args)]
