"""Measured figures as files, from which the documentation makes its tables and plots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.outcome import Outcome, Row

RESULTS = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """When and on what the figures of one run were measured."""

    day: str
    machine: str
    load: float
    """The mean number of processes that wanted a core in the minute before the run."""
    size: str
    """The size of the generated log, for figures that use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFigure:
    """The content of a file. A row has the amounts of each pair of processes."""

    title: str
    conditions: Conditions
    outcome: Outcome

    def to_json(self) -> str:
        document = asdict(self)
        for row in document["outcome"]["rows"]:
            row["ours"] = _rounded(row["ours"])
            row["peer"] = None if row["peer"] is None else _rounded(row["peer"])
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> RecordedFigure:
        document: Mapping[str, Any] = json.loads(text)
        outcome = document["outcome"]
        return cls(
            title=document["title"],
            conditions=Conditions(**document["conditions"]),
            outcome=Outcome(rows=[Row(**row) for row in outcome["rows"]], notes=outcome["notes"]),
        )


def read(folder: Path = RESULTS) -> dict[str, RecordedFigure]:
    """Returns the recorded figures by their names."""
    files = sorted(folder.glob("*.json"))
    return {file.stem: RecordedFigure.from_json(file.read_text()) for file in files}


def _rounded(values: list[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
