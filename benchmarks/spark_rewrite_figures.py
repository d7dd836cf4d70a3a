"""What rewriting data files costs on Spark: `optimize` as a job, against Delta Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.measure import ROOT, ProcessFailed
from benchmarks.outcome import Figure, Outcome, Row, Settings, agreement

_WARM_FILES = 40
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
    with _sessions(settings.work) as sessions:
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
                print(
                    f"{name} {pair + 1}/{settings.runs} {who}: {run['seconds']:.2f} s, "
                    f"{run['cpu_seconds']:.2f} s of CPU",
                    file=sys.stderr,
                    flush=True,
                )
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
def _sessions(work: Path) -> Iterator[Mapping[str, _Session]]:
    sessions: dict[str, _Session] = {}
    try:
        for who in ("ours", "delta"):
            sessions[who] = _Session(who, work)
        yield sessions
    finally:
        for session in sessions.values():
            session.close()


FIGURES: Mapping[str, Figure] = {
    name: Figure(title=f"{title}, against Delta Spark, both warm", needs=_NEEDS, measure=measure)
    for name, title, measure in [
        ("optimize-spark", "`optimize` on Spark of 2,000 files of 1 MB", t1),
        ("optimize-spark-t4", "`optimize` on Spark of 40 files of 64 MB with deleted rows", t4),
        ("optimize-spark-t5", "`optimize` on Spark of 2,000 mapped and tracked files", t5),
    ]
}
