"""The demo: two neglected tables, a run of the policy Dag, comparisons, and the health page.

A third table is clustered, so that queries open fewer of its files.

    make demo
    .venv/bin/python demo/run.py [--engine local|spark] [--keep] [--serve]

Everything happens in .demo, which is created at the start and removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import clustered_rides
import deltalake
import neglected_table
import pyarrow as pa
import pyarrow.compute as pc
import reading
from health_page import PLUGIN, is_shown, wait_for_interrupt
from policy_dag import DAG_ID, run_policy_dag, with_policy
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table as Grid
from telling import console, timed
from throwaway_airflow import ROOT, Airflow

import delta_maintenance
from delta_maintenance.operations.core.facts import size_text
from delta_maintenance.table.read.snapshot import Snapshot

HOME = ROOT / ".demo"
TABLE = HOME / "telemetry"
SMALL_FILES = HOME / "uploads"
RIDES = HOME / "rides"
AIRFLOW_LOG = HOME / "airflow.log"
READERS = ("delta-maintenance", "deltalake")
_CLEARLY = 1.2
"""The ratio of two medians from which on they are said to differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A table as a reader meets it."""

    files: pa.Table
    """Its live files, sorted."""
    log_files: int
    """How many files of the log a reader must read."""
    log_bytes: int
    seconds: dict[str, float]
    """Median CPU time to open it, by reader."""
    rows: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The live data files of a table, and their rows as deltalake reads them."""

    files: int
    size: int
    """In bytes."""
    rows: dict[str, Any]


def main() -> int:
    arguments = _parser().parse_args()
    began = time.monotonic()
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    airflow = with_policy(
        Airflow(home=HOME / "airflow", log=AIRFLOW_LOG),
        telemetry=TABLE,
        uploads=SMALL_FILES,
        engine=arguments.engine,
    )
    try:
        console.print(
            f"[bold]1. Two neglected tables[/], written with deltalake {deltalake.__version__}, "
            "and Airflow's database"
        )
        _prepare(airflow)
        before, small_before = _look(), _look_at_data()
        console.print(f"\n[bold]2. The Dag [cyan]{DAG_ID}[/][/], run by Airflow")
        run_policy_dag(airflow)
        if arguments.serve:
            # The forms are drawn from the Dags in Airflow's database.
            airflow.run("dags", "reserialize")
        # It starts while the tables are compared.
        with airflow.api_server() as server:
            proved = _compare_tables(before, small_before)
            console.print("\n[bold]7. The health page[/]")
            shown = is_shown(server, (TABLE.name, SMALL_FILES.name))
            console.print(f"\n{time.monotonic() - began:.0f} seconds in all.\n")
            console.print(f"The health page: [bold]{server.address}{PLUGIN}[/]", soft_wrap=True)
            if arguments.serve:
                console.print(
                    "[dim]Ctrl-C stops it. No scheduler runs, so triggered Dag runs stay queued.[/]"
                )
                wait_for_interrupt()
            else:
                console.print("[dim]It stops now; --serve keeps it running.[/]")
        return 0 if proved and shown else 1
    finally:
        if arguments.keep:
            console.print(f"Kept: the tables and Airflow's log in {HOME}.")
        else:
            shutil.rmtree(HOME, ignore_errors=True)


def _prepare(airflow: Airflow) -> None:
    """Writes the tables while Airflow creates its database."""
    with timed("{seconds:.0f} s"), ThreadPoolExecutor() as pool:
        database = pool.submit(airflow.run, "db", "migrate")
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("commits", total=neglected_table.COMMITS)
            for done in neglected_table.write_neglected_table(TABLE):
                progress.update(bar, completed=done)
        commits = len(list((TABLE / "_delta_log").glob("*.json")))
        console.print(
            f"   {TABLE.name}: {neglected_table.COMMITS} uploads of {neglected_table.DEVICES} "
            f"small files, old hours deleted now and then;\n   {commits} commits, no checkpoint"
        )
        neglected_table.write_small_files(SMALL_FILES)
        console.print(f"   {SMALL_FILES.name}: {neglected_table.SMALL_FILES} small files")
        database.result()


def _compare_tables(before: State, small_before: Data) -> bool:
    """Shows what the Dag and a clustering changed; returns whether all proofs hold."""
    console.print(f"\n[bold]3. {TABLE.name}: a checkpoint[/]")
    after = _look()
    _compare(before, after, _checkpoint_of(delta_maintenance.open_table(str(TABLE)).snapshot()))
    console.print("\n[bold]4. The same table?[/]")
    proved = _prove(before, after)
    console.print(f"\n[bold]5. {SMALL_FILES.name}: fewer data files, the same rows?[/]")
    proved = _prove_rewrite(small_before, _look_at_data()) and proved
    console.print(f"\n[bold]6. {RIDES.name}: which files does a query open?[/]")
    return _cluster() and proved


def _look() -> State:
    snapshot = delta_maintenance.open_table(str(TABLE)).snapshot()
    sizes = _log_files(snapshot)
    return State(
        files=_sorted_files(snapshot),
        log_files=len(sizes),
        log_bytes=sum(sizes),
        seconds={
            reader: _in_a_process(f"open-with-{reader}", TABLE)["seconds"] for reader in READERS
        },
        rows=_in_a_process("rows", TABLE),
    )


def _look_at_data() -> Data:
    files = delta_maintenance.open_table(str(SMALL_FILES)).snapshot().live_files()
    return Data(
        files=files.num_rows,
        size=pc.sum(files["size"]).as_py(),
        rows=_in_a_process("rows", SMALL_FILES),
    )


def _log_files(snapshot: Snapshot) -> list[int]:
    """Sizes of the log files that make up a snapshot."""
    sizes = [entry.status.size for entry in snapshot.log.segment.tail]
    if snapshot.log.checkpoint is not None:
        sizes += [entry.status.size for entry in snapshot.log.checkpoint.files.entries]
        sizes += [sidecar.size_in_bytes for sidecar in snapshot.log.checkpoint.sidecars]
    return sizes


def _sorted_files(snapshot: Snapshot) -> pa.Table:
    return snapshot.live_files().sort_by("path").combine_chunks()


def _in_a_process(what: str, table: Path) -> dict[str, Any]:
    command = [sys.executable, os.fspath(ROOT / "demo" / "reading.py"), what, os.fspath(table)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        console.print(run.stderr, markup=False)
        raise SystemExit(f"{what} failed")
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def _checkpoint_of(snapshot: Snapshot) -> str:
    checkpoint = snapshot.log.checkpoint
    if checkpoint is None:
        raise SystemExit("the DagRun succeeded, but wrote no checkpoint")
    name = checkpoint.files.name
    return (
        f"V2 ({'JSON' if name.endswith('.json') else 'Parquet'}), "
        f"{len(checkpoint.sidecars)} sidecars"
        if checkpoint.sidecars
        else f"one file ({name})"
    )


def _compare(before: State, after: State, checkpoint: str) -> None:
    grid = Grid("", "before", "after", "", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in grid.columns[1:]:
        column.justify = "right"
    grid.add_row("   checkpoint", "none", checkpoint, "")
    grid.add_row("   log files to read", str(before.log_files), str(after.log_files), "")
    grid.add_row("   their size", size_text(before.log_bytes), size_text(after.log_bytes), "")
    for reader in READERS:
        slow, fast = before.seconds[reader], after.seconds[reader]
        grid.add_row(
            f"   open, {reader}",
            f"{slow:.2f} s",
            f"{fast:.2f} s",
            f"[bold green]{slow / fast:.1f} times faster[/]" if slow > _CLEARLY * fast else "",
        )
    console.print(grid)
    console.print(
        f"   [dim]CPU time to open it in a process that has before, median of {reading.TRIES}[/]"
    )


def _prove(before: State, after: State) -> bool:
    hidden = HOME / "without-the-older-log"
    version = _hide_older_log(hidden)
    reopened = delta_maintenance.open_table(str(hidden)).snapshot()
    by_deltalake = _in_a_process("open-with-deltalake", hidden)
    rows = f"{after.rows['rows']:,} rows"
    claims = {
        f"the same {after.files.num_rows:,} live files, field by field": (
            before.files == after.files
        ),
        f"the same {rows} as deltalake reads them, checksum {after.rows['checksum'][:12]}": (
            before.rows == after.rows
        ),
        f"without the {version} older commits, delta-maintenance finds the same files": (
            reopened.version == version and _sorted_files(reopened) == before.files
        ),
        f"without the {version} older commits, deltalake reads the same rows": (
            by_deltalake["version"] == version and _in_a_process("rows", hidden) == before.rows
        ),
    }
    return _tell(claims)


def _prove_rewrite(before: Data, after: Data) -> bool:
    rows = f"{after.rows['rows']:,} rows"
    return _tell(
        {
            f"{before.files} data files of {size_text(before.size)} before, "
            f"{after.files} of {size_text(after.size)} after": after.files < before.files,
            f"the same {rows} as deltalake reads them, checksum {after.rows['checksum'][:12]}": (
                before.rows == after.rows
            ),
        }
    )


def _cluster() -> bool:
    clustered_rides.write_rides(RIDES)
    rows, before = _in_a_process("rows", RIDES), clustered_rides.files_read(RIDES)
    with timed("clustered by " + " and ".join(clustered_rides.COLUMNS) + " in {seconds:.0f} s"):
        clustered_rides.cluster_rides(RIDES)
    after = clustered_rides.files_read(RIDES)
    clustered_rides.show_reading(before, after)
    return _tell(
        {
            f"the same {rows['rows']:,} rows as deltalake reads them, checksum "
            f"{rows['checksum'][:12]}": rows == _in_a_process("rows", RIDES),
            "every query opens fewer files": all(
                after[name][0] < before[name][0] for name in before
            ),
        }
    )


def _tell(claims: dict[str, bool]) -> bool:
    """Shows which claims hold; gives whether all of them do."""
    for claim, holds in claims.items():
        console.print(f"   [{'green]yes' if holds else 'bold red]NO '}[/]  {escape(claim)}")
    return all(claims.values())


def _hide_older_log(copy: Path) -> int:
    """A copy of the table in which only the checkpoint can tell about versions before its own."""
    snapshot = delta_maintenance.open_table(str(TABLE)).snapshot()
    older = {f"{number:020}.json" for number in range(snapshot.version)}
    shutil.copytree(
        TABLE / "_delta_log", copy / "_delta_log", ignore=lambda _, names: older.intersection(names)
    )
    for path in map(unquote, snapshot.live_files()["path"].to_pylist()):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        # Linked, not copied: data files are never changed.
        os.link(TABLE / path, copy / path)
    return snapshot.version


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--engine",
        choices=("spark", "local"),
        default="spark",
        help="of the checkpoint: a PySpark job (the default), or the worker itself",
    )
    parser.add_argument("--keep", action="store_true", help="keep the tables and Airflow's log")
    parser.add_argument(
        "--serve", action="store_true", help="keep the health page's server running until Ctrl-C"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
