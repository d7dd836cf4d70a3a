"""Runs the benchmark: ``python -m benchmarks.run [FIGURE ...] [options]``.

Prints Markdown tables on stdout and its progress on stderr. A figure whose subject is not there is
skipped, with the reason. A target is printed, never asserted; the status is 1 only where a
measured process failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
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
from benchmarks.measure import ProcessFailed, Spread, compile_modules
from benchmarks.outcome import Outcome, Settings

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
    given = parser.parse_args()
    unknown = [name for name in given.figures if name not in FIGURES]
    if unknown:
        parser.error(f"no figure {unknown[0]}: there are {', '.join(FIGURES)}")

    print(_machine(), flush=True)
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
        return max([_print_figure(name, settings) for name in given.figures or FIGURES])


def _print_figure(name: str, settings: Settings) -> int:
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
    _print_outcome(outcome)
    return 0


def _print_outcome(outcome: Outcome) -> None:
    print("| quantity | ratio | min .. max | target | ours | peer |")
    print("|---|---|---|---|---|---|")
    for row in outcome.rows:
        ratio, ours = row.ratio, Spread.of(row.ours)
        compared, peer = "", ""
        if ratio is not None and row.peer is not None:
            compared = f"{ratio.median:.2f} | {ratio.low:.2f} .. {ratio.high:.2f}"
            peer = f"{_amount(Spread.of(row.peer).median)} {row.unit}"
        print(
            f"| {row.name} | {compared or ' | '} | {row.target} "
            f"| {_amount(ours.median)} {row.unit} | {peer} |"
        )
    print()
    for note in outcome.notes:
        print(f"- {note}")
    sys.stdout.flush()


def _amount(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


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
