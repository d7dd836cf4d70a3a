"""The cost of what guards and counts, against the same work without it."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks import tables
from benchmarks.figures import CHECKPOINT
from benchmarks.measure import ROOT, Run, run_pairs, run_process
from benchmarks.outcome import Figure, Outcome, Row, Settings, agreement, time_and_memory

_SECONDS = 1800
_QUIET = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}


def reading(settings: Settings) -> Outcome:
    """Whole processes in pairs; their instructions, too, where Valgrind can count them."""
    table = tables.generated(
        settings.work, commits=settings.commits, adds=settings.adds, removes=settings.removes
    )
    with tables.linked(table) as copy:
        run_process([*CHECKPOINT, str(copy), "--json"])
        tables.warm(copy)

        def subject(kind: str) -> list[str]:
            return [sys.executable, "-m", "benchmarks.subjects", "files-by-limits", kind, str(copy)]

        ours, peer = run_pairs(
            partial(run_process, subject("limited")),
            partial(run_process, subject("unlimited")),
            runs=settings.runs,
            label="limits",
        )
        counts = [_instructions(subject(kind)) for kind in ("limited", "unlimited")]
    cpu = [[run.cpu_seconds for run in side] for side in (ours, peer)]
    rows = [
        *time_and_memory(ours, peer, prefix="", targets=("1.03", "1.0")),
        Row(name="CPU time", unit="s", ours=cpu[0], peer=cpu[1], target="1.03"),
    ]
    low, high = median_interval([a / b for a, b in zip(*cpu, strict=True)])
    notes = [f"the median ratio of CPU time is in {low:.3f} .. {high:.3f} with 95 %"]
    if counts[0] is not None and counts[1] is not None:
        notes.append(
            f"instructions: {counts[0]:,} with limits, {counts[1]:,} without, "
            f"ratio {counts[0] / counts[1]:.4f}"
        )
    else:
        notes.append("instructions were not counted: Valgrind is not installed")
    return Outcome(rows=rows, notes=[*notes, *agreement("files", ours[0].report, peer[0].report)])


def counting(settings: Settings) -> Outcome:
    """A checkpoint whose cost is counted, and one that is recorded in a ledger, against one that is
    neither. All processes load the same modules.
    """
    table = tables.generated(
        settings.work, commits=settings.commits, adds=settings.adds, removes=settings.removes
    )
    tables.warm(table)
    rows: list[Row] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as ledger:

        def checkpointed(kind: str) -> Run:
            with tables.linked(table) as copy:
                words = ["checkpoint-counted", kind, str(copy), ledger]
                return run_process([sys.executable, "-m", "benchmarks.subjects", *words])

        # The first row creates the ledger.
        checkpointed("recorded")
        for kind, target in (("counted", "1.02"), ("recorded", "")):
            ours, peer = run_pairs(
                partial(checkpointed, kind),
                partial(checkpointed, "plain"),
                runs=settings.runs,
                label=kind,
            )
            cpu = [[run.cpu_seconds for run in side] for side in (ours, peer)]
            rows.append(
                Row(name=f"{kind}: CPU time", unit="s", ours=cpu[0], peer=cpu[1], target=target)
            )
            low, high = median_interval([a / b for a, b in zip(*cpu, strict=True)])
            notes.append(f"{kind}: the median ratio is in {low:.3f} .. {high:.3f} with 95 %")
            notes += agreement(
                kind,
                {"files": ours[0].report["files"], "warnings": ours[0].report["warnings"]},
                {"files": peer[0].report["files"], "warnings": peer[0].report["warnings"]},
            )
    return Outcome(rows=rows, notes=notes)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """A confidence interval of 95 % for the median, by the ranks of the values alone."""
    ordered, count = sorted(values), len(values)
    rank = 0
    while sum(math.comb(count, k) for k in range(rank + 1)) / 2**count <= 0.025:
        rank += 1
    rank = max(rank, 1)
    return ordered[rank - 1], ordered[count - rank]


def _instructions(words: Sequence[str]) -> int | None:
    """The instructions of a process. Other work on the machine does not change them."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    # A cache of nothing is simulated, so only instructions are counted.
    tool = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    done = subprocess.run(
        [*tool, *words],
        env={**os.environ, **_QUIET},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1])


FIGURES: Mapping[str, Figure] = {
    "limits": Figure(
        title="opening a table by its checkpoint with the memory limits, against none",
        needs="import pyarrow",
        measure=reading,
    ),
    "counting": Figure(
        title="a checkpoint whose cost is counted and recorded, against one without both",
        needs="import pyarrow",
        measure=counting,
    ),
}
