"""What rewriting data files costs, against Delta Spark: `optimize` as a job on Spark, and `cluster`
as a process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.measure import ROOT, ProcessFailed, run_process
from benchmarks.outcome import Figure, Outcome, Row, Settings, agreement
from benchmarks.rewrite_figures import CLUSTER, COLUMNS
from benchmarks.spark_rewrites import CLUSTERED_BYTES

_WARM_FILES = 40
_CLUSTERED_FILES = 200
_APPENDS = 50
_BY = [word for name in COLUMNS for word in ("--by", name)]
_NEEDS = "import pyspark, os; os.environ['JAVA_HOME']"


class _Session:
    """A process with a warm Spark session."""

    def __init__(self, who: str, work: Path) -> None:
        self._log = (work / f"spark-{who}.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.spark_rewrites", who],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def tell(self, command: str, table: Path) -> dict[str, Any]:
        """The answer to one command. `ProcessFailed` if there is none."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({command: str(table)}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            said = self._log.read().strip().splitlines() or ["no message"]
            raise ProcessFailed(f"{command} {table}: {said[-1]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the session."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def t1(settings: Settings) -> Outcome:
    """2,000 files of 1 MB."""
    return _compared(settings, "optimize-spark", "0.5", files=2000, rows_per_file=13_500)


def t4(settings: Settings) -> Outcome:
    """40 files of 64 MB of which deletion vectors delete a tenth of the rows."""
    shape = {"files": 40, "rows_per_file": 865_000, "different": 4, "deleted_percent": 10}
    return _compared(settings, "optimize-spark-t4", "0.6", **shape)


def t5(settings: Settings) -> Outcome:
    """2,000 files of 1 MB with column mapping and row tracking."""
    shape = {"files": 2000, "rows_per_file": 13_500, "mapped": 1, "tracked": 1}
    return _compared(settings, "optimize-spark-t5", "0.6", **shape)


def clustering(settings: Settings) -> Outcome:
    """300 MB, once by the clustering columns of the table, and once by those of the request."""
    files = max(2, round(_CLUSTERED_FILES * settings.share))
    shape = {"rows_per_file": 20_000}
    table = tables.generated(settings.work, by="data_files", files=files, different=files, **shape)
    small = tables.generated(settings.work, by="data_files", files=2, different=2, **shape)
    found: dict[str, list[dict[str, Any]]] = {}
    with _session("delta", settings.work) as session:
        for warm, source in ((True, small), *((False, table) for _ in range(settings.runs))):
            for command, columns in (("cluster", []), ("z-order", _BY)):
                for who in ("ours", "delta"):
                    with tables.linked_whole(source) as copy:
                        if not columns:
                            _set_clustering(copy)
                        if who == "delta":
                            run = session.tell(command, copy)
                        else:
                            run = _cluster(copy, columns)
                        if not warm:
                            found.setdefault(f"{command} {who}", []).append(run | _boxes(copy))
                            _say(f"{command} {who}", run)
    return Outcome(
        rows=[
            Row(
                name=f"{title}: {quantity}",
                unit=unit,
                ours=[run[key] for run in found[f"{command} ours"]],
                peer=[run[key] for run in found[f"{command} delta"]],
                target=target if command == of else "",
            )
            for command, title in (("cluster", "Hilbert curve"), ("z-order", "ZORDER BY"))
            for quantity, unit, key, of, target in _QUANTITIES
        ],
        notes=[f"{who}: {runs[0]['files']} files" for who, runs in found.items()],
    )


def appends(settings: Settings) -> Outcome:
    """50 appends of 1% of the rows each, and clustering after each of them."""
    table = tables.generated(
        settings.work, by="data_files", files=20, rows_per_file=20_000, different=20
    )
    number_of_appends = max(1, round(_APPENDS * settings.share))
    found: dict[str, dict[str, Any]] = {}
    with _session("delta", settings.work) as session:
        for who in ("ours", "delta"):
            with tables.linked_whole(table) as copy:
                _set_clustering(copy)
                spent = 0.0
                for number in range(1 + number_of_appends):
                    if number:
                        session.tell("append", copy)
                    run = _cluster(copy, []) if who == "ours" else session.tell("cluster", copy)
                    if not number:
                        first = _rewritten(copy)
                        continue
                    spent += run["cpu_seconds"]
                    _say(f"append {number} {who}", run)
                mb = (_rewritten(copy) - first) / 1e6
                found[who] = {"mb": mb, "cpu_seconds": spent} | _boxes(copy)
    return Outcome(
        rows=[
            Row(
                name=name,
                unit=unit,
                ours=[found["ours"][key]],
                peer=[found["delta"][key]],
                target=target,
            )
            for name, unit, key, target in (
                ("rewritten bytes", "MB", "mb", "0.15"),
                ("CPU time", "s", "cpu_seconds", ""),
                (
                    "files that a box of 1% of the rows touches in the end",
                    "",
                    "files_touched",
                    "1.2",
                ),
                ("share of the bytes that such a box touches", "%", "percent_touched", "1.2"),
            )
        ],
        notes=[f"{who}: {run['files']} files in the end" for who, run in found.items()],
    )


_QUANTITIES = (
    ("wall time", "s", "seconds", "z-order", "0.8"),
    ("CPU time", "s", "cpu_seconds", "", ""),
    ("files that a box of 1% of the rows touches", "", "files_touched", "cluster", "1.1"),
    ("bytes that 100 predicates touch", "MB", "mb_of_predicates", "cluster", "1.0"),
)


def _set_clustering(table: Path) -> None:
    """Makes the columns those of the table. Every file needs their statistics then."""
    run_process([CLUSTER[0], "recompute-stats", str(table)])
    run_process([CLUSTER[0], "set-clustering", str(table), *_BY])


def _cluster(table: Path, options: list[str]) -> dict[str, Any]:
    run = run_process([*CLUSTER, str(table), *options, "--target-bytes", str(CLUSTERED_BYTES)])
    return {"seconds": run.seconds, "cpu_seconds": run.cpu_seconds}


def _boxes(table: Path) -> dict[str, Any]:
    argv = [sys.executable, "-m", "benchmarks.subjects", "boxes", str(table)]
    return dict(run_process(argv).report)


def _rewritten(table: Path) -> int:
    """The bytes of all files that were added without a change of data."""
    lines = (
        line for log in (table / "_delta_log").glob("0*.json") for line in log.open() if "{" in line
    )
    adds = (json.loads(line).get("add") or {} for line in lines)
    return sum(add["size"] for add in adds if add.get("dataChange") is False)


def _say(what: str, run: Mapping[str, Any]) -> None:
    seconds, spent = run["seconds"], run["cpu_seconds"]
    print(f"{what}: {seconds:.2f} s, {spent:.2f} s of CPU", file=sys.stderr, flush=True)


def _compared(settings: Settings, name: str, target: str, *, files: int, **shape: int) -> Outcome:
    """Both jobs on copies of the table, in sessions that have rewritten a smaller one before."""
    files = max(2, round(files * settings.share))
    table = tables.generated(settings.work, by="data_files", files=files, **shape)
    small = tables.generated(
        settings.work,
        by="data_files",
        files=min(files, _WARM_FILES),
        **shape | {"rows_per_file": min(shape["rows_per_file"], 13_500)},
    )
    times: dict[str, list[dict[str, Any]]] = {"ours": [], "delta": []}
    digests: dict[str, dict[str, Any]] = {}
    with _session("ours", settings.work) as own, _session("delta", settings.work) as peer:
        sessions = {"ours": own, "delta": peer}
        for session in sessions.values():
            for _ in range(2):
                with tables.linked_whole(small) as copy:
                    session.tell("optimize", copy)
        digests["before"] = sessions["delta"].tell("digest", table)
        for pair in range(settings.runs):
            for who, session in sessions.items():
                with tables.linked_whole(table) as copy:
                    run = session.tell("optimize", copy)
                    times[who].append(run)
                    if not pair:
                        digests[who] = sessions["delta"].tell("digest", copy)
                _say(f"{name} {pair + 1}/{settings.runs} {who}", run)
    ours, delta = times["ours"], times["delta"]
    kept = ("rows", "digest", "row_ids")
    was = {key: digests["before"][key] for key in kept}
    return Outcome(
        rows=[
            Row(
                name=quantity,
                unit="s",
                ours=[run[key] for run in ours],
                peer=[run[key] for run in delta],
                target=target if key == "seconds" else "",
            )
            for quantity, key in [("job, wall time", "seconds"), ("job, CPU time", "cpu_seconds")]
        ],
        notes=[
            f"{ours[0]['status']}: {ours[0]['files_before']} files became "
            f"{ours[0]['files_after']}, and {delta[0]['files_before']} became "
            f"{delta[0]['files_after']}",
            *agreement("rows before and after ours", was, digests["ours"]),
            *agreement("rows before and after Delta Spark", was, digests["delta"]),
        ],
    )


@contextmanager
def _session(who: str, work: Path) -> Iterator[_Session]:
    session = _Session(who, work)
    try:
        yield session
    finally:
        session.close()


FIGURES: Mapping[str, Figure] = {
    name: Figure(title=f"{title}, against a warm Delta Spark", needs=_NEEDS, measure=measure)
    for name, title, measure in [
        ("optimize-spark", "`optimize` on Spark of 2,000 files of 1 MB", t1),
        ("optimize-spark-t4", "`optimize` on Spark of 40 files of 64 MB with deleted rows", t4),
        ("optimize-spark-t5", "`optimize` on Spark of 2,000 mapped and tracked files", t5),
        ("cluster-spark", "`cluster` of 300 MB by two columns", clustering),
        ("cluster-appends", f"`cluster` after each of {_APPENDS} appends of 1%", appends),
    ]
}
