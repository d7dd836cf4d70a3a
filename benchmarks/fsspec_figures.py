"""What reading through fsspec costs, against the store of this machine's own disk."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial

from benchmarks import tables
from benchmarks.figures import CHECKPOINT
from benchmarks.measure import Run, run_pairs, run_process
from benchmarks.outcome import Figure, Outcome, Row, Settings, agreement, time_and_memory


def reading(settings: Settings) -> Outcome:
    """Opening a table by its checkpoint and listing its files, by either store."""
    table = tables.generated(
        settings.work, commits=settings.commits, adds=settings.adds, removes=settings.removes
    )
    with tables.linked(table) as copy:
        run_process([*CHECKPOINT, str(copy), "--json"])
        tables.warm(copy)

        def subject(store: str) -> list[str]:
            return [sys.executable, "-m", "benchmarks.subjects", "files-by-store", store, str(copy)]

        ours, peer = run_pairs(
            partial(run_process, subject("fsspec")),
            partial(run_process, subject("local")),
            runs=settings.runs,
            label="fsspec",
        )
    inside: list[list[float]] = [[run.report["seconds"] for run in side] for side in (ours, peer)]
    cpu = [[run.cpu_seconds for run in side] for side in (ours, peer)]
    return Outcome(
        rows=[
            *time_and_memory(ours, peer, prefix="", targets=("1.3", "1.3")),
            Row(name="CPU time", unit="s", ours=cpu[0], peer=cpu[1], target="1.3"),
            Row(
                name="open and list, without the start of the process",
                unit="s",
                ours=inside[0],
                peer=inside[1],
                target="1.3",
            ),
        ],
        notes=agreement("files", *(_found(side[0]) for side in (ours, peer))),
    )


def _found(run: Run) -> dict[str, object]:
    return {name: value for name, value in run.report.items() if name != "seconds"}


FIGURES: Mapping[str, Figure] = {
    "fsspec": Figure(
        title="a table opened through fsspec, against the dedicated store of the same disk",
        needs="import fsspec",
        measure=reading,
    )
}
