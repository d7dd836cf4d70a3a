"""Runs the benchmark: ``python -m benchmarks.run [FIGURE ...] [options]``.

Prints Markdown tables on stdout and its progress on stderr. `--record` also writes them into
benchmarks/results, from which the documentation makes its tables and plots. A figure whose subject
is not there is skipped, with the reason. A target is printed, never asserted; the status is 1 only
where a measured process failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import (
    dag_parsing,
    dagster_figures,
    figures,
    fsspec_figures,
    guard_figures,
    rewrite_figures,
    spark_rewrite_figures,
    upkeep_figures,
)
from benchmarks.measure import ProcessFailed, compile_modules
from benchmarks.outcome import Settings
from benchmarks.results import RESULTS, Conditions, RecordedFigure

FIGURES = {
    **figures.FIGURES,
    **fsspec_figures.FIGURES,
    **guard_figures.FIGURES,
    **rewrite_figures.FIGURES,
    **spark_rewrite_figures.FIGURES,
    **upkeep_figures.FIGURES,
    **dag_parsing.FIGURES,
    **dagster_figures.FIGURES,
}
_PACKAGES = ["deltalake", "pyarrow", "numpy", "apache-airflow", "dagster"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(FIGURES))
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--adds", type=int, default=1_000_000)
    parser.add_argument("--removes", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5, help="the number of pairs")
    parser.add_argument(
        "--share",
        type=float,
        default=1.0,
        help="of files and appends of figures on Spark, such as 0.1",
    )
    parser.add_argument("--work", type=Path, help="keeps the generated logs for the next run")
    parser.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=RESULTS,
        metavar="FOLDER",
        help="write a JSON file for each figure, by default into benchmarks/results",
    )
    given = parser.parse_args()
    unknown = [name for name in given.figures if name not in FIGURES]
    if unknown:
        parser.error(f"no figure {unknown[0]}: there are {', '.join(FIGURES)}")

    conditions = Conditions(
        day=datetime.now(UTC).date().isoformat(),
        machine=_machine(),
        load=round(os.getloadavg()[0], 1),
        size=f"{given.commits} commits, {given.adds} adds, {given.removes} removes",
    )
    print(conditions.machine, flush=True)
    compile_modules()
    with tempfile.TemporaryDirectory(prefix="delta-benchmark-") as scratch:
        work = (given.work or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        settings = Settings(
            commits=given.commits,
            adds=given.adds,
            removes=given.removes,
            runs=given.runs,
            work=work,
            share=given.share,
        )
        statuses = [
            _measure(name, settings, conditions, given.record) for name in given.figures or FIGURES
        ]
        return max(statuses)


def _measure(name: str, settings: Settings, conditions: Conditions, record: Path | None) -> int:
    figure = FIGURES[name]
    print(f"\n### {figure.title}\n", flush=True)
    reason = figure.missing(settings)
    if reason:
        print(f"Skipped: {reason}", flush=True)
        return 0
    try:
        outcome = figure.measure(settings)
    except ProcessFailed as failure:
        print(f"Failed: {failure}", flush=True)
        return 1
    print(outcome.to_markdown(), flush=True)
    if record is not None:
        record.mkdir(parents=True, exist_ok=True)
        document = RecordedFigure(title=figure.title, conditions=conditions, outcome=outcome)
        (record / f"{name}.json").write_text(document.to_json())
    return 0


def _machine() -> str:
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} absent")
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, {', '.join(found)}"
    )


if __name__ == "__main__":
    sys.exit(main())
