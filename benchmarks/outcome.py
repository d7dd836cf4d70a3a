"""What a figure is asked for and what it gives, to be printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import ProcessFailed, Run, Spread, run_process


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The size of the log, the number of pairs, and where tables are kept."""

    commits: int
    adds: int
    removes: int
    runs: int
    work: Path
    share: float = 1.0
    """Of the files and appends of figures on Spark, for smaller runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity of ours and of the peer, pair by pair. The target is the largest good ratio.

    Where no peer can do it, there is none, and the target is the largest good amount.
    """

    name: str
    unit: str
    ours: Sequence[float]
    peer: Sequence[float] | None = None
    target: str = ""

    @property
    def ratio(self) -> Spread | None:
        if self.peer is None:
            return None
        return Spread.of([a / b for a, b in zip(self.ours, self.peer, strict=True)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A figure's rows, and notes about what the processes reported besides."""

    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def to_markdown(self) -> str:
        """Returns a table with the rows, and the notes."""
        lines = [
            "| quantity | ratio | min .. max | target | ours | peer |",
            "|---|---|---|---|---|---|",
        ]
        for row in self.rows:
            ratio, ours = row.ratio, Spread.of(row.ours)
            compared, peer = " | ", ""
            if ratio is not None and row.peer is not None:
                compared = f"{ratio.median:.2f} | {ratio.low:.2f} .. {ratio.high:.2f}"
                peer = f"{_amount(Spread.of(row.peer).median)} {row.unit}"
            amount = f"{_amount(ours.median)} {row.unit}"
            lines.append(f"| {row.name} | {compared} | {row.target} | {amount} | {peer} |")
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``needs`` is a statement that runs only where the subject is there."""

    title: str
    needs: str
    measure: Callable[[Settings], Outcome]

    def missing(self, settings: Settings) -> str | None:
        """Why this figure cannot be measured, or None."""
        try:
            run_process([sys.executable, "-c", self.needs], env=airflow_home(settings))
        except ProcessFailed as failure:
            return str(failure).rsplit("status ", 1)[-1].partition(": ")[2]
        return None


def time_and_memory(
    ours: Sequence[Run], peer: Sequence[Run], *, prefix: str, targets: tuple[str, str]
) -> list[Row]:
    return [
        Row(
            name=f"{prefix}wall time",
            unit="s",
            ours=[run.seconds for run in ours],
            peer=[run.seconds for run in peer],
            target=targets[0],
        ),
        Row(
            name=f"{prefix}peak memory",
            unit="MB",
            ours=[run.peak_mb for run in ours],
            peer=[run.peak_mb for run in peer],
            target=targets[1],
        ),
    ]


def agreement(what: str, ours: Mapping[str, object], peer: Mapping[str, object]) -> list[str]:
    """A note that says whether both sides found the same: a fast wrong answer is no figure."""
    shared = {key: value for key, value in ours.items() if key in peer}
    differing = [key for key, value in shared.items() if peer[key] != value]
    if differing:
        said = ", ".join(f"{key} {ours[key]} and {peer[key]}" for key in differing)
        return [f"{what}: the two DIFFER: {said}"]
    return [f"{what}: both report " + ", ".join(f"{key} {value}" for key, value in shared.items())]


def airflow_home(settings: Settings) -> dict[str, str]:
    return {"AIRFLOW_HOME": str(settings.work / "airflow")}


def _amount(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"
