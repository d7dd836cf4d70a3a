"""What upkeep costs where little changed: incremental checkpoints, and opening by a checksum."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks import tables
from benchmarks.figures import CHECKPOINT
from benchmarks.measure import Run, run_pairs, run_process
from benchmarks.outcome import Figure, Outcome, Row, Settings, agreement

_COMMITS = 1000
_REMOVES = 100
_TENFOLD = 10
_LATER_COMMITS = 10
_CHECKSUM = [CHECKPOINT[0], "checksum"]


def incremental(settings: Settings) -> Outcome:
    """An incremental checkpoint after 1,000 small commits, against a full one of the same table."""
    return _against_full(_state(settings, settings.adds), settings, targets=("0.05", "0.15"))


def worst_case(settings: Settings) -> Outcome:
    """The same after removes that touch every sidecar, so that nothing can be taken over."""
    table = tables.generated(
        settings.work,
        by="generate_state",
        files=settings.adds,
        commits=_COMMITS,
        removes=settings.adds // 100,
        local=0,
    )
    return _against_full(table, settings, targets=("1.1", "1.1"))


def tenfold(settings: Settings) -> Outcome:
    """An incremental checkpoint of a table of ten times the files, after the same commits."""
    small, large = (_state(settings, settings.adds * times) for times in (1, _TENFOLD))
    ours, peer = run_pairs(
        partial(_checkpoint, large, "always"),
        partial(_checkpoint, small, "always"),
        runs=settings.runs,
        label="incremental, tenfold",
    )
    return Outcome(rows=_rows(ours, peer, targets={"wall time": "1.5", "peak memory": "1.2"}))


def inspecting(settings: Settings) -> Outcome:
    """Protocol, properties and totals from a version checksum, against counting the files."""
    table = _state(settings, settings.adds)
    subject = [sys.executable, "-m", "benchmarks.subjects", "inspect-ours"]
    with tables.linked_whole(table) as plain:
        run_process([*CHECKPOINT, str(plain)])
        without = [run_process([*subject, str(plain)]) for _ in range(settings.runs)]
        run_process([*_CHECKSUM, str(plain), "--no-checkpoints"])
        having = [run_process([*subject, str(plain)]) for _ in range(settings.runs)]
    rows = [
        Row(
            name=f"{name} beyond the start of the process",
            unit="ms",
            ours=[1000 * run.report[key] for run in having],
            peer=[1000 * run.report[key] for run in without],
            target="60 ms" if key == "seconds" else "",
        )
        for name, key in (("wall time", "seconds"), ("CPU time", "cpu"))
    ]
    notes = [
        f"by the checksum: {having[0].report['by_checksum']}",
        *agreement(
            "inspect", {"files": having[0].report["files"]}, {"files": without[0].report["files"]}
        ),
    ]
    return Outcome(rows=rows, notes=notes)


def second_look(settings: Settings) -> Outcome:
    """A snapshot brought forward by ten commits, against opening the table and counting."""
    runs: list[Run] = []
    for _ in range(settings.runs):
        with tables.linked_whole(_state(settings, settings.adds)) as copy:
            run_process([*CHECKPOINT, str(copy)])
            subject = [sys.executable, "-m", "benchmarks.subjects", "second-look-ours"]
            runs.append(run_process([*subject, str(copy), str(_LATER_COMMITS)]))
    row = Row(
        name="CPU time of the second look over the first",
        unit="s",
        ours=[run.report["second_cpu"] for run in runs],
        peer=[run.report["first_cpu"] for run in runs],
        target="0.05",
    )
    notes = [f"{runs[0].report['files']} files, then {runs[0].report['added']} more"]
    return Outcome(rows=[row], notes=notes)


def _state(settings: Settings, files: int) -> Path:
    return tables.generated(
        settings.work, by="generate_state", files=files, commits=_COMMITS, removes=_REMOVES
    )


def _checkpoint(table: Path, choice: str) -> Run:
    with tables.linked_whole(table) as copy:
        tables.warm(copy)
        return run_process(
            [*CHECKPOINT, str(copy), "--kind", "v2-json", "--incremental", choice, "--json"]
        )


def _against_full(table: Path, settings: Settings, *, targets: tuple[str, str]) -> Outcome:
    ours, peer = run_pairs(
        partial(_checkpoint, table, "always"),
        partial(_checkpoint, table, "never"),
        runs=settings.runs,
        label="incremental",
    )
    start = statistics.median(
        run_process([sys.executable, "-m", "benchmarks.subjects", "start-ours"]).cpu_seconds
        for _ in range(3)
    )
    rows = [
        *_rows(ours, peer, targets={}),
        Row(
            name="CPU time beyond the start of the process",
            unit="s",
            ours=[max(run.cpu_seconds - start, 0) for run in ours],
            peer=[run.cpu_seconds - start for run in peer],
            target=targets[1],
        ),
        Row(
            name="bytes written",
            unit="MB",
            ours=[run.report["bytes_written"] / 1e6 for run in ours],
            peer=[run.report["bytes_written"] / 1e6 for run in peer],
            target=targets[0],
        ),
    ]
    report = ours[0].report
    notes = [
        f"{report['sidecars_taken_over']} of {report['sidecars']} sidecars were taken over; the "
        f"start of a process takes {start:.2f} s of CPU",
        *agreement("checkpoint", {"num_files": report["num_files"]}, peer[0].report),
    ]
    return Outcome(rows=rows, notes=notes)


def _rows(ours: Sequence[Run], peer: Sequence[Run], *, targets: Mapping[str, str]) -> list[Row]:
    return [
        Row(
            name=name,
            unit=unit,
            ours=[getattr(run, key) for run in ours],
            peer=[getattr(run, key) for run in peer],
            target=targets.get(name, ""),
        )
        for name, unit, key in (
            ("wall time", "s", "seconds"),
            ("CPU time", "s", "cpu_seconds"),
            ("peak memory", "MB", "peak_mb"),
        )
    ]


FIGURES: Mapping[str, Figure] = {
    "incremental": Figure(
        title=f"An incremental checkpoint after {_COMMITS} commits, against a full one",
        needs="import delta_maintenance.cli.main",
        measure=incremental,
    ),
    "incremental-worst": Figure(
        title="The same after removes that touch every sidecar",
        needs="import delta_maintenance.cli.main",
        measure=worst_case,
    ),
    "incremental-tenfold": Figure(
        title="An incremental checkpoint of ten times the files, after the same commits",
        needs="import delta_maintenance.cli.main",
        measure=tenfold,
    ),
    "second-look": Figure(
        title=f"A snapshot brought forward by {_LATER_COMMITS} commits, against opening the table",
        needs="import delta_maintenance.cli.main",
        measure=second_look,
    ),
    "inspect": Figure(
        title="Totals from a version checksum, against counting the files",
        needs="import delta_maintenance.cli.main",
        measure=inspecting,
    ),
}
